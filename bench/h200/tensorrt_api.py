"""What our TensorRT backend and the real TensorRT 11.2.1.2 do with each other on a GPU for which no public package has kernels.

    python -m bench.h200.tensorrt_api --libraries FOLDER --output tensorrt-api

FOLDER holds TensorRT's shared libraries as org.bytedeco:tensorrt:11.2-1.5.14 (Maven Central, classifier linux-x86_64-redist)
brings them; the module is tensorrt_cu13_bindings 11.2.1.2 from PyPI. The builder wants libnvinfer_builder_resource_sm90, which no
registry carries. Without it no builder can be made. With the package's PTX library under that name there are builder, parser,
config and knob list, but every build ends: so all is checked up to the build, and that the failure is reported as one.

Children are the campaign's own (trial.supervisor). What only a process with the library can see is done by the backend's own
functions in a process of its own (`--inside`). Writes <output>.json and <output>.md; exit code 1 when a check did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tuner_job.api.base import InputError
from tuner_job.api.child import ChildRequest, Limits, Phase, ShapeCase
from tuner_job.api.measurement import BuilderSetting, Candidate
from tuner_job.model.fetch import fetch
from tuner_job.model.inspect import inspect
from tuner_job.model.shapes import resolve_cases
from tuner_job.routes.curated import curated_values
from tuner_job.routes.knobs import KnobList, parse_knob_list
from tuner_job.routes.route import parse_route
from tuner_job.trial.supervisor import Supervisor, TrialEnd

ROOT = Path(__file__).parents[2]
LISTED = ROOT / "tests" / "data" / "all_build_routes-11.2.1.2.json"
SEMANTICS = ROOT / "tests" / "data" / "build_route_semantics-11.2.1.2.json"
RESOURCE = "libnvinfer_builder_resource_{}.so.11.2.1"
SETTINGS = (
    *("optimizationLevel", "tilingOptimizationLevel", "l2LimitForTiling", "maxAuxStreams", "maxNumTactics"),
    *("avgTimingIterations", "workspaceBytes", "tacticSharedMemoryBytes", "tf32", "sparseWeights"),
)

MODELS: dict[str, tuple[str, tuple[ShapeCase, ...]]] = {
    "magika": (
        "package://magika/models/standard_v3_3/model.onnx",
        (ShapeCase(name="files", tensors={"bytes": (1, 2048)}, minimum={"bytes": (1, 2048)}, maximum={"bytes": (8, 2048)}),),
    ),
    "silero-vad": ("package://silero_vad/data/silero_vad_openvino_16k.onnx", ()),
    "ocr-detector": (
        "package://rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        (ShapeCase(name="thumbnail", tensors={"x": (1, 3, 192, 192)}), ShapeCase(name="page", tensors={"x": (1, 3, 480, 320)})),
    ),
    "ocr-recogniser": (
        "package://rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        (ShapeCase(name="line", tensors={"x": (1, 3, 48, 320)}),),
    ),
    "ocr-classifier": (
        "package://rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        (ShapeCase(name="six-lines", tensors={"x": (6, 3, 48, 192)}),),
    ),
    "cnn": (str(ROOT / "build" / "cnn.onnx"), ()),
    "minilm": (str(ROOT / "build" / "minilm.onnx"), ()),
    "minilm-fp16": (str(ROOT / "build" / "minilm-fp16.onnx"), ()),
}
"""URI and shape cases (empty: static)."""


@dataclass
class Check:
    """One thing that was expected, and what was found."""

    name: str
    expected: str
    ok: bool
    found: str
    seconds: float = 0.0


@dataclass
class Found:
    checks: list[Check] = field(default_factory=list)
    details: dict[str, object] = field(default_factory=dict)

    def check(self, name: str, expected: str, ok: bool, found: object, seconds: float = 0.0) -> None:
        self.checks.append(Check(name, expected, bool(ok), str(found)[:1000], round(seconds, 2)))
        print(f"{'ok  ' if ok else 'WRONG'} {name}: {str(found)[:200]}", file=sys.stderr, flush=True)


def model_of(name: str) -> tuple[Path, tuple[ShapeCase, ...]]:
    uri, cases = MODELS[name]
    path = fetch(uri, ROOT / "build")
    return path, resolve_cases(inspect(path), cases)


# ---- Children ----


class Children:
    """Children of the TensorRT backend under one set of libraries."""

    def __init__(self, root: Path, found: Found, libraries: list[Path], ends: float) -> None:
        path = ":".join([*map(str, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        self.supervisor = Supervisor(root / "trials", extra_environment={"LD_LIBRARY_PATH": path})
        self._root, self._found, self._ends = root, found, ends
        self._count = 0

    def run(self, operation: str, *, model: str = "", candidate: Candidate | None = None, path: Path | None = None) -> TrialEnd:
        cases: tuple[ShapeCase, ...] = ()
        if model:
            path, cases = model_of(model)
        self._count += 1
        request = ChildRequest.model_validate(
            {
                "operation": operation,
                "backend": "tensorrt",
                "device": "GPU",
                "model": str(path or ""),
                "cases": cases,
                "candidate": candidate or Candidate(),
                "output": "" if operation == "describe" else str(self._root / f"out-{self._count}"),
            }
        )
        left = max(2.0, min(40.0, self._ends - time.monotonic()))
        return self.supervisor.run(request, Limits(phase_seconds=dict.fromkeys(Phase, left)))

    def expect(
        self, name: str, expected: str, holds: Callable[[TrialEnd], bool], operation: str, **arguments: object
    ) -> TrialEnd | None:
        if time.monotonic() > self._ends:
            self._found.check(name, expected, False, "not run: out of time")
            return None
        end = self.run(operation, **arguments)  # type: ignore[arg-type]
        status = end.report.status if end.report else "no report"
        found = f"{end.outcome.value} in {end.phase.value} ({status}): {end.reason or 'no reason'}"
        self._found.check(name, expected, holds(end), found, end.seconds.get("total", 0.0))
        if end.outcome.value in ("crashed", "hung", "infrastructure"):
            self._found.details[f"log of {name}"] = end.log[-2000:]
        return end


def refused(*words: str) -> Callable[[TrialEnd], bool]:
    return lambda end: end.outcome.value == "refused" and not end.bad_input and all(word in end.reason for word in words)


def unsupported(*words: str) -> Callable[[TrialEnd], bool]:
    return lambda end: end.outcome.value == "unsupported" and all(word in end.reason for word in words)


def bad_model(*words: str) -> Callable[[TrialEnd], bool]:
    return lambda end: end.bad_input and all(word in end.reason for word in words)


def children(found: Found, root: Path, libraries: Path, linked: Path, ends: float) -> None:
    with_link = Children(root / "with", found, [linked, libraries], ends)
    described(found, with_link.expect("describe", "feasible", lambda end: end.outcome.value == "feasible", "describe"))
    words = "Klib 0 failed validation"
    text = f"refused, with the library's own words ({words})"
    with_link.expect("build of magika", text, refused(words), "compile", model="magika")
    with_link.expect("build of the OCR detector, two profiles", text, refused(words), "compile", model="ocr-detector")
    route = Candidate(route="-copy_ppg=off -slice_fusion=off", settings={"optimizationLevel": "2", "tf32": "off"})
    with_link.expect("build with a route and settings", text, refused(words), "compile", model="minilm", candidate=route)
    for name, candidate, word in (
        ("unknown knob", Candidate(route="-nope=1"), "unknown knob"),
        ("wrong value of a knob", Candidate(route="-copy_ppg=banana"), "not allowed"),
        ("unknown setting", Candidate(settings={"optimisationLevel": "3"}), "optimisationLevel"),
        ("setting out of range", Candidate(settings={"optimizationLevel": "6"}), "not allowed"),
    ):
        with_link.expect(name, "unsupported, before any build", unsupported(word), "compile", model="magika", candidate=candidate)
    for name, path in bad_files(root):
        with_link.expect(f"model file: {name}", "bad input, named", bad_model(path.name), "compile", path=path)
    without = Children(root / "without", found, [libraries], ends)
    word = RESOURCE.format("sm90")
    without.expect("build without the SM90 library", f"refused, naming {word}", refused(word), "compile", model="magika")
    without.expect(
        "describe without the SM90 library",
        f"no device usable, naming {word}",
        lambda end: end.outcome.value != "feasible" and word in end.reason,
        "describe",
    )


def described(found: Found, end: TrialEnd | None) -> None:
    report = end.report if end else None
    if report is None or report.device is None:
        return
    found.details |= {
        "device": report.device.model_dump(),
        "versions": report.versions,
        "notes": list(report.notes),
        "state": report.state.model_dump() if report.state else None,
        "settings": [one.model_dump() for one in report.settings],
    }
    found.check("version", "11.2.1.2", report.versions.get("tensorrt") == "11.2.1.2", report.versions)
    known = report.state.model_dump(exclude_none=True) if report.state else {}
    wanted = ("uuid", "vbios", "sm_clock_mhz", "power_watts", "power_limit_watts", "temperature_celsius", "memory_total_bytes")
    found.check(
        "state by NVML", f"at least {', '.join(wanted)}", all(known.get(name) for name in wanted), ", ".join(sorted(known))
    )
    listed, real = parse_knob_list(LISTED.read_text()), parse_knob_list(report.knobs or "")
    same = json.loads(LISTED.read_text()) == json.loads(report.knobs or "{}")
    found.check(
        "knob list",
        f"equal to tests/data/{LISTED.name}: {len(listed)} knobs, {len(listed.bounded)} bounded, tuner {listed.tuner_version}",
        same,
        f"{len(real)} knobs, {len(real.bounded)} bounded, tuner {real.tuner_version}",
    )
    names = [one.name for one in report.settings]
    found.check("builder settings", ", ".join(SETTINGS), sorted(names) == sorted(SETTINGS), ", ".join(names))


def bad_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Files that no parser can take."""
    import onnx
    from onnx import TensorProto, helper

    text, cut, unknown = root / "text.onnx", root / "cut.onnx", root / "unknown-operator.onnx"
    text.write_text("this is no model\n")
    cut.write_bytes(model_of("ocr-classifier")[0].read_bytes()[:100_000])
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="example.org")
    graph = helper.make_graph([node], "unknown", info[:1], info[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("example.org", 1)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), unknown)
    yield from (("no ONNX", text), ("truncated", cut), ("unknown operator", unknown))


