"""What each strategy does in particular."""

from __future__ import annotations

import itertools
from importlib.metadata import EntryPoint, EntryPoints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_cases import additive_world, random_world, run, small_space

from tuner_job.api.base import InputError
from tuner_job.api.measurement import Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.search import strategy as strategy_module
from tuner_job.search.product import SpaceTooLarge, spread
from tuner_job.search.rounds import History
from tuner_job.search.singles import positives
from tuner_job.search.strategy import Budget, Done, Flip, Observation, UnknownStrategy, estimate, strategy


def routes(rounds) -> list[str]:
    return [p.candidate.route for r in rounds for p in r]


def test_one_at_a_time_tries_every_other_value_once() -> None:
    space = small_space((2, 3, 2), {"level": ("5",)})
    _, rounds, reason = run(strategy("OneAtATime"), space, random_world(1, 0.3, space), 50)
    assert [(p.candidate.settings, p.candidate.route) for r in rounds for p in r] == [
        ({"level": "5"}, ""),
        ({}, "-k0=1"),
        ({}, "-k1=1"),
        ({}, "-k1=2"),
        ({}, "-k1:c2=1"),
    ]
    assert reason == "every value was tried alone"


def test_trtexecs_order_is_the_last_knob_first() -> None:
    space = small_space((2, 3, 2))
    _, rounds, _ = run(strategy("OneAtATime", {"order": "trtexec"}), space, random_world(1, 0, space), 50)
    assert routes(rounds) == ["-k1:c2=1", "-k1=1", "-k1=2", "-k0=1"]


@pytest.mark.parametrize("name", ["OneAtATime", "Mixed", "Adaptive"])
def test_variants_come_first_and_knobs_are_swept_on_the_fastest(name: str) -> None:
    space = small_space((2, 2), variants=("default", "fp16", "int8"))
    effects = {Flip("variant", "fp16"): -0.3, Flip("variant", "int8"): 0.2}
    _, rounds, _ = run(strategy(name), space, additive_world(effects, space), 40)
    flat = [p.candidate for r in rounds for p in r]
    assert [(c.variant, c.route) for c in flat[:2]] == [("fp16", ""), ("int8", "")]
    if name != "Adaptive":
        assert {c.variant for c in flat[2:]} == {"fp16"}


def test_mixed_combines_only_what_is_significantly_faster() -> None:
    space = small_space((2,) * 8)
    good = {Flip("-k0", "1"): -0.05, Flip("-k1", "1"): -0.04, Flip("-k3", "1"): -0.03}
    _, rounds, _ = run(strategy("Mixed"), space, additive_world({**good, Flip("-k4", "1"): -0.0005}, space), 100)
    combined = {r for r in routes(rounds) if len(r.split()) > 1}
    assert combined == {"-k0=1 -k1=1 -k3=1", "-k0=1 -k1=1", "-k0=1 -k3=1", "-k1=1 -k3=1"}


def test_mixed_never_calls_an_inaccurate_flip_positive() -> None:
    space = small_space((2,) * 4)

    def world(trial: str, candidate: Candidate) -> Observation:
        wrong = "-k0=1" in candidate.route
        return Observation(trial, candidate, Outcome.INFEASIBLE if wrong else Outcome.FEASIBLE, -0.2, 0.001)

    history, _, _ = run(strategy("Mixed"), space, world, 100)
    past = History(space, history)
    assert Flip("-k0", "1") not in positives(past, frozenset(), 0.1)
    assert not [o for o in history if "-k0=1" in o.candidate.route and o.candidate.route != "-k0=1"]


def test_mixed_keeps_under_its_cap_the_strongest_first() -> None:
    space = small_space((2,) * 12)
    effects = {flip: -0.02 - 0.001 * i for i, flip in enumerate(space.flips)}
    _, rounds, _ = run(strategy("Mixed", {"cap": "8"}), space, additive_world(effects, space), 1000)
    combined = [r for r in routes(rounds) if len(r.split()) > 1]
    assert len(combined) == 4
    assert {t.split("=")[0] for r in combined for t in r.split()} == {f.dimension for f in space.flips[-3:]}


def test_pure_noise_seldom_makes_positives() -> None:
    space = small_space((2,) * 60)
    false = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        history = [
            Observation(f"001-{i:05d}", space.candidate([f]), Outcome.FEASIBLE, float(rng.normal(0, 0.01)), 0.01)
            for i, f in enumerate(space.flips)
        ]
        false += bool(positives(History(space, history), frozenset(), 0.1))
    assert false <= 20  # 10 expected; trtexec's rule has about 30 positives in every run


