"""Timing: inputs and outputs stay on the device, a CUDA graph is launched as in production, and only the inference is counted."""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from tuner_job.api.child import MeasureSettings
from tuner_job.backends.cuda import CudaError, Graph, driver
from tuner_job.backends.lanes import GpuTimer, Took, on_device
from tuner_job.backends.protocol import Tensors
from tuner_job.backends.tensorrt.execution import Execution, Loaded


class Uncapturable(Exception):
    """Something in the engine cannot be part of a CUDA graph, such as outputs whose size depends on data."""


_REPLAY_RTOL = 0.05
"""Of the largest value: atomic sums differ from launch to launch, a graph that misses a step does far more."""
_REPLAY_SHARE = 0.01
"""Of the elements may differ by more: equal scores, say, may come in another order."""


def agree(direct: npt.NDArray[np.generic], replayed: npt.NDArray[np.generic]) -> bool:
    """Whether two inferences on the same inputs gave the same output, but for what an order of sums explains."""
    if direct.shape != replayed.shape or not direct.size:
        return direct.shape == replayed.shape
    a, b = (np.asarray(values, np.float64) for values in (direct, replayed))
    finite = np.isfinite(a)
    scale = float(np.max(np.abs(a[finite]), initial=0.0))
    with np.errstate(invalid="ignore"):
        near = np.where(finite, np.abs(a - b) <= _REPLAY_RTOL * scale, ~np.isfinite(b))
    return float(np.mean(near)) >= 1 - _REPLAY_SHARE


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
                self._require_same_outputs()
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

    def _require_same_outputs(self) -> None:
        """The accuracy check launches from the host, but what is timed and served replays the graph: it must compute the same.

        Raises RuntimeError: an engine whose replay differs by more than reordered sums explain is wrong in production.
        """
        direct = self._outputs()
        self._launch()
        for name, replayed in self._outputs().items():
            if not agree(direct[name], replayed):
                raise RuntimeError(f"output {name} of the replayed CUDA graph differs from that of a launch from the host")

    def _outputs(self) -> dict[str, npt.NDArray[np.generic]]:
        """Of the inference before."""
        self._execution.fetch()
        self._stream.wait()
        return self._execution.outputs()

    def _launch(self) -> None:
        if self._graph is not None:
            self._graph.launch(self._stream)
        else:
            self._execution.enqueue()

    def _on_device(self) -> Took:
        self._driver.use()
        return on_device(self._stream, self._launch)

    def _with_transfers(self) -> Took:
        self._driver.use()
        start = time.perf_counter_ns()
        self._execution.send()
        self._launch()
        self._execution.fetch()
        self._stream.wait()
        seconds = (time.perf_counter_ns() - start) / 1e9
        return Took(seconds, seconds)
