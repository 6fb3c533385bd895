"""The question that a strategy answers: given all results so far, which trials are next?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Protocol, runtime_checkable

from tuner_job.api.measurement import Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.search.space import VARIANT, Flips, Space

UNKNOWN_SD = 0.02
"""Standard error of a log ratio that came without one."""
SMALLEST_SD = 1e-4


@dataclass(frozen=True, slots=True)
class Observation:
    """One finished trial, or the default as discover built it: an empty route of log ratio 0, with its engine's fingerprint."""

    trial: str
    candidate: Candidate
    outcome: Outcome
    log_ratio: float | None = None
    """ln(latency / baseline latency) after the worker's correction; negative is faster. None if nothing was timed."""
    sd: float | None = None
    """Its standard error, the spread between builds included."""
    fingerprint: str = ""
    """Equal and not empty: the same engine."""
    seconds: float = 0.0

    @property
    def timed(self) -> bool:
        """Feasible, with a usable number."""
        return self.outcome is Outcome.FEASIBLE and self.log_ratio is not None and math.isfinite(self.log_ratio)

    @property
    def variance(self) -> float:
        """Squared standard error, never zero."""
        sd = self.sd if self.sd is not None and math.isfinite(self.sd) else UNKNOWN_SD
        return max(sd, SMALLEST_SD) ** 2


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may still be explored. The final's share is no part of it."""

    trials: int
    """Trials of the whole exploration."""
    spent: int
    """Trials planned so far, finished or not."""
    round_limit: int
    """Most trials of one round."""
    workers: int = 1
    """How many trials run at once: a round shorter than this leaves some idle."""

    @property
    def left(self) -> int:
        return max(0, self.trials - self.spent)

    @property
    def next_round(self) -> int:
        """Most trials of the next round."""
        return min(self.left, max(1, self.round_limit))


@dataclass(frozen=True, slots=True)
class Proposal:
    """A trial to plan."""

    candidate: Candidate
    reason: str
    """For people: why this one."""
    repeat: int = 0
    """k for the k-th rebuild of a candidate that was tried (or is planned) before."""


@dataclass(frozen=True, slots=True)
class Done:
    """Exploring is over."""

    reason: str


@runtime_checkable
class Strategy(Protocol):
    """A stateless chooser. Plug-ins offer `(options: Mapping[str, str]) -> Strategy` under the group `trtfleet.strategies`.

    One that plans well while trials of its last round are running (they are `pending`) says so with an attribute
    `overlaps = True`; nobody then waits for the slowest trial of a round. Without it, rounds are whole.
    """

    def next_round(
        self, space: Space, history: Sequence[Observation], budget: Budget, seed: int, pending: Sequence[Candidate] = ()
    ) -> tuple[Proposal, ...] | Done:
        """The next trials, at most `budget.next_round`, never none.

        Depends on nothing but its arguments, and not on the order of `history`, so that two planners agree. `pending` are trials
        that are planned already and will run in the next round whatever is proposed (carried over); they have no result yet.
        """
        ...

    def estimate(self, space: Space, budget: Budget) -> int:
        """Trials that it will want at most, before anything ran. Raises InputError for a search that cannot work."""
        ...


class History:
    """All results, in the order of their trials, with the counts that repeats need."""

    def __init__(self, space: Space, observations: Sequence[Observation], pending: Sequence[Candidate] = ()) -> None:
        self.space = space
        self.observations = sorted(observations, key=lambda o: o.trial)
        self.pending = tuple(pending)
        self.builds: dict[str, int] = {}
        """Candidate id → builds finished or pending."""
        for candidate in (*(o.candidate for o in self.observations), *pending):
            self.count(candidate)

    def count(self, candidate: Candidate) -> int:
        """Notes one more build of the candidate; returns how many there were before."""
        before = self.builds.get(candidate.id, 0)
        self.builds[candidate.id] = before + 1
        return before

    def is_new(self, candidate: Candidate) -> bool:
        """Never built nor planned. The baseline never is: discover built it."""
        return candidate.id not in self.builds and not candidate.is_baseline

    def new(self, candidates: Iterable[tuple[Candidate, str]]) -> Iterator[Proposal]:
        """Proposals for those that are new, each once."""
        for candidate, reason in candidates:
            if self.is_new(candidate):
                self.count(candidate)
                yield Proposal(candidate, reason)

    @cached_property
    def flips(self) -> list[Flips]:
        """Of each observation."""
        return [self.space.flips_of(o.candidate) for o in self.observations]

    def best_variant(self) -> Flips:
        """The flip of the fastest variant on its empty route; no flip for the base variant or when nothing is known."""
        scores = {
            flips: o.log_ratio or 0.0
            for o, flips in zip(reversed(self.observations), reversed(self.flips), strict=True)
            if o.timed and len(flips) == 1 and next(iter(flips)).dimension == VARIANT
        }
        best = min(scores, key=lambda flips: (scores[flips], sorted(flips)), default=frozenset())
        return best if scores.get(best, 0.0) < 0 else frozenset()


def take(proposals: Iterator[Proposal], budget: Budget, exhausted: str) -> tuple[Proposal, ...] | Done:
    """The next round of an enumeration, or why there is none."""
    if not budget.left:
        return Done(f"the budget of {budget.trials} trials is used up")
    return tuple(islice(proposals, budget.next_round)) or Done(exhausted)
