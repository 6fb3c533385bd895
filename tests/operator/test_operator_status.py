"""The published truth table, and what a job's status is made of."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reconcile_cases as cases
from reconcile_cases import CONFIG, ENGINE, SERVED, after, batch, beat, beats, done, later, look, message, pod, run, said, wanted
from status_table import JOB, STATES, TWO, at_work, cells, two

from tuner_job.api.conditions import ConditionType, Reason
from tuner_job.api.measurement import Device
from tuner_job.api.tuningjob_status import GainInterval, Incumbent, PublishedEngine, TuningJobStatus
from tuning_operator.reconcile.decide import decide, decide_unreadable
from tuning_operator.snapshot import Problem, Publication, TargetSnapshot, WorkerCounts

PAGE = (Path(__file__).parents[2] / "docs" / "status.md").read_text(encoding="utf-8")
WANTED = wanted(JOB)


def table(heading: str) -> list[list[str]]:
    """Rows of the first table below a heading, its head first."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


TRUTH = {state: told for state, *told in table("Truth table")[1:]}


def test_the_table_has_every_state_and_condition() -> None:
    assert list(TRUTH) == list(STATES)
    assert table("Truth table")[0] == ["state", "phase", *(each.value for each in ConditionType)]


@pytest.mark.parametrize("state", STATES)
def test_the_truth_table_holds(state: str) -> None:
    status = STATES[state]()
    assert [each.type for each in status.conditions] == [each.value for each in ConditionType]
    assert cells(status) == TRUTH[state]


@pytest.mark.parametrize("state", STATES)
def test_every_state_obeys_kstatus(state: str) -> None:
    """At most one of the three holds, but for an engine that is served while something else moves."""
    status = STATES[state]()
    holds = {kind for kind in ("Ready", "Reconciling", "Stalled") if said(status, kind)[0] == "True"}
    assert len(holds) <= 1 or holds == {"Ready", "Reconciling"}
    assert (status.phase == "Stalled") == (said(status, "Stalled")[0] == "True")


@pytest.mark.parametrize("state", STATES)
def test_a_person_is_told_why_the_job_is_not_ready(state: str) -> None:
    status = STATES[state]()
    assert message(status, "Ready")
    for kind in ("Reconciling", "Stalled"):
        assert said(status, kind)[0] == "False" or message(status, kind)


def test_every_reason_is_explained_once() -> None:
    words = [re.sub("`", "", row[0]) for row in table("Reasons")[1:] if row[0].startswith("`") and "," not in row[0]]
    explained = [word for word in words if word in set(Reason)]
    assert sorted(explained) == sorted(each.value for each in Reason)
    for row in table("Reasons")[1:]:
        assert all(row), row


def test_conditions_are_named_in_the_table_of_conditions() -> None:
    assert [row[0].strip("`") for row in table("Conditions")[1:]] == [each.value for each in ConditionType]


# counters


def counted(finished: int, *, planned: int = 8, seconds: float = 100.0, run_of: Any = JOB) -> dict[str, Any]:
    counts = WorkerCounts({"feasible": finished}, cached=finished, running=2, device_seconds=seconds)
    live = batch(wanted(run_of), "explore", 2)
    known = run(wanted(run_of), "explore", counts=counts, planned=planned, beats=beats(beat("2-0")))
    return {"run": known, "jobs": (live,), "pods": (pod(live),)}


def test_counters_of_a_run_never_go_down() -> None:
    before = look(JOB, **counted(5))
    target = look(after(JOB, before), **counted(3, planned=6, seconds=40.0)).status.targets[0]
    assert target.trials is not None
    assert (target.trials.feasible, target.trials.planned, target.trials.cache_hits, target.gpu_seconds) == (5, 8, 5, 100)
    assert target.progress == "5/8"


def test_another_run_counts_from_nothing() -> None:
    before = look(JOB, **counted(5))
    edited = cases.job(model={"uri": "https://models.example/other.onnx"}, status=before.status)
    target = look(edited, **counted(1, run_of=edited)).status.targets[0]
    assert target.trials is not None
    assert (target.trials.feasible, target.progress) == (1, "1/8")


