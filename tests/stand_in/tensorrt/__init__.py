"""A scripted stand-in for TensorRT's Python module: test code, and named so wherever it shows.

It parses ONNX files, "builds" and runs them (ONNX Runtime computes, on the CPU), under the real list of 211 knobs. What a route
costs is planted (`device_truth`), what goes wrong is scripted (`_script`), and time is the virtual clock of the driver stand-in
(`stand_in/cuda`). Names and signatures follow the real modules; what the product does not use is left out.
"""

from ._base import Dims, IErrorRecorder, IHostMemory, ILogger, Logger
from ._builder import Builder, IBuilderConfig, IOptimizationProfile, IProgressMonitor, ITimingCache
from ._enums import (
    BuilderFlag,
    DataType,
    EngineCapability,
    EngineStat,
    ErrorCode,
    ErrorCodeTRT,
    ExecutionContextAllocationStrategy,
    HardwareCompatibilityLevel,
    LayerInformationFormat,
    MemoryPoolType,
    NetworkDefinitionCreationFlag,
    OnnxParserFlag,
    ProfilingVerbosity,
    TensorIOMode,
    TensorLocation,
    TilingOptimizationLevel,
)
from ._network import INetworkDefinition, IPluginRegistry, ITensor, OnnxParser, ParserError
from ._runtime import EngineInspector, ICudaEngine, IExecutionContext, IOutputAllocator, IProfiler, Runtime
from ._script import HAS_ROUTES, VERSION

__version__ = VERSION

if HAS_ROUTES:
    from ._builder import _Tunable as IBuilderConfig

_registry: list[IPluginRegistry] = []


def get_plugin_registry() -> IPluginRegistry:
    if not _registry:
        _registry.append(IPluginRegistry(Logger()))
    return _registry[0]


def init_libnvinfer_plugins(logger: ILogger | None, namespace: str) -> bool:
    return True


__all__ = [
    "Builder",
    "BuilderFlag",
    "DataType",
    "Dims",
    "EngineCapability",
    "EngineInspector",
    "EngineStat",
    "ErrorCode",
    "ErrorCodeTRT",
    "ExecutionContextAllocationStrategy",
    "HardwareCompatibilityLevel",
    "IBuilderConfig",
    "ICudaEngine",
    "IErrorRecorder",
    "IExecutionContext",
    "IHostMemory",
    "ILogger",
    "INetworkDefinition",
    "IOptimizationProfile",
    "IOutputAllocator",
    "IPluginRegistry",
    "IProfiler",
    "IProgressMonitor",
    "ITensor",
    "ITimingCache",
    "LayerInformationFormat",
    "Logger",
    "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "OnnxParser",
    "OnnxParserFlag",
    "ParserError",
    "ProfilingVerbosity",
    "Runtime",
    "TensorIOMode",
    "TensorLocation",
    "TilingOptimizationLevel",
    "get_plugin_registry",
    "init_libnvinfer_plugins",
]
