"""What holds for every strategy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_cases import random_world, run, small_space, spaces

from tuner_job.api.measurement import Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.routes.select import EmptySearch
from tuner_job.search.pick import pick
from tuner_job.search.strategy import Budget, Done, Flip, Observation, Space, estimate, strategy

OPTIONS = {
    "Adaptive": {},
    "OneAtATime": {},
    "Mixed": {"cap": "16"},
    "Full": {"sample": "true"},
    "Expression": {"expression": "-k0=[0|1]", "sample": "true"},
}
names = st.sampled_from(sorted(OPTIONS))
few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(names, spaces(), st.integers(1, 40), st.integers(1, 20), st.integers(0, 2**70), st.sampled_from([0.0, 0.15, 0.5, 1.0]))
def test_no_repeat_but_counted_rebuilds_within_budget_and_it_ends(name, space, trials, limit, seed, fail) -> None:
    history, rounds, reason = run(
        strategy(name, OPTIONS[name]), space, random_world(seed % 1000, fail, space), trials, seed, limit
    )
    assert len(history) <= trials
    assert all(1 <= len(r) <= limit for r in rounds)
    assert reason
    seen: dict[str, int] = {}
    for proposal in (p for r in rounds for p in r):
        assert proposal.repeat == seen.get(proposal.candidate.id, 0)
        assert proposal.reason
        assert not proposal.candidate.is_baseline
        assert space.candidate(space.flips_of(proposal.candidate)) == proposal.candidate
        seen[proposal.candidate.id] = proposal.repeat + 1
    if name != "Adaptive":
        assert max(seen.values(), default=1) == 1
    failed = {o.candidate.id for o in history if o.outcome is not Outcome.FEASIBLE}
    assert all(seen[id_] == 1 for id_ in failed), "a refusal is never tried again"
    chosen = pick(history, space, 0.003)
    assert chosen is None or (chosen.gain > 0 and chosen.candidate.id in seen and chosen.candidate.id not in failed)
    assert len(history) <= estimate(strategy(name, OPTIONS[name]), space, Budget(trials, 0, limit)) or name == "Adaptive"


@few
@given(names, spaces(), st.integers(0, 1000), st.randoms(use_true_random=False))
def test_two_planners_agree_whatever_the_order_of_their_results(name, space, seed, random) -> None:
    history, _, _ = run(strategy(name, OPTIONS[name]), space, random_world(seed, 0.2, space), 20, seed, 7)
    known = history[: random.randint(0, len(history))]
    shuffled = random.sample(known, len(known))
    budget = Budget(40, len(known), 9)
    ask = strategy(name, OPTIONS[name]).next_round
    assert ask(space, known, budget, seed) == ask(space, shuffled, budget, seed)
    assert pick(known, space, 0.003) == pick(shuffled, space, 0.003)


SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:]
from search_cases import random_world, run, small_space
from tuner_job.search.strategy import strategy
space = small_space((2, 3, 2, 2, 2, 4, 2), {"level": ("4", "5")}, ("default", "fp16"))
_, rounds, _ = run(strategy("Adaptive"), space, random_world(5, 0.2, space), 40, 5, 9)
print(repr(rounds))
space = small_space((4, 4, 4) * 6)
_, rounds, _ = run(strategy("Adaptive"), space, random_world(1, 0.05, space), 120, 1)
print(repr(rounds))
"""


def test_planners_in_processes_with_other_hash_seeds_agree_byte_for_byte() -> None:
    here = Path(__file__).parent
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(here), str(here.parents[1])],
            env={"PYTHONHASHSEED": seed, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000


@few
@given(names, spaces(), st.integers(0, 1000))
def test_what_is_pending_is_not_proposed_again(name, space, seed) -> None:
    ask = strategy(name, OPTIONS[name]).next_round
    first = ask(space, [], Budget(60, 0, 6), seed)
    if isinstance(first, Done):
        return
    pending = [p.candidate for p in first]
    second = ask(space, [], Budget(60, len(first), 6), seed, pending)
    if not isinstance(second, Done):
        assert not {p.candidate.id for p in second} & {c.id for c in pending}


def test_a_large_space_keeps_to_its_budget_and_to_one_value_of_each_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    space = small_space((4, 4, 4) * 6 + (2,) * 30)
    candidate = Space.candidate

    def one_of_each(self: Space, flips: Iterable[Flip]) -> Candidate:
        flips = list(flips)
        assert len({flip.dimension for flip in flips}) == len(flips)
        return candidate(self, flips)

    monkeypatch.setattr(Space, "candidate", one_of_each)
    for seed in range(3):
        _, rounds, _ = run(strategy("Adaptive"), space, random_world(seed, 0.1, space), 90, seed, 11)
        assert all(len(r) <= 11 for r in rounds)
        assert sum(map(len, rounds)) <= 90


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_spent_budget_is_done(name: str) -> None:
    assert isinstance(strategy(name, OPTIONS[name]).next_round(small_space(), [], Budget(5, 5, 9), 1), Done)
    assert isinstance(strategy(name, OPTIONS[name]).next_round(small_space(), [], Budget(5, 9, 9), 1), Done)


@pytest.mark.parametrize("name", ["Adaptive", "OneAtATime", "Mixed", "Full"])
def test_nothing_to_vary_is_an_empty_search(name: str) -> None:
    space = Space(small_space().knobs)
    chosen = strategy(name, OPTIONS[name])
    for ask in (lambda: estimate(chosen, space, Budget(5, 0, 5)), lambda: chosen.next_round(space, [], Budget(5, 0, 5), 1)):
        with pytest.raises(EmptySearch):
            ask()


def test_infrastructure_failures_teach_nothing() -> None:
    space = small_space((2, 2))
    lost = [Observation("001-00000", space.candidate([space.flips[0]]), Outcome.INFRASTRUCTURE)]
    _, rounds, _ = run(strategy("OneAtATime"), space, lambda t, c: Observation(t, c, Outcome.INFRASTRUCTURE), 10)
    assert sum(map(len, rounds)) == 2
    assert pick(lost, space, 0.003) is None


@pytest.mark.parametrize(("trials", "limit"), [(1, 1), (2, 256), (3, 1)])
def test_tiny_budgets_are_used(trials: int, limit: int) -> None:
    space = small_space((2,) * 9)
    for name, options in OPTIONS.items():
        if name != "Expression":
            history, _, _ = run(strategy(name, options), space, random_world(1, 0, space), trials, round_limit=limit)
            assert len(history) == trials
