"""What decide may ask for. Each action is idempotent: done twice, or by two operators, it changes nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tuner_job.api.tuningjob_status import TuningJobStatus
from tuning_operator.snapshot import Stage, StoreView, Wanted


@dataclass(frozen=True)
class StartRun:
    """Create `run.json`."""

    target: str
    wanted: Wanted
    shards: int
    trigger: str


@dataclass(frozen=True)
class CreateJob:
    """Start one attempt of a stage."""

    target: str
    wanted: Wanted
    stage: Stage
    attempt: int
    """Numbered over the whole run."""
    workers: int
    failures: int
    """Attempts in a row before this one that failed without progress."""
    deadline_seconds: float
    """What is left of the run's deadline; 0 for none."""


@dataclass(frozen=True)
class DeleteJob:
    """Delete a Job and its pods, in the background."""

    name: str
    uid: str
    why: str
    """For the log."""


@dataclass(frozen=True)
class StopAttempt:
    """Write the stop marker of an attempt: its workers stop before their next trial."""

    run: str
    store: StoreView
    attempt: int
    reason: str


@dataclass(frozen=True)
class RecordDeath:
    """Note how a worker process ended that could not say so itself."""

    run: str
    store: StoreView
    worker: str
    worker_id: str
    cause: Literal["explained", "outOfMemory", "unexplained"]
    detail: str


@dataclass(frozen=True)
class Publish:
    """Check the verdict, sign, move the pointer as the job's `publish` says. Its outcome is in the next snapshot."""

    target: str
    wanted: Wanted


Action = StartRun | CreateJob | DeleteJob | StopAttempt | RecordDeath | Publish


@dataclass(frozen=True)
class Decision:
    """What one look at a TuningJob came to."""

    actions: tuple[Action, ...]
    """In this order; the first that fails ends them, and the queue tries again."""
    status: TuningJobStatus
    """The whole status, to be written if it differs from what is stored."""
    again_seconds: float | None
    """Look again after so long although nothing tells; 0 at once; None: when something changes."""
