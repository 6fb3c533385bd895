"""Publishers, people and collections against each other, one store operation at a time, with crashes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from store_publish_helpers import NAME, Crashed, Part, World, finished, fresh_store, interleave, write

from tuner_job.api.base import TrtfleetError
from tuner_job.api.messages import PointerRecord
from tuner_job.store import layout, pointers
from tuner_job.store.gc import MIN_GRACE_SECONDS, collect
from tuner_job.store.keys import Signer, TrustRoot
from tuner_job.store.objects import ObjectStore
from tuner_job.store.publish import promote, publish
from tuner_job.store.verify import attested, verify

SIGNER = Signer.generate()
TRUST = TrustRoot([SIGNER.public])
RUNS = [finished(str(number)) for number in range(3)]
DAY = 86400.0
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without shrinking, which would outlast the test's time limit; add Phase.shrink to study a failure."""


@contextlib.contextmanager
def memory() -> Iterator[ObjectStore]:
    yield fresh_store()


@contextlib.contextmanager
def folder() -> Iterator[ObjectStore]:
    with tempfile.TemporaryDirectory() as path:
        yield ObjectStore.open(f"file://{path}/store")


@dataclass
class Watch:
    """After every operation: the pointer is valid, and follows from what it was."""

    store: ObjectStore
    seen: list[PointerRecord] = field(default_factory=list)
    attested: set[str] = field(default_factory=set)

    def __call__(self) -> None:
        pointer = pointers.read(self.store, NAME)
        if pointer is None:
            assert not self.seen
            return
        if not self.seen or pointer != self.seen[-1]:
            self._follows(pointer)
            self.seen.append(pointer)
        for entry in pointers.entries(pointer):
            manifest = pointers.load_manifest(self.store, entry.manifest)
            assert manifest.run == entry.run
            for blob in manifest.blobs:
                info = self.store.info(layout.blob(blob.digest))
                assert info is not None
                assert info.size == blob.size
            if entry.manifest not in self.attested:
                attested(self.store, entry.manifest, TRUST)
                self.attested.add(entry.manifest)
            assert self.store.exists(layout.attestation_by(entry.manifest, SIGNER.key_id))

    def _follows(self, pointer: PointerRecord) -> None:
        assert pointer.pinned in (None, pointer.current.manifest)
        if not self.seen:
            assert (pointer.generation, pointer.history) == (1, ())
            return
        before = self.seen[-1]
        assert pointer.generation == before.generation + 1
        if pointer.current != before.current:
            assert pointer.history == (before.current, *before.history)[: pointers.HISTORY]
        elif len(pointer.history) > len(before.history):
            assert before.pinned
            assert pointer.history[0].why == pointers.HELD
            assert pointer.history[1:] == before.history[: pointers.HISTORY - 1]
        else:
            assert pointer.history == before.history[: len(pointer.history)]


def publishing(number: int, promotion: str = "Automatic") -> Callable[[ObjectStore], object]:
    done = RUNS[number]
    return lambda store: publish(
        store,
        done.run,
        done.verdict,
        SIGNER,
        current_inputs_digest=done.run.inputs_digest,
        promotion=promotion,  # type: ignore[arg-type]
    )


def promoting(number: int) -> Callable[[ObjectStore], object]:
    def work(store: ObjectStore) -> None:
        promote(store, publishing(number, "Manual")(store).digest, TRUST, owner=NAME.owner)  # type: ignore[attr-defined]

    return work


def collecting(world: World, keep: int) -> Callable[[ObjectStore], object]:
    return lambda store: collect(store, keep=keep, now=world.now, grace_seconds=MIN_GRACE_SECONDS, run_retention_seconds=2 * DAY)


def works(world: World) -> st.SearchStrategy[Callable[[ObjectStore], object]]:
    number = st.integers(0, len(RUNS) - 1)
    return st.one_of(
        number.map(publishing),
        number.map(promoting),
        number.map(lambda n: lambda store: pointers.rollback(store, NAME, _manifest(store, n))),
        st.just(lambda store: pointers.rollback(store, NAME)),
        st.just(lambda store: pointers.pin(store, NAME)),
        st.just(lambda store: pointers.unpin(store, NAME)),
        st.integers(0, 2).map(lambda keep: collecting(world, keep)),
    )


def _manifest(store: ObjectStore, number: int) -> str:
    """The digest that a person would name."""
    for info in store.list(layout.MANIFESTS):
        digest = info.key.rpartition("/")[2]
        if pointers.load_manifest(store, digest).run == RUNS[number].run.run:
            return digest
    return "0" * 64


def parts(world: World, least: int = 2) -> st.SearchStrategy[list[Part]]:
    crash = st.one_of(st.none(), st.integers(1, 25))
    return st.lists(st.builds(Part, works(world), crash, st.booleans()), min_size=least, max_size=4)


SCHEDULE = st.lists(st.integers(0, 11), min_size=1, max_size=80)


def tolerated(errors: list[BaseException | None]) -> None:
    """Refusals and crashes are expected, anything else is a fault."""
    for error in errors:
        if error is not None and not isinstance(error, TrtfleetError | Crashed):
            raise error


