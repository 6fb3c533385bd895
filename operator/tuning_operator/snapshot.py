"""Everything that one reconcile of one TuningJob knows. Plain frozen data: gather fills it, decide reads it, tests write it.

It is read in this order, and decide relies on it: the TuningJob, the cluster objects that it names, the records of its runs, then
its Jobs, then their pods. So a pod that is absent here although a beat names it is gone, and did not merely start in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from tuner_job.api.inputs import RunInputs
from tuner_job.api.measurement import Device
from tuner_job.api.messages import BeatRecord, RunRecord
from tuner_job.api.tuningjob import TuningJob
from tuner_job.api.tuningjob_status import Incumbent, PublishedEngine

Stage = Literal["discover", "explore", "final"]


@dataclass(frozen=True)
class Problem:
    """Why something cannot go on, in the words of a condition."""

    reason: str
    """A `Reason`, or the reason of a TrtfleetError."""
    message: str
    """One line: what, where, what to do."""
    transient: bool = False
    """It may mend itself (a store that is away, a quota): the target waits, and is not Stalled."""


@dataclass(frozen=True)
class RuntimeView:
    """The TunerRuntime that a target resolves to, through its channel if it names one."""

    name: str
    version: str
    image: str
    """With its digest; empty when the runtime names none."""


@dataclass(frozen=True)
class Wanted:
    """What a target asks for now."""

    inputs: RunInputs
    digest: str
    run: str
    """Id of the run of these inputs under the current rerun token."""
    rerun_token: str
    runtime: RuntimeView
    store: StoreView

    @property
    def place(self) -> str:
        """Names the run among those of all stores: its id follows from what is asked for, not from where that is kept."""
        return f"{self.store.url} {self.run}"


@dataclass(frozen=True)
class StoreView:
    """The ArtifactStore of a job as its namespace sees it; what a worker is told."""

    name: str
    url: str
    """With the namespace's prefix."""
    options: Mapping[str, str]
    """Of `ObjectStore.open`, less any credentials."""
    tenant_secret: str = ""
    """Secret in the job's namespace with the workers' credentials; empty: workload identity, or none."""
    operator_secret: str = ""
    """Secret with the operator's own, mounted under `stores_folder`; no worker is told of it."""

    @property
    def mark(self) -> str:
        """What a status has room for, to tell this store from another."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class WorkerCounts:
    """What the beats of a run add up to, and its sealed rounds. Each one only grows."""

    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Outcome → planned trials that ended so, cached ones included; discover and the final are none."""
    cached: int = 0
    running: int = 0
    """Beats that are running with a trial in hand; this one falls too."""
    device_seconds: float = 0.0

    @property
    def finished(self) -> int:
        return sum(self.outcomes.values())


@dataclass(frozen=True)
class RunView:
    """A run's records, less what only its workers need."""

    record: RunRecord
    stage: Stage | None
    """What is to be done next; None when there is a verdict."""
    round: int = 0
    """Number of the last plan; 0 before the first."""
    planned: int = 0
    """Trials planned so far."""
    device: Device | None = None
    """What discover froze; None until it has."""
    trial_seconds: float = 0.0
    """Estimated by discover."""
    reserved_seconds: float = 0.0
    """Device seconds that the budget keeps back for the final."""
    incumbent: Incumbent | None = None
    beats: Mapping[str, BeatRecord] = field(default_factory=dict)
    """Worker (`<attempt>-<index>`) → its last beat."""
    stopped: frozenset[int] = frozenset()
    """Attempts that have a stop marker."""
    counts: WorkerCounts = WorkerCounts()
    convicted: Problem | None = None
    """Discover or final ended in a conviction: no further start would mend that."""
    verdict: VerdictView | None = None

    @property
    def last_attempt(self) -> int:
        """The highest attempt that any record knows; 0 for none."""
        return max((*self.stopped, *(int(name.partition("-")[0]) for name in self.beats)), default=0)


@dataclass(frozen=True)
class VerdictView:
    """How the final ended."""

    significant: bool
    reason: str
    """`Proven`, or why a default engine is published."""
    gain: str = ""
    """Proven relative gain as a decimal; empty without one."""
    message: str = ""
    """One line for people."""
    engine: str = ""
    """`sha256:…` of the engine that it names."""


