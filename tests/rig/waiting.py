"""Waiting for something to become true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NeverHappened(AssertionError):
    """The deadline passed."""


def wait_for(what: str, probe: Callable[[], T | None], seconds: float, *, every: float = 0.1) -> T:
    """What `probe` returns as soon as that is neither None nor False. Raises NeverHappened after `seconds`.

    Whatever the probe raises ends the wait: a probe that may fail at first says so by returning None.
    """
    give_up = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer is not None and answer is not False:
            return answer
        if time.monotonic() > give_up:
            raise NeverHappened(f"not within {seconds:g} s: {what}")
        time.sleep(every)