def test_counters_of_a_run_that_was_given_up_are_not_taken_for_the_last_ones() -> None:
    settled = done(JOB)
    other = cases.job(model={"uri": "https://models.example/other.onnx"}, status=settled.status)
    begun = look(other, **counted(1, run_of=other))
    assert begun.status.progress == "1/8"
    back = look(JOB.model_copy(update={"status": begun.status}))
    target = back.status.targets[0]
    assert (target.trials, target.progress, target.active_run) == (None, None, None)


def test_the_time_of_progress_moves_only_when_a_trial_ended() -> None:
    first = look(JOB, **counted(0))
    assert first.status.targets[0].last_progress_time is None
    some = look(after(JOB, first), now=later(60), **counted(1))
    same = look(after(JOB, some), now=later(120), **counted(1, seconds=200.0))
    assert same.status.targets[0].last_progress_time == "2026-11-30T12:01:00Z"
    assert same.status.targets[0].gpu_seconds == 200


def test_progress_is_never_over_what_was_planned() -> None:
    assert look(JOB, **counted(11)).status.progress == "8/8"


def test_outcomes_are_counted_by_kind() -> None:
    ended = {"feasible": 4, "infeasible": 3, "refused": 1, "crashed": 1, "hung": 1, "outOfMemory": 1, "invalidOutput": 1}
    known = run(WANTED, "explore", counts=WorkerCounts(ended | {"infrastructure": 1, "unsupported": 2}))
    trials = look(JOB, run=known).status.targets[0].trials
    assert trials is not None
    assert (trials.feasible, trials.infeasible, trials.failed, trials.unsupported) == (4, 3, 6, 2)


def test_a_lying_worker_cannot_make_the_status_unwritable() -> None:
    known = run(WANTED, "explore", counts=WorkerCounts({"feasible": 10**30}, device_seconds=1e30), planned=10**30)
    status = look(JOB, run=known).status
    assert TuningJobStatus.from_json(status.to_json()) == status
    assert max(int(number) for number in re.findall(r"[0-9]{10,}", status.to_json().decode())) < 2**31


# aggregation


def test_progress_and_speedup_are_of_all_targets() -> None:
    edge = SERVED.served.model_copy(update={"speedup": "0.25"}) if SERVED.served else None
    ended = {
        name: {"run": run(wanted(TWO, name), None), "publication": Publication("Served", ENGINE.manifest, engine)}
        for name, engine in (("gpu", ENGINE), ("edge", edge))
    }
    status = two(ended["gpu"], ended["edge"])
    assert (status.progress, status.best_speedup) == ("10/16", "25.0%")


def test_messages_of_several_targets_name_theirs() -> None:
    stalled = {"run_problem": Problem("PoisonedRecord", "runs/x: something else wrote it")}
    status = two(stalled, at_work(TWO, "explore", target="edge"))
    assert message(status, "Ready").startswith("gpu: runs/x")
    assert message(status, "Reconciling").startswith("edge: round 1")
    assert message(status, "Stalled") == "gpu: runs/x: something else wrote it (PoisonedRecord); others go on"


def test_transition_times_move_with_the_condition_only() -> None:
    first = look(JOB, **counted(1))
    second = look(after(JOB, first), now=later(60), **counted(2))
    assert [each.last_transition_time for each in second.status.conditions] == ["2026-11-30T12:00:00Z"] * 8
    final = look(after(JOB, second), now=later(120), run=run(WANTED, None), publication=SERVED)
    turned = {each.type for each in final.status.conditions if each.last_transition_time == "2026-11-30T12:02:00Z"}
    assert turned == {"Ready", "Reconciling", "Tuned", "Published"}


def test_conditions_carry_the_generation_that_was_seen() -> None:
    edited = cases.job(generation=7)
    status = look(edited, **counted(1)).status
    assert status.observed_generation == 7
    assert {each.observed_generation for each in status.conditions} == {7}
    assert {each.observed_generation for each in status.targets[0].conditions} == {7}


