"""Adaptive, its model and the pick."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from search_cases import additive_world, random_world, run, small_space

from bench.search.planted import BUILD_SD
from bench.search.synthetic import plant
from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.search.failures import Failures
from tuner_job.search.noise import Array
from tuner_job.search.pick import pick
from tuner_job.search.posterior import Posterior
from tuner_job.search.prior import Prior
from tuner_job.search.rounds import History
from tuner_job.search.sparse import PRIOR_LIVE, Belief, Shared, fit, logit
from tuner_job.search.strategy import Budget, Done, Flip, Observation, Space, strategy

OK, REFUSED = Outcome.FEASIBLE, Outcome.REFUSED


def feasible(trial: int, space: Space, flips: list[Flip], ratio: float, sd: float = 0.005, fingerprint: str = "") -> Observation:
    return Observation(f"001-{trial:05d}", space.candidate(flips), OK, ratio, sd, fingerprint)


def test_on_a_planted_truth_it_finds_more_than_one_at_a_time() -> None:
    space = small_space((2,) * 50)
    gains: dict[str, list[float]] = {"Adaptive": [], "OneAtATime": []}
    for seed in range(3):
        truth = plant(space, 10, seed)
        for name, found in gains.items():
            rng = np.random.default_rng(seed)
            history, _, _ = run(strategy(name), space, lambda t, c: truth.observe(t, c, rng), 50, seed)  # noqa: B023
            chosen = pick(history, space, BUILD_SD)
            flips = space.flips_of(chosen.candidate) if chosen else frozenset()
            usable = truth.outcome(flips) is OK
            found.append(truth.log_ratio(flips) / truth.best()[1] if usable else 0.0)
    assert np.mean(gains["Adaptive"]) > np.mean(gains["OneAtATime"]) + 0.1
    assert np.mean(gains["Adaptive"]) > 0.6


def test_with_enough_budget_it_stacks_every_good_flip_and_no_bad_one() -> None:
    space = small_space((3, 2, 2, 2, 2, 2), {"level": ("5",)})
    effects = {
        Flip("-k0", "2"): -0.05,
        Flip("-k0", "1"): -0.02,
        Flip("-k3", "1"): -0.04,
        Flip("setting:level", "5"): -0.03,
        Flip("-k4", "1"): 0.05,
    }
    history, rounds, _ = run(strategy("Adaptive"), space, additive_world(effects, space), 40)
    chosen = pick(history, space, 0.001)
    assert chosen is not None
    assert space.flips_of(chosen.candidate) == {Flip("-k0", "2"), Flip("-k3", "1"), Flip("setting:level", "5")}
    assert chosen.gain == pytest.approx(1 - np.exp(-0.12), abs=0.005)
    assert any(p.repeat for r in rounds for p in r), "leaders are rebuilt"


def test_a_small_space_is_exhausted_and_ends_early() -> None:
    space = small_space((2, 2))
    history, _, reason = run(strategy("Adaptive"), space, random_world(3, 0, space), 1000)
    assert len({o.candidate.id for o in history}) == 3
    assert len(history) <= 12
    assert "tried" in reason


def test_rounds_stay_full_when_stacks_and_neighbours_are_used_up() -> None:
    """Many workers would wait at the end of each small round."""
    space = small_space((2,) * 12)
    world = additive_world({Flip("-k3", "1"): -0.2, Flip("-k8", "1"): -0.1}, space)
    _, rounds, _ = run(strategy("Adaptive"), space, world, 800, round_limit=256, workers=32)
    assert {len(r) for r in rounds[:-1]} == {len(rounds[0])}


def test_nothing_is_found_where_everything_fails() -> None:
    space = small_space((2,) * 12)
    history, _, _ = run(strategy("Adaptive"), space, lambda t, c: Observation(t, c, REFUSED), 40)
    assert history
    assert len({o.candidate.id for o in history}) == len(history)
    assert pick(history, space, 0.003) is None


def test_a_culprit_is_seldom_built_again() -> None:
    space = small_space((2,) * 20)
    bad = Flip("-k4", "1")

    def world(trial, candidate):
        failed = bad in space.flips_of(candidate)
        return Observation(trial, candidate, REFUSED if failed else OK, None if failed else -0.001, 0.005)

    history, _, _ = run(strategy("Adaptive"), space, world, 80, round_limit=4)
    assert sum(o.outcome is REFUSED for o in history) <= 6


@pytest.mark.parametrize("seed", range(3))
def test_a_flip_that_works_only_beside_another_is_found_though_it_fails_alone(seed: int) -> None:
    space = small_space((2,) * 20)
    needy, helper = Flip("-k4", "1"), Flip("-k15", "1")

    def world(trial, candidate):
        flips = space.flips_of(candidate)
        if needy in flips and helper not in flips:
            return Observation(trial, candidate, REFUSED)
        return Observation(trial, candidate, OK, -0.3 if needy in flips else 0.0, 0.005)

    history, _, _ = run(strategy("Adaptive"), space, world, 120, seed, round_limit=8)
    chosen = pick(history, space, 0.003)
    assert chosen is not None
    assert {needy, helper} <= space.flips_of(chosen.candidate)


def test_success_exonerates_and_elimination_convicts() -> None:
    failures = Failures([REFUSED, OK, OK], [frozenset({0, 1, 2}), frozenset({0, 3}), frozenset({1})])
    assert failures.culprits == {2}
    assert failures.risk({2, 3}) == 1.0
    assert failures.risk({0, 3}) == 0.0
    assert failures.risk({0, 1, 2}) == 1.0
    assert 0 < failures.risk({4}) < 0.1


def test_a_failure_of_harmless_flips_is_blamed_on_their_new_pairs() -> None:
    failures = Failures([REFUSED, OK, OK], [frozenset({0, 1, 2}), frozenset({0, 1}), frozenset({2})])
    assert not failures.culprits
    assert failures.risk({0, 1}) == 0.0
    assert failures.risk({0, 2}) == failures.risk({1, 2}) == pytest.approx(0.5, abs=0.01)


def test_infrastructure_blames_nobody() -> None:
    failures = Failures([Outcome.INFRASTRUCTURE], [frozenset({0})])
    assert not failures.culprits
    assert not failures.failed


@pytest.mark.parametrize("seed", range(10))
def test_the_regression_finds_sparse_effects_despite_outliers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.random((160, 200)) < 0.05).astype(float)
    truth = np.zeros(200)
    truth[[3, 50, 120]] = [-0.04, 0.03, -0.03]
    sd = 0.006
    y = x @ truth + rng.normal(0, sd, 160)
    y[:4] += 1.5
    found = fit(x, y, np.full(160, sd**2))
    assert set(np.flatnonzero(found.live > 0.5)) == {3, 50, 120}
    assert found.effect[[3, 50, 120]] == pytest.approx(truth[[3, 50, 120]], abs=0.01)
    assert np.abs(np.delete(found.effect, [3, 50, 120])).max() < 0.004


def test_the_regression_finds_large_effects_that_one_row_each_holds_in_a_small_space() -> None:
    truth = np.array([-0.1, 0.03, -0.5, *[0.0] * 7])
    rng = np.random.default_rng(7)
    found = fit(np.eye(10), truth + rng.normal(0, 0.005, 10), np.full(10, 0.005**2))
    assert found.effect == pytest.approx(truth, abs=0.015)
    assert (found.live[:3] > 0.9).all()


@pytest.mark.parametrize("effect", [-0.06, -0.1, -0.2])
def test_a_large_effect_that_four_of_many_rows_hold_is_no_outlier(effect: float) -> None:
    rng = np.random.default_rng(7)
    x = (rng.random((120, 200)) < 0.04).astype(float)
    x[:, 0] = np.arange(120) < 4
    found = fit(x, effect * x[:, 0] + rng.normal(0, 0.005, 120), np.full(120, 0.005**2))
    assert found.effect[0] == pytest.approx(effect, rel=0.15)


@pytest.mark.parametrize(("center", "chance"), [(-0.05, 0.05), (-0.2, 0.02), (-0.3, 0.3)])
def test_the_regression_gets_over_a_hundred_wrong_beliefs(center: float, chance: float) -> None:
    rng = np.random.default_rng(0)
    x = (rng.random((120, 200)) < 0.1).astype(float)
    truth = np.zeros(200)
    truth[:5] = -0.03
    belief = Belief.none(200)
    belief.center[5:100] = center
    belief.odds[5:100] = logit(chance) - logit(PRIOR_LIVE)
    found = fit(x, x @ truth + rng.normal(0, 0.005, 120), np.full(120, 0.005**2), belief)
    assert found.effect == pytest.approx(truth, abs=0.006)


def test_a_mean_of_many_draws_is_near_the_mean_of_all() -> None:
    rng = np.random.default_rng(0)
    x = (rng.random((60, 80)) < 0.2).astype(float)
    found = fit(x, x[:, 0] * -0.02 + rng.normal(0, 0.01, 60), np.full(60, 0.01**2))
    one, many = (np.mean([np.abs(found.draw(rng, count) - found.effect).sum() for _ in range(50)]) for count in (1, 16))
    assert many < one / 2


def test_the_regression_finds_most_of_many_small_effects() -> None:
    rng = np.random.default_rng(0)
    x = (rng.random((300, 200)) < 0.4).astype(float)
    truth = np.zeros(200)
    truth[:60] = rng.choice([-0.005, 0.005], 60)
    sd = 0.007
    found = fit(x, x @ truth + rng.normal(0, sd, 300), np.full(300, sd**2))
    assert (found.effect[:60] * truth[:60] > 0).sum() >= 55
    assert (np.abs(found.effect[60:]) < 0.001).sum() >= 120


def test_the_regression_knows_nothing_without_data() -> None:
    found = fit(np.zeros((0, 5)), np.zeros(0), np.zeros(0))
    assert not found.effect.any()
    assert (found.live < 0.2).all()


def test_an_error_that_all_trials_share_is_no_effect_of_the_flips_in_nearly_all_of_them() -> None:
    rng = np.random.default_rng(1)
    x = (rng.random((120, 60)) < 0.3).astype(float)
    x[:, :20] = rng.random((120, 20)) < 0.85
    truth = np.zeros(60)
    truth[[5, 40]] = [-0.03, -0.03]
    sd, shared = 0.006, 0.02
    y = x @ truth - shared + rng.normal(0, sd, 120)
    known = fit(x, y, np.full(120, sd**2), None, Shared(np.ones(120), shared**2))
    blind = fit(x, y, np.full(120, sd**2))
    assert known.offset == pytest.approx(-shared, abs=0.006)
    assert known.effect == pytest.approx(truth, abs=0.006)
    assert np.abs(blind.effect - truth).sum() > 2 * np.abs(known.effect - truth).sum()


def test_what_the_baselines_engine_is_timed_at_in_trials_corrects_all_the_others() -> None:
    space = small_space((2,) * 40)
    base = Observation("discover", BASELINE, OK, 0.0, 0.001, "base")
    dead = [feasible(i, space, [f], -0.01 + 0.001 * (-1) ** i, 0.005, "base") for i, f in enumerate(space.flips[:30])]
    live = [feasible(40, space, [space.flips[30]], -0.03, 0.005, "one")]
    posterior = Posterior(History(space, [base, *dead, *live]))
    assert posterior.fit.level[len(dead)] == pytest.approx(-0.02, abs=0.002)
    assert np.abs(posterior.fit.effect[:30]).max() < 1e-5
    assert posterior.timings.engines == [None] * 30 + [30, None]  # in the order of trials
    alone = Posterior(History(space, [base, *live]))
    assert alone.fit.level[0] == pytest.approx(-0.03, abs=0.001)


@pytest.mark.parametrize("count", [1, 5, 30])
def test_one_disturbed_timing_of_the_baselines_engine_hardly_moves_the_others(count: int) -> None:
    space = small_space((2,) * 40)
    base = Observation("discover", BASELINE, OK, 0.0, 0.001, "base")
    told = [feasible(i, space, [f], 1.0 if i == 0 else 0.0, 0.005, "base") for i, f in enumerate(space.flips[:count])]
    live = feasible(40, space, [space.flips[30]], -0.03, 0.005, "one")
    assert Posterior(History(space, [base, *told, live])).fit.level[count] == pytest.approx(-0.03, abs=0.004)


def _two_modes(seed: int, count: int, share: float = 0.35) -> Array:
    """Errors as of a host: most are of 0.01, some 0.06 slower."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.01, count) + 0.06 * (rng.random(count) < share)


