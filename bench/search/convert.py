"""Landscapes from recordings.

    python -m bench.search.convert h200 bench/results/h200/landscape-cnn.json.gz --output cnn.json.gz
    python -m bench.search.convert run STORE_FOLDER RUN --output run.json.gz
    python -m bench.search.convert trtexec best_config.json --knobs KNOB_LIST.json --output cache.json.gz

`h200`: a full product (bench/h200/README.md). Engines of equal fingerprint are one engine: their timings are pooled. Where a part
of the product is missing, its rows are imputed and marked, if the recorded rows predict each other well enough (`impute`).
`run`: a finished run's records, `trtexec`: its tuning cache. Both hold a few hundred candidates of a product that nobody could
record, so what is not in them ends `unsupported`: good for replaying an order of trials, not for ranking strategies.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.search.landscape import Landscape, Truth, knob_list, save
from bench.search.noise import Floats, Noise, make, recorded
from tuner_job.api.base import InputError
from tuner_job.api.messages import DiscoveryRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.rounds import space_of
from tuner_job.measure.controls import scores
from tuner_job.measure.variance import NORMAL_MAD, median_variance, session_logs
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.routes.select import select
from tuner_job.routes.tuning_cache import read_tuning_cache
from tuner_job.search.space import VARIANT, Flip, Flips, Space
from tuner_job.store.objects import ObjectStore

_SETTING = "setting:"
LEAST_R2 = 0.9
"""Cross-validated, below which missing rows are not imputed."""
_FOLDS = 10
_RIDGE = 0.1


def from_h200(path: Path) -> Landscape:
    """A full product as bench.h200.landscape records it. Raises InputError."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    values: Mapping[str, list[str]] = document["knobs"]
    space = Space(
        knobs=(knobs := knob_list({name: v for name, v in values.items() if name.startswith("-")})),
        choices=select(knobs) if knobs.knobs else (),
        settings={name.removeprefix(_SETTING): tuple(v[1:]) for name, v in values.items() if name.startswith(_SETTING)},
        variants=tuple(values.get(VARIANT, ("default",))),
    )
    flips_of = {row["id"]: frozenset(Flip(*item) for item in row["config"].items()) for row in document["rows"]}
    engine = {row["id"]: row["fingerprint"] or row["id"] for row in document["rows"]}
    centers: dict[tuple[int, int], float] = {}
    timings: list[tuple[float, str, tuple[int, int], Floats, Floats]] = []
    for one in document["timings"]:
        place = (one.get("part", 0), one["batch"])
        logs = np.log([[np.median(session), np.mean(session)] for session in one["sessions"][0] if session])
        if one["id"] == "baseline":
            centers[place] = float(np.median(logs[:, 0]))
        else:
            timings.append((one["at"], one["id"], place, logs[:, 0], logs[:, 1]))
    ratios: dict[str, list[float]] = defaultdict(list)
    for _, name, place, logs, _ in timings:
        if place in centers:
            ratios[engine[name]].append(float(np.median(logs)) - centers[place])
    default = engine.get(next((name for name, flips in flips_of.items() if not flips), ""), "")
    value = {name: 0.0 if name == default else float(np.median(found)) for name, found in ratios.items()}
    rows = _rows(document["rows"], flips_of, engine, value)
    rows[frozenset()] = replace(rows.get(frozenset(), Truth(Outcome.FEASIBLE)), outcome=Outcome.FEASIBLE, log_ratio=0.0)
    recorded_count = len(rows)
    rows, how = impute(space, rows)
    return Landscape(
        name=f"h200-{path.name.removeprefix('landscape-').removesuffix('.json.gz')}",
        kind="recorded",
        provenance={
            "about": f"{document['model']} on {document['device']['product']}, driver {document['device']['driver']}, "
            f"{document['versions']}; {recorded_count} of {document['product']} configurations recorded; {how}",
            "source": path.name,
            "timings": f"{len(timings)} of {len(value)} different engines",
        },
        space=space,
        noise=_noise(path.name, timings, centers, engine, value),
        rows=rows,
        unrecorded="imputed" if len(rows) > recorded_count or recorded_count == document["product"] else "unsupported",
    )


def _rows(
    found: Sequence[Mapping[str, Any]],
    flips_of: Mapping[str, Flips],
    engine: Mapping[str, str],
    value: Mapping[str, float],
) -> dict[Flips, Truth]:
    """One row for each configuration; where it was built several times, its most frequent outcome and median seconds."""
    builds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in found:
        builds[row["id"]].append(row)
    rows: dict[Flips, Truth] = {}
    for name, tries in builds.items():
        ends = Counter(row["outcome"] for row in tries if row["outcome"] != Outcome.INFRASTRUCTURE)
        if not ends:
            continue
        outcome = Outcome(min(ends, key=lambda end: (-ends[end], end)))
        ratio = value.get(engine[name]) if outcome in (Outcome.FEASIBLE, Outcome.INFEASIBLE) else None
        if outcome is Outcome.FEASIBLE and ratio is None:
            continue  # never timed: not recorded
        seconds = float(
            np.median([sum(row["seconds"].get(p, 0.0) for p in ("start", "build", "load", "check")) for row in tries])
        )
        prints = next((row["fingerprint"] for row in tries if row["fingerprint"]), "")
        rows[flips_of[name]] = Truth(outcome, ratio, prints, seconds)
    return rows


