"""Snapshots for tests of decide, written as plain data: a job of one target `gpu`, and parts of what may be seen of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, cast

from tuner_job.api.conditions import ConditionType
from tuner_job.api.documents import parse_resource
from tuner_job.api.effective import inputs_digest, run_id, run_inputs
from tuner_job.api.inputs import Owner, RunInputs
from tuner_job.api.measurement import Device
from tuner_job.api.messages import BeatRecord, BeatState, RunRecord
from tuner_job.api.runtime import TunerRuntime
from tuner_job.api.tuningjob import TuningJob
from tuner_job.api.tuningjob_status import Incumbent, PublishedEngine, TargetStatus, TuningJobStatus
from tuner_job.campaign.start import seed_of
from tuning_operator.actions import Decision
from tuning_operator.config import OperatorConfig
from tuning_operator.reconcile.decide import decide
from tuning_operator.snapshot import (
    JobView,
    PodView,
    Publication,
    RuntimeView,
    RunView,
    Snapshot,
    Stage,
    StoreView,
    TargetSnapshot,
    VerdictView,
    Wanted,
    WorkerCounts,
)

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
CONFIG = OperatorConfig(cluster="prod", operator_namespace="trtfleet")
STORE = StoreView("models", "s3://bucket/team", {})
GPU = Device(type="GPU", product="NVIDIA-L40S", compute_capability="8.9", driver="580.95")
ENGINE = PublishedEngine(
    uri="s3://bucket/team/blobs/sha256/" + "e" * 64,
    digest="sha256:" + "e" * 64,
    manifest="sha256:" + "a" * 64,
    runtime="ort-1.23",
    speedup="0.1234",
)
SERVED = Publication("Served", ENGINE.manifest, ENGINE)
WON = VerdictView(significant=True, reason="Proven", gain="0.1234", message="12.3% faster (95%: 10.1 to 14.5)")
NO_WIN = VerdictView(significant=False, reason="NoSignificantWin", message="no candidate is proven to be faster")


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@cache
def _runtime(name: str) -> TunerRuntime:
    image = "registry.example/worker@sha256:" + "f" * 64
    body = {
        "apiVersion": "trtfleet.dev/v1alpha1",
        "kind": "TunerRuntime",
        "metadata": {"name": name},
        "spec": {"family": "ONNXRuntime", "version": name.partition("-")[2], "image": image},
    }
    return cast(TunerRuntime, parse_resource(body, "test"))


def job(
    *,
    targets: Sequence[str] = ("gpu",),
    status: TuningJobStatus | None = None,
    generation: int = 1,
    deleted: bool = False,
    parallelism: int = 2,
    runtime: str = "ort-1.23",
    **spec: Any,
) -> TuningJob:
    """`spec`: further fields, as YAML has them."""
    body: dict[str, Any] = {
        "apiVersion": "trtfleet.dev/v1alpha1",
        "kind": "TuningJob",
        "metadata": {"name": "resnet", "namespace": "team", "generation": generation, "uid": "job-uid"},
        "spec": {
            "model": {"uri": "https://models.example/resnet.onnx"},
            "targets": [
                {
                    "name": name,
                    "runtimeRef": {"name": runtime},
                    "device": {"type": "GPU"},
                    "parallelism": parallelism,
                }
                for name in targets
            ],
            "storeRef": {"name": "models"},
            **spec,
        },
    }
    if deleted:
        body["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    return cast(TuningJob, parse_resource(body, "test")).model_copy(update={"status": status})


def wanted(of: TuningJob, target: str = "gpu") -> Wanted:
    spec = next(each for each in of.spec.targets if each.name == target)
    assert spec.runtime_ref is not None
    runtime = _runtime(spec.runtime_ref.name)
    inputs = run_inputs(of, target, runtime)
    digest = inputs_digest(inputs)
    token = of.spec.rerun.token if of.spec.rerun else ""
    run = run_id(Owner(cluster="prod", namespace="team", name="resnet"), target, digest, token)
    view = RuntimeView(runtime.name, runtime.spec.version, runtime.spec.image or "")
    return Wanted(inputs, digest, run, token, view, STORE)


def record(of: Wanted, *, target: str = "gpu", trigger: str = "Created", created: datetime = NOON, **search: Any) -> RunRecord:
    """`search`: values of the inputs' search that differ."""
    inputs: RunInputs = of.inputs.model_copy(update={"search": of.inputs.search.model_copy(update=search)})
    return RunRecord(
        run=of.run,
        owner=Owner(cluster="prod", namespace="team", name="resnet"),
        target=target,
        inputs=inputs,
        inputs_digest=of.digest,
        rerun_token=of.rerun_token,
        trigger=trigger,
        seed=seed_of(of.run),
        shards=2,
        created_at=created.isoformat(),
    )


