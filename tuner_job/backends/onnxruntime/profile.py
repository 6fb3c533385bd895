"""The nodes of an engine, timed one by one by ONNX Runtime's own profiler.

It writes a JSON list of events. A node's event (`cat` Node, `name` ending in `_kernel_time`) has its host time in microseconds,
operator, provider and types; where the library was built with CUPTI the CUDA kernels of a node follow it (`cat` Kernel). Each run
ends with an event `model_run`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort

from tuner_job.api.layers import MOST_LAYERS, Layer, LayerProfile
from tuner_job.backends.protocol import Tensors

RUNS = 25
"""Whose times are kept; the first ones before them are not."""
_UNCOUNTED_RUNS = 5
_SUFFIX = "_kernel_time"

BLOCKING = "CUDA_LAUNCH_BLOCKING"
"""With this set to 1 when the process first opens the device, a launch returns when its kernel is done. Published packages have
no CUPTI, and without it the profiler times launches alone, which says nothing of a node."""

Event = dict[str, Any]


@dataclass
class _Node:
    """One execution of a node."""

    event: Event
    kernels: list[Event] = field(default_factory=list)


def profile(
    open_: Callable[[Path], ort.InferenceSession], folder: Path, inputs: Tensors, device: Literal["CPU", "GPU"]
) -> LayerProfile:
    """Layers with their median times over `RUNS` inferences. `open_` makes a session that profiles to files of that prefix.

    The file is removed. Raises what ONNX Runtime raises.
    """
    session = open_(folder / "profile")
    file: Path | None = None
    try:
        for _ in range(_UNCOUNTED_RUNS + RUNS):
            session.run(None, dict(inputs))
        file = Path(session.end_profiling())
        events: list[Event] = json.loads(file.read_bytes())
    finally:
        if file is not None:
            file.unlink(missing_ok=True)
    waited_for = device == "CPU" or os.environ.get(BLOCKING) == "1"
    return read(events, waited_for=waited_for)


def read(events: Iterable[Event], *, waited_for: bool) -> LayerProfile:
    """`waited_for`: a node's host time covers its work. Without that only kernel events tell times."""
    runs = list(_runs(events))[_UNCOUNTED_RUNS:]
    by_kernels = any(node.kernels for run in runs for node in run)
    nodes: dict[str, _Node] = {}
    seconds: dict[str, list[float]] = {}
    for run in runs:
        spent: dict[str, float] = {}
        for node in run:
            name = str(node.event["name"]).removesuffix(_SUFFIX)
            nodes.setdefault(name, node)
            timed = node.kernels or [node.event]
            spent[name] = spent.get(name, 0.0) + sum(event["dur"] for event in timed) / 1e6
        for name, value in spent.items():
            seconds.setdefault(name, []).append(value)
    if by_kernels:
        clock = "onnxruntime profiler, CUDA kernels; nodes without one by the host clock"
    else:
        clock = "onnxruntime profiler, host clock" if waited_for else ""
    layers = tuple(_layer(name, node, float(np.median(seconds[name])) if clock else None) for name, node in nodes.items())
    return LayerProfile(layers=layers[:MOST_LAYERS], runs=len(runs) if clock else 0, clock=clock)


def _runs(events: Iterable[Event]) -> Iterator[list[_Node]]:
    """The nodes of each run, in the order in which they ended."""
    run: list[_Node] = []
    for event in events:
        category, name = event.get("cat"), str(event.get("name", ""))
        if category == "Node" and name.endswith(_SUFFIX):
            run.append(_Node(event))
        elif category == "Kernel" and run:
            run[-1].kernels.append(event)
        elif name == "model_run":
            yield run
            run = []


def _layer(name: str, node: _Node, seconds: float | None) -> Layer:
    told = node.event.get("args", {})
    kernels = ", ".join(dict.fromkeys(str(kernel["name"]) for kernel in node.kernels))
    provider = str(told.get("provider", ""))
    outputs = told.get("output_type_shape", [])
    return Layer(
        name=name,
        kind=str(told.get("op_name", "")),
        tactic=f"{provider}: {kernels}" if kernels else provider,
        formats=tuple(kind for output in outputs for kind in output),
        nodes=(name,),
        seconds=seconds,
    )
