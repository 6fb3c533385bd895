"""Work that is done must outlive a store that is away: what took minutes to find is not dropped for a failed write."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from tuner_job.api.messages import Record
from tuner_job.store.objects import ObjectStore, StoreUnavailable
from tuner_job.store.records import create_record

PATIENCE_SECONDS = 600.0
RETRY_SECONDS = 5.0

T = TypeVar("T")
Wait = Callable[[float], bool]
"""Sleeps so many seconds, less if told to stop; returns whether it was."""

log = logging.getLogger("trtfleet.worker")


def patiently(write: Callable[[], T], wait: Wait, *, seconds: float = PATIENCE_SECONDS) -> T:
    """`write` (which may be repeated), again and again while the store is away, up to `seconds` or until told to stop.

    Raises what the last try raised.
    """
    give_up = time.monotonic() + seconds
    while True:
        try:
            return write()
        except StoreUnavailable as error:
            if time.monotonic() >= give_up or wait(RETRY_SECONDS):
                raise
            log.warning("will be written again: %s", error)


def created(store: ObjectStore, key: str, record: Record, wait: Wait) -> bool:
    """Create a record that only this process can have written; False: another's stands there. Raises as `patiently` does.

    A store that went away in between may have kept the record of an earlier try without saying so: then it is this one's.
    """
    if patiently(lambda: create_record(store, key, record), wait):
        return True
    found = patiently(lambda: store.get(key, record.MAX_BYTES), wait)
    return found is not None and found.data == record.to_json()
