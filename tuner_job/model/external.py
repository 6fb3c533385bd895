"""External data: the files beside an ONNX file that hold its weights.

A location is content of the model, so it is not trusted: it is checked before anything is opened, in every place of the file
where a tensor can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnx

from tuner_job.api.base import InputError
from tuner_job.model.skeleton import text


@dataclass(frozen=True)
class ExternalTensor:
    """A tensor whose data is in another file."""

    name: str
    location: str
    """Relative to the model's folder, normalised (`weights.bin`, `data/layer.1::w`)."""
    offset: int
    size: int
    """Bytes, from type and shape."""


def external_tensors(model: onnx.ModelProto, path: Path) -> list[ExternalTensor]:
    """All of them, from initializers, node attributes, subgraphs and functions. Opens nothing.

    Raises InputError for a location that is absolute, leaves the model's folder, or is the model itself, and for offsets or
    lengths that make no sense.
    """
    return [_external(tensor, path) for tensor in _tensors(model) if tensor.data_location == onnx.TensorProto.EXTERNAL]


def locations(tensors: Iterable[ExternalTensor]) -> tuple[str, ...]:
    """The files, each once, sorted."""
    return tuple(sorted({tensor.location for tensor in tensors}))


def check_files(tensors: Iterable[ExternalTensor], path: Path) -> None:
    """Raises InputError unless every file is there, inside the model's folder (symbolic links followed), and long enough."""
    folder = path.parent.resolve()
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.location not in sizes:
            sizes[tensor.location] = _size(folder, tensor, path)
        needed = tensor.offset + tensor.size
        if sizes[tensor.location] < needed:
            raise InputError(
                f"{path}: external data file {tensor.location!r} has {sizes[tensor.location]} bytes; "
                f"tensor {tensor.name!r} needs {needed}: the file is truncated"
            )


def _size(folder: Path, tensor: ExternalTensor, path: Path) -> int:
    file = folder / tensor.location
    resolved = file.resolve()
    if not resolved.is_relative_to(folder):
        raise InputError(
            f"{path}: external data file {tensor.location!r} is a symbolic link out of the model's folder; copy the file"
        )
    if not resolved.exists():
        raise InputError(
            f"{path}: external data file {tensor.location!r} is missing (tensor {tensor.name!r} needs it); "
            f"it must lie in {path.parent}"
        )
    if not resolved.is_file():
        raise InputError(f"{path}: external data {tensor.location!r} is not a regular file")
    return resolved.stat().st_size


def _external(tensor: onnx.TensorProto, path: Path) -> ExternalTensor:
    entries = {
        text(entry.key, "external data", path): text(entry.value, f"external data of {tensor.name!r}", path)
        for entry in tensor.external_data
    }
    location = _safe_location(entries.get("location", ""), tensor.name, path)
    offset, length = (_number(entries.get(key, ""), key, tensor.name, path) for key in ("offset", "length"))
    size = _payload_size(tensor, path)
    if length is not None and length < size:
        raise InputError(f"{path}: external tensor {tensor.name!r} has {length} bytes; its type and shape need {size}")
    return ExternalTensor(tensor.name, location, offset or 0, size)


def _safe_location(location: str, tensor: str, path: Path) -> str:
    parts = PurePosixPath(location).parts
    drive = len(location) > 1 and location[1] == ":" and location[0].isalpha()
    if not parts or location.endswith("/") or "\0" in location:
        raise InputError(f"{path}: external tensor {tensor!r} has the location {location!r}, which names no file")
    if location.startswith(("/", "\\")) or drive or ".." in parts or ".." in location.split("\\"):
        raise InputError(
            f"{path}: external tensor {tensor!r} has the location {location!r}, which leaves the model's folder; refused",
            reason="UnsafeModel",
        )
    normal = "/".join(parts)
    if normal == path.name:
        raise InputError(f"{path}: external tensor {tensor!r} has the model file itself as its location")
    return normal


def _number(text: str, key: str, tensor: str, path: Path) -> int | None:
    if text == "":
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise InputError(f"{path}: external tensor {tensor!r} has the {key} {text[:40]!r}, which is no number of bytes")
    return int(text)


def _payload_size(tensor: onnx.TensorProto, path: Path) -> int:
    if any(size < 0 for size in tensor.dims):
        raise InputError(f"{path}: external tensor {tensor.name!r} has the shape {list(tensor.dims)}")
    bits = _BITS.get(tensor.data_type)
    if bits is None:
        raise InputError(
            f"{path}: external tensor {tensor.name!r} has the element type {tensor.data_type}, which cannot be external"
        )
    return int((math.prod(tensor.dims) * bits + 7) // 8)


_BITS = {
    number: 8 * onnx.helper.tensor_dtype_to_np_dtype(number).itemsize
    for name, number in onnx.TensorProto.DataType.items()
    if name not in ("UNDEFINED", "STRING")
}
_BITS |= {
    onnx.TensorProto.DataType.Value(name): bits
    for name, bits in (("INT4", 4), ("UINT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2))
    if name in onnx.TensorProto.DataType.keys()  # noqa: SIM118  (a protobuf enum wrapper, not a dict)
}
"""Bits per element: packed types use less than the byte that numpy gives them."""


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _attribute_tensors(function.attribute_proto)
        yield from _node_tensors(function.node)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for graph in (attribute.g, *attribute.graphs):
            yield from _graph_tensors(graph)
