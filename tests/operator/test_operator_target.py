"""What one target needs next, rule by rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import reconcile_cases as cases
from reconcile_cases import (
    CONFIG,
    SERVED,
    STORE,
    after,
    batch,
    beat,
    beats,
    done,
    kinds,
    later,
    look,
    message,
    pod,
    run,
    said,
    wanted,
)
from target_cases import JOB, OLD, SUSPENDED, TRIAL, WANTED, at_work, failed

from tuning_operator.actions import CreateJob, DeleteJob, Publish, StartRun, StopAttempt
from tuning_operator.snapshot import Problem

# 1: nothing to do, nothing known


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    deleted = after(cases.job(deleted=True), look(JOB))
    decision = look(deleted, **at_work())
    assert (decision.actions, decision.again_seconds, decision.status) == ((), None, deleted.status)


def test_a_target_that_was_not_looked_at_waits() -> None:
    decision = look(JOB, wanted=None)
    assert (decision.actions, decision.again_seconds) == ((), CONFIG.poll_seconds)


# 2: Jobs that nobody wants


def test_workers_of_an_earlier_run_are_stopped_and_the_new_run_waits() -> None:
    old = batch(OLD, "explore", 2)
    decision = look(JOB, jobs=(old,), pods=(pod(old),))
    assert decision.actions == (StopAttempt(OLD, STORE, 2, "InputsChanged"),)
    assert said(decision.status, "Reconciling") == ("True", "Stopping")
    assert decision.status.targets[0].stopping_since == "2026-11-30T12:00:00Z"
    assert decision.again_seconds is not None
    assert decision.again_seconds < CONFIG.poll_seconds


@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_the_earlier_run_is_over_when_its_job_is(end: str) -> None:
    old = batch(OLD, "explore", 2, end=end)
    decision = look(JOB, jobs=(old,), pods=(pod(old, 0, "Failed", exit_code=67),))
    assert [type(each) for each in decision.actions] == [DeleteJob]
    assert kinds(look(after(JOB, decision))) == ["StartRun"]


def test_workers_of_an_earlier_run_get_one_trials_time() -> None:
    old = batch(OLD, "explore", 2)
    told = after(JOB, look(JOB, jobs=(old,), pods=(pod(old),)))
    assert kinds(look(told, jobs=(old,), pods=(pod(old),), now=later(TRIAL - 1))) == ["StopAttempt"]
    assert kinds(look(told, jobs=(old,), pods=(pod(old),), now=later(TRIAL + 1))) == ["DeleteJob"]


def test_a_clock_that_was_wrong_does_not_make_patience_endless() -> None:
    old = batch(OLD, "explore", 2)
    seen = {"jobs": (old,), "pods": (pod(old),)}
    ahead = after(JOB, look(JOB, **seen, now=later(10**6)))
    again = look(ahead, **seen)
    assert again.status.targets[0].stopping_since == "2026-11-30T12:00:00Z"
    assert kinds(look(after(JOB, again), **seen, now=later(TRIAL + 1))) == ["DeleteJob"]


def test_an_earlier_run_whose_store_is_not_known_is_ended_at_once() -> None:
    old = batch(OLD, "explore", 2)
    snapshot = cases.snapshot(JOB, cases.TargetSnapshot("gpu", wanted=WANTED, jobs=(old,), pods=(pod(old),)))
    assert [type(each) for each in cases.decide(snapshot, CONFIG).actions] == [DeleteJob]


def test_jobs_of_a_removed_target_are_drained_while_others_go_on() -> None:
    removed = batch(OLD, "explore", 4, target="edge")
    seen = cases.TargetSnapshot("gpu", wanted=WANTED, **at_work())
    snapshot = cases.snapshot(JOB, seen, orphans=(removed,), orphan_stores={removed.uid: STORE})
    decision = cases.decide(snapshot, CONFIG)
    assert decision.actions == (StopAttempt(OLD, STORE, 4, "TargetRemoved"),)
    assert [each.name for each in decision.status.targets] == ["gpu", "edge"]
    limit = 900 + CONFIG.workers.stop_grace_seconds
    for seconds, action in ((limit - 1, StopAttempt), (limit + 1, DeleteJob)):
        again = replace(snapshot, job=after(JOB, decision), now=later(seconds))
        assert [type(each) for each in cases.decide(again, CONFIG).actions] == [action]
    gone = replace(snapshot, job=after(JOB, decision), orphans=())
    assert [each.name for each in cases.decide(gone, CONFIG).status.targets] == ["gpu"]


def test_jobs_of_removed_targets_that_the_status_has_no_room_for_end_at_once() -> None:
    names = tuple(f"t{index}" for index in range(12))
    job = cases.job(targets=names)
    seen = [cases.TargetSnapshot(name, wanted=wanted(job, name)) for name in names]
    removed = batch(OLD, "explore", 4, target="edge")
    decision = cases.decide(cases.snapshot(job, *seen, orphans=(removed,), orphan_stores={removed.uid: STORE}), CONFIG)
    assert DeleteJob(removed.name, removed.uid, "its target was removed") in decision.actions
    assert [each.name for each in decision.status.targets] == list(names)


# 3: problems before any run


def test_a_problem_that_may_mend_itself_waits() -> None:
    decision = look(JOB, problem=Problem("StoreUnavailable", "no answer", transient=True))
    assert (decision.actions, decision.again_seconds) == ((), CONFIG.poll_seconds)
    assert said(decision.status, "Reconciling") == ("True", "StoreUnavailable")


def test_a_problem_that_a_person_must_mend_stalls() -> None:
    decision = look(JOB, problem=Problem("ReferenceNotFound", "there is no TunerRuntime x"), wanted=None)
    assert (decision.actions, decision.again_seconds) == ((), None)
    assert said(decision.status, "Stalled") == ("True", "ReferenceNotFound")
    assert message(decision.status, "Stalled") == "there is no TunerRuntime x"


def test_workers_go_on_while_a_reference_is_missing() -> None:
    live = batch(WANTED, "explore", 2)
    assert look(JOB, problem=Problem("ReferenceNotFound", "x"), wanted=None, jobs=(live,), pods=(pod(live),)).actions == ()


def test_workers_whose_runtime_vanished_keep_to_the_budget() -> None:
    live = batch(WANTED, "explore", 2)
    begun = after(JOB, look(JOB, **at_work()))
    known = run(WANTED, "explore", search={"device_seconds": 100.0}, beats=beats(beat("2-0")))
    seen = cases.TargetSnapshot("gpu", problem=Problem("ReferenceNotFound", "x"), run=known, jobs=(live,), pods=(pod(live),))
    decision = cases.decide(cases.snapshot(begun, seen, orphan_stores={live.uid: STORE}), CONFIG)
    assert decision.actions == (StopAttempt(WANTED.run, STORE, 2, "BudgetExhausted"),)
    assert decision.again_seconds == CONFIG.poll_seconds
    assert said(decision.status, "Stalled") == ("True", "ReferenceNotFound")
    told = replace(seen, run=replace(known, stopped=frozenset({2})))
    assert cases.decide(cases.snapshot(begun, told, orphan_stores={live.uid: STORE}), CONFIG).actions == ()


def test_workers_of_a_namespace_that_may_not_use_the_store_any_more_are_ended() -> None:
    live = batch(WANTED, "explore", 2)
    begun = after(JOB, look(JOB, **at_work()))
    seen = cases.TargetSnapshot("gpu", problem=Problem("NamespaceNotAllowed", "x"), jobs=(live,), pods=(pod(live),))
    decision = cases.decide(cases.snapshot(begun, seen), CONFIG)
    assert kinds(decision) == ["DeleteJob"]
    assert said(decision.status, "Stalled") == ("True", "NamespaceNotAllowed")
    gone = cases.TargetSnapshot("gpu", problem=seen.problem)
    assert cases.decide(cases.snapshot(begun, gone), CONFIG).again_seconds is None


def test_another_run_is_not_tuned_while_the_store_is_away() -> None:
    away = Problem("StoreUnavailable", "no answer", transient=True)
    settled = done(JOB)
    assert said(look(settled, problem=away).status, "Tuned") == ("True", "Proven")
    edited = cases.job(model={"uri": "https://models.example/other.onnx"}, generation=2, status=settled.status)
    assert said(look(edited, problem=away).status, "Tuned") == ("False", "StoreUnavailable")


def test_a_problem_that_has_passed_leaves_nothing_behind() -> None:
    settled = done(JOB)
    stalled = after(settled, look(settled, problem=Problem("ReferenceNotFound", "x"), wanted=None))
    assert said(stalled.status or cases.TuningJobStatus(), "Ready") == ("False", "ReferenceNotFound")
    assert look(stalled).status == settled.status


# 4: ended runs


def test_a_finished_job_asks_for_nothing() -> None:
    settled = done(JOB)
    decision = look(settled, now=later(86_400))
    assert (decision.actions, decision.again_seconds, decision.status) == ((), None, settled.status)


def test_a_changed_spec_of_the_same_inputs_publishes_again_and_starts_nothing() -> None:
    changed = done(JOB).model_copy(update={"metadata": JOB.metadata.model_copy(update={"generation": 2})})
    asked = look(changed, run=run(WANTED, None))
    assert asked.actions == (Publish("gpu", WANTED),)
    assert asked.status.observed_generation == 1
    published = look(after(changed, asked), run=run(WANTED, None), publication=SERVED)
    assert published.actions == ()
    assert published.status.observed_generation == 2
    assert published.status.targets[0].recent_runs == (done(JOB).status or cases.TuningJobStatus()).targets[0].recent_runs


def test_publishing_again_that_may_work_later_is_tried_again() -> None:
    changed = done(JOB).model_copy(update={"metadata": JOB.metadata.model_copy(update={"generation": 2})})
    away = Problem("StoreUnavailable", "no answer", transient=True)
    decision = look(changed, run=run(WANTED, None), publication=away)
    assert kinds(decision) == ["Publish"]
    assert (decision.again_seconds, decision.status.observed_generation) == (CONFIG.poll_seconds, 1)


def settled_runs(of: Any) -> Any:
    return of.status.targets[0].recent_runs


def test_an_engine_whose_publishing_anew_is_refused_is_not_stale() -> None:
    """A pin to a manifest that is not there, an approval of another's."""
    changed = after(JOB, look(done(JOB)), generation=2)
    mine = run(WANTED, None, verdict=replace(cases.WON, engine=cases.ENGINE.digest))
    refused = look(changed, run=mine, publication=Problem("ManifestMissing", "there is no such manifest"))
    assert said(refused.status, "Stalled") == ("True", "ManifestMissing")
    assert said(refused.status, "Stale")[0] == "False"
    other = run(WANTED, None, verdict=replace(cases.WON, engine="sha256:" + "0" * 64))
    stale = look(changed, run=other, publication=Problem("ManifestMissing", "there is no such manifest"))
    assert said(stale.status, "Stale")[0] == "True"


