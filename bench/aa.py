"""A/A finals: how often the final crowns a winner when candidate and baseline are the same thing.

    python -m bench.aa simulate [--finals 200] [--pilot discovery.json]

writes bench/results/aa-simulated.{json,md}. Noise comes from recordings (bench/data), or from the pilot of a local run. A
simulated final is planned from its own simulated pilot, sampled, and decided by the very code that decides real ones.

    python -m bench.aa real [--job examples/silero-vad.yaml] [--device GPU] [--budget-seconds 600]

runs (or goes on with) the real series that docs/statistics.md preregisters: bench.real.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench import real
from bench.series import Floats, Summary, summarise, trtexec_claim
from tuner_job.api.child import MeasureSettings
from tuner_job.api.measurement import Session
from tuner_job.api.messages import DiscoveryRecord
from tuner_job.measure.decision import Decision, decide
from tuner_job.measure.final import FinalDesign, design
from tuner_job.measure.variance import components, median_variance, session_logs

HERE = Path(__file__).parent
RECORDED = HERE / "data" / "noise-encoder-h200.json.gz"
ROUTES = 208
"""One-at-a-time over the bounded knobs of TensorRT 11.2: what trtexec's tuner would try."""
PILOT_BUILDS, PILOT_SESSIONS = 4, 10
SECOND = 0.5e-3
"""Latency that simulated logs are relative to."""


