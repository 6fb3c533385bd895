"""The worker loop over records alone: what it asks of the store, and that it ends."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from campaign_records import discovery_record, result_record, run_record

from tuner_job.api.messages import PlannedTrial, ResultRecord, RunRecord
from tuner_job.campaign.explore import Explorer
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.rounds import first_plan
from tuner_job.store import layout
from tuner_job.store.beats import Heart
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record
from tuner_job.store.tries import Claim, Claims

TRIALS = 256


class Instant:
    """A trial runner and baseline that need no device."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run

    def run(self, planned: PlannedTrial, _claim: Claim, _baseline: Instant) -> ResultRecord:
        return result_record(self._run, planned)


@pytest.fixture
def asked() -> Counter[str]:
    return Counter()


@pytest.fixture
def store(asked: Counter[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A store that counts what is asked of it, by verb."""
    store = ObjectStore.open(f"memory://{secrets.token_hex(8)}")

    def counted(verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def counting(*arguments: Any) -> Any:
            asked[verb] += 1
            return call(*arguments)

        return counting

    for verb in ("get", "info", "create", "put", "list"):
        monkeypatch.setattr(store, verb, counted(verb, getattr(store, verb)))
    return store


def worker(store: ObjectStore, run: RunRecord, index: int) -> Explorer:
    heart = Heart(store, run.run, worker=f"1-{index}", worker_id=f"w{index}", stage="explore")
    instant: Any = Instant(run)
    return Explorer(
        store,
        RunReader(store, run.run),
        Claims(store, run.run, heart),
        instant,
        instant,
        heart,
        index=index,
        check_stop=lambda: None,
        wait=lambda _: pytest.fail("there is nobody to wait for"),
    )


def test_a_round_costs_a_few_requests_a_trial_however_many_there_are(store: ObjectStore, asked: Counter[str]) -> None:
    expression = " ".join(f"-k{i}=[on|off]" for i in range(8))
    run = run_record("Expression", expression=expression, max_trials=TRIALS, options={"sample": "true"}, shards=4)
    discovery = discovery_record(run)
    create_record(store, layout.run(run.run), run)
    create_record(store, layout.discovery(run.run), discovery)
    create_record(store, layout.plan(run.run, 1), first_plan(run, discovery))
    asked.clear()

    worker(store, run, 0).run()
    reader = RunReader(store, run.run)
    trials = sum(len(plan.trials) for plan in reader.plans())
    assert trials >= TRIALS - 1
    assert len(reader.fold().folded) == trials
    assert asked["create"] <= 2 * trials + 2 * len(reader.plans())
    assert asked["get"] + asked["info"] <= 8 * trials
    assert asked["list"] == 0

    asked.clear()
    worker(store, run, 1).run()
    assert asked.total() < 20, "a worker that comes when all is done reads the plans and goes"
