"""Landscape recordings: what they hold, several as one, and what they show.

    python -m bench.h200.recordings FIRST.json.gz SECOND.json.gz … --output landscape-minilm

writes landscape-minilm.json.gz with every recording as a part of it, and prints what it shows. Latencies of two parts are never
compared: another process, another hour, another neighbour. The files' format: bench/h200/README.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuner_job.api.base import InputError

Document = dict[str, Any]
"""A recording as it is stored; only what this module reads is spelled out."""

BASE = "baseline"
SAME = ("model", "device", "versions", "accuracy", "knobs", "default", "product")
"""What recordings of one landscape agree on."""
OF_PART = ("protocol", "built", "built_seconds", "seconds", "lost")


def read(path: Path) -> Document:
    """Raises InputError for a file that is no recording."""
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
        if {*SAME, "rows", "timings"} <= document.keys():
            return dict(document)
    except (OSError, EOFError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: cannot be read as a recording: {error}") from None
    raise InputError(f"{path}: is no recording of a landscape")


def write(document: Document, path: Path) -> None:
    """The same bytes for the same document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.part")
    aside.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 9, mtime=0))
    aside.replace(path)


def held(document: Document) -> set[str]:
    """Candidates that need no further recording: the default, those that were timed, and those of which no engine came."""
    timed = {one["id"] for one in document["timings"]} - {BASE}
    return timed | {row["id"] for row in document["rows"] if not row["size"] or not row["config"]}


def same(one: Document, other: Document, where: object) -> None:
    """Raises InputError unless `other` (of `where`) is of the landscape of `one`."""
    for key in SAME:
        if one[key] != other[key]:
            raise InputError(f"{where}: is of another landscape: its {key} is {other[key]}, not {one[key]}")


def merge(documents: Mapping[str, Document]) -> Document:
    """One document of several recordings (name → document), in their order, each a part; merged ones bring all their parts.

    Raises InputError where they are not of one landscape.
    """
    (_, first), *others = documents.items()
    for name, other in others:
        same(first, other, name)
    parts: list[Document] = []
    rows: list[Document] = []
    timings: list[Document] = []
    for document in documents.values():
        before = len(parts)
        parts += document.get("parts") or [{key: document[key] for key in OF_PART}]
        rows += [{**row, "part": before + row.get("part", 0)} for row in document["rows"]]
        timings += [{**one, "part": before + one.get("part", 0)} for one in document["timings"]]
    built = len({row["id"] for row in rows})
    return {key: first[key] for key in SAME} | {"built": built, "parts": parts, "rows": rows, "timings": timings}


def defaults(document: Document) -> dict[tuple[int, int], float]:
    """Microseconds of the default engine by part and batch."""
    return {_place(one): _median(one) for one in document["timings"] if one["id"] == BASE}


def ratios(document: Document) -> dict[str, float]:
    """Latency over that of the default engine in the same batch of the same part; of several, their median. By candidate."""
    base = defaults(document)
    found: dict[str, list[float]] = defaultdict(list)
    for one in document["timings"]:
        if one["id"] != BASE and _place(one) in base:
            found[one["id"]].append(_median(one) / base[_place(one)])
    return {name: float(np.median(values)) for name, values in found.items()}


def outcomes(document: Document) -> dict[str, Counter[str]]:
    """Candidate → how often each outcome came: more than one where its builds in several parts ended differently."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row in document["rows"]:
        found[row["id"]][row["outcome"]] += 1
    return found


def ranking(document: Document) -> list[tuple[float, str, str]]:
    """Ratio, variant and route of everything that was feasible in every part, the fastest first."""
    ended, of = outcomes(document), ratios(document)
    rows = {row["id"]: row for row in document["rows"]}
    return sorted(
        (of[name], row["variant"], row["route"]) for name, row in rows.items() if name in of and set(ended[name]) == {"feasible"}
    )


def repeats(document: Document) -> list[float]:
    """Log ratio of the second to the first timing of every candidate that two parts timed, each against its own default."""
    base = defaults(document)
    by_part: dict[str, dict[int, float]] = defaultdict(dict)
    for one in document["timings"]:
        if one["id"] != BASE and _place(one) in base:
            by_part[one["id"]].setdefault(one.get("part", 0), float(np.log(_median(one) / base[_place(one)])))
    return [values[1] - values[0] for parts in by_part.values() if len(values := list(parts.values())) > 1]


def summary(document: Document) -> str:
    ended = Counter(" or ".join(sorted(kinds)) for kinds in outcomes(document).values())
    of, base, ranked = ratios(document), list(defaults(document).values()), ranking(document)
    lines = [
        f"{document['model']}: {document['built']} of {document['product']} built, {len(of)} timed; outcomes {dict(ended)}",
        f"default: {np.median(base):.1f} us over {len(base)} batches, sd of log {np.std(np.log(base)):.2%}",
        *(f"{1 / ratio:.2f}x {variant} {route}" for ratio, variant, route in ranked[:5]),
        *(f"slowest: {1 / ratio:.2f}x {variant} {route}" for ratio, variant, route in ranked[-1:]),
    ]
    if again := repeats(document):
        lines.append(f"timed by two parts: {len(again)}, ratios differ by {np.median(np.abs(again)):.2%} in the median")
    return "\n".join(lines)


def _place(one: Document) -> tuple[int, int]:
    return one.get("part", 0), one["batch"]


def _median(one: Document) -> float:
    """Over the sessions of the first shape case, in microseconds."""
    return float(np.median([np.median(session) for session in one["sessions"][0]]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True, help="path without suffix")
    options = parser.parse_args(arguments)
    try:
        document = merge({str(path): read(path) for path in options.recordings})
    except InputError as error:
        sys.stderr.write(f"recordings: {error}\n")
        return 64
    write(document, options.output.with_name(f"{options.output.name}.json.gz"))
    sys.stdout.write(f"{summary(document)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