# ---- Inside a process that has the library ----


def inside(output: Path) -> None:
    from tuner_job.backends.tensorrt import network, settings
    from tuner_job.backends.tensorrt.library import find
    from tuner_job.backends.tensorrt.log import Log

    found = Found()
    library = find("tensorrt")
    log = Log(library.module)
    builder = library.builder(log)
    knobs = parse_knob_list(library.knob_text(builder.create_builder_config()))
    began = time.monotonic()
    wrong, count = knob_values(builder, knobs)
    found.check(
        f"all {count} listed values of bounded knobs: our validation, the real setter, read back",
        "404 of 404",
        not wrong and count == 404,
        f"{count - len(wrong)} of {count}; wrong: {wrong[:5]}",
        time.monotonic() - began,
    )
    curated = [(knob.name, value) for knob in knobs.knobs if knob.values is None for value in curated_values(knob)]
    wrong = [problem for name, value in curated if (problem := set_and_read(builder, knobs, f"{name}={value}"))]
    names = {name for name, _ in curated}
    said = f"{len(curated)} values of {len(names)} knobs; wrong: {wrong[:5]}"
    found.check("curated values of unbounded knobs: the same", "all", bool(curated) and not wrong, said)
    kept, ours = setter_answers(builder, knobs)
    found.details["strings that the setter keeps"] = kept
    found.check(
        "strings that are no route",
        "our validation refuses each one that names no listed knob and value",
        ours["wrong"] == [],
        ours,
    )

    began = time.monotonic()
    accepted: dict[str, list[str]] = {}
    rejected: dict[str, str] = {}
    for one in settings.offered(library.module, builder.create_builder_config()):
        for value in values_of(one):
            try:
                settings.apply(library.module, builder.create_builder_config(), {one.name: value})
                accepted.setdefault(one.name, []).append(value)
            except Exception as error:  # whatever it is, it is the finding
                rejected[f"{one.name}={value}"] = f"{type(error).__name__}: {error}"[:300]
    found.details |= {"settings accepted": accepted, "settings rejected": rejected}
    total = sum(map(len, accepted.values()))
    found.check(
        "every builder setting on the real config, read back",
        "all accepted",
        not rejected,
        f"{total} values of {len(accepted)} settings accepted; rejected: {rejected}",
        time.monotonic() - began,
    )

    for name in MODELS:
        began = time.monotonic()
        try:
            path, cases = model_of(name)
            parsed = network.parse(library, builder, path, log)
            config = builder.create_builder_config()
            profiles = network.add_profiles(builder, config, parsed.network, cases, name)
            inputs = {tensor.name: tuple(tensor.shape) for tensor in network.inputs(parsed.network)}
            said = f"{parsed.network.num_layers} layers, inputs {inputs}, {profiles} profiles; {log.text() or 'no message'}"
            found.check(f"parse {name}", "parsed, with its profiles", True, said, time.monotonic() - began)
        except Exception as error:  # the same
            found.check(f"parse {name}", "parsed, with its profiles", False, f"{type(error).__name__}: {error}")
    output.write_text(json.dumps(asdict(found)))


