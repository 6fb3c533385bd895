"""How a condition changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tuner_job.api.base import InputError
from tuner_job.api.conditions import Condition, ConditionType, Reason, with_condition

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def ready(
    before: tuple[Condition, ...], status: bool | None, reason: Reason, minutes: int, generation: int = 1
) -> tuple[Condition, ...]:
    now = NOON + timedelta(minutes=minutes)
    return with_condition(before, ConditionType.READY, status, reason, f"after {minutes} min", generation=generation, now=now)


def test_a_transition_time_moves_only_with_the_status() -> None:
    first = ready((), False, Reason.EXPLORING, 0)
    second = ready(first, False, Reason.PROVING, 5, generation=2)
    third = ready(second, True, Reason.PROVEN, 9, generation=2)
    assert [c.last_transition_time for c in (first[0], second[0], third[0])] == ["2026-11-30T12:00:00Z"] * 2 + [
        "2026-11-30T12:09:00Z"
    ]
    assert (second[0].reason, second[0].observed_generation, second[0].message) == ("Proving", 2, "after 5 min")


def test_others_keep_their_place() -> None:
    stalled = with_condition((), ConditionType.STALLED, None, Reason.QUEUED, "", generation=1, now=NOON)
    both = ready(stalled, True, Reason.PROVEN, 1)
    again = with_condition(both, ConditionType.STALLED, False, Reason.CURRENT, "", generation=1, now=NOON)
    assert [c.type for c in again] == ["Stalled", "Ready"]
    assert stalled[0].status == "Unknown"


def test_long_messages_are_cut_and_lines_joined() -> None:
    (condition,) = with_condition((), ConditionType.READY, True, Reason.PROVEN, "a\n b " + "x" * 500, generation=1, now=NOON)
    assert len(condition.message) == 192
    assert condition.message.startswith("a b xxx")
    assert condition.message.endswith("…")


def test_every_type_and_reason_fits_a_condition() -> None:
    for kind in ConditionType:
        for reason in Reason:
            with_condition((), kind, True, reason, "", generation=0, now=NOON)


def test_the_reason_of_any_error_fits_a_condition() -> None:
    (condition,) = ready((), False, InputError("x", reason="StoreNotConditional").reason, 0)
    assert condition.reason == "StoreNotConditional"
