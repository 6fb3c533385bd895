"""Model and reference files that lie in an object store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tuner_job.api.base import InputError
from tuner_job.store.objects import ObjectStore


class RemoteModels:
    """Downloads by exact URI (a model.fetch.Reader). The artifact store's options serve URIs of its own scheme."""

    def __init__(self, store_url: str, options: Mapping[str, str]) -> None:
        self._scheme = store_url.partition("://")[0]
        self._options = dict(options)
        self._opened: dict[str, ObjectStore] = {}

    def download(self, uri: str, path: Path) -> bool:
        """Write the object to the new file `path`; False if there is none. Raises TrtfleetError."""
        store, key = self._at(uri)
        return store.get_file(key, path) is not None

    def download_folder(self, uri: str, folder: Path) -> None:
        """Everything below `uri`, names kept. Raises InputError when there is nothing."""
        store, prefix = self._at(uri.rstrip("/"))
        keys = sorted(info.key for info in store.list(prefix))
        if not keys:
            raise InputError(f"{uri}: there is no object below it")
        for key in keys:
            path = folder / key.removeprefix(prefix + "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            store.get_file(key, path)

    def _at(self, uri: str) -> tuple[ObjectStore, str]:
        scheme, _, rest = uri.partition("://")
        bucket, _, key = rest.partition("/")
        if not bucket or not key:
            raise InputError(f"{uri}: expected <scheme>://<bucket>/<key>")
        base = f"{scheme}://{bucket}"
        if base not in self._opened:
            self._opened[base] = ObjectStore.open(base, self._options if scheme == self._scheme else None)
        return self._opened[base], key
