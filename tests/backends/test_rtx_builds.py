"""Real TensorRT-RTX in real children, without a GPU: what is built, what is refused, and in which words.

An engine of TensorRT-RTX can be built anywhere, loaded only on a GPU: so its layers, its size at run time and its speed are not
seen here, and a plan is known by its header.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rig.rtx import BACKEND, EXAMPLES, compile_request, example, supervisor
from rig.tiny import write_tiny_model

from tuner_job.api.child import ChildRequest, Limits, Phase, ShapeCase
from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.trial.supervisor import TrialEnd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test on a machine fetches the library

MAGIC = b"vtrt"
"""The first bytes of every plan of TensorRT-RTX 1.7."""
SILERO = next(path for path in EXAMPLES if path.stem == "silero-vad")


class Bench:
    """Runs children that find TensorRT-RTX; each keeps its output in a folder of its own."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        self._path = path
        self._number = itertools.count()

    def run(self, request: ChildRequest) -> TrialEnd:
        with supervisor(self.folder / "scratch", self._path) as children:
            return children.run(request, Limits())

    def compile(
        self,
        model: Path,
        cases: tuple[ShapeCase, ...] = (ShapeCase(name="static"),),
        candidate: Candidate = BASELINE,
        **more: object,
    ) -> tuple[TrialEnd, Path]:
        """How it ended, and the folder of what it wrote."""
        output = self.folder / f"output-{next(self._number)}"
        return self.run(compile_request(model, cases, output, candidate).model_copy(update=more)), output

    def built(self, *arguments: object, **more: object) -> bytes:
        end, output = self.compile(*arguments, **more)
        assert end.outcome is Outcome.FEASIBLE, f"{end.reason}\n{end.log}"
        return (output / "engine").read_bytes()


@pytest.fixture
def bench(tmp_path, rtx_path):
    return Bench(tmp_path, rtx_path)


def model_of(path, nodes, inputs, output_type=TensorProto.FLOAT, weights=(), opset=17):
    """An ONNX file with one output, `y`. Inputs: name → (type, dims)."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()],
        [helper.make_tensor_value_info("y", output_type, None)],
        list(weights),
    )
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)]), path)
    return path


X = {"x": (TensorProto.FLOAT, [2, 3])}


def dynamic(low, opt, high):
    return (ShapeCase(name="batch", tensors={"x": opt}, minimum={"x": low}, maximum={"x": high}),)


@pytest.fixture
def batched(tmp_path):
    """float32 [batch, 4] → [batch, 4]."""
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return model_of(tmp_path / "batched.onnx", [node], {"x": (TensorProto.FLOAT, ["batch", 4])}, weights=[weight])


@pytest.mark.parametrize("job", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_built(job, bench):
    model, cases = example(job)
    end, output = bench.compile(model, cases)
    assert end.outcome is Outcome.FEASIBLE, f"{end.reason}\n{end.log}"
    engine = (output / "engine").read_bytes()
    assert end.report.engine.size == len(engine) > model.stat().st_size / 3
    assert end.report.seconds[Phase.BUILD] > 0


def test_a_plan_says_by_which_version_it_was_made_and_how_long_it_is(bench, tmp_path, rtx_path):
    """All that its header tells without a GPU: a magic word, the length, the library's version."""
    (installed,) = importlib.metadata.distributions(name="tensorrt-rtx-cu13-libs", path=[rtx_path.split(os.pathsep)[0]])
    plan = bench.built(write_tiny_model(tmp_path / "tiny.onnx"))
    assert plan.startswith(MAGIC)
    assert int.from_bytes(plan[16:24], "little") == len(plan)
    assert ".".join(str(part) for part in plan[24:28]) == installed.version


def test_an_engine_has_a_profile_for_each_shape_case(batched, bench):
    """Every profile has kernels of its own, so two are about twice as large as one."""
    one = ShapeCase(name="one", tensors={"x": (1, 4)}, minimum={"x": (1, 4)}, maximum={"x": (1, 4)})
    many = ShapeCase(name="many", tensors={"x": (8, 4)}, minimum={"x": (8, 4)}, maximum={"x": (8, 4)})
    alone = len(bench.built(batched, (one,)))
    assert len(bench.built(batched, (one, many))) > 1.5 * alone
    assert len(bench.built(batched, (one, one.model_copy(update={"name": "again"})))) < 1.5 * alone


