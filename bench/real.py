"""The preregistered series of real A/A finals (docs/statistics.md, §6).

Every final is the campaign's own `Final`, whose candidate happens to be the baseline: fresh builds in child processes, accuracy
checked, timed in turn by two processes, decided. After each one the series is written to <output>.json.gz whole, so that it
can be stopped at any time and goes on where it was; <output>.md is its summary, computed from the stored sessions alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
from pydantic import Field

from bench.series import stopping, summarise, trtexec_claim
from tuner_job.api.base import InputError, Model, TrtfleetError
from tuner_job.api.child import MeasureSettings
from tuner_job.api.effective import inputs_digest
from tuner_job.api.inputs import RunInputs
from tuner_job.api.measurement import BASELINE, Device, Digest
from tuner_job.api.messages import DiscoveryRecord, FinalBuild, PilotBuild, PlanRecord, RunRecord, VerdictRecord
from tuner_job.campaign.discover import discover
from tuner_job.campaign.final import Final
from tuner_job.campaign.rounds import Fold
from tuner_job.campaign.worker import limits
from tuner_job.campaign.workspace import Workspace
from tuner_job.cli.jobfile import JobFile
from tuner_job.measure.decision import Decision, decide, recompute
from tuner_job.measure.drift import without_drift
from tuner_job.measure.samples import Floats
from tuner_job.measure.variance import Components, components
from tuner_job.store.models import RemoteModels
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import timestamp
from tuner_job.trial.supervisor import Supervisor

RESULTS = Path(__file__).parent / "results"
EXAMPLE = Path(__file__).parents[1] / "examples" / "silero-vad.yaml"
MEASURE = MeasureSettings(session_seconds=0.025, session_samples=10, warmup_seconds=0.1, warmup_limit_seconds=1.0)
"""Short, as preregistered: harder than real finals, whose sessions last 0.1 s."""
MIN_IMPROVEMENT = 0.01
MOST_FINALS = 93
STORE = "memory://aa"


class Sitting(Model):
    """One start of the command: where, and in which state the machine was."""

    started_at: str
    load_average: tuple[float, float, float]
    """Before anything ran: over 1, 5 and 15 minutes."""
    governor: str
    """Of CPU 0's clock; empty where the kernel does not say."""
    cores: int
    processor: Device
    """The CPU, whatever is timed."""
    device: Device
    versions: dict[str, str]
    pilot: tuple[PilotBuild, ...]
    """Default builds of discover, without samples. They plan nothing here: the design is preregistered."""


class RealFinal(Model):
    """One final, whole: its decision can be recomputed."""

    seed: int
    load_average: float
    """Over the minute before it."""
    steal_seconds: float
    """CPU seconds that the host of a virtual machine took away meanwhile."""
    verdict: VerdictRecord


class Lost(Model):
    """A final that did not finish and was repeated with its seed."""

    seed: int
    reason: str


class Series(Model):
    """All there is of a series."""

    job: str
    inputs: RunInputs
    identity: Digest
    """Digest over inputs, model, references, device and library versions: a series on which these change is none."""
    sittings: tuple[Sitting, ...] = ()
    finals: tuple[RealFinal, ...] = ()
    lost: tuple[Lost, ...] = ()
    open_seed: int | None = Field(default=None)
    """Of the final that was under way when this was written."""

    @property
    def false_winners(self) -> int:
        return sum(one.verdict.significant for one in self.finals)

    @property
    def state(self) -> str:
        return stopping(len(self.finals), self.false_winners)

    @staticmethod
    def read(path: Path) -> Series | None:
        return Series.model_validate_json(gzip.decompress(path.read_bytes())) if path.exists() else None

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.part")
        aside.write_bytes(gzip.compress(self.to_json(), mtime=0))
        aside.replace(path)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", type=Path, default=EXAMPLE, help="job file that names model, shapes and accuracy")
    parser.add_argument("--device", choices=["CPU", "GPU"], default="CPU")
    parser.add_argument("--finals", type=int, default=MOST_FINALS, help="stop after so many, if the stopping rule has not yet")
    parser.add_argument("--budget-seconds", type=float, default=math.inf, help="start no final that would end later than this")
    parser.add_argument("--output", type=Path, help="path without suffix [bench/results/aa-real-<job>-<device>]")


