"""Timings of all trials as the search weighs them: pooled by engine, with what is common to all of them told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner_job.search.rounds import SMALLEST_SD, Observation
from tuner_job.search.sparse import Array, Shared

_SHARED = 0.2
"""Share of a variance that is the baseline's, which all ratios are over: the pilot times it four times as often as a trial is.

Workers that time their own baseline again and again know it better; then less of it is found.
"""

_FARTHEST = 3.0
"""Standard deviations; what is off by more was disturbed, and may move all others no farther."""


@dataclass(frozen=True)
class Timings:
    """Of n timed trials."""

    y: Array
    """(n,) log ratios."""
    v: Array
    """(n,) variances of their own errors."""
    shared: Shared
    """The baseline's error, which is in all of them but those whose truth is known."""


def pooled(observations: Sequence[Observation]) -> Timings:
    """Timings of one engine (equal fingerprints) share their mean; that of the baseline's engine is 0.

    So what a trial's engine was timed at that is the baseline's tells of the error in the baseline.
    """
    y = np.array([o.log_ratio for o in observations], dtype=np.float64)
    v = np.array([o.variance for o in observations], dtype=np.float64)
    rows = np.array([not o.candidate.is_baseline for o in observations], dtype=np.float64)
    default = {o.fingerprint for o in observations if o.candidate.is_baseline} - {""}
    again = np.array([o.fingerprint in default for o in observations], dtype=bool)
    variance = _SHARED * float(np.median(v[rows > 0])) if rows.any() else 0.0
    v -= _SHARED * v * rows
    if (told := again & (rows > 0)).any():  # what the default's engine was timed at is nothing but error
        weight = float((1 / v[told]).sum())
        usual = _FARTHEST * np.sqrt(v[told] + variance)
        y -= rows * float((np.clip(y[told], -usual, usual) / v[told]).sum()) / (weight + 1 / variance)
        variance = 1 / (weight + 1 / variance)
    y[again], v[again], rows[again] = 0.0, SMALLEST_SD**2, 0.0
    same: dict[str, list[int]] = {}
    for row, o in enumerate(observations):
        if o.fingerprint and not again[row]:
            same.setdefault(o.fingerprint, []).append(row)
    for mine in same.values():  # all of them together weigh what their timings do
        weight = float((1 / v[mine]).sum())
        y[mine], v[mine] = float((y[mine] / v[mine]).sum()) / weight, len(mine) / weight
    return Timings(y, v, Shared(rows, variance))
