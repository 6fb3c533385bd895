"""Brings a model's files to this machine.

models/net.onnx, /models/net.onnx, file:///models/net.onnx   used where they are
package://magika/models/standard_v3_3/model.onnx             a file of an installed Python package, which is not imported
s3://bucket/models/net.onnx, …                               through a Reader: exact keys, never a listing
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import Protocol
from urllib.parse import unquote, urlsplit

from tuner_job.api.base import InputError, digest_of
from tuner_job.model.digest import digest as digest_model
from tuner_job.model.external import external_tensors, locations
from tuner_job.model.skeleton import read_skeleton


class Reader(Protocol):
    """Reads whole objects of a remote store."""

    def download(self, uri: str, path: Path) -> bool:
        """Write the object with exactly this URI to the new file `path`; False if there is no such object.

        `uri` is `<scheme>://<bucket>/<key>`; the key is taken as it stands, nothing in it is percent-encoded or normalised.
        Raises TrtfleetError if the store cannot be used.
        """
        ...


def fetch(uri: str, folder: Path, reader: Reader | None = None, *, base: Path | None = None, digest: str | None = None) -> Path:
    """Path of the ONNX file at `uri`, its external data beside it.

    Local files stay where they are and are not changed; a relative path starts at `base` (the job file's folder). Remote files
    go to a new folder inside `folder` that appears whole or not at all. Checks `digest`, if given, against the content.
    Raises InputError, naming the key, for anything missing, unsafe or different.
    """
    scheme = urlsplit(uri).scheme if "://" in uri else ""
    if scheme in ("", "file"):
        path = _local(uri, base or Path.cwd())
    elif scheme == "package":
        path = _packaged(uri)
    elif reader is None:
        raise InputError(f"model {uri}: there is nothing to read {scheme}:// with; use a path, file:// or package://")
    else:
        return _remote(uri, folder, reader, digest)
    if not path.is_file():
        raise InputError(f"model {uri}: {path} is {'a folder' if path.is_dir() else 'missing'}; expected an ONNX file")
    if digest is not None:
        _check_digest(digest_model(path), uri, digest)
    return path


def _local(uri: str, base: Path) -> Path:
    if not uri:
        raise InputError("model.uri: empty; give the path or URI of an ONNX file")
    if not uri.startswith("file:"):
        return base / uri
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise InputError(f"model {uri}: file:// takes three slashes and an absolute path, as in file:///models/net.onnx")
    return Path(unquote(parts.path))


def _packaged(uri: str) -> Path:
    package, _, inner = uri.removeprefix("package://").partition("/")
    if not package.isidentifier() or not inner or ".." in PurePosixPath(inner).parts or inner.startswith("/"):
        raise InputError(f"model {uri}: expected package://<import name>/<path inside the package>")
    try:
        spec = importlib.util.find_spec(package)  # of a top-level name: finds it without running any of its code
    except ValueError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"model {uri}: no Python package {package!r} is installed here; install it, or check the import name")
    candidates = [Path(root) / inner for root in spec.submodule_search_locations]
    return next((path for path in candidates if path.is_file()), candidates[0])


def _remote(uri: str, folder: Path, reader: Reader, digest: str | None) -> Path:
    parent, _, name = uri.rpartition("/")
    if not name or parent.endswith(":/"):
        raise InputError(f"model {uri}: names no object; give the exact key of the ONNX file")
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(mkdtemp(prefix=".fetch-", dir=folder))
    try:
        path = staging / (name if len(os.fsencode(name)) <= 200 and name not in (".", "..") else "model.onnx")
        if not reader.download(uri, path):
            raise InputError(f"model {uri}: no such object")
        for location in locations(external_tensors(read_skeleton(path), path)):
            sidecar = staging / location
            try:
                sidecar.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"model {uri}: its external data {location!r} has no possible path: {error.strerror}") from None
            if not reader.download(f"{parent}/{location}", sidecar):
                raise InputError(f"model {uri}: its external data {parent}/{location} is missing; upload it beside the model")
        content = digest_model(path)
        _check_digest(content, uri, digest)
        target = folder / digest_of([content, path.name])[:20]
        if not target.exists():  # the same content was fetched before
            staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target / path.name


def _check_digest(actual: str, uri: str, expected: str | None) -> None:
    if expected is not None and expected.removeprefix("sha256:").lower() != actual:
        raise InputError(
            f"model {uri}: its digest is {actual}, not {expected}; it changed, or model.digest is wrong", reason="ModelChanged"
        )
