"""From one snapshot of a TuningJob to what is done about it. Pure: no I/O, no clock; the same snapshot gives the same decision.

Nothing is remembered between two looks but what the store's records, the cluster's objects and the job's own status hold.
docs/status.md has the truth table.
"""

from __future__ import annotations

from datetime import datetime

from tuner_job.api.conditions import ConditionType, Reason
from tuner_job.api.tuningjob_status import TargetStatus, TuningJobStatus
from tuning_operator.actions import Action, CreateJob, Decision, Publish, StartRun
from tuning_operator.config import OperatorConfig
from tuning_operator.reconcile.case import RERUN, Case, settled_in
from tuning_operator.reconcile.removed import decide_removed
from tuning_operator.reconcile.standing import mark_in
from tuning_operator.reconcile.status import Part, job_status, unreadable_spec
from tuning_operator.reconcile.target import decide_target
from tuning_operator.snapshot import Problem, Snapshot, TargetSnapshot

__all__ = ["decide", "decide_unreadable"]


def decide(snapshot: Snapshot, config: OperatorConfig) -> Decision:
    """Raises nothing, whatever was seen. A job that is being deleted is left alone: its children go with it."""
    job = snapshot.job
    stored = job.status or TuningJobStatus()
    if job.metadata.deletion_timestamp is not None:
        return Decision((), stored, None)
    seen = {target.name: target for target in snapshot.targets}
    before = {target.name: target for target in stored.targets}
    actions: list[Action] = []
    parts: list[Part] = []
    waits: list[float] = []
    observed = True
    for spec in job.spec.targets:
        own = seen.get(spec.name, TargetSnapshot(spec.name))
        told = settled_in(before.get(spec.name, TargetStatus(name=spec.name)), own.wanted)
        case = Case(spec, own, told, snapshot, config)
        target = decide_target(case)
        actions += target.actions
        waits += [] if target.again is None else [target.again]
        observed = observed and target.observed
        parts.append(Part(target.standing, target.status, _stale(case, target.status)))
    removed = decide_removed(snapshot, before, config, room=12 - len(parts))
    for each in removed:
        actions += each.actions
        waits.append(each.again)
    leaving = [Part(each.standing, each.status) for each in removed if each.kept]
    status = job_status(job, parts, leaving, snapshot.now, observed=observed)
    return Decision(_in_order(actions), status, min(waits, default=None))


def decide_unreadable(stored: TuningJobStatus | None, generation: int, problem: Problem, now: datetime) -> Decision:
    """Of a TuningJob that is there, but whose spec cannot be read. Its workers, if it has any, go on."""
    return Decision(
        (), unreadable_spec(stored, generation=generation, problem=problem.message, reason=problem.reason, now=now), None
    )


def _in_order(actions: list[Action]) -> tuple[Action, ...]:
    """What ends something comes before what starts something: a Job that cannot be created must not keep another one alive."""
    return tuple(sorted(actions, key=lambda action: isinstance(action, StartRun | CreateJob | Publish)))


def _stale(case: Case, status: TargetStatus) -> str:
    """Why the engine that is served is not of the wanted inputs; empty when it is."""
    published = mark_in(status.conditions, ConditionType.PUBLISHED)
    if status.published is None or (published is not None and published.holds):
        return ""
    if published is not None and published.reason == Reason.ROLLED_BACK:
        return ""
    verdict = case.seen.run.verdict if case.seen.run else None
    if verdict is not None and verdict.engine == status.published.digest:  # publishing it anew is refused, and it is still there
        return ""
    return "" if case.trigger.startswith(RERUN) else case.stale_reason
