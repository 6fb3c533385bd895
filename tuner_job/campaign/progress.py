"""How far a run is, from its records: what the CLI's bar, the operator's status and the metrics show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import ResultRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.reader import RunReader
from tuner_job.measure.controls import scores
from tuner_job.measure.summary import gain


@dataclass(frozen=True)
class Leader:
    """An explored candidate and its relative gain over the baseline, as far as explore can tell (optimistic for the best)."""

    trial: str
    candidate: Candidate
    gain: float
    sd: float
    """Standard deviation of the log ratio behind the gain."""


@dataclass(frozen=True)
class Progress:
    """Counts never go down within a run."""

    planned: int
    outcomes: Mapping[Outcome, int]
    cached: int
    leaders: tuple[Leader, ...]
    """Feasible ones, best first."""
    trial_seconds: float
    """Estimated wall time of one trial."""
    max_trials: int
    exploring: bool

    @property
    def finished(self) -> int:
        return sum(self.outcomes.values())

    def explore_seconds_left(self, workers: int) -> float:
        """Rough wall time until explore ends, if it uses its whole budget of trials."""
        return max(0, self.max_trials - self.finished) * self.trial_seconds / max(1, workers) if self.exploring else 0.0


def progress(reader: RunReader) -> Progress:
    """Reads only what is new since the reader's last call."""
    plans = reader.plans()
    trials = list({trial.trial: None for plan in plans for trial in plan.trials})
    results = [result for trial in trials if (result := reader.result(trial))]
    discovery = reader.discovery()
    measured = [r.seconds["total"] for r in results if not r.cached and r.seconds.get("total")]
    estimate = sorted(measured)[len(measured) // 2] if measured else (discovery.trial_seconds if discovery else 0.0)
    return Progress(
        planned=len(trials),
        outcomes=Counter(result.outcome for result in results),
        cached=sum(result.cached for result in results),
        leaders=leaders(reader, results),
        trial_seconds=estimate,
        max_trials=reader.run.inputs.search.max_trials,
        exploring=not plans or plans[-1].stage == "explore",
    )


def leaders(reader: RunReader, results: list[ResultRecord]) -> tuple[Leader, ...]:
    """Feasible results, best first."""
    discovery = reader.discovery()
    if discovery is None:
        return ()
    metric = reader.run.inputs.measure.metric
    by_trial = scores(results, discovery, metric)
    found = [
        Leader(result.trial, result.candidate, gain(by_trial[result.trial].log_ratio, metric), by_trial[result.trial].sd)
        for result in results
        if result.outcome is Outcome.FEASIBLE and result.trial in by_trial
    ]
    return tuple(sorted(found, key=lambda leader: -leader.gain))
