"""Small ONNX graphs for the backend's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper


def value(name, shape, kind=T.FLOAT):
    return h.make_tensor_value_info(name, kind, shape)


def save(path: Path, nodes, inputs, outputs, weights=(), *, opset=17, ir=9, domains=()) -> Path:
    graph = h.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(array, name) for name, array in weights])
    model = h.make_model(
        graph, opset_imports=[h.make_opsetid("", opset), *(h.make_opsetid(d, 1) for d in domains)], ir_version=ir
    )
    path.write_bytes(model.SerializeToString())
    return path


def relu(path: Path, shape=(2, 3), op="Relu", domain="", **extra) -> Path:
    node = h.make_node(op, ["x"], ["y"], domain=domain)
    return save(path, [node], [value("x", shape)], [value("y", None)], domains=[domain] if domain else [], **extra)


def conv_net(path: Path, *, names="") -> Path:
    """Two convolutions with bias, batch normalization and residual, for layout and fusion passes."""
    rng = np.random.default_rng(0)
    weights = [
        ("w1", rng.standard_normal((16, 16, 3, 3)).astype(np.float32)),
        ("b1", rng.standard_normal((1, 16, 1, 1)).astype(np.float32)),
        ("w2", rng.standard_normal((16, 16, 1, 1)).astype(np.float32)),
        *((name, rng.random(16).astype(np.float32) + 0.5) for name in ("scale", "shift", "mean", "var")),
    ]
    nodes = [
        h.make_node("Identity", ["x"], [f"{names}same"]),
        h.make_node("Conv", [f"{names}same", "w1"], [f"{names}c1"], pads=[1, 1, 1, 1]),
        h.make_node("Add", [f"{names}c1", "b1"], [f"{names}a1"]),
        h.make_node("Relu", [f"{names}a1"], [f"{names}r1"]),
        h.make_node("Conv", [f"{names}r1", "w2"], [f"{names}c2"]),
        h.make_node("BatchNormalization", [f"{names}c2", "scale", "shift", "mean", "var"], [f"{names}n2"]),
        h.make_node("Add", [f"{names}n2", "x"], ["y"]),
    ]
    return save(path, nodes, [value("x", [1, 16, 12, 12])], [value("y", None)], weights)