def test_publishing_again_that_is_refused_reopens_the_run() -> None:
    changed = done(JOB).model_copy(update={"metadata": JOB.metadata.model_copy(update={"generation": 2})})
    refused = look(changed, run=run(WANTED, None), publication=Problem("PointerRefused", "it is another owner's"))
    assert kinds(refused) == ["Publish"]
    assert said(refused.status, "Stalled") == ("True", "PointerRefused")
    assert refused.status.targets[0].recent_runs == settled_runs(changed)
    assert refused.status.targets[0].active_run == WANTED.run
    still = look(after(changed, refused), run=run(WANTED, None), publication=Problem("PointerRefused", "it is another owner's"))
    assert still.status == refused.status
    mended = look(after(changed, refused), run=run(WANTED, None), publication=SERVED)
    assert said(mended.status, "Ready") == ("True", "Current")
    assert [each.id for each in mended.status.targets[0].recent_runs] == [WANTED.run]


def test_a_failed_run_is_remembered_and_not_started_again() -> None:
    stalled = after(JOB, look(JOB, **failed("discover", 1, code=64, reason="UnknownKnob", message="no knob -x")))
    decision = look(stalled)
    assert (decision.actions, decision.again_seconds, decision.status) == ((), None, stalled.status)
    changed = stalled.model_copy(update={"metadata": JOB.metadata.model_copy(update={"generation": 2})})
    moved = look(changed, run=run(WANTED, "discover"))
    assert (moved.actions, moved.status.observed_generation) == ((), 2)


