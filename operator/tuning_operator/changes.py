"""What a new status tells beyond the stored one: nothing, only progress, or transitions, each of them an event. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tuner_job.api.conditions import Condition, Reason
from tuner_job.api.tuningjob_status import PastRun, TargetStatus, TuningJobStatus

GOOD_ENDS = frozenset(
    {
        Reason.PROVEN,
        Reason.NO_SIGNIFICANT_WIN,
        Reason.NO_CANDIDATE,
        Reason.CONSTRAINT_BROKEN,
        Reason.HOST_SLOWER,
        Reason.SUSPENDED,
        Reason.INPUTS_CHANGED,
    }
)
"""Ends of a run that are nobody's fault."""


@dataclass(frozen=True)
class Transition:
    """One thing that happened, as `kubectl describe` shows it."""

    type: Literal["Normal", "Warning"]
    reason: str
    """CamelCase."""
    note: str
    """One line."""


def only_progress(before: TuningJobStatus, after: TuningJobStatus) -> bool:
    """Whether the two differ in nothing but counts, incumbents, times, and the words of conditions."""
    return _still(before) == _still(after)


def transitions(before: TuningJobStatus | None, after: TuningJobStatus) -> tuple[Transition, ...]:
    """Of conditions, runs and the phase. One for each reason of a target: several conditions often turn for the same one."""
    prior = before or TuningJobStatus()
    stored = {each.name: each for each in prior.targets}
    found: dict[tuple[str, str], Transition] = {}
    for target in after.targets:
        for each in _of_target(stored.get(target.name), target):
            found.setdefault((target.name, each.reason), each)
    told = {reason for _, reason in found}
    for condition in _turned(prior.conditions, after.conditions):
        if condition.reason not in told:
            found.setdefault(("", condition.reason), _of_condition(condition, ""))
    stalled = {each.reason for each in after.conditions if each.type == "Stalled" and each.status == "True"}
    found = {key: replace(each, type="Warning") if each.reason in stalled else each for key, each in found.items()}
    if not found and after.phase != prior.phase and after.phase is not None:
        found["", after.phase] = Transition("Normal", after.phase, f"phase {prior.phase or 'none'} → {after.phase}")
    return tuple(found.values())


def _of_target(before: TargetStatus | None, after: TargetStatus) -> Iterator[Transition]:
    known = {each.id for each in before.recent_runs} if before else set()
    for run in reversed(after.recent_runs):
        if run.id not in known:
            yield _ended(after.name, run)
    if after.active_run and after.active_run != (before.active_run if before else None):
        yield Transition("Normal", "RunStarted", f"target {after.name}: run {after.active_run}")
    for condition in _turned(before.conditions if before else (), after.conditions):
        yield _of_condition(condition, f"target {after.name}: ")


def _ended(target: str, run: PastRun) -> Transition:
    good = run.reason in GOOD_ENDS
    return Transition("Normal" if good else "Warning", "RunEnded", f"target {target}: run {run.id} ended: {run.reason}")


def _turned(before: tuple[Condition, ...], after: tuple[Condition, ...]) -> list[Condition]:
    """Those that came to hold or ceased to, or hold for another reason; `Ready` says also why it still does not.

    `Stalled` comes first: its words say what to do.
    """
    old = {each.type: each for each in before}

    def has_turned(now: Condition) -> bool:
        was = old.get(now.type)
        holds, held = now.status == "True", was is not None and was.status == "True"
        return holds != held or ((holds or now.type == "Ready") and (was is None or was.reason != now.reason))

    return sorted(filter(has_turned, after), key=lambda each: (each.type != "Stalled" or each.status != "True", each.type))


def _of_condition(condition: Condition, prefix: str) -> Transition:
    bare = f"no longer {condition.type}" if condition.status == "False" else f"{condition.type} is {condition.status}"
    return Transition("Normal", condition.reason, prefix + (condition.message or bare))


def _still(status: TuningJobStatus) -> TuningJobStatus:
    """Less all that moves while trials end."""
    moving = {"trials": None, "incumbent": None, "gpu_seconds": None, "last_progress_time": None, "progress": None}
    targets = tuple(each.model_copy(update={**moving, "conditions": _without_words(each.conditions)}) for each in status.targets)
    return status.model_copy(update={"progress": None, "conditions": _without_words(status.conditions), "targets": targets})


def _without_words(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    return tuple(each.model_copy(update={"message": ""}) for each in conditions)
