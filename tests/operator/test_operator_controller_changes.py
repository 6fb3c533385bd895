"""What a new status tells beyond the stored one."""

from __future__ import annotations

from typing import Any

import pytest

from tuner_job.api.conditions import Condition
from tuner_job.api.tuningjob_status import Incumbent, PastRun, Phase, TargetStatus, TrialCounts, TuningJobStatus
from tuning_operator.changes import Transition, only_progress, transitions

EARLIER, AT = "2026-11-30T10:00:00Z", "2026-11-30T10:05:00Z"
RUN = "0123456789abcdef0123"


def condition(kind: str, status: Any, reason: str, message: str = "") -> Condition:
    return Condition(
        type=kind, status=status, reason=reason, message=message, last_transition_time=EARLIER, observed_generation=1
    )


def exploring(**fields: Any) -> TuningJobStatus:
    told = {"active_run": RUN, "trials": TrialCounts(planned=9, feasible=3), "progress": "3/9", "gpu_seconds": 40, **fields}
    return TuningJobStatus(
        observed_generation=1,
        phase="Exploring",
        progress="3/9",
        conditions=(condition("Reconciling", "True", "Exploring", "3 of 9 trials ended"),),
        targets=(TargetStatus(name="a", conditions=(condition("Ready", "False", "Exploring"),), **told),),
    )


def changed(status: TuningJobStatus, **fields: Any) -> TuningJobStatus:
    return status.model_copy(update=fields)


def target_changed(**fields: Any) -> TuningJobStatus:
    status = exploring()
    return changed(status, targets=(status.targets[0].model_copy(update=fields),))


@pytest.mark.parametrize(
    "after",
    [
        changed(exploring(), progress="4/9"),
        changed(exploring(), conditions=(condition("Reconciling", "True", "Exploring", "4 of 9 trials ended"),)),
        target_changed(trials=TrialCounts(planned=9, feasible=4), progress="4/9", gpu_seconds=50, last_progress_time=AT),
        target_changed(incumbent=Incumbent(variant="default", route="", gain="0.1")),
    ],
)
def test_counts_times_and_words_are_only_progress(after: TuningJobStatus) -> None:
    assert only_progress(exploring(), after)
    assert transitions(exploring(), after) == ()


@pytest.mark.parametrize(
    "after",
    [
        changed(exploring(), observed_generation=2),
        changed(exploring(), phase="Proving"),
        changed(exploring(), conditions=(condition("Reconciling", "True", "Proving", "3 of 9 trials ended"),)),
        changed(exploring(), best_speedup="12%"),
        changed(exploring(), targets=()),
        target_changed(active_run=None),
        target_changed(awaiting_approval="sha256:" + "0" * 64),
        target_changed(conditions=()),
    ],
)
def test_anything_else_is_more_than_progress(after: TuningJobStatus) -> None:
    assert not only_progress(exploring(), after)


def test_a_run_that_starts_is_told() -> None:
    before = target_changed(active_run=None)
    assert transitions(before, exploring()) == (Transition("Normal", "RunStarted", f"target a: run {RUN}"),)


def test_a_run_that_ends_well_is_told_with_its_end() -> None:
    past = PastRun(id=RUN, trigger="Created", reason="Proven", finished_time=AT)
    after = target_changed(active_run=None, recent_runs=(past,))
    assert transitions(exploring(), after) == (Transition("Normal", "RunEnded", f"target a: run {RUN} ended: Proven"),)


def test_a_run_that_fails_is_a_warning() -> None:
    past = PastRun(id=RUN, trigger="Created", reason="BaselineFailed", finished_time=AT)
    (told,) = transitions(exploring(), target_changed(active_run=None, recent_runs=(past,)))
    assert (told.type, told.reason) == ("Warning", "RunEnded")


def test_several_conditions_that_turn_for_one_reason_are_told_once_with_the_words_of_stalled() -> None:
    after = changed(
        exploring(),
        phase="Stalled",
        conditions=(
            condition("Ready", "False", "InvalidSpec", "not ready"),
            condition("Stalled", "True", "InvalidSpec", "spec.x is wrong; write y"),
        ),
    )
    assert transitions(exploring(), after) == (Transition("Warning", "InvalidSpec", "spec.x is wrong; write y"),)


def test_a_condition_of_a_target_names_it_and_stands_for_the_same_reason_of_the_job() -> None:
    after = changed(
        target_changed(conditions=(condition("Ready", "False", "Proving", "the final runs"),)),
        phase="Proving",
        conditions=(condition("Reconciling", "True", "Proving", "the final runs"),),
    )
    assert transitions(exploring(), after) == (Transition("Normal", "Proving", "target a: the final runs"),)


def test_a_condition_that_still_does_not_hold_is_not_told() -> None:
    resting = (condition("Stale", "False", "NotPublished"), condition("Tuned", "Unknown", "Queued"))
    assert transitions(exploring(), changed(exploring(), conditions=(*exploring().conditions, *resting))) == ()


def test_a_condition_that_ceases_to_hold_is_told() -> None:
    before = changed(exploring(), conditions=(condition("Suspended", "True", "Suspended"),))
    after = changed(exploring(), conditions=(condition("Suspended", "False", "NotSuspended", "goes on"),))
    assert transitions(before, after) == (Transition("Normal", "NotSuspended", "goes on"),)


@pytest.mark.parametrize(("before", "after"), [("Exploring", "Proving"), (None, "Pending")])
def test_a_phase_is_told_when_nothing_else_tells_it(before: Phase | None, after: Phase) -> None:
    (told,) = transitions(TuningJobStatus(phase=before), TuningJobStatus(phase=after))
    assert (told.type, told.reason) == ("Normal", after)


def test_a_status_that_repeats_itself_tells_nothing() -> None:
    assert transitions(exploring(), exploring()) == ()
