"""The child's entry point, started by hand and with the real ONNX Runtime backend."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from trial_helpers import QUICK, hurried

from tuner_job.api.child import REPORT_FILE, REQUEST_FILE, ChildReport, ChildRequest, Phase, ShapeCase
from tuner_job.api.outcome import Outcome
from tuner_job.api.tensors import TensorSpec
from tuner_job.backends import child
from tuner_job.trial.supervisor import CHILD_COMMAND, Supervisor


@pytest.fixture
def model(tmp_path):
    """y = relu(x W)."""
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32), "W")
    nodes = [helper.make_node("MatMul", ["x", "W"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [weights])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_the_onnxruntime_backend_runs_a_trial_from_end_to_end(supervisor, root, limits, model, tmp_path):
    common = {"backend": "onnxruntime", "model": str(model), "cases": (ShapeCase(name="static"),), "measure": QUICK}
    references = tmp_path / "references"
    with Supervisor(root) as real:
        made = real.run(
            ChildRequest(
                operation="reference",
                inputs=(TensorSpec(name="x", dtype="float32", dims=(1, 16)),),
                samples=3,
                output=str(references),
                **common,
            ),
            limits,
        )
        assert made.outcome is Outcome.FEASIBLE, made.reason
        output = tmp_path / "out"
        end = real.run(ChildRequest(operation="trial", references=str(references), output=str(output), **common), limits)
        assert end.outcome is Outcome.FEASIBLE, end.reason
        assert end.report.losses.samples == 3
        assert end.report.timing[0].sessions[0].median > 0
        assert (output / "engine").stat().st_size == end.report.engine.size
        model.write_bytes(b"no model at all")
        end = real.run(ChildRequest(operation="trial", references=str(references), output="", **common), limits)
        assert end.bad_input
        assert "model.onnx" in end.reason


def test_a_child_started_by_hand_needs_only_its_folder(tmp_path):
    request = ChildRequest(operation="describe", backend="absent", output=str(tmp_path))
    (tmp_path / REQUEST_FILE).write_bytes(request.to_json())
    subprocess.run([*CHILD_COMMAND, str(tmp_path)], check=True, stdin=subprocess.DEVNULL)
    report = ChildReport.from_json((tmp_path / REPORT_FILE).read_bytes())
    assert (report.status, report.phase) == ("invalidInput", Phase.START)
    assert report.reason.startswith("backend 'absent': not installed (entry points trtfleet.backends: onnxruntime")
    assert report.detail == {"fault": "runtime"}, "and not the job's"


def test_a_waiting_child_leaves_quietly_when_nobody_wants_it(tmp_path):
    command = [*CHILD_COMMAND, str(tmp_path), "--wait", "absent"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_child_whose_parent_is_gone_does_nothing(tmp_path):
    done = subprocess.run([*CHILD_COMMAND, str(tmp_path), "--parent", "1"], stdin=subprocess.DEVNULL)
    assert done.returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_a_backend_that_hangs_while_it_starts_is_hung_in_start(supervisor, request_for, limits):
    supervisor._extra["SCRIPTED_START"] = "hang"
    end = supervisor.run(request_for(), hurried(limits, Phase.START, 3.0))
    assert (end.outcome, end.phase) == (Outcome.HUNG, Phase.START)


def test_a_backend_whose_library_is_absent_is_wrong_input(monkeypatch):
    class Point:
        name = "tensorrt"

        def load(self):
            raise ImportError("No module named 'tensorrt'")

    monkeypatch.setattr(child, "entry_points", lambda group: [Point()])
    report = child.report_on(
        ChildRequest(operation="describe", backend="tensorrt", output=""), lambda: child.find_backend("tensorrt", None)
    )
    assert report.status == "invalidInput"
    assert report.reason == "backend tensorrt: cannot be imported: No module named 'tensorrt'; install its library in the worker"


def test_the_parent_process_never_loads_an_engine_library():
    code = "import sys, tuner_job.trial.supervisor; sys.exit('onnxruntime' in sys.modules or 'tuner_job.backends' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_case_is_timed_with_the_sample_of_its_own_shapes(tmp_path):
    case = ShapeCase(name="c", tensors={"x": (4,)}, minimum={"x": (1,)}, maximum={"x": (9,)})
    request = ChildRequest(operation="time", backend="none", cases=(case,), output="")
    kept = {}
    for size in (7, 4, 4):
        sample = child.Sample("c", str(size), {"x": np.full(size, size)}, {})
        child._keep(kept, sample, request)
    assert kept["c"]["x"].shape == (4,)
