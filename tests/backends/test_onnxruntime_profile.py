"""What an engine of ONNX Runtime says of its nodes, and how the profiler's events are read."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from onnxruntime_graphs import conv_net

from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.measurement import Candidate
from tuner_job.backends.onnxruntime import OnnxRuntimeBackend
from tuner_job.backends.onnxruntime.profile import RUNS, read
from tuner_job.backends.protocol import BuildOrder

X = {"x": np.random.default_rng(7).standard_normal((1, 16, 12, 12)).astype(np.float32)}


def engine_of(folder: Path, route: str = ""):
    backend = OnnxRuntimeBackend("CPU")
    cases = [ShapeCase(name="c", tensors={"x": (1, 16, 12, 12)})]
    backend.build(BuildOrder(conv_net(folder / "m.onnx"), cases, Candidate(route=route), folder / "e"))
    return backend.load(folder / "e")


def test_every_node_is_there_with_its_operator_provider_type_and_time(tmp_path):
    with closing(engine_of(tmp_path, "-graph:level=disabled")) as engine:
        told = engine.profile(X)
    assert [layer.kind for layer in told.layers] == ["Identity", "Conv", "Add", "Relu", "Conv", "BatchNormalization", "Add"]
    assert {layer.tactic for layer in told.layers} == {"CPUExecutionProvider"}
    assert {layer.formats for layer in told.layers} == {("float",)}
    assert all(layer.seconds is not None and layer.seconds < 1 for layer in told.layers)
    assert told.runs == RUNS


def test_routes_that_fuse_show_it(tmp_path):
    with closing(engine_of(tmp_path)) as engine:
        assert len(engine.profile(X).layers) < 7


def test_profiling_leaves_no_file_and_an_engine_that_still_runs_and_can_be_timed(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(scratch)
    with closing(engine_of(tmp_path)) as engine:
        files = {path.name for path in scratch.rglob("*")}
        before = engine.run(X)["y"]
        engine.profile(X)
        assert {path.name for path in scratch.rglob("*")} == files
        assert np.array_equal(engine.run(X)["y"], before)
        assert (engine.timer(X, MeasureSettings()).sample(3) > 0).all()


def node(name: str, micros: int, provider: str = "CUDAExecutionProvider"):
    told = {"op_name": name.title(), "provider": provider, "output_type_shape": [{"float16": [1, 4]}]}
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": micros, "args": told}


def kernel(name: str, micros: int):
    return {"cat": "Kernel", "name": name, "dur": micros, "args": {}}


END = {"cat": "Session", "name": "model_run", "dur": 999, "args": {}}
WARM = [node("a", 5000), END] * 5


def test_the_first_runs_do_not_count_and_times_are_medians():
    runs = [event for micros in (10, 30, 20) for event in (node("a", micros), END)]
    told = read([*WARM, *runs], waited_for=True)
    assert [layer.seconds for layer in told.layers] == [pytest.approx(20e-6)]
    assert told.runs == 3


def test_the_time_of_a_node_on_a_gpu_is_that_of_its_kernels():
    run = [node("a", 900), kernel("gemm", 30), kernel("bias", 5), node("b", 7, "CPUExecutionProvider"), END]
    told = read([*WARM, *run], waited_for=False)
    assert [layer.seconds for layer in told.layers] == [pytest.approx(35e-6), pytest.approx(7e-6)]
    assert [layer.tactic for layer in told.layers] == ["CUDAExecutionProvider: gemm, bias", "CPUExecutionProvider"]


def test_launches_that_do_not_wait_give_no_time():
    told = read([*WARM, node("a", 10), END], waited_for=False)
    assert [(layer.kind, layer.formats, layer.seconds) for layer in told.layers] == [("A", ("float16",), None)]
    assert (told.runs, told.clock) == (0, "")


def test_a_node_in_a_loop_is_summed_over_a_run():
    told = read([*WARM, node("a", 10), node("a", 15), END], waited_for=True)
    assert [layer.seconds for layer in told.layers] == [pytest.approx(25e-6)]