def main(options: argparse.Namespace) -> None:
    output: Path = options.output or RESULTS / f"aa-real-{options.job.stem}-{options.device.lower()}"
    path = output.with_name(f"{output.name}.json.gz")
    series = Series.read(path)
    if series is None or (series.state == "continue" and len(series.finals) < options.finals):
        series = run(
            options.job, options.device, series, path, finals=options.finals, ends=time.monotonic() + options.budget_seconds
        )
    text = markdown(series, options)
    output.with_name(f"{output.name}.md").write_text(text)
    print(text)


def run(job: Path, device: Literal["CPU", "GPU"], series: Series | None, path: Path, *, finals: int, ends: float) -> Series:
    """Run finals until the stopping rule, `finals` of them or the time `ends` (monotonic) ends the series; it is in `path` then.

    Raises InputError where something differs from what the series began with, and the third failure of one final.
    """
    load = os.getloadavg()
    inputs = aa_inputs(job, device)
    with tempfile.TemporaryDirectory(prefix="bench-aa-") as scratch:
        root = Path(scratch)
        space = Workspace(
            store=ObjectStore.open(STORE),
            remote=RemoteModels(STORE, {}),
            run=_run_record(job, inputs, seed=0),
            root=root / "work",
            supervisor=Supervisor(root / "trials", warm=True),
            limits=limits(inputs),
            stop=threading.Event(),
            on_phase=lambda _: None,
        )
        space.root.mkdir()
        try:
            discovery = discover(space)
            series = series or Series(job=job.stem, inputs=inputs, identity=discovery.identity)
            if series.identity != discovery.identity:
                raise InputError(f"{path}: was begun on another device, library, model or job; name another --output")
            if series.open_seed is not None:
                series = _lose(series, series.open_seed, "the command was ended")
            series = series.model_copy(update={"sittings": (*series.sittings, _sitting(space, discovery, load))})
            longest = 0.0
            while series.state == "continue" and len(series.finals) < finals and time.monotonic() + longest < ends:
                began = time.monotonic()
                series = _next(series, space, discovery, path)
                longest = max(longest, time.monotonic() - began)
            series.write(path)
            return series
        finally:
            space.close()


def aa_inputs(job: Path, device: Literal["CPU", "GPU"]) -> RunInputs:
    """The job's model, shapes and accuracy under the preregistered measurement."""
    file = JobFile.load(job)
    inputs = file.inputs(file.target(None))
    return inputs.model_copy(
        update={
            "device_type": device,
            "measure": MEASURE.model_copy(update={"allow_shared": inputs.measure.allow_shared}),
            "min_improvement": MIN_IMPROVEMENT,
            # With a budget the final keeps to its least size: 5 + 10 builds, 12 sessions each.
            "search": inputs.search.model_copy(update={"device_seconds": 3600.0, "trial_seconds": 900.0}),
        }
    )


def _next(series: Series, space: Workspace, discovery: DiscoveryRecord, path: Path) -> Series:
    seed = len(series.finals) + 1
    series.model_copy(update={"open_seed": seed}).write(path)
    load, steal = os.getloadavg()[0], _steal()
    space.run = _run_record(Path(series.job), series.inputs, seed)
    plan = PlanRecord(run=space.run.run, round=1, stage="final", pick=BASELINE, reason="A/A")
    final = Final(space, discovery, Fold(space.run, discovery, (), (), {}), plan, lambda _: None)
    try:
        verdict = final.verdict()
    except TrtfleetError as error:
        series = _lose(series, seed, f"{error.reason}: {error}")
        if sum(one.seed == seed for one in series.lost) > 2:
            series.write(path)
            raise
        return series
    finally:
        final.close()
    done = RealFinal(seed=seed, load_average=load, steal_seconds=_steal() - steal, verdict=verdict)
    print(f"final {seed}: {verdict.reason}, p = {verdict.p_value}, {verdict.seconds:.1f} s", file=sys.stderr, flush=True)
    series = series.model_copy(update={"finals": (*series.finals, done)})
    series.write(path)
    return series


def _lose(series: Series, seed: int, reason: str) -> Series:
    return series.model_copy(update={"lost": (*series.lost, Lost(seed=seed, reason=reason)), "open_seed": None})


