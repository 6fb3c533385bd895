"""What this process found out while acting and shows in the next snapshot. A restart forgets it, and finds it out again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tuning_operator.snapshot import Problem, Publication

ENTRIES = 8192
"""Of each kind: about two for each of the targets that one operator can have active."""

PAUSE_SECONDS = 30.0
PAUSE_CAP_SECONDS = 300.0
"""Between two tries of what was refused, doubling."""

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Refusal:
    """An action that was refused, for the same wish of the same job."""

    problem: Problem
    pause: float
    until: float
    """Monotonic time of the next try."""


class _Bounded(Generic[K, V]):
    """The newest entries."""

    def __init__(self) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > ENTRIES:
            self._entries.popitem(last=False)

    def drop(self, key: K) -> None:
        self._entries.pop(key, None)


class Memory:
    """Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic seconds."""
        self._clock = clock
        self._publications: _Bounded[tuple[str, str, int, str], Publication | Refusal] = _Bounded()
        self._refusals: _Bounded[tuple[str, str, int, str], Refusal] = _Bounded()

    def publication(self, uid: str, target: str, generation: int, place: str) -> Publication | Problem | None:
        """Under this generation: after any edit the pointer is looked at again, for another run or a person may have moved it."""
        found = self._publications.get((uid, target, generation, place))
        return found.problem if isinstance(found, Refusal) else found

    def rests(self, uid: str, target: str, generation: int, place: str) -> bool:
        """Whether publishing, which was refused, is not to be tried again yet."""
        found = self._publications.get((uid, target, generation, place))
        return isinstance(found, Refusal) and self._clock() < found.until

    def published(self, uid: str, target: str, generation: int, place: str, outcome: Publication | Problem) -> None:
        key = (uid, target, generation, place)
        if not isinstance(outcome, Problem):
            self._publications.put(key, outcome)
            return
        before = self._publications.get(key)
        pause = min(PAUSE_CAP_SECONDS, 2 * before.pause) if isinstance(before, Refusal) and before.pause else PAUSE_SECONDS
        pause = 0.0 if outcome.transient else pause  # decide keeps the pace of what may pass by itself
        self._publications.put(key, Refusal(outcome, pause, self._clock() + pause))

    def refusal(self, uid: str, target: str, generation: int, place: str) -> Problem | None:
        """Of this target under this generation of its job."""
        found = self._refusals.get((uid, target, generation, place))
        return None if found is None else found.problem

    def too_early(self, uid: str, target: str, generation: int, place: str) -> bool:
        """Whether what was refused is not to be tried again yet."""
        found = self._refusals.get((uid, target, generation, place))
        return found is not None and self._clock() < found.until

    def refused(self, uid: str, target: str, generation: int, place: str, problem: Problem) -> None:
        key = (uid, target, generation, place)
        before = self._refusals.get(key)
        pause = min(PAUSE_CAP_SECONDS, 2 * before.pause) if before is not None else PAUSE_SECONDS
        self._refusals.put(key, Refusal(problem, pause, self._clock() + pause))

    def accepted(self, uid: str, target: str, generation: int, place: str) -> None:
        self._refusals.drop((uid, target, generation, place))
