"""Where a job of one target may be: what the tests of its rules have in common."""

from __future__ import annotations

from typing import Any

import reconcile_cases as cases
from reconcile_cases import CONFIG, batch, beat, beats, pod, run, wanted

from tuning_operator.snapshot import Stage

JOB = cases.job()
WANTED = wanted(JOB)
SUSPENDED = cases.job(suspend=True, generation=2)
TRIAL = WANTED.inputs.search.trial_seconds + CONFIG.workers.stop_grace_seconds
OLD = "0" * 20


def at_work(stage: Stage = "explore", attempt: int = 2, **seen: Any) -> dict[str, Any]:
    """A stage with a live Job, a pod that runs and a worker with a trial in hand."""
    live = batch(WANTED, stage, attempt)
    worker = f"{attempt}-0"
    return {
        "run": run(WANTED, stage, beats=beats(beat(worker))),
        "jobs": (live,),
        "pods": (pod(live),),
    } | seen


def failed(stage: Stage = "explore", attempt: int = 2, *, code: int = 70, pods: int = 1, **fields: Any) -> dict[str, Any]:
    """A stage whose only Job has failed, all pods with this exit code."""
    told = {key: fields.pop(key) for key in ("reason", "message", "oom_killed") if key in fields}
    ended = batch(WANTED, stage, attempt, end="Failed", end_reason="FailedIndexes", **fields)
    return {
        "run": run(WANTED, stage),
        "jobs": (ended,),
        "pods": tuple(pod(ended, index, "Failed", exit_code=code, **told) for index in range(pods)),
    }
