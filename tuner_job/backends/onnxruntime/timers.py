"""Timing: inputs are bound once, outputs keep their buffers, and only the inference lies inside the number."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from tuner_job.api.child import MeasureSettings
from tuner_job.backends import cuda
from tuner_job.backends.lanes import GpuTimer, Lanes, Took, on_device
from tuner_job.backends.onnxruntime.session import BUILD_ERRORS
from tuner_job.backends.protocol import Tensors
from tuner_job.measure.sampling import Aside

_CAPTURE_RUNS = 3
"""ONNX Runtime runs as usual once or twice before it captures a graph."""
_QUIET_STEP = 0.005
_QUIET_LIMIT = 0.5
"""Seconds between looks at the process's CPU time, and at most."""
_QUIET_SHARE = 0.2
"""Of one core: less is quiet."""


class CpuTimer:
    """Host clock. Streams are threads that share the session.

    An idle thread pool of ONNX Runtime spins for some 20 to 50 ms before it sleeps. When engines take turns in one process, the
    pool of the one before would take the cores of the next (recorded: 15 engines on 16 cores at 5.1 ms instead of 2.5 ms each).
    So a timer that was not the last to run waits until the process is quiet, as it is where an engine has it to itself.
    """

    clock: Literal["device", "host"] = "host"
    launch: Literal["direct", "cudaGraph"] = "direct"
    _latest: ClassVar[object] = None

    def __init__(self, session: ort.InferenceSession, inputs: Tensors, settings: MeasureSettings) -> None:
        self._lanes = Lanes(lambda: _CpuLane(session, inputs), settings.streams)
        self._token = object()

    def sample(self, count: int) -> npt.NDArray[np.float64]:
        if CpuTimer._latest is not self._token:
            _wait_until_quiet()
            CpuTimer._latest = self._token
        counted: npt.NDArray[np.float64] = self._lanes.sample(count)[0]
        return counted

    def aside(self) -> Aside:
        """CPUs are not asked: their clocks change all the time, and the worker's controls show it."""
        return Aside()


def cuda_timer(open_: Callable[..., ort.InferenceSession], inputs: Tensors, settings: MeasureSettings) -> GpuTimer:
    """Every stream has a session with its own CUDA stream. A CUDA graph is captured where ONNX Runtime can: nodes on the CPU,
    control flow or an operator that synchronises make it fall back, and the session or the capture say no."""
    return GpuTimer(lambda graph: _CudaLane(open_, inputs, settings.transfers, graph=graph), settings, BUILD_ERRORS)


def _wait_until_quiet() -> None:
    """Return once this process uses next to no CPU time, or after `_QUIET_LIMIT`."""
    deadline = time.monotonic() + _QUIET_LIMIT
    while time.monotonic() < deadline:
        start, used = time.monotonic(), time.process_time()
        time.sleep(_QUIET_STEP)
        if time.process_time() - used < _QUIET_SHARE * (time.monotonic() - start):
            return


class _CpuLane:
    def __init__(self, session: ort.InferenceSession, inputs: Tensors) -> None:
        self._session = session
        self._options = ort.RunOptions()
        self._binding = session.io_binding()
        # ONNX Runtime reads the arrays in place, so they live as long as the lane.
        self._values = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value)) for name, value in inputs.items()}
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(name, value)
        _keep_outputs(session, self._binding, "cpu", self._options)

    def once(self) -> Took:
        start = time.perf_counter_ns()
        self._session.run_with_iobinding(self._binding, self._options)
        seconds = (time.perf_counter_ns() - start) / 1e9
        return Took(seconds, seconds)

    def close(self) -> None:
        """The session is the engine's."""


class _CudaLane:
    def __init__(self, open_: Callable[..., ort.InferenceSession], inputs: Tensors, transfers: bool, *, graph: bool) -> None:
        self._driver = cuda.driver()
        self._stream = cuda.Stream(self._driver)
        with ExitStack() as undo:
            undo.callback(self._stream.close)
            self._bound = _Bound(open_, inputs, self._stream, graph=graph)
            undo.callback(self._bound.close)
            for _ in range(_CAPTURE_RUNS):
                self._bound.run()
                self._stream.wait()
            undo.pop_all()
        self.once = self._with_transfers if transfers else self._on_device

    def close(self) -> None:
        self._bound.close()
        self._stream.close()

    def _on_device(self) -> Took:
        self._driver.use()
        return on_device(self._stream, self._bound.run)

    def _with_transfers(self) -> Took:
        self._driver.use()
        start = time.perf_counter_ns()
        self._bound.send()
        self._bound.run()
        self._stream.wait()
        self._bound.fetch()
        seconds = (time.perf_counter_ns() - start) / 1e9
        return Took(seconds, seconds)


class _Bound:
    """A session on a stream of ours, with its inputs and outputs on the device."""

    def __init__(self, open_: Callable[..., ort.InferenceSession], inputs: Tensors, stream: cuda.Stream, *, graph: bool) -> None:
        options = {"user_compute_stream": str(stream.handle)} | ({"enable_cuda_graph": "1"} if graph else {})
        self._session = open_(**options)
        self._binding = self._session.io_binding()
        self._inputs = {name: np.ascontiguousarray(value) for name, value in inputs.items()}
        self._values = {name: ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0) for name, value in self._inputs.items()}
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(name, value)
        uncaptured = ort.RunOptions()
        uncaptured.add_run_config_entry("gpu_graph_id", "-1")  # a graph must capture the buffers that stay
        _keep_outputs(self._session, self._binding, "cuda", uncaptured)
        self._options = ort.RunOptions()
        # The run must return before the device is done, or the end mark would wait for the host.
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding, self._options)

    def send(self) -> None:
        for name, value in self._inputs.items():
            self._values[name].update_inplace(value)

    def fetch(self) -> None:
        self._binding.copy_outputs_to_cpu()

    def close(self) -> None:
        """What the session allocated goes before it, and it before the stream that it works on."""
        del self._binding, self._values, self._session


def _keep_outputs(session: ort.InferenceSession, binding: ort.IOBinding, device: str, options: ort.RunOptions) -> None:
    """Run once, then bind the buffers that ONNX Runtime made, so that later runs allocate nothing for outputs."""
    names = [value.name for value in session.get_outputs()]
    for name in names:
        binding.bind_output(name, device)
    session.run_with_iobinding(binding, options)
    values = binding.get_outputs()
    if all(value.is_tensor() for value in values):
        for name, value in zip(names, values, strict=True):
            binding.bind_ortvalue_output(name, value)