def races(data: st.DataObject, store: ObjectStore, phases: int) -> None:
    world, watch = World(store), Watch(store)
    view = world.view()
    for done in RUNS:
        write(view, done)
    for _ in range(phases):
        tolerated(interleave(world, data.draw(parts(world)), data.draw(SCHEDULE), watch))
        world.pass_time(data.draw(st.sampled_from([0.0, 1.0, 5.0])))
    assert all(earlier.generation < later.generation for earlier, later in zip(watch.seen, watch.seen[1:], strict=False))
    if watch.seen:
        verify(store, NAME, TRUST)


@settings(max_examples=60, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_interleaving_or_crash_leaves_a_pointer_to_something_that_is_not_there(data: st.DataObject) -> None:
    with memory() as store:
        races(data, store, phases=3)


@settings(max_examples=4, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_same_holds_in_a_folder(data: st.DataObject) -> None:
    with folder() as store:
        races(data, store, phases=2)


@settings(max_examples=40, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(
    crashes=st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=2, max_size=3),
    schedule=SCHEDULE,
)
def test_publishers_that_crash_and_repeat_end_with_every_run_known_once(
    crashes: list[tuple[int, bool]], schedule: list[int]
) -> None:
    with memory() as store:
        world, watch = World(store), Watch(store)
        view = world.view()
        for done in RUNS:
            write(view, done)
        work = [publishing(number) for number in range(len(crashes))]
        first = [Part(each, at, effect) for each, (at, effect) in zip(work, crashes, strict=True)]
        tolerated(interleave(world, first, schedule, watch))
        assert interleave(world, [Part(each) for each in work], schedule, watch) == [None] * len(work)
        pointer = pointers.read(store, NAME)
        assert pointer is not None
        known = [entry.run for entry in pointers.entries(pointer)]
        assert sorted(known) == sorted(done.run.run for done in RUNS[: len(crashes)])
        assert pointer.generation == len(crashes)
        manifests = [info.key for info in store.list(layout.MANIFESTS)]
        assert len(manifests) == len(crashes)


@pytest.mark.parametrize("effect", [False, True])
@pytest.mark.parametrize("promotion", ["Automatic", "Manual"])
def test_a_publisher_that_dies_at_any_operation_leaves_the_old_pointer_or_the_new_one(promotion: str, effect: bool) -> None:
    for at in range(1, 40):
        with memory() as store:
            world, watch = World(store), Watch(store)
            view = world.view()
            for done in RUNS[:2]:
                write(view, done)
            publishing(0)(view)
            watch()
            (error,) = interleave(world, [Part(publishing(1, promotion), at, effect)], [0], watch)
            if error is None:
                assert at > 5
                break
            publishing(1)(view)
            watch()
            pointer = pointers.read(store, NAME)
            assert pointer is not None
            assert pointer.current.run == RUNS[1].run.run
            assert pointer.generation == 2
    else:
        pytest.fail("never came to an end")


def splits() -> Iterator[list[int]]:
    """Actor 0 up to each of its operations, then all of actor 1, then the rest; and the other way round."""
    for stop in range(0, 36, 3):
        yield [0] * stop + [1] * 200
        yield [1] * stop + [0] * 200


def test_a_collection_between_any_two_operations_of_a_publisher_takes_nothing_from_it() -> None:
    """The publication was begun and dropped long ago, so that everything of it is old when it is taken up again."""
    for schedule in splits():
        with memory() as store:
            world, watch = World(store), Watch(store)
            view = world.view()
            for done in RUNS:
                write(view, done)
            publishing(0, "Manual")(view)
            world.pass_time(30)
            errors = interleave(world, [Part(publishing(0)), Part(collecting(world, 0))], schedule, watch)
            tolerated(errors)
            assert errors[1] is None
            if errors[0] is None:
                assert verify(store, NAME, TRUST).manifest.run == RUNS[0].run.run


@pytest.mark.parametrize("taken_up", [publishing(0), promoting(0)])
def test_a_publication_taken_up_again_while_its_retired_run_is_deleted_is_refused(
    taken_up: Callable[[ObjectStore], object],
) -> None:
    for schedule in splits():
        with memory() as store:
            world, watch = World(store), Watch(store)
            view = world.view()
            for done in RUNS:
                write(view, done)
            publishing(0, "Manual")(view)
            world.pass_time(30)
            collecting(world, 0)(view)
            assert store.exists(layout.retired(RUNS[0].run.run))
            world.pass_time(30)
            errors = interleave(world, [Part(taken_up), Part(collecting(world, 0))], schedule, watch)
            assert isinstance(errors[0], TrtfleetError)
            assert errors[1] is None
            assert pointers.read(store, NAME) is None


def test_a_rollback_beside_a_collection_that_forgets_its_target_gets_it_whole_or_not_at_all() -> None:
    for schedule in splits():
        with memory() as store:
            world, watch = World(store), Watch(store)
            view = world.view()
            for number, done in enumerate(RUNS):
                write(view, done)
                publishing(number)(view)
                watch()
            oldest = _manifest(store, 0)
            world.pass_time(30)
            back = Part(lambda store, oldest=oldest: pointers.rollback(store, NAME, oldest))
            errors = interleave(world, [back, Part(collecting(world, 1))], schedule, watch)
            tolerated(errors)
            world.pass_time(30)
            collecting(world, 1)(view)
            watch()
            pointer = pointers.read(store, NAME)
            assert pointer is not None
            assert len(pointer.history) == 1
            assert (pointer.current.manifest == oldest) == (errors[0] is None)
