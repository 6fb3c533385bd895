"""The few calls of the CUDA driver and of NVML that identity and timing need, by ctypes.

Both libraries come with the driver, so nothing depends on the CUDA version that ONNX Runtime was built for. Runtime and driver
API share the device's primary context, hence ONNX Runtime's work can be put on a stream made here and timed by events on it.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_uint, c_ulonglong, c_void_p
from functools import lru_cache

from tuner_job.api.base import TrtfleetError

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING

HW_SLOWDOWN = 0x08
SW_THERMAL = 0x20
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80
THROTTLED = HW_SLOWDOWN | SW_THERMAL | HW_THERMAL | HW_POWER_BRAKE
"""nvmlClocksThrottleReasons that invalidate a sample. The software power cap (0x04) is normal on some cards, so not here."""


class Driver:
    """libcuda with the primary context of device 0 of this process."""

    def __init__(self) -> None:
        self._lib = _library("libcuda.so.1", "the CUDA driver")
        self._lib.cuGetErrorString.argtypes = [c_int, POINTER(c_char_p)]
        self.call("cuInit", c_uint(0))
        self._device = c_int()
        self.call("cuDeviceGet", byref(self._device), c_int(0))
        self._context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(self._context), self._device)

    def call(self, name: str, *arguments: object) -> None:
        """Call a driver function; raises TrtfleetError naming it when it fails."""
        code = getattr(self._lib, name)(*arguments)
        if code:
            text = c_char_p()
            self._lib.cuGetErrorString(code, byref(text))
            raise TrtfleetError(f"{name} failed: {(text.value or b'unknown error').decode()} ({code})", reason="CudaError")

    def use(self) -> None:
        """Make the context current in this thread."""
        self.call("cuCtxSetCurrent", self._context)

    def compute_capability(self) -> str:
        parts = []
        for attribute in (_MAJOR, _MINOR):
            value = c_int()
            self.call("cuDeviceGetAttribute", byref(value), c_int(attribute), self._device)
            parts.append(str(value.value))
        return ".".join(parts)

    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, c_int(256), self._device)
        return text.value.decode()

    def pci_bus_id(self) -> str:
        text = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", text, c_int(32), self._device)
        return text.value.decode()


class Stream:
    """A stream with one pair of events, for the rest of the process. `handle` goes to ONNX Runtime as `user_compute_stream`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        driver.use()
        self._stream, self._start, self._end = c_void_p(), c_void_p(), c_void_p()
        driver.call("cuStreamCreate", byref(self._stream), c_uint(_NON_BLOCKING))
        for event in (self._start, self._end):
            driver.call("cuEventCreate", byref(event), c_uint(0))

    @property
    def handle(self) -> int:
        return self._stream.value or 0

    def mark_start(self) -> None:
        self._driver.call("cuEventRecord", self._start, self._stream)

    def mark_end(self) -> None:
        self._driver.call("cuEventRecord", self._end, self._stream)

    def elapsed(self) -> float:
        """Seconds of device time between the two marks; waits for the second."""
        self._driver.call("cuEventSynchronize", self._end)
        milliseconds = c_float()
        self._driver.call("cuEventElapsedTime", byref(milliseconds), self._start, self._end)
        return milliseconds.value / 1e3

    def wait(self) -> None:
        self._driver.call("cuStreamSynchronize", self._stream)


class Nvml:
    """libnvidia-ml for the GPU at a PCI bus id."""

    def __init__(self, pci_bus_id: str) -> None:
        self._lib = _library("libnvidia-ml.so.1", "NVML")
        self._lib.nvmlErrorString.restype = c_char_p
        self._call("nvmlInit_v2")
        self._gpu = c_void_p()
        self._call("nvmlDeviceGetHandleByPciBusId_v2", c_char_p(pci_bus_id.encode()), byref(self._gpu))

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            raise TrtfleetError(f"{name} failed: {self._lib.nvmlErrorString(code).decode()} ({code})", reason="NvmlError")

    def driver(self) -> str:
        text = ctypes.create_string_buffer(96)
        self._call("nvmlSystemGetDriverVersion", text, c_uint(96))
        return text.value.decode()

    def product(self) -> str:
        return self._name(self._gpu)

    def mig_profile(self) -> str:
        """`1g.18gb`, or "" when the GPU is whole. In a container the first MIG device is the one that it was given."""
        current, pending = c_uint(), c_uint()
        if self._lib.nvmlDeviceGetMigMode(self._gpu, byref(current), byref(pending)) or not current.value:
            return ""  # also GPUs without MIG, which answer "not supported"
        count = c_uint()
        self._call("nvmlDeviceGetMaxMigDeviceCount", self._gpu, byref(count))
        for index in range(count.value):
            instance = c_void_p()
            if not self._lib.nvmlDeviceGetMigDeviceHandleByIndex(self._gpu, c_uint(index), byref(instance)):
                return self._name(instance).rpartition("MIG ")[2]
        return ""

    def throttle_reasons(self) -> int:
        """Bits of nvmlClocksThrottleReasons now; 0 where the GPU does not say (MIG, virtual GPUs)."""
        reasons = c_ulonglong()
        code = self._lib.nvmlDeviceGetCurrentClocksThrottleReasons(self._gpu, byref(reasons))
        return 0 if code else reasons.value

    def _name(self, handle: c_void_p) -> str:
        text = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetName", handle, text, c_uint(96))
        return text.value.decode()


def cudnn_version() -> str:
    """Version of the cuDNN that this process uses (`9.12.0`), or "" where there is none."""
    try:
        number = int(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())
    except OSError:
        return ""
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


@lru_cache(maxsize=1)
def driver() -> Driver:
    """This process's driver; raises TrtfleetError where there is no GPU."""
    return Driver()


@lru_cache(maxsize=1)
def nvml() -> Nvml:
    """NVML for this process's GPU; raises TrtfleetError."""
    return Nvml(driver().pci_bus_id())


def _library(name: str, what: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except OSError:
        raise TrtfleetError(
            f"{what} ({name}) cannot be loaded; this machine has no GPU, or the container was not given one", reason="NoGpu"
        ) from None
