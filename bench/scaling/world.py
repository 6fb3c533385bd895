"""Virtual time: threads of which one runs at a time, a clock that jumps, and workers that spend time and may be killed."""

from __future__ import annotations

import heapq
import math
import threading
from collections import Counter
from collections.abc import Callable

import numpy as np

from tuner_job.store.beats import BEAT_SECONDS, Heart


class Killed(BaseException):
    """SIGKILL: nothing above it gets a word in."""


class World:
    """Threads of which one runs at a time, and a clock that jumps to whoever wakes first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, threading.Semaphore]] = []
        self._count = 0
        self._turn = threading.Semaphore(0)
        self._failure: BaseException | None = None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """In a thread of this world."""
        wake = threading.Semaphore(0)
        self._push(seconds, wake)
        self._turn.release()
        wake.acquire()

    def start(self, work: Callable[[], None], after: float = 0.0) -> None:
        """A thread that begins its work so many seconds from now."""
        wake = threading.Semaphore(0)

        def body() -> None:
            wake.acquire()
            try:
                work()
            except BaseException as error:  # told to whoever runs the world
                self._failure = error
            self._turn.release()

        threading.Thread(target=body, daemon=True).start()
        self._push(after, wake)

    def run(self) -> None:
        """Until nobody sleeps. Raises what a thread raised."""
        while self._sleepers and self._failure is None:
            self.now, _, wake = heapq.heappop(self._sleepers)
            wake.release()
            self._turn.acquire()
        if self._failure is not None:
            raise self._failure

    def _push(self, seconds: float, wake: threading.Semaphore) -> None:
        self._count += 1
        heapq.heappush(self._sleepers, (self.now + seconds, self._count, wake))


class Body:
    """What a worker process is to the world: it spends time, beats meanwhile, and may be killed."""

    def __init__(self, world: World, heart: Heart, kill_at: float, kill_share: float, rng: np.random.Generator) -> None:
        self.spent: Counter[str] = Counter()
        self.waits: list[tuple[float, float]] = []
        """From when until when it had nothing to do."""
        self.last_trial = 0.0
        """When its last one began."""
        self._world = world
        self._heart = heart
        self._kill_at = kill_at
        self._kill_share = kill_share
        """Of its trials, each at a random moment."""
        self._rng = rng
        self._beat_at = -math.inf

    def spend(self, seconds: float, kind: str) -> None:
        world = self._world
        began, end = world.now, world.now + seconds
        killed_at = self._kill_at
        if kind == "trials" and self._rng.random() < self._kill_share:
            killed_at = min(killed_at, began + float(self._rng.random()) * seconds)
        if kind in ("trials", "controls"):  # the trial in hand has changed
            self._beat()
        if kind == "trials":
            self.last_trial = began
        while world.now < end:
            world.sleep(max(0.0, min(end, killed_at, self._beat_at + BEAT_SECONDS) - world.now))
            if world.now >= killed_at:
                self.spent["lost" if kind in ("trials", "controls") else kind] += world.now - began
                raise Killed
            if world.now >= self._beat_at + BEAT_SECONDS:
                self._beat()
        self.spent[kind] += seconds
        if kind == "waiting":
            self.waits.append((began, end))

    def _beat(self) -> None:
        self._heart.beat()
        self._beat_at = self._world.now
