"""Bounds that a winner must keep beside being faster (objective.constraints)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tuner_job.api.child import ShapeCase
from tuner_job.api.measurement import Session, Timing
from tuner_job.api.messages import ResultRecord
from tuner_job.measure.samples import unpack
from tuner_job.measure.summary import percentile99, session_seconds, usable

ENGINE_SIZE = "EngineSize"
THROUGHPUT = "Throughput"
P99 = "LatencyP99"


def broken(
    limits: Mapping[str, float], sessions: Sequence[Sequence[Session]], *, size: int, streams: int, throttled_samples: int = 0
) -> str:
    """The first bound that an engine breaks, in words; "" if it keeps them all. Exactly at a limit is kept.

    `limits`: seconds (latencies), bytes (EngineSize), inferences a second over all `streams` (Throughput). `sessions`: those to
    judge by, per shape case; a bound holds for every case by itself. `throttled_samples` as in `percentile99`.
    Raises NoUsableSession, TooFewSamples (LatencyP99).
    """
    for metric, limit in sorted(limits.items()):
        if metric == ENGINE_SIZE:
            if size > limit:
                return f"EngineSize {size} bytes is over {limit:.15g}"
            continue
        for number, series in enumerate(sessions):
            value = _value(metric, usable(series), streams, throttled_samples)
            where = f"{metric} {value:.6g} in shape case {number + 1} is"
            if metric == THROUGHPUT and value < limit:
                return f"{where} under {limit:g} inferences a second"
            if metric != THROUGHPUT and value > limit:
                return f"{where} over {limit:g} seconds"
    return ""


def broken_by(result: ResultRecord, limits: Mapping[str, float], cases: Sequence[ShapeCase]) -> str:
    """`broken` for an explored engine. Raises as it."""
    if not limits or not result.timing or len(result.timing) != len(cases):
        return ""
    return broken(
        limits,
        [one.sessions for one in result.timing],
        size=result.engine.size if result.engine else 0,
        streams=result.timing[0].streams,
        throttled_samples=_throttled(result.timing),
    )


def _value(metric: str, sessions: Sequence[Session], streams: int, throttled_samples: int) -> float:
    if metric == P99:
        return percentile99(np.concatenate([unpack(one.samples) for one in sessions]), throttled=throttled_samples)
    seconds = float(
        np.median([session_seconds(one, "LatencyP50" if metric == "LatencyP50" else "LatencyMean") for one in sessions])
    )
    return streams / seconds if metric == THROUGHPUT else seconds


def _throttled(timings: Sequence[Timing]) -> int:
    return sum(one.count for timing in timings for one in timing.sessions if one.throttled)
