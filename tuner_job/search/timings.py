"""Timings of all trials as the search weighs them: which are of one engine, and what error all of them have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner_job.search.noise import Array
from tuner_job.search.rounds import Observation
from tuner_job.search.sparse import Shared

_SHARED = 0.2
"""Share of a variance that is the baseline's, which all ratios are over: the pilot times it four times as often as a trial is.

Workers that time their own baseline again and again know it better; then less of it is found.
"""


@dataclass(frozen=True)
class Timings:
    """Of n timed trials."""

    y: Array
    """(n,) log ratios."""
    v: Array
    """(n,) variances of their own errors."""
    shared: Shared
    """The baseline's error, which is in all of them but the baseline's own."""
    engines: list[int | None]
    """Per timing: the first row of the same engine; None for the baseline's."""


def timings(observations: Sequence[Observation]) -> Timings:
    """Equal fingerprints are one engine. What the baseline's engine is timed at in a trial is nothing but error."""
    y = np.array([o.log_ratio for o in observations], dtype=np.float64)
    v = np.array([o.variance for o in observations], dtype=np.float64)
    rows = np.array([not o.candidate.is_baseline for o in observations], dtype=np.float64)
    default = {o.fingerprint for o in observations if o.candidate.is_baseline} - {""}
    variance = _SHARED * float(np.median(v[rows > 0])) if rows.any() else 0.0
    v -= _SHARED * v * rows
    engines: list[int | None] = []
    first: dict[str, int] = {}
    for row, o in enumerate(observations):
        same = first.setdefault(o.fingerprint, row) if o.fingerprint else row
        engines.append(None if o.fingerprint in default or o.candidate.is_baseline else same)
    return Timings(y, v, Shared(rows, variance), engines)
