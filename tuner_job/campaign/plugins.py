"""Brings plugin libraries here. They are code that children will run, so nothing is used that was not checked."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tuner_job.api.base import InputError
from tuner_job.api.inputs import PluginInput
from tuner_job.model.digest import digest_files
from tuner_job.model.fetch import Reader
from tuner_job.store import layout


class PluginChanged(InputError):
    """The library is not the one that the job names."""

    reason = "PluginChanged"


def fetch_plugin(plugin: PluginInput, folder: Path, remote: Reader, where: str) -> Path:
    """A copy of the library in the new `folder`, with the digest that the job names, for its owner to read and run.

    `where` opens messages. Raises InputError, PluginChanged.
    """
    path = folder / layout.part(plugin.uri.rpartition("/")[2])
    folder.mkdir(parents=True)
    if urlsplit(plugin.uri).scheme in ("", "file"):
        _copy(plugin.uri, path, where)
    elif not remote.download(plugin.uri, path):
        raise InputError(f"{where}: {plugin.uri} does not exist")
    path.chmod(0o500)
    if (actual := digest_files(path)) != plugin.digest:
        raise PluginChanged(
            f"{where}: {plugin.uri} has digest {actual}, not {plugin.digest}; it changed, or its digest in the job is wrong"
        )
    return path


def _copy(uri: str, path: Path, where: str) -> None:
    source = Path(unquote(urlsplit(uri).path)) if uri.startswith("file:") else Path(uri)
    try:
        shutil.copyfile(source, path)
    except OSError as error:
        raise InputError(f"{where}: {source} cannot be read: {error.strerror}") from None