@pytest.mark.parametrize(("end", "deleted"), [("Complete", True), ("Failed", True)])
def test_jobs_of_a_good_run_are_deleted(end: str, deleted: bool) -> None:
    last = batch(WANTED, "final", 3, end=end)
    assert (kinds(look(done(JOB), jobs=(last,))) == ["DeleteJob"]) is deleted


def test_the_failed_job_of_a_failed_run_is_kept_for_its_logs() -> None:
    seen = failed("discover", 1, code=64)
    stalled = after(JOB, look(JOB, **seen))
    assert look(stalled, jobs=seen["jobs"]).actions == ()


def test_a_live_job_of_an_ended_run_is_drained() -> None:
    stalled = after(JOB, look(JOB, **failed("discover", 1, code=64)))
    live = batch(WANTED, "discover", 2)
    seen = {"jobs": (live,), "pods": (pod(live),), "run": run(WANTED, "discover", beats=beats(beat("2-0")))}
    assert kinds(look(stalled, **seen)) == ["StopAttempt"]


# 5: suspend


def test_suspending_stops_the_workers_and_then_deletes_the_job() -> None:
    told = look(SUSPENDED, **at_work())
    assert told.actions == (StopAttempt(WANTED.run, STORE, 2, "Suspended"),)
    assert said(told.status, "Suspended") == ("False", "Stopping")
    marked = at_work()
    marked["run"] = replace(marked["run"], stopped=frozenset({2}))
    assert look(after(SUSPENDED, told), **marked).actions == ()
    over = look(after(SUSPENDED, told), run=run(WANTED, "explore", stopped=frozenset({2})), jobs=at_work()["jobs"], pods=())
    assert over.actions == ()  # its pods were not seen, but the Job counts one
    ended = batch(WANTED, "explore", 2, end="Failed")
    assert kinds(look(after(SUSPENDED, told), run=run(WANTED, "explore"), jobs=(ended,))) == ["DeleteJob"]


