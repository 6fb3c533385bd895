"""The engine file: an uncompressed zip of a model, its external data and the settings of its session.

`session.json` comes first, then `model.onnx`, then external data by name. Times and permissions are fixed, so equal contents
give equal bytes.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path, PurePosixPath
from typing import Literal

from tuner_job.api.base import InputError, Model
from tuner_job.backends.onnxruntime.settings import GraphSettings, LoadSettings

SESSION = "session.json"
MODEL = "model.onnx"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can say
_MAX_SESSION_BYTES = 1 << 20
_CHUNK = 1 << 22


class SessionFile(Model):
    """`session.json`."""

    format: Literal[1] = 1
    onnxruntime: str
    """Version that built it."""
    device: Literal["CPU", "GPU"]
    load: LoadSettings
    graph: GraphSettings | None = None
    """None: the model is optimised already. Otherwise it is the source model and is optimised when loading."""


def pack(engine: Path, session: SessionFile, model: Path, data: dict[str, Path]) -> None:
    """Write the engine file aside, then rename it.

    `data` maps the locations that the model names to files.
    """
    aside = engine.with_name(f".{engine.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_entry(SESSION), session.to_json())
            for name, path in [(MODEL, model), *sorted(data.items())]:
                with archive.open(_entry(name), "w", force_zip64=True) as target, path.open("rb") as source:
                    shutil.copyfileobj(source, target, _CHUNK)
        aside.replace(engine)
    finally:
        aside.unlink(missing_ok=True)


def unpack(engine: Path, folder: Path, device: Literal["CPU", "GPU"]) -> SessionFile:
    """Write the model and its data into `folder`; returns the settings.

    Raises InputError for anything that `pack` did not write (other formats, damaged members, names that leave the folder), and
    for an engine of another kind of device.
    """
    try:
        with zipfile.ZipFile(engine) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if SESSION not in members or MODEL not in members or members[SESSION].file_size > _MAX_SESSION_BYTES:
                raise InputError(f"{engine.name}: not an ONNX Runtime engine of trtfleet (no {SESSION} and {MODEL} in it)")
            session = SessionFile.from_json(archive.read(SESSION), where=f"{engine.name}: {SESSION}")
            if session.device != device:
                raise InputError(f"{engine.name}: built for a {session.device}, but this worker runs on a {device}")
            for name, info in members.items():
                if not is_inside(name):
                    raise InputError(f"{engine.name}: member {name!r} would leave the folder; refusing the engine")
                if name == SESSION:
                    continue
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(info) as source, target.open("wb") as out:
                    shutil.copyfileobj(source, out, _CHUNK)
    except (zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"{engine.name}: not an engine file, or a damaged one: {error}") from None
    return session


def is_inside(name: str) -> bool:
    """Whether a relative POSIX path stays in its folder."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o644 << 16
    return entry
