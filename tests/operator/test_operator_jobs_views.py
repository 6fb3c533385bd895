from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_jobs import UID, rendered, tuning_job

from tuner_job.campaign.worker import end_text
from tuning_operator.jobs.views import create_problem, job_view, pod_view
from tuning_operator.snapshot import JobView, PodView

JOB_UID = "0a0a0a0a-0000-4000-8000-000000000001"
POD_UID = "0a0a0a0a-0000-4000-8000-000000000002"


def stored_job(*conditions: tuple[str, str, str], **status: Any) -> dict[str, Any]:
    """A rendered Job as the server has it, with (type, status, reason) conditions."""
    job = rendered(tuning_job(), "explore", attempt=4, failures=1)
    job["metadata"] |= {"uid": JOB_UID, "creationTimestamp": "2026-11-30T10:00:00Z"}
    found = [
        {"type": kind, "status": value, "reason": reason, "message": f"{reason} happened"} for kind, value, reason in conditions
    ]
    job["status"] = {"conditions": found} | status if found else status
    return job


def stored_pod(state: dict[str, Any] | None = None, *conditions: dict[str, Any], **status: Any) -> dict[str, Any]:
    job = stored_job()
    return {
        "metadata": {
            "name": f"{job['metadata']['name']}-3-abcde",
            "uid": POD_UID,
            "creationTimestamp": "2026-11-30T10:00:00Z",
            "labels": job["spec"]["template"]["metadata"]["labels"] | {"batch.kubernetes.io/job-completion-index": "3"},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": JOB_UID, "controller": True}
            ],
        },
        "spec": {"nodeName": "node-7"},
        "status": {
            "phase": "Running",
            "conditions": list(conditions),
            "containerStatuses": [{"name": "worker", "state": state or {"running": {}}}],
        }
        | status,
    }


def seen_job(*conditions: tuple[str, str, str], **status: Any) -> JobView:
    view = job_view(stored_job(*conditions, **status), UID)
    assert view is not None
    return view


def seen_pod(state: dict[str, Any] | None = None, *conditions: dict[str, Any], **status: Any) -> PodView:
    view = pod_view(stored_pod(state, *conditions, **status), UID)
    assert view is not None
    return view


