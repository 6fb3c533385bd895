"""A store in a folder of a POSIX file system.

Every object is written aside, synced to disk and then linked or renamed into place, so that a crash at any point leaves each
object whole. `create` is link(2), which fails if the name exists. Compare-and-swap is compare and rename under one flock(2) for
the store; everything that replaces or removes an object takes the same lock. The kernel drops the lock of a process that dies, so
none can be left behind. Works between processes of one machine and over file systems that pass on locks and hard links (NFS ≥ 4).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from tuner_job.api.base import TrtfleetError
from tuner_job.store.objects import (
    ASIDE,
    Content,
    Info,
    Object,
    ObjectStore,
    StoreFull,
    StoreNotConditional,
    StoreReadOnly,
    StoreUnavailable,
    check_key,
    corrupt,
    too_long,
)

LOCK_SECONDS = 30.0
"""How long to wait for another process that replaces an object; each holds the lock for a rename only."""
_LOCK = f"{ASIDE}lock"
_CHUNK = 1 << 20


class FolderStore(ObjectStore):
    def __init__(self, url: str, root: Path) -> None:
        self.url = url
        self._root = root

    def get(self, key: str, max_bytes: int) -> Object | None:
        with self._explain("read", key):
            file = self._open(key)
            if file is None:
                return None
            with file:
                size = os.fstat(file.fileno()).st_size
                if size > max_bytes:
                    raise too_long(self.url, key, size, max_bytes)
                data = file.read()
        return Object(data, _tag(data))

    def create(self, key: str, data: bytes) -> bool:
        with self._explain("write", key), self._aside(key, _writer(data)) as aside:
            target = self._path(key)
            try:
                os.link(aside, target)
            except FileExistsError:
                return self._holds(target, data)
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                    raise StoreNotConditional(
                        f"store {self.url}: its file system has no hard links, which claims need; choose another folder"
                    ) from None
                raise
            _sync_folder(target.parent)
            return True

    def put(self, key: str, data: bytes) -> None:
        with self._explain("write", key), self._aside(key, _writer(data)) as aside:
            self._replace(aside, self._path(key))

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        with self._explain("write", key), self._aside(key, _writer(data)) as aside, self._lock():
            target = self._path(key)
            try:
                current = target.read_bytes()
            except FileNotFoundError:
                return False
            if current == data:
                return True
            if _tag(current) != tag:
                return False
            aside.rename(target)
            _sync_folder(target.parent)
            return True

    def list(self, prefix: str) -> Iterator[Info]:
        if prefix:
            check_key(prefix)
        folders = [prefix]
        while folders:
            folder = folders.pop()
            with self._explain("list", folder or "everything"):
                found = self._scan(folder)
            for key, is_folder in found:
                if is_folder:
                    folders.append(key)
                elif (info := self.info(key)) is not None:
                    yield info

    def delete(self, key: str) -> None:
        path = self._path(key)
        if not self.exists(key):
            return
        with self._explain("delete", key), self._lock():
            path.unlink(missing_ok=True)
            _sync_folder(path.parent)

    def info(self, key: str) -> Info | None:
        with self._explain("read", key):
            try:
                found = self._path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
                return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return Info(key, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def put_file(self, key: str, path: Path, *, digest: str | None = None) -> Content:
        with path.open("rb") as source:
            content: list[Content] = []
            with (
                self._explain("write", key),
                self._aside(key, lambda target: content.append(copy_hashed(source, target))) as aside,
            ):
                if digest is not None and content[0].digest != digest:
                    raise corrupt(str(path), content[0].digest, digest)
                self._replace(aside, self._path(key))
        return content[0]

    def get_file(self, key: str, path: Path, *, digest: str | None = None, max_bytes: int | None = None) -> Content | None:
        with self._explain("read", key):
            source = self._open(key)
            if source is None:
                return None
            size = os.fstat(source.fileno()).st_size
        with source, written_aside(path) as target:
            if max_bytes is not None and size > max_bytes:
                raise too_long(self.url, key, size, max_bytes)
            content = copy_hashed(source, target)
            if digest is not None and content.digest != digest:
                raise corrupt(f"{key} in {self.url}", content.digest, digest)
        return content

    def sweep(self, older_than_seconds: float) -> int:
        swept = 0
        for folder, _, names in os.walk(self._root):
            for name in names:
                if not name.startswith(ASIDE) or name == _LOCK:
                    continue
                path = Path(folder, name)
                with self._explain("delete", name), contextlib.suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > older_than_seconds:
                        path.unlink()
                        swept += 1
        return swept

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _scan(self, folder: str) -> Sequence[tuple[str, bool]]:
        try:
            with os.scandir(self._root / folder) as entries:
                return [
                    (f"{folder}/{entry.name}" if folder else entry.name, entry.is_dir())
                    for entry in entries
                    if not entry.name.startswith(ASIDE)
                ]
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()
            return []

    def _open(self, key: str) -> BinaryIO | None:
        """None where no object is: nothing, a folder of objects, or something below an object."""
        try:
            return self._path(key).open("rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._check_root()
            return None

    def _check_root(self) -> None:
        if self._root.exists() and not self._root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def _replace(self, aside: Path, target: Path) -> None:
        with self._lock():
            aside.rename(target)
            _sync_folder(target.parent)

    def _holds(self, path: Path, data: bytes) -> bool:
        try:
            return path.stat().st_size == len(data) and path.read_bytes() == data
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _aside(self, key: str, write: Callable[[BinaryIO], object]) -> Iterator[Path]:
        """A synced file beside the key's own, removed unless renamed away."""
        folder = self._path(key).parent
        path = folder / f"{ASIDE}{secrets.token_hex(8)}"
        self._make(folder)
        try:
            with path.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _make(self, folder: Path) -> None:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            _sync_folder(each.parent)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        descriptor = os.open(self._root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            give_up = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up:
                        raise StoreUnavailable(
                            f"store {self.url}: another process has held {_LOCK} for {LOCK_SECONDS:.0f} s; is it suspended?"
                        ) from None
                    time.sleep(0.002)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _explain(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explained(error, verb, key) from error

    def _explained(self, error: OSError, verb: str, key: str) -> TrtfleetError:
        where = f"store {self.url}: cannot {verb} {key}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return StoreFull(f"{where}; make room, or choose another folder")
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) and verb in ("write", "delete"):
            return StoreReadOnly(f"{where}; make the folder writable for this user, or choose another")
        if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY):
            return StoreUnavailable(f"{where}; a file stands where a folder should be, or a folder where a file should be")
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
            return StoreNotConditional(
                f"{where}; its file system has no locks, which compare-and-swap needs; choose another folder"
            )
        return StoreUnavailable(f"{where}; check the folder and its disk")


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place, synced, when the block ends well and vanishes when it does not."""
    aside = path.parent / f"{ASIDE}{secrets.token_hex(8)}"
    try:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def copy_hashed(source: BinaryIO, target: BinaryIO) -> Content:
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(_CHUNK):
        target.write(chunk)
        digest.update(chunk)
        size += len(chunk)
    return Content(digest.hexdigest(), size)


def _writer(data: bytes) -> Callable[[BinaryIO], object]:
    return lambda file: file.write(data)


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
