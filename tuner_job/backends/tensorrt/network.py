"""From an ONNX file to a network, and from shape cases to optimisation profiles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from tuner_job.api.child import ShapeCase
from tuner_job.backends.protocol import BadModel
from tuner_job.backends.tensorrt.library import Library
from tuner_job.backends.tensorrt.log import Log, one_line

_SHOWN_ERRORS = 5

_ANONYMOUS = frozenset({"", "?", "-1", "None", "none"})
"""What exporters write for an axis without a name. It binds nothing, but the parser takes equal names for equal sizes."""

_TYPES = {
    TensorProto.FLOAT: "FLOAT",
    TensorProto.DOUBLE: "float64, which TensorRT lacks",
    TensorProto.FLOAT16: "HALF",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.INT8: "INT8",
    TensorProto.UINT8: "UINT8",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.BOOL: "BOOL",
    TensorProto.FLOAT8E4M3FN: "FP8",
}
"""ONNX element type → TensorRT's name for it."""

_ONLY_LOGGED = re.compile(r"\bfile\b|data ?type", re.IGNORECASE)


@dataclass(frozen=True)
class Parsed:
    """A network and the parser that made it, which owns the weights: both must live until the build is done."""

    network: Any
    parser: Any


def parse(library: Library, builder: Any, model: Path, log: Log) -> Parsed:
    """The network of an ONNX file. Raises BadModel with all that the parser has against it.

    Parsed by path, so that external data is found beside the file and weights of any size stay out of Python.
    """
    proto = _header(model)
    types = {value.name: value.type.tensor_type.elem_type for value in (*proto.graph.input, *proto.graph.output)}
    log.clear()
    network = builder.create_network(_flags(library))
    parser = library.module.OnnxParser(network, log.logger)
    if _forget_anonymous_axes(proto):
        parsed = parser.parse(proto.SerializeToString(), str(model))  # the path says where external data lies
    else:
        parsed = parser.parse_from_file(str(model))
    del proto
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    if not parsed or errors:
        raise BadModel(f"{model.name}: {library.title} cannot parse it: {_told(errors, log)}")
    if network.num_outputs == 0:  # files that are no models can parse
        raise BadModel(f"{model.name}: not an ONNX model: it has no outputs")
    for tensor in (*inputs(network), *(network.get_output(index) for index in range(network.num_outputs))):
        wanted = _TYPES.get(types.get(tensor.name, TensorProto.UNDEFINED))
        if wanted is not None and tensor.dtype.name != wanted:
            raise BadModel(
                f"{model.name}: {tensor.name} is {wanted}: {library.title} makes {tensor.dtype.name} of it without a word; "
                f"cast it inside the model"
            )
    return Parsed(network, parser)


def _header(model: Path) -> Any:
    """The model without its external data."""
    if not model.is_file():
        raise BadModel(f"{model.name}: no such file")
    try:
        return onnx.load(str(model), load_external_data=False)
    except Exception as error:  # protobuf's own error type depends on its implementation
        raise BadModel(f"{model.name}: not an ONNX model, or a truncated one ({one_line(str(error))})") from None


def _forget_anonymous_axes(proto: Any) -> bool:
    """Take such names from the inputs where two axes share one; whether there were any."""
    dims = [dim for value in proto.graph.input for dim in value.type.tensor_type.shape.dim]
    anonymous = [dim for dim in dims if dim.HasField("dim_param") and dim.dim_param in _ANONYMOUS]
    if len({dim.dim_param for dim in anonymous}) == len(anonymous):
        return False
    for dim in anonymous:
        dim.ClearField("dim_param")
    return True


def _flags(library: Library) -> int:
    """Strongly typed, as every network is since TensorRT 11: precision is the model's own, so that one ONNX file means one thing
    under every version."""
    kinds = library.module.NetworkDefinitionCreationFlag
    if hasattr(kinds, "STRONGLY_TYPED") and (library.is_rtx or library.major < 11):
        return 1 << int(kinds.STRONGLY_TYPED)
    return 0


