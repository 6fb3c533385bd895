"""The Job of one attempt. Created once and never written again: Kueue owns parts of it from then on.

The same arguments give the same bytes, so that an operator that meets its own Job after a crash knows it again.
"""

from __future__ import annotations

import math
from urllib.parse import urlsplit

from tuner_job.api.base import InputError, canonical_json, digest_of
from tuner_job.api.conditions import Reason
from tuner_job.api.resource import API_VERSION
from tuner_job.api.tuningjob import Target, TuningJob
from tuner_job.campaign.exits import WorkerExit
from tuner_job.store.connect import STORE_OPTIONS
from tuning_operator.actions import CreateJob
from tuning_operator.config import OperatorConfig
from tuning_operator.jobs import names, template
from tuning_operator.kube.api import JOBS, Object
from tuning_operator.snapshot import RunView, StoreView

BACKOFF_LIMIT_PER_INDEX = 3
"""Pods of an index start again after 10, 20 and 40 seconds: over a minute for what passes by itself (a store that is away, a
node that is going), and then the attempt ends, since a worker that fails four times in a row needs a look by the operator."""

USER = 65532
"""What images of this kind call nonroot. A number, so that the kubelet can tell that it is not root."""

SCRATCH = "/scratch"
END_MESSAGE = "/dev/termination-log"

_TMP_SIZE = "1Gi"
"""For libraries that write to /tmp whatever TMPDIR says."""

_CREDENTIALS = {
    "s3": (("AWS_ACCESS_KEY_ID", False), ("AWS_SECRET_ACCESS_KEY", False), ("AWS_SESSION_TOKEN", True)),
    "az": (("AZURE_STORAGE_ACCOUNT_KEY", False),),
    "gs": (("GOOGLE_SERVICE_ACCOUNT_KEY", False),),
}
"""Scheme → keys of its Secret, and whether one may be missing. A Secret's other keys would be tenant-made variables."""


def render(action: CreateJob, job: TuningJob, run: RunView | None, config: OperatorConfig) -> Object:
    """A batch/v1 Job in the job's namespace. `run` is needed for explore and final, whose device class discover froze.

    Raises InputError naming the field of the TuningJob that cannot be had, ImageMissing, or NotAllowed.
    """
    target = _target(job, action.target)
    labels = names.worker_labels(job, action)
    owner = {"apiVersion": API_VERSION, "kind": job.kind, "name": job.name, "uid": job.metadata.uid}
    body: Object = {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {
            "name": names.job_name(job.name, job.metadata.uid, action.wanted.run, action.stage, action.attempt),
            "namespace": job.metadata.namespace,
            "labels": labels | _queue_labels(job),
            "annotations": {
                names.FAILURES: str(action.failures),
                names.INPUTS_DIGEST: action.wanted.digest,
                names.STORE: action.wanted.store.url,
                **_queue_annotations(action, target),
            },
            "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": action.workers,
            "parallelism": action.workers,
            "backoffLimitPerIndex": BACKOFF_LIMIT_PER_INDEX,
            # A replacement starts only when its predecessor is over, so that two never share a device.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": failure_policy(),
            "ttlSecondsAfterFinished": config.workers.ttl_seconds,
            # No activeDeadlineSeconds: it starts again when Kueue resumes a Job. The worker and the operator keep the time.
            "template": {
                "metadata": {
                    "labels": template.pod_labels(job, config.workers, labels),
                    "annotations": template.pod_annotations(job),
                },
                "spec": _pod(action, job, target, run, config),
            },
        },
    }
    body["metadata"]["annotations"][names.SPEC_HASH] = digest_of(body)
    return body


def failure_policy() -> Object:
    """What a pod's end means for its index and for the Job; the first rule that matches counts. docs/workers.md has the table."""
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            _on_exit("FailJob", WorkerExit.BAD_INPUT),
            # Stopped by its marker: a replacement would find the marker too, again and again.
            _on_exit("FailIndex", WorkerExit.WRONG_DEVICE, WorkerExit.STOPPED),
            # Somebody deleted the pod, not the work.
            _on_exit("Ignore", WorkerExit.INTERRUPTED),
            {"action": "Count", "onExitCodes": {"containerName": names.CONTAINER, "operator": "NotIn", "values": [0]}},
        ]
    }


