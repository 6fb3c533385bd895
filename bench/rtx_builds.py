"""Real builds: TensorRT for RTX builds every model of examples/ under each value of each builder setting.

    python -m bench.rtx_builds

No GPU is needed: TensorRT for RTX builds anywhere, for every GPU that it knows, and loads its engines only on one of them. So
this shows what is built, what is refused and in which words, how long it takes and what it changes in the engine's bytes; no
engine is timed, and none has a fingerprint of its layers. Every build is the product's own: a child of the supervisor, operation
`compile`. The library is fetched on the first use (scripts/tensorrt-rtx). Writes bench/results/tensorrt-rtx.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY / "tests")]

from rig.rtx import BACKEND, EXAMPLES, RtxUnavailable, compile_request, example, python_path, supervisor  # noqa: E402

from tuner_job.api.child import ChildReport, ChildRequest, Limits, Phase  # noqa: E402
from tuner_job.api.measurement import BASELINE, Candidate, EngineFile  # noqa: E402
from tuner_job.trial.supervisor import Supervisor  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "tensorrt-rtx.md"
DEFAULT_BUILDS = 12
"""Of each model: builds are not bit-reproducible, so one does not tell what the default's bytes are."""

NUMBERS = {
    "optimizationLevel": (0, 1, 2, 3, 4, 5),
    "l2LimitForTiling": (1 << 20, 1 << 24),
    "maxAuxStreams": (0, 1, 4),
    "maxNumTactics": (1, 10),
    "avgTimingIterations": (1, 8),
    "workspaceBytes": (0, 1 << 14, 1 << 20, 1 << 26, 1 << 30),
    "tacticSharedMemoryBytes": (0, 1 << 14, 48 << 10, 100 << 10, 1 << 20),
}
"""Values of settings that take any number of a range; of all others every value is tried."""


@dataclass(frozen=True)
class Tried:
    """One build."""

    model: str
    setting: str
    """Empty: the default."""
    value: str
    outcome: str
    seconds: float
    """In the builder: parsing included, start of the process not."""
    engine: EngineFile | None
    reason: str


def values_of(described: ChildReport) -> dict[str, tuple[str, ...]]:
    """Setting → values to try. Raises SystemExit where the backend offers one that is not known here."""
    unknown = [setting.name for setting in described.settings if not setting.values and setting.name not in NUMBERS]
    if unknown:
        raise SystemExit(f"bench.rtx_builds: the backend offers {', '.join(unknown)}; say in NUMBERS which values to try")
    return {
        setting.name: setting.values or tuple(str(number) for number in NUMBERS[setting.name]) for setting in described.settings
    }


