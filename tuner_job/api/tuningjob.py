"""TuningJob: what to tune, for which hardware, by which measure, within which budget, and where to publish it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tuner_job.api.resource import (
    AGE_COLUMN,
    READY_COLUMNS,
    Column,
    ContentDigest,
    Distinct,
    JobMetadata,
    Keyed,
    Labels,
    LabelValue,
    Name,
    Naming,
    ObjectName,
    Reference,
    Resource,
    Spec,
    rule,
)
from tuner_job.api.tuningjob_model import ModelSource
from tuner_job.api.tuningjob_objective import Accuracy, Measurement, Objective
from tuner_job.api.tuningjob_search import Budget, Search
from tuner_job.api.tuningjob_status import TuningJobStatus
from tuner_job.api.workertemplate import WorkerTemplate


class Gpu(Spec):
    """Which GPU."""

    product: Annotated[LabelValue | None, Field(min_length=1)] = None
    """Product as node labels name it (`NVIDIA-L40S`), at most 63 characters; absent means whichever discover meets."""
    mig_profile: Annotated[str | None, Field(max_length=32, pattern=r"^[0-9]{1,2}g\.[0-9]{1,4}gb(\.me)?(\+[a-z.]+)?$")] = None
    """MIG profile (`1g.10gb`), at most 32 characters; absent means a whole GPU."""
    count: Annotated[int | None, Field(ge=1, le=16)] = None
    """GPUs of one worker, 1 to 16; absent means 1."""
    allow_shared: bool = False
    """Accept a time-sliced or MPS-shared GPU. Its neighbours disturb every timing."""


class ResourceClaim(Spec):
    """A device from Dynamic Resource Allocation."""

    name: Name
    """Name within the pod; at most 63 characters."""
    resource_claim_template_name: ObjectName
    """ResourceClaimTemplate of this namespace; at most 253 characters."""


class TargetDevice(Spec):
    """The hardware of a target: a type and, for some, its member."""

    type: Literal["GPU", "CPU", "ResourceClaims"]
    """Kind of device."""
    gpu: Gpu | None = None
    """For type GPU, and only for it; absent means one GPU of any product."""
    resource_claims: Annotated[tuple[ResourceClaim, ...], Keyed(most=8)] = ()
    """For type ResourceClaims, and only for it: the GPUs' claims; 1 to 8."""

    @rule("self.type == 'GPU' || !has(self.gpu)", "gpu goes with type GPU only", field_path=".gpu")
    def _gpu_for_gpu(self) -> bool:
        return self.type == "GPU" or self.gpu is None

    @rule(
        "(self.type == 'ResourceClaims') == (has(self.resourceClaims) && size(self.resourceClaims) > 0)",
        "type ResourceClaims goes with resourceClaims, and only it",
        field_path=".resourceClaims",
    )
    def _claims_for_claims(self) -> bool:
        return (self.type == "ResourceClaims") == (len(self.resource_claims) > 0)


class Target(Spec):
    """One kind of hardware with one runtime."""

    name: Name
    """At most 63 characters."""
    runtime_ref: Reference | None = None
    """TunerRuntime to tune for. Exactly one of runtimeRef and channelRef."""
    channel_ref: Reference | None = None
    """TunerChannel to follow. Exactly one of runtimeRef and channelRef."""
    device: TargetDevice
    """The hardware."""
    node_selector: Labels = Field(default_factory=dict)
    """Node labels that the pods ask for; at most 32, keys of at most 317 characters."""
    parallelism: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Workers that explore at once, 1 to 1,024; absent means 1."""
    min_parallelism: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Fewest workers that a queue may admit, 1 to `parallelism`; absent means all or nothing."""
    search: Search | None = None
    """Replaces `spec.search` as a whole for this target."""

    @rule("has(self.runtimeRef) != has(self.channelRef)", "give exactly one of runtimeRef and channelRef")
    def _one_reference(self) -> bool:
        return (self.runtime_ref is None) != (self.channel_ref is None)

    @rule(
        "!has(self.minParallelism) || self.minParallelism <= (has(self.parallelism) ? self.parallelism : 1)",
        "minParallelism is over parallelism (absent: 1)",
        field_path=".minParallelism",
    )
    def _min_within_parallelism(self) -> bool:
        return self.min_parallelism is None or self.min_parallelism <= (self.parallelism or 1)

    @rule(
        "!has(self.nodeSelector) || self.nodeSelector.all(k, size(k) <= 317)",
        "label keys have at most 317 characters",
        field_path=".nodeSelector",
    )
    def _short_keys(self) -> bool:
        return all(len(key) <= 317 for key in self.node_selector)


