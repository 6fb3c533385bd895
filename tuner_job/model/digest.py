"""The digest that identifies a model's content."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tuner_job.api.base import InputError, digest_of
from tuner_job.model.external import check_files, external_tensors, locations
from tuner_job.model.skeleton import read_skeleton


def digest(path: Path) -> str:
    """SHA-256 of a model, lower-case hex; the same in every folder and under every name.

    For a model in one file this is what `sha256sum` prints. With external data it is the SHA-256 of the canonical JSON
    [digest of the ONNX file, [location, digest], …], locations sorted. Files are streamed. Raises InputError as `inspect` does
    for files that are no model, or are missing or too short.
    """
    external = external_tensors(read_skeleton(path), path)
    check_files(external, path)
    own = _sha256(path)
    if not external:
        return own
    return digest_of([own, *([location, _sha256(path.parent / location)] for location in locations(external))])


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def digest_files(path: Path) -> str:
    """Digest of one file, as `sha256sum` prints it, or of all files below a folder: the same wherever they lie.

    A folder's is the SHA-256 of what `sha256sum` prints for its files by relative path, sorted.
    """
    if path.is_file():
        return _sha256(path)
    total = hashlib.sha256()
    for name in sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()):
        total.update(f"{_sha256(path / name)}  {name}\n".encode())
    return total.hexdigest()
