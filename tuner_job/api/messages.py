"""Records of a run, as the store keeps them. Everything but Beat and Pointer is created once and never changed.

Times named `…At` are wall-clock RFC 3339 strings for people; no decision compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import from_json

from tuner_job.api.base import InputError, Model, first_problem
from tuner_job.api.beliefs import Beliefs
from tuner_job.api.child import ShapeCase
from tuner_job.api.inputs import Owner, RunInputs, RuntimeIdentity, VariantInput
from tuner_job.api.measurement import (
    BuilderSetting,
    Candidate,
    Device,
    DeviceState,
    Digest,
    EngineFile,
    Losses,
    Seconds,
    Session,
    Timing,
)
from tuner_job.api.outcome import Outcome

MANY_ITEMS = 240_000
"""For records that hold timings. The longest final (48 builds, 40 sessions under 16 shapes) has 185,000 of its timings, six
commas each; more would cost a reader over 100 MiB before they are found to be wrong."""

RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{20}$")]
TrialId = Annotated[str, Field(pattern=r"^(discover|final|[0-9]{3}-[0-9]{5})$")]

Outcomes = Annotated[dict[Annotated[str, Field(max_length=32)], Annotated[int, Field(ge=0, le=10**9)]], Field(max_length=16)]

DISCOVER: str = "discover"
FINAL: str = "final"


class SchemaMismatch(InputError):
    """A record was written by an older or newer version of trtfleet."""

    reason = "SchemaMismatch"


def items_of(data: bytes) -> int:
    """What is counted against `Record.MAX_ITEMS`: an object costs its reader more than what it holds."""
    return max(data.count(b","), 4 * data.count(b"{"))


class Record(Model):
    """A message in the store. `schema_version` is checked before anything else."""

    SCHEMA: ClassVar[int] = 1
    MAX_BYTES: ClassVar[int] = 1 << 20
    """Readers refuse a longer record unread."""
    MAX_ITEMS: ClassVar[int] = 20_000
    """Commas, or four times the objects. Readers refuse a record with more unparsed: each wrong value or unknown key costs half a
    kilobyte and each object one and a half, so that 16 MiB of them would take all the memory of a reader. For the same reason
    long tuples fail at their first wrong item."""

    kind: str
    schema_version: int = 1

    @classmethod
    def parse(cls, data: bytes, key: str) -> Self:
        """Validate bytes read at `key`. Raises SchemaMismatch, or InputError naming the key and the first wrong field."""
        if len(data) > cls.MAX_BYTES:
            raise InputError(f"{key}: {len(data)} bytes; a {cls.__name__} has at most {cls.MAX_BYTES}", reason="PoisonedRecord")
        if (items := items_of(data)) > cls.MAX_ITEMS:
            raise InputError(f"{key}: {items} items; a {cls.__name__} has at most {cls.MAX_ITEMS}", reason="PoisonedRecord")
        try:
            # Validated as Python's values, which errors share: of JSON each missing field would hold a copy of all beside it.
            value = from_json(data, allow_inf_nan=False)
        except ValueError as error:
            raise InputError(f"{key}: not a valid {cls.__name__}: invalid JSON: {error}", reason="PoisonedRecord") from None
        try:
            header = _Header.model_validate(value)
            if header.schema_version != cls.SCHEMA:
                age = "newer" if header.schema_version > cls.SCHEMA else "older"
                raise SchemaMismatch(
                    f"{key}: schema version {header.schema_version} is {age} than this trtfleet's ({cls.SCHEMA}); "
                    f"use the version that wrote it, or start a new run with `--rerun TOKEN` (spec.rerun.token)"
                )
            return cls.model_validate(value)
        except ValidationError as error:
            raise InputError(f"{key}: not a valid {cls.__name__}: {first_problem(error)}", reason="PoisonedRecord") from None


class _Header(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore")

    schema_version: int


class RunRecord(Record):
    """`runs/<run>/run.json`: what the run is, immutable once started."""

    kind: Literal["Run"] = "Run"
    run: RunId
    owner: Owner
    target: str
    inputs: RunInputs
    inputs_digest: Digest
    rerun_token: str = ""
    trigger: str = "Created"
    seed: int
    shards: Annotated[int, Field(ge=1, le=1024)] = 1
    created_at: str


class PilotBuild(Model):
    """One default build of discover."""

    engine: EngineFile
    timing: Annotated[tuple[Timing, ...], FailFast()]
    """One per shape case."""
    seconds: float
    """Wall time of the whole trial."""
    build_seconds: Seconds | None = None
    """Of it, building."""
    timing_seconds: Seconds | None = None
    """Of it, warm-up and sessions."""
    state: DeviceState | None = None


class DiscoveryRecord(Record):
    """`runs/<run>/discovery.json`: what the first worker found out; all others rely on it."""

    MAX_BYTES: ClassVar[int] = 8 << 20
    MAX_ITEMS: ClassVar[int] = MANY_ITEMS

    kind: Literal["Discovery"] = "Discovery"
    run: RunId
    device: Device
    versions: dict[str, str]
    knobs: str
    """The knob list, JSON text."""
    knobs_digest: Digest
    settings: Annotated[tuple[BuilderSetting, ...], FailFast()] = ()
    """Builder settings that the backend offers."""
    notes: tuple[str, ...] = ()
    """What the backend says of its library on this device."""
    state: DeviceState | None = None
    """The device before the pilot."""
    timing_cache_blob: Digest | None = None
    """The builder's timing cache that explore builds start from."""
    fingerprints_hold: bool = True
    """Whether builds of one fingerprint can be told apart by their timings no better than sessions of one build: then equal
    fingerprints pool their timings."""
    identity: Digest
    """Ledger identity of this run's results, less the candidate."""
    variants: Annotated[tuple[VariantInput, ...], FailFast()]
    """With digests."""
    cases: Annotated[tuple[ShapeCase, ...], FailFast()] = Field(min_length=1)
    references_digest: Digest
    references_blob: Digest
    """The references folder as one archive among the blobs."""
    reference_warnings: Annotated[tuple[str, ...], FailFast()] = ()
    """What makes the references weak (accuracy.weakness), a line each."""
    baseline_losses: Losses
    pilot: Annotated[tuple[PilotBuild, ...], FailFast()] = Field(min_length=1)
    build_sd: float
    """Standard deviation of log latency between default builds."""
    session_sd: float
    """Standard deviation of log latency between sessions of one build."""
    trial_seconds: float
    """Estimated wall time of one trial."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that can steer a build and were left set."""
    structure: Digest | None = None
    """Of the base variant's graph, weights apart (model.inspect)."""
    beliefs: Beliefs = Field(default_factory=Beliefs, exclude_if=lambda beliefs: beliefs == Beliefs())
    """What the search believes before the first trial. Nothing is left out, as an older reader does not know the field."""


