"""References as users bring them: every form, every mistake."""

from __future__ import annotations

import os
import zipfile

import ml_dtypes
import numpy as np
import onnx
import pytest

from tuner_job.accuracy.user_references import import_user_references
from tuner_job.api.base import InputError
from tuner_job.api.child import ShapeCase
from tuner_job.api.tensors import TensorSpec

INPUTS = (TensorSpec(name="x", dtype="float32", dims=("n", 3)), TensorSpec(name="input:0", dtype="int64", dims=("n",)))
OUTPUTS = (TensorSpec(name="y", dtype="float32", dims=("n", 2)), TensorSpec(name="z/1", dtype="bool", dims=(None,)))
CASES = (
    ShapeCase(name="two", tensors={"x": (2, 3), "input:0": (2,)}),
    ShapeCase(
        name="four",
        tensors={"x": (4, 3), "input:0": (4,)},
        minimum={"x": (3, 3), "input:0": (3,)},
        maximum={"x": (9, 3), "input:0": (9,)},
    ),
)


def tensors(n=2, seed=0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((n, 3)).astype(np.float32),
        "input:0": rng.integers(0, 9, n),
        "y": rng.standard_normal((n, 2)).astype(np.float32),
        "z/1": rng.integers(0, 2, n + 1).astype(bool),
    }


def import_(source, tmp_path, cases=CASES[:1], **settings):
    return import_user_references(source, tmp_path / "out", cases, INPUTS, OUTPUTS, **settings)


def check(references, expected):
    """`expected`: label → tensors."""
    found = {sample.label: sample for sample in references}
    assert list(found) == list(expected)
    for label, arrays in expected.items():
        merged = {**found[label].inputs, **found[label].outputs}
        assert merged.keys() == arrays.keys()
        assert all(merged[k].dtype == arrays[k].dtype and np.array_equal(merged[k], arrays[k]) for k in arrays)


def refused(source, tmp_path, says, **settings):
    with pytest.raises(InputError, match=says) as error:
        import_(source, tmp_path, **settings)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".references-")]


# --- forms ------------------------------------------------------------------------------------------------------


def test_one_npz_file_is_one_sample(tmp_path):
    np.savez(tmp_path / "s.npz", **tensors())
    check(import_(tmp_path / "s.npz", tmp_path), {"two/s": tensors()})


def test_prefixes_tell_inputs_from_outputs(tmp_path):
    arrays = tensors()
    np.savez(tmp_path / "s.npz", **{f"{'input' if k in ('x', 'input:0') else 'output'}:{k}": a for k, a in arrays.items()})
    check(import_(tmp_path / "s.npz", tmp_path), {"two/s": arrays})


