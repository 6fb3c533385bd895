"""Getting rid of Jobs without losing the trials in hand: stop marker, wait, delete. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tuner_job.api.messages import BeatRecord, BeatState
from tuning_operator.actions import DeleteJob, StopAttempt
from tuning_operator.reconcile.words import parsed, seconds_since, stamp
from tuning_operator.snapshot import JobView, PodView


@dataclass(frozen=True)
class Patience:
    """How long workers are waited for."""

    since: datetime | None
    """When they were told to stop; None: now."""
    limit_seconds: float
    """One trial and the grace: who has not stopped by then never will."""
    now: datetime

    @property
    def over(self) -> bool:
        return self.since is not None and seconds_since(self.since, self.now) > self.limit_seconds


def leaving_since(told: str | None, now: datetime) -> str:
    """What the status says of workers that leave now. A time still to come was written by a clock that is wrong, or by somebody
    else, and would have no end."""
    since = parsed(told)
    return stamp(now if since is None else min(since, now))


def drain(
    jobs: Sequence[JobView],
    pods: Sequence[PodView],
    patience: Patience,
    *,
    beats: Mapping[str, BeatRecord] | None,
    marker: Callable[[JobView], StopAttempt | None],
    why: str,
) -> tuple[StopAttempt | DeleteJob, ...]:
    """What brings the Jobs to an end. They are gone only when a later look sees none of them.

    `marker`: the stop marker that the Job's attempt still lacks. `beats`: of the run, None when its records were not read.
    """
    actions: list[StopAttempt | DeleteJob] = []
    for job in jobs:
        if job.deleting:
            continue
        if job.end is not None or patience.over or not at_work(job, pods, beats):
            actions.append(DeleteJob(job.name, job.uid, why))
        elif (stop := marker(job)) is not None:
            actions.append(stop)
    return tuple(actions)


def at_work(job: JobView, pods: Sequence[PodView], beats: Mapping[str, BeatRecord] | None) -> bool:
    """Whether a worker of the Job may have a trial in hand. One that starts only now finds the marker before its first trial."""
    own = [pod for pod in pods if pod.job == job.name]
    if not own:
        return job.active > 0
    alive = [pod for pod in own if pod.phase in ("Running", "Unknown")]
    if beats is None:
        return bool(alive)
    running = {beat.worker_id for beat in beats.values() if beat.state is BeatState.RUNNING}
    return any(pod.uid in running for pod in alive)
