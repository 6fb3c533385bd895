"""One number from many sessions, always lower is better, always on the log scale when it is compared.

A session's samples are so correlated that they count as about one; so samples are first reduced to one number per session,
and sessions to their median, which one slow spell cannot move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.child import ShapeCase
from tuner_job.api.measurement import Session, Timing
from tuner_job.measure.samples import Floats, unpack

Metric = Literal["LatencyP50", "LatencyP99", "LatencyMean", "Throughput"]

P99_SAMPLES = 2_000
"""Fewest samples for a 99th percentile.

The distribution-free 95 % interval for the p-quantile of n samples lies between the order statistics of rank
n p ± 1.96 sqrt(n p (1-p)) (David & Nagaraja, Order Statistics, 3rd ed., §7.1). It stays within P98.5 and P99.5 from n = 1,522;
2,000 leaves 20 samples beyond the percentile. Recorded P99s of 60 samples repeated only to 12–16 %.
"""


class TooFewSamples(InputError):
    reason = "TooFewSamples"


class NoUsableSession(TrtfleetError):
    """The device was throttled whenever it was timed. Nothing is wrong with the candidate: try again later or elsewhere."""

    reason = "Throttled"


def usable(sessions: Sequence[Session]) -> list[Session]:
    """The sessions that a decision may use; raises NoUsableSession if there are none."""
    kept = [one for one in sessions if not one.throttled]
    if not kept:
        raise NoUsableSession(f"timing: all {len(sessions)} sessions were throttled; let the device cool, or use another")
    return kept


def session_seconds(one: Session, metric: Metric) -> float:
    """A session's own number in seconds: its median, or for LatencyMean and Throughput its mean (P99 is never per session)."""
    return one.median if metric == "LatencyP50" else one.mean


def percentile99(samples: Floats, where: str = "timing", throttled: int = 0) -> float:
    """99th percentile in seconds of samples of shape (count,); raises TooFewSamples below P99_SAMPLES.

    `throttled` samples were taken beside them and cannot be used: if they are what is missing, it raises NoUsableSession, since
    the settings are not at fault.
    """
    if samples.size < P99_SAMPLES <= samples.size + throttled:
        raise NoUsableSession(
            f"{where}: LatencyP99 needs {P99_SAMPLES} samples, but {throttled} beside the {samples.size} good ones were "
            f"throttled; let the device cool and time again"
        )
    if samples.size < P99_SAMPLES:
        raise TooFewSamples(
            f"{where}: LatencyP99 needs {P99_SAMPLES} samples that were not throttled, got {samples.size}; "
            f"raise measurement.sessions, sessionMilliseconds or sessionSamples, or use LatencyP50"
        )
    return float(np.percentile(samples, 99))


def latency(timing: Timing, metric: Metric) -> float:
    """Seconds per inference of one engine; throughput is the number of streams over it.

    LatencyP50 is the median of session medians; LatencyMean and Throughput the median of session means; LatencyP99 the 99th
    percentile of all samples. Raises NoUsableSession, TooFewSamples.
    """
    sessions = usable(timing.sessions)
    if metric == "LatencyP99":
        throttled = sum(one.count for one in timing.sessions if one.throttled)
        return percentile99(np.concatenate([unpack(one.samples) for one in sessions]), throttled=throttled)
    return float(np.median([session_seconds(one, metric) for one in sessions]))


def case_weights(cases: Sequence[ShapeCase]) -> Floats:
    """Weights of the shape cases, scaled to a sum of 1; raises InputError for a negative weight or no positive one."""
    weights = np.array([one.weight for one in cases], dtype=np.float64)
    for position, one in enumerate(cases):
        if not one.weight >= 0 or math.isinf(one.weight):
            raise InputError(f"model.shapes[{position}].weight ({one.name}): {one.weight} is not a weight; use a number ≥ 0")
    if not weights.sum() > 0:
        raise InputError("model.shapes: all weights are 0; give at least one shape case a positive weight")
    return np.asarray(weights / weights.sum())


def objective(timings: Sequence[Timing], cases: Sequence[ShapeCase], metric: Metric) -> float:
    """Weighted mean over shape cases of log seconds: a difference of two is the log of a weighted geometric mean of ratios.

    A geometric mean, so that 1 % counts the same in a short case as in a long one. `timings` follow the order of `cases`.
    Raises NoUsableSession, TooFewSamples, InputError.
    """
    weights = case_weights(cases)
    return float(sum(w * math.log(latency(one, metric)) for w, one in zip(weights, timings, strict=True) if w > 0))


def gain(log_ratio: float, metric: Metric) -> float:
    """Relative gain from log(seconds / baseline seconds): less latency as a share of the baseline's, or more throughput."""
    return math.expm1(-log_ratio) if metric == "Throughput" else -math.expm1(log_ratio)


def margin(min_improvement: float, metric: Metric) -> float:
    """The log ratio whose gain is `min_improvement` (≤ 0); raises InputError where no such ratio exists."""
    if not 0 <= min_improvement < (math.inf if metric == "Throughput" else 1):
        raise InputError(f"objective.minImprovement: {min_improvement} is out of range; use a share such as 0.01 for 1 %")
    return -math.log1p(min_improvement) if metric == "Throughput" else math.log1p(-min_improvement)
