"""Stop markers: the words that they may hold."""

from __future__ import annotations

import secrets

import pytest

from tuner_job.api.messages import StopRecord
from tuner_job.campaign.stop import StopReason, stop_marker, stop_reason
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record

RUN = "0" * 20


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore.open(f"memory://{secrets.token_hex(8)}")


def test_the_first_marker_of_an_attempt_stands(store: ObjectStore) -> None:
    assert stop_reason(store, RUN, 1) is None
    assert stop_marker(store, RUN, 1, StopReason.BUDGET_EXHAUSTED)
    assert not stop_marker(store, RUN, 1, StopReason.SUSPENDED)
    assert stop_reason(store, RUN, 1) is StopReason.BUDGET_EXHAUSTED
    assert stop_reason(store, RUN, 2) is None


def test_a_word_that_is_no_reason_is_never_written_but_stops_where_it_is_found(store: ObjectStore) -> None:
    with pytest.raises(ValueError, match="cancelled"):
        stop_marker(store, RUN, 1, "cancelled")
    assert stop_reason(store, RUN, 1) is None
    create_record(store, layout.stop(RUN, 1), StopRecord(attempt=1, reason="cancelled"))
    assert stop_reason(store, RUN, 1) is StopReason.SUSPENDED


def test_reasons_are_the_words_of_a_condition() -> None:
    assert [str(reason) for reason in StopReason] == [
        "Suspended",
        "InputsChanged",
        "TargetRemoved",
        "DeadlineExceeded",
        "BudgetExhausted",
    ]
