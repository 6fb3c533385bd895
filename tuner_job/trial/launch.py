"""A child process from its start to the moment when it may begin."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from tuner_job.api.child import PHASE_FD, REQUEST_FILE, ChildRequest, Limits
from tuner_job.trial import cgroup
from tuner_job.trial.environment import child_environment
from tuner_job.trial.scratch import Scratch

_ABOVE = PHASE_FD + 1
"""Our ends of the pipes lie above the numbers that the child's ends get."""


class Child:
    """A child that waits, in its own session and scratch folder, for `begin`. Meanwhile it loads `backend` for `device`.

    Raises OSError when there is no space for its folder or no process can be made.
    """

    def __init__(
        self,
        command: Sequence[str],
        backend: str,
        device: Literal["CPU", "GPU"],
        root: Path,
        base: Mapping[str, str],
        extra: Mapping[str, str],
    ) -> None:
        self.loaded = (backend, device)
        self.group: Path | None = None
        with contextlib.ExitStack() as undo:
            self.scratch = Scratch(root)
            undo.callback(self.scratch.remove)
            go_read, self._go = _pipe(undo)
            self.phases, phases_write = _pipe(undo)
            self.output, output_write = _pipe(undo)
            for handle in (self.phases, self.output):
                os.set_blocking(handle, False)
            inner = {0: go_read, 1: output_write, 2: output_write, PHASE_FD: phases_write}
            self.pid = os.posix_spawn(
                command[0],
                [*command, str(self.scratch.path), "--wait", backend, "--device", device, "--parent", str(os.getpid())],
                child_environment(base, self.scratch.path, extra),
                file_actions=[(os.POSIX_SPAWN_DUP2, handle, number) for number, handle in inner.items()],
                setsid=True,
                setsigmask=(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
            try:
                self.exited = os.pidfd_open(self.pid)
                """Readable once the child has ended."""
            except OSError:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise
            undo.pop_all()
        for handle in {*inner.values()}:
            os.close(handle)

    def begin(self, request: ChildRequest, limits: Limits) -> None:
        """Set the limits that the kernel can keep, and let the child go. Raises OSError when the request cannot be written."""
        (self.scratch.path / REQUEST_FILE).write_bytes(request.to_json())
        with contextlib.suppress(ProcessLookupError):  # it died while it waited: its exit will say so
            resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, 0))
            if limits.disk_bytes is not None:
                resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (limits.disk_bytes, limits.disk_bytes))
            if limits.cpus is not None:
                _pin(self.pid, math.ceil(limits.cpus))
        self.group = cgroup.create(self.scratch.path.name, limits, self.pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go, b"\n")

    def close(self) -> None:
        """Give back everything but the process itself, which must have been reaped."""
        if self.group is not None:
            cgroup.remove(self.scratch.path.name)
        for handle in (self.phases, self.output, self._go, self.exited):
            os.close(handle)
        self.scratch.remove()


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    ends = []
    for low in os.pipe():
        try:
            ends.append(fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _ABOVE))
        finally:
            os.close(low)
        undo.callback(os.close, ends[-1])
    return ends[0], ends[1]


def _pin(pid: int, count: int) -> None:
    """Keep the process and the threads that it has already on the first `count` of our own CPUs.

    Not a quota: a quota stops the child in mid-inference, and that would be measured.
    """
    cpus = sorted(os.sched_getaffinity(0))[: max(1, count)]
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cpus)
