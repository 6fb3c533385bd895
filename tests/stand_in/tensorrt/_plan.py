"""The engine file: the model, what it costs, and what the script wants of it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from ._enums import BuilderFlag, ProfilingVerbosity
from ._network import INetworkDefinition, ITensor
from ._script import VERSION

_MAGIC = b"STANDIN\x01"
_FUSED = 3
"""Nodes in one layer."""

Shapes = Mapping[str, tuple[tuple[int, ...], ...]]
"""Input → minimum, optimum, maximum."""


@dataclass(frozen=True)
class Plan:
    version: str
    name: str
    seconds: float
    """Of the device at the optimum of the first profile."""
    tensors: list[dict[str, Any]]
    """Name, dtype (its number), shape, whether it is an input, whether the shape depends on data; inputs first."""
    profiles: list[dict[str, Any]]
    layers: list[dict[str, Any]]
    """Name, tactic, share of the time, nodes, output."""
    actions: list[str]
    verbosity: int
    refittable: bool
    weights: int
    """Bytes."""
    model: bytes = field(repr=False)

    @staticmethod
    def of(
        network: INetworkDefinition,
        *,
        profiles: Sequence[Shapes],
        seconds: float,
        effects: Mapping[str, float],
        tactic: int,
        actions: Sequence[str],
        verbosity: ProfilingVerbosity,
        flags: int,
    ) -> Plan:
        model = network._model
        assert model is not None
        actions = [*actions, *(["stripped"] if flags >> BuilderFlag.STRIP_PLAN.value & 1 else [])]
        return Plan(
            version=VERSION,
            name=network.name,
            seconds=seconds,
            tensors=[_tensor(one, one.name in _late(model)) for one in (*network._inputs, *network._outputs)],
            profiles=[dict(profile) for profile in profiles] or [{}],
            layers=_layers(model, effects, tactic),
            actions=list(actions),
            verbosity=verbosity.value,
            refittable="refittable" in actions or "stripped" in actions or bool(flags >> BuilderFlag.REFIT.value & 1),
            weights=sum(numpy_helper.to_array(tensor).nbytes for tensor in model.graph.initializer),
            model=model.SerializeToString(),
        )

    def serialize(self) -> bytes:
        header = json.dumps({name: value for name, value in asdict(self).items() if name != "model"}).encode()
        return _MAGIC + len(header).to_bytes(8, "little") + header + self.model

    @staticmethod
    def read(data: bytes) -> Plan | None:
        """None if it is no plan of this library."""
        if len(data) < 16 or data[:8] != _MAGIC:
            return None
        size = int.from_bytes(data[8:16], "little")
        try:
            return Plan(**json.loads(data[16 : 16 + size]), model=data[16 + size :])
        except (ValueError, TypeError):
            return None


def _tensor(one: ITensor, late: bool) -> dict[str, Any]:
    shape = list(one.shape)
    return {"name": one.name, "dtype": one.dtype.value, "shape": shape, "input": one.is_network_input, "late": late}


def _late(model: ModelProto) -> set[str]:
    """Outputs whose shape depends on data: they have a dimension by a name that no input has, in a model with such operators."""
    if not any(node.op_type in ("NonZero", "Compress", "Unique", "NonMaxSuppression") for node in model.graph.node):
        return set()
    known = {dim.dim_param for info in model.graph.input for dim in info.type.tensor_type.shape.dim}
    own = {info.name: {dim.dim_param for dim in info.type.tensor_type.shape.dim} for info in model.graph.output}
    return {name for name, names in own.items() if names - known - {""}}


def _layers(model: ModelProto, effects: Mapping[str, float], tactic: int) -> list[dict[str, Any]]:
    """Neighbouring nodes are fused. A token that has an effect changes tactic and time of one layer, always the same."""
    nodes = list(model.graph.node)
    groups = [nodes[start : start + _FUSED] for start in range(0, len(nodes), _FUSED)]
    rng = np.random.default_rng(len(nodes))
    weights = rng.gamma(1.0, size=len(groups)) + 0.05
    weights /= weights.sum()
    tactics = [f"stand_in_{group[0].op_type.lower()}" for group in groups]
    for token, effect in effects.items():
        index = int(hashlib.sha256(token.encode()).hexdigest(), 16) % len(groups)
        tactics[index] += f"_{token.lstrip('-').replace('=', '_')}"
        weights[index] *= math.exp(min(3.0, max(-3.0, effect / weights[index])))
    tactics[int(np.argmax(weights))] += f"_t{tactic}"
    weights /= weights.sum()
    return [
        {
            "name": f"{group[0].name or group[0].op_type}_myl0_{number}",
            "kind": group[0].op_type.lower(),
            "tactic": tactics[number],
            "share": float(weights[number]),
            "nodes": [node.name for node in group if node.name],
            "inputs": [name for name in group[0].input if name],
            "outputs": list(group[-1].output),
        }
        for number, group in enumerate(groups)
    ]