@pytest.mark.parametrize("seed", range(5))
def test_timings_of_a_slow_mode_are_told_apart_and_still_say_something(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.random((200, 150)) < 0.25).astype(float)
    truth = np.zeros(150)
    truth[:6] = [-0.012, -0.012, -0.012, 0.012, 0.012, -0.012]
    y, told = x @ truth + _two_modes(seed, 200), np.full(200, 0.02**2)
    found = fit(x, y, told, None, Shared(np.ones(200), 0.01**2))
    assert found.law.share == pytest.approx(0.35, abs=0.12)
    assert found.law.shift == pytest.approx(0.06, abs=0.01)
    assert np.abs(found.effect - truth).max() < 0.008
    assert (found.effect[:6] * truth[:6] > 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_engines_that_are_equal_pool_timings_of_both_modes(seed: int) -> None:
    space = small_space((2,) * 40)
    errors = _two_modes(seed, 39)
    base = Observation("discover", BASELINE, OK, 0.0, 0.01, "base")
    dead = [feasible(i, space, [f], float(errors[i]), 0.02, "base") for i, f in enumerate(space.flips[:30])]
    good = space.flips[30]
    same = [feasible(50 + i, space, [space.flips[i], good], -0.04 + float(errors[30 + i]), 0.02, "one") for i in range(9)]
    tried = Posterior(History(space, [base, *dead, *same])).tried
    assert [t.estimate for t in tried[:9]] == pytest.approx([-0.04] * 9, abs=0.01)
    assert max(t.sd for t in tried[:9]) < 0.007


def test_pick_is_none_without_history_and_on_pure_noise_mostly() -> None:
    space = small_space((2,) * 40)
    assert pick([], space, 0.003) is None
    picks = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        history = [feasible(i, space, [f], float(rng.normal(0, 0.006)), 0.006) for i, f in enumerate(space.flips)]
        picks += pick(history, space, 0.003) is not None
    assert picks <= 6


def test_pick_shrinks_and_trusts_rebuilds_more() -> None:
    space = small_space((2,) * 20)
    a, b = space.flips[:2]
    rest = [feasible(i + 10, space, [f], 0.0) for i, f in enumerate(space.flips[2:])]
    once = pick([feasible(0, space, [a], -0.02, 0.005), *rest], space, 0.003)
    thrice = pick([*(feasible(i, space, [a], -0.02, 0.005) for i in range(3)), *rest], space, 0.003)
    assert once is not None
    assert thrice is not None
    assert 0 < once.gain < thrice.gain < 0.02
    lucky = [feasible(0, space, [a], -0.021, 0.01), *(feasible(i + 1, space, [b], -0.02, 0.01) for i in range(4))]
    chosen = pick([*lucky, *rest], space, 0.003)
    assert chosen is not None
    assert space.flips_of(chosen.candidate) == {b}


def test_pick_takes_the_simplest_of_equals() -> None:
    space = small_space((2,) * 6)
    a, b, c = space.flips[:3]
    history = [
        feasible(0, space, [a, b, c], -0.0501, 0.001),
        feasible(1, space, [a], -0.05, 0.001),
        feasible(2, space, [b], 0.0, 0.001),
        feasible(3, space, [c], 0.0, 0.001),
    ]
    chosen = pick(history, space, 0.001)
    assert chosen is not None
    assert space.flips_of(chosen.candidate) == {a}


def test_equal_engines_pool_their_timings_and_the_baselines_engine_gains_nothing() -> None:
    space = small_space((2,) * 6)
    a, b, c = space.flips[:3]
    history = [
        Observation("discover", BASELINE, OK, 0.0, 0.001, "base"),
        feasible(0, space, [a], -0.04, 0.005, "one"),
        feasible(1, space, [b], -0.02, 0.005, "one"),
        feasible(2, space, [c], -0.03, 0.005, "base"),
    ]
    posterior = Posterior(History(space, history))
    assert posterior.timings.engines == [0, 0, None, None]  # in the order of trials
    by_flips = {posterior.named(t.stack): t for t in posterior.tried}
    assert by_flips[frozenset({a})].sd == pytest.approx(by_flips[frozenset({b})].sd, rel=0.1)
    assert by_flips[frozenset({c})].estimate == pytest.approx(0.0, abs=1e-6)
    chosen = pick(history, space, 0.001)
    assert chosen is not None
    assert space.flips_of(chosen.candidate) in ({a}, {b})


@pytest.mark.parametrize("order", [("base", "other"), ("other", "base")])
def test_a_candidate_of_which_any_build_is_the_baselines_engine_gains_nothing(order: tuple[str, str]) -> None:
    space = small_space((2,) * 30)
    base = Observation("discover", BASELINE, OK, 0.0, 0.001, "base")
    builds = [feasible(i, space, [space.flips[0]], -0.05, 0.005, engine) for i, engine in enumerate(order)]
    dead = [feasible(10 + i, space, [f], 0.0, 0.005, "base") for i, f in enumerate(space.flips[1:21])]
    assert pick([base, *builds, *dead], space, 0.001) is None


def test_foreign_candidates_in_the_history_are_understood() -> None:
    space = small_space((2, 2))
    explicit = Observation("001-00000", BASELINE.model_copy(update={"route": "-k0=0"}), OK, -0.2, 0.001)
    history, _, _ = run(strategy("Adaptive"), space, random_world(1, 0, space), 10)
    assert strategy("Adaptive").next_round(space, [explicit, *history[:2]], Budget(9, 3, 3), 1)
    chosen = pick([explicit], space, 0.001)
    assert chosen is not None
    assert chosen.candidate.route == "-k0=0"


def test_the_fastest_single_is_picked_though_it_stands_far_out() -> None:
    space = small_space((2,) * 100)
    rng = np.random.default_rng(1)
    true = {0: -0.06, 1: -0.02, 2: -0.015, 3: -0.02}
    history = [feasible(i, space, [f], true.get(i, 0.0) + float(rng.normal(0, 0.006)), 0.006) for i, f in enumerate(space.flips)]
    chosen = pick(history, space, 0.003)
    assert chosen is not None
    assert space.flips_of(chosen.candidate) == {space.flips[0]}
    assert 0.04 < chosen.gain < 0.07


def test_a_carried_over_trial_with_a_flip_that_the_space_does_not_have_is_no_obstacle() -> None:
    wide = small_space((2, 2, 2))
    narrow = replace(wide, choices=wide.choices[:2])
    carried = wide.candidate([wide.flips[2]])
    answer = strategy("Adaptive").next_round(narrow, [], Budget(20, 1, 8), 0, [carried])
    assert not isinstance(answer, Done)
    assert all(wide.flips[2] not in wide.flips_of(p.candidate) for p in answer)


def test_a_wished_leader_with_a_flip_from_outside_is_explored_upon() -> None:
    wide = small_space((2,) * 8)
    narrow = replace(wide, choices=wide.choices[:7])
    outside, one, two = wide.flips[7], wide.flips[0], wide.flips[3]
    world = additive_world({outside: -0.2, one: -0.05, two: -0.05}, wide)
    wished = Observation("001-00000", wide.candidate([outside]), OK, -0.2, 0.001)
    history = [wished]
    for number in range(2, 30):
        answer = strategy("Adaptive").next_round(narrow, history, Budget(40, len(history), 8), 0)
        if isinstance(answer, Done):
            break
        history += [world(f"{number:03d}-{i:05d}", p.candidate) for i, p in enumerate(answer)]
    assert any({one, two} <= wide.flips_of(o.candidate) for o in history)


def test_builds_of_one_engine_are_as_sure_as_their_timings_and_no_surer() -> None:
    space = small_space((2, 2))
    sd = 0.02
    same = [feasible(i, space, [Flip("-k0", "1")], -0.1, sd, fingerprint="e") for i in range(8)]
    other = [feasible(i, space, [Flip("-k0", "1")], -0.1, sd) for i in range(8)]
    (told,) = [t for t in Posterior(History(space, same)).tried if t.stack]
    (apart,) = [t for t in Posterior(History(space, other)).tried if t.stack]
    assert told.builds == apart.builds == 8
    assert told.sd == pytest.approx(apart.sd, rel=0.2)


def test_a_child_that_acts_only_beside_its_parent_is_found_with_it() -> None:
    space = small_space((2,) * 18)
    a, x, b, z = (space.flips[i] for i in (1, 2, 4, 5))
    assert x.dimension.startswith(f"{a.dimension}:")

    def world(trial: str, candidate: Candidate) -> Observation:
        flips = space.flips_of(candidate)
        ratio = -0.02 * (a in flips) - 0.05 * ({a, x} <= flips) + 0.01 * (b in flips) - 0.06 * ({b, z} <= flips)
        return Observation(trial, candidate, OK, ratio, 0.002)

    history, _, _ = run(strategy("Adaptive"), space, world, 60)
    chosen = pick(history, space, 0.001)
    assert chosen is not None
    assert {a, x, b, z} <= space.flips_of(chosen.candidate)


def test_a_flip_that_works_only_beside_another_is_found_with_it() -> None:
    space = small_space((2,) * 30)
    good, needed = space.flips[3], space.flips[21]

    def world(trial: str, candidate: Candidate) -> Observation:
        flips = space.flips_of(candidate)
        if good in flips and needed not in flips:
            return Observation(trial, candidate, REFUSED)
        return Observation(trial, candidate, OK, -0.1 * (good in flips) - 0.01 * (needed in flips), 0.002)

    history, _, _ = run(strategy("Adaptive"), space, world, 80)
    chosen = pick(history, space, 0.001)
    assert chosen is not None
    assert space.flips_of(chosen.candidate) >= {good, needed}


def test_what_a_flip_needs_stood_in_all_of_its_successes_and_in_none_of_its_failures() -> None:
    rest = [frozenset({1, 2, 3}), frozenset({2, 4}), frozenset({1, 4, 5})]
    failed = [frozenset({0, 1, 2, 3}), frozenset({0, 2, 4})]
    failures = Failures([OK] * 5 + [REFUSED] * 2, [*rest, frozenset({0, 5, 1}), frozenset({0, 5, 2}), *failed])
    assert failures.needs == {0: frozenset({5})}
    assert failures.risk({0, 5}) < 0.01
    assert failures.risk({0, 3}) > 0.9


def test_failures_of_a_pair_are_no_need() -> None:
    stacks = [frozenset({0, 1}), frozenset({0, 2, 1}), frozenset({0, 3}), frozenset({1, 2}), frozenset({2, 3})]
    failures = Failures([REFUSED, REFUSED, OK, OK, OK], stacks)
    assert not failures.needs
    assert failures.risk({0, 1}) == 1.0
    assert failures.risk({0, 1, 3}) > 0.5


def test_what_is_believed_of_a_flip_is_got_over_by_results() -> None:
    space = small_space((2,) * 12)
    best, lie = space.flips[4], space.flips[7]
    told = Prior(live={lie: 0.9, best: 0.02}, effect={lie: -0.2}, failing={best: 0.25}, starts=(frozenset({lie}),))
    history, rounds, _ = run(
        strategy("Adaptive"), replace(space, prior=told), additive_world({best: -0.05, lie: 0.03}, space), 40
    )
    assert space.flips_of(rounds[0][0].candidate) == {lie}
    chosen = pick(history, replace(space, prior=told), 0.001)
    assert chosen is not None
    assert space.flips_of(chosen.candidate) == {best}
