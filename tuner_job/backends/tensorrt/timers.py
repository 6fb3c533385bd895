"""Timing: inputs and outputs stay on the device, a CUDA graph is launched as in production, and only the inference is counted."""

from __future__ import annotations

import time
from contextlib import ExitStack

from tuner_job.api.child import MeasureSettings
from tuner_job.backends.cuda import CudaError, Graph, driver
from tuner_job.backends.lanes import GpuTimer, Took
from tuner_job.backends.protocol import Tensors
from tuner_job.backends.tensorrt.execution import Execution, Loaded


class Uncapturable(Exception):
    """Something in the engine cannot be part of a CUDA graph, such as outputs whose size depends on data."""


def timer(loaded: Loaded, inputs: Tensors, settings: MeasureSettings) -> GpuTimer:
    """Every stream has a context with a CUDA stream and buffers of its own."""
    return GpuTimer(lambda graph: _Lane(loaded, inputs, settings.transfers, graph=graph), settings, (Uncapturable,))


class _Lane:
    def __init__(self, loaded: Loaded, inputs: Tensors, transfers: bool, *, graph: bool) -> None:
        self._driver = driver()
        self._graph: Graph | None = None
        with ExitStack() as undo:
            self._execution = Execution(loaded)
            undo.callback(self._execution.close)
            self._stream = self._execution.stream
            self._execution.bind(inputs)
            self._execution.send()
            self._execution.enqueue()  # what is done only once, such as loading kernels, cannot be captured
            self._stream.wait()
            if graph:
                self._graph = self._captured()
            undo.pop_all()
        self.once = self._with_transfers if transfers else self._on_device

    def close(self) -> None:
        if self._graph is not None:
            self._graph.close()
        self._execution.close()

    def _captured(self) -> Graph:
        try:
            return self._stream.capture(self._execution.enqueue)
        except (CudaError, RuntimeError) as error:
            raise Uncapturable(str(error)) from error

    def _launch(self) -> None:
        if self._graph is not None:
            self._graph.launch(self._stream)
        else:
            self._execution.enqueue()

    def _on_device(self) -> Took:
        self._driver.use()
        start = time.perf_counter_ns()
        self._stream.mark_start()
        self._launch()
        self._stream.mark_end()
        seconds = self._stream.elapsed()
        return Took(seconds, (time.perf_counter_ns() - start) / 1e9)

    def _with_transfers(self) -> Took:
        self._driver.use()
        start = time.perf_counter_ns()
        self._execution.send()
        self._launch()
        self._execution.fetch()
        self._stream.wait()
        seconds = (time.perf_counter_ns() - start) / 1e9
        return Took(seconds, seconds)
