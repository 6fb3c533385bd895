from __future__ import annotations

import json

import pytest
from campaign_records import run_record

from tuner_job.campaign.worker import END_BYTES, end_text, limits


@pytest.mark.parametrize("message", ["short", "x" * 10_000, "é" * 10_000, '"' * 10_000, "\x00\U0001f4a5" * 5_000])
def test_a_reason_fits_a_pods_termination_message_and_stays_json(message: str) -> None:
    text = end_text("Reason", message)
    assert len(text.encode()) <= END_BYTES
    told = json.loads(text)
    assert told["reason"] == "Reason"
    assert message.startswith(told["message"])
    assert len(told["message"]) >= min(len(message), 250)


def test_a_child_may_fill_half_of_the_scratch_space() -> None:
    assert limits(run_record().inputs, 1000).disk_bytes == 500
