"""TensorRT, or TensorRT for RTX, as an engine library that can be tuned."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from tuner_job.api.base import InputError
from tuner_job.api.measurement import BuilderSetting, Device, DeviceState
from tuner_job.backends import nvml
from tuner_job.backends.protocol import BadModel, BuildOrder, Engine
from tuner_job.backends.tensorrt import settings
from tuner_job.backends.tensorrt.build import build_engine
from tuner_job.backends.tensorrt.engine import TensorRTEngine
from tuner_job.backends.tensorrt.library import find
from tuner_job.backends.tensorrt.log import Log, one_line
from tuner_job.routes.knobs import parse_knob_list


class TensorRTBackend:
    """TensorRT on the first visible GPU. An engine file is a plan, as TensorRT serialises it."""

    name: ClassVar[str] = "tensorrt"
    _builds_anywhere: ClassVar[bool] = False

    def __init__(self, device: Literal["CPU", "GPU"]) -> None:
        """Raises InputError where the library is missing, or cannot do anything on this kind of device."""
        if device == "CPU" and not self._builds_anywhere:
            raise InputError(f"backend {self.name}: engines are built and run on GPUs; set targets[].device.type to GPU")
        self._device = device
        self._library = find(self.name)
        self._log = Log(self._library.module)

    @classmethod
    def preload(cls, _device: str) -> None:
        """The library and what runs engines; neither makes a CUDA context."""
        find(cls.name)
        importlib.import_module("tuner_job.backends.tensorrt.engine")

    def state(self) -> DeviceState | None:
        return nvml.state() if self._device == "GPU" else None

    def identify(self) -> Device:
        """Raises TrtfleetError where there is no GPU."""
        if self._device == "CPU":
            from tuner_job.backends.onnxruntime.identity import identify

            return identify("CPU")
        return nvml.identify()

    def load_plugins(self, paths: Sequence[Path]) -> None:
        """TensorRT's own plugins, then the given libraries. Raises BadModel that names the file."""
        module = self._library.module
        if hasattr(module, "init_libnvinfer_plugins"):
            module.init_libnvinfer_plugins(self._log.logger, "")
        for path in paths:
            self._load_plugin(module.get_plugin_registry(), path)

    def _load_plugin(self, registry: Any, path: Path) -> None:
        """By the registry; a library of the older kind, which has no entry point for it, registers what it brings when it is
        opened."""
        if not path.is_file():
            raise BadModel(f"model.plugins: {path.name}: no such file")
        self._log.clear()
        before = len(registry.all_creators)
        if registry.load_library(str(path)) is not None:
            return
        try:
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise BadModel(f"model.plugins: {path.name}: cannot be loaded: {one_line(str(error))}") from None
        if len(registry.all_creators) == before:
            why = self._log.text() or "it exports no getCreators and registers nothing when it is opened"
            raise BadModel(f"model.plugins: {path.name}: brings no plugin for {self._library.title}: {why}")

    def versions(self) -> dict[str, str]:
        return self._library.versions() | _reference_version()

    def knob_list(self) -> str:
        """Raises TrtfleetError where no builder can be made."""
        return self._library.knob_text(self._config)

    def settings(self) -> tuple[BuilderSetting, ...]:
        return settings.offered(self._library.module, self._config)

    def notes(self) -> tuple[str, ...]:
        missing = parse_knob_list(self.knob_list()).missing
        notes = [f"{missing}: only builder settings and model variants are searched"] if missing else []
        if self._library.is_rtx:
            notes.append(f"{self._library.title} compiles kernels when an engine is loaded, on the machine that loads it")
        return tuple(notes)

    @cached_property
    def _config(self) -> Any:
        """To look at; a build makes its own."""
        self._builder = self._library.builder(self._log)  # a config does not outlive its builder
        return self._builder.create_builder_config()

    def build(self, order: BuildOrder) -> str:
        """Write the engine file; returns its fingerprint. Raises BuildRefused, Unsupported, BadModel, Cancelled or MemoryError.

        Two engines of one model with one fingerprint run the same kernels on the same shapes (layers.fingerprint).
        """
        return build_engine(self._library, order, self._log, loadable=self._device == "GPU")

    def load(self, engine: Path) -> Engine:
        """Raises InputError for an engine that must not be used here, MemoryError, or RuntimeError with TensorRT's own words."""
        return TensorRTEngine(self._library, engine, self._log)

    def reference(self, model: Path) -> Engine:
        """By ONNX Runtime on the CPU: a reference made by TensorRT would share TensorRT's mistakes. Raises BadModel, naming the
        reference runtime and its limit, when it cannot run the model."""
        try:
            from tuner_job.backends.onnxruntime.build import external_files
            from tuner_job.backends.onnxruntime.engine import ReferenceEngine
        except ImportError as error:
            raise InputError(
                f"references: ONNX Runtime makes them, and it cannot be imported ({one_line(str(error))}); install onnxruntime "
                f"beside {self._library.title}, or give references (spec.accuracy)"
            ) from None
        external_files(model)
        return ReferenceEngine(model)


class TensorRTRtxBackend(TensorRTBackend):
    """TensorRT for RTX. It builds without a GPU, for every one that it knows: on device CPU it does only that."""

    name = "tensorrt_rtx"
    _builds_anywhere = True


def _reference_version() -> dict[str, str]:
    for package in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return {"onnxruntime": importlib.metadata.version(package)}
        except importlib.metadata.PackageNotFoundError:
            continue
    return {}
