"""Small ONNX files for the tests of this folder, and the real ones that packages carry."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper


def value(name, dims, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, dims)


def model(nodes=None, inputs=None, outputs=None, initializers=(), ir_version=8, **settings) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])] if nodes is None else nodes,
        "g",
        [value("x", ["n", 3])] if inputs is None else inputs,
        [value("y", ["n", 3])] if outputs is None else outputs,
        initializer=list(initializers),
    )
    opsets = settings.pop("opset_imports", [helper.make_opsetid("", 17)])
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, **settings)


def external(name: str, location: str, dims=(4,), dtype=TensorProto.FLOAT, **entries) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, text in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(text))
    return tensor


def with_external(tensors) -> onnx.ModelProto:
    """y = relu(x), with weights that nothing needs but everything must find."""
    return model(initializers=tensors)


def save(proto: onnx.ModelProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(proto.SerializeToString())
    return path


def weights(path: Path, count: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.arange(count, dtype=np.float32).tofile(path)
    return path


def packaged(package: str, inner: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"the development environment lacks {package}"
    assert spec.origin is not None
    return Path(spec.origin).parent / inner


def magika() -> Path:
    return packaged("magika", "models/standard_v3_3/model.onnx")


def detector() -> Path:
    return packaged("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx")


def classifier() -> Path:
    return packaged("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx")


def silero() -> Path:
    return packaged("silero_vad", "data/silero_vad.onnx")
