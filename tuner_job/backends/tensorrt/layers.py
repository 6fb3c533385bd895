"""What the engine inspector tells, as layers and as a fingerprint.

The JSON is `{"Layers": [...], ...}`. A layer is an object with `Name`, `LayerType`, `Inputs`, `Outputs`, `TacticName` and much
that depends on its type if the engine was built with DETAILED verbosity, else its bare name. TensorRT 10 writes a tensor's form
as `Format/Datatype`, 11 as `Datatype` and `Format`; the ONNX nodes are in `Metadata`, separated by control characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from tuner_job.api.base import digest_of
from tuner_job.api.layers import MOST_LAYERS, Layer

_NAMES = frozenset({"Name", "Metadata", "StreamId"})
"""Keys whose values are given anew in every build."""
_NUMBERED = re.compile(r"_myl\d+_\d+")
"""How the compiler numbers what it makes."""
_PROFILE = re.compile(r" \[profile (\d+)\]$")
_NODE = re.compile(r"\[ONNX Layer: (.*)\]", re.DOTALL)
_NO_TACTIC = re.compile(r"0x0*")


def fingerprint(information: str) -> str:
    """Hex SHA-256 of what an engine does: its layers with their types, shapes, formats, tactics and parameters, and the number of
    streams that they are spread over. "" where the engine does not tell.

    Neither names, nor the order of layers, nor the numbers of streams count: they differ between builds that do the same. Weights
    count as far as they are told (type and number), so only engines of one model may be compared.
    """
    layers = list(_layers(information))
    told = [layer for layer in layers if isinstance(layer, dict)]
    if not told or len(told) < len(layers):
        return ""
    streams = {layer.get("StreamId", 0) for layer in told if isinstance(layer.get("StreamId", 0), int)}
    return digest_of([sorted(json.dumps(_essence(layer), sort_keys=True) for layer in told), len(streams)])


def read_layers(information: str, profile: int = 0) -> tuple[Layer, ...]:
    """The layers of one optimisation profile, in the order of the engine; empty where the engine does not tell.

    Layers of a later profile carry its number in their names.
    """
    layers = [_layer(layer) for layer in _layers(information)]
    return tuple(layer for layer in layers if _profile(layer.name) == profile)[:MOST_LAYERS]


def with_times(layers: tuple[Layer, ...], seconds: Mapping[str, float]) -> tuple[Layer, ...]:
    """The layers with the time of each, by name as the profiler reports it; layers that only the profiler knows come last."""
    left = dict(seconds)
    timed = [layer.model_copy(update={"seconds": left.pop(layer.name, None)}) for layer in layers]
    return (*timed, *(Layer(name=name, seconds=time) for name, time in left.items()))[:MOST_LAYERS]


def _layers(information: str) -> Iterator[object]:
    try:
        top = json.loads(information, strict=False)  # Metadata has control characters in it
    except (ValueError, RecursionError):
        return
    layers = top.get("Layers") if isinstance(top, dict) else None
    yield from layers if isinstance(layers, list) else ()


def _layer(told: object) -> Layer:
    if not isinstance(told, dict):
        return Layer(name=str(told))
    tactic = _text(told, "TacticName") or _text(told, "TacticValue")
    outputs = told.get("Outputs")
    return Layer(
        name=_text(told, "Name"),
        kind=_text(told, "LayerType"),
        tactic="" if _NO_TACTIC.fullmatch(tactic) else tactic,
        formats=tuple(_format(output) for output in outputs if isinstance(output, dict)) if isinstance(outputs, list) else (),
        nodes=tuple(
            dict.fromkeys(match[1] for part in re.split(r"[\x1e\x1f]", _text(told, "Metadata")) if (match := _NODE.search(part)))
        ),
    )


def _format(tensor: dict[str, object]) -> str:
    return _text(tensor, "Format/Datatype") or " ".join(filter(None, (_text(tensor, "Datatype"), _text(tensor, "Format"))))


def _profile(name: str) -> int:
    match = _PROFILE.search(name)
    return int(match[1]) if match else 0


def _essence(value: object) -> object:
    if isinstance(value, dict):
        return {
            key: len(part) if key in ("Inputs", "Outputs") and _only_names(part) else _essence(part)
            for key, part in value.items()
            if key not in _NAMES
        }
    if isinstance(value, list):
        return [_essence(part) for part in value]
    return _NUMBERED.sub("_myl", value) if isinstance(value, str) else value


def _only_names(tensors: object) -> bool:
    return isinstance(tensors, list) and all(isinstance(tensor, str) for tensor in tensors)


def _text(told: dict[str, object], key: str) -> str:
    value = told.get(key)
    return value if isinstance(value, str) else ""
