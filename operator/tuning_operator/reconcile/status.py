"""The job's status from its targets'. Pure. The truth table is in docs/status.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tuner_job.api.conditions import Condition, ConditionType, Reason
from tuner_job.api.tuningjob import TuningJob
from tuner_job.api.tuningjob_status import Phase, TargetStatus, TrialCounts, TuningJobStatus
from tuning_operator.reconcile import counts
from tuning_operator.reconcile.standing import Mark, Standing, mark_in, not_yet, set_mark
from tuning_operator.reconcile.words import percent

MOST_BYTES = 64 << 10

_ADVANCE: tuple[Phase, ...] = (
    "Stalled",
    "Suspended",
    "Pending",
    "Discovering",
    "Exploring",
    "Proving",
    "Publishing",
    "AwaitingApproval",
    "Done",
)


@dataclass(frozen=True)
class Part:
    """What a target, or the Jobs of a removed one, contribute."""

    standing: Standing
    status: TargetStatus
    stale: str = ""
    """Why the engine that is served is not of the wanted inputs; empty when it is, or when none is served."""


def job_status(
    job: TuningJob, parts: Sequence[Part], removed: Sequence[Part], now: datetime, *, observed: bool
) -> TuningJobStatus:
    """`removed`: targets that the spec has no more, while workers of theirs leave. `observed`: the generation had its effect."""
    stored = job.status or TuningJobStatus()
    generation = job.metadata.generation if observed else stored.observed_generation
    conditions: tuple[Condition, ...] = stored.conditions
    for kind, mark in _marks(job, parts, removed).items():
        conditions = set_mark(conditions, kind, mark, generation=generation or 0, now=now)
    speedups = [float(part.status.published.speedup) for part in parts if part.status.published and part.status.published.speedup]
    status = TuningJobStatus(
        observed_generation=generation,
        conditions=conditions,
        phase=_phase(parts),
        progress=counts.progress(*(part.status.trials or TrialCounts() for part in parts)),
        best_speedup=percent(f"{max(speedups)}") if speedups else None,
        targets=tuple(part.status for part in (*parts, *removed)),
    )
    return fitted(status)


def unreadable_spec(
    stored: TuningJobStatus | None, *, generation: int, problem: str, reason: str, now: datetime
) -> TuningJobStatus:
    """Of a TuningJob whose spec this operator cannot read: nothing is done for it until somebody writes it anew."""
    before = stored or TuningJobStatus()
    conditions: tuple[Condition, ...] = before.conditions
    for kind, mark in {
        ConditionType.READY: Mark(False, reason, problem),
        ConditionType.RECONCILING: Mark(False, reason, ""),
        ConditionType.STALLED: Mark(True, reason, problem),
        ConditionType.VALIDATED: Mark(False, reason, problem),
    }.items():
        conditions = set_mark(conditions, kind, mark, generation=generation, now=now)
    return fitted(before.model_copy(update={"observed_generation": generation, "conditions": conditions, "phase": "Stalled"}))


def fitted(status: TuningJobStatus) -> TuningJobStatus:
    """At most 64 KiB, whatever letters it is written in: first old runs go, then incumbents, then what targets say."""
    for shorter in (_without_old_runs, _without_incumbents, _without_words):
        if len(status.to_json()) <= MOST_BYTES:
            break
        status = status.model_copy(update={"targets": tuple(shorter(target) for target in status.targets)})
    return status


def _without_old_runs(target: TargetStatus) -> TargetStatus:
    return target.model_copy(update={"recent_runs": target.recent_runs[:1]})


def _without_incumbents(target: TargetStatus) -> TargetStatus:
    return target.model_copy(update={"incumbent": None})


def _without_words(target: TargetStatus) -> TargetStatus:
    silent = tuple(condition.model_copy(update={"message": ""}) for condition in target.conditions)
    return target.model_copy(update={"conditions": silent})


def _phase(parts: Sequence[Part]) -> Phase:
    """The least advanced of those that move; Stalled when none does and one is; else the least advanced."""
    moving = [part.standing.phase for part in parts if part.standing.mood == "moving"]
    stalled = [part.standing.phase for part in parts if part.standing.mood == "stalled"]
    return min(moving or stalled or [part.standing.phase for part in parts], key=_ADVANCE.index, default="Pending")


def _marks(job: TuningJob, parts: Sequence[Part], removed: Sequence[Part]) -> dict[ConditionType, Mark]:
    """Every condition of the job. A message names its target when there are several."""

    def told(part: Part, message: str) -> str:
        return f"{part.status.name}: {message}" if len(parts) + len(removed) > 1 else message

    def says(part: Part) -> Mark:
        return Mark(True, part.standing.reason, told(part, part.standing.message))

    moving = [*sorted(_of(parts, "moving"), key=lambda part: _ADVANCE.index(part.standing.phase)), *removed]
    stalled = _of(parts, "stalled")
    head = says((stalled or moving or _of(parts, "resting") or [*parts])[0])
    ready = all(part.standing.mood == "ready" for part in parts)
    wins = [part for part in parts if part.standing.reason != Reason.CURRENT]
    marks: dict[ConditionType, Mark] = {}
    if ready:
        marks[ConditionType.READY] = says((wins or [*parts])[0])
    else:
        unready = next(part for part in (*stalled, *moving, *parts) if part.standing.mood != "ready")
        own = mark_in(unready.status.conditions, ConditionType.READY)
        marks[ConditionType.READY] = Mark(False, own.reason, told(unready, own.message)) if own else head
    if moving:
        now = says(moving[0])
        marks[ConditionType.RECONCILING] = now
        others = f"{says(stalled[0]).message} ({stalled[0].standing.reason}); others go on" if stalled else ""
        marks[ConditionType.STALLED] = Mark(False, now.reason, others)
    else:
        marks[ConditionType.RECONCILING] = Mark(False, head.reason, "")
        marks[ConditionType.STALLED] = says(stalled[0]) if stalled else Mark(False, head.reason, "")
    for kind in (ConditionType.VALIDATED, ConditionType.TUNED, ConditionType.PUBLISHED):
        marks[kind] = _together(kind, parts, told)
    stale = next((part for part in parts if part.stale), None)
    engines = any(part.status.published is not None for part in parts)
    marks[ConditionType.STALE] = (
        Mark(True, stale.stale, told(stale, "the engine that is served is not of the inputs that are wanted now"))
        if stale
        else Mark(False, Reason.CURRENT if engines else Reason.NOT_PUBLISHED, "")
    )
    suspended = job.spec.suspend and not moving
    otherwise = moving[0].standing.reason if job.spec.suspend and moving else Reason.NOT_SUSPENDED
    message = "no worker runs; spec.suspend: false goes on" if suspended else ""
    marks[ConditionType.SUSPENDED] = Mark(suspended, Reason.SUSPENDED if suspended else otherwise, message)
    return marks


def _of(parts: Sequence[Part], mood: str) -> list[Part]:
    return [part for part in parts if part.standing.mood == mood]


def _together(kind: ConditionType, parts: Sequence[Part], told: Callable[[Part, str], str]) -> Mark:
    """True when it holds for every target, else what the first says for which it does not; a proven one speaks for the others."""
    found = [(part, mark_in(part.status.conditions, kind) or not_yet(kind, part.standing.reason)) for part in parts]
    against = [each for each in found if each[1].holds is False] or [each for each in found if each[1].holds is None]
    proven = [each for each in found if each[1].reason == Reason.PROVEN]
    part, mark = (against or proven or found)[0]
    return Mark(mark.holds, mark.reason, told(part, mark.message))
