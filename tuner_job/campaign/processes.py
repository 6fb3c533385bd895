"""Names of processes that tell, on the same machine, whether the process is gone."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import psutil

from tuner_job.trial import processes

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def own_id() -> str:
    """`<host>.<pid>.<start>`: unique to this process; a restarted pod or a reused pid gives another."""
    return id_of(os.getpid())


def id_of(pid: int) -> str:
    """What `own_id` is in a process of this machine; names none once it has ended."""
    return f"{_host()}.{pid}.{_start(pid)}"


def seconds_alive() -> float:
    """Wall time since this process was started, its interpreter's own start included."""
    return max(0.0, time.time() - psutil.Process().create_time())


def is_gone(worker_id: str) -> bool | None:
    """Whether the process of that name has ended; None when it runs (or ran) on another machine or before a reboot."""
    host, _, rest = worker_id.partition(".")
    pid, _, start = rest.partition(".")
    if host != _host() or not pid.isdigit():
        return None
    return _start(int(pid)) != start


def die_with_parent(parent: int) -> None:
    """SIGKILL this process when the parent's starting thread ends; exits at once if the parent is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def close_to_others() -> None:
    """Keep other processes of this user out of this one's memory and first environment, which hold the store's credentials.

    Children run models and engine libraries that nobody vetted; being dumpable again after their exec, they stay open to us.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _host() -> str:
    """Names this boot of this machine and this process namespace."""
    parts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        try:
            parts.append(Path(path).read_text().strip())
        except OSError:
            parts.append("")
    try:
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        parts.append("")
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]


def _start(pid: int) -> str:
    """Start of a process in clock ticks since boot, which setting the clock does not move; "" when there is none or a zombie."""
    process = processes.read(pid)
    return str(process.started) if process is not None and process.alive else ""
