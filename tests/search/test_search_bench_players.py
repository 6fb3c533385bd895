"""The players and the score of bench.search: peers by their own rules, budgets, pairing, what counts as losing."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from search_landscapes import C2, C3, LOUD, SILENT, A, B, additive

from bench.search import packages, report, score, series
from bench.search.noise import make
from bench.search.ours import Ours
from bench.search.players import Random, Trtexec
from bench.search.score import Result
from bench.search.simulate import Builder, play
from tuner_job.api.measurement import BASELINE
from tuner_job.api.outcome import Outcome
from tuner_job.search.rounds import Budget, Done, Proposal
from tuner_job.search.space import Flip
from tuner_job.search.strategy import strategy


def flips_built(player, where, budget, seed=0):
    """Flips of each build in order, and the flips that were returned."""
    built = []
    tell = player.tell

    def noted(one):
        built.append(where.space.flips_of(one.candidate))
        tell(one)

    player.tell = noted
    end = next(play(player, where, [budget], seed))
    return built, where.space.flips_of(end.choice) if end.choice else None, end


def test_trtexec_fast_changes_the_last_knob_first_and_stops():
    where = additive({A: -0.1, C2: -0.3, C3: -0.2})
    built, returned, end = flips_built(Trtexec(where.space, mixed=False), where, 100)
    assert built == [frozenset(), {C2}, {C3}, {B}, {A}]
    assert returned == {C2}
    assert end.builds == 5, "it ends before its budget does"


def test_trtexec_mixed_then_sweeps_the_whole_lists_of_all_that_was_faster_the_last_knob_fastest():
    where = additive({A: -0.1, C2: 0.3, C3: -0.2, B: 0.05})
    built, returned, _ = flips_built(Trtexec(where.space, mixed=True), where, 100)
    assert built[5:] == [frozenset(), {C2}, {C3}, {A}, {A, C2}, {A, C3}], "rebuilds, and the slower value too"
    assert returned == {A, C3}


def test_trtexec_mixed_needs_two_faster_results():
    where = additive({A: -0.1})
    built, _, _ = flips_built(Trtexec(where.space, mixed=True), where, 100)
    assert len(built) == 5


def test_trtexec_combines_what_failed_the_accuracy_check_but_never_returns_it():
    where = additive({A: -0.4, B: -0.1}, {A: Outcome.INFEASIBLE})
    built, returned, _ = flips_built(Trtexec(where.space, mixed=True), where, 100)
    assert {A, B} in built
    assert returned == {B}


def test_trtexec_compares_means_and_keeps_the_earliest_of_equals():
    level = additive({}, noise=make("n", 0.0, [0.0, 0.0], [0.5, 0.5], 2))
    _, returned, _ = flips_built(Trtexec(level.space, mixed=False), level, 5)
    assert returned is None, "the default was there first"
    one = Builder(level, 0).build(BASELINE)
    assert one.mean_ratio == pytest.approx(0.5)
    assert one.log_ratio == pytest.approx(0.0)


def test_random_never_builds_one_route_twice_and_ends_when_all_are_built():
    where = additive({A: -0.1})
    built, returned, end = flips_built(Random(where.space, 0), where, 100)
    assert len(built) == len(set(built)) == end.builds == 12
    assert returned is not None
    assert A in returned


def test_a_budget_counts_the_default_failures_and_rebuilds():
    where = additive({A: -0.1, B: -0.2}, {C2: Outcome.REFUSED}, LOUD)
    player = Ours(strategy("Adaptive"), where.space, 0, where.noise.told_sd, where.noise.build_sd, 1, False)
    built, returned, end = flips_built_with_pilot(player, where, 14)
    assert built[:4] == [frozenset()] * 4
    assert len(built) == end.builds <= 14
    assert returned == {A, B}


def flips_built_with_pilot(player, where, budget):
    built = []
    tell = player.tell

    def noted(one):
        built.append(where.space.flips_of(one.candidate))
        tell(one)

    player.tell = noted
    end = next(play(player, where, [budget], 0, pilot=4))
    return built, where.space.flips_of(end.choice) if end.choice else None, end


def test_builds_of_one_candidate_have_the_same_noise_for_every_player_and_each_rebuild_its_own():
    where = additive({A: -0.1}, noise=LOUD)
    candidate = where.space.candidate([A])
    first, second = Builder(where, 5), Builder(where, 5)
    second.build(BASELINE)
    one, rebuilt, same = first.build(candidate), first.build(candidate), second.build(candidate)
    assert one.log_ratio == same.log_ratio
    assert one.log_ratio != rebuilt.log_ratio
    assert Builder(where, 6).build(candidate).log_ratio != one.log_ratio


def test_an_anytime_player_answers_at_each_budget_as_if_it_were_the_only_one():
    where = additive({A: -0.1, B: -0.2, C3: -0.15}, noise=LOUD)
    together = [end.choice for end in play(Random(where.space, 1), where, [3, 6, 12], 1)]
    alone = [next(play(Random(where.space, 1), where, [budget], 1)).choice for budget in (3, 6, 12)]
    assert together == alone


def test_stragglers_are_pending_when_the_next_round_is_planned_and_are_not_lost():
    seen = []

    class Watching:
        def next_round(self, space, history, budget: Budget, seed, pending=()):
            seen.append((len(history), len(pending)))
            left = itertools.islice(space.flips, budget.spent, budget.spent + min(2, budget.left))
            found = tuple(Proposal(space.candidate([flip]), "") for flip in left)
            return found or Done("over")

        def estimate(self, space, budget):
            return 4

    where = additive({A: -0.1})
    player = Ours(Watching(), where.space, 0, 0.01, 0.01, 2, False)
    end = next(play(player, where, [8], 0, pilot=4, workers=2, late=1.0))
    assert seen == [(1, 0), (1, 2)], "the default is one observation, and every result a round late"
    assert end.choice is not None


def test_wall_time_is_that_of_the_busiest_worker():
    where = additive({A: -0.1})
    one = next(play(Random(where.space, 0), where, [9], 0))
    four = next(play(Random(where.space, 0), where, [9], 0, workers=4))
    assert one.hours / four.hours == pytest.approx(3.0), "a default build, then eight in two batches"


def result(**changes) -> Result:
    base = Result("l", "Adaptive", 0, 208, 1.0, 0.9, 0.1, 0.3, False, False, 208, 5, 900, 1.0, 0.1, 2.0, 90.0, "c")
    return replace(base, **changes)


def paired(ours, theirs, other="OneAtATime", **changes):
    return [result(seed=i, share=s, **changes) for i, s in enumerate(ours)] + [
        result(seed=i, share=s, strategy=other, **changes) for i, s in enumerate(theirs)
    ]


def test_non_inferiority_is_judged_by_pairs():
    rng = np.random.default_rng(0)
    base = rng.uniform(0.2, 0.9, 50)  # seeds differ far more than players do
    level, worse, better = (score.compare(paired(base + shift, base))[0] for shift in (0.0, -0.03, 0.03))
    assert not level.inferior
    assert not level.better
    assert worse.inferior
    assert worse.upper < 0
    assert better.better
    noisy = score.compare(paired(base + rng.normal(0, 0.3, 50), base))[0]
    assert noisy.inferior, "what is not shown is not claimed"


def test_targets_are_over_what_is_not_easy_and_by_the_worst_landscape():
    hard = paired([0.9] * 3, [0.3] * 3, landscape="synthetic-a") + paired(
        [0.4] * 3, [0.2] * 3, landscape="synthetic-a", fraction=0.25, budget=52
    )
    easy = paired([0.1] * 3, [0.9] * 3, landscape="synthetic-b", easy=True)
    found = {one.what.split(":")[0]: one for one in score.targets(hard + easy)}
    assert found["211 knobs, 1 O"].met
    assert found["211 knobs, 0.25 O"].met
    assert found["211 knobs, 0.5 O"].met is None
    assert found["small full products"].met is None
    lost = paired([0.8] * 3, [0.3] * 3, landscape="synthetic-c")
    found = {one.what.split(":")[0]: one for one in score.targets(hard + lost)}
    assert not found["211 knobs, 1 O"].met


def test_a_landscape_where_nobody_can_have_the_factor_is_named_and_not_judged_by_it():
    def at(name: str, half: float, basic: float) -> list[Result]:
        return paired([0.99], [basic], landscape=name) + paired([half], [basic], landscape=name, fraction=0.5, budget=104)

    found = {one.what.split(":")[0]: one for one in score.targets(at("synthetic-a", 0.6, 0.3) + at("synthetic-b", 0.95, 0.8))}
    half = found["211 knobs, 0.5 O"]
    assert half.met
    assert "b 1.19 (nobody can have more than: b 1.25)" in half.found
    lost = {one.what.split(":")[0]: one for one in score.targets(at("synthetic-a", 0.3, 0.3) + at("synthetic-b", 0.95, 0.8))}
    assert not lost["211 knobs, 0.5 O"].met


def test_a_page_with_few_seeds_of_our_own_is_no_result_however_many_the_peers_have():
    text = report.page(paired([0.5] * 4, [0.9] * 120, "random"), {"l": "made up"}, "python -m x")
    assert "4 seeds (other players: 120)." in text
    assert "4 seeds only" in text
    assert "seeds only" not in report.page(paired([0.5] * 100, [0.9] * 120, "random"), {"l": "made up"}, "python -m x")


def test_the_page_prints_where_it_loses_and_says_that_a_short_run_is_no_result():
    text = report.page(paired([0.5] * 4, [0.9] * 4, "random") + paired([0.5] * 4, [0.2] * 4), {"l": "made up"}, "python -m x")
    assert "| l | 1 O | random | -0.400 | -0.400, -0.400 | 4 | **loses** |" in text
    assert "4 seeds only" in text
    assert "made up" in text


def test_results_are_taken_up_again_after_a_cut_and_never_those_of_other_code(tmp_path):
    log = series.Log(tmp_path)
    here = series.code("random")
    log.append([result(landscape="synthetic-sparse", strategy="random", seed=s, fraction=1.0, code=here) for s in (0, 1)])
    log.append([result(landscape="synthetic-sparse", strategy="random", seed=2, fraction=1.0, code="old")])
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"landscape": "cut off')
    log.append([result(landscape="synthetic-sparse", strategy="random", seed=3, fraction=1.0, code=here)])
    kept = log.read()
    assert len(kept) == 4
    left = list(series.tasks(["synthetic-sparse"], ["random"], range(5), kept, [0.5, 1.0]))
    assert [(task.seed, task.fractions) for task in left] == [
        (0, (0.5,)),
        (1, (0.5,)),
        (2, (0.5, 1.0)),
        (3, (0.5,)),
        (4, (0.5, 1.0)),
    ]
    log.close(kept)
    assert log.read() == kept
    assert not (tmp_path / "runs.jsonl").exists()


def test_a_task_gives_the_same_result_every_time():
    task = series.Task("synthetic-sparse", "trtexec-mixed", 3, (0.25,))
    (one,), (again,) = series.run(task), series.run(task)
    timing = {"planning_seconds": 0.0, "slowest_plan": 0.0, "memory_mb": 0.0}
    assert replace(one, **timing) == replace(again, **timing)
    assert one.budget == one.builds == 52


def test_the_stated_error_grows_with_the_spread_of_builds_and_sessions():
    assert SILENT.told_sd == 0.0
    assert replace(LOUD, build_sd=0.0).told_sd < LOUD.told_sd < replace(LOUD, build_sd=0.05).told_sd


def test_a_pruner_is_played_only_where_sessions_differ_much():
    names = ["synthetic-sparse", "synthetic-host"]
    assert [task.landscape for task in series.tasks(names, ["optuna-wilcoxon"], [0], [])] == ["synthetic-host"]


def test_a_large_plan_is_timed(tmp_path):
    seconds, megabytes = series.plan_large(30)
    assert seconds > 0
    assert megabytes > 10


def test_peers_are_those_that_were_compared():
    lock = packages.LOCK.read_text()
    assert all(f"\n{name}=={version} " in lock for name, version in packages.COMPARED.items())
    with pytest.raises(SystemExit, match="not compared"):
        packages.check(SimpleNamespace(__name__="optuna", __version__="0.1"))


@pytest.fixture
def peers(monkeypatch):
    if not packages.folder().exists():
        pytest.skip("the peers are not installed; python -m bench.search installs them")
    monkeypatch.setattr(sys, "path", [*sys.path])
    packages.install()


def proposals(player, landscape, seed, workers):
    """All that it asks for, and what it returns."""
    where = series.landscape(landscape, seed)
    asked = []
    ask = player.ask

    def noted(*arguments):
        asked.append(ask(*arguments))
        return asked[-1]

    player.ask = noted
    (end,) = play(player, where, [60], seed, workers=workers, late=0.2)
    return asked, end.choice, end.sessions


@pytest.mark.parametrize(("landscape", "prune", "workers"), [("synthetic-failing", False, 3), ("synthetic-host", True, 1)])
def test_optuna_proposes_what_it_does_by_itself(peers, landscape, prune, workers):
    import optuna

    class Plain(packages.Optuna):
        def __init__(self, space, seed, prune):
            super().__init__(space, seed, prune)
            self._study.sampler = optuna.samplers.TPESampler(seed=seed)

        def _ask(self):
            trial = self._study.ask()
            flips = [
                Flip(name, trial.suggest_categorical(name, ["", *(flip.value for flip in flips)]))
                for name, flips in self._space.dimensions.items()
            ]
            candidate = self._space.candidate(flip for flip in flips if flip.value)
            self._open.append((candidate.id, trial))
            return candidate

    space = series.landscape(landscape, 1).space
    here, plain = (proposals(make(space, 1, prune), landscape, 1, workers) for make in (packages.Optuna, Plain))
    assert here == plain


@pytest.mark.parametrize(("landscape", "workers"), [("synthetic-failing", 1), ("synthetic-settings", 3)])
def test_nevergrad_proposes_what_it_does_by_itself(peers, monkeypatch, landscape, workers):
    space = series.landscape(landscape, 1).space
    here = proposals(packages.Nevergrad(space, 1, 60, workers), landscape, 1, workers)

    import nevergrad
    import scipy.stats
    from nevergrad.parametrization import discretization

    def plain(size, repetitions):
        return nevergrad.p.TransitionChoice(range(size), repetitions=repetitions)

    monkeypatch.setattr(discretization, "scipy", scipy)
    monkeypatch.setattr(packages, "_nevergrad", lambda: (nevergrad, plain))
    assert here == proposals(packages.Nevergrad(space, 1, 60, workers), landscape, 1, workers)
