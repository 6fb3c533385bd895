"""Profiles as TensorRT's inspector and ONNX Runtime's profiler tell them, with times that are known."""

from __future__ import annotations

import gzip
import json

from report_runs import Run

from tuner_job.api.base import digest_of
from tuner_job.api.layers import Layer, LayerProfile
from tuner_job.store import layout

MICRO = 1e-6


def layer(
    name: str, *nodes: str, kind: str = "", tactic: str = "", formats: tuple[str, ...] = (), us: float | None = 10
) -> Layer:
    return Layer(name=name, kind=kind, tactic=tactic, formats=formats, nodes=nodes, seconds=None if us is None else us * MICRO)


def profile(*layers: Layer, clock: str = "tensorrt.IProfiler", runs: int = 10) -> LayerProfile:
    return LayerProfile(layers=layers, clock=clock, runs=runs)


TENSORRT = (
    profile(
        layer("Reformatting CopyNode for Input Tensor 0", kind="Reformat", formats=("Half NHWC8",), us=5),
        layer("conv_0 + relu_0", "conv_0", "relu_0", kind="CaskConvolution", tactic="sm90_a", formats=("Half NHWC8",), us=40),
        layer("conv_1", "conv_1", kind="CaskConvolution", tactic="sm90_a", formats=("Half NHWC8",), us=30),
        layer("relu_1", "relu_1", kind="PointWise", us=10),
        layer("fc", "fc", kind="Gemm", tactic="g1", formats=("Half",), us=15),
    ),
    profile(
        layer("Reformatting CopyNode for Input Tensor 0 to {ForeignNode}", kind="Reformat", formats=("Half NHWC8",), us=5),
        layer("conv_0 + relu_0", "conv_0", "relu_0", kind="CaskConvolution", tactic="sm90_b", formats=("Half NHWC8",), us=25),
        layer("conv_1 + relu_1", "conv_1", "relu_1", kind="CaskConvolution", tactic="sm90_a", formats=("Half NHWC8",), us=24),
        layer("fc", "fc", kind="Gemm", tactic="g1", formats=("Float",), us=16),
    ),
)
"""Default and candidate: another tactic, a fusion, another format, and a copy whose name changed."""

ONNXRUNTIME = (
    profile(
        layer("/conv/Conv", kind="Conv", tactic="CPUExecutionProvider", us=60),
        layer("/relu/Relu", kind="Relu", tactic="CPUExecutionProvider", us=20),
        layer("/fc/Gemm", kind="Gemm", tactic="CPUExecutionProvider", us=20),
        clock="onnxruntime profiler",
    ),
    profile(
        layer("fused /conv/Conv", kind="FusedConv", tactic="CPUExecutionProvider", us=55),
        layer("/fc/Gemm", kind="Gemm", tactic="CPUExecutionProvider", us=20),
        clock="onnxruntime profiler",
    ),
)
"""Default and candidate of a library that does not say which nodes a layer does."""


def stored(run: Run, baseline: LayerProfile, candidate: LayerProfile) -> str:
    """The digest of the layers blob, written as the final writes it."""
    sides = {side: one.model_dump(mode="json", by_alias=True) for side, one in (("baseline", baseline), ("candidate", candidate))}
    data = gzip.compress(json.dumps(sides).encode())
    run.store.put(layout.blob(digest_of(data)), data)
    return digest_of(data)
