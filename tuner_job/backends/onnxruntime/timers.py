"""Timing: inputs are bound once, outputs keep their buffers, and only the inference lies inside the number."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from tuner_job.api.base import TrtfleetError
from tuner_job.api.child import MeasureSettings
from tuner_job.backends.onnxruntime import cuda
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
        self._lanes = _Lanes(lambda: _CpuLane(session, inputs), settings.streams)
        self._token = object()

    def sample(self, count: int) -> npt.NDArray[np.float64]:
        if CpuTimer._latest is not self._token:
            _wait_until_quiet()
            CpuTimer._latest = self._token
        return self._lanes.sample(count)

    def aside(self) -> Aside:
        """CPUs are not asked: their clocks change all the time, and the worker's controls show it."""
        return Aside()


class CudaTimer:
    """Device clock (events around the work, on a stream of our own), or host clock when transfers count.

    Every stream has a session with its own CUDA stream. A CUDA graph is captured where ONNX Runtime can; `launch` says
    whether it did: nodes on the CPU, control flow or an operator that synchronises make it fall back.
    """

    def __init__(self, open_: Callable[..., ort.InferenceSession], inputs: Tensors, settings: MeasureSettings) -> None:
        self.clock: Literal["device", "host"] = "host" if settings.transfers else "device"
        self.launch: Literal["direct", "cudaGraph"] = "direct"
        self._seen = 0
        if settings.cuda_graph:
            try:
                self._lanes = _Lanes(lambda: _CudaLane(open_, inputs, settings.transfers, graph=True), settings.streams)
                self.launch = "cudaGraph"
            except BUILD_ERRORS:
                pass  # the session or the capture said no; measured as launched from the host instead
        if self.launch == "direct":
            self._lanes = _Lanes(lambda: _CudaLane(open_, inputs, settings.transfers, graph=False), settings.streams)

    def sample(self, count: int) -> npt.NDArray[np.float64]:
        samples = self._lanes.sample(count)
        self._seen |= _throttle_reasons()
        return samples

    def aside(self) -> Aside:
        reasons, self._seen = self._seen | _throttle_reasons(), 0
        return Aside(throttled=bool(reasons & cuda.THROTTLED))


def _wait_until_quiet() -> None:
    """Return once this process uses next to no CPU time, or after `_QUIET_LIMIT`."""
    deadline = time.monotonic() + _QUIET_LIMIT
    while time.monotonic() < deadline:
        start, used = time.monotonic(), time.process_time()
        time.sleep(_QUIET_STEP)
        if time.process_time() - used < _QUIET_SHARE * (time.monotonic() - start):
            return


class _Lane(Protocol):
    """One stream of inferences."""

    def once(self) -> float:
        """One inference; seconds."""
        ...


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

    def once(self) -> float:
        start = time.perf_counter_ns()
        self._session.run_with_iobinding(self._binding, self._options)
        return (time.perf_counter_ns() - start) / 1e9


class _CudaLane:
    def __init__(self, open_: Callable[..., ort.InferenceSession], inputs: Tensors, transfers: bool, *, graph: bool) -> None:
        self._driver = cuda.driver()
        self._stream = cuda.Stream(self._driver)
        options = {"user_compute_stream": str(self._stream.handle)} | ({"enable_cuda_graph": "1"} if graph else {})
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
        self._transfers = transfers
        for _ in range(_CAPTURE_RUNS):
            self._session.run_with_iobinding(self._binding, self._options)
            self._stream.wait()

    def once(self) -> float:
        return self._with_transfers() if self._transfers else self._on_device()

    def _on_device(self) -> float:
        self._driver.use()
        self._stream.mark_start()
        self._session.run_with_iobinding(self._binding, self._options)
        self._stream.mark_end()
        return self._stream.elapsed()

    def _with_transfers(self) -> float:
        self._driver.use()
        start = time.perf_counter_ns()
        for name, value in self._inputs.items():
            self._values[name].update_inplace(value)
        self._session.run_with_iobinding(self._binding, self._options)
        self._stream.wait()
        self._binding.copy_outputs_to_cpu()
        return (time.perf_counter_ns() - start) / 1e9


class _Lanes:
    """Lanes that run at once. Each keeps a thread of its own, since CUDA graphs and contexts belong to threads."""

    def __init__(self, make: Callable[[], _Lane], streams: int) -> None:
        self._threads = [ThreadPoolExecutor(1) for _ in range(streams)] if streams > 1 else []
        self._lanes = [thread.submit(make).result() for thread in self._threads] or [make()]

    def sample(self, count: int) -> npt.NDArray[np.float64]:
        """`count` latencies in seconds. A lane that has its share goes on, unrecorded, until all have theirs."""
        if not self._threads:
            lane = self._lanes[0]
            return np.fromiter((lane.once() for _ in range(count)), np.float64, count)
        share = -(-count // len(self._lanes))
        start = threading.Barrier(len(self._lanes))
        finished = threading.Semaphore(0)
        stop = threading.Event()

        def work(lane: _Lane) -> list[float]:
            try:
                start.wait()
                times = [lane.once() for _ in range(share)]
            finally:
                finished.release()
            while not stop.is_set():
                lane.once()
            return times

        futures = [thread.submit(work, lane) for thread, lane in zip(self._threads, self._lanes, strict=True)]
        for _ in futures:
            finished.acquire()
        stop.set()
        return np.asarray([seconds for future in futures for seconds in future.result()][:count], np.float64)


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


def _throttle_reasons() -> int:
    try:
        return cuda.nvml().throttle_reasons()
    except TrtfleetError:
        return 0  # no NVML: the device says nothing
