import json

import pytest

from tuner_job.api.base import InputError
from tuner_job.routes.knobs import BadValue, KnobList, UnknownKnob, parse_knob_list


def listing(*options: dict[str, object], **top: object) -> str:
    return json.dumps({"tuner_version": "1.0", "tuner_options": list(options), **top})


def option(name: str, domain: str, default: str = "") -> dict[str, object]:
    return {"option": name, "allowed_values": f"{name}={domain}", "default_value": default, "help": ""}


def test_the_real_list_has_the_known_size(real_knobs: KnobList) -> None:
    assert len(real_knobs) == 211
    assert real_knobs.tuner_version == "2.20.51"
    assert len(real_knobs.bounded) == 197
    assert sum(len(k.values or ()) for k in real_knobs.bounded) == 404
    assert 1 + sum(len(set(k.values or ()) - {k.default}) for k in real_knobs.bounded) == 208
    assert len([k for k in real_knobs.knobs if k.values is None]) == 14


def test_order_and_lookup_follow_the_list(real_knobs: KnobList) -> None:
    assert real_knobs.names[0] == "-conv_use_long_w"
    assert [real_knobs.order(name) for name in real_knobs.names] == list(range(211))
    assert real_knobs.find("-kgen:tiling").values == ("0", "1", "2")


def test_a_range_with_dots_is_unbounded_from_its_first_value_or_the_default(real_knobs: KnobList) -> None:
    knob = real_knobs.find("-peep:max")
    assert knob.values is None
    assert [v for v in ("-1", "0", "1", "7", "x", "1|2", "...", "+3", "03", "") if knob.accepts(v)] == ["0", "1", "7"]


@pytest.mark.parametrize("value", ["int", "1.5", "99999999999999", "0x10", "", "-0", "१"])
def test_an_unbounded_integer_takes_decimal_32_bit_integers_only(real_knobs: KnobList, value: str) -> None:
    knob = real_knobs.find("-cask_fusion:num_tactics")
    assert knob.accepts("-1")
    assert knob.accepts("20")
    with pytest.raises(BadValue, match="a decimal integer"):
        knob.check(value)


def test_another_domain_takes_tokens_but_not_its_own_name() -> None:
    knob = parse_knob_list(listing(option("-x", "float"))).find("-x")
    assert knob.accepts("0.5")
    assert not knob.accepts("float")
    assert not knob.accepts("0 5")


@pytest.mark.parametrize(
    ("typo", "near"),
    [
        ("-reshap_ppg", "-reshape_ppg"),
        ("reshape_ppg", "-reshape_ppg"),
        ("-RESHAPE_PPG", "-reshape_ppg"),
        ("-kgen:tilling", "-kgen:tiling"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_name(real_knobs: KnobList, typo: str, near: str) -> None:
    with pytest.raises(UnknownKnob, match=rf"nearest: {near}\b"):
        real_knobs.find(typo)


def test_odd_items_are_passed_over() -> None:
    knobs = parse_knob_list(
        listing(
            {"allowed_values": "-no_name=[1]"},
            {"option": 7},
            "text",  # type: ignore[arg-type]
            option("has space", "[1]"),
            option("-empty", "[ | ]"),
            option("-spaced", "[ a | b |]", "a"),
            option("-unwritable", "[a b|c]", "c"),
            {"option": "-bare", "default_value": 3},
        )
    )
    assert [(k.name, k.values) for k in knobs.knobs] == [
        ("-empty", None),
        ("-spaced", ("a", "b")),
        ("-unwritable", None),
        ("-bare", None),
    ]
    assert knobs.find("-bare").default == ""


def test_a_missing_version_is_unknown() -> None:
    assert parse_knob_list(json.dumps({"tuner_options": [option("-x", "[1]")]})).tuner_version == "unknown"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"tuner_options": []}', '{"tuner_options": {}}', listing({"option": 1}), "[" * 100_000],
)
def test_no_usable_list_is_one_clear_line(text: str) -> None:
    with pytest.raises(InputError, match="knob list: ") as error:
        parse_knob_list(text)
    assert error.value.reason == "BadKnobList"
    assert "\n" not in str(error.value)


def test_a_knob_listed_twice_is_refused() -> None:
    with pytest.raises(InputError, match="-x is listed twice"):
        parse_knob_list(listing(option("-x", "[1]"), option("-x", "[2]")))


def test_the_digest_sees_names_domains_defaults_and_order_but_no_help() -> None:
    def digest(*options: dict[str, object]) -> str:
        return parse_knob_list(listing(*options)).digest

    a, b = option("-a", "[1|2]", "1"), option("-b", "int", "0")
    base = digest(a, b)
    assert digest(a, {**b, "help": "other words"}) == base
    assert (
        len({base, digest(b, a), digest(a), digest({**a, "default_value": "2"}, b), digest(a, option("-b", "float", "0"))}) == 5
    )
