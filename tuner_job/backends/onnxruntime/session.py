"""Creating sessions on exactly the provider that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from tuner_job.api.base import TrtfleetError
from tuner_job.backends.onnxruntime.settings import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    GraphSettings,
    LoadSettings,
    default_threads,
    session_options,
)

BUILD_ERRORS = (
    ort_errors.EPFail,
    ort_errors.EngineError,
    ort_errors.Fail,
    ort_errors.InvalidArgument,
    ort_errors.InvalidGraph,
    ort_errors.InvalidProtobuf,
    ort_errors.ModelRequiresCompilation,
    ort_errors.NoModel,
    ort_errors.NoSuchFile,
    ort_errors.NotImplemented,
    ort_errors.RuntimeException,
    RuntimeError,
    ValueError,
)
"""What creating a session raises; its classes share no base."""


def open_session(
    model: Path,
    load: LoadSettings,
    graph: GraphSettings | None,
    device: Literal["CPU", "GPU"],
    cores: tuple[int, ...],
    *,
    save_to: Path | None = None,
    profile_to: Path | None = None,
    provider: dict[str, str] | None = None,
) -> ort.InferenceSession:
    """A session for `model`; `graph` None means that it is optimised already.

    `save_to` receives the optimised model; files whose names begin with `profile_to` receive what its profiler tells. `provider`
    adds options for the CUDA provider (stream, graph). Raises what ONNX Runtime raises (BUILD_ERRORS), and TrtfleetError where
    the CUDA provider is not there: ONNX Runtime would quietly run on the CPU.
    """
    threads = default_threads(len(cores)) if device == "CPU" and cores else None
    options = session_options(load, graph, cores, threads)
    if save_to is not None:
        options.optimized_model_filepath = str(save_to)
    if profile_to is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_to)
    if device == "CPU":
        return ort.InferenceSession(str(model), options, providers=[CPU_PROVIDER])
    if CUDA_PROVIDER not in ort.get_available_providers():
        raise TrtfleetError(
            f"the installed ONNX Runtime {ort.__version__} has no CUDA provider; install onnxruntime-gpu", reason="NoCudaProvider"
        )
    providers = [(CUDA_PROVIDER, {"device_id": "0"} | load.provider | (provider or {})), (CPU_PROVIDER, {})]
    session = ort.InferenceSession(str(model), options, providers=providers, enable_fallback=0)
    if session.get_providers()[0] != CUDA_PROVIDER:
        raise TrtfleetError(
            "ONNX Runtime could not start its CUDA provider; can the CUDA and cuDNN libraries that it was built for be loaded?",
            reason="NoCudaProvider",
        )
    return session
