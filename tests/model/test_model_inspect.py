"""What is read out of models, and which files are refused."""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import detector, external, magika, model, save, silero, value, weights, with_external
from onnx import TensorProto, helper

from tuner_job.api.base import InputError
from tuner_job.model.digest import digest
from tuner_job.model.inspect import check_variant, inspect
from tuner_job.model.skeleton import read_skeleton


def described(specs):
    return {spec.name: str(spec) for spec in specs}


def refused(path, says, reason="InvalidInput"):
    for read in (inspect, digest):
        with pytest.raises(InputError, match=says) as error:
            read(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
        assert error.value.reason == reason


# --- real models ------------------------------------------------------------------------------------------------


def test_magika():
    info = inspect(magika())
    assert described(info.inputs) == {"bytes": "int32 [unk__214, 2048]"}
    assert described(info.outputs) == {"target_label": "float32 [unk__215, 214]"}
    assert (info.ir_version, info.opsets["ai.onnx"], info.producer) == (8, 15, "tf2onnx 1.16.1 15c810")
    assert info.external_data == ()


def test_detector_with_dynamic_axes():
    info = inspect(detector())
    assert info.dynamic_inputs == info.inputs
    assert info.inputs[0].dims is not None
    assert info.inputs[0].dims[1] == 3
    assert "Conv" in info.operators["ai.onnx"]


def test_silero_with_subgraphs_states_and_a_scalar():
    info = inspect(silero())
    assert described(info.inputs) == {"input": "float32 [?, ?]", "state": "float32 [2, ?, 128]", "sr": "int64 []"}
    assert {"If", "LSTM"} <= set(info.operators["ai.onnx"])  # the LSTM is inside the If


@pytest.mark.parametrize("path", [magika, detector, silero])
def test_the_skeleton_has_the_whole_graph_of_a_real_model(path):
    skeleton, whole = read_skeleton(path()), onnx.load(path())
    assert skeleton.ByteSize() < whole.ByteSize() / 2
    assert [node.op_type for node in skeleton.graph.node] == [node.op_type for node in whole.graph.node]
    assert skeleton.graph.input == whole.graph.input
    assert [(t.name, tuple(t.dims)) for t in skeleton.graph.initializer] == [
        (t.name, tuple(t.dims)) for t in whole.graph.initializer
    ]


# --- oddities of good models ------------------------------------------------------------------------------------


def test_weights_listed_as_inputs_are_no_inputs(tmp_path):
    names = [f"w{i}" for i in range(50)]
    proto = model(
        inputs=[*(value(name, [2]) for name in names), value("x", ["n", 3])],
        initializers=[onnx.numpy_helper.from_array(np.ones(2, np.float32), name) for name in names],
        ir_version=3,
    )
    info = inspect(save(proto, tmp_path / "m.onnx"))
    assert [spec.name for spec in info.inputs] == ["x"]
    assert info.weights_as_inputs == set(names)


@pytest.mark.parametrize("name", ["onnx::Conv_1", "input:0", "a,b", "x y", "../x", "é", "n" * 300])
def test_any_name_will_do(tmp_path, name):
    proto = model([helper.make_node("Relu", [name], ["y"])], [value(name, ["batch size", "-1", 3])])
    assert described(inspect(save(proto, tmp_path / "m.onnx")).inputs) == {name: "float32 [batch size, ?, 3]"}


def test_zero_negative_and_anonymous_sizes_are_dynamic_and_ranks_may_be_unknown(tmp_path):
    unranked = onnx.ValueInfoProto(name="u")
    unranked.type.tensor_type.elem_type = TensorProto.BFLOAT16
    proto = model(inputs=[value("x", [0, -1, None, "?", "None", "h"]), value("scalar", []), unranked])
    x, scalar, u = inspect(save(proto, tmp_path / "m.onnx")).inputs
    assert x.dims == (None, None, None, None, None, "h")
    assert scalar.static_shape == ()
    assert (u.dims, u.dtype, u.static_shape) == (None, "bfloat16", None)


def test_blank_names_vendor_operators_and_future_versions_are_reported_not_refused(tmp_path):
    nodes = [helper.make_node("FusedThing", ["x"], ["y", ""], domain="com.vendor"), helper.make_node("Relu", ["x"], ["z"])]
    proto = model(
        nodes,
        outputs=[value("y", None), value("", [1]), value("z", None)],
        opset_imports=[helper.make_opsetid("", 99), helper.make_opsetid("com.vendor", 1)],
        ir_version=99,
    )
    info = inspect(save(proto, tmp_path / "m.onnx"))
    assert [spec.name for spec in info.outputs] == ["y", "z"]
    assert info.operators == {"ai.onnx": ("Relu",), "com.vendor": ("FusedThing",)}
    assert (info.ir_version, info.opsets) == (99, {"ai.onnx": 99, "com.vendor": 1})


def test_string_inputs_are_seen_as_such(tmp_path):
    proto = model([helper.make_node("Identity", ["x"], ["y"])], [value("x", [1], TensorProto.STRING)])
    assert inspect(save(proto, tmp_path / "m.onnx")).inputs[0].dtype == "string"


def test_sequences_are_refused_by_name(tmp_path):
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [1])
    path = save(model(inputs=[sequence]), tmp_path / "m.onnx")
    with pytest.raises(InputError, match="input 's' is sequence, not a tensor"):
        inspect(path)


