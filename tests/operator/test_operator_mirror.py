from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_cluster import (
    AT,
    DEVICE,
    CountingStore,
    beat,
    begun,
    counting_store,
    finish,
    write_beat,
    write_discovery,
    write_plan,
    write_verdict,
)

from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import PlannedTrial, PlanRecord, ResultRecord, RunRecord, StopRecord
from tuner_job.api.outcome import Outcome
from tuner_job.store import layout
from tuner_job.store.objects import Info, ObjectStore, StoreUnavailable
from tuner_job.store.records import create_record
from tuning_operator.records import mirror as module
from tuning_operator.records.mirror import Mirror, gain_text
from tuning_operator.snapshot import Problem, RunView


@pytest.fixture
def store() -> CountingStore:
    return counting_store()


def view(mirror: Mirror, store: ObjectStore, run: str) -> RunView:
    seen = mirror.read(store, run)
    assert isinstance(seen, RunView), seen
    return seen


def problem(mirror: Mirror, store: ObjectStore, run: str) -> Problem:
    seen = mirror.read(store, run)
    assert isinstance(seen, Problem), seen
    return seen


def result(run: RunRecord, trial: str, **more: Any) -> ResultRecord:
    plain = {"outcome": "crashed", "tries": 3, "worker": "1-0", "worker_id": "w", "finished_at": AT, **more}
    return ResultRecord.model_validate({"run": run.run, "trial": trial, "candidate": Candidate(), **plain})


# A run from its first record to its verdict.


def test_a_run_that_was_never_started_is_none(store: CountingStore) -> None:
    assert Mirror().read(store, "0" * 20) is None


def test_a_run_is_followed_from_stage_to_stage(object_store: ObjectStore) -> None:
    store, mirror = object_store, Mirror()
    run = begun(store, device_seconds=500)
    seen = view(mirror, store, run.run)
    assert (seen.record, seen.stage, seen.round, seen.planned, seen.device) == (run, "discover", 0, 0, None)
    write_discovery(store, run)
    seen = view(mirror, store, run.run)
    assert (seen.stage, seen.device, seen.trial_seconds) == ("discover", DEVICE, 2.0)
    assert seen.reserved_seconds == 15 * 2.0
    write_plan(store, run, 1)
    assert view(mirror, store, run.run).stage == "explore"
    write_plan(store, run, 2, leader={"candidate": {"route": "-k=1"}, "gain": 0.123456})
    seen = view(mirror, store, run.run)
    assert (seen.stage, seen.round, seen.planned) == ("explore", 2, 8)
    assert seen.incumbent is not None
    assert (seen.incumbent.route, seen.incumbent.gain) == ("-k=1", "0.1235")
    write_plan(store, run, 3, stage="final", pick={"route": "-k=1"})
    seen = view(mirror, store, run.run)
    assert (seen.stage, seen.round, seen.planned) == ("final", 3, 8)
    assert seen.incumbent is not None, "the last plan that tells of one"
    verdict = write_verdict(store, run)
    seen = view(mirror, store, run.run)
    assert seen.stage is None
    assert seen.verdict is not None
    assert (seen.verdict.significant, seen.verdict.reason, seen.verdict.message) == (True, "Proven", verdict.message)
    assert verdict.engine_gain is not None
    assert float(seen.verdict.gain) == pytest.approx(verdict.engine_gain.estimate, abs=1e-4)


def test_a_fresh_mirror_sees_the_same(store: CountingStore) -> None:
    mirror, run = Mirror(), begun(store)
    view(mirror, store, run.run)
    finish(store, run)
    write_beat(store, run, beat(state="done"))
    assert view(mirror, store, run.run) == view(Mirror(), store, run.run)


def test_a_default_engine_proves_no_gain(store: CountingStore) -> None:
    run = begun(store)
    finish(store, run, significant=False)
    verdict = view(Mirror(), store, run.run).verdict
    assert verdict is not None
    assert (verdict.significant, verdict.reason, verdict.gain) == (False, "NoSignificantWin", "")


