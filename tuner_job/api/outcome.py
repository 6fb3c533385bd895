"""The nine ways in which a trial can end."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """How a trial ended. Only INFRASTRUCTURE is ever tried again."""

    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"  # finite outputs, but a loss at or over the screening threshold
    REFUSED = "refused"  # the builder said no
    UNSUPPORTED = "unsupported"  # a knob or value that the device's knob list does not have
    CRASHED = "crashed"
    HUNG = "hung"
    OUT_OF_MEMORY = "outOfMemory"
    INVALID_OUTPUT = "invalidOutput"  # NaN or Inf where the reference is finite, wrong shape, dtype or coverage
    INFRASTRUCTURE = "infrastructure"


FAILED = frozenset(
    {Outcome.REFUSED, Outcome.CRASHED, Outcome.HUNG, Outcome.OUT_OF_MEMORY, Outcome.INVALID_OUTPUT, Outcome.INFRASTRUCTURE}
)
"""Outcomes that status counts as `failed` (feasible, infeasible and unsupported are counted apart)."""
