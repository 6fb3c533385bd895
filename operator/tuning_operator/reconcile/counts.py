"""Counters of a target: what the beats add up to, never less than was told of the same run. Pure."""

from __future__ import annotations

from datetime import datetime

from tuner_job.api.outcome import FAILED, Outcome
from tuner_job.api.tuningjob_status import TargetStatus, TrialCounts
from tuning_operator.reconcile.words import stamp
from tuning_operator.snapshot import RunView

MOST = 2_000_000_000
"""What a lying worker may claim: more would not fit the schema, and the status could not be written any more."""


def with_counts(stored: TargetStatus, run: RunView | None, shown: str | None, now: datetime) -> TargetStatus:
    """The stored status with the counters of run `shown`, of which `run` is what was read now, if anything was. Those of another
    run are dropped."""
    if not _is_of(stored, shown):
        stored = stored.model_copy(
            update={"trials": None, "incumbent": None, "gpu_seconds": None, "last_progress_time": None, "progress": None}
        )
    if run is None:
        return stored
    trials = _grown(stored.trials or TrialCounts(), _counted(run))
    grew = ended(trials) > ended(stored.trials or TrialCounts())
    return stored.model_copy(
        update={
            "trials": trials,
            "incumbent": run.incumbent or stored.incumbent,
            "gpu_seconds": max(stored.gpu_seconds or 0, _bounded(run.counts.device_seconds)),
            "last_progress_time": stamp(now) if grew else stored.last_progress_time,
            "progress": progress(trials),
        }
    )


def ended(trials: TrialCounts) -> int:
    return trials.feasible + trials.infeasible + trials.failed + trials.unsupported


def progress(*targets: TrialCounts) -> str | None:
    """Trials ended of trials planned (`37/64`). A trial that two workers ran counts once here, so never more than planned."""
    planned = sum(trials.planned for trials in targets)
    return f"{sum(min(ended(trials), trials.planned) for trials in targets)}/{planned}" if planned else None


def _is_of(stored: TargetStatus, run: str | None) -> bool:
    last = stored.active_run or next((past.id for past in stored.recent_runs), None)
    return last is not None and last == run


def _counted(run: RunView) -> TrialCounts:
    outcomes = run.counts.outcomes
    return TrialCounts(
        planned=_bounded(run.planned),
        running=_bounded(run.counts.running),
        feasible=_bounded(outcomes.get(Outcome.FEASIBLE, 0)),
        infeasible=_bounded(outcomes.get(Outcome.INFEASIBLE, 0)),
        failed=_bounded(sum(outcomes.get(outcome, 0) for outcome in FAILED)),
        unsupported=_bounded(outcomes.get(Outcome.UNSUPPORTED, 0)),
        cache_hits=_bounded(run.counts.cached),
    )


def _grown(before: TrialCounts, now: TrialCounts) -> TrialCounts:
    """A beat that could not be read, or is lost, takes nothing back. `running` alone may fall."""
    counted = {name: max(getattr(before, name), getattr(now, name)) for name in TrialCounts.model_fields}
    return TrialCounts(**counted | {"running": now.running})


def _bounded(number: float) -> int:
    return int(min(max(number, 0), MOST))
