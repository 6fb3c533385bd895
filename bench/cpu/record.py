"""Records a full product on this machine's CPU, batch by batch, so that it can be cut and gone on with at any time.

A pass takes every configuration once, in an order of its own. A batch of it builds a few configurations and the default afresh,
each in its own child, and then times them in turn in one process. So each configuration is built and timed once a pass, beside
different others, and its latency is only ever compared with the default of the same batch.

Each sitting begins, and each pass ends, with an A/A check: separate builds of the default, timed in turn. They are the nested
noise of the landscape, and they say whether the machine is quiet. The recording has the form of bench/h200/README.md, with the
median of each session in place of its samples; a pass is a part. After each batch it is written whole.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.cpu.products import Product
from bench.cpu.quiet import AA_SPREAD, OTHERS, Busy, Load, Others
from bench.h200.lab import Lab, open_lab, phase_limits
from bench.h200.landscape import Row, plain, product, row_of, values_of
from bench.h200.noise import spreads, timed
from bench.h200.recordings import BASE, Document, read, same, write
from tuner_job.api.base import InputError
from tuner_job.api.child import ENGINE_FILE, MeasureSettings
from tuner_job.api.outcome import Outcome
from tuner_job.measure.variance import median_variance
from tuner_job.search.space import Flip, Space
from tuner_job.store.records import timestamp

BATCH = 8
MEASURE = MeasureSettings(session_seconds=0.03, session_samples=5, sessions=4, warmup_seconds=0.05, warmup_limit_seconds=0.3)
NOISE_BUILDS = 6
NOISE = MeasureSettings(session_samples=5, sessions=16, warmup_seconds=0.1, warmup_limit_seconds=1.0)
"""Sessions as long as a campaign's."""
WARMUP_SAMPLES = 12
"""At least (measure.sampling)."""
PHASE_SECONDS = 20.0
"""Deadline of each phase of a build, or of timing one engine; what takes longer is recorded as hung."""

Config = dict[str, str]


def batches(space: Space, passes: int) -> list[tuple[int, list[Config]]]:
    """Pass and configurations of every batch; the same each time. The default is in all of them and not listed."""
    rest = product(space)[1:]
    found = []
    for number in range(passes):
        shuffled = [rest[i] for i in np.random.default_rng(number).permutation(len(rest))]
        found += [(number, shuffled[i : i + BATCH]) for i in range(0, len(shuffled), BATCH)]
    return found


def record(job: Path, chosen: Product, path: Path, load: Load, *, busy: bool = False, most: int | None = None) -> Document:
    """Goes on with the recording in `path`, or begins it, until it is whole or `most` more batches are in it.

    `load`: the load averages before anything was begun. Raises Busy where an A/A check finds a machine that is (unless `busy`:
    the recording then says so); what was recorded before it stays. Raises InputError where `path` holds a recording of something
    else.
    """
    with open_lab(job, "CPU") as lab:
        # One shape: a batch compares latencies, and a landscape holds one of each.
        sitting = Sitting(replace(lab, cases=lab.cases[:1]), job, chosen, path, busy)
        sitting.run(load, most)
        return sitting.document


