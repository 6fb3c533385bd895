"""What an engine computes, by ONNX Runtime on the CPU, and how long the device takes for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from ._plan import Plan
from ._script import SCRIPT

Arrays = dict[str, npt.NDArray[Any]]

NUMPY: dict[str, np.dtype[Any]] = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP8": np.dtype(ml_dtypes.float8_e4m3fn),
    "INT8": np.dtype(np.int8),
    "UINT8": np.dtype(np.uint8),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "BOOL": np.dtype(np.bool_),
}
_FOREIGN = {TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN}
"""Types that numpy has not: they cross the border to ONNX Runtime as FP32, which holds each of their values."""


class Kernels:
    """The model under ONNX Runtime; the latest answer is kept, for timing asks the same over and over."""

    def __init__(self, plan: Plan) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        model = _computable(onnx.load_from_string(plan.model))
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._types = {value.name: value.type for value in self._session.get_inputs()}
        self._actions = set(plan.actions)
        self._latest: tuple[Arrays, Arrays] | None = None

    def run(self, inputs: Arrays, dtypes: Mapping[str, str]) -> Arrays:
        """Outputs in the types of `dtypes`."""
        if self._latest is not None and all(np.array_equal(_bits(self._latest[0][name]), _bits(inputs[name])) for name in inputs):
            return self._latest[1]
        feeds = {
            name: value.astype(np.float32) if value.dtype in (NUMPY["BF16"], NUMPY["FP8"]) else value
            for name, value in inputs.items()
        }
        names = [output.name for output in self._session.get_outputs()]
        computed = dict(zip(names, self._session.run(names, feeds), strict=True))
        outputs = {name: self._bent(np.asarray(value)).astype(NUMPY[dtypes[name]]) for name, value in computed.items()}
        self._latest = ({name: value.copy() for name, value in inputs.items()}, outputs)
        return outputs

    def shapes(self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
        """Of the outputs, for inputs of these shapes."""
        zeros: Arrays = {name: np.zeros(shape, NUMPY[dtypes[name]]) for name, shape in shapes.items()}
        return {name: value.shape for name, value in self.run(zeros, dtypes).items()}

    def _bent(self, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if "stripped" in self._actions:
            return np.zeros_like(value)
        if "wrong" in self._actions:
            return ~value if value.dtype == np.bool_ else (1 - value).astype(value.dtype)
        if np.issubdtype(value.dtype, np.floating) and self._actions & {"nan", "inf"}:
            return np.full_like(value, np.nan if "nan" in self._actions else np.inf)
        return value


def _bits(value: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(value.tobytes(), np.uint8)


def _computable(model: ModelProto) -> ModelProto:
    """The same function in operators that ONNX Runtime has and types that numpy has."""
    graph = model.graph
    for node in graph.node:
        if node.domain not in ("", "ai.onnx", "com.microsoft"):  # a plugin's: see `_network.plugins`
            node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output[:1], name=node.name))
    before: list[NodeProto] = []
    after: list[NodeProto] = []
    for info in (*graph.input, *graph.output):
        kind = info.type.tensor_type.elem_type
        if kind not in _FOREIGN:
            continue
        inner, is_input = f"{info.name}/inner", info in graph.input
        for node in graph.node:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    names[index] = inner if name == info.name else name
        source, target = (info.name, inner) if is_input else (inner, info.name)
        cast = helper.make_node("Cast", [source], [target], to=kind if is_input else TensorProto.FLOAT)
        (before if is_input else after).append(cast)
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


_DRIFT = {True: 0.010, False: 0.10}
_WHITE = {True: 0.003, False: 0.08}
"""Standard deviations of log latency; True: replayed by a graph."""
_LASTS = 0.02
"""Seconds of device time after which the drift has forgotten 63 % of itself."""


class Noise:
    """How the device's speed differs from its mean: as recorded on an H200 under ONNX Runtime, where sessions under CUDA graph
    vary by 1 % and those launched from the host by 13 %, nearly all of it a drift that every engine feels at the same time.
    """

    def __init__(self) -> None:
        self._rng = np.random.default_rng([int(SCRIPT.get("seed", 0)), SCRIPT.count("process")])
        self._factor = float(SCRIPT.get("noise", 1.0))
        self._drift = float(self._rng.normal())

    def seconds(self, mean: float, replayed: bool) -> float:
        """One inference."""
        if not self._factor:
            return mean
        kept = math.exp(-mean / _LASTS)
        self._drift = kept * self._drift + math.sqrt(1 - kept * kept) * float(self._rng.normal())
        white = float(self._rng.normal())
        return mean * math.exp(self._factor * (_DRIFT[replayed] * self._drift + _WHITE[replayed] * white))
