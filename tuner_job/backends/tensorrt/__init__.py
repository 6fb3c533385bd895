"""TensorRT with its Global Performance Tuner, and TensorRT for RTX, by one interface."""

from tuner_job.backends.tensorrt.backend import TensorRTBackend, TensorRTRtxBackend

__all__ = ["TensorRTBackend", "TensorRTRtxBackend"]
