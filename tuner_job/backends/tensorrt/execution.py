"""One execution context with a stream, shapes and buffers of its own: everything that an inference needs."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tuner_job.api.base import InputError
from tuner_job.backends.cuda import DeviceBuffer, Driver, PinnedBuffer, Stream, driver
from tuner_job.backends.protocol import Tensors
from tuner_job.backends.tensorrt.library import Library
from tuner_job.backends.tensorrt.log import Log, one_line

DTYPES: dict[str, np.dtype[Any]] = {
    "FLOAT": np.dtype(np.float32),
    "HALF": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP8": np.dtype(ml_dtypes.float8_e4m3fn),
    "E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "INT8": np.dtype(np.int8),
    "UINT8": np.dtype(np.uint8),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "BOOL": np.dtype(np.bool_),
}
"""TensorRT's element types that have whole bytes. INT4 and FP4 pack two into one, which no array says."""


@dataclass(frozen=True)
class Tensor:
    """An input or output of an engine."""

    name: str
    dtype: np.dtype[Any]
    on_host: bool
    """It is read or written in host memory: the values are a shape."""


@dataclass(frozen=True)
class Loaded:
    """A deserialised engine and what all its contexts share."""

    library: Library
    log: Log
    engine: Any
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def failure(self, what: str) -> Exception:
        """`TensorRT <version> <what>: <its own words>`; MemoryError where these say that memory ran out."""
        text = f"{self.library.title} {what}: {self.log.text() or 'it does not say why'}"
        return MemoryError(text) if self.log.short_of_memory else RuntimeError(text)

    def profile_for(self, shapes: dict[str, tuple[int, ...]]) -> int:
        """The optimisation profile that is made for these input shapes, else the first that takes them. Raises InputError."""
        dynamic = [name for name in shapes if -1 in tuple(self.engine.get_tensor_shape(name))]
        takes = []
        for index in range(self.engine.num_optimization_profiles):
            ranges = {name: [tuple(one) for one in self.engine.get_tensor_profile_shape(name, index)] for name in dynamic}
            if all(shapes[name] == best for name, (_, best, _) in ranges.items()):
                return index
            if all(_within(shapes[name], low, high) for name, (low, _, high) in ranges.items()):
                takes.append(index)
        if not takes:
            shown = ", ".join(f"{name} {list(shapes[name])}" for name in dynamic)
            raise InputError(f"{shown}: no optimisation profile of the engine takes these shapes")
        return takes[0]


class _Memory:
    """A tensor's memory on both sides, as large as it had to be so far."""

    def __init__(self, device: Driver, *, on_host: bool) -> None:
        self._driver, self._on_host = device, on_host
        self._device: DeviceBuffer | None = None
        self._pinned: PinnedBuffer | None = None
        self.shape: tuple[int, ...] = ()
        self.size = 0

    def fit(self, size: int) -> None:
        """For `size` bytes. What it held is lost when it grows; nothing may be using it."""
        self.size = size
        if self._pinned is not None and self._pinned.size >= size:
            return
        self.close()
        if not self._on_host:
            self._device = DeviceBuffer(self._driver, size)
        self._pinned = PinnedBuffer(self._driver, size)

    @property
    def address(self) -> int:
        """Where TensorRT reads or writes it."""
        buffer = self._pinned if self._on_host else self._device
        return buffer.address if buffer is not None else 0

    def bytes(self) -> npt.NDArray[np.uint8]:
        """On the host, shape (size,): the memory itself."""
        return self._pinned.array()[: self.size] if self._pinned is not None else np.empty(0, np.uint8)

    def send(self, stream: Stream) -> None:
        if self._device is not None and self._pinned is not None and self.size:
            stream.send(self._device, self._pinned.address, self.size)

    def fetch(self, stream: Stream) -> None:
        if self._device is not None and self._pinned is not None and self.size:
            stream.fetch(self._pinned.address, self._device, self.size)

    def close(self) -> None:
        for buffer in (self._device, self._pinned):
            if buffer is not None:
                buffer.close()
        self._device = self._pinned = None


