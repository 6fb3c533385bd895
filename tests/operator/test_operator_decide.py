"""decide as a whole: pure, never at a loss, ending things before it starts others."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import reconcile_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st
from reconcile_cases import CONFIG, ENGINE, NOON, STORE, WON, batch, beat, pod, run, wanted
from status_table import STATES

from tuner_job.api.messages import BeatState
from tuner_job.api.tuningjob_status import TuningJobStatus
from tuning_operator.actions import CreateJob, Publish, StartRun
from tuning_operator.reconcile.decide import decide
from tuning_operator.snapshot import Problem, Publication, RunView, Snapshot, TargetSnapshot, WorkerCounts

JOBS = [cases.job(suspend=suspend, targets=targets) for suspend in (False, True) for targets in (("gpu",), ("gpu", "edge"))]
STATUSES = [None, TuningJobStatus(), *(make() for make in STATES.values())]

WORDS = st.sampled_from(["", "Odd", "two words", "ümläut", "x" * 300, "\x00\n\ud800", "Rerun a"])
PROBLEMS = st.none() | st.builds(Problem, WORDS, WORDS, st.booleans())
STAGES: Any = st.sampled_from(["discover", "explore", "final"])
SMALL = st.integers(0, 4)


@st.composite
def jobs(draw: st.DrawFn, run_id: str) -> Any:
    end = draw(st.sampled_from([None, "Complete", "Failed"]))
    return batch(
        draw(st.sampled_from([run_id, "0" * 20])),
        draw(STAGES),
        draw(st.integers(1, 4)),
        failures=draw(SMALL),
        suspended=draw(st.booleans()),
        deleting=draw(st.booleans()),
        active=0 if end else draw(SMALL),
        end=end,
        end_reason=draw(st.sampled_from(["", "PodFailurePolicy", "FailedIndexes"])),
        create_problem=draw(WORDS),
    )


@st.composite
def pods(draw: st.DrawFn, of: Any) -> Any:
    phase = draw(st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]))
    return pod(
        of,
        draw(st.integers(0, 2)),
        phase,
        unschedulable=draw(WORDS),
        waiting=draw(WORDS),
        exit_code=draw(st.sampled_from([None, 0, 64, 65, 66, 67, 70, 137, 143])) if phase in ("Succeeded", "Failed") else None,
        oom_killed=draw(st.booleans()),
        disrupted=draw(WORDS),
        deleting=draw(st.booleans()),
        reason=draw(WORDS),
        message=draw(WORDS),
    )


@st.composite
def runs(draw: st.DrawFn, of: Any) -> RunView:
    found = run(
        of, draw(st.none() | STAGES), search={"trigger": draw(WORDS), "device_seconds": draw(st.sampled_from([0.0, 50.0]))}
    )
    workers = draw(st.lists(st.tuples(st.integers(1, 5), SMALL, st.sampled_from(BeatState)), max_size=3))
    return replace(
        found,
        beats={f"{attempt}-{index}": beat(f"{attempt}-{index}", state=state) for attempt, index, state in workers},
        stopped=draw(st.frozensets(st.integers(1, 5), max_size=2)),
        counts=WorkerCounts({draw(WORDS): 3, "feasible": draw(SMALL)}, device_seconds=draw(st.sampled_from([0.0, 60.0, 1e30]))),
        convicted=draw(PROBLEMS),
        verdict=replace(WON, reason=draw(WORDS), message=draw(WORDS)) if found.verdict else None,
    )


@st.composite
def targets(draw: st.DrawFn, job: Any, name: str) -> TargetSnapshot:
    of = wanted(job, name)
    seen = tuple(draw(st.lists(jobs(of.run), max_size=3)))
    state: Any = st.sampled_from(["Served", "AwaitingApproval", "Pinned", "RolledBack"])
    published = st.builds(Publication, state, st.just(ENGINE.manifest), st.sampled_from([None, ENGINE]))
    return TargetSnapshot(
        name,
        problem=draw(PROBLEMS),
        wanted=draw(st.sampled_from([of, of, None])),
        run=draw(st.none() | runs(of)),
        run_problem=draw(PROBLEMS),
        publication=draw(published | PROBLEMS),
        refused=draw(PROBLEMS),
        jobs=seen,
        pods=tuple(draw(pods(each)) for each in seen for _ in range(draw(st.integers(0, 2)))),
        nodes_of_class=draw(st.sampled_from([None, 0, 1])),
        nodes_of_target=draw(st.sampled_from([None, 0, 1])),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    job = draw(st.sampled_from(JOBS)).model_copy(update={"status": draw(st.sampled_from(STATUSES))})
    seen = tuple(draw(targets(job, each.name)) for each in job.spec.targets if draw(st.integers(0, 9)))
    orphans = tuple(replace(each, target="gone") for each in draw(st.lists(jobs("1" * 20), max_size=2)))
    known = draw(st.booleans())
    now = NOON + timedelta(seconds=draw(st.sampled_from([-50, 0, 1, 61, 10_000])))
    return Snapshot(job, now, seen, orphans, {"0" * 20: STORE, "1" * 20: STORE} if known else {})


@settings(max_examples=200, deadline=None)
@given(snapshots())
def test_whatever_is_seen_there_is_a_decision(snapshot: Snapshot) -> None:
    decision = decide(snapshot, CONFIG)
    assert decide(snapshot, CONFIG) == decision
    assert TuningJobStatus.from_json(decision.status.to_json()) == decision.status
    assert len(decision.status.conditions) == 8
    assert decision.again_seconds != 0 or decision.actions, "it would be looked at for ever"
    starts = [isinstance(each, StartRun | CreateJob | Publish) for each in decision.actions]
    assert starts == sorted(starts)
    for create in (each for each in decision.actions if isinstance(each, CreateJob)):
        seen = next(each for each in snapshot.targets if each.name == create.target)
        assert not snapshot.job.spec.suspend
        assert all(each.end is not None for each in seen.jobs)
        assert create.attempt > max((each.attempt for each in seen.jobs if each.run == create.wanted.run), default=0)
        assert seen.problem is None
        assert seen.run_problem is None


@settings(max_examples=100, deadline=None)
@given(snapshots())
def test_looking_again_at_the_same_world_writes_nothing_more(snapshot: Snapshot) -> None:
    """The status that was written is what the next look at an unchanged world comes to, but for an end that it remembers."""
    first = decide(snapshot, CONFIG)
    second = decide(replace(snapshot, job=cases.after(snapshot.job, first)), CONFIG)
    third = decide(replace(snapshot, job=cases.after(snapshot.job, second)), CONFIG)
    fourth = decide(replace(snapshot, job=cases.after(snapshot.job, third)), CONFIG)
    assert fourth.status == third.status


@pytest.mark.parametrize("state", STATES)
def test_a_stored_status_of_any_state_is_a_start(state: str) -> None:
    """An operator that meets the status of another version, or of another time, goes on from what is there."""
    job = cases.job(status=STATES[state](), generation=9)
    decision = cases.look(job, run=run(wanted(job), "explore"))
    assert cases.kinds(decision) in (["CreateJob"], [])