def test_a_verdict_that_came_while_suspended_is_published_on_resuming() -> None:
    decision = look(SUSPENDED, run=run(WANTED, None))
    assert (decision.actions, decision.again_seconds, decision.status.phase) == ((), None, "Suspended")
    assert said(decision.status, "Tuned") == ("True", "Proven")
    assert kinds(look(after(JOB, decision, generation=3), run=run(WANTED, None))) == ["Publish"]


def test_a_suspended_job_runs_nothing_and_asks_for_nothing() -> None:
    decision = look(SUSPENDED, run=run(WANTED, "explore", stopped=frozenset({2})))
    assert (decision.actions, decision.again_seconds, decision.status.phase) == ((), None, "Suspended")
    assert said(decision.status, "Suspended") == ("True", "Suspended")


def test_workers_that_wait_for_a_place_are_not_waited_for() -> None:
    live = batch(WANTED, "explore", 2)
    seen = {"run": run(WANTED, "explore"), "jobs": (live,), "pods": (pod(live, 0, "Pending"),)}
    assert kinds(look(SUSPENDED, **seen)) == ["DeleteJob"]


def test_suspended_while_the_store_is_away_ends_after_one_trials_time() -> None:
    away = Problem("StoreUnavailable", "no answer", transient=True)
    seen = at_work(run=None, problem=away)
    told = look(SUSPENDED, **seen)
    assert told.actions == ()
    assert kinds(look(after(SUSPENDED, told), now=later(TRIAL + 1), **seen)) == ["DeleteJob"]


def test_suspended_while_a_reference_is_missing_stops_the_workers_all_the_same() -> None:
    live = batch(WANTED, "explore", 2)
    seen = cases.TargetSnapshot("gpu", problem=Problem("ReferenceNotFound", "x"), jobs=(live,), pods=(pod(live),))
    decision = cases.decide(cases.snapshot(SUSPENDED, seen, orphan_stores={live.uid: STORE}), CONFIG)
    assert decision.actions == (StopAttempt(WANTED.run, STORE, 2, "Suspended"),)


def test_resuming_is_a_new_attempt_of_the_unfinished_stage() -> None:
    resumed = after(JOB, look(SUSPENDED, run=run(WANTED, "explore", stopped=frozenset({2}))), generation=3)
    (create,) = look(resumed, run=run(WANTED, "explore", stopped=frozenset({2}))).actions
    assert isinstance(create, CreateJob)
    assert (create.stage, create.attempt, create.failures) == ("explore", 3, 0)