class PlannedTrial(Model):
    """One trial of a plan."""

    trial: TrialId
    candidate: Candidate
    shard: int
    reason: str
    """Why the strategy chose it, for people."""
    repeat: int = 0
    """0 for the first build of the candidate in this run, k for its k-th rebuild."""


class PlanLeader(Model):
    """The best feasible trial so far."""

    candidate: Candidate
    gain: float
    """Relative gain over the baseline on the explore data (optimistic for the best; never published)."""


class PlanRecord(Record):
    """`runs/<run>/rounds/<n>/plan.json`: the exact trials of a round, or the pick for the final."""

    MAX_BYTES: ClassVar[int] = 16 << 20
    MAX_ITEMS: ClassVar[int] = 50_000

    kind: Literal["Plan"] = "Plan"
    run: RunId
    round: Annotated[int, Field(ge=1)]
    stage: Literal["explore", "final"]
    trials: Annotated[tuple[PlannedTrial, ...], FailFast()] = ()
    """Of an explore round."""
    pick: Candidate | None = None
    """Of the final: the one candidate to prove; None when nothing beat the baseline on the explore data."""
    pick_gain: float | None = None
    """Relative gain of the pick on the data that chose it (optimistic; never published)."""
    leader: PlanLeader | None = None
    """Over all sealed rounds; None when nothing that is feasible could be timed yet."""
    outcomes: Outcomes = Field(default_factory=dict)
    """Outcome → trials of all sealed rounds that ended so."""
    cached: Annotated[int, Field(ge=0)] = 0
    """Of these, taken from the ledger."""
    reason: str
    """Why this round, or why exploring ended."""


