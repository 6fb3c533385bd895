"""The noise of a build's timing, resampled from recordings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench import aa
from tuner_job.api.child import MeasureSettings
from tuner_job.measure.variance import median_variance

Floats = npt.NDArray[np.float64]

SESSIONS = MeasureSettings().sessions
"""Of one explored build."""
PILOT_BUILDS = 4
"""Default builds that discover makes before the first trial."""
_DIGITS = 5


@dataclass(frozen=True)
class Timed:
    """One build's sessions, as log distances from its route's truth; the build's own luck is in all of them."""

    medians: Floats
    means: Floats


@dataclass(frozen=True)
class Noise:
    """Builds are independent normal draws; sessions are a stretch of a recording from a random place on."""

    name: str
    build_sd: float
    medians: tuple[float, ...]
    """Log distance of each recorded session's median from its own build, in the order of time."""
    means: tuple[float, ...]
    """The same of session means, which trtexec's rule compares."""
    sessions: int = SESSIONS
    """Sessions of one timing."""

    def timed(self, rng: np.random.Generator) -> Timed:
        """A build of any route."""
        luck = rng.normal(0, self.build_sd)
        places = (rng.integers(len(self.medians)) + np.arange(self.sessions)) % len(self.medians)
        places = places[:: rng.choice([-1, 1])]
        return Timed(luck + np.asarray(self.medians)[places], luck + np.asarray(self.means)[places])

    @property
    def session_sd(self) -> float:
        return float(np.std(self.medians))

    @property
    def told_sd(self) -> float:
        """Standard error of a log ratio as the campaign states it: build, sessions, and the same of the pilot's mean."""
        own = self.build_sd**2 + median_variance(self.session_sd, self.sessions)
        return math.sqrt(own * (1 + 1 / PILOT_BUILDS))

    def to_document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "build_sd": self.build_sd,
            "session_sd": self.session_sd,
            "sessions": self.sessions,
            "medians": list(self.medians),
            "means": list(self.means),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Noise:
        return make(document["name"], document["build_sd"], document["medians"], document["means"], document["sessions"])


def make(name: str, build_sd: float, medians: Any, means: Any, sessions: int = SESSIONS) -> Noise:
    """From any two series of numbers of one length. Raises ValueError for series that are no such thing."""
    first, second = (np.asarray(series, dtype=np.float64).round(_DIGITS) for series in (medians, means))
    if first.ndim != 1 or first.shape != second.shape or not first.size or not np.isfinite([*first, *second, build_sd]).all():
        raise ValueError("noise: medians and means must be two series of as many finite numbers")
    return Noise(name, round(float(build_sd), _DIGITS), tuple(first.tolist()), tuple(second.tolist()), int(sessions))


@cache
def recorded(path: Path = aa.RECORDED) -> dict[str, Noise]:
    """`graph` and `host` of a recording in the form of bench/data/noise-encoder-h200.json.gz."""
    graph, host, *_ = aa.recorded(path)
    return {
        key: make(f"{one.name}, {path.name}", one.build_sd, one.medians, one.means)
        for key, one in (("graph", graph), ("host", host))
    }