def test_trials_that_were_carried_over_are_counted_once(store: CountingStore) -> None:
    run = begun(store)
    write_discovery(store, run)
    first = write_plan(store, run, 1)
    new = PlannedTrial(trial="002-00000", candidate=Candidate(route="-k=9"), shard=0, reason="-")
    second = PlanRecord(run=run.run, round=2, stage="explore", trials=(*first.trials[:2], new), reason="2 carried over")
    create_record(store, layout.plan(run.run, 2), second)
    assert view(Mirror(), store, run.run).planned == 5


def test_stop_markers_name_their_attempts(store: CountingStore) -> None:
    run = begun(store)
    for attempt in (1, 12):
        create_record(store, layout.stop(run.run, attempt), StopRecord(attempt=attempt, reason="Suspended"))
    store.put(f"{layout.stops(run.run)}/notes.txt", b"")
    seen = view(Mirror(), store, run.run)
    assert seen.stopped == {1, 12}
    assert seen.last_attempt == 12


@pytest.mark.parametrize("trial", ["discover", "final"])
def test_a_conviction_of_a_stage_ends_the_run(store: CountingStore, trial: str) -> None:
    run = begun(store)
    if trial == "final":
        write_discovery(store, run)
        write_plan(store, run, 1, stage="final")
    create_record(store, layout.result(run.run, trial), result(run, trial, convicted=True, reason="it died thrice"))
    convicted = view(Mirror(), store, run.run).convicted
    assert convicted is not None
    assert convicted.reason == "StageConvicted"
    assert trial in convicted.message
    assert "it died thrice" in convicted.message


def test_a_result_of_discover_convicts_nobody_once_there_is_a_discovery(store: CountingStore) -> None:
    run = begun(store)
    create_record(store, layout.result(run.run, "discover"), result(run, "discover", convicted=True))
    write_discovery(store, run)
    assert view(Mirror(), store, run.run).convicted is None


# Beats.


def test_beats_add_up_and_discover_counts_only_its_seconds(store: CountingStore) -> None:
    run = begun(store)
    write_beat(store, run, beat("1-0", state="done", outcomes={"feasible": 1}, deviceSeconds=8.5))
    explored = {"feasible": 3, "crashed": 1}
    write_beat(store, run, beat("2-0", stage="explore", trial="001-00001", outcomes=explored, cached=2, deviceSeconds=20.25))
    write_beat(store, run, beat("2-11", stage="explore", outcomes={"crashed": 2}))
    seen = view(Mirror(), store, run.run)
    assert {*seen.beats} == {"1-0", "2-0", "2-11"}
    assert seen.counts.outcomes == {"feasible": 3, "crashed": 3}
    assert (seen.counts.finished, seen.counts.cached, seen.counts.running) == (6, 2, 1)
    assert seen.counts.device_seconds == 28.75
    assert seen.last_attempt == 2


def test_sealed_rounds_make_good_what_a_killed_worker_could_not_tell(store: CountingStore) -> None:
    mirror, run = Mirror(), begun(store)
    write_discovery(store, run)
    write_plan(store, run, 1)
    write_beat(store, run, beat("2-0", stage="explore", outcomes={"feasible": 3, "crashed": 2}))
    write_plan(store, run, 2, outcomes={"feasible": 5, "crashed": 1}, cached=1)
    seen = view(mirror, store, run.run).counts
    assert (seen.outcomes, seen.cached) == ({"feasible": 5, "crashed": 2}, 1), "whichever knows more"
    write_plan(store, run, 3, stage="final", outcomes={"feasible": 7, "crashed": 2}, cached=1)
    write_beat(store, run, beat("3-0", stage="final", trial="final", outcomes={"feasible": 1}))
    seen = view(mirror, store, run.run).counts
    assert (seen.outcomes, seen.running) == ({"feasible": 7, "crashed": 2}, 0), "nothing is missing from the last count"


