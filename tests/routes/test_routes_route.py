import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner_job.api.base import InputError
from tuner_job.routes.expression import parse_expression
from tuner_job.routes.knobs import BadValue, KnobList, UnknownKnob, parse_knob_list
from tuner_job.routes.route import EMPTY, BadRoute, make_route, parse_route

DATA = Path(__file__).parent.parent / "data"
KNOBS = parse_knob_list((DATA / "all_build_routes-11.2.1.2.json").read_text())


def values_of(name: str) -> tuple[str, ...]:
    return KNOBS.find(name).values or ("0", "1", "17")


routes = st.dictionaries(st.sampled_from(KNOBS.names), st.integers(0, 50), max_size=12).map(
    lambda picks: {name: values_of(name)[i % len(values_of(name))] for name, i in picks.items()}
)


@given(routes)
def test_parse_undoes_format(values: dict[str, str]) -> None:
    route = make_route(values, KNOBS)
    assert parse_route(str(route), KNOBS) == route


@given(routes, st.randoms(use_true_random=False), st.integers(1, 4))
def test_order_and_spaces_do_not_matter_and_canonical_text_stays(values: dict[str, str], random, spaces: int) -> None:
    tokens = [f"{name}={value}" for name, value in values.items()]
    random.shuffle(tokens)
    text = str(parse_route((" " * spaces).join(["", *tokens, ""]), KNOBS))
    assert text == str(make_route(values, KNOBS))
    assert str(parse_route(text, KNOBS)) == text
    assert [KNOBS.order(t.split("=")[0]) for t in text.split()] == sorted(KNOBS.order(n) for n in values)


def test_the_empty_route_is_the_true_default_and_an_explicit_default_is_not() -> None:
    assert parse_route("  ", KNOBS) == EMPTY
    assert str(EMPTY) == ""
    explicit = parse_route("-reshape_ppg=on", KNOBS)
    assert str(explicit) == "-reshape_ppg=on"
    assert explicit != EMPTY


@given(st.text(max_size=60))
def test_any_text_parses_or_is_one_line_of_input_error(text: str) -> None:
    try:
        route = parse_route(text, KNOBS)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017
    else:
        assert parse_route(str(route), KNOBS) == route


GOOD = {
    "",
    "-reshape_ppg=off",
    " -reshape_ppg=off",
    "-reshape_ppg=off ",
    "-reshape_ppg=off  -transpose_ppg=off",
    "-reshape_ppg=on",
    "-peep:max=3",
    "-kgen:tiling=1",
    "-conv_use_long_w:reshapes=on",
}


@pytest.mark.parametrize("text", [case["set"] for case in json.loads((DATA / "build_route_semantics-11.2.1.2.json").read_text())])
def test_what_tensorrt_silently_lets_through_is_refused(text: str) -> None:
    if text in GOOD:
        assert str(parse_route(text, KNOBS)) == " ".join(text.split())
    else:
        with pytest.raises(InputError):
            parse_route(text, KNOBS)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("-reshape_ppg=banana", BadValue, "job.yaml: -reshape_ppg: 'banana' is not allowed; allowed: on, off"),
        ("-reshape_ppg=OFF", BadValue, "allowed: on, off"),
        ("-reshape_ppg=", BadRoute, "has no value"),
        ("-reshape_ppg", BadRoute, "has no value; write -reshape_ppg=value"),
        ("-reshap_ppg", UnknownKnob, "nearest: -reshape_ppg"),
        ("-nope=1", UnknownKnob, "unknown knob '-nope'"),
        ("reshape_ppg=off", BadRoute, "does not begin with a dash"),
        ("-reshape_ppg=off -reshape_ppg=off", BadRoute, "set twice"),
        ("-reshape_ppg=off\t-transpose_ppg=off", BadRoute, r"'\t' in "),
        ("-reshape_ppg=off\n", BadRoute, r"'\n' in "),
        ("é=1", BadRoute, r"'\xe9' in "),
        ("-reshape_ppg=off;-transpose_ppg=off", BadValue, "'off;-transpose_ppg=off'"),
        ("-reshape_ppg=[on|off]", BadValue, "'[on|off]'"),
        ("-peep:max=-1", BadValue, "a decimal integer of [1|2|...], or 0"),
    ],
)
def test_each_mistake_has_its_reason(text: str, error: type[InputError], says: str) -> None:
    with pytest.raises(error) as caught:
        parse_route(text, KNOBS, "job.yaml")
    assert type(caught.value) is error
    assert says in str(caught.value)
    assert str(caught.value).startswith("job.yaml: ")


