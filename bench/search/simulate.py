"""Replays a search on a landscape: the player proposes, the landscape answers with its truth and recorded noise.

Every build of a candidate has its own noise, drawn from the seed, the candidate and how often it was built before. So all players
meet the same noise on the same builds, and their results are paired by seed. A budget counts every build: the default's, failures
and rebuilds. What a player returns is scored by the truth, which no player ever sees.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bench.search.landscape import Landscape
from bench.search.noise import Floats
from tuner_job.api.child import MeasureSettings
from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.api.outcome import Outcome

MEASURE_SECONDS = MeasureSettings().sessions * MeasureSettings().session_seconds + MeasureSettings().warmup_seconds
"""Device seconds of a timing."""
FAILED_SECONDS = 5.0
"""Of a candidate whose build seconds nobody recorded."""


@dataclass(frozen=True)
class Built:
    """One finished build, as a player may see it."""

    number: int
    """In the order of planning, from 0."""
    candidate: Candidate
    outcome: Outcome
    medians: Floats | None
    """Log latency of each session over the true default's; None if it was not timed."""
    means: Floats | None
    fingerprint: str
    seconds: float

    @property
    def log_ratio(self) -> float | None:
        """Median of the sessions' medians, as the campaign takes it."""
        return float(np.median(self.medians)) if self.medians is not None else None

    @property
    def mean_ratio(self) -> float | None:
        """Mean over all its time, as trtexec takes it."""
        return float(np.log(np.mean(np.exp(self.means)))) if self.means is not None else None


class Player(Protocol):
    """Something that searches. Made anew for each search, for one landscape's space and a seed."""

    anytime: bool
    """Whether what it does first does not depend on the whole budget: one search then answers for several budgets."""

    def ask(self, count: int, left: int, pending: Sequence[Candidate]) -> Sequence[Candidate]:
        """The next builds, at most `count` if it plays trial by trial, at most `left` anyway; none: it has ended.

        `count` is how many are asked for: the idle workers'. `left` is what is left of the budget. `pending` are being built.
        """
        ...

    def tell(self, built: Built) -> None:
        """A build has ended."""
        ...

    def choice(self) -> Candidate | None:
        """What it would hand on now; None: nothing is better than the default."""
        ...


@dataclass(frozen=True)
class Played:
    """What a player returned at a budget, and what it cost."""

    budget: int
    choice: Candidate | None
    builds: int
    """At most the budget: a player may end early."""
    failures: int
    sessions: int
    planning_seconds: float
    """Of all planning, the choice included."""
    slowest_plan: float
    """Seconds of the slowest single call."""
    hours: float
    """Of simulated wall time, planning apart."""
    memory_mb: float
    """Most that the process has held so far."""


class Builder:
    """Builds candidates of a landscape, each with its own noise."""

    def __init__(self, landscape: Landscape, seed: int) -> None:
        self._landscape = landscape
        self._seed = seed
        self._builds: dict[str, int] = {}
        self.count = 0

    def build(self, candidate: Candidate) -> Built:
        before = self._builds.get(candidate.id, 0)
        self._builds[candidate.id] = before + 1
        truth = self._landscape.truth(self._landscape.space.flips_of(candidate))
        timed = None
        if truth.log_ratio is not None:
            timed = self._landscape.noise.timed(np.random.default_rng([self._seed, int(candidate.id, 16), before]))
        self.count += 1
        return Built(
            number=self.count - 1,
            candidate=candidate,
            outcome=truth.outcome,
            medians=None if timed is None else (truth.log_ratio or 0.0) + timed.medians,
            means=None if timed is None else (truth.log_ratio or 0.0) + timed.means,
            fingerprint=truth.fingerprint,
            seconds=(truth.build_seconds or FAILED_SECONDS) + (MEASURE_SECONDS if timed is not None else 0.0),
        )


def play(
    player: Player,
    landscape: Landscape,
    budgets: Sequence[int],
    seed: int,
    *,
    pilot: int = 1,
    workers: int = 1,
    late: float = 0.0,
) -> Iterator[Played]:
    """Plays one search and yields what the player returns at each budget (several: an anytime player only).

    The first `pilot` builds are the default's. `late`: chance that a build ends only after the next ones were planned.
    """
    if len(budgets) > 1 and not player.anytime:
        raise ValueError("a player that plans with its whole budget is asked for one budget at a time")
    builder = Builder(landscape, seed)
    stragglers = np.random.default_rng([seed, 5])
    clock = _Clock(workers)
    waiting: list[Built] = []
    spent, planning, slowest, failures, sessions = 0, 0.0, 0.0, 0, 0
    ended = False
    for budget in sorted(budgets):
        while spent < budget and not ended:
            if spent < pilot:
                asked: Sequence[Candidate] = [BASELINE] * min(pilot - spent, budget - spent)
            else:
                began = time.perf_counter()
                asked = player.ask(min(workers, budget - spent), budget - spent, [one.candidate for one in waiting])
                took = time.perf_counter() - began
                planning, slowest = planning + took, max(slowest, took)
                if len(asked) > budget - spent:
                    raise ValueError(f"the player asked for {len(asked)} builds, {budget - spent} are left")
            ended = not asked
            built = [builder.build(candidate) for candidate in asked]
            clock.run([one.seconds for one in built])
            ready, waiting = waiting, []
            for one in built:
                held = late > 0 and spent >= pilot and stragglers.random() < late
                (waiting if held else ready).append(one)
            for one in ready:
                failures += one.outcome is not Outcome.FEASIBLE
                sessions += 0 if one.medians is None else one.medians.size
                player.tell(one)
            spent += len(built)
        for one in waiting:
            player.tell(one)
        waiting = []
        began = time.perf_counter()
        choice = player.choice() if spent >= pilot else None
        took = time.perf_counter() - began
        yield Played(
            budget=budget,
            choice=choice,
            builds=spent,
            failures=failures,
            sessions=sessions - getattr(player, "saved_sessions", 0),
            planning_seconds=planning + took,
            slowest_plan=max(slowest, took),
            hours=clock.hours,
            memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )


class _Clock:
    """Wall time of batches on workers: each batch ends with its slowest worker, the longest builds are begun first."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.hours = 0.0

    def run(self, seconds: Sequence[float]) -> None:
        loads = [0.0] * self._workers
        for one in sorted(seconds, reverse=True):
            loads[loads.index(min(loads))] += one
        self.hours += max(loads) / 3600
