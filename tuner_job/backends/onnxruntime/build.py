"""Building: optimise the model as the route says, save it, pack it with what its session needs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import onnx
import onnxruntime as ort

from tuner_job.api.base import digest_of
from tuner_job.api.child import ShapeCase
from tuner_job.backends.onnxruntime.archive import MODEL, SessionFile, is_inside, pack
from tuner_job.backends.onnxruntime.errors import explain_bad_model, one_line
from tuner_job.backends.onnxruntime.fingerprint import graph_digest
from tuner_job.backends.onnxruntime.session import BUILD_ERRORS, open_session
from tuner_job.backends.onnxruntime.settings import GraphSettings, LoadSettings, SessionSettings
from tuner_job.backends.protocol import BadModel, BuildRefused

INLINE_BYTES = 1 << 29
"""Models up to this size are saved as one file; larger ones, which may grow past protobuf's 2 GiB, keep weights beside."""
_DATA = "model.data"


def build_engine(
    model: Path,
    cases: Sequence[ShapeCase],
    settings: SessionSettings,
    device: Literal["CPU", "GPU"],
    cores: tuple[int, ...],
    engine: Path,
) -> str:
    """Write the engine file; returns its fingerprint. Raises BuildRefused or BadModel.

    The optimised model is saved and loads with every optimizer off. Where ONNX Runtime cannot save or reload it (nodes that a
    provider compiled, copies between devices), the engine holds the source model and optimises it when loaded.
    """
    data = external_files(model)
    with tempfile.TemporaryDirectory(prefix="ort-build-") as scratch:
        target = Path(scratch) / MODEL
        external = model.stat().st_size + sum(path.stat().st_size for path in data.values()) > INLINE_BYTES
        try:
            saved = _optimise(model, settings, device, cores, target, external=external)
        except BUILD_ERRORS as error:
            raise _failure(model, settings, device, cores, error) from None
        check_shapes(model.name, saved.inputs, cases)
        if saved.reloads:
            session = SessionFile(onnxruntime=ort.__version__, device=device, load=settings.load)
            files = {_DATA: target.with_name(_DATA)} if target.with_name(_DATA).exists() else {}
            fingerprint = digest_of([graph_digest(target), session.load.model_dump(mode="json"), device])
            pack(engine, session, target, files)
            return fingerprint
        session = SessionFile(onnxruntime=ort.__version__, device=device, load=settings.load, graph=settings.graph)
        fingerprint = digest_of([graph_digest(model), settings.model_dump(mode="json"), device])
        pack(engine, session, model, data)
        return fingerprint


class _Saved:
    def __init__(self, session: ort.InferenceSession, reloads: bool) -> None:
        self.inputs = {value.name: value.shape for value in session.get_inputs()}
        self.reloads = reloads


def _optimise(
    model: Path, settings: SessionSettings, device: Literal["CPU", "GPU"], cores: tuple[int, ...], target: Path, *, external: bool
) -> _Saved:
    """Save the optimised model at `target`; whether a new session accepts it. Raises what ONNX Runtime raises."""
    entries = {}
    if external:
        entries = {
            "session.optimized_model_external_initializers_file_name": _DATA,
            "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
        }
    graph = settings.graph.model_copy(update={"config": settings.graph.config | entries})
    try:
        session = open_session(model, settings.load, graph, device, cores, save_to=target)
    except BUILD_ERRORS:
        # Saving may be what failed: only a session that cannot be made without saving either is a failure of the build.
        return _Saved(open_session(model, settings.load, settings.graph, device, cores), reloads=False)
    saved = _Saved(session, reloads=True)
    del session  # free its memory before the second one
    if device == "GPU" and _copies_between_devices(target):
        saved.reloads = False
        return saved
    try:
        open_session(target, settings.load, None, device, cores)
    except BUILD_ERRORS:
        saved.reloads = False
    return saved


def _copies_between_devices(model: Path) -> bool:
    """Whether a saved model has ONNX Runtime's own copy nodes. A new session adds its own as well: names collide, or it copies
    more than the session that was saved (microsoft/onnxruntime#11348, #17837)."""
    return any(
        node.op_type in ("MemcpyFromHost", "MemcpyToHost") for node in onnx.load(str(model), load_external_data=False).graph.node
    )


def _failure(
    model: Path, settings: SessionSettings, device: Literal["CPU", "GPU"], cores: tuple[int, ...], error: Exception
) -> BuildRefused | BadModel:
    """Whose fault it is: the model's if the same happens with nothing set, else the route's."""
    if settings != SessionSettings():
        try:
            open_session(model, LoadSettings(), GraphSettings(), device, cores)
        except BUILD_ERRORS:
            pass
        else:
            return BuildRefused(one_line(error))
    return BadModel(explain_bad_model(model.name, error, "the builder"))


def external_files(model: Path) -> dict[str, Path]:
    """The external data that a model names: location → file. Raises BadModel."""
    try:
        proto = onnx.load(str(model), load_external_data=False)
    except FileNotFoundError:
        raise BadModel(f"{model.name}: no such file") from None
    except Exception as error:  # protobuf's own error type depends on its implementation
        raise BadModel(f"{model.name}: not an ONNX model, or a truncated one ({one_line(error)})") from None
    if not proto.graph.node and not proto.graph.output:
        raise BadModel(f"{model.name}: not an ONNX model: it has no graph")
    files: dict[str, Path] = {}
    for tensor in _tensors(proto.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        where = {entry.key: entry.value for entry in tensor.external_data}
        location = where.get("location", "")
        if not is_inside(location) or location in (MODEL, "session.json"):
            raise BadModel(f"{model.name}: tensor {tensor.name} names external data at {location!r}, outside the model's folder")
        path = model.parent / location
        if not path.is_file():
            raise BadModel(f"{model.name}: external data {location} (tensor {tensor.name}) is missing; keep it beside the model")
        if int(where.get("offset", 0)) + int(where.get("length", 0)) > path.stat().st_size:
            raise BadModel(f"{model.name}: external data {location} is shorter than tensor {tensor.name} needs; it is truncated")
        files[location] = path
    return files


def check_shapes(name: str, inputs: dict[str, list[object]], cases: Sequence[ShapeCase]) -> None:
    """Raise BadModel when a shape case does not fit the model's inputs (name → dimensions; a str or None is dynamic)."""
    for case in cases:
        unknown = sorted(set(case.tensors) - set(inputs))
        if unknown:
            raise BadModel(
                f"{name}: shape case {case.name} names input {unknown[0]!r}; the inputs are {', '.join(sorted(inputs))}"
            )
        for tensor, declared in inputs.items():
            given = case.tensors.get(tensor)
            if given is None:
                if any(not isinstance(size, int) for size in declared):
                    raise BadModel(
                        f"{name}: input {tensor} has dynamic dimensions {declared}; shape case {case.name} must give its shape"
                    )
                continue
            fits = len(given) == len(declared) and all(
                not isinstance(size, int) or size == value for size, value in zip(declared, given, strict=True)
            )
            if not fits:
                raise BadModel(f"{name}: shape case {case.name} gives {tensor} {list(given)}, but the model declares {declared}")


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)
