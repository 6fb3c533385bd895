"""Writes the tables of bench/results/h200/README.md and docs/statistics.md, from the result files and nothing else.

python -m bench.h200.tables
"""

from __future__ import annotations

import gzip
import json
import math
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.h200 import recordings
from bench.overhead import LONG_TRIAL, Shard, shards
from bench.real import Series
from bench.series import upper_bound
from tuner_job.api.base import InputError
from tuner_job.measure.drift import without_drift
from tuner_job.measure.samples import Floats
from tuner_job.measure.variance import components

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "h200"
PAGES = (RESULTS / "README.md", ROOT / "docs" / "statistics.md")
CAMPAIGNS = ("minilm", "ocr-classifier", "ocr-recogniser")
LANDSCAPES = ("landscape-cnn", "landscape-minilm")
NOISES = {
    "encoder (recorded earlier)": ROOT / "bench" / "data" / "noise-encoder-h200.json.gz",
    "cnn": RESULTS / "noise-cnn.json.gz",
    "minilm-fp16": RESULTS / "noise-minilm-fp16.json.gz",
}
SERIES = ("aa-real-cnn-gpu", "aa-real-minilm-fp16-gpu")
LAUNCH = {"graph1": "CUDA graph", "graph0": "launched from the host"}
MICRO = 1e6


def campaigns() -> Iterator[Iterable[str]]:
    yield "model", "trials", "proven", "gain of the route, 95 %", "p", "gain of the published bytes, 95 %", "default", "published"
    for name in CAMPAIGNS:
        verdict = _verdict(name)
        outcomes = Counter(result["outcome"] for result in _results(name))
        yield (
            name,
            ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()),
            _candidate(verdict["candidate"])
            if verdict["significant"]
            else f"nothing ({_candidate(verdict['candidate'])} was tried)",
            _gain(verdict["routeGain"]),
            f"{verdict['pValue']:.2g}",
            _gain(verdict["engineGain"]),
            f"{verdict['baselineSeconds'] * MICRO:.1f} µs",
            f"{verdict['latencySeconds'] * MICRO:.1f} µs",
        )


def failures() -> Iterator[Iterable[str]]:
    yield "where", "outcome", "how many", "what", "of"
    for name in CAMPAIGNS:
        for result in _results(name):
            if result["outcome"] != "feasible":
                yield name, result["outcome"], "1", result["reason"], _candidate(result["candidate"])
    for name in LANDSCAPES:
        document = recordings.read(RESULTS / f"{name}.json.gz")
        alike: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
        for row in document["rows"]:
            if row["outcome"] != "feasible":
                alike.setdefault((row["outcome"], row["reason"].split(": [")[0]), {})[row["id"]] = row["config"]
        for (outcome, reason), configs in alike.items():
            yield name, outcome, f"{len(configs)} configurations", reason, _shared(document, list(configs.values()))


def overhead() -> Iterator[Iterable[str]]:
    yield (
        "model",
        "worker",
        "trials",
        "s per trial",
        "overhead",
        "waiting, of its whole time",
        f"of {LONG_TRIAL:.0f}-second trials, without waiting",
    )
    for name in CAMPAIGNS:
        for one in _shards(name):
            yield (
                name,
                one.worker,
                str(one.trials),
                f"{one.wall / one.trials:.1f}",
                f"{one.overhead:.1%}",
                f"{one.waiting / one.wall:.1%}",
                f"{one.of_long_trials:.1%}",
            )


def landscapes() -> Iterator[Iterable[str]]:
    yield "landscape", "configurations", "parts", "outcomes", "default", "fastest", "slowest", "timed twice: ratios differ by"
    for name in LANDSCAPES:
        document = recordings.read(RESULTS / f"{name}.json.gz")
        ended = Counter(" or ".join(sorted(kinds)) for kinds in recordings.outcomes(document).values())
        ranked, again = recordings.ranking(document), recordings.repeats(document)
        yield (
            name,
            f"{document['built']} of {document['product']}",
            ", ".join(str(part["built"]) for part in document["parts"]),
            ", ".join(f"{count} {outcome}" for outcome, count in ended.most_common()),
            f"{np.median(list(recordings.defaults(document).values())):.1f} µs",
            *(f"{1 / ratio:.2f} times as fast: {_named(variant, route)}" for ratio, variant, route in (ranked[0], ranked[-1])),
            f"{np.median(np.abs(again)):.1%} in the median of {len(again)}, {np.quantile(np.abs(again), 0.9):.1%} for 9 in 10",
        )


