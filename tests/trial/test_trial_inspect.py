"""Inspecting engines in a child: the real ONNX Runtime's nodes, and what a backend wants of the environment for that."""

from __future__ import annotations

import os

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from trial_helpers import QUICK

from tuner_job.accuracy.references import Sample, save
from tuner_job.api.base import InputError
from tuner_job.api.child import ChildRequest, ShapeCase
from tuner_job.api.measurement import Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.backends import child
from tuner_job.trial.supervisor import Supervisor


def test_the_nodes_of_every_engine_come_with_their_times(root, limits, tmp_path):
    w = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    x = np.ones((1, 16), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "W"], ["h"], name="mul"), helper.make_node("Relu", ["h"], ["y"], name="cut")]
    inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16])] for name in "xy")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(w, "W")])
    model = tmp_path / "model.onnx"
    model.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString())
    save(tmp_path / "references", [Sample("static", "0", {"x": x}, {"y": np.maximum(x @ w, 0)})])
    common = {"backend": "onnxruntime", "cases": (ShapeCase(name="static"),), "measure": QUICK}
    common |= {"references": str(tmp_path / "references"), "model": str(model)}
    engines = {}
    with Supervisor(root) as real:
        for name, route in (("plain", "-graph:level=disabled"), ("other", "")):
            output = tmp_path / name
            request = ChildRequest(operation="compile", candidate=Candidate(route=route), output=str(output), **common)
            assert real.run(request, limits).outcome is Outcome.FEASIBLE
            engines[name] = str(output / "engine")
        end = real.run(ChildRequest(operation="inspect", engines=engines, output="", **common), limits)
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert set(end.report.layers) == {"plain", "other"}
    plain = end.report.layers["plain"]
    assert [(layer.name, layer.kind, layer.tactic) for layer in plain.layers] == [
        ("mul", "MatMul", "CPUExecutionProvider"), ("cut", "Relu", "CPUExecutionProvider"),
    ]  # fmt: skip
    assert all(layer.seconds is not None for layer in plain.layers)
    assert plain.runs >= 20
    assert end.report.timing == ()


@pytest.mark.parametrize(("operation", "seen"), [("inspect", "1"), ("trial", None), ("time", None)])
def test_only_a_child_that_inspects_takes_on_what_its_backend_wants_for_that(monkeypatch, operation, seen):
    monkeypatch.setenv("SCRIPTED_LAUNCHES_WAIT", "")  # so that it is as it was when the test is over
    monkeypatch.delenv("SCRIPTED_LAUNCHES_WAIT")
    found = []

    def factory(device):
        found.append(os.environ.get("SCRIPTED_LAUNCHES_WAIT"))
        raise InputError("seen enough")

    factory.inspect_environment = {"SCRIPTED_LAUNCHES_WAIT": "1"}
    request = ChildRequest(operation=operation, backend="scripted", output="")
    assert child.report_on(request, lambda: factory).reason == "seen enough"
    assert found == [seen]
