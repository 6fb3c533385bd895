"""Runs one child at a time and survives whatever it does.

A trial leaves nothing behind: no process (also none that cut itself loose), no open file, no folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tuner_job.api.base import InputError
from tuner_job.api.child import MAX_REPORT_BYTES, REPORT_FILE, ChildReport, ChildRequest, Limits, Phase
from tuner_job.api.outcome import Outcome
from tuner_job.trial import cgroup, processes
from tuner_job.trial.capture import Capture
from tuner_job.trial.ending import Cause, Evidence, Verdict, judge
from tuner_job.trial.launch import Child
from tuner_job.trial.scratch import sweep

CHILD_COMMAND = (sys.executable, "-P", "-m", "tuner_job.backends.child")

MAX_INFRASTRUCTURE_TRIES = 3
"""How often a trial may end as `infrastructure` before its caller gives it up."""

_OUTPUT = "output"
_TICK = 0.05
_MEASURE_TICK = 0.25
"""Seconds between two looks at a child. Fewer while it measures, since looking costs CPU time that would be measured."""
_SIZE_EVERY = 20
"""Looks at the scratch folder's size take at most one part in so many of the time."""
_CHUNK = 1 << 16
_LONGEST_LINE = 4096


@dataclass(frozen=True)
class TrialEnd:
    """How a trial ended."""

    outcome: Outcome
    """FEASIBLE when the report is ok and free of problems: the accuracy gate is the caller's."""
    phase: Phase
    """The phase in which it ended."""
    reason: str = ""
    """One line, at most 2,000 characters: why it is not feasible."""
    bad_input: bool = False
    """No candidate could work (model, shapes, references or backend are wrong); `reason` says why. `outcome` is `refused`."""
    stopped: bool = False
    """Ended because `stop` was set; `outcome` is `infrastructure`."""
    report: ChildReport | None = None
    """What the child reported; None unless it exited 0 by itself and the report is whole."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time per phase, and `total` (clean-up included)."""
    log: str = ""
    """What the child and its descendants printed: first and last half of `Limits.log_bytes`."""
    peak_memory_bytes: int = 0
    """Largest memory of the tree that the watchdog saw."""
    child_pid: int | None = None

    @property
    def retriable(self) -> bool:
        """Whether another try of the same trial makes sense: the trial is not at fault, and nobody wants it stopped."""
        return self.outcome is Outcome.INFRASTRUCTURE and not self.stopped


