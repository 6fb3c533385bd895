"""The verdict of the final: is the route faster (claim 1), and which bytes are published with which speed-up (claim 2).

Claim 1 is about the *route*: would fresh builds of it be faster than fresh default builds by more than `minImprovement`?
Builds are the replicates; an exact one-sided rank-sum test decides. Claim 2 is about the *published bytes*: one of the builds
measured, chosen on the first half of the sessions and described on the second, so that no number flatters what it chose.
docs/statistics.md explains both. Everything is a function of the arguments; names of builds and their order do not matter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from tuner_job.api.base import InputError
from tuner_job.api.measurement import Session
from tuner_job.api.messages import Interval, VerdictRecord
from tuner_job.measure.constraints import ENGINE_SIZE, P99, broken
from tuner_job.measure.drift import without_drift
from tuner_job.measure.final import ALPHA
from tuner_job.measure.host import EndToEnd, end_to_end
from tuner_job.measure.ranks import rank_sum_p, shift_interval, smallest_p
from tuner_job.measure.samples import Floats, pack, unpack
from tuner_job.measure.summary import Metric, NoUsableSession, gain, margin, percentile99, session_seconds

Sessions = Sequence[Sequence[Session]]
"""Sessions of one build, per shape case, in time order; `at` on one clock for all builds."""
Samples = Mapping[str, Sequence[Sequence[Sequence[float]]]]
"""Build name → case → session → seconds: the samples blob of a verdict."""

Indices = npt.NDArray[np.int64]

FEWEST_SESSIONS = 4
"""Per build and shape case: two to choose by and two to describe with."""
BOOTSTRAPS = 1_000
METHOD = "rank-sum-1"
"""Names this computation in records; another number means other results from the same sessions."""


@dataclass(frozen=True)
class Decision:
    """What the final found."""

    significant: bool
    """Claim 1 holds, the bytes keep every constraint, and the host's clock does not object: published is a candidate's build."""
    p_value: float | None
    """One-sided, against a gain of `minImprovement`; None when there was no candidate."""
    route_gain: Interval | None
    """Claim 1: Hodges–Lehmann estimate and the gains that the test does not reject. Its low end exceeds `minImprovement`
    exactly when the test rejects (ties apart). None when there was no candidate."""
    broken: str
    """The constraint that kept a proven candidate from winning; "" if none did."""
    end_to_end: EndToEnd | None
    """By the host's clock. None where that is not known beside the device's, or there was no candidate."""
    host_slower: bool
    """It kept a proven candidate from winning."""
    published: str
    """Name of the build whose bytes are to be published."""
    engine_gain: Interval
    """Claim 2: those bytes against the median default build, on the half that did not choose; bootstrap over sessions."""
    engine_percentile: float
    """Share of the (other) default builds that are slower than those bytes on that half; equals count half."""
    latency_seconds: float
    """Of those bytes on that half, drift removed (weighted geometric mean over shape cases). For Throughput, streams over it."""
    baseline_seconds: float
    """Of the median default build on that half."""
    message: str
    """One line for people."""
    method: dict[str, str]
    """All arguments but the sessions: enough for `recompute`."""


def decide(
    builds: Mapping[str, Sessions],
    candidates: Sequence[str],
    baselines: Sequence[str],
    *,
    weights: Sequence[float],
    metric: Metric,
    min_improvement: float,
    seed: int,
    alpha: float = ALPHA,
    constraints: Mapping[str, float] = MappingProxyType({}),
    sizes: Mapping[str, int] = MappingProxyType({}),
    streams: int = 1,
) -> Decision:
    """Decide the final from the sessions of all builds that passed their accuracy check.

    `candidates` and `baselines` name builds; without candidates there is no claim 1 and a default build is published.
    `weights`: one per shape case, any positive scale (ShapeCase.weight). `seed` ≥ 0 fixes the bootstrap.
    `alpha` is one-sided; intervals have confidence 1 - 2 alpha. For LatencyP99 sessions carry their samples.
    `constraints` (objective.constraints): a candidate's bytes that break one are not published. They are chosen as always, among
    the builds that are small enough, and judged by the half that did not choose. `sizes`: bytes of each engine.
    Raises InputError (names, weights, `min_improvement`, TooFewSamples), NoUsableSession (fewer than four sessions of some build
    that were not throttled: time again).
    """
    names = [*candidates, *baselines]
    if not baselines or len(set(names)) != len(names) or not set(names) <= set(builds):
        raise InputError(
            "final: candidates and baselines must be different builds that were timed, at least one default build among them"
        )
    shares = np.asarray(weights, dtype=np.float64)
    if shares.size == 0 or not np.all(shares >= 0) or not 0 < shares.sum() < math.inf:
        raise InputError(f"final: {list(weights)} are not weights of shape cases; use numbers ≥ 0, at least one of them positive")
    shares = shares / shares.sum()
    threshold = margin(min_improvement, metric)
    timed = _prepare({name: builds[name] for name in names}, shares.size, metric)

    p_value: float | None = None
    route_gain: Interval | None = None
    if candidates:
        whole = {name: _value(timed[name], shares, lambda _: slice(None)) for name in names}
        first, second = (np.array([whole[name] for name in group]) for group in (candidates, baselines))
        p_value = rank_sum_p(first - threshold, second)
        shift = shift_interval(first, second, alpha)
        route_gain = Interval(
            estimate=gain(shift.estimate, metric),
            low=gain(shift.high, metric),
            high=gain(shift.low, metric),
            confidence=shift.confidence,
        )

    def fastest(group: Sequence[str]) -> str:
        return min(group, key=lambda name: (_value(timed[name], shares, _choosing), name))

    published, why = fastest(baselines), ""
    host = end_to_end(builds, candidates, baselines, shares, min_improvement)
    proven = p_value is not None and p_value <= alpha
    host_slower = proven and host is not None and host.slower
    significant = proven and not host_slower
    if significant:
        small = [name for name in candidates if sizes.get(name, 0) <= constraints.get(ENGINE_SIZE, math.inf)]
        best = fastest(small or candidates)
        why = _broken(builds[best], constraints, sizes.get(best, 0), streams)
        significant = not why
        published = best if significant else published
    defaults = np.array([_value(timed[name], shares, _describing) for name in baselines])
    own = _value(timed[published], shares, _describing)
    others = np.array([value for name, value in zip(baselines, defaults, strict=True) if name != published])
    median_default = float(np.median(defaults))
    repeated = np.median([_resampled(timed[name], shares, seed) for name in baselines], axis=0)
    ratios = _resampled(timed[published], shares, seed) - repeated
    low, high = np.quantile(ratios, [alpha, 1 - alpha])
    engine_gain = Interval(
        estimate=gain(own - median_default, metric), low=gain(high, metric), high=gain(low, metric), confidence=1 - 2 * alpha
    )
    return Decision(
        significant=significant,
        p_value=p_value,
        route_gain=route_gain,
        published=published,
        engine_gain=engine_gain,
        engine_percentile=float(np.mean((others > own) + 0.5 * (others == own))) if others.size else 0.5,
        latency_seconds=math.exp(own),
        baseline_seconds=math.exp(median_default),
        broken=why,
        end_to_end=host,
        host_slower=host_slower,
        message=_message(p_value, route_gain, len(candidates), len(baselines), min_improvement, alpha)
        + (f"; but a constraint is broken: {why}" if why else "")
        + (_end_to_end_message(host) if host and host_slower else ""),
        method={
            "method": METHOD,
            "metric": metric,
            "minImprovement": repr(min_improvement),
            "alpha": repr(alpha),
            "seed": str(seed),
            "weights": json.dumps([float(one) for one in weights]),
            "candidates": json.dumps(list(candidates)),
            "baselines": json.dumps(list(baselines)),
            "constraints": json.dumps(dict(constraints), sort_keys=True),
            "streams": str(streams),
        },
    )


def recompute(verdict: VerdictRecord, samples: Samples | None = None) -> Decision:
    """The decision again, from the record alone; for LatencyP99 also the samples blob.

    Raises InputError if the record was made by another method, or lacks what is needed.
    """
    method = verdict.method
    if method.get("method") != METHOD:
        raise InputError(f"verdict.method: {method.get('method')!r} is not {METHOD!r}; use the version of trtfleet that wrote it")
    metric: Metric = method["metric"]  # type: ignore[assignment]  # written by decide
    constraints: dict[str, float] = json.loads(method.get("constraints", "{}"))
    if P99 in (metric, *constraints) and samples is None:
        raise InputError("verdict: LatencyP99 is computed from every sample; pass the samples blob")
    builds: dict[str, Sessions] = {one.name: one.sessions for one in verdict.builds}
    if samples is not None:
        builds = {
            name: [
                [s.model_copy(update={"samples": pack(np.asarray(row))}) for s, row in zip(case, rows, strict=True)]
                for case, rows in zip(sessions, samples[name], strict=True)
            ]
            for name, sessions in builds.items()
        }
    return decide(
        builds,
        json.loads(method["candidates"]),
        json.loads(method["baselines"]),
        weights=json.loads(method["weights"]),
        metric=metric,
        min_improvement=float(method["minImprovement"]),
        seed=int(method["seed"]),
        alpha=float(method["alpha"]),
        constraints=constraints,
        sizes={one.name: one.engine.size for one in verdict.builds},
        streams=int(method.get("streams", "1")),
    )


@dataclass(frozen=True)
class _Case:
    """One build under one shape case."""

    logs: Floats
    """Log seconds per session, drift removed."""
    samples: tuple[Floats, ...]
    """Seconds per session; only for LatencyP99, whose tail the drift of medians does not describe."""
    throttled: int
    """Samples that could not be used."""
    name: str

    def value(self, sessions: slice) -> float:
        """Log seconds of the build over some of its sessions."""
        if self.samples:
            return math.log(percentile99(np.concatenate(self.samples[sessions]), self.name, self.throttled))
        return float(np.median(self.logs[sessions]))

    def resampled(self, draws: Indices) -> Floats:
        """`value` of every row of session indices, shape (draws, sessions) → (draws,)."""
        if self.samples:
            return np.log([np.percentile(np.concatenate([self.samples[k] for k in row]), 99) for row in draws])
        return np.asarray(np.median(self.logs[draws], axis=1))


def _choosing(count: int) -> slice:
    """The first half of a build's sessions in time. A final that times in two processes thus describes bytes as another process
    loaded them than the one that chose them, and cannot publish a lucky memory layout."""
    return slice(0, count // 2)


def _describing(count: int) -> slice:
    return slice(count // 2, count)


@lru_cache(maxsize=16)
def _draws(seed: int, count: int) -> Indices:
    """Resampled describing halves, shape (BOOTSTRAPS, sessions); the same for all builds with as many sessions: resampled rounds.

    One session short, which makes up for the narrowness of the bootstrap in small samples (Rao & Wu 1988).
    """
    describing = np.arange(count)[_describing(count)]
    rng = np.random.default_rng([seed, count])
    return np.asarray(describing[rng.integers(0, describing.size, size=(BOOTSTRAPS, describing.size - 1))])


def _prepare(builds: Mapping[str, Sessions], cases: int, metric: Metric) -> dict[str, list[_Case]]:
    """Usable sessions of every build, case by case, less the drift."""
    prepared: dict[str, list[_Case]] = {name: [] for name in builds}
    for case in range(cases):
        kept: dict[str, list[Session]] = {}
        for name, sessions in builds.items():
            if len(sessions) != cases:
                raise InputError(f"final: build {name} was timed under {len(sessions)} shape cases, the objective has {cases}")
            kept[name] = [one for one in sessions[case] if not one.throttled]
            if len(kept[name]) < FEWEST_SESSIONS:
                raise NoUsableSession(
                    f"final: {len(kept[name])} of {len(sessions[case])} sessions of build {name} were not throttled; "
                    f"it takes {FEWEST_SESSIONS}; let the device cool and time again"
                )
        at = [np.array([one.at for one in series]) for series in kept.values()]
        logs = [np.log([session_seconds(one, metric) for one in series]) for series in kept.values()]
        for (name, series), adjusted in zip(kept.items(), without_drift(at, logs), strict=True):
            samples = tuple(unpack(one.samples) for one in series) if metric == "LatencyP99" else ()
            throttled = sum(one.count for one in builds[name][case] if one.throttled)
            prepared[name].append(_Case(adjusted, samples, throttled, f"final: build {name}"))
    return prepared


def _broken(sessions: Sessions, constraints: Mapping[str, float], size: int, streams: int) -> str:
    if not constraints:
        return ""
    kept = [[one for one in series if not one.throttled] for series in sessions]
    throttled = sum(one.count for series in sessions for one in series if one.throttled)
    halves = [series[_describing(len(series))] for series in kept]
    return broken(constraints, halves, size=size, streams=streams, throttled_samples=throttled)


def _value(cases: Sequence[_Case], shares: Floats, choose: Callable[[int], slice]) -> float:
    return float(sum(share * one.value(choose(one.logs.size)) for share, one in zip(shares, cases, strict=True)))


def _resampled(cases: Sequence[_Case], shares: Floats, seed: int) -> Floats:
    parts = [share * one.resampled(_draws(seed, one.logs.size)) for share, one in zip(shares, cases, strict=True)]
    return np.asarray(np.sum(parts, axis=0))


def _end_to_end_message(host: EndToEnd) -> str:
    found = f"{host.gain.estimate:+.2%} ({host.gain.low:+.2%} to {host.gain.high:+.2%})"
    return f"; but end to end, by the host's clock, its gain is {found}, so it is slower for whoever calls it"


def _message(
    p: float | None, route: Interval | None, candidates: int, baselines: int, min_improvement: float, alpha: float
) -> str:
    if p is None or route is None:
        return "no candidate to test; a default build is published"
    found = (
        f"gain of the route {route.estimate:+.2%} ({route.low:+.2%} to {route.high:+.2%}), "
        f"{candidates} against {baselines} builds, p = {p:.2g} for more than {min_improvement:.2%}"
    )
    if p <= alpha:
        return found
    if smallest_p(candidates, baselines) > alpha:
        return f"{found}: not proven, and so few builds cannot prove anything"
    return f"{found}: not proven"