# --- files that are no models -----------------------------------------------------------------------------------

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (LFS, "Git LFS pointer"),
        (b"hello world, this is text\n" * 50, "not an ONNX model"),
        (b"<!DOCTYPE html><html>", "not an ONNX model"),
        (b'{"model": 1}', "not an ONNX model"),
        (b"PK\3\4rest of a zip", "not an ONNX model"),
        (b"\x08\x08", "no IR version, graph or outputs"),
        (bytes(1000), "not an ONNX model"),
        (b"\xff" * 100, "not an ONNX model"),
    ],
)
def test_other_files_are_refused(tmp_path, content, says):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    refused(path, says)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    refused(tmp_path / "m.onnx", "no such file")
    refused(tmp_path, "cannot be read")


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9, 0.9999])
def test_a_truncated_model_is_refused(tmp_path, share):
    data = magika().read_bytes()
    path = tmp_path / "m.onnx"
    path.write_bytes(data[: int(len(data) * share)])
    refused(path, "truncated or not an ONNX model")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_never_ends_in_anything_but_an_input_error(tmp_path_factory, data):
    proto = model(initializers=[onnx.numpy_helper.from_array(np.ones(9, np.float32), "w"), external("e", "e.bin")])
    content = bytearray(proto.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    path.write_bytes(content)
    with suppress(InputError):
        inspect(path)


@pytest.mark.parametrize("name", [b"e.bin", b"xxyy", b"axis"])
def test_a_name_that_is_no_text_is_refused(tmp_path, name):
    proto = model(inputs=[value("xxyy", ["axis"])], initializers=[external("e", "e.bin")])
    (tmp_path / "e.bin").write_bytes(bytes(16))
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString().replace(name, b"\x80" + name[1:]))
    with pytest.raises(InputError, match="not UTF-8 text"):
        inspect(path)


def test_endless_nesting_is_refused(tmp_path):
    content = b""
    for _ in range(5000):  # graph → node → attribute → graph …
        attribute = b"\x32" + _length(content) + content
        node = b"\x2a" + _length(attribute) + attribute
        content = b"\x0a" + _length(node) + node
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x08\x3a" + _length(content) + content)
    refused(path, "nested too deeply")


def _length(content: bytes) -> bytes:
    size, out = len(content), bytearray()
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size])


# --- external data ----------------------------------------------------------------------------------------------


def test_external_data_is_found_beside_the_model(tmp_path):
    tensors = [external(f"w.{i}", f"onnx::w.{i}") for i in range(20)]
    tensors.append(external("part", "./data/all.bin", offset=16, length=16))
    path = save(with_external(tensors), tmp_path / "deep" / "m.onnx")
    for i in range(20):
        weights(path.parent / f"onnx::w.{i}")
    weights(path.parent / "data" / "all.bin", 8)
    assert inspect(path).external_data == ("data/all.bin", *sorted(f"onnx::w.{i}" for i in range(20)))