def test_resuming_waits_for_workers_that_are_still_stopping() -> None:
    stopping = at_work()
    stopping["run"] = replace(stopping["run"], stopped=frozenset({2}))
    decision = look(JOB, **stopping)
    assert decision.actions == ()
    assert said(decision.status, "Reconciling") == ("True", "Stopping")


# 6: the start of a run


def test_a_run_is_started_once_its_inputs_are_known() -> None:
    decision = look(JOB)
    assert decision.actions == (StartRun("gpu", WANTED, 2, "Created"),)
    assert decision.again_seconds == 0


@pytest.mark.parametrize(
    ("changed", "trigger"),
    [
        (cases.job(rerun={"token": "again"}), "Rerun again"),
        (cases.job(rerun={"token": "again", "reason": "new cooling"}), "Rerun again (new cooling)"),
        (cases.job(model={"uri": "https://models.example/other.onnx"}), "InputsChanged"),
        (cases.job(runtime="ort-1.24"), "RuntimeChanged"),
    ],
)
def test_a_run_says_why_it_was_started(changed: Any, trigger: str) -> None:
    settled = done(JOB)
    (start,) = look(changed.model_copy(update={"status": settled.status})).actions
    assert isinstance(start, StartRun)
    assert start.trigger == trigger


def test_a_second_edit_under_the_same_token_is_no_rerun() -> None:
    first = cases.job(rerun={"token": "again"})
    ended = look(first, run=run(wanted(first), None, search={"trigger": "Rerun again"}), publication=SERVED)
    edited = cases.job(rerun={"token": "again"}, model={"uri": "https://models.example/other.onnx"}, status=ended.status)
    (start,) = look(edited).actions
    assert isinstance(start, StartRun)
    assert start.trigger == "InputsChanged"


@pytest.mark.parametrize("transient", [True, False])
def test_what_was_refused_is_told_and_asked_for_again(transient: bool) -> None:
    no = Problem("QuotaExceeded", "exceeded quota: gpus", transient)
    for seen in ({}, {"run": run(WANTED, "discover")}):
        decision = look(JOB, refused=no, **seen)
        assert len(decision.actions) == 1
        assert said(decision.status, "Stalled")[0] == ("False" if transient else "True")
        assert said(decision.status, "Ready") == ("False", "QuotaExceeded")
        assert decision.again_seconds == CONFIG.poll_seconds


# 7: records that cannot be relied on


def test_a_poisoned_run_is_stopped_and_stalls() -> None:
    poisoned = Problem("PoisonedRecord", "runs/x/rounds/1/plan.json: something else wrote it")
    decision = look(JOB, run_problem=poisoned, **at_work(run=None))
    assert decision.actions == (StopAttempt(WANTED.run, STORE, 2, "PoisonedRecord"),)
    assert said(decision.status, "Stalled") == ("True", "PoisonedRecord")
    assert look(JOB, run_problem=poisoned).actions == ()


def test_records_of_an_ended_run_that_went_bad_count_only_when_they_are_needed() -> None:
    settled = done(JOB)
    poisoned = Problem("PoisonedRecord", "runs/x/verdict.json: something else wrote it")
    assert look(settled, run_problem=poisoned).status == settled.status
    edited = after(JOB, look(settled), generation=2)
    stalled = look(edited, run_problem=poisoned)
    assert said(stalled.status, "Stalled") == ("True", "PoisonedRecord")
    assert look(after(edited, stalled), run_problem=poisoned).status == stalled.status
    assert kinds(look(after(edited, stalled), run=run(WANTED, None))) == ["Publish"]  # somebody put it right


def test_a_failed_run_stays_failed_whatever_its_records_say() -> None:
    stalled = after(JOB, look(JOB, **failed("discover", 1, code=64)), generation=2)
    decision = look(stalled, run_problem=Problem("PoisonedRecord", "x"))
    assert said(decision.status, "Stalled") == ("True", "InvalidInput")


# 8: verdicts


