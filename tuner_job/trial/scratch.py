"""Scratch folders: locked by the process that made them for as long as it lives, swept by the next one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tuner_job.api.base import InputError
from tuner_job.trial import cgroup, processes
from tuner_job.trial.environment import SCRATCH_VARIABLE

_PREFIX = "trtfleet-"
"""Only folders of this name are ever swept: the root may be shared with others."""
_FULL_BELOW = 1 << 20
"""A file system with fewer free bytes counts as full: libraries fail in strange ways before the last byte is gone."""


class Scratch:
    """A fresh folder. The kernel drops the lock when its maker dies, however it dies; `sweep` then may remove the folder."""

    def __init__(self, root: Path, what: str = "trial") -> None:
        """`what` is for people who look into `root`. Raises OSError."""
        with _locked(root):  # or a sweep could come between the folder and its lock
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{what}-", dir=root)).resolve()
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.rmdir(self.path)
                raise

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def size(self) -> int:
        """Bytes on disk of everything inside."""
        total = 0
        waiting = [str(self.path)]
        while waiting:
            with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
        return total

    def is_full(self) -> bool:
        """Whether the file system has no space or no inodes left (`f_files` is 0 where inodes are not counted)."""
        usage = os.fstatvfs(self._lock)  # the folder itself may be gone
        return usage.f_bavail * usage.f_frsize < _FULL_BELOW or (usage.f_files > 0 and usage.f_favail == 0)

    def remove(self) -> None:
        """Take the folder away and drop the lock. Whatever cannot be removed now is left, unlocked, to the next sweep."""
        _remove(self.path)
        os.close(self._lock)


def prepare(root: Path) -> None:
    """Make the root if it is absent, and sweep it. Raises InputError if it cannot be used."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        sweep(root)
    except OSError as error:
        raise InputError(f"scratch folder {root}: {error.strerror}; choose one that can be written") from None


def sweep(root: Path) -> list[Path]:
    """Remove the scratch folders whose makers are dead, ending what still runs in their name; returns the folders."""
    swept: list[Path] = []
    if not root.is_dir():
        return swept
    with _locked(root):
        for path in sorted(root.resolve().glob(f"{_PREFIX}*")):
            try:
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            else:
                for process in processes.marked(f"{SCRATCH_VARIABLE}={path}"):
                    processes.send(process, signal.SIGKILL)
                cgroup.kill(cgroup.path_of(path.name))
                cgroup.remove(path.name)
                _remove(path)
                swept.append(path)
            finally:
                os.close(lock)
    return swept


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Take away all that can be, also what a child closed to itself. Every folder is moved to the top before it is emptied, so
    that no depth is too deep."""
    folders = [str(path)]
    for folder in folders:  # grows meanwhile
        with contextlib.suppress(OSError):
            os.chmod(folder, stat.S_IRWXU)
            with os.scandir(folder) as found:
                entries = list(found)
            for entry in entries:
                with contextlib.suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
                        continue
                    flat = f"{path}/.{len(folders)}.gone" if folder != str(path) else entry.path
                    os.chmod(entry.path, stat.S_IRWXU)  # its ".." is about to change
                    os.rename(entry.path, flat)
                    folders.append(flat)
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