def test_a_long_foreign_text_is_shown_short() -> None:
    with pytest.raises(InputError) as caught:
        parse_route("-" + "x" * 5000 + "=1", KNOBS)
    assert len(str(caught.value)) < 300


def lists() -> st.SearchStrategy[dict[str, list[str]]]:
    bounded = [k.name for k in KNOBS.bounded]
    return st.dictionaries(
        st.sampled_from(bounded), st.tuples(st.integers(1, 4), st.randoms(use_true_random=False)), max_size=5
    ).map(lambda d: {n: r.sample(values_of(n), min(k, len(values_of(n)))) for n, (k, r) in d.items()})


@given(lists())
def test_an_expression_counts_what_it_enumerates(variable: dict[str, list[str]]) -> None:
    expression = parse_expression(" ".join(f"{n}=[{'|'.join(v)}]" for n, v in variable.items()), KNOBS)
    routes = list(expression.routes())
    assert len(routes) == len(set(routes)) == expression.count
    assert parse_expression(str(expression), KNOBS) == expression


def test_the_last_token_varies_fastest_and_spaces_in_brackets_and_lines_are_fine() -> None:
    text = "-peep:max=3\n-kgen:tiling=[ 2 | 0 ]  -reshape_ppg=[off|on]\n"
    assert [str(r) for r in parse_expression(text, KNOBS).routes()] == [
        "-reshape_ppg=off -peep:max=3 -kgen:tiling=2",
        "-reshape_ppg=on -peep:max=3 -kgen:tiling=2",
        "-reshape_ppg=off -peep:max=3 -kgen:tiling=0",
        "-reshape_ppg=on -peep:max=3 -kgen:tiling=0",
    ]


def test_a_count_may_be_astronomical() -> None:
    text = " ".join(f"{k.name}=[{'|'.join(k.values or ())}]" for k in KNOBS.bounded)
    expression = parse_expression(text, KNOBS)
    assert expression.count == 2**190 * 3**4 * 4**3
    assert len(expression.route(expression.count - 1)) == 197
    with pytest.raises(IndexError):
        expression.route(expression.count)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("-reshape_ppg", BadRoute),
        ("-nope=[1|2]", UnknownKnob),
        ("-builderOptimizationLevel=3", UnknownKnob),
        ("-reshape_ppg=x[on|off]", BadRoute),
        ("-reshape_ppg=[on|off]x", BadRoute),
        ("-reshape_ppg=[on][off]", BadRoute),
        ("-reshape_ppg=[on|off", BadRoute),
        ("-reshape_ppg=[o n|off]", BadRoute),
        ("-reshape_ppg=on\x0c-peep:max=3", BadRoute),
        ("-reshape_ppg=[]", BadRoute),
        ("-reshape_ppg=[on||off]", BadRoute),
        ("-reshape_ppg=[on|on]", BadRoute),
        ("-kgen:tiling=[0|...]", BadValue),
        ("-kgen:tiling=[0|9]", BadValue),
        ("-cask_fusion:num_tactics=[1|2]", BadRoute),
        ("-cask_fusion:num_tactics=int", BadValue),
        ("-cask_fusion:num_tactics=int32_t", BadValue),
        ("-reshape_ppg=[on|off] -reshape_ppg=on", BadRoute),
        ("-reshape_ppg=on\t-transpose_ppg=on", BadRoute),
    ],
)
def test_wrong_expressions_are_refused(text: str, error: type[InputError]) -> None:
    with pytest.raises(InputError) as caught:
        parse_expression(text, KNOBS)
    assert type(caught.value) is error


def test_a_list_of_one_stays_variable() -> None:
    expression = parse_expression("-kgen:tiling=[2] -reshape_ppg=off", KNOBS)
    assert [t.variable for t in expression.terms] == [True, False]
    assert str(expression) == "-kgen:tiling=[2] -reshape_ppg=off"


def test_fixtures_agree(real_knobs: KnobList) -> None:
    assert real_knobs == KNOBS
