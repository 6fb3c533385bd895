"""Whatever is wrong with a job: one clear line, a documented code, and nothing lost.

All through the real command: in a process of its own wherever workers start, and for every eighth of what is answered before.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_jobs import JOB, Answer, Job, copied, merged, tiny_model
from cli_stores import (
    CREDENTIALS,
    bound_by_permissions,
    closed_port,
    declared,
    lying_store,
    small_disk,
    without_room,
)
from onnx import helper
from rig.faulty import answering

from tuner_job.cli.exits import Exit
from tuner_job.store import layout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass
class Mistake:
    """One wrong thing, what the line must hold, and the code."""

    make: Callable[[Job], None]
    parts: tuple[str, ...]
    code: Exit = Exit.BAD_INPUT
    arguments: tuple[str, ...] = ()


def spec(*parts: str, **changes: object) -> Mistake:
    """A job whose spec has these changes."""
    return Mistake(lambda job: job.write(changes), parts)


def search(*parts: str, **changes: object) -> Mistake:
    return spec(*parts, search=changes)


def knobs(*parts: str, **changes: object) -> Mistake:
    return spec(*parts, search={"knobs": changes})


def text(before: str, after: str, *parts: str) -> Mistake:
    """A job file in which a person wrote `after` for `before`."""

    def make(job: Job) -> None:
        written = job.file.read_text()
        assert written.count(before) == 1, before
        job.file.write_text(written.replace(before, after))

    return Mistake(make, parts)


def model(change: Callable[[Path], object], *parts: str) -> Mistake:
    """A job whose model file was changed."""
    return Mistake(lambda job: change(job.folder / "model.onnx"), parts)


def nodes(*made: onnx.NodeProto) -> Callable[[Path], object]:
    return lambda path: onnx.save(tiny_model(nodes=[*made, helper.make_node("MatMul", ["h", "v"], ["y"])]), path)


def without_external_data(path: Path) -> None:
    onnx.save(tiny_model(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    path.with_name("weights.bin").unlink()


def references(*parts: str, **arrays: np.ndarray) -> Mistake:
    """A job with reference files of its own."""

    def make(job: Job) -> None:
        folder = job.folder / "refs"
        folder.mkdir()
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        job.write({"accuracy": {"source": "References", "generated": None, "references": {"uri": "refs"}}})

    return Mistake(make, parts)


def runtime(family: str, version: str, device: str, *parts: str) -> Mistake:
    document = {
        "apiVersion": "trtfleet.dev/v1alpha1",
        "kind": "TunerRuntime",
        "metadata": {"name": "other"},
        "spec": {"family": family, "version": version},
    }
    targets = [{"name": "cpu", "runtimeRef": {"name": "other"}, "device": {"type": device}}]
    return Mistake(lambda job: job.write({"targets": targets}, document), parts)


X = np.ones((1, 32), np.float32)
Y = np.zeros((1, 8), np.float32)
NAN = np.where(np.arange(8) == 3, np.nan, Y).astype(np.float32)

WRITTEN = {
    "unknown strategy": search("spec.search.strategy", "`Adaptve`", "did you mean `Adaptive`?", strategy="Adaptve"),
    "threshold of zero": spec("spec.accuracy.threshold", "`0`", "above 0", accuracy={"threshold": "0"}),
    "negative threshold": spec("spec.accuracy.threshold", "`-1`", "above 0", accuracy={"threshold": "-1"}),
    "threshold without metric": spec("spec.accuracy", "without its metric", "give both", accuracy={"metric": None}),
    "tight screening": spec("screeningThreshold", "must not be tighter", accuracy={"screeningThreshold": "0.0001"}),
    "opt outside of min and max": spec(
        "spec.model.shapes[one].tensors.x",
        "min is over opt",
        model={"shapes": [{"name": "one", "tensors": {"x": {"min": [2, 32], "opt": [1, 32], "max": [4, 32]}}}]},
    ),
    "misspelt field": text("budget:", "budgett:", "job.yaml:", "spec.budgett", "did you mean `budget`?"),
    "field in the wrong place": text(
        "  budget:\n    maxTrials", "  maxTrials: 3\n  budget:\n    maxTrials", "spec.budget.maxTrials"
    ),
    "number for text": text("threshold: '0.001'", "threshold: 0.001", "spec.accuracy.threshold", 'write "0.001" in quotes'),
    "duplicate key": text("  storeRef:", "  budget: {maxTrials: 3}\n  storeRef:", "spec.budget", "written twice"),
    "unquoted on": text(
        "      - -session:memory_pattern",
        "      - -session:memory_pattern\n      values:\n        -session:memory_pattern: [on]",
        "spec.search.knobs.values",
        "unquoted `on`",
        'write "on" in quotes',
    ),
    "not YAML": Mistake(lambda job: job.file.write_text("{"), ("job.yaml:1", "not YAML")),
    "empty file": Mistake(lambda job: job.file.write_text(""), ("job.yaml", "write a TuningJob")),
    "binary file": Mistake(lambda job: job.file.write_bytes(b"\xff\xfe\0"), ("job.yaml", "not UTF-8")),
    "job file missing": Mistake(lambda job: job.file.unlink(), ("job file job.yaml", "No such file", "give the path")),
    "two jobs": Mistake(
        lambda job: job.write({}, merged(JOB, {"metadata": {"name": "other"}})), ("tiny, other", "name one with --job")
    ),
    "unknown target": Mistake(lambda job: None, ("has no target gpu", "it has cpu"), arguments=("--target", "gpu")),
    "unknown runtime": spec(
        "spec.targets[cpu].runtimeRef",
        "no TunerRuntime is named onnxruntimee",
        "`onnxruntime` is the installed one",
        targets=[{"name": "cpu", "runtimeRef": {"name": "onnxruntimee"}, "device": {"type": "CPU"}}],
    ),
    "unknown store": spec("spec.storeRef", "no ArtifactStore is named locall", "`local` is", storeRef={"name": "locall"}),
    "suspended": spec("TuningJob tiny", "spec.suspend is true", "set it to false", suspend=True),
    "model missing": spec("model nowhere.onnx", "nowhere.onnx is missing", model={"uri": "nowhere.onnx"}),
    "model is a folder": spec("is a folder", "expected an ONNX file", model={"uri": "."}),
    "no such package": spec("no Python package 'nowhere'", "install it", model={"uri": "package://nowhere/model.onnx"}),
    "model changed": spec("model model.onnx", "its digest is", model={"digest": "sha256:" + "0" * 64}),
    "model truncated": model(lambda path: os.truncate(path, 5000), "model.onnx", "truncated"),
    "model empty": model(lambda path: os.truncate(path, 0), "model.onnx", "empty"),
    "model not ONNX": model(lambda path: path.write_text("no model\n" * 9), "model.onnx", "not an ONNX model"),
    "external data missing": model(without_external_data, "'weights.bin' is missing", "it must lie in"),
    "references missing": Mistake(
        lambda job: job.write({"accuracy": {"source": "References", "generated": None, "references": {"uri": "refs.npz"}}}),
        ("accuracy.references", "refs.npz does not exist"),
    ),
    "plugin missing": spec(
        "model.plugins[0]",
        "nowhere.so does not exist",
        model={"plugins": [{"uri": "nowhere.so", "digest": "sha256:" + "0" * 64}]},
    ),
    "unknown kind of store": Mistake(lambda job: None, ("ftp://x/y", "use one of file://"), arguments=("--store", "ftp://x/y")),
    "store in memory": Mistake(lambda job: None, ("memory://x", "use a folder"), arguments=("--store", "memory://x")),
    "unknown option": Mistake(
        lambda job: None, ("No such option '--wrkers'", "trtfleet run --help"), Exit.USAGE, ("--wrkers", "2")
    ),
    "value out of an option's range": Mistake(
        lambda job: None, ("'--workers'", "0 is not in the range", "trtfleet run --help"), Exit.USAGE, ("--workers", "0")
    ),
}
"""Mistakes that are answered before any worker starts."""

DISCOVERED = {
    "misspelt knob": knobs(
        "search.knobs.include", "'-session:memory_patern'", "nearest: -session:memory_pattern", include=["-session:memory_patern"]
    ),
    "unknown knob": knobs("search.knobs.include", "'-mha_fusion:*'", include=["-mha_fusion:*"]),
    "value out of range": knobs(
        "search.knobs.values",
        "-session:memory_pattern: 'maybe'",
        "allowed: on, off",
        values={"-session:memory_pattern": ["maybe"]},
    ),
    "nothing to search": knobs("search", "widen search.knobs", exclude=["*"]),
    "value out of range in an expression": search(
        "search.expression",
        "'of' is not allowed; allowed: on, off",
        strategy="Expression",
        expression="-session:memory_pattern=[on|of]",
        knobs=None,
    ),
    "torn expression": search(
        "search.expression", "bracket", strategy="Expression", expression="-session:memory_pattern=[on|off", knobs=None
    ),
    "value out of range in startWith": search(
        "search.startWith[0]", "'maybe' is not allowed", startWith=["-session:memory_pattern=maybe"]
    ),
    "strategy that is not installed": search(
        "search.strategy", "no strategy 'nowhere'", strategy="Custom", custom={"entryPoint": "nowhere"}
    ),
    "unknown option of a strategy": search("search.options", "no option 'capp'", options={"capp": "3"}),
    "too many candidates": search("budget.maxTrials", "4 trials", knobs={"include": ["*"]}),
    "misspelt input": spec(
        "model.shapes[one]",
        "no input 'xx'",
        "did you mean 'x'?",
        model={"shapes": [{"name": "one", "tensors": {"xx": {"opt": [1, 32]}}}]},
    ),
    "wrong rank": spec(
        "model.shapes[one].tensors[x].opt", "3 axes", model={"shapes": [{"name": "one", "tensors": {"x": {"opt": [1, 32, 1]}}}]}
    ),
    "size that the model fixes": spec(
        "tensors[x].opt", "which the model fixes at 32", model={"shapes": [{"name": "one", "tensors": {"x": {"opt": [1, 33]}}}]}
    ),
    "no shapes": spec("model.shapes", "give each a shape", model={"shapes": None}),
    "opset too new": model(lambda path: onnx.save(tiny_model(opset=99), path), "model.onnx", "opset 99", "maximum"),
    "unknown operator": model(
        nodes(helper.make_node("Swish", ["x", "w"], ["h"], domain="acme")), "operator acme:Swish", "a plugin that brings it"
    ),
    "unknown output": spec("accuracy.outputs", "no output 'z'", "they hold y", accuracy={"outputs": ["z"]}),
    "references with NaN": references("refs", "output y", "holds NaN at [0, 3]", x=X, y=NAN),
    "references of a wrong type": references(
        "y.npy", "output y is float64", "the model has float32", x=X, y=Y.astype(np.float64)
    ),
    "references of a wrong count": references("y.npy", "[1, 5]", "the model has float32 [n, 8]", x=X, y=Y[:, :5]),
    "references without an output": references("output 'y' is missing", "holds x", x=X),
    "references with a misspelt output": references("'yy'", "did you mean 'y'?", x=X, yy=Y),
    "references of no shape case": references(
        "x [2, 32]", "no case (one: x [1, 32])", x=np.ones((2, 32), np.float32), y=np.zeros((2, 8), np.float32)
    ),
    "baseline that fails": references(
        "the default build fails its own accuracy check", "l1 19", "threshold 0.001", "raise accuracy.threshold", x=X, y=Y
    ),
    "too few samples for P99": spec(
        "LatencyP99 needs 2000 samples", "raise measurement.sessions", objective={"metric": "LatencyP99"}
    ),
    "settings of a runtime without them": search(
        "search.builder.settings", "'tf32'", "has no builder settings", builder={"settings": {"tf32": ["off"]}}
    ),
    "plugins of a runtime without them": spec(
        "model.plugins", "load none", model={"plugins": [{"uri": "model.onnx", "digest": "sha256:" + "0" * 64}]}
    ),
    "another version of the runtime": runtime("ONNXRuntime", "1.0.0", "CPU", "ONNXRuntime 1.0.0", "install the version"),
    "runtime that is not installed": runtime("TensorRT", "11.2.1", "GPU", "no Python module tensorrt", "install tensorrt"),
}
"""Mistakes that the first worker finds."""

MISTAKES = WRITTEN | DISCOVERED


def served(job: Job) -> dict[str, bytes]:
    """All that a server of the published engine reads."""
    store = job.out / "store"
    return {
        str(path.relative_to(store)): path.read_bytes()
        for top in ("pointers", "manifests", "attestations", "blobs")
        for path in (store / top).rglob("*")
        if path.is_file() and not path.name.startswith(".aside-")
    }


@pytest.fixture(scope="module")
def answers(
    finished: tuple[Job, Answer], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[tuple[Answer, Job]]]]:
    """Each wanted mistake, made in a copy of the finished job. Two at a time, since most of each is processes starting."""
    root = tmp_path_factory.mktemp("mistakes")

    def answer(number: int, name: str) -> tuple[Answer, Job]:
        job, mistake = copied(finished[0], root / str(number)), MISTAKES[name]
        mistake.make(job)
        arguments = (*mistake.arguments, *(["--json"] if number % 4 == 0 else []))
        return (job.answer if inside(number, name) else job.call)(*arguments), job

    def inside(number: int, name: str) -> bool:
        return name in WRITTEN and number % 8 != 0

    wanted = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    numbered = [(number, name) for number, name in enumerate(MISTAKES) if name in wanted]
    made: dict[str, Future[tuple[Answer, Job]]] = {name: Future() for _, name in numbered}
    for number, name in numbered:
        if inside(number, name):  # all of them before any process starts: they borrow this one's folder and environment
            made[name].set_result(answer(number, name))
    with ThreadPoolExecutor(2) as pool:
        made |= {name: pool.submit(answer, number, name) for number, name in numbered if not inside(number, name)}
        yield made


def check(answer: Answer, code: Exit, *parts: str) -> str:
    """One line on standard error that holds all `parts`, the same under --json, and the code; returns the line."""
    said = [line for line in answer.err.splitlines() if line.startswith("trtfleet: ")]
    assert len(said) == 1, answer.err
    assert answer.err.splitlines()[-1] == said[0]
    line = said[0].removeprefix("trtfleet: ")
    for part in parts:
        assert part in line
    assert "Traceback" not in answer.err + answer.out
    assert answer.code == code
    if answer.out.startswith("{"):
        error = json.loads(answer.out)["error"]
        assert error["message"] == line
        assert error["reason"].isalnum()
    else:
        assert len(answer.err.splitlines()) == 1, "nothing but the line"
        assert "trtfleet:" not in answer.out
    return line


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_clear_line_and_costs_nothing(
    name: str, answers: dict[str, Future[tuple[Answer, Job]]], finished: tuple[Job, Answer]
) -> None:
    answer, job = answers[name].result()
    mistake = MISTAKES[name]
    check(answer, mistake.code, *mistake.parts)
    assert served(job) == served(finished[0]) or served(job).items() > served(finished[0]).items(), "the engine is served still"
    assert {key for key in served(job) if not key.startswith("blobs/")} == {
        key for key in served(finished[0]) if not key.startswith("blobs/")
    }
    assert job.leftovers() == []
    if name in WRITTEN:
        assert job.files() == {str(p.relative_to(finished[0].out)) for p in finished[0].out.rglob("*") if p.is_file()}
    shutil.rmtree(job.folder)


def test_several_mistakes_get_a_line_each(job: Job) -> None:
    job.file.write_text(job.file.read_text().replace("budget:", "budgett:").replace("threshold: '0.001'", "threshold: 0.001"))
    answer = job.answer("--json")
    lines = answer.err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("trtfleet: job.yaml:") for line in lines)
    assert answer.json["error"]["message"].splitlines() == [line.removeprefix("trtfleet: ") for line in lines]
    assert answer.code == Exit.BAD_INPUT


@pytest.mark.parametrize(
    ("status", "code", "parts"),
    [
        (403, Exit.STORE_UNUSABLE, ("s3://bucket/prefix", "cannot write", "write access")),
        (507, Exit.STORE_UNUSABLE, ("s3://bucket/prefix", "full", "make room")),
    ],
    ids=["read-only", "full"],
)
def test_a_bucket_that_cannot_be_written(job: Job, status: int, code: Exit, parts: tuple[str, ...]) -> None:
    with answering() as stub:
        stub.status, stub.put_status = 404, status
        job.write({"storeRef": {"name": "remote"}}, declared(stub.endpoint))
        job.env |= CREDENTIALS
        check(job.call(), code, *parts)
    assert job.leftovers() == []


def test_a_store_that_does_not_answer(job: Job) -> None:
    job.write({"storeRef": {"name": "remote"}}, declared(closed_port()))
    job.env |= CREDENTIALS
    check(job.call(), Exit.STORE_UNUSABLE, "s3://bucket/prefix", "check that the store is up and its endpoint right")
    assert job.leftovers() == []


def test_a_store_that_lies_about_conditions(job: Job) -> None:
    with lying_store() as endpoint:
        job.write({"storeRef": {"name": "remote"}}, declared(endpoint))
        job.env |= CREDENTIALS
        line = check(job.call(), Exit.BAD_INPUT, "s3://bucket/prefix", "ignores conditions", "If-None-Match")
    assert "workers would overwrite each other" in line
    assert job.leftovers() == []


def test_a_folder_that_cannot_be_written(job: Job) -> None:
    closed = job.folder / "closed"
    closed.mkdir(mode=0o555)
    answer = job.call("--store", "closed", preexec_fn=bound_by_permissions)
    check(answer, Exit.STORE_UNUSABLE, closed.as_uri(), "Permission denied", "make the folder writable")
    assert list(closed.iterdir()) == []
    answer = job.call("--folder", "closed/out", "--store", "store", preexec_fn=bound_by_permissions)
    check(answer, Exit.STORE_UNUSABLE, "closed/out", "Permission denied")


def test_a_folder_without_room(job: Job) -> None:
    answer = job.call("--store", "other", preexec_fn=without_room)
    check(answer, Exit.STORE_UNUSABLE, (job.folder / "other").as_uri(), "File too large", "make room")
    assert [path for path in (job.folder / "other").rglob("*") if path.is_file()] == []


def test_a_file_where_the_store_should_be(job: Job) -> None:
    check(job.call("--store", "model.onnx"), Exit.STORE_UNUSABLE, "model.onnx", "a file stands where a folder should be")


def test_no_space_for_scratch_files(job: Job) -> None:
    with small_disk(job.folder / "small") as there_is_one:
        if not there_is_one:
            pytest.skip("mounting a small file system needs privileges")
        answer = job.call("--folder", "small/out", "--store", "other")
        check(answer, Exit.STORE_UNUSABLE, "small/out/scratch", "MiB free", "--folder")
        assert list((job.folder / "small" / "out" / "scratch").iterdir()) == []


def test_a_key_that_cannot_be_made_is_met_before_the_run(job: Job) -> None:
    job.env["TRTFLEET_CONFIG"] = str(job.file / "config")
    answer = job.call("--rerun", "new")
    check(answer, Exit.BAD_INPUT, "cannot be written", "set TRTFLEET_CONFIG")
    assert answer.out == ""


@pytest.mark.parametrize(("version", "age"), [(0, "older"), (2, "newer")])
@pytest.mark.parametrize("record", ["run.json", "discovery.json", "rounds/1/plan.json", "verdict.json"])
def test_a_record_of_another_schema_is_refused(
    job: Job, finished: tuple[Job, Answer], record: str, version: int, age: str
) -> None:
    run = finished[1].out.split()[1]
    path = job.out / "store" / layout.run_prefix(run) / record
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schemaVersion": version}))
    line = check(job.answer(), Exit.BAD_INPUT, record, f"schema version {version} is {age}", "--rerun")
    assert run in line
    assert served(job) == served(finished[0])


def test_a_run_that_another_device_began(job: Job, finished: tuple[Job, Answer]) -> None:
    folder = job.out / "store" / layout.run_prefix(finished[1].out.split()[1])
    (folder / "verdict.json").unlink()
    shutil.rmtree(folder / "trials" / "final")
    discovery = json.loads((folder / "discovery.json").read_text())
    (folder / "discovery.json").write_text(json.dumps(discovery | {"device": discovery["device"] | {"product": "Other CPU"}}))
    check(job.call(), Exit.WRONG_DEVICE, "discovered on Other CPU", "--rerun")
    assert served(job) == served(finished[0])
    assert job.leftovers() == []


def test_a_record_that_is_no_record_is_refused(job: Job, finished: tuple[Job, Answer]) -> None:
    run = finished[1].out.split()[1]
    (job.out / "store" / layout.discovery(run)).write_bytes(b"torn {")
    check(job.call(), Exit.BAD_INPUT, layout.discovery(run), "not a valid DiscoveryRecord")
