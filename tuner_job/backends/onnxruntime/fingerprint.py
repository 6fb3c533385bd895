"""What an optimised graph computes, as a digest that does not depend on names or on the order of independent nodes.

ONNX Runtime numbers the values that it makes and orders some nodes by address, so two builds of one route differ in bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx

_CHUNK = 1 << 22


def graph_digest(model: Path) -> str:
    """Hex SHA-256 over the model at `model` and its external data.

    A value's digest is that of the node that makes it (operator, attributes, digests of inputs) with the output's index, of
    an initializer's contents, or of a graph input's position, name and type. The graph's digest covers its outputs and, as
    a multiset, all nodes.
    """
    proto = onnx.load(str(model), load_external_data=False)
    opsets = sorted((entry.domain, entry.version) for entry in proto.opset_import)
    functions = sorted(_plain(function.SerializeToString(deterministic=True)) for function in proto.functions)
    return _digest("model", opsets, functions, _graph(proto.graph, {}, model.parent))


def _graph(graph: onnx.GraphProto, outer: Mapping[str, str], folder: Path) -> str:
    values = dict(outer)
    for position, value in enumerate(graph.input):
        values[value.name] = _digest("input", position, value.name, value.type.SerializeToString(deterministic=True))
    for tensor in graph.initializer:
        values[tensor.name] = _tensor(tensor, folder)
    for sparse in graph.sparse_initializer:
        values[sparse.values.name] = _digest(
            "sparse", tuple(sparse.dims), _tensor(sparse.values, folder), _tensor(sparse.indices, folder)
        )
    nodes = []
    for node in graph.node:
        inputs = tuple(values.get(name, "") for name in node.input)
        attributes = tuple(sorted(_attribute(attribute, values, folder) for attribute in node.attribute))
        digest = _digest(node.domain, node.op_type, inputs, attributes, len(node.output))
        nodes.append(digest)
        for index, name in enumerate(node.output):
            if name:
                values[name] = _digest("output", digest, index)
    outputs = tuple((value.name, values.get(value.name, "")) for value in graph.output)
    return _digest("graph", outputs, tuple(sorted(nodes)))


def _attribute(attribute: onnx.AttributeProto, values: Mapping[str, str], folder: Path) -> str:
    if attribute.type == onnx.AttributeProto.GRAPH:
        return _digest(attribute.name, _graph(attribute.g, values, folder))
    if attribute.type == onnx.AttributeProto.GRAPHS:
        return _digest(attribute.name, tuple(_graph(graph, values, folder) for graph in attribute.graphs))
    if attribute.type == onnx.AttributeProto.TENSOR:
        return _digest(attribute.name, _tensor(attribute.t, folder))
    bare = onnx.AttributeProto()
    bare.CopyFrom(attribute)
    bare.doc_string = ""
    return _plain(bare.SerializeToString(deterministic=True))


def _tensor(tensor: onnx.TensorProto, folder: Path) -> str:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        bare = onnx.TensorProto()
        bare.CopyFrom(tensor)
        bare.name = bare.doc_string = ""
        return _plain(bare.SerializeToString(deterministic=True))
    hasher = hashlib.sha256(f"{tensor.data_type} {tuple(tensor.dims)}".encode())
    for chunk in _external(tensor, folder):
        hasher.update(chunk)
    return hasher.hexdigest()


def _external(tensor: onnx.TensorProto, folder: Path) -> Iterator[bytes]:
    where = {entry.key: entry.value for entry in tensor.external_data}
    with (folder / where["location"]).open("rb") as file:
        file.seek(int(where.get("offset", 0)))
        left = int(where["length"]) if "length" in where else -1
        while left and (chunk := file.read(_CHUNK if left < 0 else min(_CHUNK, left))):
            left -= len(chunk) if left > 0 else 0
            yield chunk


def _digest(*parts: object) -> str:
    return _plain(repr(parts).encode())


def _plain(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
