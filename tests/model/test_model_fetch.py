"""Where models come from."""

from __future__ import annotations

import subprocess
import sys

import pytest
from model_files import detector, external, magika, model, save, silero, weights, with_external

from tuner_job.api.base import InputError
from tuner_job.model.digest import digest, digest_files
from tuner_job.model.fetch import fetch
from tuner_job.model.inspect import inspect


class Bucket:
    """A store in a dict that remembers what was asked for."""

    def __init__(self, objects):
        self.objects, self.asked = objects, []

    def download(self, uri, path):
        self.asked.append(uri)
        if uri not in self.objects:
            return False
        path.write_bytes(self.objects[uri])
        return True


def test_local_files_are_used_where_they_are(tmp_path):
    path = save(model(), tmp_path / "jobs" / "m é%20.onnx")
    assert fetch("m é%20.onnx", tmp_path / "scratch", base=path.parent) == path
    assert fetch(str(path), tmp_path / "scratch") == path
    assert fetch(path.as_uri(), tmp_path / "scratch") == path
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("", "empty"),
        ("nothing.onnx", "nothing.onnx is missing"),
        (".", "is a folder"),
        ("file://host/m.onnx", "three slashes"),
        ("s3://bucket/m.onnx", "nothing to read s3://"),
        ("package://", "expected package://"),
        ("package://magika", "expected package://"),
        ("package://magika/../x.onnx", "expected package://"),
        ("package://magika//etc/passwd", "expected package://"),
        ("package://os.path/x.onnx", "expected package://"),
        ("package://no_such_package/x.onnx", "no Python package 'no_such_package' is installed"),
        ("package://json/x.onnx", "x.onnx is missing"),
        ("package://this/x.onnx", "no Python package"),
    ],
)
def test_wrong_uris_are_one_clear_error(tmp_path, uri, says):
    with pytest.raises(InputError, match=says) as error:
        fetch(uri, tmp_path / "scratch", base=tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("package://magika/models/standard_v3_3/model.onnx", magika),
        ("package://rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", detector),
        ("package://silero_vad/data/silero_vad.onnx", silero),
    ],
)
def test_models_in_packages_are_found_without_importing_them(tmp_path, uri, path):
    package = uri.split("/")[2]
    assert fetch(uri, tmp_path) == path()
    assert package not in sys.modules


