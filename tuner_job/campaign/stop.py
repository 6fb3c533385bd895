"""Stop markers: what the CLI and the operator tell the workers of one attempt, and why."""

from __future__ import annotations

from enum import StrEnum

from tuner_job.api.messages import StopRecord
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record, read_record


class StopReason(StrEnum):
    """Why an attempt is to stop. Workers end before their next trial, with exit code 67; at the last two explore workers seal the
    round, plan the final and end with exit code 0."""

    SUSPENDED = "Suspended"
    INPUTS_CHANGED = "InputsChanged"
    TARGET_REMOVED = "TargetRemoved"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    BUDGET_EXHAUSTED = "BudgetExhausted"


def stop_marker(store: ObjectStore, run: str, attempt: int, reason: StopReason | str) -> bool:
    """Write it. False: the attempt has one already, which stands. Raises ValueError for a word that is no StopReason."""
    return create_record(store, layout.stop(run, attempt), StopRecord(attempt=attempt, reason=StopReason(reason).value))


def stop_reason(store: ObjectStore, run: str, attempt: int) -> StopReason | None:
    """Why the attempt is to stop; None: it is not. A word that this version does not know stops like SUSPENDED."""
    record = read_record(store, layout.stop(run, attempt), StopRecord)
    if record is None:
        return None
    return StopReason(record.reason) if record.reason in tuple(StopReason) else StopReason.SUSPENDED
