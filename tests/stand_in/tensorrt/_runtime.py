"""From a plan to outputs on the device."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from . import _device
from ._base import Dims, IHostMemory, ILogger, Speaker
from ._enums import (
    DataType,
    EngineStat,
    ErrorCodeTRT,
    ExecutionContextAllocationStrategy,
    LayerInformationFormat,
    ProfilingVerbosity,
    Severity,
    TensorIOMode,
    TensorLocation,
)
from ._kernels import NUMPY, Arrays, Kernels, Noise
from ._network import IPluginRegistry
from ._plan import Plan
from ._script import VERSION

_SCRATCH = 8_192_000
_HOST_SECONDS = 0.002
_UNRESPONSIVE = 0.8
"""Device time grows with the number of elements to this power."""


class IProfiler:
    """To be derived from."""

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        raise NotImplementedError


class IOutputAllocator:
    """To be derived from."""

    def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
        raise NotImplementedError

    def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
        raise NotImplementedError

    def notify_shape(self, tensor_name: str, shape: Dims) -> None:
        raise NotImplementedError


@cache
def _noise() -> Noise:
    """One per process: its engines share the device."""
    return Noise()


class Runtime(Speaker):
    def __init__(self, logger: ILogger) -> None:
        super().__init__(logger)
        if _device.driver() is None:
            self.say(
                Severity.ERROR, "createInferRuntime: Error Code 6: API Usage Error (CUDA initialization failure with error: 35)"
            )
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self.engine_host_code_allowed = False
        self.max_threads = 1
        self.temporary_directory = ""

    def get_plugin_registry(self) -> IPluginRegistry:
        return IPluginRegistry(self.logger)

    def deserialize_cuda_engine(self, serialized_engine: Any) -> ICudaEngine | None:
        """None and lines in the log where it fails, never an exception."""
        data = bytes(memoryview(serialized_engine))
        self.say(Severity.INFO, f"Loaded engine size: {len(data) >> 20} MiB")
        plan = Plan.read(data)
        if plan is None:
            self.fail(
                "[runtime.cpp::readHeader::765]",
                "Assertion bufferSize >= minBufferSize failed.  In readHeader",
                ErrorCodeTRT.INTERNAL_ERROR,
            )
            return None
        if plan.version != VERSION:
            text = "The engine plan file is not compatible with this version of TensorRT, expecting library version"
            self.fail("IRuntime::deserializeCudaEngine", f"{text} {VERSION} got {plan.version}, please rebuild.")
            return None
        if "loadFails" in plan.actions:
            self.fail("IRuntime::deserializeCudaEngine", "Serialization assertion magicTagRead == kMAGIC_TAG failed.")
            return None
        return ICudaEngine(self.logger, plan)


class ICudaEngine(Speaker):
    def __init__(self, logger: ILogger, plan: Plan) -> None:
        super().__init__(logger)
        self._plan = plan
        self._kernels = Kernels(plan)
        self._tensors: dict[str, dict[str, Any]] = {tensor["name"]: tensor for tensor in plan.tensors}
        self._dtypes = {name: DataType(tensor["dtype"]).name for name, tensor in self._tensors.items()}

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    @property
    def num_layers(self) -> int:
        return len(self._plan.layers)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._plan.profiles)

    @property
    def num_aux_streams(self) -> int:
        return 0

    @property
    def refittable(self) -> bool:
        return self._plan.refittable

    @property
    def device_memory_size_v2(self) -> int:
        return _SCRATCH

    @property
    def streamable_weights_size(self) -> int:
        return self._plan.weights

    @property
    def profiling_verbosity(self) -> ProfilingVerbosity:
        return ProfilingVerbosity(self._plan.verbosity)

    def __getitem__(self, arg0: int) -> str:
        return self.get_tensor_name(arg0)

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        if name not in self._tensors:
            return TensorIOMode.NONE
        return TensorIOMode.INPUT if self._tensors[name]["input"] else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType(self._tensors[name]["dtype"])

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(self._tensors[name]["shape"])

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.DEVICE

    def is_shape_inference_io(self, name: str) -> bool:
        return False

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        shapes = self._plan.profiles[profile_index].get(name, [self._tensors[name]["shape"]] * 3)
        return [Dims(shape) for shape in shapes]

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        return _SCRATCH

    def get_engine_stat(self, stat: EngineStat = EngineStat.TOTAL_WEIGHTS_SIZE) -> int:
        if stat is EngineStat.STRIPPED_WEIGHTS_SIZE:
            return self._plan.weights if "stripped" in self._plan.actions else -1
        return self._plan.weights

    def create_engine_inspector(self) -> EngineInspector:
        return EngineInspector(self)

    def create_execution_context(
        self, strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC
    ) -> IExecutionContext | None:
        if "contextFails" in self._plan.actions:
            self.fail(
                "IExecutionContext",
                f"Requested amount of GPU memory ({_SCRATCH} bytes) could not be allocated: out of memory",
                ErrorCodeTRT.FAILED_ALLOCATION,
            )
            return None
        return IExecutionContext(self)

    def serialize(self) -> IHostMemory:
        return IHostMemory(self._plan.serialize())


class IExecutionContext(Speaker):
    def __init__(self, engine: ICudaEngine) -> None:
        super().__init__(engine.logger)
        self.engine = engine
        self.name = ""
        self.enqueue_emits_profile = True
        self._profiler: IProfiler | None = None
        self._profile = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, IOutputAllocator] = {}
        self._known: dict[tuple[tuple[int, ...], ...], dict[str, tuple[int, ...]]] = {}
        self._set_static()

    def _set_static(self) -> None:
        self._shapes = {
            name: tuple(tensor["shape"])
            for name, tensor in self.engine._tensors.items()
            if tensor["input"] and -1 not in tensor["shape"]
        }

    @property
    def profiler(self) -> IProfiler | None:
        return self._profiler

    @profiler.setter
    def profiler(self, profiler: IProfiler | None) -> None:
        self._profiler = profiler

    @property
    def active_optimization_profile(self) -> int:
        return self._profile

    @property
    def all_binding_shapes_specified(self) -> bool:
        return not self._unspecified()

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        if not 0 <= profile_index < self.engine.num_optimization_profiles:
            self.misuse("IExecutionContext::setOptimizationProfileAsync", f"Parameter check failed, profileIndex {profile_index}")
            raise RuntimeError("Error in set optimization profile async.")
        if profile_index != self._profile:
            self._profile = profile_index
            self._set_static()
        return True

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        if not isinstance(shape, tuple | list | Dims):
            raise TypeError("set_input_shape(): incompatible function arguments.")
        tensor = self.engine._tensors.get(name)
        if tensor is None or not tensor["input"]:
            self.misuse("IExecutionContext::setInputShape", f"Given invalid tensor name: {name}. ")
            return False
        least, _, most = self.engine.get_tensor_profile_shape(name, self._profile)
        wanted = tuple(shape)
        if len(wanted) != len(least) or not all(a <= size <= b for a, size, b in zip(least, wanted, most, strict=True)):
            text = (
                "Static dimension mismatch or runtime dimension not satisfying any optimization profile while setting input shape"
            )
            self.misuse("IExecutionContext::setInputShape", f"{text}: {name}, {wanted}")
            return False
        self._shapes[name] = wanted
        return True

    def get_tensor_shape(self, name: str) -> Dims:
        if self.engine._tensors[name]["input"]:
            return Dims(self._shapes.get(name, self.engine._tensors[name]["shape"]))
        if self._unspecified():
            return self.engine.get_tensor_shape(name)
        return self.engine.get_tensor_shape(name) if self._is_late(name) else Dims(self._output_shapes()[name])

    def _is_late(self, name: str) -> bool:
        """Whether its shape depends on data."""
        return bool(self.engine._tensors[name]["late"])

    def set_output_allocator(self, name: str, output_allocator: IOutputAllocator) -> bool:
        if name not in self.engine._tensors or self.engine._tensors[name]["input"]:
            self.misuse("IExecutionContext::setOutputAllocator", f"Given invalid tensor name: {name}. ")
            return False
        self._allocators[name] = output_allocator
        return True

    def _unspecified(self) -> list[str]:
        return [name for name, tensor in self.engine._tensors.items() if tensor["input"] and name not in self._shapes]

    def _output_shapes(self) -> dict[str, tuple[int, ...]]:
        key = tuple(self._shapes[name] for name in sorted(self._shapes))
        if key not in self._known:
            self._known[key] = self.engine._kernels.shapes(self._shapes, self.engine._dtypes)
        return self._known[key]

    def infer_shapes(self) -> list[str]:
        return self._unspecified()

    def get_max_output_size(self, name: str) -> int:
        return math.prod(self.get_tensor_shape(name)) * NUMPY[self.engine._dtypes[name]].itemsize

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if name not in self.engine._tensors:
            self.misuse("IExecutionContext::setTensorAddress", f"Given invalid tensor name: {name}. ")
            return False
        self._addresses[name] = int(memory)
        return True

    def get_tensor_address(self, name: str) -> int:
        return self._addresses.get(name, 0)

    def is_stream_capturable(self, stream: int) -> bool:
        return "captureFails" not in self.engine._plan.actions

    def report_to_profiler(self) -> bool:
        return self._profiler is not None

    def update_device_memory_size_for_shapes(self) -> int:
        return _SCRATCH

    def execute_async_v3(self, stream_handle: int) -> bool:
        where = "IExecutionContext::enqueueV3"
        plan = self.engine._plan
        if missing := self._unspecified():
            self.misuse(where, f"Parameter check failed, condition: allInputDimensionsSpecified(routine). {missing[0]}")
            return False
        if unset := [name for name in self.engine._tensors if not self._addresses.get(name) and name not in self._allocators]:
            self.misuse(where, f"Address is not set for tensor {unset[0]}. Call setTensorAddress before enqueueV3().")
            return False
        if "executeFails" in plan.actions:
            self.fail(where, "Cask convolution execution", ErrorCodeTRT.FAILED_EXECUTION, "Cuda Runtime")
            return False
        unready = "captureFails" in plan.actions or any(self._is_late(name) for name in self.engine._tensors)
        if unready and _device.capturing(stream_handle):
            self.fail(where, "operation not permitted when stream is capturing", ErrorCodeTRT.UNSPECIFIED_ERROR, "Cuda Runtime")
            return False
        code = _device.enqueue(stream_handle, self._work(stream_handle))
        if code:
            self.fail(where, f"Error {code} destroying event or launching kernel", ErrorCodeTRT.UNSPECIFIED_ERROR, "Cuda Runtime")
        return code == 0

    def _work(self, stream: int) -> _device.Work:
        """The kernels on what is bound now: later bindings leave captured work alone, as on a device."""
        engine, addresses, shapes, allocators = self.engine, dict(self._addresses), dict(self._shapes), dict(self._allocators)
        mean = engine._plan.seconds * self._scale()
        profiler = self._profiler if self.enqueue_emits_profile else None

        def work(replayed: bool) -> float:
            if "hostSlow" in engine._plan.actions:
                time.sleep(_HOST_SECONDS)
            if "executeFaults" in engine._plan.actions:
                raise _device.Fault(_device.ILLEGAL_ADDRESS)
            inputs: Arrays = {name: _array(addresses[name], shape, engine._dtypes[name]) for name, shape in shapes.items()}
            for name, value in engine._kernels.run(inputs, engine._dtypes).items():
                if name in allocators:
                    room = allocators[name].reallocate_output_async(
                        name, addresses.get(name, 0), max(value.nbytes, 1), 256, stream
                    )
                    addresses[name] = room
                    allocators[name].notify_shape(name, Dims(value.shape))
                wrong = replayed and "replayWrong" in engine._plan.actions
                _array(addresses[name], value.shape, engine._dtypes[name])[...] = np.zeros_like(value) if wrong else value
            seconds = _noise().seconds(mean, replayed)
            if profiler is not None and not replayed:
                for layer in engine._plan.layers:
                    profiler.report_layer_time(layer["name"], 1e3 * seconds * layer["share"])
            return seconds

        return work

    def _scale(self) -> float:
        """Of device time, against the optimum of the first profile."""
        first = self.engine._plan.profiles[0]
        volume = math.prod(math.prod(shape) for shape in self._shapes.values())
        usual = math.prod(math.prod(first[name][1] if name in first else shape) for name, shape in self._shapes.items())
        return float((volume / usual) ** _UNRESPONSIVE) if volume and usual else 1.0


def _array(address: int, shape: tuple[int, ...], dtype: str) -> Any:
    size = math.prod(shape) * NUMPY[dtype].itemsize
    if not size:
        return np.zeros(shape, NUMPY[dtype])
    return np.frombuffer(memoryview(_device.memory(address, size)), NUMPY[dtype]).reshape(shape)


class EngineInspector(Speaker):
    """JSON with the keys of TensorRT 11's own description of an engine (seen in TensorRT-RTX 1.7.1)."""

    def __init__(self, engine: ICudaEngine) -> None:
        super().__init__(engine.logger)
        self._engine = engine
        self.execution_context: IExecutionContext | None = None

    def get_layer_information(self, layer_index: int, format: LayerInformationFormat) -> str:
        return json.dumps(self._layer(self._engine._plan.layers[layer_index]))

    def get_engine_information(self, format: LayerInformationFormat) -> str:
        plan = self._engine._plan
        told: dict[str, Any] = {"Layers": [self._layer(layer) for layer in plan.layers]}
        names = [tensor["name"] for tensor in plan.tensors]
        told |= {"I/O Tensors": [{"Name": name} for name in names]} if int(VERSION.split(".")[0]) >= 11 else {"Bindings": names}
        return json.dumps(told, indent=1)

    def _layer(self, layer: dict[str, Any]) -> Any:
        if self._engine.profiling_verbosity is not ProfilingVerbosity.DETAILED:
            return layer["name"]
        described = {
            "Dimensions": [-1],
            "Strides": [1],
            "StrideOrder": [0],
            "Datatype": "Float",
            "Format": "(Linear) Row major linear format",
        }
        return {
            "Name": layer["name"],
            "LayerType": layer["kind"],
            "Inputs": [{"Name": name, **described} for name in layer["inputs"]],
            "Constants": [],
            "Outputs": [{"Name": name, **described} for name in layer["outputs"]],
            "TacticName": layer["tactic"],
            "StreamId": 0,
            "Metadata": "\x1f".join(f"[ONNX Layer: {name}]" for name in layer["nodes"]),
        }