def test_several_npz_files_go_to_their_cases_in_natural_order(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    for index, n in ((10, 2), (2, 4), (1, 2), (3, 7)):
        np.savez_compressed(source / f"s{index}.npz", **tensors(n, index))
    references = import_(source, tmp_path, CASES)
    check(references, {"two/s1": tensors(2, 1), "two/s10": tensors(2, 10), "four/s2": tensors(4, 2), "four/s3": tensors(7, 3)})


@pytest.mark.parametrize("suffix", ["npy", "bin"])
@pytest.mark.parametrize("subfolders", [False, True])
def test_folders_of_arrays_with_encoded_names(tmp_path, suffix, subfolders):
    def write(folder, arrays):
        for key, array in arrays.items():
            part = folder / ("inputs" if key in ("x", "input:0") else "outputs") if subfolders else folder
            part.mkdir(parents=True, exist_ok=True)
            path = part / f"{key.replace('/', '%2F')}.{suffix}"
            np.save(path, array) if suffix == "npy" else array.tofile(path)

    write(tmp_path / "one", tensors())
    check(import_(tmp_path / "one", tmp_path), {"two/one": tensors()})
    (tmp_path / "out").rename(tmp_path / "first")
    write(tmp_path / "many" / "s2", tensors(2, 2))
    write(tmp_path / "many" / "s10", tensors(4, 10))
    check(import_(tmp_path / "many", tmp_path, CASES), {"two/s2": tensors(2, 2), "four/s10": tensors(4, 10)})


def write_pb(folder, arrays):
    folder.mkdir(parents=True)
    for kind, specs in (("input", INPUTS), ("output", OUTPUTS)):
        for index, spec in enumerate(specs):
            tensor = onnx.numpy_helper.from_array(arrays[spec.name], "any name")
            (folder / f"{kind}_{index}.pb").write_bytes(tensor.SerializeToString())


def test_onnx_test_data_sets(tmp_path):
    for index in (0, 1, 10):
        write_pb(tmp_path / "data" / f"test_data_set_{index}", tensors(2, index))
    expected = {f"two/test_data_set_{index}": tensors(2, index) for index in (0, 1, 10)}
    check(import_(tmp_path / "data", tmp_path), expected)


def test_one_onnx_test_data_set(tmp_path):
    write_pb(tmp_path / "test_data_set_3", tensors())
    check(import_(tmp_path / "test_data_set_3", tmp_path), {"two/test_data_set_3": tensors()})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int64", "bool"])
@pytest.mark.parametrize("form", ["npz", "raw", "pb"])
def test_element_types_in_every_form(tmp_path, dtype, form):
    value = np.array([1, 0, 1]).astype(np.dtype(dtype))
    specs = [TensorSpec(name=name, dtype=dtype, dims=(3,)) for name in "xy"]
    source = tmp_path / "s"
    if form == "npz":
        source = tmp_path / "s.npz"
        np.savez(source, x=value, y=value)  # numpy writes bfloat16 as void
    else:
        source.mkdir()
        if form == "raw":
            value.tofile(source / "x.raw")
            value.tofile(source / "y.dat")
        else:
            for kind in ("input", "output"):
                (source / f"{kind}_0.pb").write_bytes(onnx.numpy_helper.from_array(value).SerializeToString())
    references = import_user_references(source, tmp_path / "out", [ShapeCase(name="default")], specs[:1], specs[1:])
    sample = next(iter(references))
    assert sample.inputs["x"].dtype == value.dtype
    assert np.array_equal(sample.outputs["y"], value)


def test_fortran_order_and_big_endian_arrays_are_read_right(tmp_path):
    arrays = tensors()
    odd = {**arrays, "x": np.asfortranarray(arrays["x"]), "y": arrays["y"].astype(">f4")}
    np.savez(tmp_path / "s.npz", **odd)
    check(import_(tmp_path / "s.npz", tmp_path), {"two/s": arrays})


def test_only_the_chosen_outputs_are_needed_and_kept(tmp_path):
    arrays = tensors()
    del arrays["z/1"]
    np.savez(tmp_path / "s.npz", **arrays)
    check(import_(tmp_path / "s.npz", tmp_path, checked=("y",)), {"two/s": arrays})


def test_a_chosen_output_that_the_model_lacks_is_named(tmp_path):
    np.savez(tmp_path / "s.npz", **tensors())
    refused(
        tmp_path / "s.npz", tmp_path, r"accuracy.outputs: the model has no output 'z/2' \(did you mean 'z/1'", checked=("z/2",)
    )


def test_empty_outputs_are_legal(tmp_path):
    arrays = {**tensors(), "z/1": np.zeros(0, bool)}
    np.savez(tmp_path / "s.npz", **arrays)
    check(import_(tmp_path / "s.npz", tmp_path), {"two/s": arrays})


# --- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y": np.array([[1, np.nan], [0, 0]], np.float32)}, r"output y of sample s: holds NaN at \[0, 1\]"),
        ({"y": np.array([[1, 0], [np.inf, 0]], np.float32)}, r"holds Inf at \[1, 0\]"),
        ({"x": np.zeros((2, 3))}, r"\[x\]: input x is float64; the model has float32"),
        ({"y": np.zeros((2, 2), ml_dtypes.bfloat16)}, "output y is"),
        ({"x": np.zeros((2, 4), np.float32)}, r"shape \[2, 4\]; the model has float32 \[n, 3\]"),
        ({"x": np.zeros(2, np.float32)}, r"shape \[2\]"),
        ({"x": np.zeros((8, 3), np.float32)}, r"shapes of no case \(two: x \[2, 3\]"),
        ({"y": np.zeros((2, 3), np.float32)}, r"output y has the shape \[2, 3\]"),
        ({"y": None}, r"\[y\]: holds Python objects"),
        ({"y": np.array(["a", "b"])}, r"\[y\]: holds strings"),
        ({"yy": np.zeros(1)}, "'yy' is no input or output of the model .did you mean 'y'"),
        ({"output:yy": np.zeros(1)}, "'output:yy' is no input or output"),
        ({"output:y": np.zeros((2, 2), np.float32)}, "output 'y' is given twice"),
    ],
)
def test_a_wrong_array_is_named(tmp_path, change, says):
    np.savez(tmp_path / "s.npz", **{**tensors(), **change})
    refused(tmp_path / "s.npz", tmp_path, says)


