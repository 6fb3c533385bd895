"""What results of relatives, and the operators in a model, make believe before the first trial."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_cases import additive_world, random_world, run, small_space

from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.kin import NEAREST, OTHER_PRODUCT
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.routes.select import select
from tuner_job.search import adaptive
from tuner_job.search.adaptive import Adaptive
from tuner_job.search.failures import Failures
from tuner_job.search.families import LOWERED, RAISED, factors
from tuner_job.search.posterior import prior_chance
from tuner_job.search.prior import Prior
from tuner_job.search.relatives import (
    LEAST_FAILING,
    LEAST_LIVE,
    MOST_EFFECT,
    MOST_FAILING,
    MOST_LIVE,
    ORDINARY_FAILING,
    STARTS,
    Relative,
    WarmStart,
    defaults_of,
    warm_start,
)
from tuner_job.search.rounds import Observation
from tuner_job.search.space import Flip, Space
from tuner_job.search.sparse import PRIOR_LIVE as ORDINARY

REAL = Path(__file__).parents[1] / "data" / "all_build_routes-11.2.1.2.json"
NAMES = [f"-k{i}" for i in range(12)]


def space(knobs: Mapping[str, str] | None = None, values: str = "on|off|auto", variants: tuple[str, ...] = ("default",)) -> Space:
    """Knobs by name → default; twelve whose default is `on`, unless said otherwise."""
    options = [
        {"option": name, "allowed_values": f"{name}=[{values}]", "default_value": default, "help": ""}
        for name, default in (knobs or dict.fromkeys(NAMES, "on")).items()
    ]
    known = parse_knob_list(json.dumps({"tuner_version": "t", "tuner_options": options}))
    return Space(known, select(known), {}, variants)


def results(
    where: Space, effects: Mapping[Flip, float], failing: Sequence[Flip] = (), *, extra: Sequence[Sequence[Flip]] = ()
) -> list[Observation]:
    """Every flip alone, four builds of it, and `extra` stacks, without noise to speak of."""
    rng = np.random.default_rng(1)
    found = [Observation("discover", BASELINE, Outcome.FEASIBLE, 0.0, 0.002)]
    for stack in [*([flip] for flip in where.flips for _ in range(4)), *extra]:
        candidate, trial = where.candidate(stack), f"{len(found):05d}"
        if set(stack) & set(failing):
            found.append(Observation(trial, candidate, Outcome.REFUSED))
        else:
            ratio = sum(effects.get(flip, 0.0) for flip in stack) + float(rng.normal(0, 0.0005))
            found.append(Observation(trial, candidate, Outcome.FEASIBLE, ratio, 0.001))
    return found


def relative(where: Space, seen: Sequence[Observation], trust: float = 0.8, name: str = "a relative") -> Relative:
    return Relative(name, trust, defaults_of(where), seen)


GOOD, BAD, BROKEN = Flip("-k2", "off"), Flip("-k5", "off"), Flip("-k7", "off")
EFFECTS = {GOOD: -0.10, BAD: 0.08}


def test_what_moved_a_relative_is_expected_to_move_this_run() -> None:
    here = space()
    warm = warm_start(here, [relative(here, results(here, EFFECTS, [BROKEN]))]).prior
    assert warm.live[GOOD] > 0.5
    assert -0.10 < warm.effect[GOOD] < -0.05, "damped by the trust"
    assert 0 < warm.effect[BAD] < 0.08
    assert 0.15 < warm.failing[BROKEN] <= MOST_FAILING, "not so much that it would not be tried"
    assert warm.live[Flip("-k3", "off")] < ORDINARY, "what did nothing there is less likely to do something here"
    assert warm.failing[GOOD] < ORDINARY_FAILING


def test_less_trust_leaves_less() -> None:
    here = space()
    seen = results(here, EFFECTS, [BROKEN])
    near, far = (warm_start(here, [relative(here, seen, trust)]).prior for trust in (0.9, 0.3))
    assert ORDINARY < far.live[GOOD] < near.live[GOOD]
    assert near.effect[GOOD] < far.effect[GOOD] < 0
    assert ORDINARY_FAILING < far.failing[BROKEN] < near.failing[BROKEN]
    assert warm_start(here, [relative(here, seen, 0.0)]).prior == Prior()


def test_what_relatives_forbid_at_most_still_fits_into_a_group() -> None:
    assert Failures((), ()).rate + MOST_FAILING <= adaptive._GROUP_FAILURES < adaptive._STACK_RISK


@pytest.mark.parametrize("trusts", [(NEAREST,), (NEAREST * OTHER_PRODUCT,) * 2], ids=["nearest", "two that agree"])
def test_a_good_flip_that_fails_for_misleading_relatives_is_found_all_the_same(trusts: Sequence[float]) -> None:
    """Of so many flips that none is tried alone while screening, a third fails for the relatives, the good one among them."""
    names = [f"-k{i}" for i in range(90)]
    here = space(dict.fromkeys(names, "on"), values="on|off")
    broken = [Flip(name, "off") for name in names[2::3]]
    kin = [relative(here, results(here, {}, broken), trust, f"relative {k}") for k, trust in enumerate(trusts)]
    prior = warm_start(here, kin).prior
    assert prior.failing[GOOD] > 0.2
    led = replace(here, prior=prior)
    history, _, _ = run(Adaptive({}), led, additive_world({GOOD: -0.2}, here), 60)
    assert any(GOOD in here.flips_of(o.candidate) for o in history)


def test_a_relative_that_agrees_lowers_no_belief_in_a_variant_or_a_setting() -> None:
    knobs = parse_knob_list(
        json.dumps(
            {
                "tuner_version": "t",
                "tuner_options": [{"option": "-k0", "allowed_values": "-k0=[on|off]", "default_value": "on", "help": ""}],
            }
        )
    )
    here = Space(knobs, select(knobs), {"level": ("4", "5")}, ("default", "fp16"))
    moved = {Flip("variant", "fp16"): -0.3, Flip("setting:level", "5"): -0.05}
    live = warm_start(here, [relative(here, results(here, moved), 0.6)]).prior.live
    for flip in moved:
        assert live[flip] >= prior_chance(flip)
    assert live[Flip("setting:level", "4")] < prior_chance(Flip("setting:level", "4")), "it did nothing there"


def test_its_best_candidates_come_first() -> None:
    here = space()
    best = [GOOD, Flip("-k9", "off")]
    seen = results(here, {**EFFECTS, Flip("-k9", "off"): -0.05}, extra=[best, best, [*best, BAD]])
    warm = warm_start(here, [relative(here, seen, name="the other card")])
    assert warm.prior.starts[0] == frozenset(best)
    assert 1 <= len(warm.prior.starts) <= STARTS
    assert set(warm.origins) == {"the other card"}


def test_a_start_comes_without_its_needless_flips_and_then_as_it_was() -> None:
    here = space()
    needless = [Flip(name, "auto") for name in NAMES[8:]]
    everything = [GOOD, *needless]
    seen = [o for o in results(here, EFFECTS, extra=[everything] * 8) if here.flips_of(o.candidate) != {GOOD}]
    warm = warm_start(here, [relative(here, seen)]).prior
    assert warm.starts == (frozenset({GOOD}), frozenset(everything))


def test_a_relative_without_a_gain_gives_no_start() -> None:
    here = space()
    assert warm_start(here, [relative(here, results(here, {BAD: 0.08}))]).prior.starts == ()


def test_knobs_and_values_that_are_gone_are_passed_over() -> None:
    there = space()
    seen = results(there, EFFECTS, extra=[[GOOD, Flip("-k9", "off")]] * 4)
    without_knob = space({name: "on" for name in NAMES if name != "-k9"})
    without_value = space(values="on|auto")
    warm = warm_start(without_knob, [relative(there, seen)]).prior
    assert warm.starts[0] == frozenset({GOOD})
    assert not [flip for flip in warm.live if flip.dimension == "-k9"]
    gone = warm_start(without_value, [relative(there, seen)]).prior
    assert {flip.value for flip in gone.live} == {"auto"}
    assert gone.starts == (), "nothing is left of what was good"


def test_a_start_that_loses_what_made_it_good_is_none() -> None:
    there = space()
    here = space({name: "on" for name in NAMES if name != GOOD.dimension})
    harmless = Flip("-k9", "off")
    seen = results(there, EFFECTS, extra=[[GOOD, harmless]] * 4)
    assert warm_start(here, [relative(there, seen)]).prior.starts == ()


def test_nothing_is_believed_of_new_knobs_and_values() -> None:
    there = space({name: "on" for name in NAMES if name != "-k9"}, values="on|off")
    warm = warm_start(space(), [relative(there, results(there, EFFECTS))]).prior
    named = warm.live.keys() | warm.effect.keys() | warm.failing.keys()
    assert not [flip for flip in named if flip.dimension == "-k9" or flip.value == "auto"]
    assert warm.live[GOOD] > 0.5


def test_a_changed_default_turns_the_relatives_results_around() -> None:
    """What was found to be faster has become the default: its old default is now the slower flip."""
    there, here = space(), space({name: "off" if name == GOOD.dimension else "on" for name in NAMES})
    old = Flip(GOOD.dimension, "on")
    other = Flip("-k9", "off")
    seen = results(there, {**EFFECTS, other: -0.05}, extra=[[GOOD, other]] * 4 + [[other, BAD]] * 4)
    warm = warm_start(here, [relative(there, seen)]).prior
    assert warm.live[old] > 0.5
    assert 0.05 < warm.effect[old] < 0.10, "it costs what leaving it gained"
    assert warm.effect[Flip(GOOD.dimension, "auto")] == pytest.approx(warm.effect[old], abs=0.01), "auto was as the old default"
    assert warm.failing[old] < ORDINARY_FAILING, "the old default works"
    assert warm.starts[0] == frozenset({other}), "the new default is no flip any more"
    assert GOOD not in warm.live


def test_a_start_keeps_the_old_default_that_it_was_measured_with() -> None:
    there, here = space(), space({name: "auto" if name == "-k0" else "on" for name in NAMES})
    warm = warm_start(here, [relative(there, results(there, EFFECTS, extra=[[GOOD]] * 4))]).prior
    assert frozenset({GOOD, Flip("-k0", "on")}) in warm.starts


def test_an_effect_without_a_result_of_the_new_default_is_not_known() -> None:
    there = space(values="on|off")  # it never tried `auto`, which is the default here
    here = space({name: "auto" if name == GOOD.dimension else "on" for name in NAMES})
    warm = warm_start(here, [relative(there, results(there, EFFECTS))]).prior
    assert GOOD not in warm.live
    assert GOOD not in warm.effect
    assert BAD in warm.live


def test_another_base_variant_is_a_changed_default() -> None:
    there, here = space(variants=("fp32", "fp16")), space(variants=("fp16", "fp32"))
    half = Flip("variant", "fp16")
    seen = results(there, {half: -0.1})
    warm = warm_start(here, [relative(there, seen)]).prior
    assert warm.effect[Flip("variant", "fp32")] > 0.05


def test_relatives_that_agree_add_up_and_those_that_do_not_meet_in_the_middle() -> None:
    here = space()
    one = results(here, EFFECTS, [BROKEN])
    opposite = results(here, {GOOD: 0.10, BAD: 0.08})
    alone = warm_start(here, [relative(here, one, 0.5)]).prior
    agreed = warm_start(here, [relative(here, one, 0.5, "a"), relative(here, one, 0.5, "b")]).prior
    torn = warm_start(here, [relative(here, one, 0.5, "a"), relative(here, opposite, 0.5, "b")]).prior
    assert agreed.live[GOOD] > alone.live[GOOD]
    assert agreed.effect[GOOD] < alone.effect[GOOD] < 0
    assert abs(torn.effect.get(GOOD, 0.0)) < 0.01
    assert torn.live[GOOD] > 0.5, "that it matters is agreed"
    assert torn.failing[BROKEN] < agreed.failing[BROKEN]


def rounded(warm: WarmStart) -> object:
    return warm.prior.live, warm.prior.effect, warm.prior.failing, warm.prior.starts, warm.origins


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), fail=st.sampled_from([0.0, 0.2, 0.9]), count=st.integers(0, 40), data=st.data())
def test_no_relative_makes_anything_certain_nor_its_order_a_difference(seed: int, fail: float, count: int, data) -> None:
    """Random relatives over other sizes of knobs (values are lost and new), in any order of results and relatives."""
    here = small_space((3, 2, 4, 2), variants=("default", "fp16"))
    kin = []
    for k, trust in enumerate((0.9, 0.9, 0.2)):
        there = small_space((2 + (seed + k) % 3, 2, 3, 3, 2), variants=("default", "fp16", "int8")[: 1 + (seed + k) % 3])
        world = random_world(seed + k, fail, there, noise=0.2 if k == 1 else 0.005)
        rng = np.random.default_rng(seed + k)
        stacks = [[f for f in there.flips if rng.random() < 0.3] for _ in range(count)]
        distinct = [{f.dimension: f for f in stack}.values() for stack in stacks]
        seen = [world(f"{i:05d}", there.candidate(stack)) for i, stack in enumerate(distinct)]
        kin.append(Relative(f"relative {k}", trust, defaults_of(there), seen))
    warm = warm_start(here, kin, {"Conv"})
    prior, inside = warm.prior, set(here.flips)
    assert prior.live.keys() | prior.effect.keys() | prior.failing.keys() <= inside
    assert all(LEAST_LIVE <= value <= max(MOST_LIVE, prior_chance(flip)) < 1 for flip, value in prior.live.items())
    assert all(LEAST_FAILING <= value <= MOST_FAILING for value in prior.failing.values())
    assert all(abs(value) <= MOST_EFFECT for value in prior.effect.values())
    assert len(prior.starts) == len(warm.origins) <= STARTS
    for flips in prior.starts:
        assert flips
        assert flips <= inside
        assert len({flip.dimension for flip in flips}) == len(flips)
    shuffled = data.draw(st.permutations(kin))
    turned = [Relative(k.name, k.trust, dict(reversed(k.defaults.items())), list(reversed(k.observations))) for k in shuffled]
    assert rounded(warm_start(here, turned, ["Conv"])) == rounded(warm)


def test_a_relative_with_nothing_to_say_changes_nothing() -> None:
    here = space()
    odd = Candidate(route="-elsewhere=1")
    for seen in ([], [Observation("1", odd, Outcome.CRASHED)], [Observation("1", odd, Outcome.FEASIBLE, -3.0, 0.001)]):
        assert warm_start(here, [relative(here, seen)]).prior == Prior()


@pytest.fixture(scope="module")
def real() -> Space:
    knobs = parse_knob_list(REAL.read_text())
    return Space(knobs, select(knobs))


CNN = ["Conv", "Relu", "MaxPool", "Add", "GlobalAveragePool", "Gemm"]
ENCODER = ["MatMul", "Softmax", "LayerNormalization", "Add", "Gelu", "Transpose", "Reshape"]


def test_knobs_are_believed_in_by_the_operators_of_the_model(real: Space) -> None:
    attention, convolution = Flip("-mha_fusion:v2:flash", "off"), Flip("-force_conv_nhwc", "on")
    cnn, encoder = (warm_start(real, (), operators).prior.live for operators in (CNN, ENCODER))
    assert cnn[convolution] > ORDINARY > cnn[attention]
    assert encoder[attention] > ORDINARY > encoder[convolution]


def test_a_knob_that_is_about_two_things_needs_both(real: Space) -> None:
    quantised = Flip("-tactic:cask_conv_int8_prefer_nchw_format", "off")
    assert factors(real.flips, CNN)[quantised] == LOWERED
    assert factors(real.flips, [*CNN, "QuantizeLinear"])[quantised] == RAISED


def test_the_guess_is_mild_and_silent_where_it_knows_nothing(real: Space) -> None:
    assert factors(real.flips, ()) == {}
    for operators in (CNN, ENCODER, ["Identity"]):
        live = warm_start(real, (), operators).prior.live
        assert 0 < min(live.values()) <= max(live.values()) < 2 * ORDINARY
        assert len(live) < len(real.flips)
    assert factors([Flip("-session:memory_pattern", "off"), Flip("setting:conv", "1")], CNN) == {}


def test_a_relatives_results_outweigh_the_guess(real: Space) -> None:
    attention = Flip("-mha_fusion:v2:flash", "off")
    some = Space(real.knobs, select(real.knobs, ["-mha_fusion:v2:f*", "-force_conv*"]))
    seen = results(some, {attention: -0.1})
    assert warm_start(real, [relative(some, seen)], CNN).prior.live[attention] > 0.5
