"""TuningJobs, actions and runs that a worker's Job is rendered from."""

from __future__ import annotations

import json
from typing import Any

from tuner_job.api.effective import inputs_digest, run_id, run_inputs
from tuner_job.api.inputs import Owner
from tuner_job.api.measurement import Device
from tuner_job.api.messages import RunRecord
from tuner_job.api.runtime import TunerRuntime, TunerRuntimeSpec
from tuner_job.api.tuningjob import TuningJob
from tuning_operator.actions import CreateJob
from tuning_operator.config import OperatorConfig
from tuning_operator.jobs.render import render
from tuning_operator.snapshot import RuntimeView, RunView, Stage, StoreView, Wanted

UID = "5e0c7a52-5a3c-4a41-9c5e-0b6f6a1d2c3e"
IMAGE = f"registry.example/trtfleet/worker@sha256:{'ab' * 32}"
CONFIG = OperatorConfig(cluster="lab", operator_namespace="trtfleet")

L40S = Device(type="GPU", product="NVIDIA L40S", compute_capability="8.9", driver="570.86.10")
A100_MIG = Device(type="GPU", product="NVIDIA A100-SXM4-40GB", mig_profile="1g.5gb", compute_capability="8.0", driver="570.86.10")
XEON = Device(type="CPU", product="Intel(R) Xeon(R)", count=8, compute_capability="sse4_2,avx,avx2,fma", driver="6.8.0-45")

CPU: dict[str, Any] = {"type": "CPU"}
GPU: dict[str, Any] = {"type": "GPU"}
MIG: dict[str, Any] = {"type": "GPU", "gpu": {"migProfile": "1g.5gb", "count": 2}}
CLAIMS: dict[str, Any] = {"type": "ResourceClaims", "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-l40s"}]}

FROZEN = {"CPU": XEON, "GPU": L40S, "ResourceClaims": L40S}


def tuning_job(
    device: dict[str, Any] = GPU,
    *,
    name: str = "demo",
    labels: dict[str, str] | None = None,
    target: dict[str, Any] | None = None,
    template: dict[str, Any] | None = None,
) -> TuningJob:
    """A TuningJob with one target, `edge`."""
    spec: dict[str, Any] = {
        "model": {"uri": "s3://models/demo.onnx"},
        "storeRef": {"name": "main"},
        "targets": [{"name": "edge", "runtimeRef": {"name": "engine"}, "device": device, **(target or {})}],
    }
    metadata = {"name": name, "namespace": "team-a", "uid": UID, "labels": labels or {}}
    whole = {"kind": "TuningJob", "metadata": metadata, "spec": spec | ({"workerTemplate": template} if template else {})}
    return TuningJob.from_json(json.dumps(whole))


def wanted(job: TuningJob, *, store: StoreView | None = None, image: str = IMAGE) -> Wanted:
    runtime = TunerRuntime(
        metadata={"name": "engine"}, spec=TunerRuntimeSpec(family="ONNXRuntime", version="1.23.2", image=image or None)
    )
    inputs = run_inputs(job, job.spec.targets[0].name, runtime)
    digest = inputs_digest(inputs)
    return Wanted(
        inputs=inputs,
        digest=digest,
        run=run_id(Owner(cluster="lab", namespace="team-a", name=job.name), "edge", digest),
        rerun_token="",
        runtime=RuntimeView(name="engine", version="1.23.2", image=image),
        store=store or StoreView(name="main", url="s3://tuning/team-a", options={"region": "eu-west-1"}, tenant_secret="store"),
    )


def create(job: TuningJob, stage: Stage = "discover", *, want: Wanted | None = None, **more: Any) -> CreateJob:
    arguments: dict[str, Any] = {"attempt": 1, "workers": 1, "failures": 0, "deadline_seconds": 0.0} | more
    return CreateJob(target=job.spec.targets[0].name, wanted=want or wanted(job), stage=stage, **arguments)


def run_view(action: CreateJob, device: Device | None) -> RunView:
    record = RunRecord(
        run=action.wanted.run,
        owner=Owner(cluster="lab", namespace="team-a", name="demo"),
        target=action.target,
        inputs=action.wanted.inputs,
        inputs_digest=action.wanted.digest,
        seed=1,
        created_at="2026-11-30T00:00:00Z",
    )
    return RunView(record=record, stage=action.stage, device=device)


def rendered(
    job: TuningJob, stage: Stage = "discover", *, device: Device | None = None, config: OperatorConfig = CONFIG, **more: Any
) -> dict[str, Any]:
    """The Job of a stage; explore and final take the frozen device that goes with the target's type unless one is given."""
    action = create(job, stage, **more)
    frozen = device or FROZEN[job.spec.targets[0].device.type]
    return render(action, job, run_view(action, None if stage == "discover" else frozen), config)


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]["template"]["spec"]
    return spec


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    [container] = pod_of(job)["containers"]
    found: dict[str, Any] = container
    return found
