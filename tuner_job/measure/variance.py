"""How much builds differ, and sessions of one build: what the final is planned from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner_job.api.child import ShapeCase
from tuner_job.api.measurement import Session, Timing
from tuner_job.api.messages import DiscoveryRecord
from tuner_job.measure.samples import Floats, unpack
from tuner_job.measure.summary import Metric, case_weights, session_seconds, usable

NORMAL_MAD = 1.4826
"""Median absolute deviation → standard deviation, for normal noise."""
MEDIAN_COST = math.pi / 2
"""Variance of a median over that of a mean, for normal noise."""


@dataclass(frozen=True)
class Components:
    """Standard deviations of log seconds."""

    build_sd: float
    """Between builds of one candidate."""
    session_sd: float
    """Between sessions of one build, drift of the device included: what separates trials that ran at different times."""
    step_sd: float
    """Between sessions of one build less slow drift: what is left between engines that are timed in turn."""


def components(builds: Sequence[Sequence[float] | Floats]) -> Components:
    """Nested variance components of log session seconds, `builds[b][s]` in time order.

    One-way random effects by the method of moments (Searle, Casella & McCulloch, Variance Components, §3.6), with robust
    parts, since one slow spell must not plan a final: `session_sd` from the median absolute difference of all pairs of sessions
    within a build, `step_sd` from that of neighbours (von Neumann's successive differences), `build_sd` from the variance of
    build medians less the share of the sessions, never below 0. With one build nothing is known of builds, and `session_sd`
    stands in. Raises ValueError for a build without sessions.
    """
    series = [np.asarray(one, dtype=np.float64) for one in builds]
    if not series or any(one.size == 0 for one in series):
        raise ValueError("components: every build needs a session")
    pairs = np.concatenate([_differences(one) for one in series])
    steps = np.concatenate([np.diff(one) for one in series])
    session_sd = _spread(pairs)
    step_sd = min(_spread(steps), session_sd)
    if len(series) == 1:
        return Components(build_sd=session_sd, session_sd=session_sd, step_sd=step_sd)
    medians = np.array([np.median(one) for one in series])
    from_sessions = float(np.mean([median_variance(session_sd, one.size) for one in series]))
    return Components(
        build_sd=math.sqrt(max(0.0, float(np.var(medians, ddof=1)) - from_sessions)), session_sd=session_sd, step_sd=step_sd
    )


def median_variance(sd: float, count: int) -> float:
    """Variance of the median of `count` independent normal values (that of the mean for one or two)."""
    return sd * sd / count * (MEDIAN_COST if count > 2 else 1.0)


def session_logs(timings: Sequence[Timing], cases: Sequence[ShapeCase], metric: Metric) -> list[float]:
    """Objective of each session of one build: the weighted log seconds of the k-th usable session of every case.

    For LatencyP99 it is the percentile of the session's own samples: too few to say what it is, enough to see how it varies,
    which is more than medians do. Raises NoUsableSession, InputError.
    """

    def seconds(one: Session) -> float:
        return float(np.percentile(unpack(one.samples), 99)) if metric == "LatencyP99" else session_seconds(one, metric)

    weights = case_weights(cases)
    per_case = [[math.log(seconds(one)) for one in usable(timing.sessions)] for timing in timings]
    return [float(np.dot(weights, logs)) for logs in zip(*per_case, strict=False)]


def pilot_components(discovery: DiscoveryRecord, metric: Metric) -> Components:
    """Components of the default builds of discover."""
    return components([session_logs(one.timing, discovery.cases, metric) for one in discovery.pilot])


def effective_samples(timing: Timing) -> float:
    """How many independent samples the usable sessions are worth: n / (1 + (m - 1) ρ) for n samples, m per session.

    ρ is the intra-session correlation of log seconds by one-way analysis of variance; the divisor is the design effect of
    cluster samples (Kish, Survey Sampling, §5.4). With a single session ρ is unknown and taken as 1.
    """
    sessions = [np.log(unpack(one.samples)) for one in usable(timing.sessions)]
    total = sum(one.size for one in sessions)
    k = len(sessions)
    if k < 2:
        return 1.0
    if total == k:
        return float(k)
    per_session = (total - sum(one.size**2 for one in sessions) / total) / (k - 1)
    grand = float(np.mean(np.concatenate(sessions)))
    between = sum(one.size * (float(np.mean(one)) - grand) ** 2 for one in sessions) / (k - 1)
    within = sum(float(np.sum((one - np.mean(one)) ** 2)) for one in sessions) / (total - k)
    spread = between + (per_session - 1) * within
    rho = min(1.0, max(0.0, (between - within) / spread)) if spread > 0 else 0.0
    return total / (1 + (total / k - 1) * rho)


def _differences(values: Floats) -> Floats:
    first, second = np.triu_indices(values.size, 1)
    return np.asarray(values[first] - values[second], dtype=np.float64)


def _spread(differences: Floats) -> float:
    """Standard deviation of one value, from differences of two."""
    return NORMAL_MAD / math.sqrt(2) * float(np.median(np.abs(differences))) if differences.size else 0.0