class PublishTarget(Spec):
    """A person's decision about one target's pointer."""

    name: Name
    """The target's name; at most 63 characters."""
    approved_digest: ContentDigest | None = None
    """Manifest that may be promoted, under promotion Manual."""
    pinned_digest: ContentDigest | None = None
    """Manifest that the pointer stays on, whatever is found."""


class Publish(Spec):
    """What happens to a winner."""

    promotion: Literal["Automatic", "Manual"] | None = None
    """Manual waits for `approvedDigest`; absent means Automatic."""
    keep: Annotated[int | None, Field(ge=1, le=50)] = None
    """Published engines kept for rollback, 1 to 50; absent means 10."""
    targets: Annotated[tuple[PublishTarget, ...], Keyed(most=12)] = ()
    """Decisions by target; at most 12, each the name of one of `spec.targets`."""


class Retune(Spec):
    """When a finished job is tuned again by itself."""

    policy_ref: Reference | None = None
    """RetunePolicy that sets windows, caps and waves; absent means that triggers only mark the job Stale."""
    triggers: Annotated[tuple[Literal["Runtime", "Driver", "Model"], ...], Distinct(most=3)] = ()
    """What makes an engine stale; absent means all three."""


class Rerun(Spec):
    """A new run although nothing changed."""

    token: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?$")]
    """Any new value starts a run; at most 64 characters."""
    reason: Annotated[str | None, Field(max_length=256)] = None
    """Why, for people; at most 256 characters."""


class TuningJobSpec(Spec):
    """What the user wants."""

    model: ModelSource
    """What is tuned."""
    targets: Annotated[tuple[Target, ...], Keyed(least=1, most=12)]
    """Hardware to tune for; 1 to 12. Each is tuned by itself."""
    objective: Objective | None = None
    """What better means; absent means median latency, by more than 1 %."""
    measurement: Measurement | None = None
    """How engines are timed."""
    accuracy: Accuracy | None = None
    """The gate that every engine must pass; absent means generated references, cosine loss below 0.001."""
    search: Search | None = None
    """How candidates are chosen; absent means Adaptive over all bounded knobs."""
    budget: Budget | None = None
    """What a run may use."""
    store_ref: Reference
    """ArtifactStore that keeps records and engines."""
    publish: Publish | None = None
    """What happens to a winner; absent means that it is published."""
    retune: Retune | None = None
    """When a finished job is tuned again."""
    rerun: Rerun | None = None
    """A new run although nothing changed."""
    priority: Annotated[int | None, Field(ge=-1000, le=1000)] = None
    """Order among the fleet's jobs, higher first, -1,000 to 1,000; absent means 0. Says nothing about pods."""
    suspend: bool = False
    """Stop before the next trial and free the hardware; nothing is lost."""
    worker_template: WorkerTemplate | None = None
    """What the workers' pods may have."""

    @rule(
        "!has(self.publish) || !has(self.publish.targets)"
        " || self.publish.targets.all(p, self.targets.exists(t, t.name == p.name))",
        "publish.targets names a target that spec.targets has not",
        field_path=".publish.targets",
    )
    def _published_targets_exist(self) -> bool:
        return self.publish is None or {each.name for each in self.publish.targets} <= {each.name for each in self.targets}


class TuningJob(Resource):
    """Tunes one model for one or more kinds of hardware and publishes the proven winners."""

    naming: ClassVar[Naming] = Naming(
        plural="tuningjobs",
        scope="Namespaced",
        short_names=("tj",),
        columns=(
            *READY_COLUMNS,
            Column("Phase", ".status.phase", description="Where the least advanced target is"),
            Column("Progress", ".status.progress", description="Trials ended of trials planned"),
            Column("Speedup", ".status.bestSpeedup", description="Best proven gain over the default build"),
            Column("Model", ".spec.model.uri", wide=True),
            Column("Store", ".spec.storeRef.name", wide=True),
            AGE_COLUMN,
        ),
        selectable=(".spec.storeRef.name", ".status.phase"),
    )

    kind: Literal["TuningJob"] = "TuningJob"
    metadata: JobMetadata
    spec: TuningJobSpec
    """What the user wants."""
    status: TuningJobStatus | None = None
    """What the operator observed."""
