"""Names, labels and annotations of workers' Jobs and pods. They are API: selectors, dashboards and people use them."""

from __future__ import annotations

from tuner_job.api.base import digest_of
from tuner_job.api.tuningjob import TuningJob
from tuning_operator.actions import CreateJob
from tuning_operator.snapshot import Stage

CONTAINER = "worker"

JOB = "trtfleet.dev/job"
JOB_UID = "trtfleet.dev/job-uid"
TARGET = "trtfleet.dev/target"
RUN = "trtfleet.dev/run"
STAGE = "trtfleet.dev/stage"
ATTEMPT = "trtfleet.dev/attempt"

SPEC_HASH = "trtfleet.dev/spec-hash"
FAILURES = "trtfleet.dev/failures"
INPUTS_DIGEST = "trtfleet.dev/inputs-digest"
STORE = "trtfleet.dev/store"

QUEUE = "kueue.x-k8s.io/queue-name"
QUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"
LEAST_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"

POD_JOB = "batch.kubernetes.io/job-name"
POD_INDEX = "batch.kubernetes.io/job-completion-index"

_KIND = {"app.kubernetes.io/name": "trtfleet-worker", "app.kubernetes.io/managed-by": "trtfleet"}

WORKERS = ",".join(f"{key}={value}" for key, value in _KIND.items())
"""Label selector of every worker's Job and pod in a cluster."""

_OWNER_LENGTH = 40


def job_name(owner: str, uid: str, run: str, stage: Stage, attempt: int) -> str:
    """At most 52 characters, since pods of 1,024 indexes append `-1023-` and five letters, and names end at 63.

    The same for every operator that wants this Job, so that of two creates one meets a 409.
    """
    return f"tj-{owner[:_OWNER_LENGTH].rstrip('-')}-{digest_of([uid, run, stage, attempt])[:8]}"


def worker_labels(job: TuningJob, action: CreateJob) -> dict[str, str]:
    """Of the Job and of its pods."""
    return {
        **_KIND,
        JOB: job.name,
        JOB_UID: job.metadata.uid,
        TARGET: action.target,
        RUN: action.wanted.run,
        STAGE: action.stage,
        ATTEMPT: str(action.attempt),
    }


def workers_of(uid: str) -> str:
    """Label selector of the Jobs and pods of one TuningJob."""
    return f"{WORKERS},{JOB_UID}={uid}"
