"""Loaded engines."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner_job.api.base import InputError
from tuner_job.api.child import MeasureSettings
from tuner_job.api.layers import LayerProfile
from tuner_job.backends.cuda import driver
from tuner_job.backends.lanes import GpuTimer
from tuner_job.backends.protocol import Tensors, Timer
from tuner_job.backends.tensorrt.build import loose_weights
from tuner_job.backends.tensorrt.execution import DTYPES, Execution, Loaded, Tensor
from tuner_job.backends.tensorrt.layers import read_layers, with_times
from tuner_job.backends.tensorrt.library import Library
from tuner_job.backends.tensorrt.log import Log, one_line
from tuner_job.backends.tensorrt.timers import timer

PROFILED_RUNS = 25
"""Inferences whose layer times are kept; the first ones before them are not."""
_UNCOUNTED_RUNS = 5
_OTHER_DEVICE = "across different models of devices"
"""In the warning with which TensorRT lets a plan of another GPU of the same architecture pass."""


class TensorRTEngine:
    """A plan on the first visible GPU."""

    def __init__(self, library: Library, path: Path, log: Log) -> None:
        """Raises InputError for an engine that must not be used here, MemoryError, or RuntimeError with the library's own words
        where it cannot be loaded."""
        driver().use()
        log.clear()
        self._timers: list[GpuTimer] = []
        self._execution: Execution | None = None
        self._runtime: Any = _runtime(library, log)
        engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            text = f"{library.title} cannot load {path.name}: {log.text() or 'it does not say why'}"
            raise MemoryError(text) if log.short_of_memory else RuntimeError(text)
        if _OTHER_DEVICE in log.text():
            raise InputError(f"{path.name}: built on another model of GPU; engines are used only where they were built and timed")
        if problem := loose_weights(library.module, engine):
            raise InputError(f"{path.name}: an engine {problem}; build it with weights that stay")
        inputs, outputs = _tensors(library.module, engine, path.name)
        self._loaded: Loaded | None = Loaded(library, log, engine, inputs, outputs)
        self._own()  # an engine without room for a context is not loaded

    def run(self, inputs: Tensors) -> dict[str, npt.NDArray[np.generic]]:
        """One inference; arrays are copies in host memory, each in its output's own type.

        Raises InputError, MemoryError, CudaError, or RuntimeError with the library's own words.
        """
        return self._own().run(inputs)

    def timer(self, inputs: Tensors, settings: MeasureSettings) -> Timer:
        """A timer has contexts of its own; the engine's is dropped so that memory is not held twice, and `run` makes it again."""
        self._drop_own()
        made = timer(self._still_open(), inputs, settings)
        self._timers.append(made)
        return made

    def profile(self, inputs: Tensors) -> LayerProfile:
        """By the inspector, timed by TensorRT's own profiler; seconds are medians, of the inferences where a layer ran."""
        loaded = self._still_open()
        module = loaded.library.module
        information = loaded.engine.create_engine_inspector().get_engine_information(module.LayerInformationFormat.JSON)
        recorder = _recorder(module)  # outlives the context that reports to it
        with closing(Execution(loaded)) as execution:
            execution.bind(inputs)
            execution.send()
            execution.context.profiler = recorder
            for _ in range(_UNCOUNTED_RUNS + PROFILED_RUNS):
                recorder.runs.append({})
                execution.enqueue()
                execution.stream.wait()
            layers = read_layers(information, execution.profile) or read_layers(information)
        return LayerProfile(
            layers=with_times(layers, _medians(recorder.runs[_UNCOUNTED_RUNS:])),
            runs=PROFILED_RUNS,
            clock="tensorrt.IProfiler",
        )

    def close(self) -> None:
        """Contexts first, then the engine, then the runtime that made it."""
        while self._timers:
            self._timers.pop().close()
        self._drop_own()
        self._loaded = None
        self._runtime = None

    def _still_open(self) -> Loaded:
        if self._loaded is None:
            raise RuntimeError("the engine is closed")
        return self._loaded

    def _own(self) -> Execution:
        if self._execution is None:
            self._execution = Execution(self._still_open())
        return self._execution

    def _drop_own(self) -> None:
        if self._execution is not None:
            self._execution.close()
            self._execution = None


def _runtime(library: Library, log: Log) -> Any:
    try:
        return library.module.Runtime(log.logger)
    except (TypeError, RuntimeError) as error:  # the library says only that its factory returned nothing
        raise RuntimeError(f"{library.title} cannot make a runtime: {log.text() or one_line(str(error))}") from None


def _tensors(module: Any, engine: Any, name: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Inputs and outputs."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    for index in range(engine.num_io_tensors):
        tensor = engine.get_tensor_name(index)
        kind = engine.get_tensor_dtype(tensor).name
        if kind not in DTYPES:
            raise InputError(f"{name}: tensor {tensor} is {kind}, which cannot be compared; cast it in the model")
        is_input = engine.get_tensor_mode(tensor) == module.TensorIOMode.INPUT
        on_host = engine.get_tensor_location(tensor) == module.TensorLocation.HOST
        (inputs if is_input else outputs).append(Tensor(tensor, DTYPES[kind], on_host))
    return tuple(inputs), tuple(outputs)


def _recorder(module: Any) -> Any:
    class Recorder(module.IProfiler):  # type: ignore[misc]  # the module has no types
        def __init__(self) -> None:
            module.IProfiler.__init__(self)
            self.runs: list[dict[str, float]] = []
            """Layer → seconds of each inference; a layer in a loop reports more than once."""

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            if self.runs:
                self.runs[-1][layer_name] = self.runs[-1].get(layer_name, 0.0) + ms / 1e3

    return Recorder()


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for run in runs:
        for name, seconds in run.items():
            times.setdefault(name, []).append(seconds)
    return {name: float(np.median(values)) for name, values in times.items()}
