"""The references folder and its archive."""

from __future__ import annotations

import io
import json
import tarfile
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner_job.accuracy.archive import pack, unpack
from tuner_job.accuracy.references import Sample, load, save
from tuner_job.accuracy.weakness import warnings
from tuner_job.api.base import InputError

HARD_NAMES = ["onnx::Conv_1", "input:0", "a,b", "x y", "../x", "/etc/passwd", "é", "n" * 300, "a/b", "a_b", "."]


def sample(case="a", name="0", value=1.0, **outputs) -> Sample:
    return Sample(case, name, {"x": np.full((2, 3), value, np.float32)}, outputs or {"y": np.arange(4.0) * value})


def same(one: Sample, other: Sample) -> bool:
    pairs = [(one.inputs, other.inputs), (one.outputs, other.outputs)]
    return (one.case, one.name) == (other.case, other.name) and all(
        a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]) for k in a) for a, b in pairs
    )


@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "int8", "int64", "uint16", "bool"],
)
def test_every_type_shape_and_name_comes_back(tmp_path, dtype):
    shapes = [(), (0, 6), (3,), (2, 1, 2)]
    tensors = {name: np.ones(shapes[i % 4]).astype(np.dtype(dtype)) for i, name in enumerate(HARD_NAMES)}
    written = [Sample(case, name, tensors, tensors) for case in ("../c", "c/0") for name in ("0", "/tmp")]
    save(tmp_path / "r", written)
    read = load(tmp_path / "r")
    assert len(read) == 4
    assert all(same(a, b) for a, b in zip(written, read, strict=True))
    assert {path.name for path in tmp_path.iterdir()} == {"r"}


def test_big_endian_and_transposed_arrays_are_stored_alike(tmp_path):
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    odd = np.asfortranarray(plain.astype(">f4"))
    one = save(tmp_path / "1", [Sample("a", "0", {}, {"y": plain})])
    two = save(tmp_path / "2", [Sample("a", "0", {}, {"y": odd})])
    assert one.digest == two.digest


def test_digest_depends_on_content_alone(tmp_path):
    first = save(tmp_path / "1", [sample(y=np.ones(2), z=np.zeros(2))])
    again = save(tmp_path / "deep" / "2", [sample(z=np.zeros(2), y=np.ones(2))])
    assert first.digest == again.digest == load(tmp_path / "deep" / "2").digest
    variants = [
        sample(y=np.ones(2), z=np.full(2, 1e-300)),
        sample(y=np.ones(2), z=np.zeros(2, np.float32)),
        sample(y=np.ones(2), z=np.zeros((2, 1))),
        sample(y=np.ones(2), zz=np.zeros(2)),
        sample(name="1", y=np.ones(2), z=np.zeros(2)),
        sample(value=2.0, y=np.ones(2), z=np.zeros(2)),
    ]
    digests = {save(tmp_path / f"v{i}", [variant]).digest for i, variant in enumerate(variants)}
    assert len(digests | {first.digest}) == len(variants) + 1


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([], "no samples"),
        ([sample(), sample()], "there twice"),
        ([sample(), sample(name="1", w=np.ones(1))], "same tensors"),
        ([sample(y=np.array([1.0, np.nan]))], "output y of sample a/0 holds NaN"),
        ([sample(y=np.array([np.nan, 1], ml_dtypes.bfloat16))], "holds NaN"),
        ([sample(y=np.array(["a"]))], "not supported"),
        ([sample(y=np.array([None]))], "not supported"),
        ([Sample("a", "0", {}, {})], "no outputs"),
    ],
)
def test_what_cannot_be_a_reference_is_refused_and_leaves_nothing(tmp_path, samples, says):
    with pytest.raises(InputError, match=says):
        save(tmp_path / "r", samples)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_never_overwritten(tmp_path):
    save(tmp_path / "r", [sample()])
    with pytest.raises(InputError, match="exists already"):
        save(tmp_path / "r", [sample(value=2.0)])


def test_a_changed_or_truncated_array_is_found_when_read(tmp_path):
    references = save(tmp_path / "r", [sample()])
    path = tmp_path / "r" / "0" / "0" / "outputs" / "0.bin"
    data = path.read_bytes()
    path.write_bytes(b"\1" + data[1:])
    with pytest.raises(InputError, match=r"\(y\): its content is not"):
        list(references)
    path.write_bytes(data[:-1])
    with pytest.raises(InputError, match="truncated"):
        list(references)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        list(references)


def test_not_a_references_folder_is_one_clear_error(tmp_path):
    with pytest.raises(InputError, match=r"no manifest\.json"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="cases"):
        load(tmp_path)