def _run_record(job: Path, inputs: RunInputs, seed: int) -> RunRecord:
    owner = {"namespace": "bench", "name": job.stem}
    digest = inputs_digest(inputs)
    return RunRecord.model_validate(
        {
            "run": "0" * 20,
            "owner": owner,
            "target": "aa",
            "inputs": inputs,
            "inputs_digest": digest,
            "seed": seed,
            "created_at": timestamp(),
        }
    )


def _sitting(space: Workspace, discovery: DiscoveryRecord, load: tuple[float, float, float]) -> Sitting:
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    cpu = space.supervisor.run(space.request("describe", None).model_copy(update={"device": "CPU"}), space.limits).report
    assert cpu is not None
    assert cpu.device is not None
    pilot = tuple(
        build.model_copy(
            update={
                "timing": tuple(
                    timing.model_copy(update={"sessions": tuple(s.model_copy(update={"samples": ""}) for s in timing.sessions)})
                    for timing in build.timing
                )
            }
        )
        for build in discovery.pilot
    )
    return Sitting(
        started_at=timestamp(),
        load_average=load,
        governor=governor.read_text().strip() if governor.exists() else "",
        cores=psutil.cpu_count() or 0,
        processor=cpu.device,
        device=discovery.device,
        versions=discovery.versions,
        pilot=pilot,
    )


def _steal() -> float:
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


@dataclass(frozen=True)
class Evaluation:
    """What one final says, computed from its sessions."""

    decision: Decision
    at_zero: Decision
    """The same with `minImprovement` 0."""
    trtexec: float
    """Gain that trtexec's rule claims on the first session of every build (0: none)."""
    as_timed: Components
    without_drift: Components
    pair_sds: tuple[float, float]
    """Standard deviation of the difference of two equal builds' medians: as timed, and without drift."""
    engines: int
    """Different fingerprints among its builds."""


def evaluate(final: RealFinal) -> Evaluation:
    """Raises InputError if the stored decision is not what its sessions say."""
    verdict = final.verdict
    decision = recompute(verdict)
    if (decision.significant, decision.p_value) != (verdict.significant, verdict.p_value):
        raise InputError(f"final {final.seed}: its sessions give another decision than the one stored")
    method = verdict.method
    weights = np.array(json.loads(method["weights"]))
    by_name = {build.name: build for build in verdict.builds}
    at_zero = decide(
        {name: build.sessions for name, build in by_name.items()},
        json.loads(method["candidates"]),
        baselines := json.loads(method["baselines"]),
        weights=list(weights),
        metric="LatencyP50",
        min_improvement=0.0,
        seed=final.seed,
    )
    first = [baselines[0], *(name for name in by_name if name != baselines[0])]
    means = [
        math.exp(np.dot(weights, [math.log(case[0].mean) for case in by_name[name].sessions]) / weights.sum()) for name in first
    ]
    at = [np.array([s.at for s in build.sessions[0]]) for build in verdict.builds]
    logs = [_logs(build, weights) for build in verdict.builds]
    flat = without_drift(at, logs)
    return Evaluation(
        decision=decision,
        at_zero=at_zero,
        trtexec=trtexec_claim(means),
        as_timed=components(logs),
        without_drift=components(flat),
        pair_sds=(_pair_sd(logs), _pair_sd(flat)),
        engines=len({build.engine.fingerprint for build in verdict.builds}),
    )


def _logs(build: FinalBuild, weights: Floats) -> Floats:
    """Log seconds of each session, weighted over shape cases (which have equally many unless one was throttled)."""
    rows = zip(*([math.log(s.median) for s in case] for case in build.sessions), strict=True)
    return np.array([np.dot(weights, row) / weights.sum() for row in rows])


