"""Single departures from the baseline."""

from __future__ import annotations

from typing import NamedTuple


class Flip(NamedTuple):
    """One dimension away from its default."""

    dimension: str
    """A knob's name (with its dash), `setting:<name>`, or `variant`."""
    value: str

    def __str__(self) -> str:
        return f"{self.dimension.removeprefix('setting:')}={self.value}"


Flips = frozenset[Flip]