class Sitting:
    """What one start of the command records."""

    def __init__(self, lab: Lab, job: Path, chosen: Product, path: Path, busy: bool) -> None:
        self._lab = lab
        self._space = chosen.space(lab.knobs)
        self._path = path
        self._busy = busy
        self._batches = batches(self._space, chosen.passes)
        self.document = self._begun(job, chosen)
        if path.exists():
            earlier = read(path)
            same(self.document, earlier, path)
            if earlier["protocol"] != self.document["protocol"]:
                raise InputError(f"{path}: was begun with another protocol; name another --output")
            self.document = earlier
        self._began = time.monotonic() - self.document["seconds"]

    def run(self, load: Load, most: int | None) -> None:
        """Record what is left; see `record`."""
        left = self._batches[self.document["batches"] :][:most]
        if not left:
            return
        check = self._check()
        self.document["sittings"].append({"at": timestamp(), "load": [round(one, 2) for one in load]})
        self._write(check)
        self._announce(check, left)
        for number, configs in left:
            self._batch(number, configs)
            self.document["batches"] += 1
            following = self._batches[self.document["batches"] :]
            self._write(self._check() if not following or following[0][0] != number else None)

    def _begun(self, job: Path, chosen: Product) -> Document:
        values = values_of(self._space)
        document = {
            "model": job.stem,
            "device": self._lab.device.model_dump(),
            "versions": dict(self._lab.versions),
            "accuracy": self._lab.inputs.accuracy.model_dump(mode="json"),
            "protocol": MEASURE.model_dump()
            | {"batch": BATCH, "passes": chosen.passes, "noise_builds": NOISE_BUILDS, "noise": NOISE.model_dump()},
            "knobs": values,
            "default": {dimension: listed[0] for dimension, listed in values.items()},
            "product": len(product(self._space)),
            "built": 0,
            "seconds": 0.0,
            "lost": [],
            "rows": [],
            "timings": [],
            "batches": 0,
            "others": [],
            "noise": [],
            "sittings": [],
        }
        return dict(json.loads(json.dumps(document)))  # as it is read again

    def _write(self, check: Document | None) -> None:
        if check is not None:
            self.document["noise"].append({"sitting": len(self.document["sittings"]) - 1, **check})
        self.document["built"] = len({row["id"] for row in self.document["rows"]})
        self.document["seconds"] = round(time.monotonic() - self._began, 1)
        write(self.document, self._path)

    def _check(self) -> Document:
        """Nested noise; raises Busy where others take too much of the machine, or equal builds differ too much."""
        folder = self._lab.space.root / "check"
        builds = [self._built({}, folder / str(number)) for number in range(NOISE_BUILDS)]
        others = Others()
        rows, _, _ = timed(self._lab, {str(number): path for number, (_, path) in enumerate(builds) if path}, NOISE)
        seconds, share = others.seconds, others.share
        shutil.rmtree(folder)
        raw, quiet = spreads(rows)
        spread = math.hypot(quiet.build_sd, math.sqrt(median_variance(quiet.session_sd, NOISE.sessions)))
        if (share > OTHERS or spread > AA_SPREAD) and not self._busy:
            raise Busy(
                f"{self._path.name}: other processes took {share:.1%} of the cores (at most {OTHERS:.0%}), and equal builds "
                f"differed by {spread:.2%} (standard deviation; at most {AA_SPREAD:.0%}); the same command goes on in quiet"
            )
        return {
            "spread": round(spread, 5),
            "build_sd": round(quiet.build_sd, 5),
            "session_sd": round(raw.session_sd, 5),
            "others": round(share, 4),
            "build_seconds": round(float(np.median([sum(row.build.values()) for row, _ in builds])), 3),
            "timed_seconds": round(seconds, 2),
            "rows": rows,
        }

    def _announce(self, check: Document, left: Sequence[tuple[int, list[Config]]]) -> None:
        """What is to come, and about how long it takes, if all configurations are as fast as the default."""
        latency = float(np.median([row[3] for row in check["rows"]])) / 1e6
        session = max(NOISE.session_seconds, NOISE.session_samples * latency)
        between = max(0.0, check["timed_seconds"] / (NOISE_BUILDS * NOISE.sessions) - session)
        engine = (
            check["build_seconds"]
            + max(MEASURE.warmup_seconds, WARMUP_SAMPLES * latency)
            + MEASURE.sessions * (max(MEASURE.session_seconds, MEASURE.session_samples * latency) + between)
        )
        checks = len({number for number, _ in left}) * (NOISE_BUILDS * check["build_seconds"] + check["timed_seconds"])
        minutes = (engine * sum(len(configs) + 1 for _, configs in left) + checks) / 60
        print(
            f"{self.document['model']}: {self.document['product']} configurations; {len(left)} of {len(self._batches)} batches "
            f"to record, about {minutes:.0f} minutes; latency {latency * 1e3:.2f} ms, equal builds differ by "
            f"{check['spread']:.2%}, other processes take {check['others']:.1%} of the cores",
            file=sys.stderr,
            flush=True,
        )

    def _batch(self, number: int, configs: Sequence[Config]) -> None:
        """Build and time; whatever gave no engine in an earlier pass is left out."""
        folder = self._lab.space.root / "batch"
        gone = [row["config"] for row in self.document["rows"] if not row["size"]]
        builds = [self._built(config, folder / str(place)) for place, config in enumerate([{}, *configs]) if config not in gone]
        (_, base), *rest = builds
        assert base is not None
        others = Others()
        self._time(number, base, {row.candidate.id: path for row, path in rest if path})
        self.document["others"].append(round(others.share, 4))
        shutil.rmtree(folder)
        self.document["rows"] += [plain(row) | {"part": number} for row, _ in builds]

    def _built(self, config: Config, output: Path) -> tuple[Row, Path | None]:
        """How it ended, and the engine if there is one. Raises InputError where the default fails."""
        candidate = self._space.candidate(Flip(*item) for item in config.items())
        end = self._lab.build(candidate, output, phase_limits(PHASE_SECONDS))
        row = row_of(self._lab, candidate, config, end, output / ENGINE_FILE, time.monotonic() - self._began)
        if not config and row.path is None:
            raise InputError(f"the default build ended {row.outcome}: {row.reason}")
        return row, row.path

    def _time(self, number: int, base: Path, engines: Mapping[str, Path]) -> None:
        """In one process; should it fail, each engine beside the default in one of its own, so that only the guilty is lost."""
        if self._timed(number, base, engines):
            return
        for name, path in engines.items():
            if not self._timed(number, base, {name: path}):
                self.document["lost"].append(name)

    def _timed(self, number: int, base: Path, engines: Mapping[str, Path]) -> bool:
        place = len({one["batch"] for one in self.document["timings"]})
        at = time.monotonic() - self._began
        end = self._lab.time({**engines, BASE: base}, MEASURE, phase_limits(PHASE_SECONDS * (len(engines) + 1)), seed=place)
        if end.report is None or end.outcome is not Outcome.FEASIBLE:
            return False
        self.document["timings"] += [
            {
                "id": name,
                "part": number,
                "batch": place,
                "at": round(at, 2),
                "launch": timings[0].launch,
                "clock": timings[0].clock,
                "sessions": [[[round(session.median * 1e6, 3)] for session in case.sessions] for case in timings],
            }
            for name, timings in end.report.timings.items()
        ]
        return True