def test_axes_without_a_name_of_their_own_are_not_taken_for_one(bench, tmp_path):
    """Exporters write `?` for every open axis; TensorRT takes equal names for equal sizes."""
    node = helper.make_node("Relu", ["x"], ["y"])
    model = model_of(tmp_path / "anonymous.onnx", [node], {"x": (TensorProto.FLOAT, ["?", "?"])})
    bench.built(model, dynamic((2, 6), (2, 6), (2, 6)))


def test_external_data_is_found_beside_the_model(bench, tmp_path):
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32), "w")
    whole = model_of(
        tmp_path / "whole.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (TensorProto.FLOAT, [1, 64])},
        weights=[weight],
    )
    folder = tmp_path / "apart"
    folder.mkdir()
    onnx.save(onnx.load(whole), folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (folder / "model.onnx").stat().st_size < 4096
    assert len(bench.built(folder / "model.onnx")) > 64 * 64 * 4

    (folder / "weights.bin").rename(folder / "elsewhere.bin")
    end, _ = bench.compile(folder / "model.onnx")
    assert (end.outcome, end.bad_input) == (Outcome.REFUSED, True)
    assert "weights.bin" in end.reason

    shutil.copy(folder / "model.onnx", folder / "weights.bin")
    end, _ = bench.compile(folder / "model.onnx")
    assert (end.outcome, end.bad_input) == (Outcome.REFUSED, True)
    assert "weights.bin" in end.reason
    assert "out of range" in end.reason


def _unknown(name):
    return helper.make_node(name, ["x"], [f"{name}-out" if name != "Frobnicate" else "y"], name=f"the-{name}")


BAD_MODELS = {
    "garbage": (lambda path: path.write_bytes(b"\x00\x01no model" * 40), ["not an ONNX model"]),
    "empty": (lambda path: path.write_bytes(b""), ["not an ONNX model"]),
    "truncated": (lambda path: path.write_bytes(write_tiny_model(path).read_bytes()[:5000]), ["not an ONNX model", "truncated"]),
    "unknown operator": (
        lambda path: model_of(path, [_unknown("Frobnicate")], X),
        ["Frobnicate", "the-Frobnicate", "plugin"],
    ),
    "several errors": (
        lambda path: model_of(path, [_unknown("Frobnicate"), _unknown("Glorify"), _unknown("Det")], X),
        ["Frobnicate", "Glorify", "Det"],
    ),
    "strings": (
        lambda path: model_of(
            path, [helper.make_node("StringNormalizer", ["x"], ["y"])], {"x": (TensorProto.STRING, [1])}, TensorProto.STRING
        ),
        ["data type", "StringNormalizer"],
    ),
    "complex numbers": (
        lambda path: model_of(
            path, [helper.make_node("Add", ["x", "x"], ["y"])], {"x": (TensorProto.COMPLEX64, [2])}, TensorProto.COMPLEX64
        ),
        ["data type"],
    ),
    "mixed types": (
        lambda path: model_of(
            path, [helper.make_node("Add", ["x", "z"], ["y"], name="sum")], {**X, "z": (TensorProto.FLOAT16, [2, 3])}
        ),
        ["sum", "Float and Half"],
    ),
    "reshape that cannot be": (
        lambda path: model_of(
            path,
            [helper.make_node("Reshape", ["x", "shape"], ["y"], name="fold")],
            X,
            weights=[numpy_helper.from_array(np.array([4, 4]), "shape")],
        ),
        ["fold", "[2,3] to [4,4]"],
    ),
    "input that nothing makes": (
        lambda path: model_of(path, [helper.make_node("Add", ["x", "nowhere"], ["y"], name="sum")], X),
        ["sum", "not registered"],
    ),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_model_that_cannot_be_parsed_is_bad_input_and_says_why(case, bench, tmp_path):
    write, words = BAD_MODELS[case]
    write(tmp_path / "bad.onnx")
    end, output = bench.compile(tmp_path / "bad.onnx")
    assert (end.outcome, end.bad_input, end.phase) == (Outcome.REFUSED, True, Phase.BUILD)
    assert "bad.onnx" in end.reason
    assert [word for word in words if word not in end.reason] == []
    # Every error without a GPU brings one more line, about the driver; it is never the cause.
    assert "cudaError" not in end.reason
    assert not output.exists()


def test_float64_is_not_taken_for_float32_in_silence(bench, tmp_path):
    """The parser makes float32 of it and says nothing: outputs would be compared as what they are not."""
    node = helper.make_node("Add", ["x", "x"], ["y"])
    model = model_of(tmp_path / "double.onnx", [node], {"x": (TensorProto.DOUBLE, [2])}, TensorProto.DOUBLE)
    end, _ = bench.compile(model)
    assert (end.outcome, end.bad_input) == (Outcome.REFUSED, True)
    assert "float64" in end.reason.lower() or "double" in end.reason.lower()


@pytest.mark.parametrize(
    ("cases", "words"),
    [
        (dynamic((1, 5), (2, 5), (4, 5)), ["batch", "x", "5"]),
        (dynamic((1,), (2,), (4,)), ["batch", "x"]),
        (dynamic((3, 4), (2, 4), (4, 4)), ["batch", "x"]),
        ((ShapeCase(name="none"),), ["none", "x", "dynamic"]),
        ((ShapeCase(name="typo", tensors={"x": (1, 4), "z": (1, 4)}),), ["typo", "z"]),
    ],
    ids=["wrong size", "wrong rank", "minimum over optimum", "no shape", "no such input"],
)
def test_shapes_that_do_not_fit_are_bad_input(cases, words, batched, bench):
    end, _ = bench.compile(batched, cases)
    assert (end.outcome, end.bad_input) == (Outcome.REFUSED, True)
    assert [word for word in words if word not in end.reason] == []


TAKEN = {
    "optimizationLevel": ["0", "5"],
    "tilingOptimizationLevel": ["NONE", "FAST", "MODERATE", "FULL"],
    "l2LimitForTiling": ["0", "1048576"],
    "maxAuxStreams": ["0", "4"],
    "maxNumTactics": ["1", "10"],
    "avgTimingIterations": ["1", "8"],
    "workspaceBytes": ["1073741824"],
    "tacticSharedMemoryBytes": ["49152"],
    "tf32": ["on", "off"],
    "sparseWeights": ["on", "off"],
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_builder_setting_is_applied(name, bench, tmp_path):
    """Each is read back from the library after it was set, so that one which does not stick would not be feasible."""
    model = write_tiny_model(tmp_path / "tiny.onnx")
    for value in TAKEN[name]:
        assert bench.built(model, candidate=Candidate(settings={name: value})).startswith(MAGIC)


def test_a_setting_reaches_the_builder(bench):
    """TF32 decides the kernels' arithmetic: the plan without it is another one, every time."""
    model, cases = example(SILERO)
    usual = {bench.built(model, cases) for _ in range(3)}
    without = {bench.built(model, cases, Candidate(settings={"tf32": "off"})) for _ in range(3)}
    assert not usual & without


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizationLevel": "6"}, ["optimizationLevel", "0 to 5"]),  # the library makes 5 of it and says nothing
        ({"maxAuxStreams": "-1"}, ["maxAuxStreams", "0 to"]),  # the library warns and keeps what it had
        ({"maxNumTactics": "0"}, ["maxNumTactics", "1 to"]),
        ({"avgTimingIterations": "0"}, ["avgTimingIterations", "1 to"]),  # the library takes it
        ({"tacticSharedMemoryBytes": "2147483648"}, ["tacticSharedMemoryBytes", "1073741824"]),
        ({"tilingOptimizationLevel": "FASTER"}, ["tilingOptimizationLevel", "NONE, FAST, MODERATE, FULL"]),
        ({"tf32": "yes"}, ["tf32", "on, off"]),
        ({"workspaceBytes": "1 GiB"}, ["workspaceBytes", "1 GiB"]),
        ({"colour": "red"}, ["colour", "optimizationLevel"]),
    ],
    ids=lambda value: "-".join(f"{key}={each}" for key, each in value.items()) if isinstance(value, dict) else None,
)
def test_a_setting_that_does_not_exist_is_unsupported(settings, words, bench, tmp_path):
    end, _ = bench.compile(write_tiny_model(tmp_path / "tiny.onnx"), candidate=Candidate(settings=settings))
    assert end.outcome is Outcome.UNSUPPORTED
    assert [word for word in words if word not in end.reason] == []


@pytest.mark.parametrize("settings", [{"workspaceBytes": "0"}, {"tacticSharedMemoryBytes": "1"}], ids=str)
def test_a_setting_that_leaves_no_kernel_is_refused_in_the_librarys_words(settings, bench):
    """Another candidate may work, so this is no bad input."""
    model, cases = example(SILERO)
    end, output = bench.compile(model, cases, Candidate(settings=settings))
    assert (end.outcome, end.bad_input, end.phase) == (Outcome.REFUSED, False, Phase.BUILD)
    assert "Error Code" in end.reason
    assert not output.exists()


def test_a_knob_is_unsupported_for_want_of_a_tuner(bench, tmp_path):
    end, _ = bench.compile(write_tiny_model(tmp_path / "tiny.onnx"), candidate=Candidate(route="-kgen:tiling=2"))
    assert end.outcome is Outcome.UNSUPPORTED
    assert "has no tuner" in end.reason


def test_repeated_builds_differ_in_bytes_at_most(bench):
    """Builds are not bit-reproducible, which is why an engine is published and not a recipe; their size stays."""
    model, cases = example(SILERO)
    assert len({len(bench.built(model, cases)) for _ in range(4)}) == 1


def test_a_timing_cache_changes_nothing(bench, tmp_path):
    """TensorRT for RTX times nothing when it builds. Its cache is a deprecated no-op, so that none is kept for the next build."""
    model = write_tiny_model(tmp_path / "tiny.onnx")
    (tmp_path / "cache").write_bytes(b"no timing cache" * 10)
    end, output = bench.compile(model, timing_cache=str(tmp_path / "cache"))
    assert end.outcome is Outcome.FEASIBLE
    assert [path.name for path in output.iterdir()] == ["engine"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        ("not a library", "file too short"),
        ("/lib/x86_64-linux-gnu/libm.so.6", "brings no plugin"),
    ],
    ids=["absent", "text", "a library without plugins"],
)
def test_a_plugin_library_that_cannot_be_loaded_is_bad_input(content, words, bench, tmp_path):
    library = tmp_path / "plugin.so"
    if content is not None and os.path.exists(content):
        shutil.copy(content, library)
    elif content is not None:
        library.write_text(content)
    end, _ = bench.compile(write_tiny_model(tmp_path / "tiny.onnx"), plugins=(str(library),))
    assert (end.outcome, end.bad_input) == (Outcome.REFUSED, True)
    assert "plugin.so" in end.reason
    assert words in end.reason
    assert not end.reason.endswith(":")


def test_without_a_tuner_builder_settings_are_left_and_a_note_says_so(bench):
    end = bench.run(ChildRequest(operation="describe", backend=BACKEND, device="CPU", output=""))
    assert end.outcome is Outcome.FEASIBLE, f"{end.reason}\n{end.log}"
    described = end.report
    knobs = parse_knob_list(described.knobs)
    assert len(knobs) == 0
    assert "has no tuner" in knobs.missing
    assert any(knobs.missing in note for note in described.notes)
    assert {setting.name for setting in described.settings} == set(TAKEN)
    assert described.versions[BACKEND] in knobs.missing


def test_an_engine_is_not_loaded_without_a_gpu(bench, tmp_path):
    """It was built, so the reason must be the device, not the engine."""
    model = write_tiny_model(tmp_path / "tiny.onnx")
    request = compile_request(model, (ShapeCase(name="static"),), tmp_path / "tried").model_copy(update={"operation": "build"})
    end = bench.run(request)
    assert (end.outcome, end.phase) == (Outcome.CRASHED, Phase.LOAD)
    assert "cuda" in end.reason.lower()
