"""Why the pods of a live Job do not work, or that they do. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tuner_job.api.conditions import Reason
from tuning_operator.reconcile.words import count, end, line, stamp
from tuning_operator.snapshot import JobView, PodView, Problem, TargetSnapshot

_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"})
NODE_TAINTED = "DeletionByTaintManager"
"""Reason of DisruptionTarget: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions"""
_WORDS_BYTES = 110
"""Of what the scheduler or the kubelet says: the rest of the line is needed to say what it means."""


def waiting(job: JobView, seen: TargetSnapshot) -> Problem | None:
    """Why no worker of the Job is at work; None when one is. All of it may mend itself, so each is transient."""
    pods = [pod for pod in seen.pods if pod.job == job.name and not pod.over]
    if any(pod.phase == "Running" and not _is_lost(pod) for pod in pods) or (not pods and job.ready > 0):
        return None
    reason, message = _cause(job, pods, seen)
    return Problem(reason, line(message), transient=True)


def held_back(job: JobView, seen: TargetSnapshot) -> str:
    """Beside workers that are at work: why others are not; empty when none waits."""
    pods = [pod for pod in seen.pods if pod.job == job.name and pod.phase == "Pending"]
    if not pods:
        return line(job.create_problem, _WORDS_BYTES)
    reason, _ = _cause(job, pods, seen)
    return f"{count(len(pods), 'worker')} not at work yet: {reason}"


def _cause(job: JobView, pods: Sequence[PodView], seen: TargetSnapshot) -> tuple[str, str]:
    if job.suspended:
        who = "its Kueue queue has not admitted it" if job.queued else "somebody suspended it; resume it, or delete it"
        return Reason.QUEUED, f"Job {job.name} is suspended: {who}"
    stuck = next((pod for pod in pods if pod.waiting), None)
    if stuck is not None:
        return _container(stuck)
    unplaced = next((pod for pod in pods if pod.unschedulable), None)
    if unplaced is not None:
        return _placement(job, unplaced, seen)
    if job.create_problem:
        quota = "quota" in job.create_problem.lower()
        reason = Reason.QUOTA_EXCEEDED if quota else Reason.PODS_NOT_CREATED
        return reason, f"pods of Job {job.name} are refused: {line(job.create_problem, _WORDS_BYTES)}"
    lost = next((pod for pod in pods if _is_lost(pod)), None)
    if lost is not None:
        return (
            Reason.NODE_LOST,
            f"the node of pod {lost.name} is lost; another starts when it is gone: kubectl delete pod --force",
        )
    silent = next((pod for pod in pods if pod.phase == "Unknown"), None)
    if silent is not None:
        return Reason.STARTING, f"the node of pod {silent.name} does not answer"
    return Reason.STARTING, f"pods of Job {job.name} are starting{_again(job, seen)}"


def _is_lost(pod: PodView) -> bool:
    """Evicted because its node is away or tainted, and not gone: only its kubelet could say that it has ended."""
    return pod.deleting and pod.disrupted == NODE_TAINTED


def _again(job: JobView, seen: TargetSnapshot) -> str:
    """What the last pod that failed said: its successor waits some seconds longer after each."""
    over = [pod for pod in seen.pods if pod.job == job.name and pod.over and pod.exit_code]
    last = max(over, key=lambda pod: (pod.since.timestamp() if pod.since else 0.0, pod.name), default=None)
    if last is None:
        return ""
    return f" again; the last ended with exit code {last.exit_code} {line(f'{last.reason} {last.message}', _WORDS_BYTES)}"


def _container(pod: PodView) -> tuple[str, str]:
    if pod.waiting in _IMAGE:  # the image's name fills the beginning, several times
        why = f": {end(pod.waiting_message, _WORDS_BYTES - len(pod.waiting) - 2)}" if pod.waiting_message else ""
        return Reason.IMAGE_PULL_FAILED, f"pod {pod.name}: {pod.waiting}{why}"
    said = line(f"{pod.waiting}: {pod.waiting_message}" if pod.waiting_message else pod.waiting, _WORDS_BYTES)
    return Reason.CONTAINER_NOT_STARTED, f"pod {pod.name}: {said}"


def _placement(job: JobView, pod: PodView, seen: TargetSnapshot) -> tuple[str, str]:
    """An absolute time says how long without a status write every minute."""
    since = f" since {stamp(pod.since)}" if pod.since else ""
    if job.stage != "discover" and seen.nodes_of_class == 0:
        device = seen.run.device if seen.run else None
        of = f"{device.product}, driver {device.driver}" if device else "the run's device class"
        return Reason.DEVICE_CLASS_GONE, line(
            f"no node of {of} is left{since}: bring one back, or set spec.rerun.token to tune on another class"
        )
    if seen.nodes_of_target == 0:
        said = line(pod.unschedulable, _WORDS_BYTES)
        return Reason.NO_NODE_FOR_TARGET, f"no node has the target's device and labels{since}: {said}"
    return Reason.UNSCHEDULABLE, f"no node takes pod {pod.index}{since}: {line(pod.unschedulable, _WORDS_BYTES)}"
