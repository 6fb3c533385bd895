"""Building: what is saved, what is refused, and whose fault it is."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h
from onnxruntime_graphs import conv_net, relu, save, value

from tuner_job.api.base import InputError
from tuner_job.api.child import ShapeCase
from tuner_job.api.measurement import Candidate
from tuner_job.backends.onnxruntime import OnnxRuntimeBackend
from tuner_job.backends.onnxruntime.archive import SessionFile, is_inside, pack, unpack
from tuner_job.backends.onnxruntime.build import _copies_between_devices, build_engine, external_files
from tuner_job.backends.onnxruntime.errors import one_line
from tuner_job.backends.onnxruntime.fingerprint import graph_digest
from tuner_job.backends.onnxruntime.settings import GraphSettings, LoadSettings, SessionSettings
from tuner_job.backends.protocol import BadModel, BuildOrder, BuildRefused, Unsupported

STATIC = (ShapeCase(name="static"),)


@pytest.fixture(scope="module")
def backend():
    return OnnxRuntimeBackend("CPU")


def test_bytes_of_a_build_without_layout_passes_repeat(backend, tmp_path):
    model = relu(tmp_path / "m.onnx")
    fingerprints = {backend.build(BuildOrder(model, STATIC, Candidate(), tmp_path / name)) for name in ("a", "b")}
    assert len(fingerprints) == 1
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "m.onnx"]


def test_fingerprints_see_what_is_computed_not_how_it_is_named(backend, tmp_path):
    build = lambda model, route="": backend.build(BuildOrder(model, STATIC, Candidate(route=route), tmp_path / "e"))  # noqa: E731
    plain = conv_net(tmp_path / "plain.onnx")
    renamed = conv_net(tmp_path / "renamed.onnx", names="other/")
    assert build(plain) == build(plain) == build(renamed)
    off = [f"-graph:disable:{name}=on" for name in ("NchwcTransformer", "EliminateIdentity", "ConvAddFusion", "ConvBNFusion")]
    distinct = {build(plain, route) for route in ("", *off, "-session:intra_op_threads=1", "-session:cpu_arena=off")}
    assert len(distinct) == 7
    changed = onnx.load(plain)
    changed.graph.initializer[0].raw_data = bytes(len(changed.graph.initializer[0].raw_data))
    onnx.save(changed, tmp_path / "changed.onnx")
    assert build(tmp_path / "changed.onnx") != build(plain)


def test_an_optimizer_that_finds_nothing_leaves_the_fingerprint(backend, tmp_path):
    model = relu(tmp_path / "m.onnx")
    default = backend.build(BuildOrder(model, STATIC, Candidate(), tmp_path / "a"))
    assert backend.build(BuildOrder(model, STATIC, Candidate(route="-graph:disable:ConvAddFusion=on"), tmp_path / "b")) == default


@given(order=st.permutations(range(4)))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_order_of_independent_nodes_does_not_change_a_graphs_digest(tmp_path, order):
    branches = [h.make_node(op, ["x"], [op]) for op in ("Relu", "Abs", "Neg", "Exp")]
    join = h.make_node("Sum", ["Relu", "Abs", "Neg", "Exp"], ["y"])
    digests = {
        graph_digest(save(tmp_path / "m.onnx", [*nodes, join], [value("x", [2])], [value("y", [2])]))
        for nodes in (branches, [branches[i] for i in order])
    }
    assert len(digests) == 1


def test_a_digest_covers_subgraphs_and_what_they_capture(tmp_path):
    def digest(branch_op: str, captured: str) -> str:
        then = h.make_graph([h.make_node(branch_op, [captured], ["t"])], "then", [], [value("t", [2])])
        other = h.make_graph([h.make_node("Identity", ["x"], ["e"])], "else", [], [value("e", [2])])
        nodes = [h.make_node("Neg", ["x"], ["n"]), h.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
        return graph_digest(save(tmp_path / "m.onnx", nodes, [value("x", [2]), value("c", [], T.BOOL)], [value("y", [2])]))

    assert digest("Relu", "x") == digest("Relu", "x")
    assert len({digest("Relu", "x"), digest("Abs", "x"), digest("Relu", "n")}) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: relu(path, opset=99), r"refuses opset 99 of ai\.onnx; its maximum is \d+"),
        (lambda path: relu(path, ir=99), r"refuses ONNX IR version 99; its maximum is \d+"),
        (lambda path: relu(path, op="Frobnicate"), "does not know operator Frobnicate; a plugin"),
        (lambda path: relu(path, op="Frobnicate", domain="acme.ops"), "does not know operator acme.ops:Frobnicate; a plugin"),
        (lambda path: path.write_bytes(b"\x08\x09 not a model"), "not an ONNX model"),
        (lambda path: path.write_bytes(b""), "not an ONNX model"),
        (lambda path: None, "no such file"),
    ],
    ids=["opset", "ir", "operator", "domain", "garbage", "empty", "missing"],
)
@pytest.mark.parametrize("component", ["builder", "reference"])
@pytest.mark.parametrize("route", ["", "-graph:level=basic"])
def test_a_model_that_cannot_work_is_a_bad_model_under_every_route(backend, tmp_path, make, message, component, route):
    make(tmp_path / "m.onnx")
    if component == "builder":
        attempt = partial(backend.build, BuildOrder(tmp_path / "m.onnx", STATIC, Candidate(route=route), tmp_path / "e"))
    else:
        attempt = partial(backend.reference, tmp_path / "m.onnx")
    with pytest.raises(BadModel, match=message) as caught:
        attempt()
    assert "m.onnx" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "e").exists()
    if "maximum" in message:
        assert component in str(caught.value)


def test_a_truncated_model_is_a_bad_model(backend, tmp_path):
    whole = conv_net(tmp_path / "whole.onnx").read_bytes()
    (tmp_path / "m.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadModel, match="truncated"):
        backend.build(BuildOrder(tmp_path / "m.onnx", STATIC, Candidate(), tmp_path / "e"))


def external(path: Path, location="weights.bin") -> Path:
    model = onnx.load(conv_net(path))
    onnx.save(model, path, save_as_external_data=True, location=location, size_threshold=16)
    return path


def test_external_data_is_followed(backend, tmp_path):
    inline, outside = conv_net(tmp_path / "inline.onnx"), external(tmp_path / "outside.onnx")
    assert set(external_files(outside)) == {"weights.bin"}
    x = {"x": np.random.default_rng(1).standard_normal((1, 16, 12, 12)).astype(np.float32)}
    outputs = []
    for model in (inline, outside):
        backend.build(BuildOrder(model, STATIC, Candidate(), tmp_path / "e"))
        outputs.append(backend.load(tmp_path / "e").run(x)["y"])
    assert np.array_equal(*outputs)


@pytest.mark.parametrize("harm", ["missing", "short", "outside"])
def test_external_data_that_is_missing_short_or_elsewhere_is_a_bad_model(backend, tmp_path, harm):
    model = external(tmp_path / "m.onnx")
    if harm == "missing":
        (tmp_path / "weights.bin").unlink()
    elif harm == "short":
        (tmp_path / "weights.bin").write_bytes(b"1234")
    else:
        proto = onnx.load(model, load_external_data=False)
        for tensor in proto.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = "../weights.bin"
        model.write_bytes(proto.SerializeToString())
    for attempt in (
        lambda: backend.build(BuildOrder(model, STATIC, Candidate(), tmp_path / "e")),
        lambda: backend.reference(model),
    ):
        with pytest.raises(BadModel, match=r"weights\.bin"):
            attempt()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "dynamic dimensions"),
        ({"x": (2, 4)}, "declares"),
        ({"x": (2, 3, 4)}, "declares"),
        ({"z": (1,)}, "'z'; the inputs are x"),
    ],
)
def test_shapes_that_do_not_fit_are_a_bad_model(backend, tmp_path, tensors, message):
    model = relu(tmp_path / "m.onnx", shape=["batch", 3])
    with pytest.raises(BadModel, match=message):
        backend.build(BuildOrder(model, [ShapeCase(name="c", tensors=tensors)], Candidate(), tmp_path / "e"))
    assert backend.build(BuildOrder(model, [ShapeCase(name="c", tensors={"x": (5, 3)})], Candidate(), tmp_path / "e"))


def test_a_failure_that_only_a_route_causes_is_refused(tmp_path):
    """An affinity for a core that does not exist: the settings are at fault, the model is not."""
    model = relu(tmp_path / "m.onnx")
    odd = SessionSettings(load=LoadSettings(intra_threads=2, config={"session.intra_op_thread_affinities": "nonsense"}))
    with pytest.raises(BuildRefused) as caught:
        build_engine(model, STATIC, odd, "CPU", (0, 1), tmp_path / "e")
    assert "\n" not in str(caught.value)
    assert str(caught.value)
    assert not (tmp_path / "e").exists()


def test_builder_settings_and_unknown_knobs_are_unsupported(backend, tmp_path):
    model = relu(tmp_path / "m.onnx")
    with pytest.raises(Unsupported, match="optimizationLevel"):
        backend.build(BuildOrder(model, STATIC, Candidate(settings={"optimizationLevel": "5"}), tmp_path / "e"))
    with pytest.raises(Unsupported, match="-reshape_ppg"):
        backend.build(BuildOrder(model, STATIC, Candidate(route="-reshape_ppg=off"), tmp_path / "e"))


def test_the_models_folder_is_never_written(backend, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    model = external(folder / "m.onnx")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    backend.build(BuildOrder(model, STATIC, Candidate(), tmp_path / "e"))
    backend.load(tmp_path / "e").close()
    backend.reference(model).close()
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_an_engine_that_holds_the_source_model_optimises_when_it_loads(backend, tmp_path):
    """The fallback for graphs that cannot be saved after optimisation."""
    model = external(tmp_path / "m.onnx")
    session = SessionFile(onnxruntime=ort.__version__, device="CPU", load=LoadSettings(), graph=GraphSettings(level="basic"))
    pack(tmp_path / "e", session, model, external_files(model))
    x = {"x": np.ones((1, 16, 12, 12), np.float32)}
    backend.build(BuildOrder(model, STATIC, Candidate(route="-graph:level=basic"), tmp_path / "saved"))
    assert np.array_equal(backend.load(tmp_path / "e").run(x)["y"], backend.load(tmp_path / "saved").run(x)["y"])


def test_large_weights_lie_beside_the_model(tmp_path, monkeypatch, backend):
    monkeypatch.setattr("tuner_job.backends.onnxruntime.build.INLINE_BYTES", 1000)
    model = conv_net(tmp_path / "m.onnx")
    beside = backend.build(BuildOrder(model, STATIC, Candidate(), tmp_path / "beside"))
    assert zipfile.ZipFile(tmp_path / "beside").namelist() == ["session.json", "model.onnx", "model.data"]
    monkeypatch.undo()
    assert backend.build(BuildOrder(model, STATIC, Candidate(), tmp_path / "inline")) is not None
    x = {"x": np.ones((1, 16, 12, 12), np.float32)}
    assert np.array_equal(backend.load(tmp_path / "beside").run(x)["y"], backend.load(tmp_path / "inline").run(x)["y"])
    assert beside


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_model_over_2_gib_builds_loads_and_runs(backend, tmp_path):
    """Weights of 2.1 GiB in a sparse file: real size, little disk."""
    rows, columns = 1 << 15, 17_200
    weights = onnx.TensorProto(name="w", data_type=T.FLOAT, dims=[rows, columns], data_location=T.EXTERNAL)
    for key, entry in (("location", "w.bin"), ("offset", "0"), ("length", str(rows * columns * 4))):
        weights.external_data.add(key=key, value=entry)
    nodes = [h.make_node("Gather", ["w", "i"], ["rows"]), h.make_node("ReduceSum", ["rows"], ["y"], keepdims=0)]
    graph = h.make_graph(nodes, "g", [value("i", [2], T.INT64)], [value("y", [])], [weights])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(rows * columns * 4)
        file.seek((rows - 1) * columns * 4)
        file.write(np.ones(columns, np.float32).tobytes())
    assert backend.build(BuildOrder(tmp_path / "m.onnx", STATIC, Candidate(), tmp_path / "e"))
    assert (tmp_path / "e").stat().st_size > 2 << 30
    engine = backend.load(tmp_path / "e")
    assert engine.run({"i": np.array([0, rows - 1])})["y"] == columns
    engine.close()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "a\\b"])
def test_names_that_leave_the_folder_are_seen(name):
    assert not is_inside(name)
    assert is_inside("a/b.bin")


def test_files_that_are_no_engines_are_refused(backend, tmp_path):
    model = relu(tmp_path / "m.onnx")
    backend.build(BuildOrder(model, STATIC, Candidate(), tmp_path / "e"))
    whole = (tmp_path / "e").read_bytes()

    def refuses(match: str) -> None:
        with pytest.raises(InputError, match=match):
            backend.load(tmp_path / "bad")

    (tmp_path / "bad").write_bytes(b"no engine")
    refuses("not an engine file")
    (tmp_path / "bad").write_bytes(whole[:-30])
    refuses("not an engine file")
    with zipfile.ZipFile(tmp_path / "bad", "w") as archive:
        archive.writestr("other", b"")
    refuses("no session.json")
    gpu = SessionFile(onnxruntime="1", device="GPU", load=LoadSettings())
    pack(tmp_path / "bad", gpu, model, {})
    refuses("built for a GPU")
    with zipfile.ZipFile(tmp_path / "bad", "w") as archive:
        archive.writestr("session.json", gpu.model_copy(update={"device": "CPU"}).to_json())
        archive.writestr("model.onnx", model.read_bytes())
        archive.writestr("../escape", b"x")
    refuses("leave the folder")
    assert not (tmp_path.parent / "escape").exists()


def test_a_damaged_member_is_refused(tmp_path):
    session = SessionFile(onnxruntime="1", device="CPU", load=LoadSettings())
    pack(tmp_path / "e", session, relu(tmp_path / "m.onnx"), {})
    data = bytearray((tmp_path / "e").read_bytes())
    at = data.index(b"Relu")
    data[at : at + 4] = b"Tanh"
    (tmp_path / "e").write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        unpack(tmp_path / "e", tmp_path / "out", "CPU")


def test_messages_lose_source_locations():
    text = (
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: "
        "/onnxruntime_src/onnxruntime/core/graph/x.cc:335 "
        "const std::vector<long>& onnxruntime::GraphViewer::Get(onnxruntime::Order) const Order is not enabled.\n"
    )
    assert one_line(RuntimeError(text)) == "Exception during initialization: Order is not enabled."
    assert len(one_line(RuntimeError("x" * 5000))) <= 400


def test_a_saved_graph_with_copies_between_devices_is_seen(tmp_path):
    assert not _copies_between_devices(conv_net(tmp_path / "plain.onnx"))
    assert _copies_between_devices(relu(tmp_path / "copies.onnx", op="MemcpyToHost"))


def test_models_with_functions_of_their_own_keep_their_meaning_under_either_inlining(backend, tmp_path):
    twice = h.make_function("acme", "Twice", ["a"], ["b"], [h.make_node("Add", ["a", "a"], ["b"])], [h.make_opsetid("", 17)])
    graph = h.make_graph([h.make_node("Twice", ["x"], ["y"], domain="acme")], "g", [value("x", [3])], [value("y", [3])])
    opsets = [h.make_opsetid("", 17), h.make_opsetid("acme", 1)]
    model = h.make_model(graph, functions=[twice], opset_imports=opsets, ir_version=9)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    for route in ("", "-graph:function_inlining:disable=on"):
        backend.build(BuildOrder(tmp_path / "m.onnx", STATIC, Candidate(route=route), tmp_path / "e"))
        assert backend.load(tmp_path / "e").run({"x": np.arange(3, dtype=np.float32)})["y"].tolist() == [0, 2, 4]