def run(of: Wanted, stage: Stage | None = "discover", *, search: Mapping[str, Any] | None = None, **fields: Any) -> RunView:
    """A run in a stage, with what must be known by then."""
    known: dict[str, Any] = {"record": record(of, **(search or {})), "stage": stage}
    if stage != "discover":
        known |= {
            "device": GPU,
            "round": 1,
            "planned": 8,
            "trial_seconds": 20.0,
            "counts": WorkerCounts({"feasible": 3, "crashed": 1, "unsupported": 1}, cached=1, running=2, device_seconds=100.0),
        }
    if stage in ("final", None):
        known |= {"round": 2, "incumbent": Incumbent(variant="default", route="-a=1", gain="0.2")}
    if stage is None:
        known |= {"verdict": WON}
    return RunView(**known | fields)


def beat(worker: str, worker_id: str = "", state: BeatState = BeatState.RUNNING, **fields: Any) -> BeatRecord:
    known = {"sequence": 1, "stage": "explore", "at": NOON.isoformat()}
    return BeatRecord(worker=worker, worker_id=worker_id or f"pod-{worker}", state=state, **known | fields)


def beats(*several: BeatRecord) -> dict[str, BeatRecord]:
    return {each.worker: each for each in several}


def batch(of: Wanted | str, stage: Stage, attempt: int, **fields: Any) -> JobView:
    """A live Job, unless `end` is given."""
    name = fields.pop("name", f"tj-resnet-{stage}-{attempt}")
    target = fields.pop("target", "gpu")
    active = 0 if fields.get("end") else 1
    return JobView(
        name=name,
        uid=f"uid-{name}",
        target=target,
        run=of if isinstance(of, str) else of.run,
        stage=stage,
        attempt=attempt,
        **{"active": active} | fields,
    )


def pod(of: JobView, index: int = 0, phase: str = "Running", **fields: Any) -> PodView:
    """Its uid is that of `beat(f"{attempt}-{index}")`."""
    return PodView(
        name=f"{of.name}-{index}",
        uid=fields.pop("uid", f"pod-{of.attempt}-{index}"),
        job=of.name,
        index=index,
        phase=phase,  # type: ignore[arg-type]
        since=NOON,
        **fields,
    )


def snapshot(of: TuningJob, *targets: TargetSnapshot, now: datetime = NOON, **fields: Any) -> Snapshot:
    return Snapshot(of, now, targets, **fields)


def look(of: TuningJob, *, now: datetime = NOON, orphans: tuple[JobView, ...] = (), **seen: Any) -> Decision:
    """One look at a job with one target, of which `seen` is seen."""
    target = TargetSnapshot("gpu", **{"wanted": wanted(of)} | seen)
    return decide(snapshot(of, target, now=now, orphans=orphans, orphan_stores=seen_stores(target)), CONFIG)


def seen_stores(target: TargetSnapshot) -> dict[str, StoreView]:
    """Of Jobs of runs that are not wanted any more."""
    current = target.wanted.run if target.wanted else None
    return {each.uid: STORE for each in target.jobs if each.run != current}


def after(of: TuningJob, decision: Decision, **updates: Any) -> TuningJob:
    """The job with the decided status stored. `updates`: of its metadata."""
    return of.model_copy(update={"status": decision.status, "metadata": of.metadata.model_copy(update=updates)})


def done(of: TuningJob, **seen: Any) -> TuningJob:
    """The job once its run has ended well and nothing is left to do."""
    ended = look(of, run=run(wanted(of), None), **{"publication": SERVED} | seen)
    assert ended.actions == ()
    return after(of, ended)


def said(status: TuningJobStatus | TargetStatus, kind: ConditionType | str) -> tuple[str, str]:
    """Status and reason of a condition."""
    found = next(each for each in status.conditions if each.type == kind)
    return found.status, found.reason


def message(status: TuningJobStatus | TargetStatus, kind: ConditionType | str = "Ready") -> str:
    return next(each.message for each in status.conditions if each.type == kind)


def kinds(decision: Decision) -> list[str]:
    return [type(action).__name__ for action in decision.actions]