@pytest.mark.parametrize("missing", ["x", "input:0", "y", "z/1"])
def test_a_missing_tensor_is_named(tmp_path, missing):
    arrays = tensors()
    del arrays[missing]
    np.savez(tmp_path / "s.npz", **arrays)
    refused(tmp_path / "s.npz", tmp_path, f"{missing!r} is missing")


def test_a_ragged_list_is_refused(tmp_path):
    ragged = np.empty(2, object)
    ragged[:] = [[1], [1, 2]]
    np.savez(tmp_path / "s.npz", **{**tensors(), "x": ragged})
    refused(tmp_path / "s.npz", tmp_path, r"\[x\]: holds Python objects")


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_nothing_is_ever_unpickled(tmp_path, suffix):
    evil = np.array([Evil(tmp_path / "marker")], object)
    source = tmp_path / "in"
    source.mkdir()
    if suffix == "npz":
        np.savez(source / "s.npz", **{**tensors(), "y": evil})
    else:
        np.save(source / "y.npy", evil)
    refused(source, tmp_path, "Python objects")
    assert not (tmp_path / "marker").exists()


def test_a_header_that_promises_too_much_costs_no_memory(tmp_path):
    np.savez(tmp_path / "s.npz", **tensors())
    with zipfile.ZipFile(tmp_path / "s.npz", "a") as archive, archive.open("w.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    specs = (*OUTPUTS, TensorSpec(name="w", dtype="float32", dims=(None,)))
    with pytest.raises(InputError, match="at most"):
        import_user_references(tmp_path / "s.npz", tmp_path / "out", CASES[:1], INPUTS, specs)


@pytest.mark.parametrize("damage", ["text", "cut", "empty", "not an array"])
def test_a_damaged_npz_is_one_clear_error(tmp_path, damage):
    path = tmp_path / "s.npz"
    np.savez(path, **tensors())
    data = path.read_bytes()
    if damage == "not an array":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", b"hello")
    else:
        path.write_bytes({"text": b"hello", "cut": data[: len(data) // 2], "empty": b""}[damage])
    refused(path, tmp_path, r"s\.npz.*not a readable")


def test_corrupt_data_in_an_npz_is_found(tmp_path):
    path = tmp_path / "s.npz"
    np.savez(path, **tensors())
    data = bytearray(path.read_bytes())
    position = data.find(tensors()["x"].tobytes())
    data[position] ^= 1
    path.write_bytes(data)
    refused(path, tmp_path, r"\[x\]: .*Bad CRC")


def test_a_truncated_npy_is_found(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    for key, array in tensors().items():
        np.save(source / f"{key.replace('/', '%2F')}.npy", array)
    data = (source / "y.npy").read_bytes()
    (source / "y.npy").write_bytes(data[:-1])
    refused(source, tmp_path, r"y\.npy: 15 bytes of data where 16")
    (source / "y.npy").write_bytes(data + b"\0")
    refused(source, tmp_path, "more than the 16 bytes")


def write_raw(folder, arrays):
    folder.mkdir()
    for key, array in arrays.items():
        array.tofile(folder / f"{key.replace('/', '%2F')}.bin")


@pytest.mark.parametrize("extra", [-1, 1])
def test_raw_sizes_must_match_exactly(tmp_path, extra):
    write_raw(tmp_path / "in", tensors())
    for name, says in (("y", "output y"), ("x", "input|shapes of no case")):
        path = tmp_path / "in" / f"{name}.bin"
        good = path.read_bytes()
        path.write_bytes(good[:-1] if extra < 0 else good + b"\0")
        refused(tmp_path / "in", tmp_path, says)
        path.write_bytes(good)


def test_twice_the_size_is_refused_too(tmp_path):
    write_raw(tmp_path / "in", tensors())
    path = tmp_path / "in" / "y.bin"
    path.write_bytes(path.read_bytes() * 2)
    refused(tmp_path / "in", tmp_path, "32 bytes; output y .* needs exactly 16")


def test_raw_files_that_fit_two_cases_are_refused(tmp_path):
    spec = TensorSpec(name="x", dtype="int8", dims=("h", "w"))
    cases = [ShapeCase(name="a", tensors={"x": (2, 8)}), ShapeCase(name="b", tensors={"x": (4, 4)})]
    write_raw(tmp_path / "in", {"x": np.zeros(16, np.int8), "y": np.zeros(3, np.int8)})
    with pytest.raises(InputError, match="fit the shape cases a, b alike"):
        import_user_references(tmp_path / "in", tmp_path / "out", cases, [spec], [TensorSpec(name="y", dtype="int8", dims=(3,))])


def test_raw_outputs_of_unknown_shape_are_refused(tmp_path):
    write_raw(tmp_path / "in", {"x": np.zeros(2, np.int8), "y": np.zeros(3, np.int8)})
    specs = [TensorSpec(name="x", dtype="int8", dims=(2,)), TensorSpec(name="y", dtype="int8", dims=("a", "b"))]
    with pytest.raises(InputError, match=r"use a \.npy file"):
        import_user_references(tmp_path / "in", tmp_path / "out", [ShapeCase(name="d")], specs[:1], specs[1:])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("input_0.pb", b"\xff\xff\xff", "not a readable ONNX tensor"),
        ("input_7.pb", b"", "only 2 inputs"),
        ("readme.txt", b"", "not a reference tensor"),
    ],
)
def test_a_wrong_file_in_a_test_data_set_is_named(tmp_path, name, content, says):
    write_pb(tmp_path / "test_data_set_0", tensors())
    (tmp_path / "test_data_set_0" / name).write_bytes(content)
    refused(tmp_path / "test_data_set_0", tmp_path, f"{name}: .*{says}")


def test_a_test_tensor_that_points_to_another_file_is_not_followed(tmp_path):
    write_pb(tmp_path / "s", tensors())
    tensor = onnx.numpy_helper.from_array(tensors()["x"])
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/proc/self/environ")
    (tmp_path / "s" / "input_0.pb").write_bytes(tensor.SerializeToString())
    refused(tmp_path / "s", tmp_path, "not followed")


def test_an_incomplete_test_data_set_is_refused(tmp_path):
    write_pb(tmp_path / "s", tensors())
    (tmp_path / "s" / "output_1.pb").unlink()
    refused(tmp_path / "s", tmp_path, "output 'z/1' is missing")


def test_sources_that_hold_nothing_or_a_mixture_are_refused(tmp_path):
    refused(tmp_path / "nowhere", tmp_path, "no such file")
    (tmp_path / "x.npy").write_bytes(b"")
    refused(tmp_path / "x.npy", tmp_path, r"not a \.npy file")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", tmp_path, "is empty")
    (tmp_path / "empty" / "sample").mkdir()
    refused(tmp_path / "empty", tmp_path, "sample: is empty")
    np.savez(tmp_path / "empty" / "s.npz", **tensors())
    refused(tmp_path / "empty", tmp_path, "not a mixture")


def test_every_case_needs_a_sample(tmp_path):
    np.savez(tmp_path / "s.npz", **tensors())
    refused(tmp_path / "s.npz", tmp_path, "no sample with the shapes of four", cases=CASES)


def test_a_case_needs_a_sample_of_the_very_shapes_it_is_timed_with(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    np.savez(source / "s1.npz", **tensors(7))
    refused(source, tmp_path, "no sample with the shapes of four", cases=CASES[1:])
    np.savez(source / "s2.npz", **tensors(4))
    check(import_(source, tmp_path, CASES[1:]), {"four/s1": tensors(7), "four/s2": tensors(4)})