def _noise(
    name: str,
    timings: Sequence[tuple[float, str, tuple[int, int], Floats, Floats]],
    centers: Mapping[tuple[int, int], float],
    engine: Mapping[str, str],
    value: Mapping[str, float],
) -> Noise:
    """Sessions about their own timing's median; builds about their engine's value, by as much as sessions do not explain."""
    medians: list[float] = []
    means: list[float] = []
    off: list[float] = []
    count = 1
    for _, which, place, first, second in sorted(timings, key=lambda one: (one[2], one[0])):
        if place not in centers:
            continue
        center = float(np.median(first))
        medians += (first - center).tolist()
        means += (second - center).tolist()
        off.append(center - centers[place] - value[engine[which]])
        count = first.size
    sd = NORMAL_MAD * float(np.median(np.abs(medians)))
    spread = (NORMAL_MAD * float(np.median(np.abs(off)))) ** 2 - 2 * median_variance(sd, count)  # the batch's default varies too
    return make(f"its own recording, {name}", math.sqrt(max(0.0, spread)), medians, means, count)


def impute(space: Space, rows: Mapping[Flips, Truth]) -> tuple[dict[Flips, Truth], str]:
    """Fill a product's missing rows, and say how.

    Log ratios: ridge regression on all flips and all pairs of flips, refused below a cross-validated R² of LEAST_R2. Outcome,
    build seconds: those of the recorded row that differs in the fewest dimensions (of several the first in order). Imputed rows
    are marked, have no fingerprint, and are never the optimum.
    """
    axes = [[None, *flips] for flips in space.dimensions.values()]
    whole = [frozenset(flip for flip in row if flip) for row in itertools.product(*axes)]
    missing = [flips for flips in whole if flips not in rows]
    if not missing:
        return dict(rows), "nothing is imputed"
    timed = [flips for flips in sorted(rows, key=sorted) if rows[flips].log_ratio is not None]
    y = np.array([rows[flips].log_ratio for flips in timed])
    x = _design(space, timed)
    order = np.random.default_rng(0).permutation(len(timed))
    predicted = np.empty(len(timed))
    for fold in range(_FOLDS):
        held = order[fold::_FOLDS]
        rest = np.setdiff1d(order, held)
        predicted[held] = x[held] @ _ridge(x[rest], y[rest])
    r2 = 1 - float(np.sum((y - predicted) ** 2) / np.sum((y - y.mean()) ** 2))
    error = float(np.sqrt(np.mean((y - predicted) ** 2)))
    if r2 < LEAST_R2:
        return dict(
            rows
        ), f"{len(missing)} missing rows are unsupported (a regression on pairs has a cross-validated R2 of {r2:.3f})"
    fitted = _design(space, missing) @ _ridge(x, y)
    known = sorted(rows, key=sorted)
    full = dict(rows)
    for flips, value in zip(missing, fitted, strict=True):
        near = min(known, key=lambda other: len({flip.dimension for flip in flips ^ other}))
        timeable = rows[near].log_ratio is not None
        full[flips] = replace(rows[near], log_ratio=float(value) if timeable else None, fingerprint="", imputed=True)
    return full, (
        f"{len(missing)} rows are imputed by a regression on pairs (cross-validated R2 {r2:.3f}, error {error:.2%} of latency)"
    )


def _design(space: Space, stacks: Sequence[Flips]) -> Floats:
    """(n, 1 + p + pairs) of 0 and 1."""
    flips = list(space.flips)
    pairs = [pair for pair in itertools.combinations(flips, 2) if pair[0].dimension != pair[1].dimension]
    return np.array([[1.0, *(f in s for f in flips), *(a in s and b in s for a, b in pairs)] for s in stacks], dtype=np.float64)


def _ridge(x: Floats, y: Floats) -> Floats:
    return np.asarray(np.linalg.solve(x.T @ x + _RIDGE * np.eye(x.shape[1]), x.T @ y))


