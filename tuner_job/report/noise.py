"""How much the same thing differs when it is measured again: the pilot, the workers' controls, the final's builds.

All values are relative differences of seconds (0.01: 1 % slower) from the median default build.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner_job.api.measurement import Session, Timing
from tuner_job.api.messages import DiscoveryRecord, ResultRecord, VerdictRecord
from tuner_job.measure.drift import without_drift
from tuner_job.measure.samples import Floats
from tuner_job.measure.summary import Metric, NoUsableSession, case_weights, objective, session_seconds
from tuner_job.measure.variance import session_logs


@dataclass(frozen=True)
class Build:
    """Sessions of one build, in time order."""

    name: str
    sessions: tuple[float, ...]

    @property
    def is_candidate(self) -> bool:
        return self.name.startswith("candidate-")

    @property
    def median(self) -> float:
        return float(np.median(self.sessions))


@dataclass(frozen=True)
class Worker:
    """Controls of one worker: its own default engine, timed again and again."""

    name: str
    after: tuple[int, ...]
    """How many trials of the whole run had finished at each control."""
    values: tuple[float, ...]


@dataclass(frozen=True)
class Noise:
    build_sd: float
    session_sd: float
    """Standard deviations of log seconds, from the pilot."""
    pilot: tuple[Build, ...]
    workers: tuple[Worker, ...]
    final: tuple[Build, ...]
    """Less the drift that all builds share, as the decision saw them."""
    sessions: int
    throttled: int
    """Of all sessions on record."""
    unsettled: int
    """Engines whose warm-up windows still disagreed when the limit came."""


def noise_of(discovery: DiscoveryRecord, results: Sequence[ResultRecord], verdict: VerdictRecord | None, metric: Metric) -> Noise:
    """`results` in the order in which they finished."""
    pilot = {f"pilot {number}": _session_logs(build.timing, discovery, metric) for number, build in enumerate(discovery.pilot, 1)}
    center = _center(pilot.values())
    timings = [timing for build in discovery.pilot for timing in build.timing]
    timings += [t for result in results for t in (*result.timing, *(t for c in result.controls for t in c.timing))]
    sessions = [session for timing in timings for session in timing.sessions]
    sessions += [s for build in (verdict.builds if verdict else ()) for case in build.sessions for s in case]
    return Noise(
        build_sd=discovery.build_sd,
        session_sd=discovery.session_sd,
        pilot=tuple(Build(name, _relative(logs, center)) for name, logs in pilot.items() if logs),
        workers=_workers(results, discovery, metric, center),
        final=_final(verdict, discovery, metric) if verdict else (),
        sessions=len(sessions),
        throttled=sum(session.throttled for session in sessions),
        unsettled=sum(not timing.warmup_settled for timing in timings),
    )


def _session_logs(timing: Sequence[Timing], discovery: DiscoveryRecord, metric: Metric) -> list[float]:
    try:
        return session_logs(timing, discovery.cases, metric)
    except NoUsableSession:
        return []


def _center(groups: Iterable[Sequence[float] | Floats]) -> float:
    medians = [float(np.median(logs)) for logs in groups if len(logs)]
    return float(np.median(medians)) if medians else 0.0


def _relative(logs: Iterable[float], center: float) -> tuple[float, ...]:
    return tuple(math.expm1(float(value) - center) for value in logs)


def _workers(results: Sequence[ResultRecord], discovery: DiscoveryRecord, metric: Metric, center: float) -> tuple[Worker, ...]:
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for number, result in enumerate(results, start=1):
        if result.cached:
            continue
        for control in result.controls:
            try:
                # P99 needs more samples than a control has; the sessions' means stand in, as in the pilot.
                stand_in: Metric = "LatencyMean" if metric == "LatencyP99" else metric
                value = objective(control.timing, discovery.cases, stand_in)
            except NoUsableSession:
                continue
            found.setdefault((result.worker, result.worker_id), []).append((number, value - center))
    return tuple(
        Worker(f"worker {name}", tuple(n for n, _ in points), tuple(math.expm1(value) for _, value in points))
        for (name, _), points in sorted(found.items())
    )


def _final(verdict: VerdictRecord, discovery: DiscoveryRecord, metric: Metric) -> tuple[Build, ...]:
    """Builds in the order of their medians, fastest first."""
    weights = case_weights(discovery.cases)
    names = [build.name for build in verdict.builds]
    totals: dict[str, Floats] = {}
    for case, weight in enumerate(weights):
        kept: list[list[Session]] = [[s for s in build.sessions[case] if not s.throttled] for build in verdict.builds]
        if not names or not all(kept):
            return ()
        at = [np.array([session.at for session in series]) for series in kept]
        logs = [np.log([session_seconds(session, metric) for session in series]) for series in kept]
        for name, adjusted in zip(names, without_drift(at, logs), strict=True):
            before = totals.get(name, np.zeros(adjusted.size))
            size = min(before.size, adjusted.size)
            totals[name] = before[:size] + weight * adjusted[:size]
    center = _center([totals[name] for name in names if not name.startswith("candidate-")])
    ordered = sorted(names, key=lambda name: float(np.median(totals[name])))
    return tuple(Build(name, _relative(totals[name], center)) for name in ordered)