class Supervisor:
    """Runs children under a scratch root. Several threads may share one: their trials follow one another.

    Per process, trials never overlap (neighbours disturb timing, and stragglers could not be told apart).
    """

    _one_at_a_time: ClassVar[threading.Lock] = threading.Lock()
    _spares: ClassVar[set[int]] = set()
    """Pids of the spares of all supervisors of this process."""

    def __init__(
        self,
        root: Path,
        *,
        extra_environment: Mapping[str, str] | None = None,
        grace_seconds: float = 2.0,
        warm: bool = False,
        command: Sequence[str] = CHILD_COMMAND,
    ) -> None:
        """`root` is made if absent, and swept of what dead supervisors left.

        `warm` keeps a spare child that has loaded the backend of the last request; it serves only while the thread that ran
        that request lives, since the kernel ends a child with the thread that started it. `grace_seconds` lie between SIGTERM
        and SIGKILL for a child that went over a deadline or is stopped.

        Raises InputError if the root cannot be used.
        """
        try:
            root.mkdir(parents=True, exist_ok=True)
            sweep(root)
        except OSError as error:
            raise InputError(f"scratch folder {root}: {error.strerror}; choose one that can be written") from None
        processes.adopt_stragglers()
        self._root = root
        self._extra = dict(extra_environment or {})
        self._grace = grace_seconds
        self._warm = warm
        self._command = tuple(command)
        self._spare: Child | None = None

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the spare child. The supervisor may be used again."""
        with self._one_at_a_time:
            self._drop_spare()

    def run(
        self,
        request: ChildRequest,
        limits: Limits,
        *,
        on_phase: Callable[[Phase], None] | None = None,
        stop: threading.Event | None = None,
        drain_seconds: float = 0.0,
    ) -> TrialEnd:
        """Run one child to its end.

        `request.output`, if not empty, names a folder that is empty or does not exist; it is filled, in one step, only when
        the report is ok. `on_phase` is called in this thread with every phase that begins. Once `stop` is set the trial may
        go on for `drain_seconds`. Raises InputError for an output folder that holds something; what `on_phase` raises passes
        through after the clean-up, as does KeyboardInterrupt.
        """
        if request.output and os.path.lexists(request.output) and not _is_empty(Path(request.output)):
            raise InputError(f"output folder {request.output}: is not an empty folder")
        with self._one_at_a_time:
            began = time.monotonic()
            try:
                child = self._take_spare(request.backend) or self._launch(request.backend)
            except OSError as error:
                return TrialEnd(Outcome.INFRASTRUCTURE, Phase.START, f"the child could not be started: {error}")
            trial = _Trial(child, limits, self._grace, on_phase, stop, drain_seconds)
            try:
                end = self._supervise(trial, request)
            finally:
                trial.clean_up(self._known())
                self._wake_spare()
            end.seconds["total"] = time.monotonic() - began
            return end

    def _supervise(self, trial: _Trial, request: ChildRequest) -> TrialEnd:
        child = trial.child
        output = child.scratch.path / _OUTPUT
        before = cgroup.oom_kills(cgroup.own())
        report: ChildReport | None = None
        try:
            output.mkdir()
            child.begin(request.model_copy(update={"output": str(output)}), trial.limits)
        except OSError as error:
            verdict = Verdict(Outcome.INFRASTRUCTURE, Phase.START, f"the request could not be written: {error}")
        else:
            cause, limit = trial.watch(self._known, self._phase_began(request.backend))
            oom_kills = cgroup.oom_kills(child.group) or cgroup.oom_kills(cgroup.own()) - before
            exit_code, immortal = trial.end(self._known())
            problem = ""
            if cause is None and exit_code == 0:
                report, problem = _read_report(child.scratch.path / REPORT_FILE)
                if report is not None and (problem := _lacks(report, request, output)):
                    report = None
            verdict = judge(
                Evidence(
                    phase=trial.phase,
                    exit_code=exit_code,
                    report=report,
                    report_problem=problem,
                    cause=cause,
                    limit=limit,
                    oom_kills=oom_kills,
                    scratch_full=child.scratch.is_full(),
                )
            )
            if immortal:
                pids = ", ".join(str(process.pid) for process in immortal)
                verdict = Verdict(Outcome.INFRASTRUCTURE, trial.phase, f"processes that cannot be killed are left: {pids}")
            if request.output and report is not None and verdict.outcome in (Outcome.FEASIBLE, Outcome.INVALID_OUTPUT):
                try:
                    _move(output, Path(request.output))
                except OSError as error:
                    verdict = Verdict(
                        Outcome.INFRASTRUCTURE, trial.phase, f"output could not be moved to {request.output}: {error}"
                    )
        return TrialEnd(
            outcome=verdict.outcome,
            phase=verdict.phase,
            reason=" ".join(verdict.reason.split())[:2000],
            bad_input=verdict.bad_input,
            stopped=trial.stopped,
            report=report,
            seconds={phase.value: seconds for phase, seconds in trial.spent.items()},
            log=trial.log.text(),
            peak_memory_bytes=trial.peak,
            child_pid=child.pid,
        )

    def _launch(self, backend: str) -> Child:
        return Child(self._command, backend, self._root, os.environ, self._extra)

    def _known(self) -> frozenset[int]:
        return frozenset(self._spares)

    def _phase_began(self, backend: str) -> Callable[[Phase], None]:
        """The spare is made while the child builds (or at the end, if it never does), and holds still while it measures."""

        def began(phase: Phase) -> None:
            if not self._warm:
                return
            if self._spare is None and phase in (Phase.BUILD, Phase.LOAD):
                with contextlib.suppress(OSError):  # the next trial will say what is wrong
                    self._spare = self._launch(backend)
                    self._spares.add(self._spare.pid)
            if self._spare is not None:
                os.kill(self._spare.pid, signal.SIGSTOP if phase is Phase.MEASURE else signal.SIGCONT)

        return began

    def _wake_spare(self) -> None:
        if self._spare is not None:
            os.kill(self._spare.pid, signal.SIGCONT)

    def _take_spare(self, backend: str) -> Child | None:
        """The spare, if it lives and has loaded this backend."""
        spare = self._spare
        if spare is None:
            return None
        process = processes.read(spare.pid)
        if spare.backend != backend or process is None or not process.alive:
            self._drop_spare()
            return None
        self._spare = None
        self._spares.discard(spare.pid)
        return spare

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            self._spares.discard(spare.pid)
            processes.end_family(self._known())
            spare.close()


class _Trial:
    """One child under watch."""

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

    def watch(self, known: Callable[[], frozenset[int]], began: Callable[[Phase], None]) -> tuple[Cause | None, str]:
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


def _read_report(path: Path) -> tuple[ChildReport | None, str]:
    """The report, or why there is none. The file is the child's: it may be anything, of any size."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, "left no report"
    except OSError as error:
        return None, f"its report cannot be opened: {error.strerror}"
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return None, "its report is not a regular file"
        if status.st_size > MAX_REPORT_BYTES:
            return None, f"its report has {status.st_size} bytes (limit {MAX_REPORT_BYTES})"
        data = file.read(MAX_REPORT_BYTES + 1)
    try:
        return ChildReport.from_json(data, where="its report cannot be used"), ""
    except InputError as error:
        return None, str(error)[:500]


def _lacks(report: ChildReport, request: ChildRequest, output: Path) -> str:
    """What a report that says ok does not hold though the operation promises it; "" if nothing."""
    if report.status != "ok":
        return ""
    operation = request.operation
    if operation == "describe":
        missing = report.device is None or report.knobs is None or not report.versions
    elif operation == "time":
        missing = set(report.timings) != set(request.engines) or any(
            len(t) != len(request.cases) for t in report.timings.values()
        )
    elif operation == "reference":
        missing = not any(output.iterdir())
    else:
        engine = output / "engine"
        built = report.engine is not None and report.losses is not None and engine.is_file()
        missing = not built or (report.engine is not None and engine.stat().st_size != report.engine.size)
        valid = report.losses is not None and not report.losses.problems
        missing = missing or (operation == "trial" and valid and len(report.timing) != len(request.cases))
    return f"its report says ok without all that `{operation}` promises" if missing else ""


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _move(source: Path, target: Path) -> None:
    """Rename, or copy beside the target and rename, so that the target appears whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except OSError:
        aside = Path(tempfile.mkdtemp(prefix=".output-", dir=target.parent))
        try:
            shutil.copytree(source, aside, symlinks=True, dirs_exist_ok=True)
            aside.chmod(0o755)
            aside.rename(target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