def test_full_is_the_whole_product_but_the_baseline() -> None:
    space = small_space((2, 3), {"level": ("4", "5")}, ("default", "fp16"))
    _, rounds, reason = run(strategy("Full"), space, random_world(1, 0.2, space), 40)
    assert len({p.candidate.id for r in rounds for p in r}) == 2 * 3 * 2 * 3 - 1
    assert reason == "all 36 combinations were tried"
    assert routes(rounds)[:3] == ["-k1=1", "-k1=2", "-k0=1"]


def test_full_refuses_what_the_budget_cannot_hold_unless_told_to_sample() -> None:
    space = small_space((2,) * 100)
    with pytest.raises(SpaceTooLarge, match=r"about 10\^30 candidates, the budget is 50 trials"):
        estimate(strategy("Full"), space, Budget(50, 0, 9))
    sampled = strategy("Full", {"sample": "true"})
    assert estimate(sampled, space, Budget(50, 0, 9)) == 50
    _, rounds, _ = run(sampled, space, random_world(1, 0, space), 50)
    assert len(set(routes(rounds))) == 50
    assert "sampled from all" in rounds[0][0].reason


@given(st.integers(1, 300), st.integers(0, 2**64))
def test_a_spread_is_a_permutation(count: int, seed: int) -> None:
    assert sorted(spread(count, seed)) == list(range(count))


def test_every_beginning_of_a_spread_is_even() -> None:
    for count in (10_000, 2**197):
        starts = [value * 16 // count for value in itertools.islice(spread(count, 3), 160)]
        assert min(starts.count(bucket) for bucket in range(16)) >= 8


def test_an_expression_is_tried_as_written_with_its_explicit_defaults() -> None:
    space = small_space((2, 3), {"level": ("5",)})
    chosen = strategy("Expression", {"expression": "-k1=[0|2] -k0=1"})
    _, rounds, _ = run(chosen, space, random_world(1, 0, space), 10)
    assert [(p.candidate.settings.get("level"), p.candidate.route) for r in rounds for p in r] == [
        (None, "-k0=1 -k1=0"),
        (None, "-k0=1 -k1=2"),
        ("5", "-k0=1 -k1=0"),
        ("5", "-k0=1 -k1=2"),
    ]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("Adaptiv", {}, "there are Adaptive, OneAtATime"),
        ("OneAtATime", {"ordr": "list"}, "has no option 'ordr'; it has order"),
        ("OneAtATime", {"order": "up"}, "write one of list, trtexec"),
        ("Mixed", {"cap": "1"}, "an integer from 2 to 100000"),
        ("Mixed", {"cap": "9" * 5000}, "an integer from 2 to 100000"),
        ("Mixed", {"fdr": "nan"}, "a number from 0.0 to 0.5"),
        ("Adaptive", {"group": "x"}, "an integer from 1 to 64"),
        ("Expression", {}, "search.expression: empty"),
    ],
)
def test_wrong_names_and_options_are_one_line(name: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(InputError) as caught:
        strategy(name, options)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400


class Lazy:
    """A plug-in that never wants anything."""

    def __init__(self, options) -> None:
        self.options = options

    def next_round(self, space, history, budget, seed, pending=()):
        return Done("lazy")

    def estimate(self, space, budget) -> int:
        return 0


def broken(options):
    raise RuntimeError("no licence")


def no_strategy(options):
    return object()


def test_plug_ins_are_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    group = strategy_module.GROUP
    points = EntryPoints(EntryPoint(name, f"{__name__}:{target}", group) for name, target in
                         [("Lazy", "Lazy"), ("Broken", "broken"), ("Object", "no_strategy"), ("Gone", "nothing")])  # fmt: skip
    monkeypatch.setattr(strategy_module, "entry_points", lambda group: points.select(group=group))
    lazy = strategy("Lazy", {"a": "b"})
    assert isinstance(lazy, Lazy)
    assert lazy.options == {"a": "b"}
    for name, says in [
        ("Broken", "RuntimeError: no licence"),
        ("Object", "makes no Strategy"),
        ("Gone", "AttributeError"),
        ("Other", "Lazy"),
    ]:
        with pytest.raises(UnknownStrategy, match=says):
            strategy(name)
