"""Writes the model that is tuned and timed on a GPU: a residual network in FP16 with FP32 inputs and outputs, seeded weights.

python bench/h200/cnn.py build/cnn.onnx [blocks, 8 if not given]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper, save

BATCH, CHANNELS, SIZE, CLASSES = 4, 64, 112, 100


def cnn(path: Path, blocks: int = 8) -> None:
    """Stem, blocks of two 3×3 convolutions with a skip connection, pooling, a dense layer and a soft maximum."""
    rng = np.random.default_rng(0)
    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []

    def node(op: str, inputs: list[str], **attributes: Any) -> str:
        output = f"{op.lower()}{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def weight(*shape: int, scale: float = 1.0) -> str:
        name = f"w{len(weights)}"
        values = rng.standard_normal(shape) * scale / np.sqrt(np.prod(shape[1:]))
        weights.append(numpy_helper.from_array(values.astype(np.float16), name))
        return name

    def conv(data: str, channels: int, stride: int = 1, scale: float = 1.0) -> str:
        parameters = [weight(CHANNELS, channels, 3, 3, scale=scale), weight(CHANNELS)]
        return node("Conv", [data, *parameters], pads=[1, 1, 1, 1], strides=[stride, stride])

    last = node("Relu", [conv(node("Cast", ["image"], to=TensorProto.FLOAT16), 3, stride=2)])
    for _ in range(blocks):
        inner = node("Relu", [conv(last, CHANNELS)])
        last = node("Relu", [node("Add", [last, conv(inner, CHANNELS, scale=0.3)])])
    pooled = node("Flatten", [node("GlobalAveragePool", [last])])
    logits = node("Gemm", [pooled, weight(CLASSES, CHANNELS), weight(CLASSES)], transB=1)
    nodes.append(helper.make_node("Cast", [node("Softmax", [logits], axis=-1)], ["scores"], to=TensorProto.FLOAT))
    graph = helper.make_graph(
        nodes,
        "cnn",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [BATCH, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [BATCH, CLASSES])],
        weights,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), path)


if __name__ == "__main__":
    cnn(Path(sys.argv[1]), *map(int, sys.argv[2:]))
