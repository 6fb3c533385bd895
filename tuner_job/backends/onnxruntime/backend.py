"""ONNX Runtime as an engine library that can be tuned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import onnxruntime as ort

from tuner_job.api.measurement import BuilderSetting, Device, DeviceState
from tuner_job.backends import nvml
from tuner_job.backends.onnxruntime.build import build_engine, external_files
from tuner_job.backends.onnxruntime.engine import OrtEngine, ReferenceEngine
from tuner_job.backends.onnxruntime.identity import allowed_cores, cudnn_version, identify
from tuner_job.backends.onnxruntime.knobs import knob_list, knobs, settings_of
from tuner_job.backends.onnxruntime.profile import BLOCKING
from tuner_job.backends.onnxruntime.settings import default_threads
from tuner_job.backends.protocol import BadModel, BuildOrder, Engine, Unsupported


class OnnxRuntimeBackend:
    """ONNX Runtime on the CPU provider, or on the CUDA provider of the first visible GPU.

    An engine file is an archive of the optimised model and the session's settings (`archive`). The empty route sets
    nothing, but for the number of threads where the process has fewer cores than the machine (`settings.default_threads`).
    """

    name = "onnxruntime"
    inspect_environment: ClassVar[dict[str, str]] = {BLOCKING: "1"}
    """Set by a child that inspects engines, and only there."""

    @staticmethod
    def preload(device: Literal["CPU", "GPU"]) -> None:
        """CUDA and cuDNN from Python packages, where the system has none. Makes no CUDA context."""
        if device == "GPU":
            ort.preload_dlls()

    def __init__(self, device: Literal["CPU", "GPU"]) -> None:
        self._device = device
        self._cores = allowed_cores()
        self._knobs = knobs(device, len(self._cores), default_threads(len(self._cores)))
        self.preload(device)

    def state(self) -> DeviceState | None:
        return nvml.state() if self._device == "GPU" else None

    def load_plugins(self, paths: Sequence[Path]) -> None:
        if paths:
            raise BadModel("model.plugins: ONNX Runtime workers load none; leave them out")

    def identify(self) -> Device:
        return identify(self._device)

    def versions(self) -> dict[str, str]:
        versions = {"onnxruntime": ort.__version__}
        if self._device == "GPU":
            versions |= {"cuda": getattr(ort, "cuda_version", ""), "cudnn": cudnn_version()}
        return versions

    def knob_list(self) -> str:
        return knob_list(self._knobs)

    def settings(self) -> tuple[BuilderSetting, ...]:
        """None: what a session can be told is a knob."""
        return ()

    def notes(self) -> tuple[str, ...]:
        return ()

    def build(self, order: BuildOrder) -> str:
        """Write the engine file; returns its fingerprint. Raises BuildRefused, Unsupported or BadModel.

        Two engines with one fingerprint compute the same graph under the same session settings.
        """
        if asked := order.candidate.settings:
            raise Unsupported(f"ONNX Runtime has no builder settings, so none of {', '.join(sorted(asked))}; use knobs")
        settings = settings_of(order.candidate.route, self._knobs)
        return build_engine(order.model, order.cases, settings, self._device, self._cores, order.engine)

    def load(self, engine: Path) -> Engine:
        """Raises InputError for a file that is not such an engine, and what ONNX Runtime raises."""
        return OrtEngine(engine, self._device, self._cores)

    def reference(self, model: Path) -> Engine:
        """Raises BadModel, naming the reference runtime and its limit, when it cannot run the model."""
        external_files(model)
        return ReferenceEngine(model)
