"""What a model file says about itself, read without an engine library and without its weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx

from tuner_job.api.base import InputError, digest_of
from tuner_job.api.tensors import TensorSpec
from tuner_job.model.external import check_files, external_tensors, locations
from tuner_job.model.skeleton import MAX_PROTOBUF_BYTES, read_skeleton, text

ANONYMOUS_AXES = ("", "?", "-1", "None", "none")
"""Names that exporters write for axes that have none: two of them are not the same axis."""


@dataclass(frozen=True)
class ModelInfo:
    """A model's interface and make."""

    path: Path
    inputs: tuple[TensorSpec, ...]
    """What a caller must supply: graph inputs that are no weights, in order."""
    outputs: tuple[TensorSpec, ...]
    weights_as_inputs: frozenset[str]
    """Graph inputs that are left out because an initializer gives them (IR 3 files list all weights)."""
    ir_version: int
    opsets: dict[str, int]
    """Operator domain (`ai.onnx` for the default one) → version."""
    operators: dict[str, tuple[str, ...]]
    """Operator domain → types used in it, subgraphs included, without those that the model's own functions define."""
    structure: str
    """Hex SHA-256 of the graph without its weights' values: operators in the file's order, how they are wired, and the element
    types and sizes of the weights that they read. Names, attributes (they may hold weights) and shapes of inputs are left out, so
    that a model trained again, or exported for another batch, has the same one."""
    external_data: tuple[str, ...]
    """Files with weights, relative to the model's folder."""
    producer: str
    """Name and version of the exporter, as far as it says."""

    @property
    def dynamic_inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs whose shape the model leaves open."""
        return tuple(spec for spec in self.inputs if spec.static_shape is None)

    @property
    def operator_types(self) -> frozenset[str]:
        """Types of `operators`, whatever their domain."""
        return frozenset(name for types in self.operators.values() for name in types)


def inspect(path: Path) -> ModelInfo:
    """Read a model's interface; memory does not grow with its weights.

    Raises InputError, naming the file and the tensor or key, for a file that is missing, empty, truncated, not ONNX, or too
    large for protobuf; for external data that is missing, too short, or outside the model's folder; and for inputs or outputs
    that are not tensors.
    """
    model = read_skeleton(path)
    external = external_tensors(model, path)
    check_files(external, path)
    if (size := path.stat().st_size) > MAX_PROTOBUF_BYTES:
        raise InputError(f"{path}: {size} bytes; an ONNX file ends at 2 GiB: export it with its weights as external data")
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer} | {sparse.values.name for sparse in graph.sparse_initializer}
    return ModelInfo(
        path=path,
        inputs=_specs((value for value in graph.input if value.name not in weights), "input", path),
        outputs=_specs(graph.output, "output", path),
        weights_as_inputs=frozenset(value.name for value in graph.input if value.name in weights),
        ir_version=model.ir_version,
        opsets={_domain(entry.domain, path): entry.version for entry in model.opset_import},
        operators=_operators(model, path),
        structure=_structure(model),
        external_data=locations(external),
        producer=" ".join(text(part, "the producer", path) for part in (model.producer_name, model.producer_version) if part),
    )


def check_variant(base: ModelInfo, variant: ModelInfo, name: str) -> None:
    """Raises InputError unless a variant can stand in for the model: same names and element types, compatible shapes."""
    for kind, wanted, found in (("input", base.inputs, variant.inputs), ("output", base.outputs, variant.outputs)):
        specs = {spec.name: spec for spec in found}
        for spec in wanted:
            other = specs.pop(spec.name, None)
            if other is None:
                raise InputError(
                    f"model.variants[{name}]: {variant.path} has no {kind} {spec.name!r}; the model has it as {spec}"
                )
            if other.dtype != spec.dtype or not _may_agree(spec, other):
                raise InputError(f"model.variants[{name}]: {kind} {spec.name!r} is {other}; the model has {spec}")
        if specs:
            raise InputError(f"model.variants[{name}]: {variant.path} has the {kind} {next(iter(specs))!r}; the model does not")


def _may_agree(one: TensorSpec, other: TensorSpec) -> bool:
    if one.dims is None or other.dims is None:
        return True
    pairs = list(zip(one.dims, other.dims, strict=False))
    return len(one.dims) == len(other.dims) and all(a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in pairs)


def _specs(values: Iterable[onnx.ValueInfoProto], kind: str, path: Path) -> tuple[TensorSpec, ...]:
    specs: dict[str, TensorSpec] = {}
    for value in values:
        if not value.name:
            continue  # exporters leave the name of an unused optional output blank
        text(value.name, f"the name of an {kind}", path)
        if value.name in specs:
            raise InputError(f"{path}: the {kind} {value.name!r} is declared twice")
        form = value.type.WhichOneof("value")
        if form != "tensor_type":
            described = (form or "of no type").removesuffix("_type").replace("_", " ")
            raise InputError(f"{path}: the {kind} {value.name!r} is {described}, not a tensor; only tensors can be tuned")
        tensor = value.type.tensor_type
        dims = tuple(_axis(axis, path) for axis in tensor.shape.dim) if tensor.HasField("shape") else None
        specs[value.name] = TensorSpec(
            name=value.name, dtype=_dtype(tensor.elem_type, f"{path}: {kind} {value.name!r}"), dims=dims
        )
    return tuple(specs.values())


def _axis(axis: onnx.TensorShapeProto.Dimension, path: Path) -> int | str | None:
    """Zero and negative sizes are how some exporters write a dynamic axis."""
    if axis.WhichOneof("value") == "dim_value":
        return int(axis.dim_value) if axis.dim_value > 0 else None
    return None if axis.dim_param in ANONYMOUS_AXES else text(axis.dim_param, "the name of an axis", path)


def _dtype(element: int, where: str) -> str:
    if element == onnx.TensorProto.STRING:
        return "string"
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(element).name)
    except KeyError:
        raise InputError(f"{where} has the unknown element type {element}; a newer onnx package may know it") from None


def _operators(model: onnx.ModelProto, path: Path) -> dict[str, tuple[str, ...]]:
    used: dict[str, set[str]] = {}
    local = {(function.domain, function.name) for function in model.functions}
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while nodes:
        node = nodes.pop()
        if (node.domain, node.op_type) not in local:
            used.setdefault(_domain(node.domain, path), set()).add(text(node.op_type, "an operator's type", path))
        for attribute in node.attribute:
            for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                nodes.extend(graph.node)
    return {domain: tuple(sorted(types)) for domain, types in sorted(used.items())}


def _structure(model: onnx.ModelProto) -> str:
    """Nodes of subgraphs and functions count by their types alone."""
    graph = model.graph
    known: dict[str, object] = {value.name: f"input {k}" for k, value in enumerate(graph.input)}
    known |= {tensor.name: [tensor.data_type, list(tensor.dims)] for tensor in graph.initializer}
    nodes: list[object] = []
    for node in graph.node:
        nodes.append([f"{node.domain}:{node.op_type}", [known.get(name, "") for name in node.input], _inner_types(node)])
        known |= {name: f"{len(nodes) - 1}.{k}" for k, name in enumerate(node.output) if name}
    functions = [[f"{node.domain}:{node.op_type}" for node in function.node] for function in model.functions]
    return digest_of([nodes, functions, len(graph.output)])


def _inner_types(node: onnx.NodeProto) -> list[object]:
    graphs = [graph for a in node.attribute for graph in (*a.graphs, *([a.g] if a.HasField("g") else []))]
    return [[f"{inner.domain}:{inner.op_type}", _inner_types(inner)] for graph in graphs for inner in graph.node]


def _domain(domain: str, path: Path) -> str:
    return text(domain, "an operator's domain", path) or "ai.onnx"
