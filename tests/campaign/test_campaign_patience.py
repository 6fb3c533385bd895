from __future__ import annotations

from pathlib import Path

import pytest
from rig.faulty import FaultyStore

from tuner_job.api.messages import StopRecord
from tuner_job.campaign.patience import created, patiently
from tuner_job.store.objects import ObjectStore, StoreFull, StoreUnavailable


class Away:
    """A store that is back at the n-th write."""

    def __init__(self, back_at: int) -> None:
        self.writes, self._back_at = 0, back_at

    def write(self) -> str:
        self.writes += 1
        if self.writes < self._back_at:
            raise StoreUnavailable("away")
        return "written"


def test_a_write_is_repeated_until_the_store_is_back() -> None:
    away = Away(4)
    assert patiently(away.write, lambda _: False) == "written"
    assert away.writes == 4


def test_a_worker_that_is_told_to_stop_gives_up_at_once() -> None:
    away = Away(4)
    with pytest.raises(StoreUnavailable, match="away"):
        patiently(away.write, lambda _: True)
    assert away.writes == 1


def test_patience_ends() -> None:
    with pytest.raises(StoreUnavailable, match="away"):
        patiently(Away(10**9).write, lambda _: False, seconds=0.0)


def test_what_waiting_cannot_mend_is_raised_at_once() -> None:
    def write() -> None:
        raise StoreFull("full")

    with pytest.raises(StoreFull):
        patiently(write, lambda _: pytest.fail("waited"))


def test_a_record_whose_answer_was_lost_is_the_writers_own(tmp_path: Path) -> None:
    store = FaultyStore(ObjectStore.open(tmp_path.as_uri()))
    store.lose_next_answer = True
    assert created(store, "stop", StopRecord(attempt=1, reason="mine"), lambda _: False)


def test_a_record_that_another_wrote_first_is_not(tmp_path: Path) -> None:
    store = FaultyStore(ObjectStore.open(tmp_path.as_uri()))
    assert created(store, "stop", StopRecord(attempt=1, reason="mine"), lambda _: False)
    store.down = True

    def back(_seconds: float) -> bool:
        store.down = False
        return False

    assert not created(store, "stop", StopRecord(attempt=1, reason="another"), back)