class Execution:
    """A context that is bound to inputs of certain shapes. Used by one thread at a time."""

    def __init__(self, loaded: Loaded) -> None:
        """Raises MemoryError, or RuntimeError with the library's own words."""
        self._loaded = loaded
        self._driver = driver()
        self._memory: dict[str, _Memory] = {}
        self._allocators: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self.profile = -1
        """The optimisation profile that is set; -1 before the first `bind`."""
        self.context: Any = None
        self.stream = Stream(self._driver)
        with ExitStack() as undo:
            undo.callback(self.close)
            loaded.log.clear()
            self.context = loaded.engine.create_execution_context()
            if self.context is None:
                raise loaded.failure("makes no execution context")
            for tensor in (*loaded.inputs, *loaded.outputs):
                self._memory[tensor.name] = _Memory(self._driver, on_host=tensor.on_host)
            undo.pop_all()

    def bind(self, inputs: Tensors) -> None:
        """Put inputs into page-locked memory, from where `send` takes them; make room for the outputs.

        Raises InputError for inputs that the engine does not take.
        """
        self._driver.use()
        arrays = {tensor.name: _checked(tensor, inputs) for tensor in self._loaded.inputs}
        if surplus := sorted(set(inputs) - set(arrays)):
            raise InputError(f"input {surplus[0]}: the engine has none of that name; it has {', '.join(arrays) or 'none'}")
        shapes = {name: array.shape for name, array in arrays.items()}
        shaped = shapes == self._shapes and not any(tensor.on_host for tensor in self._loaded.inputs)
        if not shaped:
            self._shapes = None
            self._set_profile(shapes)
        for name, array in arrays.items():
            memory = self._memory[name]
            memory.fit(array.nbytes)
            memory.bytes()[:] = array.reshape(-1).view(np.uint8)
            if not shaped:
                self._must(self.context.set_input_shape(name, array.shape), f"does not take input {name} {list(array.shape)}")
                self._must(self.context.set_tensor_address(name, memory.address), f"does not take memory for input {name}")
        if not shaped:
            self._make_room()
            self._shapes = shapes

    def send(self) -> None:
        """Copy the inputs to the device; on the stream."""
        for tensor in self._loaded.inputs:
            self._memory[tensor.name].send(self.stream)

    def enqueue(self) -> None:
        """One inference; on the stream. Raises RuntimeError with the library's own words, or MemoryError."""
        if not self.context.execute_async_v3(self.stream.handle):
            raise self._loaded.failure("cannot run the engine")

    def fetch(self) -> None:
        """Copy the outputs to the host; on the stream. Waits first where sizes depend on data."""
        if self._allocators:
            self.stream.wait()
        for tensor in self._loaded.outputs:
            self._memory[tensor.name].fetch(self.stream)

    def outputs(self) -> dict[str, npt.NDArray[np.generic]]:
        """What `fetch` brought, once the stream has been waited for: copies."""
        return {
            tensor.name: self._memory[tensor.name].bytes().view(tensor.dtype).reshape(self._memory[tensor.name].shape).copy()
            for tensor in self._loaded.outputs
        }

    def run(self, inputs: Tensors) -> dict[str, npt.NDArray[np.generic]]:
        """One inference from host to host."""
        self.bind(inputs)
        self.send()
        self.enqueue()
        self.fetch()
        self.stream.wait()
        return self.outputs()

    def close(self) -> None:
        """Graphs that hold its addresses go before it."""
        self.stream.close()
        self.context = None
        for memory in self._memory.values():
            memory.close()

    def _set_profile(self, shapes: dict[str, tuple[int, ...]]) -> None:
        wanted = self._loaded.profile_for(shapes)
        self._loaded.log.clear()
        if self.context.active_optimization_profile != wanted:
            try:
                switched = self.context.set_optimization_profile_async(wanted, self.stream.handle)
            except RuntimeError:  # so the library's binding says no, with no words of its own
                switched = False
            self._must(switched, f"does not take optimisation profile {wanted}")
            self.stream.wait()
        self.profile = wanted

    def _make_room(self) -> None:
        """Of the outputs; TensorRT asks for those whose size depends on data when it knows it."""
        try:
            missing = self.context.infer_shapes()
        except RuntimeError as error:
            raise RuntimeError(
                f"{self._loaded.library.title} cannot infer the shapes: {self._loaded.log.text() or one_line(str(error))}"
            ) from None
        if missing:
            raise InputError(f"input {missing[0]}: the engine's shapes do not follow from the inputs that are given")
        for tensor in self._loaded.outputs:
            memory = self._memory[tensor.name]
            shape = tuple(self.context.get_tensor_shape(tensor.name))
            if any(size < 0 for size in shape):
                self._allocate_late(tensor, memory)
                continue
            memory.shape = shape
            memory.fit(math.prod(shape) * tensor.dtype.itemsize)
            self._must(self.context.set_tensor_address(tensor.name, memory.address), f"takes no memory for {tensor.name}")

    def _allocate_late(self, tensor: Tensor, memory: _Memory) -> None:
        if tensor.name in self._allocators:
            return
        allocator = _allocator(self._loaded.library.module, memory, tensor.dtype.itemsize)
        self._must(self.context.set_output_allocator(tensor.name, allocator), f"takes no allocator for output {tensor.name}")
        self._allocators[tensor.name] = allocator

    def _must(self, done: bool, what: str) -> None:
        if not done:
            raise self._loaded.failure(what)


def _checked(tensor: Tensor, inputs: Tensors) -> npt.NDArray[Any]:
    if tensor.name not in inputs:
        raise InputError(f"input {tensor.name}: not given, and the engine needs it")
    array = np.ascontiguousarray(inputs[tensor.name])
    if array.dtype != tensor.dtype:
        raise InputError(f"input {tensor.name}: is {array.dtype}, but the engine takes {tensor.dtype}")
    return array.reshape(inputs[tensor.name].shape)  # ascontiguousarray makes a vector of a scalar


def _within(shape: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...]) -> bool:
    return len(shape) == len(low) and all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))


def _allocator(module: Any, memory: _Memory, itemsize: int) -> Any:
    """For an output whose size depends on data. No exception may pass through the library: it ends the process."""

    class Allocator(module.IOutputAllocator):  # type: ignore[misc]  # the module has no types
        def __init__(self) -> None:
            module.IOutputAllocator.__init__(self)

        def reallocate_output(self, tensor_name: str, memory_: int, size: int, alignment: int) -> int:  # noqa: ARG002
            try:
                memory.fit(size)
            except Exception:  # null makes the inference fail, with the library's own words
                return 0
            return memory.address

        def reallocate_output_async(self, tensor_name: str, memory_: int, size: int, alignment: int, stream: int) -> int:  # noqa: ARG002
            return self.reallocate_output(tensor_name, memory_, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:  # noqa: ARG002
            memory.shape = tuple(shape)
            memory.size = math.prod(memory.shape) * itemsize

    return Allocator()
