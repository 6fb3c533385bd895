"""The states of docs/status.md, each as what one look sees. test_operator_status.py compares them with the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import reconcile_cases as cases
from reconcile_cases import CONFIG, ENGINE, NO_WIN, SERVED, STORE, after, batch, beat, beats, done, look, pod, run, wanted

from tuner_job.api.tuningjob import TuningJob
from tuner_job.api.tuningjob_status import TuningJobStatus
from tuning_operator.reconcile.decide import decide, decide_unreadable
from tuning_operator.snapshot import Problem, Publication, Stage, TargetSnapshot

JOB = cases.job()
EDITED = cases.job(model={"uri": "https://models.example/other.onnx"}, generation=2)
AGAIN = cases.job(rerun={"token": "again"}, generation=2)
TWO = cases.job(targets=("gpu", "edge"))
HELD = "sha256:" + "b" * 64


def at_work(job: TuningJob, stage: Stage, attempt: int = 2, *, target: str = "gpu", trigger: str = "Created") -> dict[str, Any]:
    live = batch(wanted(job, target), stage, attempt, target=target)
    known = run(wanted(job, target), stage, search={"trigger": trigger}, beats=beats(beat(f"{attempt}-0")))
    return {"run": known, "jobs": (live,), "pods": (pod(live),)}


def pending(stage: Stage = "discover", *, of_job: dict[str, Any] | None = None, **of_pod: Any) -> dict[str, Any]:
    live = batch(wanted(JOB), stage, 1, **of_job or {})
    return {"run": run(wanted(JOB), stage), "jobs": (live,), "pods": (pod(live, 0, "Pending", **of_pod),)}


def failed(stage: Stage, code: int, reason: str, *, failures: int = 0) -> dict[str, Any]:
    ended = batch(wanted(JOB), stage, 3, end="Failed", failures=failures)
    pods = (pod(ended, 0, "Failed", exit_code=code, reason=reason, message="the worker's words"),)
    return {"run": run(wanted(JOB), stage), "jobs": (ended,), "pods": pods}


def serving(job: TuningJob) -> TuningJob:
    """The job after an edit, while the engine of the earlier run is served."""
    return job.model_copy(update={"status": done(JOB).status})


def published(publication: Publication, job: TuningJob = JOB, trigger: str = "Created", **fields: Any) -> TuningJobStatus:
    return look(job, run=run(wanted(job), None, search={"trigger": trigger}, **fields), publication=publication).status


def two(gpu: dict[str, Any], edge: dict[str, Any], job: TuningJob = TWO) -> TuningJobStatus:
    seen = [TargetSnapshot(name, wanted=wanted(job, name), **parts) for name, parts in (("gpu", gpu), ("edge", edge))]
    return decide(cases.snapshot(job, *seen), CONFIG).status


def ended(target: str, **fields: Any) -> dict[str, Any]:
    return {"run": run(wanted(TWO, target), None, **fields), "publication": SERVED}


def suspended(job: TuningJob) -> TuningJob:
    spec = job.spec.model_copy(update={"suspend": True})
    return job.model_copy(update={"spec": spec, "metadata": job.metadata.model_copy(update={"generation": 2})})


def unreadable() -> TuningJobStatus:
    problem = Problem("InvalidSpec", "spec.targets: Field required")
    return decide_unreadable(done(JOB).status, 2, problem, cases.NOON).status


def leaving() -> TuningJobStatus:
    """After target `edge` was removed, with a worker of it at work."""
    seen = TargetSnapshot("gpu", wanted=wanted(JOB))
    orphan = batch("0" * 20, "explore", 4, target="edge")
    return decide(cases.snapshot(done(JOB), seen, orphans=(orphan,), orphan_stores={orphan.uid: STORE}), CONFIG).status


def wrong_device() -> TuningJobStatus:
    return look(JOB, **failed("final", 65, "WrongDevice")).status


def missing(job: TuningJob) -> TuningJobStatus:
    return look(job, wanted=None, problem=Problem("ReferenceNotFound", "there is no TunerRuntime ort-1.23")).status


def edited() -> TuningJobStatus:
    old = batch(wanted(JOB), "explore", 2)
    return look(EDITED, jobs=(old,), pods=(pod(old),)).status


def stopping() -> TuningJobStatus:
    return look(suspended(JOB), **at_work(JOB, "explore")).status


def after_failure() -> TuningJobStatus:
    """A run whose input was wrong, while the engine of the run before is served."""
    ended = batch(wanted(EDITED), "discover", 1, end="Failed")
    pods = (pod(ended, 0, "Failed", exit_code=64, reason="UnknownKnob", message="no knob -x"),)
    known = run(wanted(EDITED), "discover", search={"trigger": "InputsChanged"})
    stalled = after(serving(EDITED), look(serving(EDITED), run=known, jobs=(ended,), pods=pods))
    return look(stalled).status


STATES: dict[str, Callable[[], TuningJobStatus]] = {
    "just created": lambda: look(JOB).status,
    "waits for its Kueue queue": lambda: look(JOB, **pending(of_job={"suspended": True, "queued": True})).status,
    "no node takes its pods": lambda: look(JOB, **pending(unschedulable="0/3 nodes are available")).status,
    "no node of the run's device class is left": lambda: (
        look(JOB, **pending("explore", unschedulable="0/3 nodes are available"), nodes_of_class=0).status
    ),
    "the image cannot be pulled": lambda: look(JOB, **pending(waiting="ImagePullBackOff")).status,
    "discover is at work": lambda: look(JOB, **at_work(JOB, "discover", 1)).status,
    "explore is at work": lambda: look(JOB, **at_work(JOB, "explore")).status,
    "the final is at work": lambda: look(JOB, **at_work(JOB, "final", 3)).status,
    "the verdict is being published": lambda: look(JOB, run=run(wanted(JOB), None)).status,
    "a proven engine is served": lambda: published(SERVED),
    "nothing was proven; a default engine is served": lambda: published(
        Publication("Served", ENGINE.manifest, ENGINE.model_copy(update={"speedup": None})), verdict=NO_WIN
    ),
    "waits for approval; nothing is served yet": lambda: published(Publication("AwaitingApproval", HELD, None)),
    "waits for approval; an earlier engine is served": lambda: published(
        Publication("AwaitingApproval", HELD, ENGINE), serving(EDITED), "InputsChanged"
    ),
    "pinned to an earlier engine": lambda: published(Publication("Pinned", HELD, ENGINE), serving(EDITED), "InputsChanged"),
    "rolled back by hand": lambda: published(Publication("RolledBack", HELD, ENGINE)),
    "edited; workers of the earlier run are leaving": edited,
    "edited; tuned anew while an earlier engine is served": lambda: (
        look(serving(EDITED), **at_work(EDITED, "explore", trigger="InputsChanged")).status
    ),
    "rerun of the same inputs while their engine is served": lambda: (
        look(serving(AGAIN), **at_work(AGAIN, "explore", trigger="Rerun again")).status
    ),
    "being suspended": stopping,
    "suspended": lambda: look(suspended(JOB), run=run(wanted(JOB), "explore")).status,
    "suspended after its run had ended": lambda: (
        look(suspended(done(JOB)), run=run(wanted(JOB), None), publication=SERVED).status
    ),
    "the store is away": lambda: look(JOB, problem=Problem("StoreUnavailable", "no answer", transient=True)).status,
    "a reference is missing": lambda: missing(JOB),
    "a reference is missing; an engine is served": lambda: missing(done(JOB)),
    "a quota is exceeded": lambda: (
        look(JOB, refused=Problem("QuotaExceeded", "exceeded quota: jobs", transient=True), run=run(wanted(JOB))).status
    ),
    "admission denies the Job": lambda: (
        look(JOB, refused=Problem("AdmissionDenied", "webhook denied the request"), run=run(wanted(JOB))).status
    ),
    "discover refuses the input": lambda: look(JOB, **failed("discover", 64, "UnknownKnob")).status,
    "the input is refused; an earlier engine is served": after_failure,
    "workers failed three times without progress": lambda: look(JOB, **failed("explore", 70, "InternalError", failures=2)).status,
    "every worker met another device": wrong_device,
    "records of the run are poisoned": lambda: look(JOB, run_problem=Problem("PoisonedRecord", "runs/x/run.json: no")).status,
    "publishing is refused": lambda: (
        look(JOB, run=run(wanted(JOB), None), publication=Problem("PointerRefused", "of another owner")).status
    ),
    "the spec cannot be read": unreadable,
    "two targets: one is served, one at work": lambda: two(ended("gpu"), at_work(TWO, "explore", target="edge")),
    "two targets: one is stalled, one at work": lambda: two(
        {"run_problem": Problem("PoisonedRecord", "no")}, at_work(TWO, "explore", target="edge")
    ),
    "two targets: one is served, one is stalled": lambda: two(ended("gpu"), {"run_problem": Problem("PoisonedRecord", "no")}),
    "two targets: one proven, one without a win": lambda: two(ended("gpu"), ended("edge", verdict=NO_WIN)),
    "a target was removed; its workers are leaving": leaving,
}
"""State → a status that is in it."""


def cells(status: TuningJobStatus) -> list[str]:
    """Of the state's row: phase, then each condition as `True Current`."""
    return [str(status.phase), *(f"{each.status} {each.reason}" for each in status.conditions)]
