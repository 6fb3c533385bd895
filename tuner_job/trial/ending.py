"""How a child ended, turned into one of the nine outcomes. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from tuner_job.api.child import EXIT_NO_SPACE, ChildReport, Phase
from tuner_job.api.outcome import Outcome


class Cause(Enum):
    """Why the supervisor ended a child."""

    DEADLINE = Outcome.HUNG, "went over its deadline of {limit} s in phase {phase}"
    MEMORY = Outcome.OUT_OF_MEMORY, "went over its memory limit of {limit} bytes in phase {phase}"
    PROCESSES = Outcome.CRASHED, "went over its limit of {limit} processes and threads in phase {phase}"
    DISK = Outcome.CRASHED, "went over its limit of {limit} bytes in its scratch folder in phase {phase}"
    STOPPED = Outcome.INFRASTRUCTURE, "stopped in phase {phase}"


@dataclass(frozen=True)
class Evidence:
    """What the supervisor saw of an ended child."""

    phase: Phase
    """The last one that the child announced."""
    exit_code: int | None
    """Negative: the signal. None: someone else reaped it."""
    report: ChildReport | None
    report_problem: str = ""
    """Why there is none though the child exited 0."""
    cause: Cause | None = None
    limit: str = ""
    """The limit that `cause` is about."""
    oom_kills: int = 0
    """Processes that the kernel's memory killer ended meanwhile in the child's cgroup (or ours)."""
    scratch_full: bool = False


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    phase: Phase
    reason: str = ""
    """One line; empty if feasible."""
    bad_input: bool = False
    """No candidate could work. `outcome` is then `refused`."""


_BY_STATUS = {
    "refused": Outcome.REFUSED,
    "unsupported": Outcome.UNSUPPORTED,
    "outOfMemory": Outcome.OUT_OF_MEMORY,
    "failed": Outcome.CRASHED,
    "busy": Outcome.INFRASTRUCTURE,
    "noDevice": Outcome.INFRASTRUCTURE,
}


def judge(evidence: Evidence) -> Verdict:
    """The outcome. A report comes only from a child that nobody killed and that exited 0.

    Feasible means: all that was asked for is there and the outputs are valid. Whether the losses pass is the caller's to say.
    """
    phase, report = evidence.phase, evidence.report
    if evidence.cause is not None:
        outcome, text = evidence.cause.value
        return Verdict(outcome, phase, text.format(limit=evidence.limit, phase=phase))
    if report is not None:
        if report.status == "ok":
            if report.losses is not None and report.losses.problems:
                return Verdict(Outcome.INVALID_OUTPUT, Phase.CHECK, report.losses.problems[0])
            return Verdict(Outcome.FEASIBLE, phase)
        if report.status == "invalidInput":
            return Verdict(Outcome.REFUSED, report.phase, report.reason, bad_input=True)
        if not (evidence.scratch_full and report.status in ("refused", "failed")):
            return Verdict(_BY_STATUS[report.status], report.phase, report.reason)
    if evidence.scratch_full or evidence.exit_code == EXIT_NO_SPACE:
        return Verdict(Outcome.INFRASTRUCTURE, phase, f"no space left in the scratch folder in phase {phase}")
    if evidence.oom_kills and evidence.exit_code != 0:
        return Verdict(Outcome.OUT_OF_MEMORY, phase, f"killed by the kernel for want of memory in phase {phase}")
    if evidence.exit_code is None:
        return Verdict(Outcome.INFRASTRUCTURE, phase, f"its exit code was taken by another part of the process in phase {phase}")
    if evidence.exit_code in (-signal.SIGKILL, -signal.SIGTERM):
        return Verdict(Outcome.INFRASTRUCTURE, phase, f"killed from outside ({_name(-evidence.exit_code)}) in phase {phase}")
    if evidence.exit_code < 0:
        return Verdict(Outcome.CRASHED, phase, f"died of {_name(-evidence.exit_code)} in phase {phase}")
    if evidence.exit_code > 0:
        return Verdict(Outcome.CRASHED, phase, f"exited with {evidence.exit_code} in phase {phase}")
    return Verdict(Outcome.CRASHED, phase, f"exited with 0 but {evidence.report_problem} (phase {phase})")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
