"""Gates, at which requests wait until somebody lets them go on: an operator is stopped at an exact point with no hook in it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

WAIT_SECONDS = 240.0
"""For the request that a drill waits for; on busy processors a whole run may lie before it."""


class NeverCame(AssertionError):
    """The request that was waited for was not made in time."""


@dataclass
class Hold:
    """One place at which requests wait."""

    pattern: re.Pattern[str]
    when: Callable[[], bool]
    after: bool
    seen: list[str] = field(default_factory=list)
    """Requests that came here."""
    _came: threading.Event = field(default_factory=threading.Event)
    _open: threading.Event = field(default_factory=threading.Event)
    _refuses: bool = False

    def wait(self, seconds: float = WAIT_SECONDS) -> str:
        """The first request that waits here. Raises NeverCame."""
        if not self._came.wait(seconds):
            raise NeverCame(f"no request like {self.pattern.pattern} within {seconds:g} s")
        return self.seen[0]

    def let_go(self) -> None:
        """All go on."""
        self._open.set()

    def refuse(self) -> None:
        """None goes on: as if it had never been made, or its answer had been lost."""
        self._refuses = True
        self._open.set()

    def stop(self, request: str) -> bool:
        """Called by a server. Whether the request may go on."""
        self.seen.append(request)
        self._came.set()
        self._open.wait(WAIT_SECONDS * 2)
        return not self._refuses


class Gate:
    """What servers ask before each request, and after it before they answer."""

    def __init__(self) -> None:
        self._holds: list[Hold] = []

    @contextmanager
    def hold(self, pattern: str, *, after: bool = False, when: Callable[[], bool] = lambda: True) -> Iterator[Hold]:
        """Requests like this wait, if `when` holds then; with `after` they are done first, and their answer waits.

        Whatever still waits at the end is refused.
        """
        hold = Hold(re.compile(pattern), when, after)
        self._holds.append(hold)
        try:
            yield hold
        finally:
            self._holds.remove(hold)
            if not hold._open.is_set():
                hold.refuse()

    def passes(self, request: str, *, after: bool = False) -> bool:
        """Called by a server, which waits in it. False: drop the request."""
        for hold in [*self._holds]:
            if hold.after == after and hold.pattern.search(request) and hold.when():
                return hold.stop(request)
        return True
