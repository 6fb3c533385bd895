"""A small model of the doctor's own: convolutions, a residual, a pooling, a matrix product, over a dynamic batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tuner_job.api.child import ShapeCase

CASE = ShapeCase(name="batch4", tensors={"x": (4, 3, 48, 48)}, minimum={"x": (1, 3, 48, 48)}, maximum={"x": (8, 3, 48, 48)})
"""The shape that it is checked and timed at, and the range that it is built for."""

_CHANNELS = 16
_CLASSES = 10


def write_model(path: Path) -> None:
    """float32 x [n, 3, 48, 48] → y [n, 10]. The same bytes each time, under one version of onnx."""
    rng = np.random.default_rng(11)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        return numpy_helper.from_array((scale * rng.standard_normal(shape)).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], name="conv0", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"], name="relu0"),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r0"], ["s"], name="residual"),
        helper.make_node("Relu", ["s"], ["r2"], name="relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten", axis=1),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], name="classes", transB=1),
    ]
    weights = [
        weight("w0", _CHANNELS, 3, 3, 3),
        weight("b0", _CHANNELS),
        weight("w1", _CHANNELS, _CHANNELS, 3, 3),
        weight("b1", _CHANNELS),
        weight("w2", _CHANNELS, _CHANNELS, 3, 3),
        weight("b2", _CHANNELS),
        weight("w3", _CLASSES, _CHANNELS),
        weight("b3", _CLASSES),
    ]
    graph = helper.make_graph(
        nodes,
        "doctor",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 48, 48])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", _CLASSES])],
        weights,
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString(deterministic=True))
