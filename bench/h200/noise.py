"""Records nested noise: separate builds of the default, kept side by side and timed in turn, with and without CUDA graph.

    python -m bench.h200.noise bench/h200/minilm.yaml --output noise-minilm --budget-seconds 70

The file has the form of bench/data/noise-encoder-h200.json.gz: rows `[round, build, at_s, median_us, mean_us]` of every session
under `graph0` (launched from the host) and `graph1` (CUDA graph).
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from pathlib import Path

import numpy as np

from bench.h200.lab import Lab, open_lab, phase_limits
from tuner_job.api.child import ENGINE_FILE, MeasureSettings
from tuner_job.api.measurement import BASELINE
from tuner_job.api.outcome import Outcome
from tuner_job.measure.drift import without_drift
from tuner_job.measure.variance import Components, components

BUILDS = 16
SESSION = MeasureSettings(session_seconds=0.02, session_samples=20, warmup_seconds=0.1, warmup_limit_seconds=1.0)
LEAST_SESSIONS, MOST_SESSIONS = 20, 100
SLACK = 1.5
"""A session with what comes before and after it, in times of itself."""
LOAD_SECONDS = 1.0
"""Guessed for an engine's load and warm-up, until the first mode has shown it."""


def record(job: Path, device: str, output: Path, budget: float, count: int) -> None:
    began = time.monotonic()
    ends = began + budget - 3.0
    with open_lab(job, "GPU" if device == "GPU" else "CPU") as lab:
        engines, seconds = _builds(lab, count, began + budget / 3)
        document: dict[str, object] = {
            "description": f"Default builds of {job.stem} (first variant) on {lab.device.product} under {lab.versions}: "
            f"{len(engines)} separate builds timed in random order round after round, at least {SESSION.session_samples} samples "
            f"and {SESSION.session_seconds} s a session, {lab.device.type} clock of the backend. graph0: launched from the host; "
            "graph1: CUDA graph.",
            "columns": ["round", "build", "at_s", "median_us", "mean_us"],
            "build_s": seconds,
        }
        load = LOAD_SECONDS
        for mode in ("graph1", "graph0"):
            left = (ends - time.monotonic()) / (2 if mode == "graph1" else 1)
            each = SESSION.session_seconds * SLACK
            sessions = int(np.clip((left - len(engines) * load - 2) / (len(engines) * each), LEAST_SESSIONS, MOST_SESSIONS))
            started = time.monotonic()
            measure = SESSION.model_copy(update={"sessions": sessions, "cuda_graph": mode == "graph1"})
            rows, launch, clock = timed(lab, engines, measure)
            load = max(0.1, (time.monotonic() - started - len(engines) * sessions * each) / len(engines))
            document |= {mode: rows, f"{mode}_launch": launch, f"{mode}_clock": clock}
            print(f"{job.stem} {mode} ({launch}, {clock}): {_describe(rows, len(engines))}", file=sys.stderr)
            output.parent.mkdir(parents=True, exist_ok=True)
            with gzip.open(output.with_name(f"{output.name}.json.gz"), "wt", compresslevel=9) as file:
                json.dump(document, file, separators=(",", ":"))


def _builds(lab: Lab, count: int, ends: float) -> tuple[dict[str, Path], list[float]]:
    engines: dict[str, Path] = {}
    seconds = []
    for number in range(count):
        if engines and time.monotonic() > ends:
            break
        output = lab.space.root / "noise" / str(number)
        end = lab.build(BASELINE, output, phase_limits(60.0))
        if end.outcome is not Outcome.FEASIBLE:
            raise SystemExit(f"default build {number} ended {end.outcome}: {end.reason}")
        engines[str(number)] = output / ENGINE_FILE
        seconds.append(round(end.seconds.get("build", 0.0), 3))
    return engines, seconds


def timed(lab: Lab, engines: dict[str, Path], measure: MeasureSettings) -> tuple[list[list[float]], str, str]:
    """One process that times engines (by number) in turn: rows `[round, build, at_s, median_us, mean_us]` in the order of time,
    launch mode and clock."""
    end = lab.time(engines, measure, phase_limits(300.0))
    if end.outcome is not Outcome.FEASIBLE or end.report is None:
        raise SystemExit(f"timing ended {end.outcome}: {end.reason}")
    rows = []
    for name, (timing, *_) in end.report.timings.items():
        usable = [session for session in timing.sessions if not session.throttled]
        rows += [
            [turn, int(name), round(one.at, 3), round(one.median * 1e6, 2), round(one.mean * 1e6, 2)]
            for turn, one in enumerate(usable)
        ]
    return sorted(rows, key=lambda row: row[2]), timing.launch, timing.clock


def spreads(rows: list[list[float]]) -> tuple[Components, Components]:
    """Of log medians: as timed, and less the drift that all builds share."""
    table = np.array(rows)
    of = [table[table[:, 1] == build] for build in np.unique(table[:, 1])]
    logs = [np.log(one[:, 3]) for one in of]
    return components(logs), components(without_drift([one[:, 2] for one in of], logs))


def _describe(rows: list[list[float]], builds: int) -> str:
    """Standard deviations of log medians, as a pilot's."""
    table = np.array(rows)
    raw, quiet = spreads(rows)
    return (
        f"{builds} builds x {len(rows) // builds} sessions, median {np.median(table[:, 3]):.1f} us; sd between builds "
        f"{raw.build_sd:.2%} ({quiet.build_sd:.2%} drift removed), between sessions {raw.session_sd:.2%} ({quiet.session_sd:.2%})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path)
    parser.add_argument("--device", choices=["CPU", "GPU"], default="GPU")
    parser.add_argument("--output", type=Path, required=True, help="path without suffix")
    parser.add_argument("--budget-seconds", type=float, default=70.0)
    parser.add_argument("--builds", type=int, default=BUILDS)
    options = parser.parse_args()
    record(options.job, options.device, options.output, options.budget_seconds, options.builds)


if __name__ == "__main__":
    main()
