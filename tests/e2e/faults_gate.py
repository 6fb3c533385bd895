"""Gates, at which requests wait until somebody lets them go on: an operator is stopped at an exact point with no hook in it."""

from __future__ import annotations

import re
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

WAIT_SECONDS = 240.0
"""For the request that a drill waits for; on busy processors a whole run may lie before it."""


class NeverCame(AssertionError):
    """The request that was waited for was not made in time."""


@dataclass(eq=False)
class Hold:
    """One place at which requests wait."""

    pattern: re.Pattern[str]
    when: Callable[[], bool]
    after: bool
    seen: list[str] = field(default_factory=list)
    """Requests that came here."""
    drops_the_dead: bool = True
    """Whether requests are dropped whose makers have gone while they waited; else they arrive late."""
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
        """The first does not go on, as if it had never been made, or its answer had been lost; those behind it do."""
        self._refuses = True
        self._open.set()

    def concerns(self, request: str, after: bool) -> bool:
        return self.after == after and self.pattern.search(request) is not None and self.when()

    def stop(self, request: str) -> bool:
        """Called by a server. Whether the request may go on."""
        self.seen.append(request)
        first = len(self.seen) == 1
        self._came.set()
        self._open.wait(WAIT_SECONDS * 2)
        return not (first and self._refuses)


def gone(client: socket.socket) -> bool:
    """Who waits for an answer says nothing more until it comes: what can be read is the end of the connection."""
    try:
        return bool(select.select([client], [], [], 0)[0])
    except (OSError, ValueError):
        return True


class Gate:
    """What servers ask before each request, and after it before they answer."""

    def __init__(self) -> None:
        self._holds: list[Hold] = []

    @contextmanager
    def hold(
        self, pattern: str, *, after: bool = False, when: Callable[[], bool] = lambda: True, drops_the_dead: bool = True
    ) -> Iterator[Hold]:
        """Requests like this wait, if `when` holds then; with `after` they are done first, and their answer waits.

        If they wait still at the end, the first is refused.
        """
        hold = Hold(re.compile(pattern), when, after, drops_the_dead=drops_the_dead)
        self._holds.append(hold)
        try:
            yield hold
        finally:
            self._holds.remove(hold)
            if not hold._open.is_set():
                hold.refuse()

    def passes(self, request: str, client: socket.socket, *, after: bool = False) -> bool:
        """Called by a server, which waits in it. False: drop the request, also since nobody waits for its answer any more."""
        passed: list[Hold] = []
        while hold := next((each for each in [*self._holds] if each not in passed and each.concerns(request, after)), None):
            passed.append(hold)
            if not hold.stop(request) or (gone(client) and hold.drops_the_dead):
                return False
        return True
