"""Work that is done must outlive a store that is away: what took minutes to find is not dropped for a failed write."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from tuner_job.store.objects import StoreUnavailable

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
