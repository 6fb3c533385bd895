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


def encoder(path: Path, *, width=256, layers=2, length=64, batch=4) -> Path:
    """Transformer encoder layers (one head, erf Gelu, layer normalization) with static shapes."""
    rng = np.random.default_rng(0)
    weights, nodes, last = [], [], "x"

    def weight(name, *shape):
        weights.append((name, (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)))
        return name

    def node(op, inputs, output, **attributes):
        nodes.append(h.make_node(op, inputs, [output], **attributes))
        return output

    for name, number in (("scale", width**-0.5), ("root2", 2**0.5), ("one", 1.0), ("half", 0.5)):
        weights.append((name, np.array(number, np.float32)))
    weights += [("gain", np.ones(width, np.float32)), ("shift", np.zeros(width, np.float32))]
    for i in range(layers):
        q, k, v = (node("MatMul", [last, weight(f"w{n}{i}", width, width)], f"{n}{i}") for n in "qkv")
        score = node("MatMul", [q, node("Transpose", [k], f"kt{i}", perm=[0, 2, 1])], f"s{i}")
        mixed = node("MatMul", [node("Softmax", [node("Mul", [score, "scale"], f"ss{i}")], f"p{i}", axis=-1), v], f"m{i}")
        summed = node("Add", [last, node("MatMul", [mixed, weight(f"wo{i}", width, width)], f"o{i}")], f"r{i}")
        normal = node("LayerNormalization", [summed, "gain", "shift"], f"n{i}")
        wide = node(
            "Add", [node("MatMul", [normal, weight(f"wu{i}", width, 4 * width)], f"u{i}"), weight(f"b{i}", 4 * width)], f"ub{i}"
        )
        erf = node("Add", [node("Erf", [node("Div", [wide, "root2"], f"d{i}")], f"e{i}"), "one"], f"e1{i}")
        gelu = node("Mul", [node("Mul", [wide, erf], f"g{i}"), "half"], f"g2{i}")
        narrow = node("MatMul", [gelu, weight(f"wd{i}", 4 * width, width)], f"dn{i}")
        last = node("LayerNormalization", [node("Add", [normal, narrow], f"a{i}"), "gain", "shift"], f"out{i}")
    node("Identity", [last], "y")
    return save(path, nodes, [value("x", [batch, length, width])], [value("y", None)], weights)
