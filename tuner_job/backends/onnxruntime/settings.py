"""What a session is created with: everything a route says, nothing that it does not say."""

from __future__ import annotations

from typing import Literal

import onnxruntime as ort
import psutil
from pydantic import Field

from tuner_job.api.base import Model

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"

Level = Literal["disabled", "basic", "extended", "layout", "all"]
LEVELS = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "layout": ort.GraphOptimizationLevel.ORT_ENABLE_LAYOUT,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
ORDERS = {
    "default": ort.ExecutionOrder.DEFAULT,
    "priority_based": ort.ExecutionOrder.PRIORITY_BASED,
}


class GraphSettings(Model):
    """Options that act while the graph is optimised, so they end in the saved model."""

    level: Level | None = None
    disabled: tuple[str, ...] = ()
    """Names of optimizers that are left out."""
    config: dict[str, str] = Field(default_factory=dict)
    """Session config entries that only optimizers read."""


class LoadSettings(Model):
    """Options that act while a session is created or runs. None leaves ONNX Runtime's own default untouched."""

    parallel: bool | None = None
    """Run independent operators at the same time."""
    order: Literal["default", "priority_based"] | None = None
    intra_threads: int | None = None
    inter_threads: int | None = None
    pin_threads: bool = False
    """One allowed core per intra-op thread; resolved when loading, since core numbers differ from machine to machine."""
    memory_pattern: bool | None = None
    memory_reuse: bool | None = None
    cpu_arena: bool | None = None
    config: dict[str, str] = Field(default_factory=dict)
    """Session config entries."""
    provider: dict[str, str] = Field(default_factory=dict)
    """Options of the CUDA provider."""


class SessionSettings(Model):
    """Both halves. The default sets nothing at all."""

    graph: GraphSettings = GraphSettings()
    load: LoadSettings = LoadSettings()


def default_threads(cores: int, machine: int | None = None) -> int | None:
    """Intra-op threads of a CPU session for which the route names none, in a process with so many cores.

    None: ONNX Runtime's own default, which is one for each physical core of the machine, whatever a quota or affinity says; 64
    threads under a quota of 2 spend their time throttled.
    """
    machine = machine or psutil.cpu_count(logical=False) or psutil.cpu_count() or cores
    return cores if cores < machine else None


def session_options(
    load: LoadSettings, graph: GraphSettings | None, cores: tuple[int, ...], fallback_threads: int | None = None
) -> ort.SessionOptions:
    """Options for a new session.

    `graph` None means that the model is optimised already: no optimizer runs. `cores` are the CPU numbers that this
    process may use, for `pin_threads`; `fallback_threads` holds where `load` names no number of threads.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors only; warnings of many sessions would fill the captured log
    if graph is None:
        options.graph_optimization_level = LEVELS["disabled"]
    else:
        if graph.level is not None:
            options.graph_optimization_level = LEVELS[graph.level]
        if graph.disabled:
            options.add_session_config_entry("optimization.disable_specified_optimizers", ";".join(graph.disabled))
        for key, value in graph.config.items():
            options.add_session_config_entry(key, value)
    if load.parallel is not None:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if load.parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    if load.order is not None:
        options.execution_order = ORDERS[load.order]
    threads = load.intra_threads
    if load.pin_threads:
        # ONNX Runtime takes affinities only with an explicit thread count, and none for the calling thread.
        threads = min(threads or len(cores), len(cores))
        if threads > 1:
            options.add_session_config_entry("session.intra_op_thread_affinities", ";".join(str(c + 1) for c in cores[1:threads]))
    threads = threads or fallback_threads
    if threads is not None:
        options.intra_op_num_threads = threads
    inter_threads = load.inter_threads or (fallback_threads if load.parallel else None)
    if inter_threads is not None:
        options.inter_op_num_threads = inter_threads
    if load.memory_pattern is not None:
        options.enable_mem_pattern = load.memory_pattern
    if load.memory_reuse is not None:
        options.enable_mem_reuse = load.memory_reuse
    if load.cpu_arena is not None:
        options.enable_cpu_mem_arena = load.cpu_arena
    for key, value in load.config.items():
        options.add_session_config_entry(key, value)
    return options
