"""One child under watch: its output, its phases, its limits."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable

from tuner_job.api.child import Limits, Phase
from tuner_job.trial import cgroup, processes
from tuner_job.trial.capture import Capture
from tuner_job.trial.ending import Cause
from tuner_job.trial.launch import Child

_TICK = 0.05
_MEASURE_TICK = 0.25
"""Seconds between two looks at a child. Fewer while it measures, since looking costs CPU time that would be measured."""
_SIZE_EVERY = 20
"""Looks at the scratch folder's size take at most one part in so many of the time."""
_CHUNK = 1 << 16
_LONGEST_LINE = 4096


class Watch:
    """From the moment when a child may begin to the moment when nothing of it runs any more."""

    def __init__(
        self,
        child: Child,
        limits: Limits,
        grace: float,
        on_phase: Callable[[Phase], None] | None,
        stop: threading.Event | None,
        drain_seconds: float,
    ) -> None:
        self.child = child
        self.limits = limits
        self.log = Capture(limits.log_bytes)
        self.phase = Phase.START
        self.spent: dict[Phase, float] = {}
        self.peak = 0
        self.stopped = False
        self._grace = grace
        self._on_phase = on_phase
        self._stop = stop
        self._drain_seconds = drain_seconds
        self._stop_seen: float | None = None
        self._since = time.monotonic()
        self._line = b""
        self._next_size = 0.0
        self._ended = False

    def follow(self, known: Callable[[], frozenset[int]], began: Callable[[Phase], None]) -> tuple[Cause | None, str]:
        """Until the child exits, or has to be ended: returns why, and the limit in words."""
        with selectors.DefaultSelector() as selector:
            for handle in (self.child.exited, self.child.output, self.child.phases):
                selector.register(handle, selectors.EVENT_READ)
            next_look = 0.0
            while True:
                tick = _MEASURE_TICK if self.phase is Phase.MEASURE else _TICK
                ready = {key.fd for key, _ in selector.select(max(0.0, next_look - time.monotonic()))}
                if self.child.output in ready and not self._drain_output():
                    selector.unregister(self.child.output)
                if self.child.phases in ready:
                    phases, open_still = self._drain_phases()
                    if not open_still:
                        selector.unregister(self.child.phases)
                    for phase in phases:
                        self._begin(phase)
                        began(phase)
                        if self._on_phase is not None:
                            self._on_phase(phase)
                if self.child.exited in ready:
                    return None, ""
                now = time.monotonic()
                if now >= next_look:
                    if (found := self._look(now, known())) is not None:
                        return found
                    next_look = time.monotonic() + tick

    def _look(self, now: float, known: frozenset[int]) -> tuple[Cause, str] | None:
        limits = self.limits
        deadline = limits.phase_seconds.get(self.phase)
        if deadline is not None and self.spent.get(self.phase, 0.0) + now - self._since > deadline:
            return self._terminate(Cause.DEADLINE, f"{deadline:g}")
        if self._stop is not None and self._stop.is_set():
            self._stop_seen = self._stop_seen or now
            if now - self._stop_seen >= self._drain_seconds:
                self.stopped = True
                return self._terminate(Cause.STOPPED, "")
        members = [process for process in processes.family(known) if process.alive]
        memory = processes.resident(members, limits.memory_bytes)
        self.peak = max(self.peak, memory)
        if limits.memory_bytes is not None and memory > limits.memory_bytes:
            return Cause.MEMORY, str(limits.memory_bytes)
        if limits.processes is not None and sum(process.threads for process in members) > limits.processes:
            return Cause.PROCESSES, str(limits.processes)
        if limits.disk_bytes is not None and now >= self._next_size:
            if self.child.scratch.size() > limits.disk_bytes:
                return Cause.DISK, str(limits.disk_bytes)
            took = time.monotonic() - now
            self._next_size = now + max(4 * _TICK, _SIZE_EVERY * took)
        return None

    def _terminate(self, cause: Cause, limit: str) -> tuple[Cause, str]:
        """Ask politely: the child's fault handler then prints where it stands. `end` does not ask."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGTERM)
            os.killpg(self.child.pid, signal.SIGCONT)
        deadline = time.monotonic() + self._grace
        with selectors.DefaultSelector() as selector:
            selector.register(self.child.exited, selectors.EVENT_READ)
            selector.register(self.child.output, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                ready = {key.fd for key, _ in selector.select(left)}
                if self.child.output in ready and not self._drain_output():
                    selector.unregister(self.child.output)
                if self.child.exited in ready:
                    break
        return cause, limit

    def end(self, known: frozenset[int]) -> tuple[int | None, list[processes.Process]]:
        """Kill whatever still runs; returns the child's exit code and who would not die."""
        cgroup.kill(self.child.group)
        codes, immortal = processes.end_family(known)
        self._ended = True
        self._begin(self.phase)
        self._drain_output()
        return codes.get(self.child.pid), immortal

    def clean_up(self, known: frozenset[int]) -> None:
        if not self._ended:
            processes.end_family(known)
        self.child.close()

    def _begin(self, phase: Phase) -> None:
        now = time.monotonic()
        self.spent[self.phase] = self.spent.get(self.phase, 0.0) + now - self._since
        self.phase, self._since = phase, now

    def _drain_output(self) -> bool:
        """Take what is there, but no more than a pipe holds, so that a child that never stops talking does not keep us here."""
        for _ in range(16):
            try:
                data = os.read(self.child.output, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.log.feed(data)
        return True

    def _drain_phases(self) -> tuple[list[Phase], bool]:
        """The phases announced, and whether more can come. What is no announcement is passed over."""
        try:
            data = os.read(self.child.phases, _CHUNK)
        except BlockingIOError:
            return [], True
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[-_LONGEST_LINE:]
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                found.append(Phase(json.loads(line[:_LONGEST_LINE])["phase"]))
        return found, bool(data)