def test_an_engine_of_another_pointer_stays_known() -> None:
    """A new runtime has a pointer of its own, which has not moved yet; the old one still serves."""
    newer = cases.job(runtime="ort-1.24", generation=2, status=done(JOB).status)
    held = Publication("AwaitingApproval", "sha256:" + "b" * 64, None)
    status = look(newer, run=run(wanted(newer), None), publication=held).status
    assert status.targets[0].published == ENGINE
    assert said(status, "Stale") == ("True", "RuntimeChanged")


# what must never grow, nor break


def largest(letter: str) -> TuningJobStatus:
    """Twelve targets at all their bounds, told by people who write `letter`."""
    names = tuple(f"{index:02d}" + "n" * 61 for index in range(12))
    job = cases.job(targets=names)
    engine = PublishedEngine(
        uri="s3://" + "u" * 395,
        digest=ENGINE.digest,
        manifest=ENGINE.manifest,
        runtime="r" * 63,
        speedup="-123456.123456",
        interval=GainInterval(low="-123456.123456", high="-123456.123456", confidence="0.9999"),
    )
    for token in range(11):
        job = cases.job(targets=names, rerun={"token": f"{token:064d}", "reason": letter * 256}, status=job.status)
        seen = [
            TargetSnapshot(
                name,
                wanted=wanted(job, name),
                run=run(
                    wanted(job, name),
                    None,
                    search={"trigger": letter * 24},
                    incumbent=Incumbent(variant="v" * 63, route=letter * 384, gain="-123456.123456"),
                    device=Device(type="GPU", product=letter * 300),
                    counts=WorkerCounts({"feasible": 2**40, "infeasible": 2**40}, cached=2**40),
                    planned=2**40,
                ),
                publication=Publication("AwaitingApproval", ENGINE.manifest, engine),
            )
            for name in names
        ]
        job = after(job, decide(cases.snapshot(job, *seen), CONFIG))
    seen = [replace(each, run=replace(each.run, verdict=None, stage="explore")) for each in seen if each.run]
    refused = Problem("R" * 32, letter * 400)
    job = cases.job(targets=names, rerun={"token": "last"}, status=job.status)
    again = [replace(each, wanted=wanted(job, each.name), refused=refused) for each in seen]
    return decide(cases.snapshot(job, *again), CONFIG).status


@pytest.mark.parametrize("letter", ["x", "ü", "路", "🚀", '"', "\\"])
def test_the_largest_status_has_at_most_64_kib(letter: str) -> None:
    status = largest(letter)
    assert len(status.targets) == 12
    assert len(status.to_json()) <= 64 << 10
    kept = 1 if letter == "🚀" else 10  # four bytes a letter: the past gives way
    assert {len(each.recent_runs) for each in status.targets} == {kept}
    assert TuningJobStatus.from_json(status.to_json()) == status


def test_a_spec_that_cannot_be_read_keeps_what_is_known_and_asks_for_nothing() -> None:
    settled = done(JOB)
    decision = decide_unreadable(settled.status, 5, Problem("InvalidSpec", "spec.targets: Field required"), later(60))
    assert (decision.actions, decision.again_seconds) == ((), None)
    assert settled.status is not None
    assert decision.status.targets == settled.status.targets
    assert decision.status.observed_generation == 5
    assert message(decision.status, "Stalled") == "spec.targets: Field required"
    again = decide_unreadable(decision.status, 5, Problem("InvalidSpec", "spec.targets: Field required"), later(120))
    assert again == decision
    mended = look(
        JOB.model_copy(update={"status": decision.status, "metadata": JOB.metadata.model_copy(update={"generation": 6})})
    )
    assert said(mended.status, "Stalled")[0] == "False"


def test_the_status_of_a_deleted_spec_field_does_not_come_back() -> None:
    two_targets = two(at_work(TWO, "explore"), at_work(TWO, "explore", target="edge"))
    decision = look(JOB.model_copy(update={"status": two_targets}), **at_work(JOB, "explore"))
    assert [each.name for each in decision.status.targets] == ["gpu"]