@dataclass(frozen=True)
class Publication:
    """What publishing the wanted run's verdict came to under the job's present `publish`."""

    state: Literal["Served", "AwaitingApproval", "Pinned", "RolledBack"]
    manifest: str
    """`sha256:…` of the run's manifest."""
    served: PublishedEngine | None
    """What the pointer names, of whatever run; None when it has never moved."""


JobEnd = Literal["Complete", "Failed"]


@dataclass(frozen=True)
class JobView:
    """A batch Job of this TuningJob (owner uid compared)."""

    name: str
    uid: str
    target: str
    run: str
    stage: Stage
    attempt: int
    store: str = ""
    """URL of the store that its workers were told (annotation); empty: by an older operator, so the one that is named now."""
    failures: int = 0
    """Attempts in a row, this one's predecessors, that failed without any progress (annotation)."""
    suspended: bool = False
    """`spec.suspend`: Kueue has not admitted it."""
    queued: bool = False
    """It carries a Kueue queue name."""
    deleting: bool = False
    active: int = 0
    ready: int = 0
    terminating: int = 0
    end: JobEnd | None = None
    """Set only when the Job is over and none of its pods is left running."""
    end_reason: str = ""
    """Of the Failed condition: `PodFailurePolicy`, `FailedIndexes`, `BackoffLimitExceeded`, `DeadlineExceeded`."""
    end_message: str = ""
    create_problem: str = ""
    """What the job controller says of pods that it cannot create (quota, admission), from its last warning event."""


@dataclass(frozen=True)
class PodView:
    """A worker's pod."""

    name: str
    uid: str
    """The worker id that its process beats under."""
    job: str
    index: int
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    node: str = ""
    since: datetime | None = None
    """When it was created."""
    unschedulable: str = ""
    """The scheduler's words, while it cannot place the pod."""
    waiting: str = ""
    """Reason that the container waits (`ImagePullBackOff`, `CreateContainerConfigError`), when it is one that lasts."""
    waiting_message: str = ""
    exit_code: int | None = None
    """Of the ended container."""
    oom_killed: bool = False
    disrupted: str = ""
    """Reason of the DisruptionTarget condition (preemption, eviction, drain, node lost); empty for none."""
    deleting: bool = False
    reason: str = ""
    """From the termination message (`campaign.exits`): the worker's own reason …"""
    message: str = ""
    """… and its words, or the tail of the log."""

    @property
    def over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True)
class TargetSnapshot:
    """One target of the spec."""

    name: str
    problem: Problem | None = None
    """What stands before any run: a reference that is not there, a namespace that may not, a store that is away."""
    wanted: Wanted | None = None
    """None with a problem that left the inputs unknown."""
    run: RunView | None = None
    """Records of the wanted run, or of the run under way while it is not known what is wanted; None when it has not been started,
    or was not read (see `settled`)."""
    run_problem: Problem | None = None
    """The run's records cannot be relied on (poisoned, another schema)."""
    publication: Publication | Problem | None = None
    """None until publishing was tried by this process under the job's present generation. After a Problem ask again all the same;
    `act` keeps the pace of tries."""
    refused: Problem | None = None
    """What stood in the way when the run, or its next Job, was last to be created: quota, admission, a retired run, a
    workerTemplate that asks for too much. Ask again all the same; `act` keeps the pace of tries."""
    jobs: tuple[JobView, ...] = ()
    """Of this target, of any run."""
    pods: tuple[PodView, ...] = ()
    """Of these Jobs."""
    nodes_of_class: int | None = None
    """Nodes of the device class that discover froze; None when unknown (no right to see nodes, or nothing frozen yet)."""
    nodes_of_target: int | None = None
    """Nodes that the target's device and node selector admit at all; None when unknown."""


@dataclass(frozen=True)
class Snapshot:
    """One TuningJob and all that belongs to it."""

    job: TuningJob
    """With its status as stored, unless that cannot be read."""
    now: datetime
    targets: tuple[TargetSnapshot, ...]
    """In the order of the spec."""
    orphans: tuple[JobView, ...] = ()
    """Jobs of targets that the spec no longer has."""
    orphan_stores: Mapping[str, StoreView] = field(default_factory=dict)
    """Uid → store, of Jobs that are not of the wanted run in the wanted store, where a stop marker can be written."""