def test_memory_is_bounded_by_one_sample(tmp_path):
    one = np.ones(1 << 18)  # 2 MiB
    save(tmp_path / "r", (Sample("a", str(i), {}, {"y": one + i}) for i in range(20)))
    tracemalloc.start()
    try:
        total = sum(float(s.outputs["y"][0]) for s in load(tmp_path / "r"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == sum(range(1, 21))
    assert peak < 10 << 20


# --- archive ----------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), min_size=1, max_size=4, unique=True))
def test_pack_and_unpack_are_inverse_and_deterministic(tmp_path_factory, keys):
    tmp_path = tmp_path_factory.mktemp("archive")
    samples = [Sample(case, name, {"x": np.ones(2)}, {"y": np.arange(3)}) for case, name in keys]
    original = save(tmp_path / "r", samples)
    (tmp_path / "r" / "stray").write_text("not packed")
    pack(tmp_path / "r", tmp_path / "1.tar")
    copy = unpack(tmp_path / "1.tar", tmp_path / "copy")
    pack(tmp_path / "copy", tmp_path / "2.tar")
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    assert copy.digest == original.digest
    assert all(same(a, b) for a, b in zip(original, copy, strict=True))


def members(tmp_path):
    save(tmp_path / "r", [sample()])
    pack(tmp_path / "r", tmp_path / "good.tar")
    with tarfile.open(tmp_path / "good.tar") as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]


def write(path, content):
    with tarfile.open(path, "w") as tar:
        for member, data in content:
            tar.addfile(member, io.BytesIO(data) if member.isreg() else None)


def hostile(name, kind=tarfile.REGTYPE, link="", data=b"x"):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, len(data) if kind == tarfile.REGTYPE else 0
    return member, data


@pytest.mark.parametrize("position", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "member",
    [
        hostile("../escaped"),
        hostile("/tmp/escaped-references"),
        hostile("0/0/inputs/1.bin"),
        hostile("0/0/inputs/0.bin", tarfile.SYMTYPE, "/etc/passwd"),
        hostile("0/0/inputs/0.bin", tarfile.LNKTYPE, "../escaped"),
        hostile("manifest.json", tarfile.FIFOTYPE),
    ],
)
def test_an_archive_with_anything_else_is_refused_whole(tmp_path, position, member):
    content = members(tmp_path)
    content.insert(position, member)
    write(tmp_path / "bad.tar", content)
    with pytest.raises(InputError, match=r"bad\.tar"):
        unpack(tmp_path / "bad.tar", tmp_path / "sub" / "out")
    assert list((tmp_path / "sub").iterdir()) == []
    assert not (tmp_path / "escaped").exists()


def test_truncated_reordered_and_foreign_archives_are_refused(tmp_path):
    content = members(tmp_path)
    data = (tmp_path / "good.tar").read_bytes()
    (tmp_path / "short.tar").write_bytes(data[: len(content[0][1]) + 1100])
    (tmp_path / "text.tar").write_text("hello")
    (tmp_path / "empty.tar").write_bytes(b"")
    write(tmp_path / "reordered.tar", [content[0], content[2], content[1]])
    write(tmp_path / "fewer.tar", content[:-1])
    for name in ("short", "text", "empty", "reordered", "fewer", "missing"):
        with pytest.raises(InputError, match=name):
            unpack(tmp_path / f"{name}.tar", tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_manifest_that_promises_another_size_is_refused(tmp_path):
    content = members(tmp_path)
    manifest = json.loads(content[0][1])
    manifest["cases"][0]["samples"][0]["inputs"][0]["shape"] = [1 << 30]
    content[0] = hostile("manifest.json", data=json.dumps(manifest).encode())
    write(tmp_path / "bad.tar", content)
    with pytest.raises(InputError, match="must be"):
        unpack(tmp_path / "bad.tar", tmp_path / "out")


# --- warnings ---------------------------------------------------------------------------------------------------


def good(count=4) -> list[Sample]:
    rng = np.random.default_rng(0)
    return [Sample("a", str(i), {"x": rng.standard_normal(3)}, {"y": rng.standard_normal(5)}) for i in range(count)]


def test_good_references_give_no_warning(tmp_path):
    references = save(tmp_path / "r", good())
    for metric in ("l0", "l1", "l2", "lInf", "cosine"):
        assert warnings(references, metric=metric, threshold=0.01) == []


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        (good(1), "only one sample"),
        ([Sample("a", str(i), {"x": np.ones(2)}, {"y": np.arange(3.0)}) for i in range(3)], "repeat the inputs"),
        ([Sample("a", str(i), {"x": np.full(2, i)}, {"y": np.arange(3.0)}) for i in range(3)], "the same in every sample"),
        (
            [Sample("a", str(i), {**s.inputs, "mask": np.zeros(3, np.int64)}, s.outputs) for i, s in enumerate(good())],
            "input mask",
        ),
        ([Sample("a", str(i), s.inputs, {"y": np.full(5, float(i))}) for i, s in enumerate(good())], "same value in all"),
    ],
)
def test_degenerate_references_are_named(tmp_path, samples, says):
    assert any(says in line for line in warnings(save(tmp_path / "r", samples)))


def test_references_that_a_constant_engine_would_pass_are_named(tmp_path):
    nearly = [Sample("a", str(i), {"x": np.full(2, i)}, {"y": 5 + np.arange(4) * 1e-4 * i}) for i in range(4)]
    references = save(tmp_path / "r", nearly)
    assert any("always answers the mean" in line for line in warnings(references, metric="cosine", threshold=0.01))
    assert warnings(references, metric="l0", threshold=0.01) == []


def test_cosine_of_single_elements_is_named(tmp_path):
    single = [Sample("a", str(i), {"x": np.full(2, i)}, {"y": np.array([float(i + 1)])}) for i in range(3)]
    references = save(tmp_path / "r", single)
    assert any("only the sign" in line for line in warnings(references, metric="cosine", threshold=0.01))
