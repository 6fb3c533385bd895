"""What a drill is: one function that breaks something at one moment and checks what is left. Its docstring is its row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.faults.world import World

Notes = list[str]
"""What was seen, in a few words each."""


@dataclass(frozen=True)
class Drill:
    name: str
    fault: str
    when: str
    expected: str
    play: Callable[[World], Notes]
    alone: bool
    """Whether it breaks what other drills rely on, so that none may run beside it."""


DRILLS: dict[str, Drill] = {}


def drill(*, alone: bool) -> Callable[[Callable[[World], Notes]], Callable[[World], Notes]]:
    """Registers a function. Its docstring reads `fault | when | expected end`."""

    def register(play: Callable[[World], Notes]) -> Callable[[World], Notes]:
        assert play.__doc__ is not None
        fault, when, expected = (" ".join(part.split()) for part in play.__doc__.split("|"))
        name = play.__name__.replace("_", "-")
        DRILLS[name] = Drill(name, fault, when, expected, play, alone)
        return play

    return register


def require(holds: bool, otherwise: str) -> None:
    """Raises AssertionError: the drill did not meet the moment that it is about, or saw what it must not see."""
    if not holds:
        raise AssertionError(otherwise)