def test_missing_and_short_external_data_is_named(tmp_path):
    path = save(with_external([external("w", "w.bin", offset=4)]), tmp_path / "m.onnx")
    refused(path, r"external data file 'w.bin' is missing \(tensor 'w' needs it\)")
    weights(tmp_path / "w.bin", 4)
    refused(path, "'w.bin' has 16 bytes; tensor 'w' needs 20: the file is truncated")
    (tmp_path / "w.bin").unlink()
    (tmp_path / "w.bin").mkdir()
    refused(path, "not a regular file")


@pytest.mark.parametrize("entries", [{"length": 15}, {"length": "x"}, {"offset": -1}, {"offset": "1" * 30}])
def test_nonsense_offsets_and_lengths_are_refused(tmp_path, entries):
    weights(tmp_path / "w.bin", 1000)
    refused(save(with_external([external("w", "w.bin", **entries)]), tmp_path / "m.onnx"), "external tensor 'w'")


def test_packed_four_bit_weights_need_half_a_byte_each(tmp_path):
    path = save(with_external([external("w", "w.bin", dims=(7,), dtype=TensorProto.INT4)]), tmp_path / "m.onnx")
    (tmp_path / "w.bin").write_bytes(b"1234")
    inspect(path)
    (tmp_path / "w.bin").write_bytes(b"123")
    refused(path, "needs 4")


def in_initializer(tensor):
    return with_external([tensor])


def in_attribute(tensor):
    return model([helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("Relu", ["x"], ["y"])])


def in_subgraph(tensor):
    branch = helper.make_graph([helper.make_node("Identity", ["w"], ["o"])], "b", [], [value("o", None)], initializer=[tensor])
    inner = helper.make_graph(
        [helper.make_node("If", ["c"], ["o"], then_branch=branch, else_branch=branch)], "i", [], [value("o", None)]
    )
    return model([helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)])


def in_function(tensor):
    proto = model()
    nodes = [helper.make_node("Constant", [], ["y"], value=tensor)]
    proto.functions.append(helper.make_function("f", "F", ["x"], ["y"], nodes, [helper.make_opsetid("", 17)]))
    return proto


def in_sparse(tensor):
    proto = model()
    proto.graph.sparse_initializer.add(values=tensor, dims=[9])
    return proto


PLACES = [in_initializer, in_attribute, in_subgraph, in_function, in_sparse]
ESCAPES = ["/proc/self/environ", "../../var/run/secrets/token", "a/../../b", "..", "..\\x", "\\x", "C:\\x", "a/.."]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", ESCAPES)
def test_locations_that_leave_the_folder_are_refused_wherever_they_are(tmp_path, place, location):
    refused(save(place(external("w", location)), tmp_path / "d" / "m.onnx"), "leaves the model's folder", "UnsafeModel")


@pytest.mark.parametrize("place", PLACES)
def test_external_data_is_found_wherever_it_is_declared(tmp_path, place):
    path = save(place(external("w", "w.bin")), tmp_path / "m.onnx")
    refused(path, r"'w.bin' is missing")
    weights(tmp_path / "w.bin")
    assert inspect(path).external_data == ("w.bin",)


