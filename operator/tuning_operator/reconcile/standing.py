"""Where a target stands, and the conditions that follow from that alone. Pure. The truth table is in docs/status.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tuner_job.api.conditions import Condition, ConditionType, Reason, with_condition
from tuner_job.api.tuningjob_status import Phase, PublishedEngine
from tuning_operator.reconcile.words import line, percent, word
from tuning_operator.snapshot import Publication, VerdictView

Mood = Literal["ready", "moving", "resting", "stalled"]
"""`moving`: work is under way, or what it waits for comes by itself. `resting`: a person is asked, as the spec wants it.
`stalled`: something is wrong, and nothing happens until a person acts."""


@dataclass(frozen=True)
class Mark:
    """What a condition says."""

    holds: bool | None
    reason: str
    message: str


@dataclass(frozen=True)
class Standing:
    """Where a target stands. A mark of None leaves its condition as it was, which is how an ended run is remembered."""

    phase: Phase
    mood: Mood
    reason: str
    message: str
    validated: Mark | None = None
    tuned: Mark | None = None
    published: Mark | None = None


_FIRST = {
    ConditionType.VALIDATED: (None, "discover has not checked the inputs yet"),
    ConditionType.TUNED: (False, "the final has not decided yet"),
    ConditionType.PUBLISHED: (False, "no engine of this run is published"),
}


def not_yet(kind: ConditionType, reason: str) -> Mark:
    """What a condition says before there is anything to say."""
    holds, message = _FIRST[kind]
    return Mark(holds, reason, message)


def target_conditions(
    standing: Standing, before: Sequence[Condition], *, served: bool, generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Ready, Validated, Tuned, Published. `served`: the pointer names an engine, of whatever run."""
    known = {each.type: mark_of(each) for each in before}
    published = standing.published or known.get(ConditionType.PUBLISHED)
    retuning = standing.mood == "moving" and served and not (published and published.holds)
    message = f"an older engine is served meanwhile; {standing.message}" if retuning else standing.message
    marks = {
        ConditionType.READY: Mark(standing.mood == "ready", Reason.RETUNING if retuning else standing.reason, message),
        ConditionType.VALIDATED: standing.validated,
        ConditionType.TUNED: standing.tuned,
        ConditionType.PUBLISHED: standing.published,
    }
    conditions: tuple[Condition, ...] = tuple(each for each in before if each.type in marks)
    for kind, mark in marks.items():
        said = mark or known.get(kind) or not_yet(kind, standing.reason)
        conditions = set_mark(conditions, kind, said, generation=generation, now=now)
    return conditions


def set_mark(
    conditions: Sequence[Condition], kind: ConditionType, mark: Mark, *, generation: int, now: datetime
) -> tuple[Condition, ...]:
    reason = word(mark.reason, Reason.WORKERS_FAILED)
    return with_condition(conditions, kind, mark.holds, reason, line(mark.message), generation=generation, now=now)


def mark_of(condition: Condition) -> Mark:
    return Mark({"True": True, "False": False}.get(condition.status), condition.reason, condition.message)


def mark_in(conditions: Sequence[Condition], kind: ConditionType) -> Mark | None:
    return next((mark_of(each) for each in conditions if each.type == kind), None)


def ended(validated: Mark, tuned: Mark, published: Mark, engine: PublishedEngine | None) -> Standing:
    """Where the target of an ended run stands, from its last three conditions: they are all that is remembered of it."""

    def standing(phase: Phase, mood: Mood, reason: str, message: str) -> Standing:
        return Standing(phase, mood, reason, message, validated, tuned, published)

    if not tuned.holds:
        return standing("Stalled", "stalled", tuned.reason, tuned.message)
    if published.holds:
        return standing("Done", "ready", Reason.CURRENT if tuned.reason == Reason.PROVEN else tuned.reason, published.message)
    if published.reason == Reason.AWAITING_APPROVAL:
        return standing("AwaitingApproval", "resting", published.reason, published.message)
    served = published.reason == Reason.PINNED and engine is not None
    return standing("Done", "ready" if served else "resting", published.reason, published.message)


def decided(verdict: VerdictView) -> Mark:
    """Tuned, once the final has decided."""
    return Mark(True, verdict.reason, verdict.message or f"the final ended with {verdict.reason}")


def served_as(publication: Publication, target: str, verdict: VerdictView) -> Mark:
    """Published, once publishing was tried."""
    manifest = publication.manifest
    match publication.state:
        case "Served":
            gain = percent(verdict.gain)
            won = f"{gain} better than the default build" if gain else "better than the default build"
            what = won if verdict.significant else "a default build"
            return Mark(True, Reason.PUBLISHED, f"{what}; serves manifest {manifest}")
        case "AwaitingApproval":
            how = f"spec.publish.targets[{target}].approvedDigest"
            return Mark(False, Reason.AWAITING_APPROVAL, f"to serve it set {how}: {manifest}")
        case "Pinned":
            return Mark(False, Reason.PINNED, f"the pointer stays on pinnedDigest; this run's manifest is {manifest}")
        case "RolledBack":
            return Mark(False, Reason.ROLLED_BACK, f"the pointer was set back by hand; `trtfleet promote` serves {manifest}")
