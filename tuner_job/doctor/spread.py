"""Default builds against default builds: how much the same thing differs here."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.measurement import Timing
from tuner_job.doctor.record import Spread
from tuner_job.measure.final import design
from tuner_job.measure.summary import objective
from tuner_job.measure.variance import components, session_logs

MIN_IMPROVEMENT = 0.01
"""What the design of a final is stated for."""


def spread_of(builds: Sequence[Sequence[Timing]], cases: Sequence[ShapeCase], settings: MeasureSettings) -> Spread:
    """`builds[b]` are the timings of one default build, one a case. Raises NoUsableSession when one was throttled throughout."""
    logs = [session_logs(timing, cases, settings.metric) for timing in builds]
    medians = [objective(timing, cases, settings.metric) for timing in builds]
    noise = components(logs)
    sessions = [session for timings in builds for timing in timings for session in timing.sessions]
    return Spread(
        builds=len(builds),
        sessions=settings.sessions,
        throttled=sum(session.throttled for session in sessions),
        power_capped=sum(session.power_capped for session in sessions),
        clock=builds[0][0].clock,
        launch=builds[0][0].launch,
        latency_seconds=math.exp(float(np.median(medians))),
        build_sd=noise.build_sd,
        session_sd=noise.session_sd,
        largest_difference=math.expm1(max(medians) - min(medians)),
        design=design(noise, settings, MIN_IMPROVEMENT).statement,
    )


def told(spread: Spread) -> str:
    """For people."""
    how = "as a CUDA graph" if spread.launch == "cudaGraph" else "launched by the host"
    return (
        f"{spread.builds} default builds differ by up to {spread.largest_difference:.1%} at "
        f"{spread.latency_seconds * 1e6:,.4g} µs ({spread.clock} clock, {how}); standard deviation between builds "
        f"{spread.build_sd:.2%}, between sessions {spread.session_sd:.2%}. A final here: {spread.design}"
    )