def knob_values(builder: object, knobs: KnobList) -> tuple[list[str], int]:
    """Routes of one value each that our validation refuses, or that do not read back; and how many values there are."""
    wrong, count = [], 0
    for knob in knobs.bounded:
        for value in knob.values or ():
            count += 1
            if problem := set_and_read(builder, knobs, f"{knob.name}={value}"):
                wrong.append(problem)
    return wrong, count


def set_and_read(builder: object, knobs: KnobList, route: str) -> str:
    """What is wrong with it; empty if nothing is."""
    config = builder.create_builder_config()  # type: ignore[attr-defined]
    try:
        config.build_route = str(parse_route(route, knobs))
    except InputError as error:
        return str(error)
    return "" if config.build_route == route else f"{route} reads back as {config.build_route!r}"


def setter_answers(builder: object, knobs: KnobList) -> tuple[dict[str, bool], dict[str, list[str]]]:
    """Which strings of the recorded semantics the real setter keeps, and what our validation says of them."""
    kept: dict[str, bool] = {}
    ours: dict[str, list[str]] = {"accepted": [], "refused": [], "wrong": []}
    for text in [entry["set"] for entry in json.loads(SEMANTICS.read_text())]:
        config = builder.create_builder_config()  # type: ignore[attr-defined]
        config.build_route = text
        kept[ascii(text)[:80]] = config.build_route == text
        tokens = text.split()
        fine = all(
            "=" in token and (name := token.split("=", 1)[0]) in knobs and knobs.find(name).accepts(token.split("=", 1)[1])
            for token in tokens
        ) and len({token.split("=")[0] for token in tokens}) == len(tokens)
        try:
            parse_route(text, knobs)
            ours["accepted"].append(ascii(text)[:60])
            if not fine:
                ours["wrong"].append(ascii(text)[:60])
        except InputError:
            ours["refused"].append(ascii(text)[:60])
    return kept, ours


