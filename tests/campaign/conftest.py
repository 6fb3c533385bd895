"""A tiny real model, and a run over it that takes seconds."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tuner_job.api.child import MeasureSettings
from tuner_job.api.messages import AccuracyInput, RunInputs, RuntimeIdentity, SearchInput, VariantInput
from tuner_job.model.digest import digest


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """y = relu(x W) V, float32 [1, 32] → [1, 8]."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((32, 64)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal((64, 8)).astype(np.float32), "v"),
    ]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "v"], ["y"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        weights,
    )
    path = tmp_path / "tiny.onnx"
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.fixture
def tiny_inputs(tiny_model: Path) -> RunInputs:
    """Four candidates over two knobs, short sessions."""
    return RunInputs(
        runtime=RuntimeIdentity(family="ONNXRuntime", version=importlib.metadata.version("onnxruntime")),
        variants=(VariantInput(uri=tiny_model.as_uri(), digest=digest(tiny_model)),),
        min_improvement=0.01,
        measure=MeasureSettings(
            sessions=2, session_seconds=0.005, session_samples=5, warmup_seconds=0.01, warmup_limit_seconds=0.1
        ),
        accuracy=AccuracyInput(source="Generated", samples=2, metric="l1", threshold=1e-3, screening_threshold=4e-3),
        search=SearchInput(
            strategy="Expression",
            expression="-session:memory_pattern=[on|off] -session:cpu_arena=[on|off]",
            max_trials=8,
            device_seconds=3600.0,  # with a budget the final keeps to its share: five builds against ten
        ),
    )
