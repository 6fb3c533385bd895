"""How far a run is, from its records: what the CLI's bar, the operator's status and the metrics show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tuner_job.api.outcome import Outcome
from tuner_job.campaign.leaders import Leader, leaders
from tuner_job.campaign.reader import RunReader


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
        leaders=leaders(results, discovery, reader.run.inputs.measure.metric) if discovery else (),
        trial_seconds=estimate,
        max_trials=reader.run.inputs.search.max_trials,
        exploring=not plans or plans[-1].stage == "explore",
    )