class TryRecord(Record):
    """`runs/<run>/trials/<trial>/try-<k>.json`: the claim. Whoever creates it runs the trial."""

    kind: Literal["Try"] = "Try"
    trial: TrialId
    number: Annotated[int, Field(ge=1)]
    worker: str
    """`<attempt>-<index>`: names the beat to watch."""
    worker_id: str
    """Random per process, so that a restarted index is not taken for its predecessor."""
    started_at: str
    previous: PreviousEnd | None = None
    """How try k-1 ended; None for the first."""


class PreviousEnd(Model):
    """Why another try was needed."""

    cause: Literal["infrastructure", "stopped", "explained", "outOfMemory", "unexplained"]
    detail: str = ""


class BeatState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"  # told to stop (marker, SIGTERM, preemption): its open try may be taken over at once
    DONE = "done"
    DEAD = "dead"  # written by the CLI or the operator over a worker that it knows to be gone


class BeatRecord(Record):
    """`runs/<run>/workers/<attempt>-<index>.json`: overwritten every 15 s by the worker that it names."""

    kind: Literal["Beat"] = "Beat"
    worker: str
    worker_id: str
    sequence: int
    """Grows with every write; observers compare it, never a time."""
    state: BeatState = BeatState.RUNNING
    cause: Literal["", "stopped", "explained", "outOfMemory", "unexplained"] = ""
    """Of DEAD: whether the death is explained (deleted, evicted, node lost, parent gone)."""
    detail: str = ""
    stage: Literal["discover", "explore", "final"]
    trial: str = ""
    """The trial in hand."""
    phase: str = ""
    done: int = 0
    """Trials whose result this worker name wrote. Like the three below it goes on from a predecessor of the same name, and never
    falls."""
    outcomes: Outcomes = Field(default_factory=dict)
    """The same by outcome; discover and the final are feasible ones."""
    cached: Annotated[int, Field(ge=0, le=10**9)] = 0
    """How many of them came from the ledger."""
    device_seconds: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """Device time that this worker name used so far: killed trials included, and that of the trial in hand."""
    at: str


class EndRecord(Record):
    """`runs/<run>/ends/<worker id>.json`: how a worker process ended. Whoever knows first writes it, once.

    It outlives the beat, which a restarted worker of the same name overwrites.
    """

    kind: Literal["End"] = "End"
    worker: str
    worker_id: str
    cause: Literal["stopped", "explained", "outOfMemory", "unexplained"]
    detail: str = ""
    at: str


class StopRecord(Record):
    """`runs/<run>/stop/<attempt>.json`: workers of the attempt stop before their next trial."""

    kind: Literal["Stop"] = "Stop"
    attempt: int
    reason: str
    """A campaign.stop.StopReason; any other word stops like `Suspended`."""


class Control(Model):
    """A timing of the worker's own baseline engine, taken beside its trials."""

    engine: Digest
    timing: Annotated[tuple[Timing, ...], FailFast()]
    """One per shape case."""
    state: DeviceState | None = None


