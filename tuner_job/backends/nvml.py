"""What NVML knows of this process's GPU: identity, state, throttle reasons.

A GPU that is cut into MIG slices answers some questions for the slice (memory, processes, name) and some only as a whole (clocks,
power, ECC). A question that a device, driver or container does not answer is None, never an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from functools import lru_cache

from tuner_job.api.base import TrtfleetError
from tuner_job.api.measurement import Device, DeviceState, GpuProcess
from tuner_job.backends.cuda import driver, library

_SM, _MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
_INSUFFICIENT_SIZE = 7  # NVML_ERROR_INSUFFICIENT_SIZE
_NOT_AVAILABLE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE
_MOST_PROCESSES = 1024

REASONS = {
    0x001: "gpuIdle",
    0x002: "applicationsClocksSetting",
    0x004: "swPowerCap",
    0x008: "hwSlowdown",
    0x010: "syncBoost",
    0x020: "swThermalSlowdown",
    0x040: "hwThermalSlowdown",
    0x080: "hwPowerBrakeSlowdown",
    0x100: "displayClockSetting",
}
"""Bits of nvmlClocksEventReasons."""
POWER_CAPPED = 0x004
THROTTLED = 0x008 | 0x020 | 0x040 | 0x080
"""Reasons that invalidate a sample. The software power cap is normal on some cards, so not here."""


class _Memory(Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class _Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Process(Structure):
    _fields_ = (("pid", c_uint), ("memory", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))


_NUMBER, _BITS = POINTER(c_uint), POINTER(c_ulonglong)
_SIGNATURES: dict[str, tuple[type[object], ...]] = {
    "nvmlInit_v2": (),
    "nvmlErrorString": (c_int,),
    "nvmlSystemGetDriverVersion": (c_char_p, c_uint),
    "nvmlDeviceGetHandleByUUID": (c_char_p, POINTER(c_void_p)),
    "nvmlDeviceGetHandleByPciBusId_v2": (c_char_p, POINTER(c_void_p)),
    "nvmlDeviceIsMigDeviceHandle": (c_void_p, _NUMBER),
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": (c_void_p, POINTER(c_void_p)),
    "nvmlDeviceGetMigMode": (c_void_p, _NUMBER, _NUMBER),
    "nvmlDeviceGetMaxMigDeviceCount": (c_void_p, _NUMBER),
    "nvmlDeviceGetMigDeviceHandleByIndex": (c_void_p, c_uint, POINTER(c_void_p)),
    "nvmlDeviceGetName": (c_void_p, c_char_p, c_uint),
    "nvmlDeviceGetUUID": (c_void_p, c_char_p, c_uint),
    "nvmlDeviceGetVbiosVersion": (c_void_p, c_char_p, c_uint),
    "nvmlDeviceGetClockInfo": (c_void_p, c_int, _NUMBER),
    "nvmlDeviceGetMaxClockInfo": (c_void_p, c_int, _NUMBER),
    "nvmlDeviceGetTemperature": (c_void_p, c_int, _NUMBER),
    "nvmlDeviceGetPowerUsage": (c_void_p, _NUMBER),
    "nvmlDeviceGetEnforcedPowerLimit": (c_void_p, _NUMBER),
    "nvmlDeviceGetPowerManagementDefaultLimit": (c_void_p, _NUMBER),
    "nvmlDeviceGetEccMode": (c_void_p, _NUMBER, _NUMBER),
    "nvmlDeviceGetPersistenceMode": (c_void_p, _NUMBER),
    "nvmlDeviceGetCurrentClocksEventReasons": (c_void_p, _BITS),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (c_void_p, _BITS),
    "nvmlDeviceGetUtilizationRates": (c_void_p, POINTER(_Utilization)),
    "nvmlDeviceGetMemoryInfo_v2": (c_void_p, POINTER(_Memory)),
    "nvmlDeviceGetComputeRunningProcesses_v3": (c_void_p, _NUMBER, POINTER(_Process)),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": (c_void_p, _NUMBER, POINTER(_Process)),
}


class Nvml:
    """libnvidia-ml and one GPU: the one with the UUID that the CUDA driver gives, so that both mean the same device whatever
    CUDA_VISIBLE_DEVICES says; by PCI bus id where NVML does not know the UUID. Raises TrtfleetError."""

    def __init__(self, uuid: str, pci_bus_id: str) -> None:
        self._lib = library("libnvidia-ml.so.1", "NVML", _SIGNATURES)
        self._lib.nvmlErrorString.restype = c_char_p
        self._must("nvmlInit_v2")
        found = self._handle("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode())
        found = found or self._handle("nvmlDeviceGetHandleByUUID", f"MIG-{uuid}".encode())
        if found is None:
            handle = c_void_p()
            self._must("nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.encode(), byref(handle))
            found = handle
        parent = self._handle("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", found) if self._is_slice(found) else None
        self._gpu = parent or found
        self._slice = found if parent else self._first_slice(found)
        self._own = self._slice or self._gpu

    def driver(self) -> str:
        """Version of the GPU driver."""
        text = ctypes.create_string_buffer(96)
        self._must("nvmlSystemGetDriverVersion", text, len(text))
        return text.value.decode()

    def product(self) -> str:
        """`NVIDIA H200`, also of a slice."""
        text = ctypes.create_string_buffer(96)
        self._must("nvmlDeviceGetName", self._gpu, text, len(text))
        return text.value.decode()

    def mig_profile(self) -> str:
        """`1g.18gb`, or "" when the GPU is whole."""
        return self._text("nvmlDeviceGetName", self._slice).rpartition("MIG ")[2] if self._slice else ""

    def throttle_reasons(self) -> int:
        """Bits of `REASONS` now; 0 where the GPU does not say."""
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            bits = c_ulonglong()
            if self._ask(name, self._gpu, byref(bits)):
                return bits.value
        return 0

    def state(self) -> DeviceState:
        """The device now; utilisation and processes are those of the slice where there is one."""
        reasons = self.throttle_reasons()
        memory = self._memory()
        utilization = _Utilization()
        return DeviceState(
            uuid=self._text("nvmlDeviceGetUUID", self._own),
            vbios=self._text("nvmlDeviceGetVbiosVersion", self._gpu),
            sm_clock_mhz=self._number("nvmlDeviceGetClockInfo", _SM),
            memory_clock_mhz=self._number("nvmlDeviceGetClockInfo", _MEMORY),
            max_sm_clock_mhz=self._number("nvmlDeviceGetMaxClockInfo", _SM),
            max_memory_clock_mhz=self._number("nvmlDeviceGetMaxClockInfo", _MEMORY),
            temperature_celsius=self._number("nvmlDeviceGetTemperature", _GPU_SENSOR),
            power_watts=self._watts("nvmlDeviceGetPowerUsage"),
            power_limit_watts=self._watts("nvmlDeviceGetEnforcedPowerLimit"),
            default_power_limit_watts=self._watts("nvmlDeviceGetPowerManagementDefaultLimit"),
            ecc=self._ecc(),
            persistence=None if (mode := self._number("nvmlDeviceGetPersistenceMode")) is None else bool(mode),
            throttle_reasons=tuple(name for bit, name in REASONS.items() if reasons & bit),
            utilization_percent=(
                utilization.gpu if self._ask("nvmlDeviceGetUtilizationRates", self._own, byref(utilization)) else None
            ),
            memory_used_bytes=memory.used if memory else None,
            memory_total_bytes=memory.total if memory else None,
            processes=self._processes(),
        )

    def _ask(self, name: str, *arguments: object) -> bool:
        """Whether the function exists and answers."""
        function = getattr(self._lib, name, None)
        return function is not None and function(*arguments) == 0

    def _must(self, name: str, *arguments: object) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            text = (self._lib.nvmlErrorString(code) or b"unknown error").decode(errors="replace")
            raise TrtfleetError(f"{name} failed: {text} ({code})", reason="NvmlError")

    def _handle(self, name: str, *arguments: object) -> c_void_p | None:
        handle = c_void_p()
        return handle if self._ask(name, *arguments, byref(handle)) else None

    def _is_slice(self, handle: c_void_p) -> bool:
        answer = c_uint()
        return self._ask("nvmlDeviceIsMigDeviceHandle", handle, byref(answer)) and bool(answer.value)

    def _first_slice(self, gpu: c_void_p) -> c_void_p | None:
        """Drivers that give a slice's process the whole GPU's UUID: a container's first slice is the one that it was given."""
        current, pending, count = c_uint(), c_uint(), c_uint()
        if not self._ask("nvmlDeviceGetMigMode", gpu, byref(current), byref(pending)) or not current.value:
            return None
        self._ask("nvmlDeviceGetMaxMigDeviceCount", gpu, byref(count))
        found = (self._handle("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index) for index in range(count.value))
        return next((handle for handle in found if handle is not None), None)

    def _text(self, name: str, handle: c_void_p) -> str:
        text = ctypes.create_string_buffer(96)
        return text.value.decode(errors="replace") if self._ask(name, handle, text, len(text)) else ""

    def _number(self, name: str, *which: int) -> int | None:
        value = c_uint()
        return value.value if self._ask(name, self._gpu, *which, byref(value)) else None

    def _watts(self, name: str) -> float | None:
        return None if (milliwatts := self._number(name)) is None else milliwatts / 1000

    def _ecc(self) -> bool | None:
        current, pending = c_uint(), c_uint()
        return bool(current.value) if self._ask("nvmlDeviceGetEccMode", self._gpu, byref(current), byref(pending)) else None

    def _memory(self) -> _Memory | None:
        """Without what driver and firmware reserve, which the first form of the call counts as used."""
        memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
        return memory if self._ask("nvmlDeviceGetMemoryInfo_v2", self._own, byref(memory)) else None

    def _processes(self) -> tuple[GpuProcess, ...]:
        """Of computing and of graphics, each process once."""
        found: dict[int, GpuProcess] = {}
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"):
            function = getattr(self._lib, name, None)
            if function is None:
                continue
            entries = (_Process * _MOST_PROCESSES)()
            count = c_uint(_MOST_PROCESSES)
            code = function(self._own, byref(count), entries)
            if code not in (0, _INSUFFICIENT_SIZE):
                continue
            for one in entries[: min(count.value, _MOST_PROCESSES)]:
                if one.pid:
                    memory = None if one.memory == _NOT_AVAILABLE else one.memory
                    found.setdefault(one.pid, GpuProcess(pid=one.pid, memory_bytes=memory))
        return tuple(found.values())[:_MOST_PROCESSES]


@lru_cache(maxsize=1)
def nvml() -> Nvml:
    """NVML for this process's GPU; raises TrtfleetError. Makes no CUDA context."""
    return Nvml(driver().uuid(), driver().pci_bus_id())


def identify() -> Device:
    """The device class of this process's GPU; raises TrtfleetError where there is none."""
    return Device(
        type="GPU",
        product=nvml().product(),
        mig_profile=nvml().mig_profile(),
        compute_capability=driver().compute_capability(),
        driver=nvml().driver(),
    )


def state() -> DeviceState:
    """The GPU of this process. Raises TrtfleetError where there is no GPU, or no NVML that could tell whether it is idle."""
    driver()
    return nvml().state()


def reasons_source() -> Callable[[], int]:
    """What to ask for throttle reasons; one that never has any where there is no NVML."""
    try:
        return nvml().throttle_reasons
    except TrtfleetError:
        return lambda: 0