def _told(errors: Sequence[Any], log: Log) -> str:
    """Every error of the parser, and what only its log says: the names of files and of element types."""
    lines = list(dict.fromkeys(_explained(error) for error in errors)) or [log.text() or "it does not say why"]
    lines += [line for line in log.errors() if _ONLY_LOGGED.search(line) and not any(line in known for known in lines)]
    more = f"; and {len(lines) - _SHOWN_ERRORS} more" if len(lines) > _SHOWN_ERRORS else ""
    return "; ".join(lines[:_SHOWN_ERRORS]) + more


def _explained(error: Any) -> str:
    description, operator, node = one_line(str(error.desc())), str(error.node_operator()), str(error.node_name())
    if "Plugin not found" in description and operator:
        return (
            f"unknown operator {operator} (node {node or error.node()}): Plugin not found; name what brings it in model.plugins"
        )
    where = f"node {node or error.node()} ({operator}): " if operator else ""
    return f"{where}{description}"


def inputs(network: Any) -> Iterator[Any]:
    """Its input tensors."""
    for index in range(network.num_inputs):
        yield network.get_input(index)


def add_profiles(builder: Any, config: Any, network: Any, cases: Sequence[ShapeCase], model: str) -> int:
    """One optimisation profile for each shape case, in order; returns how many.

    A profile has one optimum, and kernels are chosen for it: one profile over all cases would tune every case for the shapes of
    one of them. Cases with the same shapes share a profile, and a model without dynamic inputs has none. Raises BadModel.
    """
    _check(network, cases, model)
    dynamic = [tensor.name for tensor in inputs(network) if any(size < 0 for size in tuple(tensor.shape))]
    if not dynamic:
        return 0
    profiles = {tuple(_range(case, name) for name in dynamic): case.name for case in cases}
    for ranges, case in profiles.items():
        profile = builder.create_optimization_profile()
        try:
            for name, (low, opt, high) in zip(dynamic, ranges, strict=True):
                profile.set_shape(name, low, opt, high)
            added = config.add_optimization_profile(profile)
        except (ValueError, RuntimeError, TypeError) as error:
            raise BadModel(f"{model}: shape case {case} is refused: {one_line(str(error))}") from None
        if added < 0:
            raise BadModel(f"{model}: shape case {case} makes no optimisation profile: {dict(zip(dynamic, ranges, strict=True))}")
    return len(profiles)


Range = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _range(case: ShapeCase, name: str) -> Range:
    """Smallest, best and largest shape."""
    opt = case.tensors[name]
    return case.minimum.get(name, opt), opt, case.maximum.get(name, opt)


def _check(network: Any, cases: Sequence[ShapeCase], model: str) -> None:
    """Cases were checked against the model as onnx reads it, but a variant's file or the parser may see other inputs."""
    declared = {tensor.name: tuple(tensor.shape) for tensor in inputs(network)}
    for tensor in inputs(network):
        if tensor.is_shape_tensor:
            raise BadModel(
                f"{model}: the values of input {tensor.name} are a shape, whose range TensorRT must know when it builds and "
                f"which a TuningJob cannot give; make it a constant of the model"
            )
    for case in cases:
        for name, shape in declared.items():
            given = case.tensors.get(name)
            if given is None:
                if any(size < 0 for size in shape):
                    raise BadModel(
                        f"{model}: input {name} is dynamic {_shown(shape)}; shape case {case.name} must give its shape"
                    )
                continue
            if len(given) != len(shape) or any(own not in (size, -1) for own, size in zip(shape, given, strict=False)):
                raise BadModel(
                    f"{model}: shape case {case.name} gives {name} {list(given)}, but the model declares {_shown(shape)}"
                )
        if unknown := sorted(set(case.tensors) - set(declared)):
            raise BadModel(
                f"{model}: shape case {case.name} names input {unknown[0]!r}; "
                f"the inputs are {', '.join(sorted(declared)) or 'none'}"
            )


def _shown(shape: tuple[int, ...]) -> str:
    return f"[{', '.join('?' if size < 0 else str(size) for size in shape)}]"