def test_a_package_is_found_without_running_its_code(tmp_path, monkeypatch):
    save(model(), tmp_path / "booby_trap" / "m.onnx")
    (tmp_path / "booby_trap" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert fetch("package://booby_trap/m.onnx", tmp_path / "scratch") == tmp_path / "booby_trap" / "m.onnx"


# --- remote -----------------------------------------------------------------------------------------------------


def bucket(tensors, **changes) -> Bucket:
    objects = {"s3://b/nested/prefix/m.onnx": with_external(tensors).SerializeToString()}
    objects |= {f"s3://b/nested/prefix/{t.external_data[0].value}": bytes(16) for t in tensors}
    return Bucket({**objects, **{f"s3://b/nested/prefix/{key}": data for key, data in changes.items()}})


def test_every_declared_file_is_fetched_by_exact_key_the_model_first(tmp_path):
    names = [f"onnx::layer.{i}%20 é+#?x" for i in range(200)] + ["sub/w.bin"]
    reader = bucket([external(f"w{i}", name) for i, name in enumerate(names)])
    reader.objects["s3://b/nested/prefix/m.onnx.bak"] = b"neighbour"
    path = fetch("s3://b/nested/prefix/m.onnx", tmp_path, reader)
    assert reader.asked == ["s3://b/nested/prefix/m.onnx", *(f"s3://b/nested/prefix/{name}" for name in sorted(names))]
    assert inspect(path).external_data == tuple(sorted(names))
    assert sorted(str(p.relative_to(path.parent)) for p in path.parent.rglob("*") if p.is_file()) == sorted([*names, "m.onnx"])


@pytest.mark.parametrize("missing", ["m.onnx", "w7.bin"])
def test_a_missing_key_is_named_and_nothing_is_left(tmp_path, missing):
    reader = bucket([external(f"w{i}", f"w{i}.bin") for i in range(9)])
    del reader.objects[f"s3://b/nested/prefix/{missing}"]
    with pytest.raises(InputError, match=rf"nested/prefix/{missing}"):
        fetch("s3://b/nested/prefix/m.onnx", tmp_path, reader)
    assert list(tmp_path.iterdir()) == []


def test_neighbours_of_a_key_are_not_taken_for_it(tmp_path):
    data = model().SerializeToString()
    reader = Bucket({"s3://b/m.onnx": data, "s3://b/m.onnx.bak": b"x", "s3://b/m-v2/m.onnx": data, "s3://b/m/": b""})
    with pytest.raises(InputError, match="s3://b/m: no such object"):
        fetch("s3://b/m", tmp_path, reader)
    for uri in ("s3://b/m/", "s3://b"):
        with pytest.raises(InputError, match="names no object"):
            fetch(uri, tmp_path, reader)
    assert reader.asked == ["s3://b/m"]


def test_unsafe_locations_are_refused_before_they_are_asked_for(tmp_path):
    reader = Bucket({"s3://b/m.onnx": with_external([external("w", "../other/w.bin")]).SerializeToString()})
    with pytest.raises(InputError, match="leaves the model's folder"):
        fetch("s3://b/m.onnx", tmp_path, reader)
    assert reader.asked == ["s3://b/m.onnx"]


@pytest.mark.parametrize(
    ("change", "says"),
    [({"w.bin": bytes(15)}, "truncated"), ({"m.onnx": b""}, "is empty"), ({"m.onnx": b"hello there"}, "not an ONNX model")],
)
def test_damaged_objects_are_refused_and_nothing_is_left(tmp_path, change, says):
    with pytest.raises(InputError, match=says):
        fetch("s3://b/nested/prefix/m.onnx", tmp_path, bucket([external("w", "w.bin")], **change))
    assert list(tmp_path.iterdir()) == []


def test_a_failing_reader_leaves_nothing(tmp_path):
    class Broken(Bucket):
        def download(self, uri, path):
            if uri.endswith("w.bin"):
                raise ConnectionResetError
            return super().download(uri, path)

    with pytest.raises(ConnectionResetError):
        fetch("s3://b/nested/prefix/m.onnx", tmp_path, Broken(bucket([external("w", "w.bin")]).objects))
    assert list(tmp_path.iterdir()) == []


def test_same_content_is_kept_once_and_other_content_apart(tmp_path):
    one, two = bucket([external("w", "w.bin")]), bucket([external("w", "w.bin")], **{"w.bin": b"1" * 16})
    uri = "s3://b/nested/prefix/m.onnx"
    first = fetch(uri, tmp_path, one)
    assert fetch(uri, tmp_path, one) == first
    other = fetch(uri, tmp_path, two)
    assert (first.parent / "w.bin").read_bytes() != (other.parent / "w.bin").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_locations_that_cannot_both_exist_are_refused(tmp_path):
    with pytest.raises(InputError, match="no possible path"):
        fetch("s3://b/nested/prefix/m.onnx", tmp_path, bucket([external("w", "w"), external("v", "w/v")]))
    assert list(tmp_path.iterdir()) == []


def test_very_long_keys_work(tmp_path):
    uri = f"s3://b/{'k' * 900}.onnx"
    assert inspect(fetch(uri, tmp_path, Bucket({uri: model().SerializeToString()}))).inputs


# --- digest -----------------------------------------------------------------------------------------------------


def test_an_expected_digest_is_checked_wherever_the_model_is(tmp_path):
    path = save(with_external([external("w", "w.bin")]), tmp_path / "m.onnx")
    weights(tmp_path / "w.bin")
    reader = Bucket({"s3://b/m.onnx": path.read_bytes(), "s3://b/w.bin": (tmp_path / "w.bin").read_bytes()})
    for uri in (str(path), "s3://b/m.onnx"):
        fetch(uri, tmp_path / "scratch", reader, digest=digest(path))
        fetch(uri, tmp_path / "scratch", reader, digest=f"sha256:{digest(path).upper()}")
        with pytest.raises(InputError, match=f"its digest is {digest(path)}, not 000") as error:
            fetch(uri, tmp_path / "other", reader, digest="0" * 64)
        assert error.value.reason == "ModelChanged"
    assert not list((tmp_path / "other").iterdir())


def test_digests_of_references_are_what_common_tools_print(tmp_path):
    folder = tmp_path / "refs"
    for name, data in (("b/input.npy", b"1"), ("b/output.npy", b"2"), ("a.npz", b"3"), ("B.npz", b"4")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    script = "sha256sum a.npz; find * -type f | LC_ALL=C sort | xargs sha256sum | sha256sum"
    printed = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True).stdout.split()
    assert (digest_files(folder / "a.npz"), digest_files(folder)) == (printed[0], printed[2])
