"""A TensorRT of a few lines for what the stand-in has not.

Outputs whose size depends on data, shape tensors in host memory, types that cannot be compared, several profiles. To be run where
the driver stand-in is: its device memory is host memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy as np

from tuner_job.backends.tensorrt.library import Library
from tuner_job.backends.tensorrt.log import Log

Kind = Enum("Kind", ["FLOAT", "HALF", "BF16", "FP8", "E8M0", "INT8", "UINT8", "INT32", "INT64", "BOOL", "INT4", "FP4"])
TensorIOMode = Enum("TensorIOMode", ["INPUT", "OUTPUT"])
TensorLocation = Enum("TensorLocation", ["DEVICE", "HOST"])
EngineStat = Enum("EngineStat", ["STRIPPED_WEIGHTS_SIZE"])
LayerInformationFormat = Enum("LayerInformationFormat", ["JSON"])


class ILogger:
    pass


class IProfiler:
    pass


class IOutputAllocator:
    pass


class Severity(Enum):
    WARNING = 0
    ERROR = 1


class Engine:
    """`tensors`: name → (type, shape, whether it is an input, whether it lies in host memory). `compute`: what runs."""

    refittable = False

    def __init__(
        self,
        tensors: Mapping[str, tuple[str, tuple[int, ...], bool, bool]],
        compute: Callable[[Context], bool],
        profiles: list[dict[str, list[tuple[int, ...]]]] | None = None,
    ) -> None:
        self.tensors, self.compute, self.profiles = dict(tensors), compute, profiles or [{}]
        self.num_io_tensors, self.num_optimization_profiles = len(self.tensors), len(self.profiles)
        self.contexts: list[Context] = []

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_dtype(self, name: str) -> Kind:
        return Kind[self.tensors[name][0]]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name][1]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if self.tensors[name][2] else TensorIOMode.OUTPUT

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.HOST if self.tensors[name][3] else TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        return self.profiles[index][name]

    def get_engine_stat(self, stat: EngineStat) -> int:
        return -1

    def create_execution_context(self) -> Context:
        self.contexts.append(Context(self))
        return self.contexts[-1]


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.active_optimization_profile = 0
        self.switches: list[int] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}
        self.missing: list[str] = []

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.active_optimization_profile = index
        self.switches.append(index)
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self.allocators[name] = allocator
        return True

    def infer_shapes(self) -> list[str]:
        return self.missing

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.engine.tensors[name][1]

    def execute_async_v3(self, stream: int) -> bool:
        return self.engine.compute(self)

    def read(self, name: str, dtype: Any) -> Any:
        """An input, as a kernel sees it."""
        shape = self.shapes[name]
        count = int(np.prod(shape))
        raw = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(self.addresses[name])
        return np.frombuffer(bytes(raw), dtype).reshape(shape)

    def write(self, name: str, value: Any) -> None:
        self.write_at(self.addresses[name], value)

    @staticmethod
    def write_at(address: int, value: Any) -> None:
        data = np.ascontiguousarray(value).tobytes()
        ctypes.memmove(address, data, len(data))


class Module:
    """The module, whose runtime gives one engine."""

    ILogger, IProfiler, IOutputAllocator = ILogger, IProfiler, IOutputAllocator
    TensorIOMode, TensorLocation, EngineStat, LayerInformationFormat = (
        TensorIOMode,
        TensorLocation,
        EngineStat,
        LayerInformationFormat,
    )

    def __init__(self, engine: Engine, says: str = "") -> None:
        self._engine, self._says = engine, says

    def Runtime(self, logger: Any) -> Module:
        self._logger = logger
        return self

    def deserialize_cuda_engine(self, data: bytes) -> Engine:
        if self._says:
            self._logger.log(Severity.WARNING, self._says)
        return self._engine


def library(engine: Engine, says: str = "") -> tuple[Library, Log]:
    module = Module(engine, says)
    return Library("tensorrt", module, "11.2.1.2"), Log(module)
