"""The calls of the CUDA driver that identity, running and timing need, by ctypes.

libcuda comes with the driver, so nothing depends on the CUDA version that an engine library was built for. Runtime and driver API
share the device's primary context, hence a library's work can be put on a stream made here, read buffers made here, and be timed
by events. A context is made when one is first needed (`Driver.use`): the device can be looked at before this process is on it.

Whoever makes a stream, buffer or graph closes it: graphs first, then streams, then buffers, since work on a stream holds
addresses, not references.
"""

from __future__ import annotations

import ctypes
import threading
import uuid
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tuner_job.api.base import TrtfleetError
from tuner_job.backends.protocol import NoDevice

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other lanes go on in other threads
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY

_SIGNATURES: dict[str, tuple[type[object], ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDeviceGetUuid_v2": (c_char_p, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_ulonglong),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
}
"""Every function that is called, under the name that libcuda of CUDA 12 and 13 exports. CUdeviceptr is a 64-bit number."""


class CudaError(TrtfleetError):
    """A driver function said no; `code` is its CUresult."""

    reason = "CudaError"

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Driver:
    """libcuda and device 0 of this process. Raises TrtfleetError where there is none."""

    def __init__(self) -> None:
        self._lib = library("libcuda.so.1", "the CUDA driver", _SIGNATURES)
        self.call("cuInit", 0)
        device = c_int()
        self.call("cuDeviceGet", byref(device), 0)
        self._device = device.value
        self._context: int | None = None
        self._lock = threading.Lock()

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of `_SIGNATURES`. Raises CudaError, or MemoryError where the device has no memory left."""
        code = getattr(self._lib, name)(*arguments)
        if not code:
            return
        text = c_char_p()
        self._lib.cuGetErrorString(code, byref(text))
        message = f"{name} failed: {(text.value or b'unknown error').decode(errors='replace')} ({code})"
        raise MemoryError(message) if code == _OUT_OF_MEMORY else CudaError(message, code)

    def release(self, name: str, handle: int) -> None:
        """Call a function that frees something. Its answer is not heeded: it repeats errors of earlier work, and nothing could be
        done."""
        if self._context is not None:
            self._lib.cuCtxSetCurrent(self._context)
            getattr(self._lib, name)(handle)

    def use(self) -> None:
        """Make the primary context current in this thread; the first call creates it. Raises NoDevice where that cannot be."""
        with self._lock:
            if self._context is None:
                context = c_void_p()
                try:
                    self.call("cuDevicePrimaryCtxRetain", byref(context), self._device)
                except CudaError as error:
                    raise NoDevice(str(error)) from None
                self._context = context.value
        self.call("cuCtxSetCurrent", self._context)

    def compute_capability(self) -> str:
        """As `9.0`."""
        return ".".join(str(self._attribute(which)) for which in (_MAJOR, _MINOR))

    def uuid(self) -> str:
        """Of the MIG instance where there is one, else of the GPU; without NVML's prefix."""
        raw = ctypes.create_string_buffer(16)
        self.call("cuDeviceGetUuid_v2", raw, self._device)
        return str(uuid.UUID(bytes=raw.raw))

    def pci_bus_id(self) -> str:
        text = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", text, len(text), self._device)
        return text.value.decode()

    def _attribute(self, which: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), which, self._device)
        return value.value


class DeviceBuffer:
    """Memory of the device."""

    def __init__(self, driver: Driver, size: int) -> None:
        """`size` in bytes; empty tensors have an address too, since libraries refuse a null one."""
        self._driver = driver
        driver.use()
        address = c_uint64()
        driver.call("cuMemAlloc_v2", byref(address), max(size, 1))
        self.address: int = address.value
        self.size = size

    def close(self) -> None:
        if self.address:
            self._driver.release("cuMemFree_v2", self.address)
            self.address = 0


class PinnedBuffer:
    """Page-locked host memory: copies to and from the device run at full speed and without waiting."""

    def __init__(self, driver: Driver, size: int) -> None:
        """`size` in bytes."""
        self._driver = driver
        driver.use()
        address = c_void_p()
        driver.call("cuMemHostAlloc", byref(address), max(size, 1), 0)
        self.address: int = address.value or 0
        self.size = size

    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes themselves, shape (size,). Not to be touched after `close`."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(self.address))

    def close(self) -> None:
        if self.address:
            self._driver.release("cuMemFreeHost", self.address)
            self.address = 0


