"""The worker loop over records alone: what it asks of the store, and that it ends."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from campaign_records import discovery_record, result_record, run_record

from tuner_job.api.messages import BeatRecord, PlannedTrial, ResultRecord, RunRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.explore import OUT_OF_BUDGET, Explorer
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.rounds import first_plan, overlaps
from tuner_job.store import layout
from tuner_job.store.beats import Heart
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record, read_record
from tuner_job.store.tries import Claim, Claims

TRIALS = 256


class Instant:
    """A trial runner and baseline that need no device."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run

    def waited(self, _seconds: float) -> None:
        pass

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


def worker(
    store: ObjectStore, run: RunRecord, index: int, instant: Any = None, *, budget_used: bool = False
) -> tuple[Explorer, Heart]:
    heart = Heart(store, run.run, worker=f"1-{index}", worker_id=f"w{index}", stage="explore")
    instant = instant or Instant(run)
    explorer = Explorer(
        store,
        RunReader(store, run.run),
        Claims(store, run.run, heart),
        instant,
        instant,
        heart,
        index=index,
        check_stop=lambda: OUT_OF_BUDGET if budget_used else "",
        wait=lambda _: pytest.fail("there is nobody to wait for"),
    )
    return explorer, heart


def test_a_round_costs_a_few_requests_a_trial_however_many_there_are(store: ObjectStore, asked: Counter[str]) -> None:
    expression = " ".join(f"-k{i}=[on|off]" for i in range(8))
    run = run_record("Expression", expression=expression, max_trials=TRIALS, options={"sample": "true"}, shards=4)
    discovery = discovery_record(run)
    create_record(store, layout.run(run.run), run)
    create_record(store, layout.discovery(run.run), discovery)
    create_record(store, layout.plan(run.run, 1), first_plan(run, discovery))
    asked.clear()

    worker(store, run, 0)[0].run()
    reader = RunReader(store, run.run)
    trials = sum(len(plan.trials) for plan in reader.plans())
    assert trials >= TRIALS - 1
    assert len(reader.fold().folded) == trials
    assert asked["create"] <= 2 * trials + 2 * len(reader.plans())
    assert asked["get"] + asked["info"] <= 8 * trials
    assert asked["list"] == 0

    asked.clear()
    worker(store, run, 1)[0].run()
    assert asked.total() < 20, "a worker that comes when all is done reads the plans and goes"


def begun(store: ObjectStore, **search: Any) -> RunRecord:
    run = run_record("Expression", max_trials=8, options={"sample": "true"}, shards=2, **search)
    discovery = discovery_record(run)
    create_record(store, layout.run(run.run), run)
    create_record(store, layout.discovery(run.run), discovery)
    create_record(store, layout.plan(run.run, 1), first_plan(run, discovery))
    return run


def figures(store: ObjectStore, run: RunRecord, heart: Heart) -> BeatRecord:
    heart.beat()
    beat = read_record(store, layout.beat(run.run, heart.worker), BeatRecord)
    assert beat is not None
    return beat


def test_a_result_is_counted_by_the_worker_that_wrote_it_and_by_no_other(store: ObjectStore) -> None:
    run = begun(store, expression="-k0=[on|off] -k1=[on|off]")

    class Racing(Instant):
        """Every second result was written by another worker a moment before; the first two are the ledger's and a failure."""

        ran = 0

        def run(self, planned: PlannedTrial, claim: Claim, baseline: Instant) -> ResultRecord:
            result = super().run(planned, claim, baseline)
            self.ran += 1
            if self.ran % 2 == 0:
                create_record(store, layout.result(run.run, planned.trial), result.model_copy(update={"worker_id": "another"}))
            elif self.ran == 1:
                return result.model_copy(update={"cached": True, "outcome": Outcome.REFUSED})
            return result

    explorer, heart = worker(store, run, 0, Racing(run))
    explorer.run()
    reader = RunReader(store, run.run)
    results = [reader.result(trial.trial) for trial in reader.plans()[0].trials]
    own = Counter(result.outcome.value for result in results if result and result.worker_id != "another")
    beat = figures(store, run, heart)
    assert beat.outcomes == own
    assert len(results) > beat.done == own.total() > 1
    assert beat.cached == 1
    assert beat.device_seconds == 2.0 * len(results), "what lost the race used the device as well"


