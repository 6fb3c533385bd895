"""Streams of inferences that run at once, and the timer that GPU backends share.

A backend brings the lane: one stream with everything that an inference on it needs. Each lane of several keeps a thread of its
own, since CUDA graphs and contexts belong to threads.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tuner_job.api.child import MeasureSettings
from tuner_job.backends import nvml
from tuner_job.backends.cuda import Stream
from tuner_job.measure.sampling import Aside


class Took(NamedTuple):
    """One inference, in seconds."""

    counted: float
    """By the timer's clock."""
    host: float
    """Host wall time from launch to completion."""


class Lane(Protocol):
    """One stream of inferences."""

    def once(self) -> Took: ...

    def close(self) -> None: ...


def on_device(stream: Stream, launch: Callable[[], None]) -> Took:
    """One launch on the stream, whose device's context is current in this thread: between two events, and on the host's clock."""
    start = time.perf_counter_ns()
    stream.mark_start()
    launch()
    stream.mark_end()
    seconds = stream.elapsed()
    return Took(seconds, (time.perf_counter_ns() - start) / 1e9)


class Lanes:
    """Lanes that run at once. Closing them releases what they hold, each in the thread that made it."""

    def __init__(self, make: Callable[[], Lane], streams: int) -> None:
        self._threads = [ThreadPoolExecutor(1) for _ in range(streams)] if streams > 1 else []
        self._lanes: list[Lane] = []
        try:
            for thread in self._threads:
                self._lanes.append(thread.submit(make).result())
            if not self._threads:
                self._lanes.append(make())
        except BaseException:
            with contextlib.suppress(Exception):  # the first failure is the one to tell
                self.close()
            raise

    def sample(self, count: int) -> npt.NDArray[np.float64]:
        """`count` inferences, shape (2, count): a row for each field of `Took`. A lane that has its share goes on, unrecorded,
        until all have theirs."""
        if not self._threads:
            lane = self._lanes[0]
            return np.array([lane.once() for _ in range(count)], np.float64).T
        share = -(-count // len(self._lanes))
        start = threading.Barrier(len(self._lanes))
        finished = threading.Semaphore(0)
        stop = threading.Event()

        def work(lane: Lane) -> list[Took]:
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
        return np.array([took for future in futures for took in future.result()][:count], np.float64).T

    def close(self) -> None:
        """Also after a failure; raises the first error of a lane once all are closed."""
        lanes, self._lanes = self._lanes, []
        with contextlib.ExitStack() as stack:
            for thread in self._threads:
                stack.callback(thread.shutdown)
            for position, lane in enumerate(lanes):
                stack.callback(self._threads[position].submit(lane.close).result if self._threads else lane.close)


class GpuTimer:
    """Device clock (events around the work, on a stream of our own), or host clock when transfers count.

    `make` makes a lane that launches a CUDA graph, or, given False, launches from the host. Where it raises one of `uncapturable`
    for a graph, all lanes are made without: `launch` says which it is. Throttle reasons are looked at after every call of
    `sample`.
    """

    def __init__(
        self, make: Callable[[bool], Lane], settings: MeasureSettings, uncapturable: tuple[type[Exception], ...]
    ) -> None:
        self.clock: Literal["device", "host"] = "host" if settings.transfers else "device"
        self.launch: Literal["direct", "cudaGraph"] = "direct"
        self._reasons = nvml.reasons_source()
        self._seen = 0
        self._host: list[npt.NDArray[np.float64]] = []
        lanes: Lanes | None = None
        if settings.cuda_graph:
            with contextlib.suppress(*uncapturable):
                lanes = Lanes(lambda: make(True), settings.streams)
                self.launch = "cudaGraph"
        self._lanes = lanes or Lanes(lambda: make(False), settings.streams)

    def sample(self, count: int) -> npt.NDArray[np.float64]:
        took = self._lanes.sample(count)
        self._host.append(took[1])
        self._seen |= self._reasons()
        counted: npt.NDArray[np.float64] = took[0]
        return counted

    def aside(self) -> Aside:
        reasons, self._seen = self._seen | self._reasons(), 0
        host, self._host = self._host, []
        return Aside(
            throttled=bool(reasons & nvml.THROTTLED),
            power_capped=bool(reasons & nvml.POWER_CAPPED),
            host_median=float(np.median(np.concatenate(host))) if host and self.clock == "device" else None,
        )

    def close(self) -> None:
        self._lanes.close()