class Graph:
    """Work that a stream captured, ready to be launched. The buffers that it reads and writes must outlive it."""

    def __init__(self, driver: Driver, handle: int) -> None:
        self._driver, self._handle = driver, handle

    def launch(self, stream: Stream) -> None:
        self._driver.call("cuGraphLaunch", self._handle, stream.handle)

    def close(self) -> None:
        if self._handle:
            self._driver.release("cuGraphExecDestroy", self._handle)
            self._handle = 0


class Stream:
    """A stream with one pair of events. `handle` is its cudaStream_t, for engine libraries."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        driver.use()
        stream, start, end = c_void_p(), c_void_p(), c_void_p()
        driver.call("cuStreamCreate", byref(stream), _NON_BLOCKING)
        for event in (start, end):
            driver.call("cuEventCreate", byref(event), 0)
        self.handle: int = stream.value or 0
        self._start: int = start.value or 0
        self._end: int = end.value or 0

    def mark_start(self) -> None:
        self._driver.call("cuEventRecord", self._start, self.handle)

    def mark_end(self) -> None:
        self._driver.call("cuEventRecord", self._end, self.handle)

    def elapsed(self) -> float:
        """Seconds of device time between the two marks; waits for the second."""
        self._driver.call("cuEventSynchronize", self._end)
        milliseconds = c_float()
        self._driver.call("cuEventElapsedTime", byref(milliseconds), self._start, self._end)
        return milliseconds.value / 1e3

    def wait(self) -> None:
        self._driver.call("cuStreamSynchronize", self.handle)

    def send(self, to: DeviceBuffer, source: int, size: int) -> None:
        """Copy `size` bytes from host address `source`, which must stay as it is until the copy is done."""
        self._driver.call("cuMemcpyHtoDAsync_v2", to.address, source, size, self.handle)

    def fetch(self, to: int, source: DeviceBuffer, size: int) -> None:
        """Copy `size` bytes to host address `to`; there once `wait` returned."""
        self._driver.call("cuMemcpyDtoHAsync_v2", to, source.address, size, self.handle)

    def capture(self, work: Callable[[], None]) -> Graph:
        """What `work` puts on this stream, as a graph, without running it.

        Raises CudaError where something in it cannot be captured, and what `work` raises; the stream is usable again after both.
        """
        graph, launchable = c_void_p(), c_void_p()
        self._driver.call("cuStreamBeginCapture_v2", self.handle, _THREAD_LOCAL)
        try:
            work()
        except BaseException:
            self._abandon_capture()
            raise
        self._driver.call("cuStreamEndCapture", self.handle, byref(graph))
        try:
            self._driver.call("cuGraphInstantiateWithFlags", byref(launchable), graph, 0)
        finally:
            self._driver.call("cuGraphDestroy", graph)
        return Graph(self._driver, launchable.value or 0)

    def close(self) -> None:
        """Waits for what is on it, so that buffers may go next."""
        if self.handle:
            self._driver.release("cuStreamSynchronize", self.handle)
            self._driver.release("cuEventDestroy_v2", self._start)
            self._driver.release("cuEventDestroy_v2", self._end)
            self._driver.release("cuStreamDestroy_v2", self.handle)
            self.handle = 0

    def _abandon_capture(self) -> None:
        graph = c_void_p()
        try:
            self._driver.call("cuStreamEndCapture", self.handle, byref(graph))
        except CudaError:
            return  # that a spoilt capture has no graph is what we know already
        if graph.value:
            self._driver.call("cuGraphDestroy", graph)


@lru_cache(maxsize=1)
def driver() -> Driver:
    """This process's driver; raises TrtfleetError where there is no GPU."""
    return Driver()


def library(name: str, what: str, signatures: dict[str, tuple[type[object], ...]]) -> ctypes.CDLL:
    """A library of the driver, with the argument types of its functions; those that it lacks are left out.

    Raises TrtfleetError where it cannot be loaded.
    """
    try:
        found = ctypes.CDLL(name)
    except OSError:
        raise TrtfleetError(
            f"{what} ({name}) cannot be loaded; this machine has no GPU, or the container was not given one", reason="NoGpu"
        ) from None
    for function, arguments in signatures.items():
        if hasattr(found, function):
            getattr(found, function).argtypes = arguments
    return found
