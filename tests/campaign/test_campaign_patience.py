from __future__ import annotations

import pytest

from tuner_job.campaign.patience import patiently
from tuner_job.store.objects import StoreFull, StoreUnavailable


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
