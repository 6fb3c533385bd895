"""Everything that a trial's child started, found and ended.

The supervisor is a *child subreaper*: whatever a trial leaves behind (also after a double fork) becomes the supervisor's own
child. A trial's child leads a session of its own, and no process can ever enter a foreign session. So while a trial runs, the
direct children of the supervisor that are in another session are exactly the trial's child and its stragglers, less those
that the supervisor knows (the spare). The supervising process must therefore start nothing else with a session of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_PR_SET_CHILD_SUBREAPER = 36
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """One line of `/proc/<pid>/stat`."""

    pid: int
    state: str
    parent: int
    session: int
    threads: int
    started: int
    """Clock ticks since boot; with the pid it names one process for ever."""
    resident: int
    """Bytes, shared pages included."""

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def adopt_stragglers() -> None:
    """Make this process the parent of its descendants' orphans. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(code)}")


def read(pid: int) -> Process | None:
    """None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name may hold anything, also ")"
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        threads=int(fields[17]),
        started=int(fields[19]),
        resident=int(fields[21]) * _PAGE,
    )


def _children(pid: int) -> Iterator[int]:
    """Needs CONFIG_PROC_CHILDREN. Costs as much as the process has threads, whatever else runs on the machine."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/task/{thread}/children") as file:
                yield from map(int, file.read().split())


def _everyone() -> list[Process]:
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [process for process in found if process is not None]


_HAVE_CHILDREN_FILES = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def family(known: Collection[int] = (), *, thorough: bool = False) -> list[Process]:
    """The trial's processes, zombies included: foreign-session children of this process that are not `known`, and all below them.

    `thorough` reads the whole process table, which misses nobody who sits still; without it a process whose parent ends
    just now may be missed once.
    """
    own = os.getsid(0)
    table: dict[int, list[Process]] = {}
    if thorough or not _HAVE_CHILDREN_FILES:
        for process in _everyone():
            table.setdefault(process.parent, []).append(process)

        def children(pid: int) -> list[Process]:
            return table.get(pid, [])
    else:

        def children(pid: int) -> list[Process]:
            found = (read(child) for child in _children(pid))
            return [process for process in found if process is not None]

    waiting = [process for process in children(os.getpid()) if process.session != own and process.pid not in known]
    members: dict[int, Process] = {}
    while waiting:
        process = waiting.pop()
        if process.pid not in members:
            members[process.pid] = process
            waiting.extend(children(process.pid))
    return list(members.values())


def resident(processes: Collection[Process], limit: int | None) -> int:
    """Bytes of memory of all of them.

    The plain sum counts shared pages once per process. Only when that would break the limit is the exact (and slow)
    proportional share read.
    """
    total = sum(process.resident for process in processes)
    if limit is None or total <= limit or len(processes) < 2:
        return total
    return sum(_proportional(process) for process in processes)


def _proportional(process: Process) -> int:
    try:
        with open(f"/proc/{process.pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except (OSError, StopIteration):
        return process.resident


def send(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process: never one that got its pid later."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno == errno.ESRCH:
            return
        raise
    try:
        now = read(process.pid)
        if now is not None and now.started == process.started:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def end_family(known: Collection[int], patience: float = 30.0) -> tuple[dict[int, int], list[Process]]:
    """Kill and reap all of `family(known)`.

    Returns the exit codes of those that were direct children (negative: the signal), and who would not die in time (a process
    in an uninterruptible call of a driver). Stopping first keeps a fork bomb from outrunning its hunter.
    """
    codes: dict[int, int] = {}
    deadline = time.monotonic() + patience
    pause = 0.001
    while True:
        members = family(known, thorough=True)
        if not members or time.monotonic() > deadline:
            return codes, members
        living = [process for process in members if process.alive]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in living:
                send(process, number)
        for process in members:
            if process.parent == os.getpid():
                with contextlib.suppress(ChildProcessError):
                    pid, status = os.waitpid(process.pid, os.WNOHANG)
                    if pid:
                        codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(0.05, pause * 2)


def marked(mark: str) -> list[Process]:
    """Processes of any parent whose environment at their start held `mark` (`NAME=value`)."""
    wanted = mark.encode()
    found = []
    for process in _everyone():
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.append(process)
    return found
