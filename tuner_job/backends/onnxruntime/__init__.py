"""ONNX Runtime: the CPU provider everywhere, the CUDA provider on GPUs."""

from tuner_job.backends.onnxruntime.backend import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