def test_when_the_budget_is_used_up_one_worker_ends_exploring_while_the_other_is_in_a_trial(store: ObjectStore) -> None:
    run = begun(store, expression="-k0=[on|off] -k1=[on|off] -k2=[on|off]")
    first, _ = worker(store, run, 0, budget_used=True)

    class Meanwhile(Instant):
        ran: tuple[str, ...] = ()

        def run(self, planned: PlannedTrial, claim: Claim, baseline: Instant) -> ResultRecord:
            self.ran += (planned.trial,)
            if len(self.ran) == 2:
                first.run()
            return super().run(planned, claim, baseline)

    instant = Meanwhile(run)
    second, heart = worker(store, run, 1, instant)
    second.run()

    reader = RunReader(store, run.run)
    explored, final = reader.plans()
    done, late = instant.ran
    assert final.stage == "final"
    assert final.reason == "the budget of device time is used up"
    [sealed] = reader.seals()
    assert [item.trial for item in sealed.folded] == [done]
    assert len(sealed.carried_over) == len(explored.trials) - 1
    assert late in sealed.carried_over
    assert reader.result(late) is not None, "it comes too late for the seal, and is kept"
    assert figures(store, run, heart).done == 2
    assert len(reader.fold().folded) == 1


class Handed(Instant):
    """A runner during whose every trial `meanwhile` happens."""

    def __init__(self, run: RunRecord, meanwhile: Callable[[int], None]) -> None:
        super().__init__(run)
        self._meanwhile = meanwhile
        self.ran: list[str] = []

    def run(self, planned: PlannedTrial, claim: Claim, baseline: Instant) -> ResultRecord:
        self.ran.append(planned.trial)
        self._meanwhile(len(self.ran))
        return super().run(planned, claim, baseline)


def adaptive(store: ObjectStore, trials: int, shards: int) -> RunRecord:
    run = run_record("Adaptive", max_trials=trials, shards=shards)
    discovery = discovery_record(run)
    create_record(store, layout.run(run.run), run)
    create_record(store, layout.discovery(run.run), discovery)
    create_record(store, layout.plan(run.run, 1), first_plan(run, discovery))
    return run


def test_a_worker_with_nothing_left_plans_on_while_another_is_in_a_long_trial(store: ObjectStore) -> None:
    run = adaptive(store, trials=8, shards=2)
    reader = RunReader(store, run.run)

    def wait(_: float) -> bool:
        raise Waiting

    class Waiting(Exception):
        """The other worker has nothing to do but to wait for the long trial."""

    other, _ = worker(store, run, 1)
    other._wait = wait

    def others_turn(number: int) -> None:
        if number == 1:
            with pytest.raises(Waiting):
                other.run()

    slow = Handed(run, others_turn)
    worker(store, run, 0, slow)[0].run()

    long_trial = slow.ran[0]
    *explored, final = reader.plans()
    assert final.stage == "final"
    first, *later = reader.seals()
    assert first.carried_over == (long_trial,)
    assert explored[1].trials[0].trial == long_trial, "carried over under its name"
    planned = {trial.trial for plan in explored for trial in plan.trials}
    folded = [item.trial for seal in reader.seals() for item in seal.folded]
    assert sorted(folded) == sorted(planned), "every trial is folded once, the long one too"
    assert len(planned) == 8
    assert any(long_trial in [item.trial for item in seal.folded] for seal in later)
    assert len(slow.ran) == 1 + sum(trial not in slow.ran[:1] for trial in slow.ran), "nothing ran twice"


def test_nobody_plans_on_before_three_quarters_of_a_round_are_known(store: ObjectStore) -> None:
    run = adaptive(store, trials=8, shards=4)
    [plan] = RunReader(store, run.run).plans()
    assert len(plan.trials) == 4
    assert not overlaps(run, plan, 2)
    assert overlaps(run, plan, 1)


def test_a_round_smaller_than_the_pool_is_waited_for(store: ObjectStore) -> None:
    run = adaptive(store, trials=8, shards=4)
    [plan] = RunReader(store, run.run).plans()
    wanted_first = plan.model_copy(update={"trials": plan.trials[:3]})
    assert not overlaps(run, wanted_first, 1)


def test_a_strategy_that_does_not_say_so_gets_whole_rounds(store: ObjectStore) -> None:
    run = adaptive(store, trials=8, shards=4)
    [plan] = RunReader(store, run.run).plans()
    mixed = run_record("Mixed", max_trials=8, shards=4)
    assert not overlaps(mixed, plan, 1)
