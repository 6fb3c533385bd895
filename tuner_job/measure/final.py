"""How large the final must be: builds and sessions from the pilot's variances, and the power that they buy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from tuner_job.api.child import MeasureSettings
from tuner_job.measure.ranks import rank_sum_critical
from tuner_job.measure.summary import P99_SAMPLES, margin
from tuner_job.measure.variance import Components, median_variance

ALPHA = 0.025
"""One-sided level of the route's test: the same as a two-sided 95 % interval that excludes the margin."""
FEWEST_REPEATS = 5
MOST_REPEATS = 16
SESSIONS = (12, 20, 30, 40)
"""Sessions per engine: even, since one half chooses the published bytes and the other describes them."""
POWER = 0.9
"""Wanted at a true gain of `minImprovement` + max(minImprovement, 1 %)."""
LEAST_EXCESS = 0.01
_DRAWS = 2_000


@dataclass(frozen=True)
class FinalDesign:
    """What the final does."""

    repeats: int
    """Fresh builds of the candidate."""
    baseline_repeats: int
    """Fresh default builds: twice as many, since they also are what the published bytes are compared with."""
    sessions: int
    """Per engine and shape case."""
    session_seconds: float
    session_samples: int
    detectable: float
    """The true relative gain that `power` refers to."""
    power: float
    """Chance to prove a true gain of `detectable`. At a true gain of exactly `minImprovement` it is at most ALPHA."""

    @property
    def statement(self) -> str:
        """For people and records."""
        return (
            f"{self.repeats} candidate and {self.baseline_repeats} default builds, {self.sessions} sessions each: "
            f"a true gain of {self.detectable:.1%} is proven with probability {self.power:.0%}; "
            f"one of just minImprovement with at most {ALPHA:.1%}"
        )

    def settings(self, base: MeasureSettings) -> MeasureSettings:
        """`base` with the final's sessions."""
        return base.model_copy(
            update={
                "sessions": self.sessions,
                "session_seconds": self.session_seconds,
                "session_samples": self.session_samples,
            }
        )

    def seconds(self, build_seconds: float, cases: int = 1, latency_seconds: float = 0.0) -> float:
        """Rough device time, given the wall time of one build with its check, and, if known, of one inference: a session is as
        long as its samples take."""
        session = max(self.session_seconds, self.session_samples * latency_seconds)
        return (self.repeats + self.baseline_repeats) * (build_seconds + cases * self.sessions * session)


def design(
    pilot: Components,
    settings: MeasureSettings,
    min_improvement: float,
    *,
    build_seconds: float = 0.0,
    budget_seconds: float = math.inf,
    percentile: bool = False,
    cases: int = 1,
) -> FinalDesign:
    """The smallest final with enough power; if none has it, the strongest that fits `budget_seconds`.

    Builds are dear and sessions cheap, so sessions grow first. Something is always returned, at least five builds and twelve
    sessions; its power says what it is worth. `percentile`: each half of the sessions must support a 99th percentile.
    `cases`: shape cases, each of which every engine is timed under.
    Raises InputError for a `min_improvement` out of range.
    """
    detectable = min_improvement + max(min_improvement, LEAST_EXCESS)
    if settings.metric != "Throughput":
        detectable = min(detectable, (1 + min_improvement) / 2)
    excess = margin(min_improvement, settings.metric) - margin(detectable, settings.metric)
    percentile = percentile or settings.metric == "LatencyP99"
    best: FinalDesign | None = None
    for repeats in range(FEWEST_REPEATS, MOST_REPEATS + 1):
        for sessions in SESSIONS:
            samples = math.ceil(2 * P99_SAMPLES / sessions) if percentile else 1
            planned = FinalDesign(
                repeats=repeats,
                baseline_repeats=2 * repeats,
                sessions=sessions,
                session_seconds=settings.session_seconds,
                session_samples=max(settings.session_samples, samples),
                detectable=detectable,
                power=power(pilot, repeats, sessions, excess),
            )
            if best is not None and planned.seconds(build_seconds, cases) > budget_seconds:
                continue
            if planned.power >= POWER:
                return planned
            if best is None or planned.power > best.power:
                best = planned
    assert best is not None
    return best


def power(pilot: Components, repeats: int, sessions: int, excess: float) -> float:
    """Chance that the rank-sum test of `repeats` against twice as many builds rejects at ALPHA.

    `excess` is the true log gain beyond the margin. Builds are normal with the variance of a build plus that of the median of
    its sessions, less the drift that all share. Simulated with 2,000 fixed draws: repeatable to about ±0.01.
    """
    sd = math.sqrt(pilot.build_sd**2 + median_variance(pilot.step_sd, sessions))
    thresholds = _needed_shift(repeats)
    if sd == 0:
        return 1.0 if excess > 0 else float(np.mean(thresholds < 0))
    return float(np.mean(thresholds < excess / sd))


@cache
def _needed_shift(repeats: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """For each draw of standard normal builds, the shift above which the test rejects.

    The test rejects when at least `pairs - u` pairs favour the candidate: when the shift exceeds that order statistic of the
    pairwise differences.
    """
    rng = np.random.default_rng(repeats)
    candidate = rng.standard_normal((_DRAWS, repeats, 1))
    baseline = rng.standard_normal((_DRAWS, 1, 2 * repeats))
    differences = np.sort((candidate - baseline).reshape(_DRAWS, -1), axis=1)
    return np.asarray(differences[:, -1 - rank_sum_critical(repeats, 2 * repeats, ALPHA)])
