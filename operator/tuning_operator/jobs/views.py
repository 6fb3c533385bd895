"""What the API server says of Jobs and pods, as snapshot.py has it.

Whoever may write pods of the namespace can write nonsense into them, and a worker's words come from beside a user's model. So an
object that is not ours or makes no sense is no view at all (None), and every text is bounded. Nothing here raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from tuner_job.api.messages import RunId
from tuning_operator.jobs import names
from tuning_operator.kube.api import JOBS, TUNING_JOBS, Object
from tuning_operator.snapshot import JobEnd, JobView, PodView, Stage

LASTING_WAITS = frozenset(
    {
        *("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"),
        *("RegistryUnavailable", "SignatureValidationFailed"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
    }
)
"""Reasons of a waiting container that do not pass by themselves, as the kubelet words them."""

_TEXT = 1024
_END_TEXT = 4096
"""Of a termination message, as the kubelet keeps it."""
_WORD = re.compile(r"^[A-Za-z]{1,32}$")
_TELLS_NOTHING = frozenset({"Error", "Completed"})


def _nothing(value: object) -> object:
    """Kubernetes writes null and an absent field for the same thing."""
    return () if value is None else value


class _Seen(BaseModel):
    """A part of an object: what is not read may be anything."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class _Owner(_Seen):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class _Metadata(_Seen):
    name: str
    uid: Annotated[str, Field(min_length=1)]
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: Annotated[tuple[_Owner, ...], BeforeValidator(_nothing)] = ()
    creation_timestamp: AwareDatetime | None = None
    deletion_timestamp: str | None = None

    def controller(self, kind: str) -> _Owner | None:
        return next((owner for owner in self.owner_references if owner.controller and owner.kind == kind), None)


class _Condition(_Seen):
    type: str
    status: str
    reason: str = ""
    message: str = ""


def _holds(conditions: Sequence[_Condition], kind: str, status: str = "True") -> _Condition | None:
    return next((each for each in conditions if each.type == kind and each.status == status), None)


class _JobSpec(_Seen):
    suspend: bool | None = None


class _JobStatus(_Seen):
    active: int | None = None
    ready: int | None = None
    terminating: int | None = None
    conditions: Annotated[tuple[_Condition, ...], BeforeValidator(_nothing)] = ()


class _Job(_Seen):
    metadata: _Metadata
    spec: _JobSpec
    status: _JobStatus = _JobStatus()


class _JobLabels(_Seen):
    """What our labels must say."""

    target: Annotated[str, Field(min_length=1, max_length=63)]
    run: RunId
    stage: Stage
    attempt: Annotated[int, Field(ge=1)]


class _Terminated(_Seen):
    exit_code: int
    reason: str = ""
    message: str = ""


class _Waiting(_Seen):
    reason: str = ""
    message: str = ""


class _State(_Seen):
    terminated: _Terminated | None = None
    waiting: _Waiting | None = None


class _Container(_Seen):
    name: str
    state: _State = _State()


class _PodSpec(_Seen):
    node_name: str = ""


class _PodStatus(_Seen):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: Annotated[tuple[_Condition, ...], BeforeValidator(_nothing)] = ()
    container_statuses: Annotated[tuple[_Container, ...], BeforeValidator(_nothing)] = ()


class _Pod(_Seen):
    metadata: _Metadata
    spec: _PodSpec
    status: _PodStatus = _PodStatus()


class _Event(_Seen):
    """Of events.k8s.io/v1; `deprecatedLastTimestamp` is what older recorders leave."""

    type: str = ""
    reason: str = ""
    note: str = ""
    event_time: AwareDatetime | None = None
    deprecated_last_timestamp: AwareDatetime | None = None
    series: dict[str, Any] | None = None  # Any: only its time is read, and that checked

    def at(self) -> float:
        """Seconds since 1970 of its last time; 0 when it does not say."""
        times = [self.event_time, self.deprecated_last_timestamp, _time((self.series or {}).get("lastObservedTime"))]
        return max((time.timestamp() for time in times if time), default=0.0)