class ResultRecord(Record):
    """`runs/<run>/trials/<trial>/result.json`: how the trial ended."""

    MAX_BYTES: ClassVar[int] = 8 << 20
    MAX_ITEMS: ClassVar[int] = MANY_ITEMS

    kind: Literal["Result"] = "Result"
    run: RunId
    trial: TrialId
    candidate: Candidate
    outcome: Outcome
    reason: str = ""
    """One line: why it is not feasible."""
    phase: str = ""
    """The phase in which it ended, if not feasible."""
    log: str = ""
    """Tail of the child's output, at most 4,000 characters, only when it failed."""
    tries: int
    convicted: bool = False
    """Written for a trial that kept killing its workers."""
    cached: bool = False
    """Taken from the ledger; nothing ran."""
    worker: str
    """Who measured it: of another run, if cached."""
    worker_id: str
    """Of the process that measured it; a cached result keeps that of its first run."""
    seconds: dict[str, Seconds] = Field(default_factory=dict)
    """Wall time. Per phase of the last try, and `total` of the trial: all its tries with starts and clean-ups. Beside them what
    it cost: `controls` (the worker's baseline), and `lost` (an estimate of earlier tries, whose time nobody knows). What its
    worker spent otherwise since the last result that it measured: `between` (the store: results, claims, plans, the ledger),
    `waited` (for trials in other hands) and, in its first one, `prepared` (from the start of its process on: import, describing
    the device, fetching model and references). Less `lost`, a worker's results add up to its whole time."""
    engine: EngineFile | None = None
    losses: Losses | None = None
    timing: Annotated[tuple[Timing, ...], FailFast()] = ()
    """One per shape case, in the run's order."""
    stopped_over: float | None = None
    """Timing ended early, as the log seconds of its sessions so far were over this bound (measure.racing); None: it took all."""
    state: DeviceState | None = None
    """The device just before the trial."""
    controls: Annotated[tuple[Control, ...], FailFast()] = ()
    """The worker's baseline timings since its last result."""
    finished_at: str


class Folded(Model):
    trial: TrialId
    digest: Digest
    """Of the result record's bytes."""


class SealRecord(Record):
    """`runs/<run>/rounds/<n>/seal.json`: exactly which results the round's fold used."""

    MAX_BYTES: ClassVar[int] = 16 << 20
    MAX_ITEMS: ClassVar[int] = 50_000

    kind: Literal["Seal"] = "Seal"
    run: RunId
    round: int
    folded: Annotated[tuple[Folded, ...], FailFast()]
    carried_over: tuple[TrialId, ...] = ()
    """Planned, but without a result at the deadline; the next plan lists them again."""


class FinalBuild(Model):
    """One fresh build of the final."""

    name: str
    """`candidate-3`, `baseline-7`."""
    engine: EngineFile
    losses: Losses
    sessions: Annotated[tuple[Annotated[tuple[Session, ...], FailFast()], ...], FailFast()]
    """Per shape case, in time order; samples are left out here and kept whole in the samples blob."""


class Interval(Model):
    """A relative gain: 0.12 means 12 % less latency (or, for Throughput, more of it)."""

    estimate: float
    low: float
    high: float
    confidence: float = 0.95


