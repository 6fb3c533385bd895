"""trtexec's tuning cache (`--tuningCacheFile`): JSON Lines, a header and one row per iteration.

The file says nothing of model, device or TensorRT version, so whoever imports it must vouch for them. What can be checked is:
every knob and value must be in the knob list, and the defaults that the file records must be the list's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tuner_job.api.base import InputError
from tuner_job.api.outcome import Outcome
from tuner_job.routes.expression import parse_expression
from tuner_job.routes.knobs import KnobList
from tuner_job.routes.route import Route, parse_route

_DECODER = json.JSONDecoder()


class BadTuningCache(InputError):
    """A file that is no tuning cache, or one of another knob list."""

    reason = "BadTuningCache"


@dataclass(frozen=True, slots=True)
class CacheHeader:
    """The first line, in trtexec's order of keys."""

    tuner_version: str = "unknown"
    accuracy_algorithm: str = "L0"
    """L0, L1, L2, LInf or Cosine."""
    atol: float = 1e-5
    rtol: float = 1e-5
    threshold: float = 0.0
    """`epsilon` in the file; a loss at or over it fails."""
    searching_algorithm: str = "fast"
    """fast, full or mixed."""
    command_line: str = ""
    default_build_route: str = ""
    tuning_expr: str = ""
    onnx: str = ""
    save_engine: str = ""
    inputs: dict[str, str] = field(default_factory=dict)
    ref_outputs: dict[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    """Only carried along, never run: trtexec replays it on `--continue`, so it is a command of whoever wrote the file."""


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One iteration."""

    iteration: int
    """Index in its phase: in phase 2 it starts at 0 again."""
    phase: int
    """1, or 2 after such a restart of a mixed search; the file does not say it."""
    route: Route
    crash: bool = False
    error_message: str = ""
    losses: dict[str, float] | None = None
    gpu_time: float | None = None
    """Mean, in milliseconds."""

    @property
    def outcome(self) -> Outcome:
        """As far as the row can tell: trtexec calls refused builds and real crashes both `crash`, and a NaN output too."""
        if self.crash:
            return Outcome.CRASHED
        if self.error_message:
            return Outcome.INFEASIBLE
        return Outcome.FEASIBLE if self.gpu_time is not None and self.gpu_time > 0 else Outcome.INVALID_OUTPUT


@dataclass(frozen=True, slots=True)
class TuningCache:
    """A whole file."""

    header: CacheHeader
    rows: tuple[CacheRow, ...]
    torn: bool = False
    """A row was cut off (trtexec died while writing) and is left out."""

    @property
    def winner(self) -> CacheRow | None:
        """The fastest feasible row, the earliest of equals; over all rows, whatever was resumed in between."""
        feasible = [row for row in self.rows if row.outcome is Outcome.FEASIBLE]
        return min(feasible, key=lambda row: row.gpu_time or math.inf, default=None)


def read_tuning_cache(text: str, knobs: KnobList, where: str = "tuning cache") -> TuningCache:
    """Parse the file's text. Raises BadTuningCache, or UnknownKnob, BadValue, BadRoute, all naming `where` and the line."""
    records: list[tuple[str, dict[str, object]]] = []
    torn = False
    lines = [(f"{where}, line {number}", line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for place, line in lines:
        objects, cut = _objects(line)
        if cut and (not (records or objects) or (not objects and place != lines[-1][0])):
            raise BadTuningCache(f"{place}: not JSON")
        torn |= cut
        records += [(place, _object(value, place)) for value in objects]
    if not records or "iter" in records[0][1]:
        raise BadTuningCache(f"{where}: no header line; is this a file that trtexec wrote with --tuningCacheFile?")
    header = _header(records[0][1])
    _check_header(header, knobs, records[0][0])
    rows: list[CacheRow] = []
    for place, record in records[1:]:
        row = _judged(_row(record, knobs, place), header.threshold)
        restarted = bool(rows) and (rows[-1].phase == 2 or row.iteration <= rows[-1].iteration)
        rows.append(replace(row, phase=2) if restarted and header.searching_algorithm == "mixed" else row)
    return TuningCache(header, tuple(rows), torn)


def write_tuning_cache(header: CacheHeader, rows: Sequence[CacheRow]) -> str:
    """The file's text, as trtexec writes it: a crash has neither losses nor a time. `read_tuning_cache` gives the rest back."""
    first: dict[str, object] = {
        "tuner_version": header.tuner_version,
        "accuracy_algorithm": header.accuracy_algorithm,
        "accuracy_parameter": {"atol": header.atol, "rtol": header.rtol, "epsilon": header.threshold},
        "searching_algorithm": header.searching_algorithm,
        "command_line": header.command_line,
        "default_build_route": header.default_build_route,
        "tuning_expr": header.tuning_expr,
        "files": {
            name: value
            for name, value in (
                ("onnx", header.onnx),
                ("save_engine", header.save_engine),
                ("inputs", header.inputs),
                ("ref_outputs", header.ref_outputs),
            )
            if value
        },
        "argv": list(header.argv),
    }
    lines = [
        first,
        *(
            {
                "iter": row.iteration,
                "build_route": str(row.route),
                "crash": row.crash,
                "error_message": row.error_message,
                "accuracy_loss": None if row.crash else row.losses or None,
                "gpu_time": None if row.crash else row.gpu_time,
            }
            for row in rows
        ),
    ]
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)


def default_build_route(knobs: KnobList) -> str:
    """Every knob at its default, as the header wants it. Not the empty route: their equality is unproven."""
    return " ".join(f"{knob.name}={knob.default}" for knob in knobs.knobs)


def _objects(line: str) -> tuple[list[object], bool]:
    """The JSON values on a line, and whether a piece of it was none.

    A healthy line holds one. After a row that was cut off, a resumed trtexec appends its first row to the same line.
    """
    found: list[object] = []
    cut = False
    position = 0
    while position >= 0 and line[position:].strip():
        try:
            value, position = _DECODER.raw_decode(line, position)
            found.append(value)
        except (ValueError, RecursionError):
            cut = True
            position = line.find('{"iter"', position + 1)
    return found, cut


def _object(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise BadTuningCache(f"{where}: not a JSON object")
    return value


def _check_header(header: CacheHeader, knobs: KnobList, where: str) -> None:
    for token in header.default_build_route.split():
        name, _, value = token.partition("=")
        default = knobs.find(name, f"{where}, default_build_route").default
        if value != default:
            raise BadTuningCache(
                f"{where}: {name} defaults to {value!a} there and to {default!a} in the knob list "
                f"(tuner {header.tuner_version} against {knobs.tuner_version}): its routes mean something else here"
            )
    parse_expression(header.tuning_expr, knobs, f"{where}, tuning_expr")


def _header(record: dict[str, object]) -> CacheHeader:
    accuracy, files = _dict(record.get("accuracy_parameter")), _dict(record.get("files"))
    argv = record.get("argv")
    return CacheHeader(
        tuner_version=_str(record.get("tuner_version")) or "unknown",
        accuracy_algorithm=_str(record.get("accuracy_algorithm")) or "L0",
        atol=_number(accuracy.get("atol")) or 0.0,
        rtol=_number(accuracy.get("rtol")) or 0.0,
        threshold=_number(accuracy.get("epsilon")) or 0.0,
        searching_algorithm=_str(record.get("searching_algorithm")) or "fast",
        command_line=_str(record.get("command_line")),
        default_build_route=_str(record.get("default_build_route")),
        tuning_expr=_str(record.get("tuning_expr")),
        onnx=_str(files.get("onnx")),
        save_engine=_str(files.get("save_engine")),
        inputs={k: _str(v) for k, v in _dict(files.get("inputs")).items()},
        ref_outputs={k: _str(v) for k, v in _dict(files.get("ref_outputs")).items()},
        argv=tuple(_str(a) for a in argv) if isinstance(argv, list) else (),
    )


def _row(record: dict[str, object], knobs: KnobList, where: str) -> CacheRow:
    iteration, route, crash = record.get("iter"), record.get("build_route"), record.get("crash")
    if not isinstance(iteration, int) or isinstance(iteration, bool) or not isinstance(route, str) or not isinstance(crash, bool):
        raise BadTuningCache(f"{where}: a row needs iter (integer), build_route (text) and crash (true or false)")
    losses = record.get("accuracy_loss")
    error_message = _str(record.get("error_message"))
    finite: dict[str, float] | None = None
    if isinstance(losses, dict):
        finite = {name: value for name, loss in losses.items() if (value := _number(loss)) is not None}
        if len(finite) < len(losses) and not error_message:
            error_message = "a loss is not finite"
    return CacheRow(
        iteration=iteration,
        phase=1,
        route=parse_route(route, knobs, where),
        crash=crash,
        error_message=error_message,
        losses=finite,
        gpu_time=_number(record.get("gpu_time")),
    )


def _judged(row: CacheRow, threshold: float) -> CacheRow:
    """A loss at or over the threshold fails, each output by itself, also where whoever wrote the row did not say so."""
    failed = {name: loss for name, loss in (row.losses or {}).items() if 0 < threshold <= loss}
    if not failed or row.crash or row.error_message:
        return row
    name, loss = max(failed.items(), key=lambda item: item[1])
    return replace(row, error_message=f"{name}: loss {loss:g} is at or over the threshold {threshold:g}")


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None  # also false for NaN and Inf
