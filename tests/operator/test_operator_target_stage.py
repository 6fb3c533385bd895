"""The stage that is due: how its Job is created, watched and judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import reconcile_cases as cases
from reconcile_cases import (
    CONFIG,
    STORE,
    after,
    batch,
    beat,
    beats,
    kinds,
    later,
    look,
    message,
    pod,
    run,
    said,
)
from target_cases import JOB, TRIAL, WANTED, at_work, failed

from tuner_job.api.messages import BeatState
from tuning_operator.actions import CreateJob, DeleteJob, StopAttempt
from tuning_operator.snapshot import Publication, Stage, WorkerCounts


@pytest.mark.parametrize(("stage", "workers"), [("discover", 1), ("explore", 2), ("final", 1)])
def test_a_stage_without_a_job_gets_one(stage: Stage, workers: int) -> None:
    known = run(WANTED, stage, beats=beats(beat("4-0", state=BeatState.DONE)), stopped=frozenset({3}))
    (create,) = look(JOB, run=known).actions
    assert create == CreateJob("gpu", WANTED, stage, 5, workers, 0, 0.0)


def test_a_live_job_is_watched() -> None:
    decision = look(JOB, **at_work())
    assert (decision.actions, decision.again_seconds) == ((), CONFIG.poll_seconds)
    assert said(decision.status, "Reconciling") == ("True", "Exploring")


def test_a_job_that_vanished_is_followed_by_the_next_attempt() -> None:
    (create,) = look(JOB, run=run(WANTED, "explore", beats=beats(beat("2-0", state=BeatState.DONE)))).actions
    assert isinstance(create, CreateJob)
    assert create.attempt == 3


def test_a_job_behind_its_run_is_waited_for_and_deleted() -> None:
    explorers = batch(WANTED, "explore", 2)
    leaving = run(WANTED, "final", beats=beats(beat("2-0")))
    waiting = look(JOB, run=leaving, jobs=(explorers,), pods=(pod(explorers),))
    assert waiting.actions == ()
    assert said(waiting.status, "Reconciling") == ("True", "Stopping")
    left = run(WANTED, "final", beats=beats(beat("2-0", state=BeatState.DONE)))
    assert kinds(look(JOB, run=left, jobs=(explorers,), pods=(pod(explorers),))) == ["DeleteJob"]
    late = look(after(JOB, waiting), run=leaving, jobs=(explorers,), pods=(pod(explorers),), now=later(TRIAL + 1))
    assert kinds(late) == ["DeleteJob"]


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_an_ended_job_behind_its_run_does_not_hold_it_up(end: str) -> None:
    ended = batch(WANTED, "explore", 2, end=end)
    seen = {"run": run(WANTED, "final"), "jobs": (ended,), "pods": (pod(ended, 0, "Failed", exit_code=70),)}
    (create,) = look(JOB, **seen).actions
    assert isinstance(create, CreateJob)
    assert (create.stage, create.attempt, create.failures) == ("final", 3, 0)
    live = batch(WANTED, "final", 3)
    assert [getattr(each, "name", "") for each in look(JOB, **seen | {"jobs": (ended, live)}).actions] == [ended.name]


def test_of_two_live_attempts_the_newest_stays() -> None:
    older, newer = batch(WANTED, "explore", 2), batch(WANTED, "explore", 3)
    seen = {"run": run(WANTED, "explore"), "jobs": (newer, older), "pods": (pod(older), pod(newer))}
    (delete,) = look(JOB, **seen).actions
    assert isinstance(delete, DeleteJob)
    assert delete.name == older.name


def test_nothing_is_started_beside_a_job_that_is_being_deleted() -> None:
    going = batch(WANTED, "explore", 2, deleting=True)
    assert look(JOB, run=run(WANTED, "explore"), jobs=(going,)).actions == ()


@pytest.mark.parametrize(("seconds", "stopped"), [(59.0, False), (60.0, True)])
def test_the_budget_keeps_the_finals_share(seconds: float, stopped: bool) -> None:
    live = at_work()
    live["run"] = replace(
        live["run"],
        record=cases.record(WANTED, device_seconds=100.0),
        reserved_seconds=40.0,
        counts=WorkerCounts({"feasible": 3}, device_seconds=seconds),
    )
    decision = look(JOB, **live)
    assert decision.actions == ((StopAttempt(WANTED.run, STORE, 2, "BudgetExhausted"),) if stopped else ())
    live["run"] = replace(live["run"], stopped=frozenset({2}))
    if stopped:
        assert look(JOB, **live, now=later(10 * TRIAL)).actions == ()  # who starts late still plans the final


@pytest.mark.parametrize("phase", ["Running", "Pending"])
def test_explorers_that_outlast_the_deadline_plan_the_final(phase: str) -> None:
    live = batch(WANTED, "explore", 2)
    known = run(WANTED, "explore", search={"deadline_seconds": 100.0}, beats=beats(beat("2-0")))
    seen = {"jobs": (live,), "pods": (pod(live, 0, phase),)}
    assert look(JOB, run=known, **seen, now=later(99)).actions == ()
    told = look(JOB, run=known, **seen, now=later(100))
    assert told.actions == (StopAttempt(WANTED.run, STORE, 2, "DeadlineExceeded"),)
    assert "the final comes next" in message(told.status) or phase == "Pending"
    marked = replace(known, stopped=frozenset({2}))
    assert look(JOB, run=marked, **seen, now=later(10 * TRIAL)).actions == ()  # who starts late still plans the final


def test_a_deadline_is_passed_on_to_explorers() -> None:
    known = run(WANTED, "explore", search={"deadline_seconds": 100.0})
    for passed, left in ((30.0, 70.0), (500.0, 1.0)):
        (create,) = look(JOB, run=known, now=later(passed)).actions
        assert isinstance(create, CreateJob)
        assert create.deadline_seconds == left
    (create,) = look(JOB, run=run(WANTED, "final", search={"deadline_seconds": 100.0}), now=later(500)).actions
    assert isinstance(create, CreateJob)
    assert create.deadline_seconds == 0


def test_a_start_that_cannot_be_read_is_no_deadline() -> None:
    known = run(WANTED, "explore", search={"deadline_seconds": 100.0})
    odd = replace(known, record=known.record.model_copy(update={"created_at": "yesterday"}))
    (create,) = look(JOB, run=odd, now=later(500)).actions
    assert isinstance(create, CreateJob)
    assert create.deadline_seconds == 100


def test_discover_that_outlasts_the_deadline_ends_the_run() -> None:
    known = run(WANTED, "discover", search={"deadline_seconds": 100.0}, beats=beats(beat("1-0")))
    live = batch(WANTED, "discover", 1)
    seen = {"run": known, "jobs": (live,), "pods": (pod(live),)}
    assert look(JOB, **seen, now=later(99)).actions == ()
    assert look(JOB, **seen, now=later(100)).actions == (StopAttempt(WANTED.run, STORE, 1, "DeadlineExceeded"),)
    ended = look(JOB, run=replace(known, beats={}), now=later(100))
    assert said(ended.status, "Stalled") == ("True", "DeadlineExceeded")


# how Jobs end


def test_refused_input_ends_the_run_with_the_workers_words() -> None:
    decision = look(JOB, **failed("discover", 1, code=64, reason="UnknownKnob", message="no knob -x; see trtfleet knobs"))
    assert decision.actions == ()
    assert said(decision.status, "Stalled") == ("True", "UnknownKnob")
    assert message(decision.status, "Stalled") == "no knob -x; see trtfleet knobs"
    assert said(decision.status, "Validated") == ("False", "UnknownKnob")


def test_refused_input_is_known_although_the_pod_is_gone() -> None:
    seen = failed("discover", 1, code=64)
    ended = replace(seen["jobs"][0], end_reason="PodFailurePolicy", end_message="exit code 64")
    decision = look(JOB, **seen | {"jobs": (ended,), "pods": ()})
    assert said(decision.status, "Stalled") == ("True", "InvalidInput")


@pytest.mark.parametrize(("nodes", "reason"), [(0, "DeviceClassGone"), (2, "WrongDevice"), (None, "WrongDevice")])
def test_workers_that_all_met_another_device_stall_the_run_but_do_not_end_it(nodes: int | None, reason: str) -> None:
    seen = failed("final", 3, code=65, reason="WrongDevice", message="this worker has an L4")
    decision = look(JOB, **seen, nodes_of_class=nodes)
    assert decision.actions == ()
    assert said(decision.status, "Stalled") == ("True", reason)
    assert decision.status.targets[0].active_run == WANTED.run
    assert kinds(look(after(JOB, decision), run=seen["run"])) == ["CreateJob"]  # a person deleted the Job


@pytest.mark.parametrize("code", [66, 70, 137, 143])
def test_the_third_failure_in_a_row_ends_the_run(code: int) -> None:
    for failures in (0, 1):
        (create,) = look(JOB, **failed(code=code, failures=failures)).actions
        assert isinstance(create, CreateJob)
        assert create.failures == failures + 1
    decision = look(JOB, **failed(code=code, failures=2, reason="InternalError", message="it broke"))
    assert decision.actions == ()
    assert said(decision.status, "Stalled") == ("True", "WorkersFailed")
    assert "it broke" in message(decision.status.targets[0])


def test_progress_makes_failures_start_anew() -> None:
    seen = failed(failures=2)
    seen["run"] = replace(seen["run"], beats=beats(beat("2-0", state=BeatState.DEAD, done=1)))
    (create,) = look(JOB, **seen).actions
    assert isinstance(create, CreateJob)
    assert create.failures == 0


@pytest.mark.parametrize("stage", ["discover", "final"])
def test_a_stage_of_one_trial_that_is_still_due_made_no_progress_whatever_its_beats_say(stage: Stage) -> None:
    seen = failed(stage, 3, failures=2)
    seen["run"] = replace(seen["run"], beats=beats(beat("3-0", state=BeatState.DEAD, stage=stage, done=1)))
    decision = look(JOB, **seen)
    assert decision.actions == ()
    assert said(decision.status, "Stalled") == ("True", "WorkersFailed")


def test_an_attempt_that_was_told_to_stop_has_not_failed() -> None:
    seen = failed(code=67, failures=1)
    seen["run"] = replace(seen["run"], stopped=frozenset({2}))
    (create,) = look(JOB, **seen).actions
    assert isinstance(create, CreateJob)
    assert create.failures == 1


def test_the_end_of_a_job_is_judged_only_when_its_workers_ends_are_noted() -> None:
    seen = failed(code=137)
    seen["run"] = replace(seen["run"], beats=beats(beat("2-0")))
    assert kinds(look(JOB, **seen)) == ["RecordDeath"]


def test_a_job_that_completed_without_finishing_its_stage_counts_as_failed() -> None:
    ended = batch(WANTED, "final", 3, end="Complete", failures=2)
    decision = look(JOB, run=run(WANTED, "final"), jobs=(ended,), pods=(pod(ended, 0, "Succeeded", exit_code=0),))
    assert said(decision.status, "Stalled") == ("True", "WorkersFailed")


# why workers do not work


@pytest.mark.parametrize(
    ("of_job", "of_pod", "nodes", "reason"),
    [
        ({"suspended": True, "queued": True}, None, {}, "Queued"),
        ({"suspended": True}, None, {}, "Queued"),
        ({"create_problem": "pods is forbidden: exceeded quota: gpus"}, None, {}, "QuotaExceeded"),
        ({"create_problem": 'admission webhook "x" denied the request'}, None, {}, "PodsNotCreated"),
        ({}, None, {}, "Starting"),
        ({}, {}, {}, "Starting"),
        ({}, {"unschedulable": "0/3 nodes are available"}, {}, "Unschedulable"),
        ({}, {"unschedulable": "0/3 nodes are available"}, {"nodes_of_target": 0}, "NoNodeForTarget"),
        ({}, {"unschedulable": "0/3 nodes are available"}, {"nodes_of_class": 0, "nodes_of_target": 0}, "DeviceClassGone"),
        ({}, {"unschedulable": "0/3 nodes are available"}, {"nodes_of_class": 1, "nodes_of_target": 1}, "Unschedulable"),
        ({}, {"waiting": "ImagePullBackOff", "waiting_message": "not found"}, {}, "ImagePullFailed"),
        ({}, {"waiting": "ErrImagePull"}, {}, "ImagePullFailed"),
        ({}, {"waiting": "CreateContainerConfigError", "waiting_message": 'secret "s3" not found'}, {}, "ContainerNotStarted"),
    ],
)
def test_workers_that_cannot_work_say_why(
    of_job: dict[str, Any], of_pod: dict[str, Any] | None, nodes: dict[str, int], reason: str
) -> None:
    live = batch(WANTED, "explore", 2, active=int(of_pod is not None), **of_job)
    pods = () if of_pod is None else (pod(live, 0, "Pending", **of_pod),)
    decision = look(JOB, run=run(WANTED, "explore"), jobs=(live,), pods=pods, **nodes)
    assert (decision.actions, decision.status.phase) == ((), "Pending")
    assert said(decision.status, "Reconciling") == ("True", reason)
    assert said(decision.status, "Stalled")[0] == "False"
    for words in (of_pod or {}).values():
        assert words in message(decision.status) or reason == "DeviceClassGone"


def test_an_image_that_cannot_be_pulled_is_told_by_its_cause_which_comes_last() -> None:
    image = "registry.example.com/team/worker@sha256:" + 64 * "0"
    long = f'Back-off pulling image "{image}": ErrImagePull: failed to resolve reference "{image}": {image}: not found'
    live = batch(WANTED, "discover", 1)
    waits = pod(live, 0, "Pending", waiting="ImagePullBackOff", waiting_message=long)
    decision = look(JOB, run=run(WANTED, "discover"), jobs=(live,), pods=(waits,))
    assert message(decision.status).startswith(f"pod {waits.name}: ImagePullBackOff: …")
    assert message(decision.status).endswith(": not found")


def test_how_long_no_node_was_found_is_told_without_a_write_every_minute() -> None:
    live = batch(WANTED, "discover", 1)
    seen = {"run": run(WANTED, "discover"), "jobs": (live,), "pods": (pod(live, 0, "Pending", unschedulable="0/3 nodes"),)}
    first = look(JOB, **seen)
    assert "since 2026-11-30T12:00:00Z" in message(first.status)
    assert look(after(JOB, first), **seen, now=later(3600)).status == first.status


def test_why_pods_start_again_is_told() -> None:
    live = batch(WANTED, "discover", 1, active=0)
    ended = pod(live, 0, "Failed", exit_code=66, reason="StoreUnavailable", message="no route to s3.example")
    decision = look(JOB, run=run(WANTED, "discover"), jobs=(live,), pods=(ended,))
    assert said(decision.status, "Reconciling") == ("True", "Starting")
    assert message(decision.status).endswith(
        "starting again; the last ended with exit code 66 StoreUnavailable no route to s3.example"
    )


def test_a_worker_on_a_lost_node_is_not_called_at_work() -> None:
    live = batch(WANTED, "final", 3, active=0, terminating=1)
    gone = pod(live, deleting=True, disrupted="DeletionByTaintManager")
    decision = look(JOB, run=run(WANTED, "final", beats=beats(beat("3-0", stage="final"))), jobs=(live,), pods=(gone,))
    assert decision.actions == ()
    assert said(decision.status, "Reconciling") == ("True", "NodeLost")
    assert gone.name in message(decision.status)
    assert "kubectl delete pod --force" in message(decision.status)
    evicted = replace(gone, disrupted="EvictionByEvictionAPI")  # its kubelet ends it
    decision = look(JOB, run=run(WANTED, "final", beats=beats(beat("3-0", stage="final"))), jobs=(live,), pods=(evicted,))
    assert said(decision.status, "Reconciling") == ("True", "Proving")


def test_some_at_work_and_some_not_is_work_under_way() -> None:
    live = batch(WANTED, "explore", 2)
    pods = (pod(live, 0), pod(live, 1, "Pending", unschedulable="0/3 nodes"))
    decision = look(JOB, run=run(WANTED, "explore", beats=beats(beat("2-0"))), jobs=(live,), pods=pods)
    assert decision.status.phase == "Exploring"
    assert "1 worker not at work yet: Unschedulable" in message(decision.status)


@pytest.mark.parametrize("state", ["AwaitingApproval", "Pinned", "RolledBack"])
def test_what_a_person_decides_ends_the_run_too(state: Any) -> None:
    held = Publication(state, "sha256:" + "b" * 64, cases.ENGINE)
    decision = look(JOB, run=run(WANTED, None), publication=held)
    assert (decision.actions, decision.again_seconds) == ((), None)
    target = decision.status.targets[0]
    assert target.active_run is None
    assert target.awaiting_approval == (held.manifest if state == "AwaitingApproval" else None)
    assert look(after(JOB, decision)).status == decision.status