def _on_exit(action: str, *codes: WorkerExit) -> Object:
    values = sorted(int(code) for code in codes)
    return {"action": action, "onExitCodes": {"containerName": names.CONTAINER, "operator": "In", "values": values}}


def _target(job: TuningJob, name: str) -> Target:
    found = next((each for each in job.spec.targets if each.name == name), None)
    if found is None:
        raise InputError(f"TuningJob {job.name}: it has no target {name}")
    return found


def _queue_labels(job: TuningJob) -> dict[str, str]:
    """Kueue reads them once, when the Job is created; all else of Kueue's is its own to write."""
    given = job.metadata.labels
    return {key: given[key] for key in (names.QUEUE, names.QUEUE_PRIORITY) if key in given}


def _queue_annotations(action: CreateJob, target: Target) -> dict[str, str]:
    """Kueue refuses a least parallelism that is not below the Job's."""
    least = target.min_parallelism
    partly = action.stage == "explore" and least is not None and least < action.workers
    return {names.LEAST_PARALLELISM: str(least)} if partly else {}


def _pod(action: CreateJob, job: TuningJob, target: Target, run: RunView | None, config: OperatorConfig) -> Object:
    defaults = config.workers
    device = run.device if run and action.stage != "discover" else None
    given = template.template_of(job)
    tolerations = template.tolerations(given, defaults, gpu=target.device.type != "CPU")
    claims = [
        {"name": each.name, "resourceClaimTemplateName": each.resource_claim_template_name}
        for each in target.device.resource_claims
    ]
    optional = {
        "nodeSelector": dict(target.node_selector),
        "affinity": template.affinity(job, target, device, config),
        "tolerations": [template.plain(each) for each in tolerations],
        "runtimeClassName": template.runtime_class(job, defaults),
        "imagePullSecrets": template.pull_secrets(job, defaults),
        "priorityClassName": given.priority_class_name,
        "resourceClaims": claims,
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": defaults.stop_grace_seconds,
        "serviceAccountName": template.service_account(job, defaults),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            {"name": "scratch", "emptyDir": {"sizeLimit": template.scratch_size(job, defaults)}},
            {"name": "tmp", "emptyDir": {"sizeLimit": _TMP_SIZE}},
        ],
        "containers": [_container(action, job, target, config)],
        **{key: value for key, value in optional.items() if value},
    }


def _container(action: CreateJob, job: TuningJob, target: Target, config: OperatorConfig) -> Object:
    runtime = action.wanted.runtime
    if not runtime.image:
        raise InputError(
            f"TunerRuntime {runtime.name}: it names no image, which pods need; create one that has spec.image",
            reason=Reason.IMAGE_MISSING.value,
        )
    return {
        "name": names.CONTAINER,
        "image": runtime.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "tuner_job.campaign.worker"],
        "args": _arguments(action),
        "env": _environment(action.wanted.store),
        "resources": template.resources(job, target, config.workers),
        "terminationMessagePath": END_MESSAGE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "scratch", "mountPath": SCRATCH}, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }


def _arguments(action: CreateJob) -> list[str]:
    """The index comes from JOB_COMPLETION_INDEX. A deadline below a second is one second: 0 means none."""
    deadline = max(1, math.ceil(action.deadline_seconds)) if action.deadline_seconds else 0
    return [
        *("--store", _literal(action.wanted.store.url)),
        *("--run", action.wanted.run),
        *("--stage", action.stage),
        *("--attempt", str(action.attempt)),
        *("--scratch", SCRATCH),
        *("--end-message", END_MESSAGE),
        *("--worker-id", "$(POD_UID)"),
        *("--deadline-seconds", str(deadline)),
    ]


def _environment(store: StoreView) -> list[Object]:
    keys = _CREDENTIALS.get(urlsplit(store.url).scheme, ()) if store.tenant_secret else ()
    return [
        {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "HOME", "value": SCRATCH},
        {"name": "TMPDIR", "value": SCRATCH},
        {"name": STORE_OPTIONS, "value": _literal(canonical_json(dict(store.options)).decode())},
        *(
            {"name": key, "valueFrom": {"secretKeyRef": {"name": store.tenant_secret, "key": key} | _optional(optional)}}
            for key, optional in keys
        ),
    ]


def _optional(optional: bool) -> Object:
    return {"optional": True} if optional else {}


def _literal(text: str) -> str:
    """Kubernetes puts variables where `$(NAME)` stands; `$$` is a plain `$`."""
    return text.replace("$", "$$")
