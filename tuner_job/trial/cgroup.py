"""A cgroup (version 2) for one child, where the supervisor may make one.

It adds three things to the watchdog: limits that the kernel enforces at once, proof that the kernel's memory killer did it,
and an end to the whole group in one step. A parent that does not hand its controllers down leaves only the last.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path

import psutil

from tuner_job.api.child import Limits


@functools.cache
def own() -> Path | None:
    """Folder of this process's own cgroup; None without cgroup 2."""
    mount = next(
        (line.split()[4] for line in _lines("/proc/self/mountinfo") if line.partition(" - ")[2].startswith("cgroup2 ")), None
    )
    name = next((line.rstrip("\n")[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::")), None)
    if mount is None or name is None:
        return None
    path = Path(mount) / name.lstrip("/")
    return path if path.is_dir() else None


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.readlines()
    except OSError:
        return []


def oom_kills(group: Path | None) -> int:
    """How many processes the kernel's memory killer ended in the group and below; 0 where that is not counted."""
    if group is None:
        return 0
    for line in _lines(str(group / "memory.events")):
        name, _, count = line.partition(" ")
        if name == "oom_kill":
            return int(count)
    return 0


def path_of(name: str) -> Path | None:
    """Where `create` puts the group of that name, whether it is there or not; None without cgroup 2."""
    parent = own()
    return None if parent is None else parent / name


def create(name: str, limits: Limits, pid: int) -> Path | None:
    """A group below our own with as many of the limits as it can hold, and `pid` in it; None where that is not allowed."""
    group = path_of(name)
    if group is None:
        return None
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        remove(name)
        return None
    if limits.memory_bytes is not None:
        _set(group / "memory.max", str(limits.memory_bytes))
        _set(group / "memory.swap.max", "0")
        _set(group / "memory.oom.group", "1")
    if limits.processes is not None:
        _set(group / "pids.max", str(limits.processes + 1))  # one over the limit is what the watchdog sees and names
    return group


def memory_limit(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this process may use: the machine's, or its container's if that is less.

    Below `root` a container sees its own group (version 2), or its own one of each controller (version 1).
    """
    least = int(psutil.virtual_memory().total)
    for path in (root / "memory.max", root / "memory" / "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max", or not there
            least = min(least, int(path.read_text()))
    return least


def _set(path: Path, value: str) -> None:
    if path.exists():
        with contextlib.suppress(OSError):
            path.write_text(value)


def kill(group: Path | None) -> None:
    """End all in the group at once, where the kernel can (since 5.14)."""
    if group is not None:
        _set(group / "cgroup.kill", "1")


def remove(name: str, patience: float = 5.0) -> None:
    """Take the group away. The kernel says busy until its last process is gone, and for a moment longer."""
    group = path_of(name)
    if group is None:
        return
    deadline = time.monotonic() + patience
    while True:
        try:
            os.rmdir(group)
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.005)
        else:
            return
