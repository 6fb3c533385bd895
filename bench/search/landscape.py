"""Landscapes: what every candidate of a search space really costs, and with what noise a build of it is timed.

The file's format is described in bench/search/README.md (`VERSION`). A landscape is either a table of rows (recorded) or a rule
(planted, synthetic), so its optimum is known and a search on it can be scored by what it returns.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from bench.search.noise import Noise
from bench.search.planted import Planted
from tuner_job.api.base import InputError
from tuner_job.api.outcome import Outcome
from tuner_job.routes.knobs import Knob, KnobList, parse_knob_list
from tuner_job.routes.select import select
from tuner_job.search.space import Flip, Flips, Space

FORMAT = "trtfleet-landscape"
VERSION = 1
EASY = 0.95
"""A landscape on which one flip alone has so much of the best gain ranks no strategy (any of them finds it)."""
SMALLEST_BEST = 0.005
"""Best log gain below which a landscape has nothing to find."""

Unrecorded = Literal["unsupported", "imputed"]


@dataclass(frozen=True, slots=True)
class Truth:
    """What a candidate is, noise apart."""

    outcome: Outcome
    log_ratio: float | None = None
    """ln(latency / default's latency). None if it cannot be timed; an infeasible candidate can."""
    fingerprint: str = ""
    """Equal and not empty: the same engine."""
    build_seconds: float = 0.0
    imputed: bool = False
    """Not recorded, but computed from the rows that are (see `impute`)."""


@dataclass(frozen=True)
class Landscape:
    """A search space whose truth is known: `rows` of a recording, or a `planted` rule."""

    name: str
    kind: Literal["recorded", "synthetic"]
    provenance: Mapping[str, str]
    """Where it came from, for people."""
    space: Space
    noise: Noise
    rows: Mapping[Flips, Truth] = field(default_factory=dict)
    planted: Planted | None = None
    unrecorded: Unrecorded = "unsupported"
    """What is said of a candidate without a row: `unsupported` is how a trial of it ends; `imputed`: there is none, because the
    rows cover the whole product."""

    def truth(self, flips: Flips) -> Truth:
        """Of any candidate; writing a default out equals leaving it away."""
        chosen = frozenset(flip for flip in flips if self._defaults.get(flip.dimension) != flip.value)
        if self.planted is None:
            return self.rows.get(chosen, Truth(Outcome.UNSUPPORTED))
        end = self.planted.outcome(chosen)
        timed = end in (Outcome.FEASIBLE, Outcome.INFEASIBLE)
        return Truth(
            outcome=end,
            log_ratio=self.planted.log_ratio(chosen) if timed else None,
            fingerprint=self.planted.fingerprint(chosen) if timed else "",
            build_seconds=self.planted.build_seconds(chosen),
        )

    @cached_property
    def _defaults(self) -> dict[str, str]:
        return {choice.knob.name: choice.knob.default for choice in self.space.choices}

    @cached_property
    def best(self) -> tuple[Flips, float]:
        """The fastest feasible candidate that was recorded (or planted) and its log ratio; the default if nothing is faster."""
        if self.planted is not None:
            return self.planted.best(self.space)
        found = [
            (row.log_ratio, len(flips), sorted(flips), flips)
            for flips, row in self.rows.items()
            if row.outcome is Outcome.FEASIBLE and row.log_ratio is not None and not row.imputed
        ]
        if not found or min(found)[0] >= 0:
            return frozenset(), 0.0
        lowest = min(found, key=lambda one: one[:3])
        return lowest[3], lowest[0]

    @cached_property
    def best_single(self) -> float:
        """Log ratio of the best candidate with one flip; 0 where none is faster."""
        ends = [self.truth(frozenset({flip})) for flip in self.space.flips]
        return min((e.log_ratio for e in ends if e.outcome is Outcome.FEASIBLE and e.log_ratio is not None), default=0.0)

    @property
    def single_share(self) -> float:
        """Share of the best log gain that one flip alone has."""
        return abs(min(0.0, self.best_single) / self.best[1]) if self.best[1] < 0 else 1.0

    @property
    def easy(self) -> bool:
        """Whether it ranks no strategy: one flip has 95 % of the gain, or there is no gain to speak of."""
        return self.best[1] > -SMALLEST_BEST or self.single_share >= EASY

    @property
    def one_at_a_time(self) -> int:
        """O: builds of the default and of every flip alone."""
        return 1 + len(self.space.flips)

    @cached_property
    def product(self) -> int | None:
        """Configurations of a recorded full product; None for what cannot be enumerated."""
        size = math.prod(len(flips) + 1 for flips in self.space.dimensions.values())
        return size if self.planted is None and len(self.rows) == size else None

    def share(self, flips: Flips | None) -> float:
        """Gain of a returned candidate over the best gain, by true values; 0 when nothing (usable) was returned."""
        if flips is None or self.best[1] >= 0:
            return 0.0
        end = self.truth(flips)
        return end.log_ratio / self.best[1] if end.outcome is Outcome.FEASIBLE and end.log_ratio is not None else 0.0


def save(landscape: Landscape, path: Path) -> None:
    """Writes the file (deterministic bytes)."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": landscape.name,
        "kind": landscape.kind,
        "provenance": dict(landscape.provenance),
        "space": _space_document(landscape.space),
        "noise": landscape.noise.to_document(),
        "unrecorded": landscape.unrecorded,
    }
    if landscape.planted is not None:
        document["planted"] = landscape.planted.to_document()
    else:
        document["rows"] = [_row_document(flips, landscape.rows[flips]) for flips in sorted(landscape.rows, key=sorted)]
    text = json.dumps(document, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.part")
    aside.write_bytes(gzip.compress(text.encode(), mtime=0))
    aside.replace(path)


def load(path: Path) -> Landscape:
    """Reads a file that `save` wrote. Raises InputError naming the file."""
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: no landscape can be read ({error}); it must be gzip of JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{path}: not a {FORMAT} file; bench.search.convert makes one from a recording")
    if document.get("version") != VERSION:
        raise InputError(f"{path}: version {document.get('version')!r}; this program reads version {VERSION}: convert it again")
    try:
        space = _space(document["space"])
        rows = {_flips(row["flips"]): _truth(row) for row in document.get("rows", ())}
        return Landscape(
            name=document["name"],
            kind=document["kind"],
            provenance=document["provenance"],
            space=space,
            noise=Noise.from_document(document["noise"]),
            rows=rows,
            planted=Planted.from_document(document["planted"]) if "planted" in document else None,
            unrecorded=document["unrecorded"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: {type(error).__name__}: {error}; see bench/search/README.md for the format") from None


def knob_list(values: Mapping[str, Sequence[str]], version: str = "recorded") -> KnobList:
    """Knobs from name → values, the default first."""
    knobs = tuple(Knob(n, tuple(v), v[0], "", f"[{'|'.join(v)}]") for n, v in values.items())
    return KnobList(version if knobs else "none", knobs, "" if knobs else "no knob was searched")


def _space_document(space: Space) -> dict[str, Any]:
    return {
        "knobs": {
            "tuner_version": space.knobs.tuner_version,
            "tuner_options": [
                {"option": k.name, "allowed_values": f"{k.name}={k.domain}", "default_value": k.default, "help": k.help}
                for k in space.knobs.knobs
            ],
            **({"missing": space.knobs.missing} if space.knobs.missing else {}),
        },
        "searched": {choice.knob.name: list(choice.flips) for choice in space.choices},
        "settings": {name: list(values) for name, values in sorted(space.settings.items())},
        "variants": list(space.variants),
    }


def _space(document: Mapping[str, Any]) -> Space:
    knobs = parse_knob_list(json.dumps(document["knobs"]))
    searched: dict[str, list[str]] = document["searched"]
    return Space(
        knobs=knobs,
        choices=select(knobs, list(searched), values=searched) if searched else (),
        settings={name: tuple(values) for name, values in document["settings"].items()},
        variants=tuple(document["variants"]),
    )


def _row_document(flips: Flips, row: Truth) -> dict[str, Any]:
    document: dict[str, Any] = {"flips": {flip.dimension: flip.value for flip in sorted(flips)}, "outcome": row.outcome.value}
    if row.log_ratio is not None:
        document["log_ratio"] = round(row.log_ratio, 6)
    document |= {"build_s": round(row.build_seconds, 3), "fingerprint": row.fingerprint}
    return document | ({"imputed": True} if row.imputed else {})


def _truth(row: Mapping[str, Any]) -> Truth:
    ratio = row.get("log_ratio")
    return Truth(
        outcome=Outcome(row["outcome"]),
        log_ratio=None if ratio is None else float(ratio),
        fingerprint=str(row["fingerprint"]),
        build_seconds=float(row["build_s"]),
        imputed=bool(row.get("imputed", False)),
    )


def _flips(document: Mapping[str, str]) -> Flips:
    return frozenset(Flip(dimension, value) for dimension, value in document.items())