@dataclass(frozen=True)
class Noise:
    """Builds are independent draws; sessions follow a recorded series, which keeps its drift and slow spells."""

    name: str
    build_sd: float
    lottery: float
    """0, or the log slow-down that one build in four suffers (tactics that were chosen badly)."""
    candidate_spread: float
    """How many times as much the candidate's builds vary: beyond what a rank test assumes."""
    medians: Floats
    """Log distance of each recorded session from its own build, in the order of time."""
    means: Floats
    """The same for session means, which trtexec's rule compares."""
    raw_sd: float
    """Of session medians within a build."""
    pair_sd: tuple[float, float]
    """Of the difference of two equal builds over 20 interleaved sessions: as timed, and less the drift of their round."""

    def builds(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.normal(0, self.build_sd, count) + self.lottery * (rng.random(count) < 0.25)

    def sessions(self, rng: np.random.Generator, count: int, series: Floats | None = None) -> Floats:
        """A stretch of the recording from a random place on, circular, forwards or backwards."""
        series = self.medians if series is None else series
        places = (rng.integers(series.size) + np.arange(count)) % series.size
        return np.asarray(series[places[:: rng.choice([-1, 1])]])


def recorded(path: Path = RECORDED) -> list[Noise]:
    """One model per recording, and two harsher kinds of builds over the quiet one."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    host, graph = (_fit(name, np.array(document[key])) for name, key in (("host launch", "graph0"), ("CUDA graph", "graph1")))
    return [
        graph,
        host,
        replace(graph, name="CUDA graph, a build in four 3 % slower", lottery=0.03),
        replace(graph, name="CUDA graph, candidate's builds vary 3 times as much", candidate_spread=3.0),
    ]


def _fit(name: str, rows: Floats) -> Noise:
    """Build variance from drift-free build medians; everything else stays as it was recorded."""
    by_time = rows[np.argsort(rows[:, 2], kind="stable")]
    build, rounds = by_time[:, 1].astype(int), by_time[:, 0].astype(int)
    residuals = []
    for column in (3, 4):
        logs = np.log(by_time[:, column])
        centers = np.array([np.median(logs[build == b]) for b in range(build.max() + 1)])
        residuals.append(logs - centers[build])
    logs = np.log(by_time[:, 3])
    drift = np.array([np.median(residuals[0][rounds == k]) for k in range(rounds.max() + 1)])
    flat = logs - drift[rounds]
    medians = np.array([np.median(flat[build == b]) for b in range(build.max() + 1)])
    rest_sd = 1.4826 * float(np.median(np.abs(flat - medians[build])))
    build_variance = float(np.var(medians, ddof=1)) - median_variance(rest_sd, rounds.max() + 1)
    return Noise(
        name=name,
        build_sd=math.sqrt(max(0.0, build_variance)),
        lottery=0.0,
        candidate_spread=1.0,
        medians=residuals[0],
        means=residuals[1],
        raw_sd=float(np.std(residuals[0])),
        pair_sd=(_pairs(logs, build), _pairs(flat, build)),
    )


def _pairs(logs: Floats, build: npt.NDArray[np.int64], length: int = 20) -> float:
    """Spread over time of the difference of two builds' medians of 20 sessions, the builds' own difference taken out.

    NaN for a recording that is too short to tell.
    """
    series = [logs[build == b] for b in range(build.max() + 1)]
    blocks = min(one.size for one in series) // length
    if blocks < 2:
        return math.nan
    medians = np.array([np.median(one[: blocks * length].reshape(blocks, length), axis=1) for one in series])
    differences = medians[::2] - medians[1::2]
    return float(np.sqrt(np.mean(np.var(differences, axis=1, ddof=1))))


def from_pilot(path: Path) -> Noise:
    """The noise of a local run's default builds (its `discovery.json`). They were not interleaved, so drift counts as theirs."""
    record = DiscoveryRecord.parse(path.read_bytes(), str(path))
    logs = [np.array(session_logs(one.timing, record.cases, "LatencyP50")) for one in record.pilot]
    means = [np.array(session_logs(one.timing, record.cases, "LatencyMean")) for one in record.pilot]
    found = components(logs)
    return Noise(
        name="local pilot",
        build_sd=found.build_sd,
        lottery=0.0,
        candidate_spread=1.0,
        medians=np.concatenate([one - np.median(one) for one in logs]),
        means=np.concatenate([one - np.median(one) for one in means]),
        raw_sd=found.session_sd,
        pair_sd=(math.sqrt(2 * median_variance(found.session_sd, 20)), math.sqrt(2 * median_variance(found.step_sd, 20))),
    )


@dataclass(frozen=True)
class Final:
    """One simulated final and what was true in it."""

    plan: FinalDesign
    decision: Decision
    true_gain: float
    engine_gain: float
    """True gain of the published bytes over the true median of the default builds."""
    regret: float
    """True latency of the published bytes over that of the fastest build measured, less 1."""
    logs: Floats = field(compare=False)
    """Log of each session over SECOND, [build, session] in the order of time; the candidate's builds first."""


def simulate(noise: Noise, true_gain: float, min_improvement: float, seed: int, size: tuple[int, int] | None = None) -> Final:
    """Pilot → plan → sessions in random interleaved order → decision.

    `size`: builds of the candidate and sessions per build, whatever the plan says.
    """
    rng = np.random.default_rng(seed)
    pilot = noise.builds(rng, PILOT_BUILDS)[:, None] + noise.sessions(rng, PILOT_BUILDS * PILOT_SESSIONS).reshape(
        PILOT_BUILDS, -1
    )
    plan = design(components(list(pilot)), MeasureSettings(), min_improvement)
    if size is not None:
        plan = replace(plan, repeats=size[0], baseline_repeats=2 * size[0], sessions=size[1])
    count = plan.repeats + plan.baseline_repeats
    effects = noise.builds(rng, count)
    effects[: plan.repeats] = effects[: plan.repeats] * noise.candidate_spread + math.log1p(-true_gain)
    order = np.array([rng.permutation(count) for _ in range(plan.sessions)])
    disturbance = noise.sessions(rng, order.size).reshape(order.shape)
    names = [f"candidate-{k}" for k in range(plan.repeats)] + [f"baseline-{k}" for k in range(plan.baseline_repeats)]
    builds: dict[str, list[Session]] = {name: [] for name in names}
    logs = np.empty((count, plan.sessions))
    for turn, row in enumerate(order):
        for place, which in enumerate(row):
            logs[which, turn] = effects[which] + disturbance[turn, place]
            value = SECOND * math.exp(logs[which, turn])
            builds[names[which]].append(Session(at=float(turn * count + place), median=value, mean=value, count=1, samples=""))
    decision = decide(
        {name: [sessions] for name, sessions in builds.items()},
        names[: plan.repeats],
        names[plan.repeats :],
        weights=[1.0],
        metric="LatencyP50",
        min_improvement=min_improvement,
        seed=seed,
    )
    published = effects[names.index(decision.published)]
    return Final(
        plan=plan,
        decision=decision,
        true_gain=true_gain,
        engine_gain=-math.expm1(published - np.median(effects[plan.repeats :])),
        regret=math.expm1(published - effects.min()),
        logs=logs,
    )


def trtexec_series(noise: Noise, seed: int, routes: int = ROUTES) -> float:
    """What it claims for the best of `routes` routes that are all equal."""
    rng = np.random.default_rng(seed)
    return trtexec_claim(np.exp(noise.builds(rng, routes + 1) + noise.sessions(rng, routes + 1, noise.means)))


MARGINS = (0.01, 0.0)
GAINS = (0.01, 0.02, 0.03, 0.05)


@dataclass(frozen=True)
class Cell:
    """Finals of one noise, margin and true gain."""

    noise: str
    min_improvement: float
    true_gain: float
    proven: int
    route_covered: float
    """Share of finals whose interval for the route holds the true gain (nominal 95 %)."""
    engine_covered: float
    """Share whose interval for the published bytes holds their true gain."""
    repeats: float
    """Median of the planned builds of the candidate."""
    sessions: float
    summary: Summary


def cell(noise: Noise, min_improvement: float, true_gain: float, finals: int, trtexec: Sequence[float]) -> Cell:
    series = [simulate(noise, true_gain, min_improvement, seed + round(true_gain * 1e6)) for seed in range(finals)]
    summary = summarise([one.decision for one in series], trtexec)
    route = [one.decision.route_gain for one in series]
    engine = [one.decision.engine_gain for one in series]
    return Cell(
        noise=noise.name,
        min_improvement=min_improvement,
        true_gain=true_gain,
        proven=summary.false_winners,
        route_covered=_share(i is not None and i.low <= s.true_gain <= i.high for i, s in zip(route, series, strict=True)),
        engine_covered=_share(i.low <= s.engine_gain <= i.high for i, s in zip(engine, series, strict=True)),
        repeats=float(np.median([one.plan.repeats for one in series])),
        sessions=float(np.median([one.plan.sessions for one in series])),
        summary=summary,
    )


def _share(which: Iterable[bool]) -> float:
    return float(np.mean(list(which)))


def run(finals: int, noises: Sequence[Noise]) -> list[Cell]:
    cells = []
    for noise in noises:
        trtexec = [trtexec_series(noise, seed) for seed in range(finals)]
        cells += [cell(noise, margin, 0.0, finals, trtexec) for margin in MARGINS]
        cells += [cell(noise, MARGINS[0], gain, finals, trtexec) for gain in GAINS]
        print(f"{noise.name}: done", file=sys.stderr)
    return cells


def markdown(finals: int, noises: Sequence[Noise], cells: Sequence[Cell]) -> str:
    lines = [
        "# Simulated A/A finals",
        "",
        f"`python -m bench.aa simulate --finals {finals}`. Every final is planned from its own simulated pilot and",
        "decided by the code that decides real ones. What the models and columns mean: docs/statistics.md.",
        "",
        "| noise | sd of builds | sd of sessions | sd of the difference of two equal builds, 20 sessions | drift removed |",
        "|---|---|---|---|---|",
        *(f"| {n.name} | {n.build_sd:.2%} | {n.raw_sd:.2%} | {n.pair_sd[0]:.2%} | {n.pair_sd[1]:.2%} |" for n in noises),
        "",
        f"## False winners among {finals} finals of equal routes",
        "",
        "| noise | margin | false winners | true rate at most (95 %) | route interval covers | bytes interval covers "
        f"| trtexec's rule over {ROUTES} equal routes: series with a winner (median claim) |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in cells:
        if one.true_gain == 0:
            claimed, claim = one.summary.claimed_by_trtexec or 0.0, one.summary.median_trtexec_claim or 0.0
            lines.append(
                f"| {one.noise} | {one.min_improvement:.0%} | **{one.proven}** | {one.summary.upper_bound:.1%} "
                f"| {one.route_covered:.1%} | {one.engine_covered:.1%} | {claimed:.1%} ({claim:.1%}) |"
            )
    lines += [
        "",
        f"## Power: share proven at a margin of {MARGINS[0]:.0%}",
        "",
        "| noise | planned builds + default builds × sessions (medians) | " + " | ".join(f"true {g:.0%}" for g in GAINS) + " |",
        "|---|---|" + "---|" * len(GAINS),
    ]
    for noise in noises:
        row = [one for one in cells if one.noise == noise.name and one.true_gain > 0]
        plan = f"{row[0].repeats:.0f} + {2 * row[0].repeats:.0f} × {row[0].sessions:.0f}"
        lines.append(f"| {noise.name} | {plan} | " + " | ".join(f"{one.proven / finals:.1%}" for one in row) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    simulated = modes.add_parser("simulate", help="simulated finals on recorded noise")
    simulated.add_argument("--finals", type=int, default=200)
    simulated.add_argument("--pilot", type=Path, help="discovery.json of a local run: adds its noise to the recorded ones")
    simulated.add_argument("--output", type=Path, default=HERE / "results")
    real.add_arguments(modes.add_parser("real", help="the preregistered series of real finals", description=real.__doc__))
    options = parser.parse_args(arguments)
    if options.mode == "real":
        real.main(options)
        return

    noises = recorded() + ([from_pilot(options.pilot)] if options.pilot else [])
    cells = run(options.finals, noises)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "aa-simulated.json").write_text(
        json.dumps({"finals": options.finals, "routes": ROUTES, "cells": [asdict(one) for one in cells]}, indent=1) + "\n"
    )
    text = markdown(options.finals, noises, cells)
    (options.output / "aa-simulated.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