def test_what_never_changes_is_read_once_and_live_beats_each_time(store: CountingStore) -> None:
    mirror, run = Mirror(), begun(store)
    write_discovery(store, run)
    write_plan(store, run, 1)
    write_beat(store, run, beat("1-0", state="done"))
    write_beat(store, run, beat("2-0", stage="explore"))
    for _ in range(3):
        view(mirror, store, run.run)
    once = (layout.run(run.run), layout.discovery(run.run), layout.plan(run.run, 1), layout.beat(run.run, "1-0"))
    assert [store.times("get", key) for key in once] == [1] * 4
    assert store.times("get", layout.beat(run.run, "2-0")) == 3
    assert store.times("get", layout.verdict(run.run)) == 0, "there is no verdict before the final's plan"
    assert not any("/trials/" in key for _, key in store.asked), "results are the workers' matter"
    mirror.forget(run.run)
    view(mirror, store, run.run)
    assert store.times("get", layout.run(run.run)) == 2


def test_a_successor_of_the_same_name_is_noticed(store: CountingStore) -> None:
    mirror, run = Mirror(), begun(store)
    write_beat(store, run, beat("1-0", state="dead", cause="explained"))
    assert view(mirror, store, run.run).beats["1-0"].state == "dead"
    write_beat(store, run, beat("1-0", workerId="successor", detail="."))
    seen = view(mirror, store, run.run)
    assert (seen.beats["1-0"].state, seen.beats["1-0"].worker_id) == ("running", "successor")


def test_a_beat_that_goes_between_list_and_read_is_left_out(store: CountingStore) -> None:
    run = begun(store)
    write_beat(store, run, beat("1-0"))

    class Vanishing(CountingStore):
        def list(self, prefix: str) -> Iterator[Info]:
            found = list(super().list(prefix))
            for info in found:
                self.inner.delete(info.key)
            return iter(found)

    assert view(Mirror(), Vanishing(store.inner), run.run).beats == {}


def test_the_same_run_in_another_store_is_another_run(store: CountingStore) -> None:
    mirror, other = Mirror(), counting_store()
    run = begun(store)
    write_discovery(store, run)
    begun(other)
    assert view(mirror, store, run.run).device == DEVICE
    assert view(mirror, other, run.run).device is None


