"""Eats a container's memory from within its control group until the kernel kills the container's first process.

usage: hog.py PROCESS MEMORY_GROUP
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOM = 32 << 20
"""Bytes that are left to the container; what it caches of files is taken from it first."""
CHUNK = 4 << 20
SECONDS = 30


def main(process: int, group: Path) -> int:
    """0 when it is gone. Has to be in the same pid namespace."""
    old = group / "memory.usage_in_bytes"
    usage, limit = (old, "memory.limit_in_bytes") if old.exists() else (group / "memory.current", "memory.max")
    (group / limit).write_text(str(int(usage.read_text()) + ROOM))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    eaten = []
    give_up = time.monotonic() + SECONDS
    while time.monotonic() < give_up:
        if _gone(process):
            return 0
        _choose(process, group)
        eaten.append(os.urandom(1) * CHUNK)
        time.sleep(0.01)
    return 1


def _choose(process: int, group: Path) -> None:
    """The kernel takes this process first, and no other of the group."""
    for member in (group / "cgroup.procs").read_text().split():
        with suppress(OSError):
            Path(f"/proc/{member}/oom_score_adj").write_text("1000" if int(member) == process else "0")


def _gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
