"""Our strategies as players."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.search.simulate import Built
from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.rounds import LARGEST_ROUND
from tuner_job.search.pick import pick
from tuner_job.search.rounds import Budget, Done, Observation, Strategy
from tuner_job.search.space import Space


class Ours:
    """A `tuner_job.search` strategy as the campaign plays it: a pilot of default builds, rounds, and `pick` at the end."""

    def __init__(
        self, strategy: Strategy, space: Space, seed: int, told_sd: float, build_sd: float, workers: int, anytime: bool
    ) -> None:
        self.anytime = anytime
        self._strategy = strategy
        self._space = space
        self._seed = seed
        self._told_sd = told_sd
        self._build_sd = build_sd
        self._workers = workers
        self._pilot: list[Built] = []
        self._built: list[Built] = []
        self.planned = 0
        """Trials so far."""

    def ask(self, count: int, left: int, pending: Sequence[Candidate]) -> Sequence[Candidate]:  # noqa: ARG002  it plays in rounds
        trials = self.planned + left
        limit = min(LARGEST_ROUND, max(4 * self._workers, trials // 4, 8))
        budget = Budget(trials, self.planned, limit, self._workers)
        answer = self._strategy.next_round(self._space, self._history(), budget, self._seed, pending)
        if isinstance(answer, Done):
            return ()
        self.planned += len(answer)
        return [proposal.candidate for proposal in answer]

    def tell(self, built: Built) -> None:
        # Nobody proposes the default, so it is the pilot's.
        (self._pilot if built.candidate.is_baseline else self._built).append(built)

    def choice(self) -> Candidate | None:
        picked = pick(self._history(), self._space, self._build_sd)
        return picked.candidate if picked else None

    def _history(self) -> list[Observation]:
        """Log ratios are over the pilot's mean, whose own luck is in all of them."""
        zero = float(np.mean([one.log_ratio for one in self._pilot if one.log_ratio is not None]))
        prints = sorted({one.fingerprint for one in self._pilot})
        views = [Observation("discover", BASELINE, Outcome.FEASIBLE, 0.0, self._build_sd, one) for one in prints]
        for one in self._built:
            timed = one.outcome is Outcome.FEASIBLE and one.log_ratio is not None
            ratio = (one.log_ratio or 0.0) - zero if timed else None
            sd = self._told_sd if timed else None
            views.append(Observation(_trial(one.number), one.candidate, one.outcome, ratio, sd, one.fingerprint, one.seconds))
        return views


def _trial(number: int) -> str:
    return f"001-{number:05d}"
