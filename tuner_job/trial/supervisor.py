"""Runs one child at a time and survives whatever it does.

A trial leaves nothing behind: no process (also none that cut itself loose), no open file, no folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tuner_job.api.base import InputError
from tuner_job.api.child import REPORT_FILE, ChildReport, ChildRequest, Limits, Phase
from tuner_job.api.outcome import Outcome
from tuner_job.trial import cgroup, processes
from tuner_job.trial.ending import Evidence, Verdict, judge
from tuner_job.trial.launch import Child
from tuner_job.trial.leavings import is_empty, lacks, move, read_report
from tuner_job.trial.scratch import prepare
from tuner_job.trial.watch import Watch

CHILD_COMMAND = (sys.executable, "-P", "-m", "tuner_job.backends.child")

MAX_INFRASTRUCTURE_TRIES = 3
"""How often a trial may end as `infrastructure` before its caller gives it up."""

_OUTPUT = "output"


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
        prepare(root)
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
        if request.output and os.path.lexists(request.output) and not is_empty(Path(request.output)):
            raise InputError(f"output folder {request.output}: is not an empty folder")
        with self._one_at_a_time:
            began = time.monotonic()
            try:
                child = self._take_spare(request) or self._launch(request)
            except OSError as error:
                return TrialEnd(Outcome.INFRASTRUCTURE, Phase.START, f"the child could not be started: {error}")
            watch = Watch(child, limits, self._grace, on_phase, stop, drain_seconds)
            try:
                end = self._supervise(watch, request)
            finally:
                watch.clean_up(self._known())
                self._wake_spare()
            end.seconds["total"] = time.monotonic() - began
            return end

    def _supervise(self, watch: Watch, request: ChildRequest) -> TrialEnd:
        child = watch.child
        output = child.scratch.path / _OUTPUT
        before = cgroup.oom_kills(cgroup.own())
        report: ChildReport | None = None
        try:
            output.mkdir()
            child.begin(_for_child(request, output), watch.limits)
        except OSError as error:
            verdict = Verdict(Outcome.INFRASTRUCTURE, Phase.START, f"the request could not be written: {error}")
        else:
            cause, limit = watch.follow(self._known, self._phase_began(request))
            oom_kills = cgroup.oom_kills(child.group) or cgroup.oom_kills(cgroup.own()) - before
            exit_code, immortal = watch.end(self._known())
            problem = ""
            if cause is None and exit_code == 0:
                report, problem = read_report(child.scratch.path / REPORT_FILE)
                if report is not None and (problem := lacks(report, request, output)):
                    report = None
            verdict = judge(
                Evidence(
                    phase=watch.phase,
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
                verdict = Verdict(Outcome.INFRASTRUCTURE, watch.phase, f"processes that cannot be killed are left: {pids}")
            if request.output and report is not None and verdict.outcome in (Outcome.FEASIBLE, Outcome.INVALID_OUTPUT):
                try:
                    move(output, Path(request.output))
                except OSError as error:
                    verdict = Verdict(
                        Outcome.INFRASTRUCTURE, watch.phase, f"output could not be moved to {request.output}: {error}"
                    )
        return TrialEnd(
            outcome=verdict.outcome,
            phase=verdict.phase,
            reason=" ".join(verdict.reason.split())[:2000],
            bad_input=verdict.bad_input,
            stopped=watch.stopped,
            report=report,
            seconds={phase.value: seconds for phase, seconds in watch.spent.items()},
            log=watch.log.text(),
            peak_memory_bytes=watch.peak,
            child_pid=child.pid,
        )

    def _launch(self, request: ChildRequest) -> Child:
        return Child(self._command, request.backend, request.device, self._root, os.environ, self._extra)

    def _known(self) -> frozenset[int]:
        return frozenset(self._spares)

    def _phase_began(self, request: ChildRequest) -> Callable[[Phase], None]:
        """The spare is made while the child builds (or at the end, if it never does), and holds still while it measures."""

        def began(phase: Phase) -> None:
            if not self._warm:
                return
            if self._spare is None and phase in (Phase.BUILD, Phase.LOAD):
                with contextlib.suppress(OSError):  # the next trial will say what is wrong
                    self._spare = self._launch(request)
                    self._spares.add(self._spare.pid)
            if self._spare is not None:
                os.kill(self._spare.pid, signal.SIGSTOP if phase is Phase.MEASURE else signal.SIGCONT)

        return began

    def _wake_spare(self) -> None:
        if self._spare is not None:
            os.kill(self._spare.pid, signal.SIGCONT)

    def _take_spare(self, request: ChildRequest) -> Child | None:
        """The spare, if it lives and has loaded this backend for this device."""
        spare = self._spare
        if spare is None:
            return None
        process = processes.read(spare.pid)
        if spare.loaded != (request.backend, request.device) or process is None or not process.alive:
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


def _for_child(request: ChildRequest, output: Path) -> ChildRequest:
    """The child works in another folder, so every path becomes absolute."""

    def absolute(path: str) -> str:
        return os.path.abspath(path) if path else ""

    return request.model_copy(
        update={
            "model": absolute(request.model),
            "references": absolute(request.references),
            "timing_cache": absolute(request.timing_cache),
            "plugins": tuple(absolute(path) for path in request.plugins),
            "engines": {name: absolute(path) for name, path in request.engines.items()},
            "output": str(output),
        }
    )