def test_what_is_remembered_is_bounded(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACTIVE_RUNS", 2)
    mirror, runs = Mirror(), []
    for seconds in (1.0, 2.0, 3.0):
        runs.append(begun(store, device_seconds=seconds).run)
        view(mirror, store, runs[-1])
    view(mirror, store, runs[0])
    assert [store.times("get", layout.run(run)) for run in runs] == [2, 1, 1]


# Outages and poison.


def test_an_outage_is_no_poison(store: CountingStore) -> None:
    mirror, run = Mirror(), begun(store)
    view(mirror, store, run.run)
    store.down = True
    with pytest.raises(StoreUnavailable):
        mirror.read(store, run.run)


RECORDS: list[tuple[str, Callable[[str], str]]] = [
    ("run", layout.run),
    ("discovery", layout.discovery),
    ("plan", lambda run: layout.plan(run, 1)),
    ("final plan", lambda run: layout.plan(run, 2)),
    ("verdict", layout.verdict),
    ("beat", lambda run: layout.beat(run, "1-0")),
]


def whole_run(store: ObjectStore) -> RunRecord:
    run = begun(store)
    finish(store, run)
    write_beat(store, run, beat("1-0"))
    return run


@pytest.mark.parametrize(
    ("reason", "data"),
    [
        ("PoisonedRecord", b""),
        ("PoisonedRecord", b"\xff\xfe"),
        ("PoisonedRecord", b"[" * 100_000),
        ("PoisonedRecord", b'{"schemaVersion": 1}'),
        ("PoisonedRecord", b" " * (17 << 20)),
        ("SchemaMismatch", b'{"schemaVersion": 2, "kind": "New"}'),
    ],
    ids=["empty", "no text", "deep", "incomplete", "long", "newer"],
)
@pytest.mark.parametrize(("name", "key"), RECORDS)
def test_a_record_that_is_none_is_named(
    store: CountingStore, name: str, key: Callable[[str], str], reason: str, data: bytes
) -> None:
    run = whole_run(store)
    store.put(key(run.run), data)
    found = problem(Mirror(), store, run.run)
    assert (found.reason, found.transient) == (reason, False)
    assert key(run.run) in found.message
    assert "\n" not in found.message


@pytest.mark.parametrize(("name", "key"), RECORDS)
def test_a_record_of_another_run_is_named(store: CountingStore, name: str, key: Callable[[str], str]) -> None:
    run = whole_run(store)
    found = store.get(key(run.run), 1 << 24)
    assert found is not None
    plain = json.loads(found.data) | ({"worker": "1-1"} if name == "beat" else {"run": "0" * 20})
    store.put(key(run.run), json.dumps(plain).encode())
    assert problem(Mirror(), store, run.run).reason == "PoisonedRecord"


@pytest.mark.parametrize(
    "change",
    [{"owner": {"cluster": "lab", "namespace": "team", "name": "other"}}, {"target": "gpu"}, {"seed": 3}, {"rerunToken": "x"}],
)
def test_a_run_record_that_does_not_lead_to_its_own_id_is_poison(store: CountingStore, change: dict[str, Any]) -> None:
    run = begun(store)
    store.put(layout.run(run.run), json.dumps(json.loads(run.to_json()) | change).encode())
    assert problem(Mirror(), store, run.run).reason == "PoisonedRecord"


def test_inputs_that_are_not_those_of_the_id_are_poison(store: CountingStore) -> None:
    run = begun(store)
    plain = json.loads(run.to_json())
    plain["inputs"]["minImprovement"] = 0.5
    store.put(layout.run(run.run), json.dumps(plain).encode())
    assert "another run" in problem(Mirror(), store, run.run).message


@pytest.mark.parametrize(
    ("key", "words"),
    [(layout.beat("{run}", "99999-0"), "attempts"), (layout.stop("{run}", 10_000), "attempts")],
)
def test_an_absurd_attempt_is_poison(store: CountingStore, key: str, words: str) -> None:
    run = begun(store)
    store.put(key.format(run=run.run), b"{}")
    found = problem(Mirror(), store, run.run)
    assert found.reason == "PoisonedRecord"
    assert words in found.message


@pytest.mark.parametrize("name", ["0-1.json", "01-1.json", "x-1.json", "1-1.json.bak", "1.json", "٣-1.json"])
def test_what_is_no_workers_name_is_passed_over(store: CountingStore, name: str) -> None:
    run = begun(store)
    store.put(f"{layout.beats(run.run)}/{name}", b"rubbish")
    assert view(Mirror(), store, run.run).beats == {}


def test_too_many_workers_are_poison(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BEATS", 3)
    run = begun(store)
    for index in range(4):
        write_beat(store, run, beat(f"1-{index}"))
    assert "more than 3 workers" in problem(Mirror(), store, run.run).message


def test_more_bytes_of_beats_than_workers_write_are_poison_unread(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_BEATS_BYTES", 10_000)
    run = begun(store)
    for index in range(3):
        write_beat(store, run, beat(f"1-{index}", detail="x" * 4000))
    assert "bytes of beats; 10000 are the most" in problem(Mirror(), store, run.run).message
    assert not any(verb == "get" and "/workers/" in key for verb, key in store.asked)


def test_nothing_that_is_kept_of_a_run_is_long(store: CountingStore) -> None:
    """The operator keeps it for as long as the run is active, of every run at once."""
    run = begun(store)
    plain = json.loads(run.to_json()) | {"trigger": "t" * 100_000, "createdAt": "c" * 100_000}
    store.put(layout.run(run.run), json.dumps(plain).encode())
    write_beat(store, run, beat("1-0", at="x" * 60_000))
    write_beat(store, run, beat("1-1", trial="x" * 60_000))
    seen = view(Mirror(), store, run.run)
    assert max(len(each.to_json()) for each in seen.beats.values()) < 2000
    assert len(seen.record.to_json()) < 4000


@pytest.mark.parametrize("what", ["product", "driver"])
def test_a_device_that_is_no_device_is_poison(store: CountingStore, what: str) -> None:
    run = begun(store)
    plain = json.loads(write_discovery(store, run).to_json())
    plain["device"][what] = "x" * 100_000
    store.put(layout.discovery(run.run), json.dumps(plain).encode())
    assert "device takes more than" in problem(Mirror(), store, run.run).message


def test_a_worker_id_that_is_no_id_is_poison(store: CountingStore) -> None:
    run = begun(store)
    write_beat(store, run, beat("1-0", workerId="x" * 60_000))
    assert "worker id" in problem(Mirror(), store, run.run).message


def test_a_worker_that_lies_is_cut_to_what_can_be_true(store: CountingStore) -> None:
    run = begun(store)
    lie = {
        "stage": "explore",
        "outcomes": {"feasible": 10**9, "wonderful": 7},
        "cached": 10**9,
        "deviceSeconds": 1e12,
        "done": -5,
        "detail": "x\ny" * 999,
    }
    write_beat(store, run, beat("1-0", **lie))
    write_beat(store, run, beat("77-0", **lie))  # of an attempt that never had a Job
    seen = view(Mirror(), store, run.run)
    assert seen.counts.outcomes == {"feasible": module.MOST_TRIALS}
    assert seen.counts.cached == module.MOST_TRIALS
    assert seen.counts.device_seconds == module.MOST_SECONDS
    assert seen.beats["1-0"].done == 0
    assert len(seen.beats["1-0"].detail) <= 500
    assert "\n" not in seen.beats["1-0"].detail


@pytest.mark.parametrize("change", [{"outcomes": {"feasible": -1}}, {"deviceSeconds": -1.0}, {"deviceSeconds": 1e308}])
def test_a_beat_of_impossible_numbers_is_poison(store: CountingStore, change: dict[str, Any]) -> None:
    run = begun(store)
    plain = json.loads(beat("1-0").to_json()) | change
    store.put(layout.beat(run.run, "1-0"), json.dumps(plain).encode())
    assert problem(Mirror(), store, run.run).reason == "PoisonedRecord"


def test_a_leader_that_no_status_could_hold_is_poison(store: CountingStore) -> None:
    run = begun(store)
    write_discovery(store, run)
    write_plan(store, run, 1, leader={"candidate": {"variant": "No Name"}, "gain": 0.1})
    assert "leader" in problem(Mirror(), store, run.run).message


def test_a_long_route_and_a_huge_gain_are_cut(store: CountingStore) -> None:
    run = begun(store)
    write_discovery(store, run)
    write_plan(store, run, 1, leader={"candidate": {"route": "-k=1 " * 999}, "gain": 1e300})
    leader = view(Mirror(), store, run.run).incumbent
    assert leader is not None
    assert (len(leader.route), leader.gain) == (384, "100000.0000")


def test_a_verdict_whose_reason_is_no_word_is_poison(store: CountingStore) -> None:
    run = begun(store)
    finish(store, run, reason="see <b>log</b>")
    assert "reason" in problem(Mirror(), store, run.run).message


def test_rounds_without_end_are_poison(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROUNDS", 3)
    run = begun(store)
    write_discovery(store, run)
    for number in range(1, 5):
        write_plan(store, run, number)
    assert "at most 3 rounds" in problem(Mirror(), store, run.run).message


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner)), st.data()
)
@settings(max_examples=60, deadline=None)
def test_whatever_stands_in_a_beat_nothing_but_a_problem_comes_of_it(value: Any, data: st.DataObject) -> None:
    store = counting_store()
    run = begun(store)
    plain = json.loads(beat("1-0").to_json())
    plain[data.draw(st.sampled_from(sorted({*plain, "outcomes", "cached", "deviceSeconds", "cause", "extra"})))] = value
    store.put(layout.beat(run.run, "1-0"), json.dumps(plain).encode())
    assert isinstance(Mirror().read(store, run.run), RunView | Problem)


@pytest.mark.parametrize(
    ("gain", "text"), [(0.12345, "0.1235"), (-0.5, "-0.5000"), (-0.00001, "0.0000"), (1e9, "100000.0000"), (-1e9, "-100000.0000")]
)
def test_a_gain_is_written_as_the_api_has_it(gain: float, text: str) -> None:
    assert gain_text(gain) == text


def test_every_outcome_is_counted(store: CountingStore) -> None:
    run = begun(store)
    write_beat(store, run, beat("2-0", stage="explore", outcomes={outcome.value: 1 for outcome in Outcome}))
    assert view(Mirror(), store, run.run).counts.finished == len(Outcome)
