"""Records a landscape: the full product of a job's search space, every configuration built, checked and timed.

    python -m bench.h200.landscape bench/h200/landscape-minilm.yaml --output landscape-minilm --budget-seconds 280

Configurations come in random order. Builds with their accuracy checks run first, several at a time, each in its own child. Then
engines are timed in batches, one process each and nothing else on the device: a batch holds the default engine as well, and
its sessions are interleaved. When time is short, sessions are cut before configurations. What that leaves out, `--without` the
recordings so far goes on with; bench.h200.recordings makes one of them all. The file's format: bench/h200/README.md.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bench.h200.lab import Lab, open_lab, phase_limits
from bench.h200.recordings import BASE, Document, held, read, same, summary, write
from tuner_job.accuracy.gate import judge
from tuner_job.api.base import InputError
from tuner_job.api.child import ENGINE_FILE, MeasureSettings
from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.rounds import space_of
from tuner_job.measure.samples import unpack
from tuner_job.search.space import Flip, Space
from tuner_job.trial.supervisor import Supervisor, TrialEnd

BATCH = 10
SESSIONS = 4
"""Wanted per engine; fewer when time is short."""
MEASURE = MeasureSettings(
    session_seconds=0.02, session_samples=20, sessions=SESSIONS, warmup_seconds=0.05, warmup_limit_seconds=0.5
)
SAMPLES = 30
"""Kept of a session, evenly spaced."""
BUILD_SECONDS = 20.0
"""Deadline of each phase of a build; what takes longer is recorded as hung."""
BUILD_SHARE = 0.4
"""Of the budget: whatever is not built by then is left out, and counted."""


@dataclass
class Row:
    """One configuration."""

    candidate: Candidate
    config: dict[str, str]
    outcome: str
    reason: str
    build: dict[str, float]
    at: float
    size: int = 0
    fingerprint: str = ""
    losses: dict[str, float] | None = None
    path: Path | None = None


def product(space: Space) -> list[dict[str, str]]:
    """Every combination, dimension → value; a default is left out. The first is the default itself."""
    axes = [[None, *flips] for flips in space.dimensions.values()]
    return [{flip.dimension: flip.value for flip in row if flip} for row in itertools.product(*axes)]


_lab: Lab
_supervisor: Supervisor


def _start_builder(lab: Lab, root: Path) -> None:
    global _lab, _supervisor  # a builder process has one of each
    _lab, _supervisor = lab, Supervisor(root, warm=True)


def _build(number: int, candidate: Candidate, output: Path) -> tuple[int, TrialEnd]:
    end = _lab.build(candidate, output, phase_limits(BUILD_SECONDS), _supervisor)
    return number, end


def build_all(lab: Lab, configs: Sequence[dict[str, str]], space: Space, builders: int, ends: float) -> dict[int, Row]:
    """Rows by place in `configs`; those not begun in time are missing."""
    rows: dict[int, Row] = {}
    began = time.monotonic()
    engines = lab.space.root / "engines"
    plain = replace(lab, space=replace(lab.space, supervisor=None, stop=None, on_phase=None, store=None, remote=None))  # type: ignore[arg-type]
    pool = ProcessPoolExecutor(builders, get_context("spawn"), _start_builder, (plain, lab.space.root / "builders"))
    with pool:
        waiting = {}
        for number, config in enumerate(configs):
            candidate = space.candidate(Flip(*item) for item in config.items())
            waiting[pool.submit(_build, number, candidate, engines / str(number))] = (candidate, config)
        try:
            for future in as_completed(waiting, timeout=max(1.0, ends - time.monotonic())):
                number, end = future.result()
                candidate, config = waiting[future]
                rows[number] = row_of(lab, candidate, config, end, engines / str(number) / ENGINE_FILE, time.monotonic() - began)
        except TimeoutError:
            pool.shutdown(wait=True, cancel_futures=True)
    return rows


def row_of(lab: Lab, candidate: Candidate, config: dict[str, str], end: TrialEnd, path: Path, at: float) -> Row:
    """How a build ended, its accuracy judged; `path` is where its engine would be, `at` seconds since the recording began."""
    accuracy, report = lab.inputs.accuracy, end.report
    outcome, reason = end.outcome.value, end.reason
    seconds = {name: round(value, 3) for name, value in end.seconds.items()}
    row = Row(candidate, config, outcome, reason[:300], seconds, round(at, 2))
    if report is not None and report.engine is not None:
        row.size, row.fingerprint = report.engine.size, report.engine.fingerprint[:16]
    if report is not None and report.losses is not None and report.losses.outputs:
        row.losses = {
            name: float(f"{max(getattr(output, name) for output in report.losses.outputs):.4g}")
            for name in ("l0", "l1", "l2", "l_inf", "cosine")
        }
        passed, why = judge(report.losses, accuracy.metric, accuracy.threshold)
        if end.outcome is Outcome.FEASIBLE and not passed:
            row.outcome, row.reason = Outcome.INFEASIBLE.value, why
    row.path = path if path.exists() else None
    return row


class Timing:
    """Times built engines batch by batch within a deadline."""

    def __init__(self, lab: Lab, base: Path, began: float, ends: float) -> None:
        self._lab, self._base, self._began, self._ends = lab, base, began, ends
        self._batch_seconds: list[float] = []
        self.sessions = SESSIONS
        self.batches = 0
        self.lost: list[str] = []

    def run(self, rows: Sequence[Row]) -> list[dict[str, object]]:
        """Sessions of all rows and of the default in every batch, as far as time allows."""
        found: list[dict[str, object]] = []
        queue = [list(rows[i : i + BATCH]) for i in range(0, len(rows), BATCH)]
        while queue and time.monotonic() + max(self._batch_seconds[-3:], default=0.0) < self._ends:
            batch = queue.pop(0)
            self._choose_sessions(len(queue) + 1)
            began = time.monotonic()
            timed = self._batch(batch)
            self._batch_seconds.append(time.monotonic() - began)
            if timed is None and len(batch) > 1:
                middle = len(batch) // 2
                queue[:0] = [batch[:middle], batch[middle:]]
            found += timed or []
        return found

    def _choose_sessions(self, left: int) -> None:
        """As many as fit, should a batch take what the last ones took beside the sessions."""
        if self._batch_seconds:
            of_sessions = (BATCH + 1) * (MEASURE.session_seconds + 0.005)
            fixed = max(0.0, float(np.median(self._batch_seconds[-5:])) - self.sessions * of_sessions)
            room = (self._ends - time.monotonic()) / left - fixed
            self.sessions = int(min(SESSIONS, max(1, room // of_sessions)))

    def _batch(self, batch: Sequence[Row]) -> list[dict[str, object]] | None:
        """None when its process failed: one of its engines is at fault, or time is over."""
        engines = {row.candidate.id: row.path for row in batch if row.path} | {BASE: self._base}
        at = time.monotonic() - self._began
        left = max(1.0, self._ends - time.monotonic())
        measure = MEASURE.model_copy(update={"sessions": self.sessions})
        end = self._lab.time(engines, measure, phase_limits(left), seed=self.batches)
        self.batches += 1
        if end.report is None or end.outcome is not Outcome.FEASIBLE:
            if len(batch) == 1:
                self.lost.append(f"{batch[0].candidate.route}: {end.outcome}: {end.reason[:200]}")
            return None
        for row in batch:
            if row.path:
                shutil.rmtree(row.path.parent, ignore_errors=True)
        return [
            {
                "id": name,
                "batch": self.batches - 1,
                "at": round(at, 2),
                "launch": timings[0].launch,
                "clock": timings[0].clock,
                "sessions": [[_thin(unpack(s.samples)) for s in case.sessions if not s.throttled] for case in timings],
            }
            for name, timings in end.report.timings.items()
        ]


def _thin(seconds: np.ndarray) -> list[float]:
    """Microseconds."""
    kept = seconds if seconds.size <= SAMPLES else seconds[np.linspace(0, seconds.size - 1, SAMPLES).astype(int)]
    return [round(float(value) * 1e6, 2) for value in kept]


def shuffled(space: Space, known: Collection[str]) -> list[dict[str, str]]:
    """The product less the candidates in `known`: the default first, then in the order that every recording keeps."""
    whole = product(space)
    order = [whole[i] for i in (0, *(1 + np.random.default_rng(0).permutation(len(whole) - 1)))]
    return [config for config in order if space.candidate(Flip(*item) for item in config.items()).id not in known]


def record(
    job: Path, device: str, output: Path, budget: float, builders: int, limit: int | None, without: Sequence[Path] = ()
) -> Document:
    """`without`: recordings of the same landscape; raises InputError for others."""
    earlier = {path: read(path) for path in without}
    began = time.monotonic()
    ends = began + budget - 8.0  # for leaving and writing
    with open_lab(job, "GPU" if device == "GPU" else "CPU") as lab:
        space = space_of(lab.inputs, lab.knobs)
        values = values_of(space)
        document: Document = {
            "model": job.stem,
            "device": lab.device.model_dump(),
            "versions": dict(lab.versions),
            "accuracy": lab.inputs.accuracy.model_dump(mode="json"),
            "protocol": MEASURE.model_dump() | {"batch": BATCH, "samples_kept": SAMPLES, "builders": builders},
            "knobs": values,
            "default": {dimension: listed[0] for dimension, listed in values.items()},
            "product": len(product(space)),
        }
        for path, one in earlier.items():
            same(document, one, path)
        configs = shuffled(space, {name for one in earlier.values() for name in held(one)})[:limit]
        base = lab.space.root / "default"
        end = lab.build(BASELINE, base, phase_limits(60.0))
        if end.outcome is not Outcome.FEASIBLE:
            raise SystemExit(f"the default build ended {end.outcome}: {end.reason}")
        rows = build_all(lab, configs, space, builders, began + BUILD_SHARE * budget)
        built_at = time.monotonic() - began
        timing = Timing(lab, base / ENGINE_FILE, began, ends)
        usable = [row for _, row in sorted(rows.items()) if row.path and row.candidate != BASELINE]
        timings = timing.run(usable)
        document |= {
            "built": len(rows),
            "built_seconds": round(built_at, 1),
            "seconds": round(time.monotonic() - began, 1),
            "lost": timing.lost,
            "rows": [plain(row) for _, row in sorted(rows.items())],
            "timings": timings,
        }
    write(document, output.with_name(f"{output.name}.json.gz"))
    return document


def values_of(space: Space) -> Mapping[str, list[str]]:
    """Dimension → values, the default first."""
    defaults = {choice.knob.name: choice.knob.default for choice in space.choices}
    return {
        dimension: [defaults.get(dimension, space.base if dimension == "variant" else ""), *(flip.value for flip in flips)]
        for dimension, flips in space.dimensions.items()
    }


def plain(row: Row) -> dict[str, object]:
    """As a recording holds it."""
    return {
        "id": row.candidate.id,
        "config": row.config,
        "route": row.candidate.route,
        "variant": row.candidate.variant,
        "outcome": row.outcome,
        "reason": row.reason,
        "build_s": row.build.get("build"),
        "seconds": row.build,
        "at": row.at,
        "size": row.size,
        "fingerprint": row.fingerprint,
        "losses": row.losses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path)
    parser.add_argument("--device", choices=["CPU", "GPU"], default="GPU")
    parser.add_argument("--output", type=Path, required=True, help="path without suffix")
    parser.add_argument("--budget-seconds", type=float, default=280.0)
    parser.add_argument("--builders", type=int, default=6, help="children that build at the same time")
    parser.add_argument("--limit", type=int, help="so many configurations, for a rehearsal")
    parser.add_argument("--without", type=Path, nargs="*", default=[], help="recordings whose configurations are left out")
    options = parser.parse_args()
    try:
        document = record(
            options.job, options.device, options.output, options.budget_seconds, options.builders, options.limit, options.without
        )
    except InputError as error:
        raise SystemExit(f"landscape: {error}") from None
    print(summary(document), file=sys.stderr)


if __name__ == "__main__":
    main()