def job_view(job: Object, owner_uid: str, *, create_problem: str = "") -> JobView | None:
    """The Job as a TuningJob of this uid sees it; None when it is not its own, or cannot be told what it is."""
    try:
        seen = _Job.model_validate(job)
        meta, status = seen.metadata, seen.status
        owner = meta.controller(TUNING_JOBS.kind)
        if owner is None or owner.uid != owner_uid:
            return None
        told = _JobLabels.model_validate({key: meta.labels.get(f"trtfleet.dev/{key}") for key in _JobLabels.model_fields})
    except ValidationError:
        return None
    failed, done = _holds(status.conditions, "Failed"), _holds(status.conditions, "Complete")
    active, terminating = status.active or 0, status.terminating or 0
    end: JobEnd | None = "Failed" if failed else "Complete" if done else None
    over = end is not None and active == terminating == 0
    return JobView(
        name=meta.name,
        uid=meta.uid,
        target=told.target,
        run=told.run,
        stage=told.stage,
        attempt=told.attempt,
        store=meta.annotations.get(names.STORE, "")[:_TEXT],
        failures=_count(meta.annotations.get(names.FAILURES, "")),
        suspended=bool(seen.spec.suspend),
        queued=bool(meta.labels.get(names.QUEUE)),
        deleting=meta.deletion_timestamp is not None,
        active=active,
        ready=status.ready or 0,
        terminating=terminating,
        end=end if over else None,
        end_reason=_word(failed.reason) if over and failed else "",
        end_message=_line(failed.message) if over and failed else "",
        create_problem=_line(create_problem),
    )


def pod_view(pod: Object, owner_uid: str) -> PodView | None:
    """A worker's pod of the TuningJob of this uid; None when it is not one, or has no index."""
    try:
        seen = _Pod.model_validate(pod)
    except ValidationError:
        return None
    meta, status = seen.metadata, seen.status
    owner = meta.controller(JOBS.kind)
    index = meta.labels.get(names.POD_INDEX, meta.annotations.get(names.POD_INDEX, ""))
    if owner is None or meta.labels.get(names.JOB_UID) != owner_uid or not re.fullmatch(r"[0-9]{1,6}", index):
        return None
    state = next((each.state for each in status.container_statuses if each.name == names.CONTAINER), _State())
    ended, waiting = state.terminated, state.waiting or _Waiting()
    unplaced = _holds(status.conditions, "PodScheduled", "False")
    disrupted = _holds(status.conditions, "DisruptionTarget")
    lasting = waiting.reason in LASTING_WAITS
    reason, message = _told(ended, status)
    return PodView(
        name=meta.name,
        uid=meta.uid,
        job=owner.name,
        index=int(index),
        phase=_phase(status.phase),
        node=seen.spec.node_name,
        since=meta.creation_timestamp,
        unschedulable=_line(unplaced.message) if unplaced and unplaced.reason == "Unschedulable" else "",
        waiting=waiting.reason if lasting else "",
        waiting_message=_line(waiting.message) if lasting else "",
        exit_code=ended.exit_code if ended else None,
        oom_killed=ended is not None and ended.reason == "OOMKilled",
        disrupted=(_word(disrupted.reason) or "DisruptionTarget") if disrupted else "",
        deleting=meta.deletion_timestamp is not None,
        reason=reason,
        message=message,
    )


def create_problem(events: Sequence[Object]) -> str:
    """Why the job controller cannot create pods, from the events about one Job; empty when it did since."""
    seen = []
    for event in events:
        try:
            seen.append(_Event.model_validate(event))
        except ValidationError:
            continue
    failed = max((each for each in seen if each.reason == "FailedCreate"), key=_Event.at, default=None)
    created = max((each.at() for each in seen if each.reason == "SuccessfulCreate"), default=-1.0)
    return _line(failed.note) if failed and failed.at() > created else ""


def _told(ended: _Terminated | None, status: _PodStatus) -> tuple[str, str]:
    """The worker's own reason and words; else what the kubelet says, with the tail of the log."""
    text = ended.message[-_END_TEXT:] if ended else ""
    try:
        told = json.loads(text)
        if isinstance(told["reason"], str) and isinstance(told["message"], str):
            return _word(told["reason"]), _line(told["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    reason = ended.reason if ended and ended.reason not in _TELLS_NOTHING else status.reason
    tail = " ".join(text.split())[-_TEXT:]
    return _word(reason), tail or _line(status.message)


def _phase(phase: str) -> Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]:
    match phase:
        case "Pending" | "Running" | "Succeeded" | "Failed":
            return phase
    return "Unknown"


def _word(text: str) -> str:
    """A reason as conditions may carry it; empty for anything else."""
    return text if _WORD.match(text) else ""


def _line(text: str) -> str:
    return " ".join(text[: 2 * _TEXT].split())[:_TEXT]


def _count(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else 0


def _time(value: object) -> datetime | None:
    try:
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return parsed if parsed and parsed.tzinfo else None
