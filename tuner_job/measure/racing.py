"""Racing: the timing of an explored trial ends early when chance can hardly make it as fast as the default any more.

After 1, 2, 4, 8, … of its sessions a trial's log seconds so far are compared with a bound (`over`). The bounds come from timings
of the default alone, after as many sessions: the pilot's builds, and the controls that the worker has taken so far (`bounds`).
All of these are on record, so that every stop can be computed again. A bound is the end of a prediction interval: a build that
is as fast as the default, timed here, lies beyond it with a known small probability.

What is raced against is the default, not the leader. A candidate that is slower than the leader may still be what shows that one
of its flips is fast; one that is slower than the default cannot win, and how much slower it is hardly matters to anyone.

The chance that a trial which is no slower than the default is ever stopped is held to ALPHA: each look has an equal share of it
(Bonferroni), which holds however much the looks depend on one another, and they do. Quantiles are Student's, with degrees of
freedom after Satterthwaite (1946): a handful of timings says little about how far off the next one may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from tuner_job.api.child import ChildRequest, MeasureSettings, ShapeCase
from tuner_job.api.measurement import Session, Timing
from tuner_job.api.messages import DiscoveryRecord
from tuner_job.measure.controls import SMALLEST_VARIANCE
from tuner_job.measure.summary import Metric, case_weights, session_seconds

ALPHA = 0.05
"""Chance, over all looks at one trial, that its timing ends early though it is no slower than the default."""
LEAST_CONTROLS = 3
"""Of a worker, before its trials are raced."""
_P99: Metric = "LatencyP99"


def looks(sessions: int) -> tuple[int, ...]:
    """After how many of the planned sessions the bounds are asked: 1, 2, 4, … A look after the last one would save nothing.

    Neighbouring sessions share the drift of the device, so that a few more of them say little that is new, and each look costs
    a share of ALPHA.
    """
    return tuple(2**k for k in range(max(0, sessions - 1).bit_length()))


def over(request: ChildRequest, sessions: Sequence[Sequence[Session]]) -> float | None:
    """The bound of the request's race that its engine's sessions so far (per shape case) exceed: timing ends. None: it goes on.

    Nothing is exceeded where the usable sessions of each case are not just as many as one of the looks wants.
    """
    used = [[one for one in series if not one.throttled] for series in sessions]
    counts = {len(series) for series in used}
    look = next((look for look, count in enumerate(looks(request.measure.sessions)) if counts == {count}), None)
    if look is None or look >= len(request.race):
        return None
    bound = request.race[look]
    return bound if _objective(used, request.cases, request.measure.metric) > bound else None


def ends(request: ChildRequest) -> Callable[[Mapping[Any, Sequence[Session]]], bool]:
    """What `sampling.measure` asks after each round of the one engine that a request with a race has, its cases in order."""
    return lambda sessions: bool(request.race) and over(request, list(sessions.values())) is not None


def races(measure: MeasureSettings, constraints: Mapping[str, float], discovery: DiscoveryRecord) -> tuple[bool, str]:
    """Whether explored trials are raced, and why or why not, in words."""
    if not can_race(measure, constraints):
        return False, f"off: {_P99} needs the samples of all sessions"
    if not looks(measure.sessions):
        return False, "off: one session is all that is planned"
    build = [one.build_seconds for one in discovery.pilot if one.build_seconds is not None]
    timing = [one.timing_seconds for one in discovery.pilot if one.timing_seconds is not None]
    if len(discovery.pilot) < 2 or not len(build) == len(timing) == len(discovery.pilot):
        return False, "off: discover did not measure what building and timing cost"
    costs = f"building a default engine takes {np.median(build):.3g} s and timing it {np.median(timing):.3g} s"
    if np.median(timing) <= np.median(build):
        return False, f"off: {costs}"
    return True, f"on: {costs}; at most {ALPHA:.0%} of the trials that are no slower than it end early"


def can_race(measure: MeasureSettings, constraints: Mapping[str, float]) -> bool:
    """A 99th percentile, as the objective or as a bound, is refused below so many samples: it needs every session."""
    return _P99 not in (measure.metric, *constraints)


def bounds(
    controls: Sequence[Sequence[Timing]], discovery: DiscoveryRecord, measure: MeasureSettings, constraints: Mapping[str, float]
) -> tuple[float, ...]:
    """Log seconds at each look, over which the worker that took these controls (in time order) stops a trial.

    Empty: its trials are not raced. Fewer looks than planned where sessions of the default were throttled.
    """
    found: list[float] = []
    if not races(measure, constraints, discovery)[0]:
        return ()
    for count in looks(measure.sessions):
        pilot = _values([one.timing for one in discovery.pilot], count, discovery.cases, measure.metric)
        own = _values(controls, count, discovery.cases, measure.metric)
        if len(pilot) < 2 or len(own) < LEAST_CONTROLS:
            break
        found.append(_bound(own, pilot, discovery.build_sd, ALPHA / len(looks(measure.sessions))))
    return tuple(found)


def _bound(controls: Sequence[float], pilot: Sequence[float], build_sd: float, alpha: float) -> float:
    """Over this (log seconds) a build as fast as the default is timed with probability `alpha`, where `controls` were timed.

    Both engines have the luck of their builds (`build_sd`); timings vary as the controls and the pilot's builds do about their
    means, and the mean of the controls by the less the more there are. Where the latest control is slower than that mean, the
    device may have become slow, and it counts in place of the mean.
    """
    groups = [np.array(controls), np.array(pilot)]
    freedom = len(controls) + len(pilot) - 2
    pooled = max(sum(float(((one - one.mean()) ** 2).sum()) for one in groups) / freedom, SMALLEST_VARIANCE)
    timing, luck = pooled * (1 + 1 / len(controls)), 2 * build_sd**2
    satterthwaite = (timing + luck) ** 2 / (timing**2 / freedom + luck**2 / (len(pilot) - 1))
    center = max(float(np.mean(controls)), controls[-1])
    return center + quantile(alpha, max(1, int(satterthwaite))) * math.sqrt(timing + luck)


def _values(timings: Sequence[Sequence[Timing]], count: int, cases: Sequence[ShapeCase], metric: Metric) -> list[float]:
    """Log seconds over the first `count` usable sessions, of those timings (per shape case) that have so many."""
    found = []
    for timing in timings:
        first = [[one for one in case.sessions if not one.throttled][:count] for case in timing]
        if all(len(series) == count for series in first):
            found.append(_objective(first, cases, metric))
    return found


def _objective(sessions: Sequence[Sequence[Session]], cases: Sequence[ShapeCase], metric: Metric) -> float:
    """`summary.objective` of sessions that are usable."""
    medians = [math.log(float(np.median([session_seconds(one, metric) for one in series]))) for series in sessions]
    return float(np.dot(case_weights(cases), medians))


@cache
def quantile(alpha: float, freedom: int) -> float:
    """Student's t with `freedom` degrees of freedom is over this with probability `alpha` (0 < alpha < ½)."""
    low, high = 0.0, 1.0
    while _tail(high, freedom) > alpha:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _tail(middle, freedom) > alpha else (low, middle)
    return high


def _tail(t: float, freedom: int) -> float:
    """P(T > t) for t ≥ 0: the finite series of Abramowitz & Stegun, §26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cos2 = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom, 2):
        term *= cos2 * (k - 1) / k
        total += term
    between = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return (1 - between) / 2
