"""What is noted of workers that died without a word."""

from __future__ import annotations

from typing import Any

import pytest
import reconcile_cases as cases
from reconcile_cases import batch, beat, beats, later, look, pod, run, wanted

from tuner_job.api.messages import BeatState
from tuning_operator.actions import RecordDeath

JOB = cases.job()
WANTED = wanted(JOB)
WORKERS = batch(WANTED, "explore", 2)


def deaths(**seen: Any) -> list[RecordDeath]:
    return [action for action in look(JOB, **seen).actions if isinstance(action, RecordDeath)]


@pytest.mark.parametrize(
    ("ended", "cause"),
    [
        ({"exit_code": 137}, "unexplained"),
        ({"exit_code": 139}, "unexplained"),
        ({"exit_code": 70, "reason": "InternalError"}, "unexplained"),
        ({"exit_code": 137, "oom_killed": True}, "outOfMemory"),
        ({"exit_code": 137, "oom_killed": True, "deleting": True}, "outOfMemory"),
        ({"exit_code": 137, "deleting": True}, "explained"),
        ({"exit_code": 137, "disrupted": "PreemptionByScheduler"}, "explained"),
        ({"exit_code": 143}, "explained"),
        ({"exit_code": 0}, "explained"),
        ({"exit_code": 64}, "explained"),
        ({"exit_code": 65}, "explained"),
        ({"exit_code": 66}, "explained"),
        ({"exit_code": 67}, "explained"),
        ({}, "explained"),
    ],
)
def test_a_pod_that_is_over_tells_the_cause(ended: dict[str, Any], cause: str) -> None:
    (death,) = deaths(
        run=run(WANTED, "explore", beats=beats(beat("2-0"))),
        jobs=(WORKERS,),
        pods=(pod(WORKERS, 0, "Failed", **ended),),
    )
    assert (death.worker, death.worker_id, death.cause, death.run) == ("2-0", "pod-2-0", cause, WANTED.run)


def test_a_pod_that_is_no_more_says_nothing_about_the_trial() -> None:
    (death,) = deaths(run=run(WANTED, "explore", beats=beats(beat("2-0"), beat("2-1"))), jobs=(WORKERS,), pods=(pod(WORKERS, 1),))
    assert (death.worker, death.cause) == ("2-0", "explained")


def test_a_beat_of_an_earlier_pod_of_the_same_worker_is_a_death() -> None:
    gone = beat("2-0", worker_id="earlier")
    (death,) = deaths(run=run(WANTED, "explore", beats=beats(gone)), jobs=(WORKERS,), pods=(pod(WORKERS),))
    assert death.worker_id == "earlier"


@pytest.mark.parametrize("state", [each for each in BeatState if each is not BeatState.RUNNING])
def test_who_said_how_it_ended_is_believed(state: BeatState) -> None:
    ended = pod(WORKERS, 0, "Failed", exit_code=137)
    assert deaths(run=run(WANTED, "explore", beats=beats(beat("2-0", state=state))), jobs=(WORKERS,), pods=(ended,)) == []


def test_a_worker_of_a_job_that_is_not_this_ones_is_dead_only_when_it_is_silent() -> None:
    """A TuningJob was deleted and made anew: its workers may take their time to leave."""
    seen = {"run": run(WANTED, "explore", beats=beats(beat("1-0"))), "jobs": (WORKERS,), "pods": (pod(WORKERS),)}
    assert deaths(**seen, now=later(30)) == []
    (death,) = deaths(**seen, now=later(61))
    assert (death.worker, death.cause) == ("1-0", "explained")


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
def test_who_may_be_alive_is_not_buried(phase: str) -> None:
    alive = pod(WORKERS, 0, phase, deleting=True)
    assert deaths(run=run(WANTED, "explore", beats=beats(beat("2-0"))), jobs=(WORKERS,), pods=(alive,)) == []


def test_a_run_with_a_verdict_has_nobody_who_waits() -> None:
    assert deaths(run=run(WANTED, None, beats=beats(beat("3-0")))) == []


def test_deaths_are_noted_before_anything_is_started() -> None:
    left = beats(beat("2-0", state=BeatState.DONE), beat("1-0"))
    decision = look(JOB, run=run(WANTED, "explore", beats=left), now=later(61))
    assert cases.kinds(decision) == ["RecordDeath", "CreateJob"]


def test_words_of_a_pod_are_made_one_line() -> None:
    odd = pod(WORKERS, 0, "Failed", exit_code=1, reason="Bad\nReason\ud800" + "x" * 500)
    (death,) = deaths(run=run(WANTED, "explore", beats=beats(beat("2-0"))), jobs=(WORKERS,), pods=(odd,))
    assert death.detail.isprintable()
    assert len(death.detail.encode()) <= 192
