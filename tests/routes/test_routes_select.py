import pytest

from tuner_job.api.base import InputError
from tuner_job.routes.knobs import BadValue, KnobList, UnknownKnob, parse_knob_list
from tuner_job.routes.select import EmptySearch, require_search, select


def names(selected) -> list[str]:
    return [s.knob.name for s in selected]


def test_everything_bounded_is_the_default_search(real_knobs: KnobList) -> None:
    selected = select(real_knobs)
    assert len(selected) == 197
    assert sum(len(s.flips) for s in selected) == 207
    assert all(s.values[0] == s.knob.default and s.knob.default not in s.flips for s in selected)


def test_globs_resolve_in_list_order_and_exclude_wins(real_knobs: KnobList) -> None:
    assert names(select(real_knobs, ["-kgen:tiling", "-reshape_ppg*"])) == [
        "-reshape_ppg",
        "-reshape_ppg:out_4d_bs_1",
        "-kgen:tiling",
    ]
    kgen = names(select(real_knobs, ["-kgen:*"], ["-kgen:red*"]))
    assert "-kgen:tiling" in kgen
    assert not [n for n in kgen if not n.startswith("-kgen:") or n.startswith("-kgen:red")]


def test_values_narrow_a_knob_and_open_an_unbounded_one(real_knobs: KnobList) -> None:
    selected = select(real_knobs, ["-kgen:tiling", "-peep:*"], values={"-kgen:tiling": ["1"], "-peep:max": ["1", "4", "1", "0"]})
    by_name = {s.knob.name: s.values for s in selected}
    assert by_name["-kgen:tiling"] == (real_knobs.find("-kgen:tiling").default, "1")
    assert by_name["-peep:max"] == ("0", "1", "4")


def test_a_full_name_beats_a_glob_in_values(real_knobs: KnobList) -> None:
    (tiling,) = select(real_knobs, ["-kgen:tiling"], values={"-kgen:tiling": ["1"], "-kgen:tiling*": ["0"]})
    assert tiling.flips == ("1",)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"include": ["-kegn:*"]}, UnknownKnob, "search.knobs.include: '-kegn:*' matches no knob"),
        ({"exclude": ["-reshap_ppg"]}, UnknownKnob, "nearest: -reshape_ppg"),
        ({"values": {"-nope*": ["1"]}}, UnknownKnob, "search.knobs.values"),
        ({"values": {"-kgen:tiling": ["9"]}}, BadValue, "allowed: 0, 1, 2"),
        ({"values": {"-peep:max": ["x"]}}, BadValue, "a decimal integer"),
        ({"values": {"-kgen:tiling": []}}, InputError, "empty list"),
        ({"include": ["-reshape_ppg"], "values": {"-kgen:tiling": ["1"]}}, InputError, "leave no such knob"),
        ({"values": {"-kgen:tiling*": ["1"], "-kgen:til*g": ["2"]}}, InputError, "both match -kgen:tiling"),
    ],
)
def test_mistakes_are_named_with_their_field(real_knobs: KnobList, arguments, error, says: str) -> None:
    with pytest.raises(InputError) as caught:
        select(real_knobs, **arguments)
    assert type(caught.value) is error
    assert says in str(caught.value)


@pytest.mark.parametrize("include", [(), ("*",), ("-*",), ("-*", "-kgen:tiling")])
def test_unbounded_knobs_are_not_searched_unless_asked_for(real_knobs: KnobList, include) -> None:
    assert all(s.knob.values is not None for s in select(real_knobs, include))
    assert len(select(real_knobs, include)) == 197


@pytest.mark.parametrize("include", [["-kgen:topk_algo"], ["-kgen:*"], ["-*", "-kgen:topk*"]])
def test_an_unbounded_knob_that_is_asked_for_takes_its_curated_values(real_knobs: KnobList, include) -> None:
    by_name = {s.knob.name: s.values for s in select(real_knobs, include)}
    assert by_name["-kgen:topk_algo"] == ("0", "16", "32", "64")
    assert "-peep:max" not in by_name


def test_given_values_and_exclude_beat_curated_ones(real_knobs: KnobList) -> None:
    (topk,) = select(real_knobs, ["-kgen:topk_algo"], values={"-kgen:topk_algo": ["16"]})
    assert topk.flips == ("16",)
    assert select(real_knobs, ["-kgen:topk_algo"], ["-kgen:topk*"]) == ()


def test_an_unbounded_knob_without_curated_values_needs_values() -> None:
    knobs = parse_knob_list(
        '{"tuner_version": "9", "tuner_options": ['
        '{"option": "-new:depth", "allowed_values": "-new:depth=int", "default_value": "0"},'
        '{"option": "-old", "allowed_values": "-old=[on|off]", "default_value": "on"}]}'
    )
    with pytest.raises(InputError, match="give its values"):
        select(knobs, ["-new:depth"])
    assert names(select(knobs, ["-new:*", "-old"])) == ["-old"]


def test_a_search_with_nothing_to_vary_is_refused(real_knobs: KnobList) -> None:
    nothing = select(real_knobs, ["-reshape_ppg"], values={"-reshape_ppg": ["on"]})
    assert nothing == ()
    with pytest.raises(EmptySearch) as caught:
        require_search(nothing, {"opt_level": ()}, ["default"])
    assert caught.value.reason == "EmptySearch"
    require_search(nothing, {"opt_level": ("5",)}, ["default"])
    require_search(nothing, {}, ["default", "fp16"])
