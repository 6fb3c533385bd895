"""What a reader makes of records that somebody else may have written."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest
from campaign_records import discovery_record, result_record, run_record, timing

from tuner_job.api.base import InputError
from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import Control, Record, ResultRecord, RunRecord
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.rounds import first_plan, next_plan, seal
from tuner_job.campaign.start import start_run
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record, find_record, put_record

RUN = run_record()
DISCOVERY = discovery_record(RUN)
PLAN = first_plan(RUN, DISCOVERY)
FIRST, *OTHERS = PLAN.trials


@pytest.fixture
def store() -> ObjectStore:
    """A run whose first round has all of its results."""
    store = ObjectStore.open(f"memory://{secrets.token_hex(8)}")
    create_record(store, layout.run(RUN.run), RUN)
    create_record(store, layout.discovery(RUN.run), DISCOVERY)
    create_record(store, layout.plan(RUN.run, 1), PLAN)
    for planned in PLAN.trials:
        create_record(store, layout.result(RUN.run, planned.trial), result_record(RUN, planned))
    return store


def sealed(store: ObjectStore) -> RunReader:
    reader = RunReader(store, RUN.run)
    create_record(store, layout.seal(RUN.run, 1), seal(RUN, PLAN, reader.digests(PLAN)))
    return RunReader(store, RUN.run)


def poisoned(store: ObjectStore, key: str, record: Record) -> RunReader:
    put_record(store, key, record)
    return RunReader(store, RUN.run)


def test_the_seal_names_the_bytes_that_lie_in_the_store(store: ObjectStore) -> None:
    key = layout.result(RUN.run, FIRST.trial)
    honest = store.get(key, 1 << 20)
    assert honest is not None
    store.put(key, b" " + honest.data)
    found = find_record(store, key, ResultRecord)
    assert found is not None
    assert RunReader(store, RUN.run).digests(PLAN)[FIRST.trial] == found.digest
    kept = sealed(store).fold().results[FIRST.trial]
    assert kept.model_copy(update={"timing": found.record.timing}) == found.record
    assert [s.median for s in kept.timing[0].sessions] == [s.median for s in found.record.timing[0].sessions]
    assert {s.samples for s in kept.timing[0].sessions} == {""}, "thousands of trials' samples would fill the memory"


def test_samples_are_kept_where_a_percentile_is_computed_from_them() -> None:
    measure = RUN.inputs.measure.model_copy(update={"metric": "LatencyP99"})
    run = RUN.model_copy(update={"inputs": RUN.inputs.model_copy(update={"measure": measure})})
    store = ObjectStore.open(f"memory://{secrets.token_hex(8)}")
    create_record(store, layout.run(RUN.run), run)
    create_record(store, layout.result(RUN.run, FIRST.trial), result_record(RUN, FIRST))
    assert RunReader(store, RUN.run).result(FIRST.trial) == result_record(RUN, FIRST)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"run": "0" * 20}, "another run or trial"),
        ({"trial": OTHERS[0].trial}, "another run or trial"),
        ({"candidate": Candidate(route="-k7=off -k6=off")}, "another candidate"),
        ({"timing": (timing(1e-3), timing(1e-3))}, "1 shape cases"),
        ({"controls": (Control(engine="0" * 64, timing=(timing(1e-3), timing(1e-3))),)}, "1 shape cases"),
    ],
    ids=["run", "trial", "candidate", "cases", "controls"],
)
def test_a_result_that_belongs_elsewhere_is_not_folded(store: ObjectStore, change: dict[str, object], complaint: str) -> None:
    key = layout.result(RUN.run, FIRST.trial)
    put_record(store, key, result_record(RUN, FIRST).model_copy(update=change))
    with pytest.raises(InputError, match=complaint) as caught:
        sealed(store).fold()
    assert key in str(caught.value)
    assert caught.value.reason == "PoisonedRecord"


def test_a_result_that_changed_after_it_was_folded_is_named(store: ObjectStore) -> None:
    sealed(store)
    key = layout.result(RUN.run, FIRST.trial)
    with pytest.raises(InputError, match=f"{key}: it is not what round 1 folded"):
        poisoned(store, key, result_record(RUN, FIRST, {FIRST.candidate.route: 0.1}, seconds=3.0)).fold()


@pytest.mark.parametrize(
    "lie",
    [
        lambda honest: {"folded": honest.folded[1:]},
        lambda honest: {"folded": (*honest.folded, honest.folded[0])},
        lambda honest: {"carried_over": (FIRST.trial,)},
        lambda honest: {"carried_over": ("007-00000",)},
        lambda honest: {"run": "0" * 20},
        lambda honest: {"round": 2},
    ],
    ids=["fewer", "twice", "both", "unplanned", "run", "round"],
)
def test_a_seal_must_name_each_trial_of_its_plan_once(store: ObjectStore, lie: Callable[[Record], dict[str, object]]) -> None:
    honest = seal(RUN, PLAN, RunReader(store, RUN.run).digests(PLAN))
    with pytest.raises(InputError, match=layout.seal(RUN.run, 1)):
        poisoned(store, layout.seal(RUN.run, 1), honest.model_copy(update=lie(honest))).fold()


@pytest.mark.parametrize("change", [{"run": "0" * 20}, {"round": 3}], ids=["run", "round"])
def test_a_plan_of_elsewhere_is_named(store: ObjectStore, change: dict[str, object]) -> None:
    following = next_plan(sealed(store).fold())
    with pytest.raises(InputError, match=layout.plan(RUN.run, 2)):
        poisoned(store, layout.plan(RUN.run, 2), following.model_copy(update=change)).plans()


def test_a_discovery_of_another_run_is_named(store: ObjectStore) -> None:
    lie = DISCOVERY.model_copy(update={"run": "0" * 20})
    with pytest.raises(InputError, match=layout.discovery(RUN.run)):
        poisoned(store, layout.discovery(RUN.run), lie).discovery()


@pytest.mark.parametrize(
    "change",
    [
        lambda run: {"inputs": run.inputs.model_copy(update={"min_improvement": 0.0})},
        lambda run: {"seed": 3},
        lambda run: {"target": "gpu"},
        lambda run: {"inputs_digest": "0" * 64},
    ],
    ids=["inputs", "seed", "target", "digest"],
)
def test_a_run_that_something_else_started_under_our_id_is_not_taken_for_ours(
    change: Callable[[RunRecord], dict[str, object]],
) -> None:
    honest = start_run(ObjectStore.open(f"memory://{secrets.token_hex(8)}"), RUN.owner, RUN.target, RUN.inputs, shards=1)
    store = ObjectStore.open(f"memory://{secrets.token_hex(8)}")
    create_record(store, layout.run(honest.run), honest.model_copy(update=change(honest)))
    with pytest.raises(InputError, match="not of these inputs"):
        start_run(store, RUN.owner, RUN.target, RUN.inputs, shards=1)


def test_workers_are_those_whose_beats_have_a_workers_name(store: ObjectStore) -> None:
    for name in ("2-0", "10-0", "2-11", "x", "1-x", "1-", "-1-0", "9" * 30 + "-0"):
        store.put(layout.beat(RUN.run, name), b"{}")
    assert RunReader(store, RUN.run).workers() == ["2-0", "2-11", "10-0"]
