"""What the end of a Job means for its stage, when the stage is still due. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner_job.api.conditions import Reason
from tuner_job.api.messages import BeatState
from tuner_job.campaign.exits import WorkerExit
from tuning_operator.reconcile.words import word
from tuning_operator.snapshot import JobView, PodView, Problem, RunView, TargetSnapshot

MOST_FAILURES = 3
"""Attempts of a stage in a row without any progress, after which the run is given up."""


_AS_TOLD = frozenset({WorkerExit.NOTHING_LEFT, WorkerExit.STOPPED, WorkerExit.INTERRUPTED})


@dataclass(frozen=True)
class Again:
    """Another attempt may do."""

    failures: int
    """Attempts in a row so far that failed without progress."""


@dataclass(frozen=True)
class Fail:
    """The run is over."""

    reason: str
    message: str


@dataclass(frozen=True)
class Stuck:
    """No attempt would do until a person acts; the run is not over."""

    problem: Problem


@dataclass(frozen=True)
class Unsettled:
    """Records were read before the last worker's end: look again."""


def judge(job: JobView, seen: TargetSnapshot, run: RunView) -> Again | Fail | Stuck | Unsettled:
    """`job`: ended, of the stage that is due, the newest of it."""
    own = [beat for worker, beat in run.beats.items() if worker.partition("-")[0] == str(job.attempt)]
    if any(beat.state is BeatState.RUNNING for beat in own):
        return Unsettled()
    last = _last_by_index(job, seen.pods)
    refused = next((pod for pod in last if pod.exit_code == WorkerExit.BAD_INPUT), None)
    if refused is not None:
        return Fail(word(refused.reason, Reason.INVALID_INPUT), refused.message or f"pod {refused.name} refused the input")
    if job.end_reason == "PodFailurePolicy":  # only a worker's refusal fails a Job at once
        return Fail(Reason.INVALID_INPUT, f"a worker refused the input, and its pod is gone: {job.end_message}")
    if last and all(pod.exit_code == WorkerExit.WRONG_DEVICE for pod in last):
        return Stuck(_wrong_device(job, last[0], seen))
    if job.stage == "explore" and any(beat.done > 0 for beat in own):  # the others' only result would have ended their stage
        return Again(0)
    if last and all(pod.exit_code in _AS_TOLD for pod in last) and job.attempt in run.stopped:
        return Again(job.failures)
    failures = job.failures + 1
    if failures < MOST_FAILURES:
        return Again(failures)
    return Fail(
        Reason.WORKERS_FAILED,
        f"{failures} attempts of {job.stage} ended without a result; see the logs of Job {job.name}, then set spec.rerun.token; "
        f"last: {_words(job, last)}",
    )


def _last_by_index(job: JobView, pods: Sequence[PodView]) -> list[PodView]:
    """The newest pod of each index."""
    own = (pod for pod in pods if pod.job == job.name and pod.over)
    ordered = sorted(own, key=lambda pod: (pod.index, pod.since.timestamp() if pod.since else 0.0, pod.name))
    return list({pod.index: pod for pod in ordered}.values())


def _wrong_device(job: JobView, pod: PodView, seen: TargetSnapshot) -> Problem:
    if seen.nodes_of_class == 0:
        return Problem(
            Reason.DEVICE_CLASS_GONE,
            f"no node of the run's device class is left: bring one back and delete Job {job.name}, or set spec.rerun.token",
        )
    reason = word(pod.reason, Reason.WRONG_DEVICE)
    return Problem(reason, f"delete Job {job.name} to try again, or set spec.rerun.token: {pod.message or reason}")


def _words(job: JobView, last: Sequence[PodView]) -> str:
    """The most telling pod's: one that failed and said why."""
    failed = [pod for pod in last if pod.exit_code]
    telling = next((pod for pod in failed if pod.message), next(iter(failed), None))
    if telling is None:
        return job.end_message or job.end_reason or "no pod is left to tell"
    killed = "out of memory" if telling.oom_killed else f"exit code {telling.exit_code}"
    return f"{killed} {telling.reason} {telling.message}"
