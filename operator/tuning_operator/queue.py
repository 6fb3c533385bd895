"""The work queue: a key is queued once, worked on once at a time, and again if it was touched meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

Key = tuple[str, str]
"""Namespace and name of a TuningJob."""


class QueueClosed(Exception):
    """No more work: the operator is shutting down."""


class WorkQueue:
    """Client-go's semantics, and between two runs of one key at least `floor` seconds, so that a noisy child of a failing job
    cannot make it spin. Belongs to one event loop; no method but `get` and `idle` waits.

    A key that fails is run again after `base` seconds, then twice that, at most `cap`, ±20 %. Whoever adds it meanwhile has it
    run sooner.
    """

    def __init__(
        self,
        *,
        floor: float = 1.0,
        base: float = 0.5,
        cap: float = 300.0,
        waited: Callable[[float], None] = lambda _: None,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),  # noqa: S311 - it spreads retries, no more
    ) -> None:
        """`waited` is told, for each key handed out, how many seconds it was ready."""
        self.retries = 0
        """Runs that failed and were planned again, since the start."""
        self._floor, self._base, self._cap = floor, base, cap
        self._waited, self._jitter = waited, jitter
        self._ready: asyncio.Queue[Key | None] = asyncio.Queue()
        self._since: dict[Key, float] = {}
        """Ready keys → when they became so."""
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        """Keys planned for later. A key is in one of `_since`, `_timers`, `_busy`, or nowhere."""
        self._busy: dict[Key, float | None] = {}
        """Keys being worked on → when they are wanted next, as asked meanwhile."""
        self._cooling: dict[Key, float] = {}
        """Keys that ran lately → when they may run again; in the order of these times."""
        self._failures: dict[Key, int] = {}
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def depth(self) -> int:
        """Keys that are ready and wait for a worker."""
        return len(self._since)

    @property
    def planned(self) -> int:
        """Keys that wait for their time."""
        return len(self._timers)

    @property
    def running(self) -> int:
        return len(self._busy)

    @property
    def failing(self) -> int:
        """Keys whose last run failed."""
        return len(self._failures)

    def add(self, key: Key) -> None:
        """Run it as soon as may be, once more if it is running now."""
        self.add_after(key, 0)

    def add_after(self, key: Key, seconds: float) -> None:
        """Run it after so long, or sooner if that is planned already."""
        self._plan(key, asyncio.get_running_loop().time() + seconds)

    async def get(self) -> Key:
        """The next key. Whoever takes one must say `done`. Raises QueueClosed."""
        if not self._closed:
            key = await self._ready.get()
            if key is not None and not self._closed:
                now = asyncio.get_running_loop().time()
                self._waited(now - self._since.pop(key))
                self._busy[key] = None
                self._idle.clear()
                return key
        self._ready.put_nowait(None)  # for the next who waits
        raise QueueClosed

    def done(self, key: Key, *, failed: bool = False, after: float | None = None) -> None:
        """End a run. After a failure it is run again with growing delay, `after` at least; else after `after` seconds, or not."""
        now = asyncio.get_running_loop().time()
        wanted = self._busy.pop(key)
        if not self._busy:
            self._idle.set()
        self._cool(key, now)
        if failed:
            self.retries += 1
            count = self._failures[key] = self._failures.get(key, 0) + 1
            delay = min(self._cap, self._base * 2 ** min(count - 1, 20)) * self._jitter()
            self._plan(key, now + max(delay, after or 0))
        else:
            self._failures.pop(key, None)
            if after is not None:
                self._plan(key, now + after)
        if wanted is not None:
            self._plan(key, wanted)

    def forget(self, key: Key) -> None:
        """Its object is gone: drop its failures and what was planned for later. What was added while it runs stays."""
        self._failures.pop(key, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def close(self) -> None:
        """Hand out no more keys: whoever waits in `get`, now or later, gets QueueClosed."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._ready.put_nowait(None)

    async def idle(self) -> None:
        """Wait until no key is being worked on."""
        await self._idle.wait()

    def _plan(self, key: Key, due: float) -> None:
        if self._closed or key in self._since:
            return
        if key in self._busy:
            wanted = self._busy[key]
            self._busy[key] = due if wanted is None else min(wanted, due)
            return
        due = max(due, self._cooling.get(key, due))
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
            del self._timers[key]
        loop = asyncio.get_running_loop()
        if due <= loop.time():
            self._make_ready(key)
        else:
            self._timers[key] = loop.call_at(due, self._fire, key)

    def _fire(self, key: Key) -> None:
        del self._timers[key]
        self._make_ready(key)

    def _make_ready(self, key: Key) -> None:
        self._since[key] = asyncio.get_running_loop().time()
        self._ready.put_nowait(key)

    def _cool(self, key: Key, now: float) -> None:
        self._cooling.pop(key, None)
        while self._cooling and self._cooling[oldest := next(iter(self._cooling))] <= now:
            del self._cooling[oldest]
        self._cooling[key] = now + self._floor
