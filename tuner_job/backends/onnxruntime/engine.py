"""Loaded engines."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from tuner_job.api.base import InputError
from tuner_job.api.child import MeasureSettings
from tuner_job.api.layers import LayerProfile
from tuner_job.backends.lanes import GpuTimer
from tuner_job.backends.onnxruntime.archive import MODEL, SessionFile, unpack
from tuner_job.backends.onnxruntime.errors import explain_bad_model, one_line
from tuner_job.backends.onnxruntime.profile import profile
from tuner_job.backends.onnxruntime.session import BUILD_ERRORS, open_session
from tuner_job.backends.onnxruntime.settings import GraphSettings, LoadSettings
from tuner_job.backends.onnxruntime.timers import CpuTimer, cuda_timer
from tuner_job.backends.protocol import BadModel, Tensors, Timer

REFERENCE = LoadSettings(parallel=False, intra_threads=1, inter_threads=1)
"""Single-threaded, so that sums are taken in one order."""


class OrtEngine:
    """An engine file, unpacked into a folder of its own under TMPDIR until `close`."""

    def __init__(self, engine: Path, device: Literal["CPU", "GPU"], cores: tuple[int, ...]) -> None:
        self._device, self._cores = device, cores
        self._timers: list[GpuTimer] = []
        self._folder = tempfile.TemporaryDirectory(prefix="ort-engine-")
        try:
            self._file = unpack(engine, Path(self._folder.name), device)
            self._session: ort.InferenceSession | None = self._open()
        except BaseException:
            self._folder.cleanup()
            raise

    @property
    def file(self) -> SessionFile:
        """The settings that the engine carries."""
        return self._file

    def _open(self, profile_to: Path | None = None, **provider: str) -> ort.InferenceSession:
        model = Path(self._folder.name) / MODEL
        return open_session(
            model, self._file.load, self._file.graph, self._device, self._cores, profile_to=profile_to, provider=provider
        )

    def run(self, inputs: Tensors) -> dict[str, npt.NDArray[np.generic]]:
        """One inference; arrays are copies in host memory. Raises RuntimeError in one line where ONNX Runtime fails: its own
        message can hold a whole cuDNN graph."""
        try:
            if self._session is None:
                self._session = self._open()
            return run_session(self._session, inputs)
        except BUILD_ERRORS as error:
            raise RuntimeError(one_line(error)) from error

    def timer(self, inputs: Tensors, settings: MeasureSettings) -> Timer:
        """On a GPU a timer has sessions of its own (a stream or a CUDA graph belongs to a session), and the engine's own is
        dropped so that weights are not held twice; `run` makes it again."""
        if self._device == "CPU":
            if self._session is None:
                self._session = self._open()
            return CpuTimer(self._session, inputs, settings)
        self._session = None
        timer = cuda_timer(self._open, inputs, settings)
        self._timers.append(timer)
        return timer

    def profile(self, inputs: Tensors) -> LayerProfile:
        """Its nodes. On a GPU they are timed only where the library has CUPTI or launches wait (`profile.BLOCKING`).

        Raises RuntimeError in one line where ONNX Runtime fails.
        """
        self._session = None
        try:
            return profile(self._open, Path(self._folder.name), inputs, self._device)
        except BUILD_ERRORS as error:
            raise RuntimeError(one_line(error)) from error

    def close(self) -> None:
        self._session = None
        while self._timers:
            self._timers.pop().close()
        self._folder.cleanup()


class ReferenceEngine:
    """The source model on the CPU, unoptimised, single-threaded."""

    def __init__(self, model: Path) -> None:
        try:
            self._session = open_session(model, REFERENCE, GraphSettings(level="disabled"), "CPU", ())
        except BUILD_ERRORS as error:
            raise BadModel(explain_bad_model(model.name, error, "the reference runtime")) from None

    def run(self, inputs: Tensors) -> dict[str, npt.NDArray[np.generic]]:
        return run_session(self._session, inputs)

    def timer(self, inputs: Tensors, settings: MeasureSettings) -> Timer:
        return CpuTimer(self._session, inputs, settings)

    def profile(self, inputs: Tensors) -> LayerProfile:  # noqa: ARG002
        """Empty: nobody asks why a reference is as fast as it is."""
        return LayerProfile(layers=())

    def close(self) -> None:
        """Nothing is held outside memory."""


def run_session(session: ort.InferenceSession, inputs: Tensors) -> dict[str, npt.NDArray[np.generic]]:
    """Outputs by name. Raises InputError for an output that is not a tensor."""
    names = [value.name for value in session.get_outputs()]
    outputs: dict[str, npt.NDArray[np.generic]] = {}
    for name, value in zip(names, session.run(names, dict(inputs)), strict=True):
        if not isinstance(value, np.ndarray):
            raise InputError(f"output {name} is a {type(value).__name__}, not a tensor; remove it from the model's outputs")
        outputs[name] = value
    return outputs