def ended(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def test_a_rendered_job_is_seen_as_the_attempt_that_it_was_made_for() -> None:
    view = seen_job(active=2, ready=1)
    assert (view.target, view.stage, view.attempt, view.failures) == ("edge", "explore", 4, 1)
    assert (view.active, view.ready, view.end, view.deleting, view.suspended, view.queued) == (2, 1, None, False, False, False)
    assert view.uid == JOB_UID


def test_a_job_is_over_only_when_its_terminal_condition_is_there_and_no_pod_runs() -> None:
    complete, failed = ("Complete", "True", "CompletionsReached"), ("Failed", "True", "PodFailurePolicy")
    assert seen_job(("SuccessCriteriaMet", "True", "CompletionsReached")).end is None
    assert seen_job(("FailureTarget", "True", "PodFailurePolicy")).end is None
    assert seen_job(complete, terminating=1).end is None
    assert seen_job(failed, active=1).end is None
    assert seen_job(("Failed", "False", "PodFailurePolicy")).end is None
    assert seen_job(complete, terminating=0).end == "Complete"
    view = seen_job(("FailureTarget", "True", "PodFailurePolicy"), failed)
    assert (view.end, view.end_reason, view.end_message) == ("Failed", "PodFailurePolicy", "PodFailurePolicy happened")


def test_a_job_that_kueue_holds_back_is_suspended_and_queued() -> None:
    job = stored_job()
    job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "gpus"
    job["spec"]["suspend"] = True
    view = job_view(job, UID)
    assert view is not None
    assert (view.suspended, view.queued) == (True, True)


def test_a_job_of_another_tuning_job_or_of_nobody_is_not_ours() -> None:
    assert job_view(stored_job(), "another uid") is None
    orphan = stored_job()
    del orphan["metadata"]["ownerReferences"]
    assert job_view(orphan, UID) is None
    not_controlled = stored_job()
    not_controlled["metadata"]["ownerReferences"][0]["controller"] = False
    assert job_view(not_controlled, UID) is None


@pytest.mark.parametrize(
    ("label", "value"), [("stage", "tune"), ("attempt", "0"), ("run", "../.."), ("target", ""), ("attempt", None)]
)
def test_a_job_whose_labels_make_no_sense_is_not_ours(label: str, value: str | None) -> None:
    job = stored_job()
    job["metadata"]["labels"][f"trtfleet.dev/{label}"] = value
    assert job_view(job, UID) is None
    del job["metadata"]["labels"][f"trtfleet.dev/{label}"]
    assert job_view(job, UID) is None


def test_a_running_pod_is_seen_with_its_place() -> None:
    view = seen_pod()
    assert (view.uid, view.index, view.phase, view.node) == (POD_UID, 3, "Running", "node-7")
    assert view.job == stored_job()["metadata"]["name"]
    assert view.since == datetime(2026, 11, 30, 10, tzinfo=UTC)
    assert (view.exit_code, view.oom_killed, view.disrupted, view.over) == (None, False, "", False)


def test_the_workers_own_reason_and_words_are_read() -> None:
    view = seen_pod(ended(64, end_text("ModelNotFound", "model.uri s3://models/demo.onnx: not there")), phase="Failed")
    assert (view.exit_code, view.reason) == (64, "ModelNotFound")
    assert view.message == "model.uri s3://models/demo.onnx: not there"
    assert view.over


def test_without_words_of_the_worker_the_kubelets_reason_and_the_tail_of_the_log_are_shown() -> None:
    assert seen_pod(ended(137, "", "OOMKilled"), phase="Failed").oom_killed
    assert seen_pod(ended(137, "", "OOMKilled")).reason == "OOMKilled"
    crashed = seen_pod(ended(1, "x" * 5000 + "\nSegmentation fault\n"))
    assert (crashed.reason, crashed.oom_killed) == ("", False)
    assert crashed.message.endswith("Segmentation fault")
    assert len(crashed.message) <= 1024
    evicted = seen_pod(reason="Evicted", message="Usage of EmptyDir volume exceeds the limit", phase="Failed")
    assert (evicted.reason, evicted.message) == ("Evicted", "Usage of EmptyDir volume exceeds the limit")


@pytest.mark.parametrize(
    "message",
    [
        '{"reason": 1, "message": "x"}',
        '["reason", "message"]',
        '"x"',
        "null",
        "[" * 5000,
        '{"reason": "a b", "message": "x"}',
        "9" * 5000,
    ],
)
def test_a_termination_message_that_lies_gives_no_reason(message: str) -> None:
    view = seen_pod(ended(70, message), phase="Failed")
    assert view.reason == ""
    assert len(view.message) <= 1024


def test_disruptions_scheduling_and_waiting_are_told_apart() -> None:
    moved = seen_pod(None, {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"})
    assert moved.disrupted == "PreemptionByScheduler"
    pending = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    assert seen_pod(None, pending, phase="Pending").unschedulable == "0/3 nodes are available"
    assert seen_pod(None, pending | {"reason": "SchedulingGated"}, phase="Pending").unschedulable == ""
    pulling = seen_pod({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}, phase="Pending")
    assert (pulling.waiting, pulling.waiting_message) == ("ImagePullBackOff", "no such image")
    starting = seen_pod({"waiting": {"reason": "ContainerCreating", "message": "soon"}}, phase="Pending")
    assert (starting.waiting, starting.waiting_message) == ("", "")


def test_only_the_workers_container_counts() -> None:
    pod = stored_pod(ended(64, end_text("Mine", "mine")))
    pod["status"]["containerStatuses"].insert(0, {"name": "sidecar", "state": ended(3, end_text("Other", "other"))})
    view = pod_view(pod, UID)
    assert view is not None
    assert (view.exit_code, view.reason) == (64, "Mine")


def test_a_pod_without_index_owner_or_our_uid_is_no_workers() -> None:
    assert pod_view(stored_pod(), "another uid") is None
    for path in (("labels",), ("ownerReferences",), ("labels", "batch.kubernetes.io/job-completion-index")):
        pod = stored_pod()
        holder = pod["metadata"]
        for part in path[:-1]:
            holder = holder[part]
        del holder[path[-1]]
        assert pod_view(pod, UID) is None


def paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


FULL_JOB = stored_job(("Failed", "True", "FailedIndexes"), active=1, ready=1, terminating=1)
FULL_POD = stored_pod(
    ended(64, end_text("Mine", "mine")), {"type": "DisruptionTarget", "status": "True", "reason": "x", "message": "y"}, reason="z"
)
NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@given(data=st.data(), whole=st.sampled_from([FULL_JOB, FULL_POD]))
def test_no_nonsense_in_an_object_raises(data: st.DataObject, whole: dict[str, Any]) -> None:
    broken = copy.deepcopy(whole)
    *above, last = data.draw(st.sampled_from(list(paths(whole))))
    holder: Any = broken
    for part in above:
        holder = holder[part]
    holder[last] = data.draw(NONSENSE)
    for view in (job_view(broken, UID), pod_view(broken, UID)):
        assert view is None or len(json.dumps(str(view))) < 20_000


def event(reason: str, at: str, note: str = "") -> dict[str, Any]:
    return {"type": "Warning" if note else "Normal", "reason": reason, "eventTime": at, "note": note}


def test_the_last_reason_that_pods_cannot_be_created_is_told_until_one_is() -> None:
    refused = event("FailedCreate", "2026-11-30T10:00:00.000000Z", 'pods "x" is forbidden: exceeded quota: gpus')
    later = event("FailedCreate", "2026-11-30T10:00:05.000000Z", "admission webhook denied the request")
    assert create_problem([]) == ""
    assert create_problem([later, refused]) == "admission webhook denied the request"
    again = refused | {"series": {"count": 3, "lastObservedTime": "2026-11-30T10:01:00.000000Z"}}
    assert create_problem([later, again]) == 'pods "x" is forbidden: exceeded quota: gpus'
    assert create_problem([later, event("SuccessfulCreate", "2026-11-30T10:00:06.000000Z")]) == ""
    assert create_problem([event("SuccessfulCreate", "2026-11-30T09:00:00.000000Z"), refused]) != ""
    assert create_problem([{"note": 3}, refused]) != "", "one that makes no sense hides no other"
