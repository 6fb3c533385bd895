"""Jobs of targets that the spec no longer has: drained, then deleted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner_job.api.conditions import Reason
from tuner_job.api.tuningjob_status import TargetStatus
from tuning_operator.actions import DeleteJob, StopAttempt
from tuning_operator.config import OperatorConfig
from tuning_operator.reconcile.case import DRAIN_SECONDS, TRIAL_SECONDS
from tuning_operator.reconcile.drain import Patience, drain, leaving_since
from tuning_operator.reconcile.standing import Standing
from tuning_operator.reconcile.words import parsed
from tuning_operator.snapshot import JobView, Snapshot

_STANDING = Standing("Pending", "moving", Reason.STOPPING, "the target was removed: its workers finish the trial in hand")


@dataclass(frozen=True)
class Removed:
    """What is done about one removed target."""

    actions: tuple[StopAttempt | DeleteJob, ...]
    status: TargetStatus
    """Stays until the workers have left, so that it is known how long they have been leaving."""
    standing: Standing
    again: float
    kept: bool


def decide_removed(snapshot: Snapshot, before: Mapping[str, TargetStatus], config: OperatorConfig, *, room: int) -> list[Removed]:
    """`room`: how many more targets the status can hold. Workers of the others cannot be waited for, and are ended at once."""
    jobs: dict[str, list[JobView]] = {}
    for job in snapshot.orphans:
        jobs.setdefault(job.target, []).append(job)
    return [
        _removed(snapshot, target, own, before.get(target), config, kept=place < room)
        for place, (target, own) in enumerate(sorted(jobs.items()))
    ]


def _removed(
    snapshot: Snapshot, target: str, jobs: list[JobView], stored: TargetStatus | None, config: OperatorConfig, *, kept: bool
) -> Removed:
    def marker(job: JobView) -> StopAttempt | None:
        store = snapshot.orphan_stores.get(job.uid)
        return StopAttempt(job.run, store, job.attempt, Reason.TARGET_REMOVED) if store else None

    why = "its target was removed"
    waited_for = [job for job in jobs if kept and job.uid in snapshot.orphan_stores]
    since = parsed(stored.stopping_since) if stored else None
    patience = Patience(since, TRIAL_SECONDS + config.workers.stop_grace_seconds, snapshot.now)
    actions = drain(waited_for, (), patience, beats=None, marker=marker, why=why)
    at_once = tuple(DeleteJob(job.name, job.uid, why) for job in jobs if job not in waited_for and not job.deleting)
    status = (stored or TargetStatus(name=target)).model_copy(
        update={
            "active_run": None,
            "incumbent": None,
            "stopping_since": leaving_since(stored.stopping_since if stored else None, snapshot.now),
        }
    )
    return Removed((*at_once, *actions), status, _STANDING, min(DRAIN_SECONDS, config.poll_seconds), kept)
