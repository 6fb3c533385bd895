"""Claims, takeovers and convictions: by example, then any interleaving of workers, crashes, outages and lost answers."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from rig.faulty import FaultyStore
from rig.s3 import Address

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import BeatRecord, BeatState, PreviousEnd, ResultRecord, TryRecord
from tuner_job.api.outcome import Outcome
from tuner_job.store import layout
from tuner_job.store.beats import end_of
from tuner_job.store.objects import ObjectStore, StoreUnavailable
from tuner_job.store.records import create_record, read_record, timestamp
from tuner_job.store.tries import STALE_SECONDS, Busy, Claim, Claims, Done, Heart, mark_dead

RUN = "0" * 20
TRIAL = "001-00000"
CANDIDATE = Candidate(route="-a=1")
BEAT = {"kind": "Beat", "worker": "1-0", "workerId": "w", "sequence": 1, "stage": "explore", "at": "then", "schemaVersion": 1}
_names = itertools.count()


class Clock:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Worker:
    """A worker process as the store sees it, its beats written when the test says so."""

    def __init__(self, store: ObjectStore, clock: Clock, name: str) -> None:
        self.store = store
        self.name = name
        self.id = f"process-{next(_names)}"
        self.heart = Heart(store, RUN, worker=name, worker_id=self.id, stage="explore")
        self.heart.beat()
        self.claims = Claims(store, RUN, self.heart, clock=clock)

    def claim(self, trial: str = TRIAL) -> Claim | Busy | Done:
        return self.claims.claim(trial, CANDIDATE)

    def finish(self, claim: Claim) -> bool:
        return create_record(self.store, layout.result(RUN, claim.trial), result_of(claim))


def result_of(claim: Claim) -> ResultRecord:
    return ResultRecord(
        run=RUN,
        trial=claim.trial,
        candidate=claim.candidate,
        outcome=Outcome.FEASIBLE,
        tries=claim.number,
        worker=claim.worker,
        worker_id=claim.worker_id,
        finished_at=timestamp(),
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(ObjectStore.open(f"memory://tries-{next(_names)}"))


def watch(observer: Worker, clock: Clock, seconds: float, step: float = 5.0) -> Claim | Busy | Done:
    """Look every `step` seconds for so long; the last answer."""
    answer = observer.claim()
    for _ in range(int(seconds / step)):
        clock.now += step
        answer = observer.claim()
        if not isinstance(answer, Busy):
            break
    return answer


def test_a_free_trial_is_claimed_by_one_and_seen_busy_by_others(object_store: ObjectStore, clock: Clock) -> None:
    one, other = Worker(object_store, clock, "1-0"), Worker(object_store, clock, "1-1")
    claim = one.claim()
    assert isinstance(claim, Claim)
    assert (claim.trial, claim.candidate, claim.number, claim.worker, claim.worker_id) == (TRIAL, CANDIDATE, 1, "1-0", one.id)
    assert other.claim() == Busy("1-0")
    assert one.finish(claim)
    assert other.claim() == Done()
    assert one.claim() == Done()


def test_of_many_claimants_one_gets_the_trial(object_store: ObjectStore, clock: Clock) -> None:
    workers = [Worker(object_store, clock, f"1-{index}") for index in range(6)]
    answers: list[Claim | Busy | Done] = []
    threads = [threading.Thread(target=lambda w=worker: answers.append(w.claim())) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6
    assert sum(isinstance(answer, Claim) for answer in answers) == 1


def test_a_beating_worker_keeps_its_trial_for_ever(store: FaultyStore, clock: Clock) -> None:
    slow, observer = Worker(store, clock, "1-0"), Worker(store, clock, "1-1")
    assert isinstance(slow.claim(), Claim)
    for _ in range(100):
        slow.heart.beat()
        assert isinstance(watch(observer, clock, 100), Busy)


def test_a_silent_worker_loses_its_trial_after_the_wait_and_not_before(store: FaultyStore, clock: Clock) -> None:
    dead, observer = Worker(store, clock, "1-0"), Worker(store, clock, "1-1")
    assert isinstance(dead.claim(), Claim)
    assert isinstance(watch(observer, clock, STALE_SECONDS - 5), Busy)
    claim = watch(observer, clock, 5)
    assert isinstance(claim, Claim)
    assert claim.number == 2
    tried = read_record(store, layout.claim(RUN, TRIAL, 2), TryRecord)
    assert tried is not None
    assert tried.previous == PreviousEnd(cause="unexplained", detail="worker 1-0 fell silent")


def test_a_worker_that_never_beat_is_waited_for_like_any_other(store: FaultyStore, clock: Clock) -> None:
    dead, observer = Worker(store, clock, "1-0"), Worker(store, clock, "1-1")
    assert isinstance(dead.claim(), Claim)
    store.delete(layout.beat(RUN, "1-0"))
    assert isinstance(watch(observer, clock, STALE_SECONDS - 5), Busy)
    assert isinstance(watch(observer, clock, 5), Claim)


def test_an_outage_makes_nothing_stale(store: FaultyStore, clock: Clock) -> None:
    slow, observer = Worker(store, clock, "1-0"), Worker(store, clock, "1-1")
    assert isinstance(slow.claim(), Claim)
    assert isinstance(watch(observer, clock, STALE_SECONDS - 5), Busy)
    store.down = True
    clock.now += 3600
    with pytest.raises(StoreUnavailable):
        observer.claim()
    store.down = False
    assert isinstance(watch(observer, clock, STALE_SECONDS - 5), Busy)
    assert isinstance(watch(observer, clock, 5), Claim)


def test_an_observer_that_was_away_cannot_vouch_for_the_time(store: FaultyStore, clock: Clock) -> None:
    slow, observer = Worker(store, clock, "1-0"), Worker(store, clock, "1-1")
    assert isinstance(slow.claim(), Claim)
    assert isinstance(observer.claim(), Busy)
    clock.now += 3600  # in a trial of its own, while the store was down for all
    assert isinstance(observer.claim(), Busy)


@pytest.mark.parametrize("cause", ["stopped", "explained", "outOfMemory", "unexplained"])
def test_a_known_end_frees_the_trial_at_once(
    store: FaultyStore, clock: Clock, cause: Literal["stopped", "explained", "outOfMemory", "unexplained"]
) -> None:
    gone, observer = Worker(store, clock, "1-0"), Worker(store, clock, "1-1")
    assert isinstance(gone.claim(), Claim)
    assert isinstance(observer.claim(), Busy)
    if cause == "stopped":
        gone.heart.close(BeatState.STOPPED)
    else:
        assert mark_dead(store, RUN, "1-0", cause=cause, detail="seen")
    claim = observer.claim()
    assert isinstance(claim, Claim)
    tried = read_record(store, layout.claim(RUN, TRIAL, claim.number), TryRecord)
    assert tried is not None
    assert tried.previous is not None
    assert tried.previous.cause == cause


def test_an_explanation_outlives_the_beat_of_a_restarted_worker(store: FaultyStore, clock: Clock) -> None:
    for how in ("stopped", "explained"):
        trial = f"001-0000{len(how)}"
        gone = Worker(store, clock, "1-0")
        assert isinstance(gone.claim(trial), Claim)
        if how == "stopped":
            gone.heart.close(BeatState.STOPPED)
        else:
            mark_dead(store, RUN, "1-0", cause="explained")
        restarted = Worker(store, clock, "1-0")
        claim = restarted.claim(trial)
        assert isinstance(claim, Claim)
        assert claim.number == 2
        tried = read_record(store, layout.claim(RUN, trial, 2), TryRecord)
        assert tried is not None
        assert tried.previous is not None
        assert tried.previous.cause == how


def test_two_pods_of_one_index_do_not_steal_from_each_other(store: FaultyStore, clock: Clock) -> None:
    one = Worker(store, clock, "1-0")
    assert isinstance(one.claim(), Claim)
    other = Worker(store, clock, "1-0")
    for _ in range(40):
        one.heart.beat()
        assert other.claim() == Busy("1-0")
        clock.now += 10
        other.heart.beat()
        assert other.claim() == Busy("1-0")
        clock.now += 5


def test_a_restarted_worker_gets_its_own_old_trial_after_the_wait(store: FaultyStore, clock: Clock) -> None:
    assert isinstance(Worker(store, clock, "1-0").claim(), Claim)
    restarted = Worker(store, clock, "1-0")
    assert isinstance(watch(restarted, clock, STALE_SECONDS - 5), Busy)
    assert isinstance(watch(restarted, clock, 5), Claim)


def test_the_result_of_a_slow_worker_stands(store: FaultyStore, clock: Clock) -> None:
    slow, observer = Worker(store, clock, "1-0"), Worker(store, clock, "1-1")
    claim = slow.claim()
    assert isinstance(claim, Claim)
    second = watch(observer, clock, STALE_SECONDS)
    assert isinstance(second, Claim)
    assert slow.finish(claim)
    assert not observer.finish(second)
    stored = read_record(store, layout.result(RUN, TRIAL), ResultRecord)
    assert stored is not None
    assert stored.worker_id == slow.id


def test_a_claim_whose_answer_was_lost_is_still_the_workers_own(store: FaultyStore, clock: Clock) -> None:
    worker = Worker(store, clock, "1-0")
    store.lose_next_answer = True
    with pytest.raises(StoreUnavailable):
        worker.claim()
    claim = worker.claim()
    assert isinstance(claim, Claim)
    assert claim.number == 1


def test_a_claim_that_its_worker_forgot_is_taken_over_without_blame(store: FaultyStore, clock: Clock) -> None:
    forgetful, observer = Worker(store, clock, "1-0"), Worker(store, clock, "1-1")
    store.lose_next_answer = True
    with pytest.raises(StoreUnavailable):
        forgetful.claim()
    assert isinstance(forgetful.claim("001-00001"), Claim)
    answer = observer.claim()
    while isinstance(answer, Busy):
        forgetful.heart.beat()
        clock.now += 10
        answer = observer.claim()
    assert isinstance(answer, Claim)
    tried = read_record(store, layout.claim(RUN, TRIAL, 2), TryRecord)
    assert tried is not None
    assert tried.previous is not None
    assert tried.previous.cause == "infrastructure"


def test_a_worker_tries_again_only_while_no_one_else_did(store: FaultyStore, clock: Clock) -> None:
    worker, observer = Worker(store, clock, "1-0"), Worker(store, clock, "1-1")
    claim = worker.claim()
    assert isinstance(claim, Claim)
    second = claim.again(PreviousEnd(cause="infrastructure", detail="disk"))
    assert second is not None
    assert second.number == 2
    assert isinstance(watch(observer, clock, STALE_SECONDS), Claim)
    assert second.again(PreviousEnd(cause="infrastructure", detail="disk")) is None


@pytest.mark.parametrize(
    ("causes", "outcome"),
    [
        (["outOfMemory", "outOfMemory"], Outcome.OUT_OF_MEMORY),
        (["unexplained", "unexplained", "unexplained"], Outcome.CRASHED),
        (["outOfMemory", "unexplained", "explained", "unexplained", "outOfMemory"], Outcome.OUT_OF_MEMORY),
        (["unexplained", "stopped", "unexplained", "explained", "outOfMemory", "unexplained"], Outcome.CRASHED),
    ],
)
def test_a_trial_that_keeps_killing_its_workers_is_convicted(
    store: FaultyStore, clock: Clock, causes: list[Literal["explained", "outOfMemory", "unexplained"]], outcome: Outcome
) -> None:
    for number, cause in enumerate(causes, 1):
        victim = Worker(store, clock, f"1-{number}")
        claim = victim.claim()
        assert isinstance(claim, Claim), f"convicted after {number - 1} deaths"
        assert claim.number == number
        if cause == "stopped":
            victim.heart.close(BeatState.STOPPED)
        else:
            assert mark_dead(store, RUN, victim.name, cause=cause, detail=f"death {number}")
    judge, late = Worker(store, clock, "1-0"), Worker(store, clock, "1-99")
    assert judge.claim() == late.claim() == Done()
    judge.heart.beat()
    late.heart.beat()
    assert beat_of(store).outcomes == {outcome.value: 1}, "who convicts counts it"
    assert beat_of(store, "1-99").outcomes == {}
    result = read_record(store, layout.result(RUN, TRIAL), ResultRecord)
    assert result is not None
    assert (result.outcome, result.convicted, result.tries, result.candidate) == (outcome, True, len(causes), CANDIDATE)
    assert f"death {len(causes)}" in result.reason
    assert not store.exists(layout.claim(RUN, TRIAL, len(causes) + 1))


def test_silence_convicts_after_a_full_wait_for_the_last_worker_too(store: FaultyStore, clock: Clock) -> None:
    slow = [Worker(store, clock, f"1-{number}") for number in (1, 2, 3)]
    assert isinstance(slow[0].claim(), Claim)
    assert isinstance(watch(slow[1], clock, STALE_SECONDS), Claim)
    assert isinstance(watch(slow[2], clock, STALE_SECONDS), Claim)
    judge = Worker(store, clock, "1-0")
    assert isinstance(watch(judge, clock, STALE_SECONDS - 5), Busy)
    assert watch(judge, clock, 5) == Done()
    result = read_record(store, layout.result(RUN, TRIAL), ResultRecord)
    assert result is not None
    assert (result.outcome, result.convicted, result.tries) == (Outcome.CRASHED, True, 3)


def test_deaths_that_are_explained_never_convict(store: FaultyStore, clock: Clock) -> None:
    for number in range(1, 12):
        victim = Worker(store, clock, f"1-{number}")
        claim = victim.claim()
        assert isinstance(claim, Claim)
        assert claim.number == number
        mark_dead(store, RUN, victim.name, cause="explained", detail="node lost")


def test_an_explanation_that_comes_late_still_acquits(store: FaultyStore, clock: Clock) -> None:
    first = Worker(store, clock, "1-1")
    assert isinstance(first.claim(), Claim)
    second = Worker(store, clock, "1-2")
    assert isinstance(watch(second, clock, STALE_SECONDS), Claim)
    mark_dead(store, RUN, "1-1", cause="explained", detail="evicted", worker_id=first.id)
    mark_dead(store, RUN, "1-2", cause="unexplained")
    third = Worker(store, clock, "1-3")
    assert isinstance(third.claim(), Claim)
    mark_dead(store, RUN, "1-3", cause="unexplained")
    fourth = Worker(store, clock, "1-4").claim()
    assert isinstance(fourth, Claim)
    assert fourth.number == 4


class TestHeart:
    def test_it_shows_trial_and_phase_and_ends_in_the_note(self, store_address: Address) -> None:
        store = store_address.open()
        heart = Heart(store, RUN, worker="1-0", worker_id="w", stage="explore", interval=0.05)
        with heart:
            first = read_record(store, layout.beat(RUN, "1-0"), BeatRecord)
            assert first is not None
            heart.begin(TRIAL)
            heart.phase("build")
            wait_for(lambda: beat_of(store).phase == "build" and beat_of(store).trial == TRIAL)
            heart.finished(Outcome.FEASIBLE, device_seconds=1.5)
            wait_for(lambda: beat_of(store).done == 1)
            before = beat_of(store).sequence
            wait_for(lambda: beat_of(store).sequence > before)
            assert beat_of(store).device_seconds == 1.5
            assert beat_of(store).outcomes == {"feasible": 1}
            heart.close(BeatState.STOPPED, detail="SIGTERM")
        last = beat_of(store)
        assert (last.state, last.cause, last.detail) == (BeatState.STOPPED, "stopped", "SIGTERM")
        assert end_of(store, RUN, "w") == PreviousEnd(cause="stopped", detail="SIGTERM")
        assert not any(thread.name == "heart-1-0" for thread in threading.enumerate())

    def test_time_in_hand_counts_from_the_first_phase_and_never_falls(self, store: FaultyStore, clock: Clock) -> None:
        heart = Heart(store, RUN, worker="1-0", worker_id="w", stage="explore", clock=clock)

        def shown() -> float:
            heart.beat()
            return beat_of(store).device_seconds

        heart.begin(TRIAL)
        clock.now += 3  # a look at the ledger: no device
        assert shown() == 0.0
        heart.phase("build")
        clock.now += 7
        assert shown() == 7.0
        heart.begin(TRIAL)  # another try of the same trial
        clock.now += 5
        assert shown() == 12.0
        heart.finished(Outcome.HUNG, device_seconds=11.0)  # 1 s went into writing the result
        assert shown() == 12.0
        heart.begin("001-00001")
        heart.phase("build")
        clock.now += 4
        assert shown() == 15.0
        heart.finished(None)
        assert shown() == 15.0
        assert beat_of(store).outcomes == {"hung": 1}
        assert beat_of(store).done == 1

    def test_a_trial_that_is_given_up_keeps_its_time(self, store: FaultyStore, clock: Clock) -> None:
        heart = Heart(store, RUN, worker="1-0", worker_id="w", stage="explore", clock=clock)
        heart.begin(TRIAL)
        heart.phase("build")
        clock.now += 7
        heart.close(BeatState.STOPPED)
        clock.now += 100
        heart.beat()
        assert beat_of(store).device_seconds == 7.0

    def test_it_goes_on_from_its_predecessors_figures(self, store: FaultyStore, clock: Clock) -> None:
        first = Heart(store, RUN, worker="1-0", worker_id="first", stage="explore", clock=clock)
        first.begin(TRIAL)
        first.phase("build")
        clock.now += 7
        first.finished(Outcome.FEASIBLE, cached=True)
        first.begin("001-00001")
        first.phase("build")
        clock.now += 2
        first.beat()  # and is killed
        mark_dead(store, RUN, "1-0", cause="unexplained")

        with Heart(store, RUN, worker="1-0", worker_id="second", stage="explore", clock=clock) as second:
            beat = beat_of(store)
            assert (beat.worker_id, beat.state, beat.sequence) == ("second", BeatState.RUNNING, 1)
            assert (beat.done, beat.outcomes, beat.cached, beat.device_seconds) == (1, {"feasible": 1}, 1, 9.0)
            second.finished(Outcome.FEASIBLE)
            second.finished(Outcome.CRASHED)
        beat = beat_of(store)
        assert (beat.done, beat.outcomes, beat.cached, beat.device_seconds) == (3, {"feasible": 2, "crashed": 1}, 1, 9.0)

    def test_a_beat_of_an_older_version_has_figures_to_go_on_from(self, store: FaultyStore) -> None:
        old = {"kind": "Beat", "schemaVersion": 1, "worker": "1-0", "workerId": "w", "sequence": 9, "stage": "explore"}
        old |= {"done": 4, "deviceSeconds": 2.5, "at": "then"}
        store.put(layout.beat(RUN, "1-0"), json.dumps(old).encode())
        with Heart(store, RUN, worker="1-0", worker_id="new", stage="explore"):
            beat = beat_of(store)
        assert (beat.done, beat.outcomes, beat.cached, beat.device_seconds) == (4, {}, 0, 2.5)

    @pytest.mark.parametrize(
        "poison",
        [
            b"\0",
            b"{" + b" " * (1 << 20) + b"}",
            b'{"schemaVersion": 2}',
            json.dumps(BEAT | {"deviceSeconds": -1.0}).encode(),
            json.dumps(BEAT | {"outcomes": {"feasible": -1}}).encode(),
            json.dumps(BEAT | {"outcomes": {str(n): 1 for n in range(99)}}).encode(),
        ],
        ids=["garbage", "huge", "newer", "negative time", "negative count", "many outcomes"],
    )
    def test_a_beat_that_cannot_be_used_costs_its_figures_only(self, store: FaultyStore, poison: bytes) -> None:
        store.put(layout.beat(RUN, "1-0"), poison)
        with Heart(store, RUN, worker="1-0", worker_id="w", stage="explore"):
            beat = beat_of(store)
        assert (beat.done, beat.outcomes, beat.cached, beat.device_seconds) == (0, {}, 0, 0.0)

    def test_it_survives_an_outage(self, store: FaultyStore) -> None:
        heart = Heart(store, RUN, worker="1-0", worker_id="w", stage="explore", interval=0.02)
        with heart:
            store.down = True
            wait_for(lambda: heart.problem is not None)
            store.down = False
            wait_for(lambda: heart.problem is None)
            before = beat_of(store).sequence
            wait_for(lambda: beat_of(store).sequence > before)

    def test_it_claims_nothing_without_a_first_beat(self, store: FaultyStore) -> None:
        store.down = True
        with pytest.raises(StoreUnavailable):
            Heart(store, RUN, worker="1-0", worker_id="w", stage="explore").start()

    def test_closing_in_an_outage_is_no_error(self, store: FaultyStore) -> None:
        heart = Heart(store, RUN, worker="1-0", worker_id="w", stage="explore")
        heart.start()
        store.down = True
        heart.close(BeatState.STOPPED)
        assert isinstance(heart.problem, StoreUnavailable)

    @pytest.mark.parametrize(
        ("error", "state", "cause"),
        [
            (None, BeatState.DONE, None),
            (KeyboardInterrupt(), BeatState.STOPPED, "stopped"),
            (TrtfleetError("the store is full"), BeatState.DEAD, "explained"),
            (ZeroDivisionError(), BeatState.DEAD, "unexplained"),
        ],
    )
    def test_how_it_ends_follows_from_how_the_worker_ends(
        self, store: FaultyStore, error: BaseException | None, state: BeatState, cause: str | None
    ) -> None:
        raises = contextlib.nullcontext() if error is None else pytest.raises(type(error))
        with raises, Heart(store, RUN, worker="1-0", worker_id="w", stage="explore"):
            if error is not None:
                raise error
        assert beat_of(store).state is state
        end = end_of(store, RUN, "w")
        assert (end.cause if end else None) == cause


class TestMarkDead:
    def test_the_first_to_know_decides(self, store: FaultyStore, clock: Clock) -> None:
        Worker(store, clock, "1-0")
        assert mark_dead(store, RUN, "1-0", cause="explained", detail="evicted")
        assert not mark_dead(store, RUN, "1-0", cause="outOfMemory")
        beat = beat_of(store)
        assert (beat.state, beat.cause, beat.detail) == (BeatState.DEAD, "explained", "evicted")

    def test_a_worker_that_stopped_or_finished_has_not_died(self, store: FaultyStore, clock: Clock) -> None:
        for state in (BeatState.STOPPED, BeatState.DONE):
            worker = Worker(store, clock, "1-0")
            worker.heart.close(state)
            assert not mark_dead(store, RUN, "1-0", cause="unexplained")
            assert beat_of(store).state is state

    def test_the_death_of_a_predecessor_leaves_the_successors_beat_alone(self, store: FaultyStore, clock: Clock) -> None:
        old = Worker(store, clock, "1-0")
        new = Worker(store, clock, "1-0")
        assert mark_dead(store, RUN, "1-0", cause="explained", worker_id=old.id)
        assert beat_of(store).worker_id == new.id
        assert beat_of(store).state is BeatState.RUNNING

    def test_a_worker_that_never_was_cannot_die(self, store: FaultyStore) -> None:
        assert not mark_dead(store, RUN, "9-9", cause="unexplained")


def beat_of(store: ObjectStore, worker: str = "1-0") -> BeatRecord:
    beat = read_record(store, layout.beat(RUN, worker), BeatRecord)
    assert beat is not None
    return beat


def wait_for(condition: object, seconds: float = 30.0) -> None:
    assert callable(condition)
    give_up = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        give_up.wait(0.01)
    raise AssertionError("it did not happen")


TRIALS = [f"001-{n:05d}" for n in range(2)]


@dataclass
class Process:
    """A worker process and the truth about it."""

    worker: Worker
    fate: str = "alive"  # then stopped, silent, explained, outOfMemory, unexplained, done
    holds: Claim | None = None
    shown: dict[str, float] = field(default_factory=dict)
    """Trial → time at which a beat last showed it, or it was claimed."""


class Fleet(RuleBasedStateMachine):
    """Workers that are started, killed in every way and started again, over a store with faults. Two of them share a name."""

    NAMES = ("1-0", "1-1", "1-2", "1-2")

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.store = FaultyStore(ObjectStore.open(f"memory://fleet-{next(_names)}"))
        self.processes: dict[str, Process] = {}
        self.results: dict[str, bytes] = {}
        self.waited: dict[tuple[str, int], float] = {}
        """Trial, try → how long whoever took it over, or convicted the trial, had watched it."""
        self.watched: dict[tuple[str, str, int], float] = {}
        """Observer, trial, try → since when it has seen that try, with no failed read since."""
        for name in self.NAMES:
            self.start(name)

    def start(self, name: str) -> Process:
        self.store.lose_next_answer = False  # without a first beat it would not start at all
        process = Process(Worker(self.store, self.clock, name))
        self.processes[process.worker.id] = process
        return process

    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if process.fate == "alive"]

    def busy(self) -> list[Process]:
        return [process for process in self.alive() if process.holds is not None]

    def idle(self) -> list[Process]:
        return [process for process in self.alive() if process.holds is None]

    def missing(self) -> list[str]:
        names = list(self.NAMES)
        for process in self.alive():
            names.remove(process.worker.name)
        return names

    @precondition(lambda self: self.missing())
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        self.start(data.draw(st.sampled_from(self.missing())))

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), trial=st.sampled_from(TRIALS))
    def claim(self, data: st.DataObject, trial: str) -> None:
        self.claim_by(data.draw(st.sampled_from(self.idle())), trial)

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), trial=st.sampled_from(TRIALS), others_beat=st.booleans(), step=st.sampled_from([5.0, 29.0]))
    def watch(self, data: st.DataObject, trial: str, others_beat: bool, step: float) -> None:
        """An idle worker looks at one trial again and again."""
        observer = data.draw(st.sampled_from(self.idle()))
        for _ in range(int(150 / step)):
            if observer.holds is None:
                self.claim_by(observer, trial)
            self.clock.now += step
            for process in self.alive() if others_beat else ():
                self.beat_of(process)

    def claim_by(self, process: Process, trial: str) -> None:
        known, had_result = self.tries(trial), self.store.inner.exists(layout.result(RUN, trial))
        try:
            answer = process.worker.claim(trial)
        except StoreUnavailable:
            answer = None
        # a conviction ends the last try as a takeover does
        if len(self.tries(trial)) > len(known) or self.store.inner.exists(layout.result(RUN, trial)) > had_result:
            self.check_takeover(process, trial, known)
        if answer is None:
            self.watched = {key: since for key, since in self.watched.items() if key[0] != process.worker.id}
        elif isinstance(answer, Busy):
            self.watched.setdefault((process.worker.id, trial, len(self.tries(trial))), self.clock.now)
        if isinstance(answer, Claim):
            process.holds = answer
            process.shown[trial] = self.clock.now

    def check_takeover(self, process: Process, trial: str, known: list[TryRecord]) -> None:
        """A try is over only after a noted end, or a wait in which its worker gave no sign, or signs of another trial."""
        if not known:
            return
        last = self.processes[known[-1].worker_id]
        assert last is not process
        watched = self.clock.now - self.watched.get((process.worker.id, trial, len(known)), self.clock.now)
        self.waited[trial, len(known)] = watched
        if last.fate not in ("alive", "silent"):
            return
        assert watched >= STALE_SECONDS, f"{trial} taken over after {watched} s"
        silent_for = self.clock.now - last.shown.get(trial, 0.0)
        # of two processes under one name, one can overwrite the other's beats before anyone sees them
        assert silent_for >= STALE_SECONDS or self.NAMES.count(last.worker.name) > 1, f"{trial} taken from a live worker"

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        self.beat_of(data.draw(st.sampled_from(self.alive())))

    def beat_of(self, process: Process) -> None:
        with contextlib.suppress(StoreUnavailable):
            process.worker.heart.beat()
        if not self.store.down and process.holds is not None:
            process.shown[process.holds.trial] = self.clock.now

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.busy()))
        with contextlib.suppress(StoreUnavailable):  # then it still holds the claim, and tries again
            assert process.holds is not None
            process.worker.finish(process.holds)
            process.holds = None

    @precondition(lambda self: self.busy())
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.busy()))
        assert process.holds is not None
        trial = process.holds.trial
        with contextlib.suppress(StoreUnavailable):
            process.holds = process.holds.again(PreviousEnd(cause="infrastructure"))
        if process.holds is not None:
            process.shown[trial] = self.clock.now

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), fate=st.sampled_from(["stopped", "silent", "silent", "explained", "outOfMemory", "unexplained"]))
    def end(self, data: st.DataObject, fate: Literal["stopped", "silent", "explained", "outOfMemory", "unexplained"]) -> None:
        """A worker dies or stops with a trial in hand."""
        process = data.draw(st.sampled_from(self.busy()))
        process.fate = "silent"
        if fate == "stopped":
            process.worker.heart.close(BeatState.STOPPED)
            self.learn(process)
        elif fate != "silent":
            self.note(process, fate)

    @rule(trial=st.sampled_from(TRIALS), fate=st.sampled_from(["silent", "explained", "outOfMemory", "unexplained"]))
    def kill_the_next(self, trial: str, fate: Literal["silent", "explained", "outOfMemory", "unexplained"]) -> None:
        """A new worker gets the trial, if it is free, and dies of it."""
        process = self.start("3-0")
        self.claim_by(process, trial)
        process.fate = "silent"
        if fate != "silent":
            self.note(process, fate)

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), silently=st.booleans())
    def leave(self, data: st.DataObject, silently: bool) -> None:
        """A worker dies or finishes between two trials."""
        process = data.draw(st.sampled_from(self.idle()))
        process.fate = "silent" if silently else "done"
        if not silently:
            process.worker.heart.close(BeatState.DONE)

    @precondition(lambda self: any(process.fate == "silent" for process in self.processes.values()))
    @rule(data=st.data(), fate=st.sampled_from(["explained", "outOfMemory"]))
    def explain_late(self, data: st.DataObject, fate: Literal["explained", "outOfMemory"]) -> None:
        silent = [process for process in self.processes.values() if process.fate == "silent"]
        self.note(data.draw(st.sampled_from(silent)), fate)

    def note(self, process: Process, fate: Literal["explained", "outOfMemory", "unexplained"]) -> None:
        with contextlib.suppress(StoreUnavailable):
            mark_dead(self.store, RUN, process.worker.name, cause=fate, worker_id=process.worker.id)
        self.learn(process)

    def learn(self, process: Process) -> None:
        """The truth is what anyone could have known: a note whose answer was lost is there, one that was never written is not."""
        if (end := end_of(self.store.inner, RUN, process.worker.id)) is not None:
            process.fate = end.cause

    @rule(seconds=st.sampled_from([1.0, 29.0, 130.0]), busy_with=st.sampled_from(["nothing", "beats", "claims"]))
    def outage(self, seconds: float, busy_with: str) -> None:
        self.store.down = True
        for process in self.alive():
            if busy_with == "beats":
                self.beat_of(process)
            elif busy_with == "claims" and process.holds is None:
                self.claim_by(process, TRIALS[0])
        self.clock.now += seconds
        self.store.down = False

    @rule()
    def lose_an_answer(self) -> None:
        self.store.lose_next_answer = True

    def tries(self, trial: str) -> list[TryRecord]:
        tries: list[TryRecord] = []
        while record := read_record(self.store.inner, layout.claim(RUN, trial, len(tries) + 1), TryRecord):
            tries.append(record)
        return tries

    @invariant()
    def results_never_change(self) -> None:
        for trial in TRIALS:
            found = self.store.inner.get(layout.result(RUN, trial), 1 << 20)
            if trial in self.results:
                assert found is not None
                assert found.data == self.results[trial]
            elif found is not None:
                self.results[trial] = found.data
                self.check_conviction(ResultRecord.parse(found.data, trial))

    def check_conviction(self, result: ResultRecord) -> None:
        """Only a trial whose workers died or fell silent, unexplained to this day, is convicted; and no later than agreed."""
        tries = self.tries(result.trial)
        fates = [self.processes[tried.worker_id].fate for tried in tries]
        causes = [following.previous.cause for following in tries[1:] if following.previous is not None]
        own = [cause == "infrastructure" for cause in causes] + [False]
        died = [fate for fate, retried in zip(fates, own, strict=True) if not retried]
        waited = [self.waited.get((result.trial, number), 0.0) >= STALE_SECONDS for number in range(1, len(tries) + 1)]
        # a worker that lives has fallen silent nevertheless, for the one who waited; a note that came later tells the truth
        unexplained = [
            not retried and (fate == "unexplained" or (late and fate in ("alive", "silent", "done")))
            for fate, retried, late in zip(fates, own, waited, strict=True)
        ]
        if result.convicted:
            assert died.count("outOfMemory") >= 2 or sum(unexplained) >= 3, f"{result.trial} convicted in spite of {fates}"
        assert causes.count("outOfMemory") < 2
        assert sum(unexplained[:-1]) < 3

    def teardown(self) -> None:
        """Once the faults end, a single worker brings every trial to its one end."""
        if not hasattr(self, "store"):
            return
        self.store.lose_next_answer = False
        for process in self.alive():
            process.fate = "silent"
        last = self.start("2-0")
        for _ in range(8):
            for trial in TRIALS:
                self.claim_by(last, trial)
                if last.holds is not None:
                    last.worker.finish(last.holds)
                    last.holds = None
            self.clock.now += STALE_SECONDS / 4
        self.results_never_change()
        assert sorted(self.results) == TRIALS


TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("change", [{"trial": "001-00001"}, {"number": 7}])
def test_a_try_that_belongs_elsewhere_is_named(store: FaultyStore, clock: Clock, change: dict[str, object]) -> None:
    record = TryRecord(trial=TRIAL, number=1, worker="9-0", worker_id="w", started_at=timestamp()).model_copy(update=change)
    create_record(store, layout.claim(RUN, TRIAL, 1), record)
    with pytest.raises(InputError, match=f"{layout.claim(RUN, TRIAL, 1)}: it is of another trial or try"):
        Worker(store, clock, "1-0").claim()