def tries(settings: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Default builds before and after the others, so that whatever changes meanwhile shows in them."""
    yield from [("", "")] * (DEFAULT_BUILDS // 2)
    for name, values in settings.items():
        yield from ((name, value) for value in values)
    yield from [("", "")] * (DEFAULT_BUILDS - DEFAULT_BUILDS // 2)


def build(children: Supervisor, job: Path, setting: str, value: str) -> Tried:
    model, cases = example(job)
    candidate = Candidate(settings={setting: value}) if setting else BASELINE
    end = children.run(compile_request(model, cases, Path(), candidate).model_copy(update={"output": ""}), Limits())
    report = end.report
    return Tried(
        model=job.stem,
        setting=setting,
        value=value,
        outcome=str(end.outcome),
        seconds=report.seconds.get(Phase.BUILD, 0.0) if report else 0.0,
        engine=report.engine if report else None,
        reason=end.reason,
    )


def sameness(tried: Tried, defaults: Sequence[Tried]) -> str:
    """How the engine compares with the default builds of its model."""
    if tried.engine is None:
        return ""
    engines = [default.engine for default in defaults if default.engine is not None]
    if tried.engine.digest in {engine.digest for engine in engines}:
        return "same bytes as a default build"
    if tried.engine.size in {engine.size for engine in engines}:
        return "other bytes, same size"
    return "another size"


def page(rows: Sequence[Tried], described: ChildReport, when: str) -> str:
    """The result as Markdown."""
    models = list(dict.fromkeys(row.model for row in rows))
    defaults = {model: [row for row in rows if row.model == model and not row.setting] for model in models}
    built = sum(row.engine is not None for row in rows)
    lines = [
        "# Real builds with TensorRT for RTX",
        "",
        f"Written by `python -m bench.rtx_builds` at {when}: TensorRT for RTX {described.versions[BACKEND]} on "
        f"{platform.machine()}, {os.cpu_count()} cores, no GPU.",
        "",
        f"{len(rows)} builds in children of the supervisor, {built} built, {len(rows) - built} not. Engines of this library are "
        "loaded only on its GPUs: no engine is timed and none has a fingerprint of its layers, so they are compared as bytes. "
        "Seconds are those in the builder, the parser's included, on whatever else the machine did.",
        "",
        *(f"- {note}" for note in described.notes),
        "",
        "## Default builds",
        "",
        "| model | builds | median s | bytes | different engines among them |",
        "|---|---|---|---|---|",
    ]
    for model in models:
        engines = [row.engine for row in defaults[model] if row.engine is not None]
        lines.append(
            f"| {model} | {len(engines)} of {len(defaults[model])} | "
            f"{statistics.median(row.seconds for row in defaults[model]):.2f} | "
            f"{', '.join(f'{size:,}' for size in sorted({engine.size for engine in engines})) or '–'} | "
            f"{len({engine.digest for engine in engines})} |"
        )
    lines += [
        "",
        "## Each setting alone",
        "",
        "One build of each model. Seconds: over the models that were built.",
        "",
        "| setting | value | built | median s | engine |",
        "|---|---|---|---|---|",
    ]
    for setting, value in dict.fromkeys((row.setting, row.value) for row in rows if row.setting):
        of = [row for row in rows if (row.setting, row.value) == (setting, value)]
        done = [row for row in of if row.engine is not None]
        median = f"{statistics.median(row.seconds for row in done):.2f}" if done else "–"
        lines.append(f"| {setting} | {value} | {len(done)} of {len(of)} | {median} | {_engines(done, defaults)} |")
    lines += ["", "## What was not built", "", "| setting | models | outcome | reason |", "|---|---|---|---|"]
    refused: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.engine is None:
            setting = f"{row.setting} = {row.value}" if row.setting else "default"
            refused.setdefault((setting, row.outcome, row.reason), []).append(row.model)
    lines += [
        f"| {setting} | {_named(of, models)} | {outcome} | {_cell(reason)} |"
        for (setting, outcome, reason), of in sorted(refused.items())
    ]
    return "\n".join(lines) + "\n"


def _engines(done: Sequence[Tried], defaults: dict[str, list[Tried]]) -> str:
    kinds: dict[str, list[str]] = {}
    for row in done:
        kinds.setdefault(sameness(row, defaults[row.model]), []).append(row.model)
    return "; ".join(f"{kind}: {_named(of, list(defaults))}" for kind, of in kinds.items()) or "–"


def _named(of: Sequence[str], models: Sequence[str]) -> str:
    names = list(dict.fromkeys(of))
    return "all" if len(names) == len(models) > 1 else ", ".join(names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")[:300]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.rtx_builds", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--model", action="append", help="name of an example; all unless given, may be repeated")
    options = parser.parse_args(arguments)
    jobs = [job for job in EXAMPLES if not options.model or job.stem in options.model]
    if not jobs:
        parser.error(f"--model: there are {', '.join(job.stem for job in EXAMPLES)}")
    try:
        path = python_path()
    except RtxUnavailable as error:
        print(f"bench.rtx_builds: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="tensorrt-rtx-") as folder, supervisor(Path(folder), path) as children:
        end = children.run(ChildRequest(operation="describe", backend=BACKEND, device="CPU", output=""), Limits())
        if end.report is None or end.report.status != "ok":
            print(f"bench.rtx_builds: {end.reason}", file=sys.stderr)
            return 1
        rows = []
        for job in jobs:
            for setting, value in tries(values_of(end.report)):
                row = build(children, job, setting, value)
                rows.append(row)
                what = f"{row.setting} = {row.value}" if row.setting else "default"
                size = f"{row.engine.size:>12,} bytes" if row.engine else row.reason[:100]
                print(f"{row.model:16} {what:36} {row.outcome:10} {row.seconds:6.2f} s  {size}", flush=True)
    aside = options.output.with_name(f"{options.output.name}.part")
    aside.write_text(page(rows, end.report, datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")))
    aside.replace(options.output)
    print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
