"""Workers that died without a word: what to note of them, so that nobody waits and no innocent trial is convicted. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from tuner_job.api.messages import BeatState
from tuner_job.campaign.exits import WorkerExit
from tuning_operator.actions import RecordDeath
from tuning_operator.reconcile.words import line, parsed, seconds_since
from tuning_operator.snapshot import PodView, TargetSnapshot

Cause = Literal["explained", "outOfMemory", "unexplained"]

_OWN_WORD = frozenset(
    {
        WorkerExit.NOTHING_LEFT,
        WorkerExit.BAD_INPUT,
        WorkerExit.WRONG_DEVICE,
        WorkerExit.STORE_UNUSABLE,
        WorkerExit.STOPPED,
        WorkerExit.INTERRUPTED,
    }
)
"""Ends that the worker chose itself, or was asked for: only its last beat is missing, for the store was away."""


SILENT_SECONDS = 60.0
"""Four beats. Pods are looked for by the labels of this TuningJob. So where it has no Job of the attempt, that no pod is found
proves nothing: the pod may be of a TuningJob of the same name that was deleted, and still at work. Such a beat counts as a dead
one's only when it is old, by the worker's clock. A clock that is ahead leaves it to the workers, who take over what no beat
touches for two minutes."""


def deaths(seen: TargetSnapshot, now: datetime) -> tuple[RecordDeath, ...]:
    """Of every beat that still says running although its process is over. None once there is a verdict: nobody waits any more."""
    run, wanted = seen.run, seen.wanted
    if run is None or wanted is None or run.stage is None:
        return ()
    pods = {pod.uid: pod for pod in seen.pods}
    attempts = {str(job.attempt) for job in seen.jobs if job.run == wanted.run}
    found = []
    for worker, beat in sorted(run.beats.items()):
        pod = pods.get(beat.worker_id)
        known = worker.partition("-")[0] in attempts or seconds_since(parsed(beat.at), now) > SILENT_SECONDS
        if beat.state is BeatState.RUNNING and (pod.over if pod is not None else known):
            cause, detail = cause_of(pod)
            found.append(RecordDeath(wanted.run, wanted.store, worker, beat.worker_id, cause, detail))
    return tuple(found)


def cause_of(pod: PodView | None) -> tuple[Cause, str]:
    """Why a worker's process is over. A pod that somebody took away says nothing about the trial that it had in hand."""
    if pod is None:
        return "explained", "its pod is gone"
    if pod.oom_killed:
        return "outOfMemory", f"pod {pod.name}: the container ran out of memory"
    if pod.disrupted:
        return "explained", line(f"pod {pod.name}: {pod.disrupted}")
    if pod.deleting:
        return "explained", f"pod {pod.name} was deleted"
    if pod.exit_code is None:
        return "explained", f"pod {pod.name} ended, and its node does not know how"
    if pod.exit_code in _OWN_WORD:
        return "explained", line(f"pod {pod.name}: exit code {pod.exit_code} {pod.reason}")
    return "unexplained", line(f"pod {pod.name}: exit code {pod.exit_code} {pod.reason}")