class VerdictRecord(Record):
    """`runs/<run>/verdict.json`: what the final found. The decision can be recomputed from it alone."""

    MAX_BYTES: ClassVar[int] = 8 << 20
    MAX_ITEMS: ClassVar[int] = MANY_ITEMS

    kind: Literal["Verdict"] = "Verdict"
    run: RunId
    inputs_digest: Digest
    identity: Digest
    device: Device
    candidate: Candidate
    """What was tested; the baseline itself when there was nothing to test."""
    significant: bool
    reason: str
    """Proven, NoSignificantWin, ConstraintBroken, HostSlower, NoCandidate, AccuracyFailedInFinal, BuildFailedInFinal,
    TimingFailedInFinal."""
    message: str
    p_value: float | None = None
    route_gain: Interval | None = None
    """Claim 1: the route over rebuilds, on data that chose nothing."""
    published: Candidate
    """Whose engine is published: the candidate, or the baseline."""
    engine: EngineFile
    """The bytes to publish (a blob)."""
    engine_gain: Interval | None = None
    """Claim 2: these bytes against the median default build, on the half of the sessions that did not choose them."""
    engine_percentile: float | None = None
    """Share of default builds that are slower than these bytes, 0 to 1."""
    losses: Losses
    """Of the published engine."""
    latency_seconds: float
    """Of the published engine, on the half that did not choose it (weighted over shape cases)."""
    baseline_seconds: float
    builds: Annotated[tuple[FinalBuild, ...], FailFast()]
    samples_blob: Digest | None = None
    """Every sample of the final, gzip JSON {name: [[samples per session] per case]}."""
    layers_blob: Digest | None = None
    """Layers of one build of each side, gzip JSON {"candidate" | "baseline": LayerProfile}."""
    states: Annotated[tuple[DeviceState, ...], FailFast()] = ()
    """The device before each timing process, in time order."""
    method: dict[str, str] = Field(default_factory=dict)
    """Test, margin, repeats, sessions, seed: enough to repeat the computation."""
    seconds: float
    finished_at: str


class BlobRef(Model):
    name: str
    digest: Digest
    size: int


class ManifestRecord(Record):
    """`manifests/sha256/<d>`: what is published, by content."""

    kind: Literal["Manifest"] = "Manifest"
    run: RunId
    owner: Owner
    target: str
    runtime: RuntimeIdentity
    device: Device
    identity: Digest
    inputs_digest: Digest
    model: tuple[VariantInput, ...]
    candidate: Candidate
    blobs: tuple[BlobRef, ...] = Field(min_length=1)
    """The engine first."""
    significant: bool
    reason: str
    gain: Interval | None = None
    latency_seconds: float
    verdict_digest: Digest
    created_at: str

    @property
    def engine(self) -> BlobRef:
        return self.blobs[0]


class PointerEntry(Model):
    manifest: Digest
    run: RunId
    at: str
    why: str
    """published, promoted, rollback, pinned, or held (came while pinned; never served)."""


class PointerRecord(Record):
    """`pointers/<cluster>/<namespace>/<job>/<target>/<runtime version>.json`: compare-and-swap."""

    kind: Literal["Pointer"] = "Pointer"
    owner: Owner
    target: str
    runtime_version: str
    generation: int
    """Grows by one with every change."""
    current: PointerEntry
    history: tuple[PointerEntry, ...] = ()
    """Newest first, at most 50."""
    pinned: Digest | None = None
    """While set, publishing adds to the history but does not move `current`."""


class LedgerRecord(Record):
    """`ledger/<identity>/<candidate>.json`: the first deterministic result of a candidate under an identity."""

    MAX_BYTES: ClassVar[int] = 8 << 20
    MAX_ITEMS: ClassVar[int] = MANY_ITEMS

    kind: Literal["Ledger"] = "Ledger"
    identity: Digest
    result: ResultRecord


class TimingCacheRecord(Record):
    """`ledger/<identity>/timing-cache.json`: the builder's timing cache that all runs of an identity start from."""

    kind: Literal["TimingCache"] = "TimingCache"
    identity: Digest
    blob: Digest


TryRecord.model_rebuild()


def trial_id(round_number: int, index: int) -> str:
    """`001-00042`: the 42nd trial of round 1. Sorts in plan order."""
    return f"{round_number:03d}-{index:05d}"


def own_first(trials: tuple[PlannedTrial, ...], shard: int, shards: int) -> Iterator[PlannedTrial]:
    """A worker's order of work: its own shard, then the others' from the end (what their owners reach last)."""
    yield from (t for t in trials if t.shard % shards == shard % shards)
    yield from reversed([t for t in trials if t.shard % shards != shard % shards])