def test_a_refused_location_is_never_opened(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opening it would block for ever
    refused(save(in_initializer(external("w", str(pipe))), tmp_path / "d" / "m.onnx"), "leaves", "UnsafeModel")
    refused(save(in_initializer(external("w", "pipe")), tmp_path / "m.onnx"), "not a regular file")


@pytest.mark.parametrize("location", ["", "a/", "m.onnx", "./m.onnx", "."])
def test_locations_that_name_no_other_file_are_refused(tmp_path, location):
    refused(save(in_initializer(external("w", location)), tmp_path / "m.onnx"), "external tensor 'w'")


def test_a_symbolic_link_out_of_the_folder_is_refused_and_one_within_is_not(tmp_path):
    secret = weights(tmp_path / "secret")
    path = save(in_initializer(external("w", "w.bin")), tmp_path / "d" / "m.onnx")
    (tmp_path / "d" / "w.bin").symlink_to(secret)
    refused(path, "symbolic link out")
    (tmp_path / "d" / "w.bin").unlink()
    (tmp_path / "d" / "dir").symlink_to(tmp_path)
    refused(save(in_initializer(external("w", "dir/secret")), path), "symbolic link out")
    weights(tmp_path / "d" / "..2024" / "w.bin")  # as Kubernetes mounts volumes
    (tmp_path / "d" / "w.bin").symlink_to("..2024/w.bin")
    assert inspect(save(in_initializer(external("w", "w.bin")), path)).external_data == ("w.bin",)


# --- digest -----------------------------------------------------------------------------------------------------


def test_the_digest_of_a_single_file_is_its_sha256():
    import hashlib

    assert digest(magika()) == hashlib.sha256(magika().read_bytes()).hexdigest()


def test_the_digest_is_of_content_not_of_folders_and_names(tmp_path):
    def written(folder, name="m.onnx", count=8, location="w.bin"):
        path = save(with_external([external("w", location)]), folder / name)
        weights(folder / location, count)
        return digest(path)

    first = written(tmp_path / "a")
    assert written(tmp_path / "b" / "c", "other.onnx") == first
    assert len({first, written(tmp_path / "d", count=9), written(tmp_path / "e", location="v.bin")}) == 3


# --- variants ---------------------------------------------------------------------------------------------------


def test_variants_must_have_the_models_interface(tmp_path):
    def info(name, **settings):
        return inspect(save(model(**settings), tmp_path / f"{name}.onnx"))

    base = info("base")
    check_variant(base, base, "same")
    check_variant(base, info("fixed", inputs=[value("x", [4, 3])]), "fixed")
    for settings_, says in [
        ({"inputs": [value("x", ["n", 3], TensorProto.FLOAT16)]}, r"variants\[v\]: input 'x' is float16"),
        ({"inputs": [value("x", ["n", 4])]}, r"\[n, 4\]; the model has float32 \[n, 3\]"),
        ({"inputs": [value("xx", ["n", 3])]}, "no input 'x'"),
        ({"outputs": [value("y", ["n", 3]), value("z", [1])]}, "has the output 'z'"),
    ]:
        with pytest.raises(InputError, match=says):
            check_variant(base, info("v", **settings_), "v")


# --- structure --------------------------------------------------------------------------------------------------


def layered(names: str = "", *, scale: float = 1.0, width: int = 4, first: str = "Relu", batch: object = "n") -> onnx.ModelProto:
    """MatMul, an activation, MatMul; all names end in `names`."""
    x, w, h, r, v, y = (f"{name}{names}" for name in "xwhrvy")
    nodes = [
        helper.make_node("MatMul", [x, w], [h]),
        helper.make_node(first, [h], [r]),
        helper.make_node("MatMul", [r, v], [y]),
    ]
    arrays = {w: np.full((3, width), scale, np.float32), v: np.full((width, 3), scale, np.float32)}
    return model(
        nodes,
        [value(x, [batch, 3])],
        [value(y, [batch, 3])],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )


def structure(proto: onnx.ModelProto, folder) -> str:
    return inspect(save(proto, folder / "m.onnx")).structure


def test_a_model_trained_again_or_exported_anew_has_the_same_structure(tmp_path):
    base = structure(layered(), tmp_path)
    for same in (layered(scale=2.0), layered("_new"), layered(batch=8)):
        assert structure(same, tmp_path) == base


def test_another_layer_width_or_wiring_is_another_structure(tmp_path):
    crossed = layered()
    crossed.graph.node[2].input[0] = "h"
    every = [layered(), layered(width=5), layered(first="Gelu"), crossed]
    assert len({structure(one, tmp_path) for one in every}) == len(every)


def test_operators_inside_subgraphs_count_for_the_structure_and_the_types(tmp_path):
    info = inspect(silero())
    assert "LSTM" in info.operator_types
    assert info.structure != inspect(magika()).structure