def noise() -> Iterator[Iterable[str]]:
    yield (
        "model",
        "launch",
        "builds × sessions",
        "median",
        "between builds, drift removed",
        "between sessions",
        "the same, drift removed",
        "medians of two equal builds",
        "the same, drift removed",
    )
    for name, path in NOISES.items():
        document = json.loads(gzip.decompress(path.read_bytes()))
        for key, launch in LAUNCH.items():
            rows = np.array(document[key])
            of = [rows[rows[:, 1] == build] for build in np.unique(rows[:, 1])]
            of = [one[np.argsort(one[:, 2], kind="stable")] for one in of]
            logs = [np.log(one[:, 3]) for one in of]
            flat = without_drift([one[:, 2] for one in of], logs)
            yield (
                name,
                launch,
                f"{len(of)} × {min(map(len, of))}",
                f"{np.median(rows[:, 3]):.1f} µs",
                f"{components(flat).build_sd:.2%}",
                f"{_deviation(logs):.1%}",
                f"{_deviation(flat):.1%}",
                f"{_pair_sd(logs):.2%}",
                f"{_pair_sd(flat):.2%}",
            )


def finals() -> Iterator[Iterable[str]]:
    yield "series", "finals", "false winners", "true rate at most (one-sided 95 %)", "state by the stopping rule"
    for name in SERIES:
        series = Series.read(RESULTS / f"{name}.json.gz")
        if series is None:
            raise InputError(f"{name}.json.gz: there is none in {RESULTS}")
        count, false = len(series.finals), series.false_winners
        state = "not complete" if series.state == "continue" else series.state
        yield name, f"{count} of 59", str(false), f"{upper_bound(false, count):.1%}", state


TABLES: dict[str, Callable[[], Iterator[Iterable[str]]]] = {
    "campaigns": campaigns,
    "failures": failures,
    "overhead": overhead,
    "landscapes": landscapes,
    "noise": noise,
    "finals": finals,
}


def filled(page: str) -> str:
    """The page with every table that it has a place for: `<!-- table NAME: … -->` to `<!-- /table -->`."""
    for name, rows in TABLES.items():
        begin, end = f"<!-- table {name}: by python -m bench.h200.tables -->\n", "<!-- /table -->"
        before, found, rest = page.partition(begin)
        if found:
            page = f"{before}{begin}{_table(rows())}\n{end}{rest.partition(end)[2]}"
    return page


def _table(rows: Iterable[Iterable[str]]) -> str:
    head, *others = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *others))


def _verdict(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_bytes())["runs"][0]["verdict"]
    return found


def _results(name: str) -> list[dict[str, Any]]:
    with tarfile.open(RESULTS / f"{name}-records.tar.gz") as archive:
        files = sorted((m for m in archive.getmembers() if m.name.endswith("/result.json")), key=lambda m: m.name)
        return [json.loads(file.read()) for member in files if (file := archive.extractfile(member)) is not None]


def _shards(name: str) -> list[Shard]:
    with tempfile.TemporaryDirectory(prefix="tables-") as folder, tarfile.open(RESULTS / f"{name}-records.tar.gz") as archive:
        archive.extractall(folder, filter="data")
        return list(shards(Path(folder)))


def _candidate(candidate: dict[str, Any]) -> str:
    return _named(candidate["variant"], candidate["route"])


def _named(variant: str, route: str) -> str:
    return (
        " ".join(part for part in (variant if variant != "default" else "", f"`{route}`" if route else "") if part) or "default"
    )


def _gain(gain: dict[str, float]) -> str:
    return f"{gain['estimate']:+.2%} [{gain['low']:+.2%}, {gain['high']:+.2%}]"


def _shared(document: recordings.Document, configs: list[dict[str, str]]) -> str:
    """What all of them have in common, and which dimensions all of them leave at the default."""
    values = sorted(set.intersection(*(set(config.items()) for config in configs)))
    left = sorted(document["knobs"].keys() - {name for config in configs for name in config})
    return f"all with `{' '.join(f'{name}={value}' for name, value in values)}`" + "".join(
        f", none with `{name}`" for name in left
    )


def _deviation(logs: list[Floats]) -> float:
    """Of sessions from their build's median, slow spells included."""
    return float(np.std(np.concatenate([one - np.median(one) for one in logs])))


def _pair_sd(logs: list[Floats]) -> float:
    return math.sqrt(2 * float(np.var([np.median(one) for one in logs], ddof=1)))


def main() -> int:
    try:
        for page in PAGES:
            page.write_text(filled(page.read_text()))
    except (InputError, OSError) as error:
        sys.stderr.write(f"tables: {error}\n")
        return 64
    return 0


if __name__ == "__main__":
    sys.exit(main())
