"""What an engine is made of and where its time goes, as far as its library tells."""

from __future__ import annotations

from typing import Annotated

from pydantic import FailFast, Field

from tuner_job.api.base import Model
from tuner_job.api.measurement import Seconds

MOST_LAYERS = 20_000


class Layer(Model):
    """One step of an engine: a kernel, or what the library fused into one."""

    name: str
    """As the library names it; names differ from build to build."""
    kind: str = ""
    """Operator or layer type."""
    tactic: str = ""
    """Kernel, tactic or provider that was chosen."""
    formats: tuple[str, ...] = ()
    """Element type and memory layout of its outputs, as the library writes them."""
    nodes: tuple[str, ...] = ()
    """Names of the model's nodes that it does; empty where the library does not say."""
    seconds: Seconds | None = None
    """Median time of one inference spent here; None when it was not timed."""


class LayerProfile(Model):
    """All layers of one engine, in execution order. Timing each layer slows the whole: never compare the sum with a latency."""

    layers: Annotated[tuple[Layer, ...], FailFast()] = Field(max_length=MOST_LAYERS)
    runs: int = 0
    """Inferences that the times are medians of."""
    clock: str = ""
    """What timed it: `tensorrt.IProfiler`, `onnxruntime profiler`, …"""