def values_of(setting: BuilderSetting) -> list[str]:
    """All listed values; of a number all of a short range, else both ends and what lies between."""
    if setting.values:
        return list(setting.values)
    if setting.high - setting.low < 16:
        return [str(value) for value in range(setting.low, setting.high + 1)]
    between = [value for value in (1, 4, 64, 1 << 16, 1 << 20, 1 << 30, 1 << 33) if setting.low < value < setting.high]
    return [str(value) for value in (setting.low, *between, setting.high)]


# ---- Both ----


@contextmanager
def linked_folder(root: Path, libraries: Path) -> Iterator[Path]:
    """A folder with the PTX library under the SM90 library's name."""
    folder = root / "linked"
    folder.mkdir()
    (folder / RESOURCE.format("sm90")).symlink_to((libraries / RESOURCE.format("ptx")).resolve())
    yield folder


def markdown(found: Found) -> str:
    held = sum(check.ok for check in found.checks)
    device: Mapping[str, object] = found.details.get("device") or {}  # type: ignore[assignment]
    lines = [
        "# Our backend on the real TensorRT",
        "",
        f"`python -m bench.h200.tensorrt_api`: {held} of {len(found.checks)} checks held. "
        f"{found.details.get('versions')}; {device.get('product')}, driver {device.get('driver')}.",
        "",
        "| check | expected | held | found | s |",
        "|---|---|---|---|---|",
    ]
    for one in found.checks:
        text = one.found.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {one.name} | {one.expected} | {'yes' if one.ok else '**no**'} | {text[:400]} | {one.seconds:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", type=Path, help="folder with TensorRT's shared libraries")
    parser.add_argument("--output", type=Path, help="path without suffix")
    parser.add_argument("--budget-seconds", type=float, default=85.0)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.inside)
        return 0
    ends = time.monotonic() + options.budget_seconds
    found = Found()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tensorrt-api-") as folder, linked_folder(Path(folder), options.libraries) as linked:
        root = Path(folder)
        for name in ("with", "without"):
            (root / name).mkdir()
        try:
            environment = os.environ | {
                "LD_LIBRARY_PATH": ":".join([str(linked), str(options.libraries), os.environ.get("LD_LIBRARY_PATH", "")])
            }
            done = subprocess.run(
                [sys.executable, "-m", "bench.h200.tensorrt_api", "--inside", str(root / "inside.json")],
                env=environment,
                timeout=max(5.0, (ends - time.monotonic()) / 2),
                check=False,
                capture_output=True,
                text=True,
            )
            found.details["messages inside"] = done.stderr[-6000:]
            if (root / "inside.json").exists():
                there = json.loads((root / "inside.json").read_text())
                found.checks += [Check(**check) for check in there["checks"]]
                found.details |= there["details"]
            else:
                found.check("inside", "ran to its end", False, f"exit {done.returncode}: {done.stderr.strip()[-900:]}")
        except subprocess.TimeoutExpired as error:
            found.check("inside", "ran to its end", False, f"still running after {error.timeout:.0f} s")
        try:
            children(found, root, options.libraries, linked, ends)
        finally:
            options.output.with_name(f"{options.output.name}.json").write_text(
                json.dumps(asdict(found), indent=1, default=str) + "\n"
            )
            options.output.with_name(f"{options.output.name}.md").write_text(markdown(found))
    print(f"{sum(check.ok for check in found.checks)} of {len(found.checks)} checks held")
    return 0 if all(check.ok for check in found.checks) else 1


if __name__ == "__main__":
    sys.exit(main())