def from_run(folder: Path, run: str) -> Landscape:
    """A run's explored trials. Raises InputError."""
    reader = RunReader(ObjectStore.open(folder.resolve().as_uri()), run)
    fold = reader.fold()
    results = fold.folded
    found = scores(results, fold.discovery, fold.run.inputs.measure.metric)
    space = space_of(fold.run.inputs, fold.discovery.knobs, fold.discovery.settings)
    ratios: dict[Flips, list[float]] = defaultdict(list)
    rows: dict[Flips, Truth] = {frozenset(): Truth(Outcome.FEASIBLE, 0.0, _pilot_fingerprint(fold.discovery))}
    for result in results:
        flips = space.flips_of(result.candidate)
        if result.outcome is Outcome.INFRASTRUCTURE or not flips:
            continue
        if result.trial in found:
            ratios[flips].append(found[result.trial].log_ratio)
        elif result.outcome is Outcome.FEASIBLE:
            continue
        rows[flips] = Truth(
            outcome=result.outcome,
            log_ratio=float(np.mean(ratios[flips])) if ratios[flips] else None,
            fingerprint=result.engine.fingerprint if result.engine and fold.discovery.fingerprints_hold else "",
            build_seconds=sum(result.seconds.get(part, 0.0) for part in ("start", "build", "load", "check")),
        )
    return Landscape(
        name=f"run-{run[:8]}",
        kind="recorded",
        provenance={
            "about": f"run {run}: {len(results)} trials on {fold.discovery.device.product}; log ratios are the campaign's scores,"
            " means over rebuilds. What was not tried is unsupported",
        },
        space=space,
        noise=_pilot_noise(run, fold.discovery),
        rows=rows,
    )


def _pilot_fingerprint(discovery: DiscoveryRecord) -> str:
    prints = {build.engine.fingerprint for build in discovery.pilot}
    return str(min(prints)) if discovery.fingerprints_hold and prints else ""


def _pilot_noise(run: str, discovery: DiscoveryRecord) -> Noise:
    medians: list[float] = []
    means: list[float] = []
    for build in discovery.pilot:
        first = np.asarray(session_logs(build.timing, discovery.cases, "LatencyP50"), dtype=np.float64)
        second = np.asarray(session_logs(build.timing, discovery.cases, "LatencyMean"), dtype=np.float64)
        medians += (first - np.median(first)).tolist()
        means += (second - np.median(first)).tolist()
    return make(f"the pilot of run {run[:8]}", discovery.build_sd, medians, means)


def from_trtexec(path: Path, knobs: Path) -> Landscape:
    """A tuning cache. Its times are means of one run each, so a row's truth is as noisy as that; the noise is an H200's."""
    listed = parse_knob_list(knobs.read_text())
    cache = read_tuning_cache(path.read_text(), listed, path.name)
    values: dict[str, set[str]] = defaultdict(set)
    for row in cache.rows:
        for name, value in row.route:
            values[name].add(value)
    order = {name: [v for v in listed.find(name).values or sorted(values[name]) if v in values[name]] for name in values}
    varied = {name: v for name, v in order.items() if any(value != listed.find(name).default for value in v)}
    space = Space(listed, select(listed, list(varied), values=varied) if varied else ())
    defaults = {choice.knob.name: choice.knob.default for choice in space.choices}
    times: dict[Flips, list[float]] = defaultdict(list)
    ends: dict[Flips, Outcome] = {}
    for row in cache.rows:
        flips = frozenset(Flip(name, value) for name, value in row.route if defaults.get(name, value) != value)
        ends[flips] = row.outcome
        if row.gpu_time and row.gpu_time > 0 and not row.crash:
            times[flips].append(math.log(row.gpu_time))
    if not times.get(frozenset()):
        raise InputError(f"{path}: no row with every knob at its default has a time, so there is nothing to compare with")
    base = float(np.median(times[frozenset()]))
    rows = {flips: Truth(end, float(np.median(times[flips])) - base if times[flips] else None) for flips, end in ends.items()}
    rows[frozenset()] = Truth(Outcome.FEASIBLE, 0.0)
    return Landscape(
        name=f"trtexec-{path.stem}",
        kind="recorded",
        provenance={
            "about": f"{path.name}: {len(cache.rows)} iterations of trtexec's {cache.header.searching_algorithm} search; times"
            " are means of one run, build seconds are not in the file, the noise is that of another model",
        },
        space=space,
        noise=recorded()["graph"],
        rows=rows,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    product = modes.add_parser("h200", help="a full product recorded by bench.h200.landscape")
    product.add_argument("source", type=Path)
    run = modes.add_parser("run", help="a finished run in a store's folder")
    run.add_argument("source", type=Path)
    run.add_argument("run")
    cache = modes.add_parser("trtexec", help="a tuning cache of trtexec")
    cache.add_argument("source", type=Path)
    cache.add_argument("--knobs", type=Path, required=True, help="the knob list that it was made with (`all_build_routes`)")
    for mode in (product, run, cache):
        mode.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        if options.mode == "h200":
            landscape = from_h200(options.source)
        elif options.mode == "run":
            landscape = from_run(options.source, options.run)
        else:
            landscape = from_trtexec(options.source, options.knobs)
        save(landscape, options.output)
    except (InputError, OSError) as error:
        raise SystemExit(f"convert: {error}") from None
    best, ratio = landscape.best
    print(
        f"{landscape.name}: {landscape.provenance['about']}\nbest {math.exp(-ratio):.3f}x: {landscape.space.describe(best)}; one "
        f"flip alone has {landscape.single_share:.0%} of that gain{' (easy)' if landscape.easy else ''}"
    )


if __name__ == "__main__":
    main()
