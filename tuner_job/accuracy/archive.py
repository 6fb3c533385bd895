"""A references folder as one file, so that it travels as one blob."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tuner_job.accuracy.references import MANIFEST, MAX_MANIFEST_BYTES, Manifest, References, load, new_folder
from tuner_job.api.base import InputError


def pack(folder: Path, archive: Path) -> None:
    """Write the references as one tar file: manifest first, then every tensor in the manifest's order.

    Equal references give equal bytes. Nothing else that lies in the folder is packed. Raises InputError.
    """
    manifest = load(folder).manifest
    aside = archive.with_name(f".{archive.name}.part")
    try:
        with tarfile.open(aside, "w", format=tarfile.GNU_FORMAT) as tar:
            content = manifest.to_json()
            tar.addfile(_member(MANIFEST, len(content)), io.BytesIO(content))
            for name, entry in manifest.files():
                path = folder / name
                if not path.is_file() or path.stat().st_size != entry.size:
                    raise InputError(f"{path} ({entry.name}): missing, or not the {entry.size} bytes that {MANIFEST} says")
                with path.open("rb") as file:
                    tar.addfile(_member(name, entry.size), file)
        aside.rename(archive)
    finally:
        aside.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path) -> References:
    """The inverse of `pack`: `folder` appears whole or not at all.

    No path of the archive is ever used: the manifest says which files must follow, in which order and of which size.
    Raises InputError for any other archive. Arrays are checked against their digests when they are read.
    """
    if not archive.is_file():
        raise InputError(f"{archive}: no such references archive")
    with new_folder(folder) as aside:
        try:
            with tarfile.open(archive, "r|") as tar:
                manifest = _unpack(tar, aside, str(archive))
        except (tarfile.TarError, EOFError) as error:
            raise InputError(f"{archive}: not a readable references archive: {error}") from None
    return References(folder, manifest)


def _unpack(tar: tarfile.TarFile, folder: Path, where: str) -> Manifest:
    members = iter(tar)
    first = next(members, None)
    if first is None or first.name != MANIFEST or first.type != tarfile.REGTYPE or first.size > MAX_MANIFEST_BYTES:
        raise InputError(f"{where}: not a references archive: it does not begin with {MANIFEST}")
    (folder / MANIFEST).write_bytes(_content(tar, first).read())
    manifest = load(folder).manifest
    for name, entry in manifest.files():
        _extract(tar, members, folder / name, name, entry.size, where)
    if (extra := next(members, None)) is not None:
        raise InputError(f"{where}: holds {extra.name!r}, which its {MANIFEST} does not list")
    return manifest


def _extract(tar: tarfile.TarFile, members: Iterator[tarfile.TarInfo], path: Path, name: str, size: int, where: str) -> None:
    member = next(members, None)
    if member is None or (member.name, member.type, member.size) != (name, tarfile.REGTYPE, size):
        found = "ends" if member is None else f"holds {member.name!r} of {member.size} bytes"
        raise InputError(f"{where}: {found} where {name} of {size} bytes must be")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        shutil.copyfileobj(_content(tar, member), file)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    assert content is not None  # regular files only
    return content


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)  # owner, mode and time keep their fixed defaults
    member.size = size
    return member
