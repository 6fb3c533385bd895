"""The explored candidates that lead: what plans carry on and what people see during a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import DiscoveryRecord, ResultRecord
from tuner_job.api.outcome import Outcome
from tuner_job.measure.controls import scores
from tuner_job.measure.summary import Metric, gain


@dataclass(frozen=True)
class Leader:
    """An explored candidate and its relative gain over the baseline, as far as explore can tell (optimistic for the best)."""

    trial: str
    candidate: Candidate
    gain: float
    sd: float
    """Standard deviation of the log ratio behind the gain."""


def leaders(results: Sequence[ResultRecord], discovery: DiscoveryRecord, metric: Metric) -> tuple[Leader, ...]:
    """Feasible results, best first; the same for the same results in any order. Raises what `scores` raises."""
    if not results:
        return ()
    by_trial = scores(results, discovery, metric)
    found = [
        Leader(result.trial, result.candidate, gain(by_trial[result.trial].log_ratio, metric), by_trial[result.trial].sd)
        for result in results
        if result.outcome is Outcome.FEASIBLE and result.trial in by_trial
    ]
    return tuple(sorted(found, key=lambda leader: (-leader.gain, leader.trial)))