def test_a_verdict_is_published_and_then_the_run_ends() -> None:
    asked = look(JOB, run=run(WANTED, None))
    assert asked.actions == (Publish("gpu", WANTED),)
    assert asked.status.targets[0].active_run == WANTED.run
    ended = look(after(JOB, asked), run=run(WANTED, None), publication=SERVED)
    target = ended.status.targets[0]
    assert ended.actions == ()
    assert (target.active_run, target.published) == (None, SERVED.served)
    assert [(each.id, each.reason, each.trigger) for each in target.recent_runs] == [(WANTED.run, "Proven", "Created")]


def test_the_last_worker_may_leave_before_its_job_is_deleted() -> None:
    live = batch(WANTED, "final", 3)
    seen = {"run": run(WANTED, None), "jobs": (live,), "pods": (pod(live),), "publication": SERVED}
    waiting = look(JOB, **seen)
    assert waiting.actions == ()
    assert waiting.status.targets[0].active_run == WANTED.run
    late = look(after(JOB, waiting), now=later(CONFIG.workers.stop_grace_seconds + 1), **seen)
    assert kinds(late) == ["DeleteJob"]
    ended = replace(live, end="Complete", active=0)
    assert kinds(look(after(JOB, waiting), **seen | {"jobs": (ended,), "pods": ()})) == ["DeleteJob"]


def test_a_publication_that_is_refused_stalls_and_is_tried_again_at_the_next_look() -> None:
    decision = look(JOB, run=run(WANTED, None), publication=Problem("KeyUnusable", "no key"))
    assert (decision.actions, decision.again_seconds) == ((Publish("gpu", WANTED),), None)
    assert said(decision.status, "Stalled") == ("True", "KeyUnusable")
    assert said(decision.status, "Tuned") == ("True", "Proven")


def test_only_the_last_ten_runs_are_kept() -> None:
    job = JOB
    for token in range(12):
        job = cases.job(rerun={"token": f"t{token}"}, status=job.status)
        job = after(job, look(job, run=run(wanted(job), None), publication=SERVED))
    assert job.status is not None
    recent = job.status.targets[0].recent_runs
    assert len(recent) == 10
    assert recent[0].id == wanted(job).run


def test_going_back_to_earlier_inputs_publishes_their_verdict_again() -> None:
    first = done(JOB)
    other = cases.job(model={"uri": "https://models.example/other.onnx"}, status=first.status)
    second = done(other)
    back = JOB.model_copy(update={"status": second.status})
    assert kinds(look(back, run=run(WANTED, None))) == ["Publish"]
    ended = look(back, run=run(WANTED, None), publication=SERVED)
    assert [each.id for each in ended.status.targets[0].recent_runs] == [WANTED.run, wanted(other).run]


@pytest.mark.parametrize("how_far", ["stopping", "exploring", "publishing"])
def test_going_back_before_the_new_run_ended_finds_the_old_one_as_it_was(how_far: str) -> None:
    edited = cases.job(model={"uri": "https://models.example/other.onnx"}, generation=2, status=done(JOB).status)
    other = wanted(edited)
    live = batch(other, "explore", 1)
    seen = {
        "stopping": {"jobs": (batch(OLD, "explore", 1),)},
        "exploring": {"run": run(other, "explore"), "jobs": (live,), "pods": (pod(live),)},
        "publishing": {"run": run(other, None)},
    }[how_far]
    begun = look(edited, **seen)
    back = after(JOB, begun, generation=3)
    if how_far == "exploring":
        leaving = look(back, jobs=(live,), pods=(pod(live),))
        assert kinds(leaving) == ["StopAttempt"]
        back = after(JOB, leaving, generation=3)
    read = look(back)  # nothing of the run was read, for it seemed to be over
    assert kinds(read) == ["StartRun"]
    assert read.status.targets[0].recent_runs == ()
    again = look(after(JOB, read, generation=3), run=run(WANTED, None), publication=SERVED)
    assert said(again.status, "Ready") == ("True", "Current")
    assert look(after(JOB, again, generation=3)).status == again.status


# 9: convictions


def test_a_convicted_stage_ends_the_run() -> None:
    convicted = Problem("StageConvicted", "stage discover: killed three times")
    decision = look(JOB, run=run(WANTED, "discover", convicted=convicted))
    assert decision.actions == ()
    assert said(decision.status, "Stalled") == ("True", "StageConvicted")
    assert [each.reason for each in decision.status.targets[0].recent_runs] == ["StageConvicted"]
