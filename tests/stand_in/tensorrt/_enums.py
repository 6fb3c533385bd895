"""Enumerations with the names and numbers of TensorRT-RTX 1.7.1 (TensorRT 11), read from the real module."""

from __future__ import annotations

from enum import Enum


class _Native(Enum):
    """As pybind11 makes them: equal to no number, but turned into one by int()."""

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


class Severity(_Native):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4

    def __lt__(self, other: Severity) -> bool:
        return bool(self.value < other.value)

    def __le__(self, other: Severity) -> bool:
        return bool(self.value <= other.value)

    def __gt__(self, other: Severity) -> bool:
        return bool(self.value > other.value)

    def __ge__(self, other: Severity) -> bool:
        return bool(self.value >= other.value)


class DataType(_Native):
    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    UINT8 = 5
    FP8 = 6
    BF16 = 7
    INT64 = 8
    INT4 = 9
    FP4 = 10
    E8M0 = 11

    @property
    def itemsize(self) -> float:
        return {"FLOAT": 4, "INT32": 4, "HALF": 2, "BF16": 2, "INT64": 8, "INT4": 0.5, "FP4": 0.5}.get(self.name, 1)


class TensorIOMode(_Native):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorLocation(_Native):
    DEVICE = 0
    HOST = 1


class BuilderFlag(_Native):
    DEBUG = 2
    GPU_FALLBACK = 3
    REFIT = 4
    DISABLE_TIMING_CACHE = 5
    TF32 = 6
    SPARSE_WEIGHTS = 7
    SAFETY_SCOPE = 8
    DIRECT_IO = 11
    VERSION_COMPATIBLE = 12
    EXCLUDE_LEAN_RUNTIME = 13
    ERROR_ON_TIMING_CACHE_MISS = 15
    DISABLE_COMPILATION_CACHE = 17
    STRIP_PLAN = 18
    REFIT_IDENTICAL = 19
    WEIGHT_STREAMING = 20
    REFIT_INDIVIDUAL = 22
    STRICT_NANS = 23
    MONITOR_MEMORY = 24
    EDITABLE_TIMING_CACHE = 26
    DISTRIBUTIVE_INDEPENDENCE = 27
    REQUIRE_USER_ALLOCATION = 28


class TilingOptimizationLevel(_Native):
    NONE = 0
    FAST = 1
    MODERATE = 2
    FULL = 3


class MemoryPoolType(_Native):
    WORKSPACE = 0
    DLA_MANAGED_SRAM = 1
    DLA_LOCAL_DRAM = 2
    DLA_GLOBAL_DRAM = 3
    TACTIC_DRAM = 4
    TACTIC_SHARED_MEMORY = 5


class ProfilingVerbosity(_Native):
    LAYER_NAMES_ONLY = 0
    NONE = 1
    DETAILED = 2


class LayerInformationFormat(_Native):
    ONELINE = 0
    JSON = 1


class EngineStat(_Native):
    TOTAL_WEIGHTS_SIZE = 0
    STRIPPED_WEIGHTS_SIZE = 1


class ExecutionContextAllocationStrategy(_Native):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


class NetworkDefinitionCreationFlag(_Native):
    STRONGLY_TYPED = 0


class EngineCapability(_Native):
    STANDARD = 0
    SAFETY = 1
    DLA_STANDALONE = 2


class HardwareCompatibilityLevel(_Native):
    NONE = 0
    AMPERE_PLUS = 1
    SAME_COMPUTE_CAPABILITY = 2


class OnnxParserFlag(_Native):
    NATIVE_INSTANCENORM = 0


class ErrorCode(_Native):
    """Of the ONNX parser."""

    SUCCESS = 0
    INTERNAL_ERROR = 1
    MEM_ALLOC_FAILED = 2
    MODEL_DESERIALIZE_FAILED = 3
    INVALID_VALUE = 4
    INVALID_GRAPH = 5
    INVALID_NODE = 6
    UNSUPPORTED_GRAPH = 7
    UNSUPPORTED_NODE = 8
    UNSUPPORTED_NODE_ATTR = 9
    UNSUPPORTED_NODE_INPUT = 10
    UNSUPPORTED_NODE_DATATYPE = 11
    UNSUPPORTED_NODE_DYNAMIC = 12
    UNSUPPORTED_NODE_SHAPE = 13
    REFIT_FAILED = 14


class ErrorCodeTRT(_Native):
    SUCCESS = 0
    UNSPECIFIED_ERROR = 1
    INTERNAL_ERROR = 2
    INVALID_ARGUMENT = 3
    INVALID_CONFIG = 4
    FAILED_ALLOCATION = 5
    FAILED_INITIALIZATION = 6
    FAILED_EXECUTION = 7
    FAILED_COMPUTATION = 8
    INVALID_STATE = 9
    UNSUPPORTED_STATE = 10
