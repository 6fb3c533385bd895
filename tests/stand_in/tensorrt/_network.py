"""From an ONNX file to a network."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto

from ._base import Dims, ILogger, Speaker
from ._enums import DataType, ErrorCode, ErrorCodeTRT, OnnxParserFlag, Severity
from ._script import SCRIPT

TYPES: dict[int, DataType] = {
    TensorProto.FLOAT: DataType.FLOAT,
    TensorProto.FLOAT16: DataType.HALF,
    TensorProto.BFLOAT16: DataType.BF16,
    TensorProto.INT8: DataType.INT8,
    TensorProto.INT32: DataType.INT32,
    TensorProto.INT64: DataType.INT64,
    TensorProto.BOOL: DataType.BOOL,
    TensorProto.UINT8: DataType.UINT8,
    TensorProto.FLOAT8E4M3FN: DataType.FP8,
}
_CHECK_FAILED = 'creator && "Plugin not found, are the plugin name, version, and namespace correct?"'

plugins: set[str] = set()
"""Libraries that were loaded. Any of them brings every operator that ONNX does not know; each does nothing to its first input."""


class IPluginRegistry(Speaker):
    @property
    def all_creators(self) -> list[object]:
        return sorted(plugins)  # type: ignore[return-value]

    def load_library(self, plugin_path: str) -> Any:
        try:
            library = ctypes.CDLL(plugin_path)
        except OSError as error:
            text = f"Unable to load library: {plugin_path}: {error} "
            self.fail("IPluginRegistry::loadLibrary", text, ErrorCodeTRT.FAILED_INITIALIZATION, "API Usage Error")
            return None
        plugins.add(plugin_path)
        return library

    def deregister_library(self, handle: Any) -> None:
        plugins.clear()


class ITensor:
    def __init__(self, info: ValueInfoProto, *, is_input: bool) -> None:
        self.name = info.name
        self.dtype = TYPES[info.type.tensor_type.elem_type]
        sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in info.type.tensor_type.shape.dim]
        self._sizes = sizes
        self.is_network_input, self.is_network_output = is_input, not is_input
        self.is_shape_tensor, self.is_execution_tensor = False, True

    @property
    def shape(self) -> Dims:
        return Dims(self._sizes)


class INetworkDefinition(Speaker):
    def __init__(self, logger: ILogger, builder: Any) -> None:
        super().__init__(logger)
        self.name = "Unnamed Network 0"
        self.builder = builder
        self._model: ModelProto | None = None
        self._inputs: list[ITensor] = []
        self._outputs: list[ITensor] = []

    def _take(self, model: ModelProto) -> None:
        weights = {tensor.name for tensor in model.graph.initializer}
        self._model = model
        self._inputs = [ITensor(info, is_input=True) for info in model.graph.input if info.name not in weights]
        self._outputs = [ITensor(info, is_input=False) for info in model.graph.output]

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    @property
    def num_outputs(self) -> int:
        return len(self._outputs)

    @property
    def num_layers(self) -> int:
        return len(self._model.graph.node) if self._model else 0

    @property
    def flags(self) -> int:
        return 1

    def __len__(self) -> int:
        return self.num_layers

    def get_input(self, index: int) -> ITensor:
        return self._inputs[index]

    def get_output(self, index: int) -> ITensor:
        return self._outputs[index]


class ParserError:
    def __init__(
        self, code: ErrorCode, desc: str, *, node: int = -1, name: str = "", operator: str = "", func: str = "", file: str = "",
    ) -> None:  # fmt: skip
        self._code, self._desc, self._node, self._name, self._operator = code, desc, node, name, operator
        self._func, self._file = func, file

    def code(self) -> ErrorCode:
        return self._code

    def desc(self) -> str:
        return self._desc

    def node(self) -> int:
        return self._node

    def node_name(self) -> str:
        return self._name

    def node_operator(self) -> str:
        return self._operator

    def func(self) -> str:
        return self._func

    def file(self) -> str:
        return self._file

    def line(self) -> int:
        return 1

    def local_function_stack(self) -> list[str]:
        return []

    def local_function_stack_size(self) -> int:
        return 0

    def __str__(self) -> str:
        told = f"({self._func}): {self._code.name}: {self._desc}"
        if self._func == "deserializeOnnxModel":
            return told
        return f"In node {self._node} with name: {self._name} and operator: {self._operator} {told}"


class OnnxParser:
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network, self._logger = network, logger
        self._errors: list[ParserError] = []
        self.flags = 1 << OnnxParserFlag.NATIVE_INSTANCENORM.value

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]

    def clear_errors(self) -> None:
        self._errors.clear()

    def set_flag(self, flag: OnnxParserFlag) -> None:
        self.flags |= 1 << int(flag)

    def get_flag(self, flag: OnnxParserFlag) -> bool:
        return bool(self.flags >> int(flag) & 1)

    def get_used_vc_plugin_libraries(self) -> list[str]:
        return []

    def parse_from_file(self, model: str) -> bool:
        if not isinstance(model, str):
            raise TypeError("parse_from_file(): incompatible function arguments")
        self._errors.clear()
        if not os.path.isfile(model):
            desc = (
                "Assertion failed: stat(onnxModelFile, &sb) == 0 && S_ISREG(sb.st_mode): Input file cannot be found, or is not a "
                f"regular file: {model}"
            )
            return self._fail([ParserError(ErrorCode.INVALID_VALUE, desc, func="parseFromFile")])
        with open(model, "rb") as file:
            return self._read(file.read(), model)

    def parse(self, model: Any, path: str | None = None) -> bool:
        """External data lies beside `path`, or in the working folder where there is none."""
        self._errors.clear()
        return self._read(bytes(model), path or "")

    def _read(self, model: bytes, path: str) -> bool:
        try:
            parsed = onnx.load_model_from_string(model)
        except Exception:  # whatever protobuf says
            desc = "Assertion failed: model->ParseFromCodedStream(&codedInput): Failed to parse the ONNX model."
            return self._fail([ParserError(ErrorCode.MODEL_DESERIALIZE_FAILED, desc, func="deserializeOnnxModel")])
        try:
            onnx.load_external_data_for_model(parsed, os.path.dirname(path))
        except (FileNotFoundError, onnx.checker.ValidationError) as error:
            return self._fail([ParserError(ErrorCode.INVALID_GRAPH, f"Failed to open file: {error}", func="importInitializer")])
        errors = [*self._scripted(), *self._unknown(parsed), *self._untyped(parsed)]
        if errors:
            return self._fail(errors)
        self._network._take(parsed)
        return True

    def _fail(self, errors: list[ParserError]) -> bool:
        self._errors = errors
        for error in errors:
            self._logger.log(Severity.ERROR, str(error))
        return False

    def _scripted(self) -> list[ParserError]:
        return [
            ParserError(
                ErrorCode[one.get("code", "UNSUPPORTED_NODE")],
                one["text"],
                node=one.get("node", 0),
                name=one.get("name", ""),
                operator=one.get("operator", ""),
                func="parseNode",
            )
            for one in SCRIPT.get("parserErrors", ())
        ]

    @staticmethod
    def _unknown(model: ModelProto) -> list[ParserError]:
        return [
            ParserError(
                ErrorCode.INVALID_NODE,
                _CHECK_FAILED,
                node=number,
                name=node.name,
                operator=node.op_type,
                func="checkFallbackPluginImporter",
                file="onnxOpCheckers.cpp",
            )
            for number, node in enumerate(model.graph.node)
            if node.domain not in ("", "ai.onnx", "com.microsoft") and not plugins
        ]

    @staticmethod
    def _untyped(model: ModelProto) -> list[ParserError]:
        text = "Failed to convert ONNX date type to TensorRT data type. Tensor: {}"
        return [
            ParserError(ErrorCode.UNSUPPORTED_GRAPH, text.format(info.name), func="importInput")
            for info in (*model.graph.input, *model.graph.output)
            if info.type.tensor_type.elem_type not in TYPES
        ]