def markdown(series: Series, options: argparse.Namespace) -> str:
    found = [evaluate(one) for one in series.finals]
    summary = summarise([one.decision for one in found], [one.trtexec for one in found])
    zero = sum(one.at_zero.significant for one in found)
    intervals = [one.decision.route_gain for one in found if one.decision.route_gain is not None]
    last = series.sittings[-1]
    command = f"python -m bench.aa real --job {os.path.relpath(options.job)} --device {options.device}"
    verdicts = {
        "passed": "**passed**: H₀ (a rate of at least 5 %) is rejected",
        "failed": "**failed**: H₀ (a rate of at least 5 %) is not rejected",
        "continue": "**not complete**: it proves nothing yet; the numbers are exploratory",
    }
    versions = ", ".join(f"{name} {version}" for name, version in last.versions.items())
    latencies = [one.verdict.baseline_seconds for one in series.finals]
    lines = [
        f"# Real A/A finals: {series.job} on {last.device.product}",
        "",
        f"`{command}`. Protocol and words: docs/statistics.md, §6.",
        "Every session is in the `.json.gz` beside this page; all numbers are computed from them.",
        "",
        f"- The series is {verdicts[series.state]}.",
        f"- **False winners: {summary.false_winners} of {summary.finals}** at `minImprovement` {MIN_IMPROVEMENT:.0%} "
        f"(true rate at most {summary.upper_bound:.1%}, one-sided 95 %).",
        f"- At `minImprovement` 0: {zero} of {summary.finals} (2.5 % expected).",
        f"- trtexec's rule on the first session of every build of these finals: winners in {_share(summary.claimed_by_trtexec)}, "
        f"median claim {_share(summary.median_trtexec_claim)}.",
        f"- Interval of the route's gain: median width {summary.median_interval_width:.2%}; holds 0 in "
        f"{sum(i.low <= 0 <= i.high for i in intervals)} of {len(intervals)}.",
        f"- Not finished and repeated: {len(series.lost)}" + "".join(f"; final {o.seed}: {o.reason}" for o in series.lost) + ".",
        "- Noise, standard deviations of log latency, drift removed: builds "
        f"{_pooled([e.without_drift.build_sd for e in found]):.2%}, sessions of a build "
        f"{_pooled([e.without_drift.session_sd for e in found]):.2%} "
        f"({_pooled([e.as_timed.session_sd for e in found]):.2%} as timed); difference of two equal builds' medians "
        f"{_pooled([e.pair_sds[1] for e in found]):.2%} ({_pooled([e.pair_sds[0] for e in found]):.2%} as timed).",
        f"- Different engines (fingerprints) among a final's builds: {max((e.engines for e in found), default=0)} at most.",
        f"- Median final: {_median([f.verdict.seconds for f in series.finals]):.1f} s. Median latency: "
        f"{_median(latencies) * 1e6:.1f} µs ({_median(latencies[:5]) * 1e6:.1f} in the first five finals, "
        f"{_median(latencies[-5:]) * 1e6:.1f} in the last).",
        f"- {versions}; {last.processor.product}, {last.cores} cores; {last.device.type} {last.device.product}, "
        f"driver or kernel {last.device.driver}.",
        "",
        "| sitting | load before it (1, 5, 15 min) | governor |",
        "|---|---|---|",
        *(
            f"| {s.started_at} | {', '.join(f'{x:.2f}' for x in s.load_average)} | {s.governor or 'not readable'} |"
            for s in series.sittings
        ),
        "",
        "| final | p | gain of the route, 95 % interval | winner | winner at 0 | trtexec's claim | load | stolen CPU s | s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for final, one in zip(series.finals, found, strict=True):
        gain = one.decision.route_gain
        lines.append(
            f"| {final.seed} | {'–' if one.decision.p_value is None else f'{one.decision.p_value:.4f}'} "
            f"| {'–' if gain is None else f'{gain.estimate:+.2%} [{gain.low:+.2%}, {gain.high:+.2%}]'} "
            f"| {'**yes**' if one.decision.significant else 'no'} | {'yes' if one.at_zero.significant else 'no'} "
            f"| {f'{one.trtexec:.2%}' if one.trtexec else 'none'} | {final.load_average:.2f} | {final.steal_seconds:.2f} "
            f"| {final.verdict.seconds:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _pair_sd(logs: Sequence[Floats]) -> float:
    return math.sqrt(2 * float(np.var([np.median(one) for one in logs], ddof=1)))


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def _pooled(sds: Sequence[float]) -> float:
    return math.sqrt(float(np.mean(np.square(sds)))) if sds else 0.0


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else 0.0
