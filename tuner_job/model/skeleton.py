"""An ONNX file without its weights.

Parsing a model of 2 GB takes twice that in memory, and protobuf refuses larger ones. The wire format lets a reader skip what
it does not want, so the graph is copied out of a memory map with every long payload of a tensor left behind, and only that is
parsed. Field numbers are those of onnx.proto3.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from tuner_job.api.base import InputError

MAX_PROTOBUF_BYTES = (1 << 31) - 1
"""protobuf's own limit: nothing that parses whole ONNX files takes more."""

MAX_SKELETON_BYTES = 256 << 20
KEPT_PAYLOAD_BYTES = 1 << 10
"""Tensor payloads up to this size are kept."""


@dataclass(frozen=True)
class _Message:
    """Which fields of a message hold messages to look into, and which may be left out when long."""

    nested: Mapping[int, _Message] = field(default_factory=dict)
    payload: frozenset[int] = frozenset()


_TENSOR = _Message(payload=frozenset({4, 5, 6, 7, 9, 10, 11}))  # float, int32, string, int64, raw, double, uint64 data
_SPARSE = _Message({1: _TENSOR, 2: _TENSOR})  # values, indices
_NODE_FIELDS: dict[int, _Message] = {}
_NODE = _Message(_NODE_FIELDS)
_GRAPH = _Message({1: _NODE, 5: _TENSOR, 15: _SPARSE})  # node, initializer, sparse_initializer
_ATTRIBUTE = _Message({5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE})  # t, g, tensors, graphs, …
_NODE_FIELDS[5] = _ATTRIBUTE
_FUNCTION = _Message({7: _NODE, 11: _ATTRIBUTE})  # node, attribute_proto
_TRAINING = _Message({1: _GRAPH, 2: _GRAPH})  # initialization, algorithm
_MODEL = _Message({7: _GRAPH, 20: _TRAINING, 25: _FUNCTION})


class _Malformed(Exception):
    pass


def read_skeleton(path: Path) -> onnx.ModelProto:
    """The model with everything but long tensor payloads. Memory: the graph, whatever the weights.

    Raises InputError, naming the file, if it is missing, empty, a Git LFS pointer, truncated, or not ONNX.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size == 0:
                raise InputError(f"{path}: the file is empty; expected an ONNX model")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _refuse_text(data[:1024], path)
                skeleton = _strip(data, 0, size, _MODEL)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected an ONNX model") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: its graphs are nested too deeply") from None
    except _Malformed as problem:
        raise InputError(f"{path}: {problem}; the file is truncated or not an ONNX model") from None
    return _parse(bytes(skeleton), path)


def text(value: object, what: str, path: Path) -> str:
    """A string of the model. Protobuf hands out bytes where a damaged file holds no UTF-8. Raises InputError."""
    if not isinstance(value, str):
        raise InputError(f"{path}: {what} is not UTF-8 text; the file is damaged")
    return value


def _refuse_text(head: bytes, path: Path) -> None:
    if head.startswith(b"version https://git-lfs"):
        raise InputError(f"{path}: a Git LFS pointer, not the model itself; fetch it with `git lfs pull`")
    if head.lstrip()[:1] in (b"<", b"{", b"[") or head[:2] in (b"PK", b"\x1f\x8b"):
        raise InputError(f"{path}: not an ONNX model (it begins with {head[:12]!r})")


def _parse(skeleton: bytes, path: Path) -> onnx.ModelProto:
    try:
        model = onnx.load_model_from_string(skeleton)
    except Exception:  # protobuf's DecodeError differs between its implementations
        raise InputError(f"{path}: not an ONNX model, or a damaged one") from None
    if model.ir_version < 1 or not model.HasField("graph") or not model.graph.output:
        raise InputError(f"{path}: not an ONNX model: it has no IR version, graph or outputs")
    if not model.opset_import and model.ir_version >= 3:
        raise InputError(f"{path}: not a valid ONNX model: it names no operator set")
    return model


def _strip(data: mmap.mmap, position: int, end: int, message: _Message) -> bytearray:
    """The message in data[position:end] without its long payloads."""
    kept = bytearray()
    while position < end:
        start = position
        tag, position = _varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if wire == 2:
            length, position = _varint(data, position, end)
            start_of_value, position = position, position + length
            if position > end:
                raise _Malformed(f"a field of {length} bytes at offset {start} goes past the end")
            inner = message.nested.get(number)
            if inner is not None:
                nested = _strip(data, start_of_value, position, inner)
                kept += _encoded(tag) + _encoded(len(nested)) + nested
            elif number not in message.payload or length <= KEPT_PAYLOAD_BYTES:
                kept += data[start:position]
        elif wire == 0:
            _, position = _varint(data, position, end)
            kept += data[start:position]
        elif wire in (1, 5):
            position += 8 if wire == 1 else 4
            if position > end:
                raise _Malformed(f"a number at offset {start} goes past the end")
            kept += data[start:position]
        else:
            raise _Malformed(f"an impossible field at offset {start}")
        if len(kept) > MAX_SKELETON_BYTES:
            raise _Malformed(f"its graph alone takes more than {MAX_SKELETON_BYTES} bytes")
    return kept


def _varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _Malformed(f"it breaks off at offset {position}" if position >= end else f"an impossible number at offset {position}")


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
