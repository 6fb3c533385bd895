"""Conditions of every resource's status: their types, their reasons, and how one changes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from tuner_job.api.resource import Keyed, Spec, Time


class ConditionType(StrEnum):
    """The first three are read by kstatus (kubectl wait, Helm, Flux, Argo CD) and mean exactly what it says of them."""

    READY = "Ready"  # the spec as it stands is served: an engine is published and current
    RECONCILING = "Reconciling"  # work is under way or queued
    STALLED = "Stalled"  # something is wrong, and nothing will happen until a person acts
    VALIDATED = "Validated"  # inputs were resolved and checked, by discover in the end
    TUNED = "Tuned"  # the final decided, whichever way
    PUBLISHED = "Published"  # the pointer names this run's engine
    STALE = "Stale"  # published, but runtime, driver or model have moved on
    SUSPENDED = "Suspended"


class Reason(StrEnum):
    """Stable words, part of the API and used as metric labels. Errors add theirs: `TrtfleetError.reason`.

    docs/status.md says of each what it means and what to do.
    """

    # progress
    QUEUED = "Queued"
    STARTING = "Starting"
    DISCOVERING = "Discovering"
    EXPLORING = "Exploring"
    PROVING = "Proving"
    PUBLISHING = "Publishing"
    STOPPING = "Stopping"
    RETUNING = "Retuning"  # an older engine is served meanwhile
    # waiting for the cluster
    UNSCHEDULABLE = "Unschedulable"
    NO_NODE_FOR_TARGET = "NoNodeForTarget"
    DEVICE_CLASS_GONE = "DeviceClassGone"  # what discover froze
    NODE_LOST = "NodeLost"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_NOT_STARTED = "ContainerNotStarted"  # a Secret is missing, for one
    QUOTA_EXCEEDED = "QuotaExceeded"
    PODS_NOT_CREATED = "PodsNotCreated"
    ADMISSION_DENIED = "AdmissionDenied"
    # good ends
    VALID = "Valid"
    PROVEN = "Proven"
    NO_SIGNIFICANT_WIN = "NoSignificantWin"  # a default engine is published
    NO_CANDIDATE = "NoCandidate"
    CONSTRAINT_BROKEN = "ConstraintBroken"  # faster, but over a bound; a default engine is published
    HOST_SLOWER = "HostSlower"  # faster on the device, slower end to end; a default engine is published
    PUBLISHED = "Published"
    CURRENT = "Current"
    # waiting for a person
    AWAITING_APPROVAL = "AwaitingApproval"
    SUSPENDED = "Suspended"
    PINNED = "Pinned"
    ROLLED_BACK = "RolledBack"
    # wrong input
    INVALID_INPUT = "InvalidInput"
    INVALID_SPEC = "InvalidSpec"
    REFERENCE_NOT_FOUND = "ReferenceNotFound"  # runtimeRef, channelRef, storeRef
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    IMAGE_MISSING = "ImageMissing"
    STORE_NOT_MOUNTED = "StoreNotMounted"
    SERVICE_ACCOUNT_NOT_ALLOWED = "ServiceAccountNotAllowed"
    SHARED_GPU = "SharedGpu"
    FORBIDDEN = "Forbidden"  # the operator's own rights do not reach
    JOB_INVALID = "JobInvalid"  # the API server refuses the Job that was rendered
    JOB_NAME_TAKEN = "JobNameTaken"
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    # failed
    STAGE_CONVICTED = "StageConvicted"  # discover or final kept killing its workers
    BASELINE_FAILED = "BaselineFailed"
    ACCURACY_FAILED_IN_FINAL = "AccuracyFailedInFinal"
    BUILD_FAILED_IN_FINAL = "BuildFailedInFinal"
    TIMING_FAILED_IN_FINAL = "TimingFailedInFinal"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    WRONG_DEVICE = "WrongDevice"
    STORE_UNAVAILABLE = "StoreUnavailable"
    STORE_NOT_CONDITIONAL = "StoreNotConditional"  # the store lies about conditional writes
    POISONED_RECORD = "PoisonedRecord"
    WORKERS_FAILED = "WorkersFailed"
    # why something is stale
    RUNTIME_CHANGED = "RuntimeChanged"
    DRIVER_CHANGED = "DriverChanged"
    MODEL_CHANGED = "ModelChanged"
    INPUTS_CHANGED = "InputsChanged"
    TARGET_REMOVED = "TargetRemoved"
    # of a condition that does not hold, for no other reason
    NOT_PUBLISHED = "NotPublished"
    NOT_SUSPENDED = "NotSuspended"


ReasonWord = Annotated[str, Field(min_length=1, max_length=32, pattern="^[A-Za-z]+$")]


class Condition(Spec):
    """One observation of a resource, as Kubernetes writes it."""

    type: Annotated[str, Field(min_length=1, max_length=32, pattern="^[A-Za-z]+$")]
    """What is observed (`Ready`), at most 32 letters."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: ReasonWord
    """Why, as one stable CamelCase word of at most 32 letters."""
    message: Annotated[str, Field(max_length=192)]
    """Why, for people; at most 192 characters."""
    last_transition_time: Time
    """When `status` last changed (RFC 3339, UTC)."""
    observed_generation: Annotated[int, Field(ge=0)]
    """The `metadata.generation` that this was derived from."""


Conditions = Annotated[tuple[Condition, ...], Keyed(most=12, key="type")]
TargetConditions = Annotated[tuple[Condition, ...], Keyed(most=4, key="type")]


def with_condition(
    conditions: Sequence[Condition],
    kind: ConditionType,
    status: bool | None,
    reason: str,
    message: str,
    *,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """The conditions with one set, in their old order. `lastTransitionTime` moves only if `status` does.

    `reason` is a Reason or the `reason` of a TrtfleetError.

    A longer message is cut to 192 characters.
    """
    word: Literal["True", "False", "Unknown"] = "Unknown" if status is None else "True" if status else "False"
    before = next((each for each in conditions if each.type == kind), None)
    at = before.last_transition_time if before and before.status == word else now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = " ".join(message.split())
    after = Condition(
        type=kind.value,
        status=word,
        reason=str(reason),
        message=line if len(line) <= 192 else line[:191] + "…",
        last_transition_time=at,
        observed_generation=generation,
    )
    if before is None:
        return (*conditions, after)
    return tuple(after if each.type == kind else each for each in conditions)
