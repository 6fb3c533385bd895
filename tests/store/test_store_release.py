from __future__ import annotations

from collections.abc import Callable

import pytest
from store_publish_helpers import NAME, OWNER, Actor, Crashed, Finished, World, finished, fresh_store, write

from tuner_job.api.documents import load_documents
from tuner_job.api.messages import PointerRecord
from tuner_job.store import layout, pointers
from tuner_job.store.attest import VerificationFailed
from tuner_job.store.keys import Signer, TrustRoot
from tuner_job.store.objects import ObjectStore
from tuner_job.store.publish import NotCurrent
from tuner_job.store.release import KEEP, Release, Wish, release
from tuner_job.store.verify import verify

SIGNER = Signer.generate()
TRUST = TrustRoot([SIGNER.public])
PLAIN = Wish()


@pytest.fixture
def store() -> ObjectStore:
    return fresh_store()


def put_out(
    store: ObjectStore,
    done: Finished,
    wish: Wish = PLAIN,
    *,
    only_the_job_pins: bool = True,
    current: Callable[[], str] | None = None,
) -> Release:
    now = current or (lambda: done.run.inputs_digest)
    return release(
        store, done.run, done.verdict, SIGNER, wish, TRUST, current_inputs_digest=now, only_the_job_pins=only_the_job_pins
    )


def served(store: ObjectStore) -> PointerRecord:
    pointer = pointers.read(store, NAME)
    assert pointer is not None
    return pointer


def test_a_winner_is_served_at_once_where_nobody_said_otherwise(store: ObjectStore) -> None:
    done = write(store, finished())
    ended = put_out(store, done)
    assert ended.state == "Served"
    assert ended.pointer == served(store)
    assert verify(store, NAME, TRUST).digest == ended.published.digest


def test_releasing_again_changes_nothing(store: ObjectStore) -> None:
    done = write(store, finished())
    first = put_out(store, done)
    keys = {info.key for info in store.list("")}
    assert put_out(store, done) == first
    assert {info.key for info in store.list("")} == keys


def test_manual_promotion_waits_then_serves_what_was_approved(store: ObjectStore) -> None:
    done = write(store, finished())
    waiting = put_out(store, done, Wish(promotion="Manual"))
    assert (waiting.state, waiting.pointer) == ("AwaitingApproval", None)
    approved = put_out(store, done, Wish(promotion="Manual", approved=waiting.published.digest))
    assert approved.state == "Served"
    assert served(store).current.why == pointers.PROMOTED


def test_an_approval_of_an_older_manifest_leaves_the_new_one_waiting(store: ObjectStore) -> None:
    first, second = write(store, finished("1")), write(store, finished("2"))
    old = put_out(store, first, Wish(promotion="Manual")).published.digest
    ended = put_out(store, second, Wish(promotion="Manual", approved=old))
    assert ended.state == "AwaitingApproval"
    assert served(store).current.manifest == old


def test_an_approval_of_what_nobody_attested_is_refused(store: ObjectStore) -> None:
    done = write(store, finished())
    with pytest.raises(VerificationFailed):
        put_out(store, done, Wish(promotion="Manual", approved="0" * 64))
    assert pointers.read(store, NAME) is None


def test_while_pinned_a_new_winner_is_never_served(store: ObjectStore) -> None:
    first, second = write(store, finished("1")), write(store, finished("2"))
    old = put_out(store, first).published.digest
    seen: list[str] = []

    def current() -> str:
        seen.append(served(store).current.manifest)
        return second.run.inputs_digest

    ended = put_out(store, second, Wish(pinned=old), current=current)
    assert ended.state == "Pinned"
    assert set(seen) == {old}
    assert (served(store).current.manifest, served(store).pinned) == (old, old)


def test_a_job_that_is_pinned_to_its_own_first_manifest_serves_it(store: ObjectStore) -> None:
    done = write(store, finished())
    own = put_out(store, done, Wish(promotion="Manual")).published.digest
    ended = put_out(store, done, Wish(pinned=own))
    assert ended.state == "Served"
    assert served(store).pinned == own


def test_a_pin_to_what_is_not_there_moves_nothing(store: ObjectStore) -> None:
    first, second = write(store, finished("1")), write(store, finished("2"))
    put_out(store, first)
    before = served(store)
    with pytest.raises(VerificationFailed, match="no such manifest"):
        put_out(store, second, Wish(pinned="0" * 64))
    assert served(store) == before


def test_a_withdrawn_pin_lets_the_newest_winner_be_served_where_only_the_job_pins(store: ObjectStore) -> None:
    first, second = write(store, finished("1")), write(store, finished("2"))
    old = put_out(store, first).published.digest
    put_out(store, second, Wish(pinned=old))
    ended = put_out(store, second)
    assert ended.state == "Served"
    assert served(store).pinned is None


def test_a_pin_to_an_engine_that_was_served_before_is_withdrawn_too(store: ObjectStore) -> None:
    first, second = write(store, finished("1")), write(store, finished("2"))
    old = put_out(store, first).published.digest
    new = put_out(store, second).published.digest
    put_out(store, second, Wish(pinned=old))
    assert served(store).current.why == pointers.PINNED
    assert put_out(store, second).state == "Served"
    assert served(store).current.manifest == new


def test_elsewhere_a_pin_by_hand_stays(store: ObjectStore) -> None:
    first, second = write(store, finished("1")), write(store, finished("2"))
    old = put_out(store, first).published.digest
    pointers.pin(store, NAME)
    ended = put_out(store, second, only_the_job_pins=False)
    assert ended.state == "Pinned"
    assert served(store).pinned == old


def test_a_rollback_by_hand_stays_until_the_next_run(store: ObjectStore) -> None:
    first, second, third = (write(store, finished(token)) for token in "123")
    put_out(store, first)
    put_out(store, second)
    pointers.rollback(store, NAME)
    assert put_out(store, second).state == "RolledBack"
    assert put_out(store, third).state == "Served"


def test_a_job_that_was_edited_back_serves_its_old_engine_again(store: ObjectStore) -> None:
    old, new = write(store, finished(model="m1")), write(store, finished(model="m2"))
    put_out(store, old)
    put_out(store, new)
    assert put_out(store, old).state == "Served"
    assert served(store).current.run == old.run.run


def test_a_run_that_is_not_current_releases_nothing(store: ObjectStore) -> None:
    done = write(store, finished())
    with pytest.raises(NotCurrent):
        put_out(store, done, current=lambda: "f" * 64)
    assert pointers.read(store, NAME) is None
    assert not list(store.list(layout.MANIFESTS))


def test_the_history_is_cut_to_what_the_job_keeps(store: ObjectStore) -> None:
    for number in range(KEEP + 3):
        done = write(store, finished(str(number)))
        put_out(store, done)
    assert len(served(store).history) == KEEP
    put_out(store, done, Wish(keep=2))
    assert len(served(store).history) == 2


JOB = """
apiVersion: trtfleet.dev/v1alpha1
kind: TuningJob
metadata: {name: resnet}
spec:
  model: {uri: "s3://models/resnet.onnx"}
  storeRef: {name: main}
  targets:
  - {name: cpu, device: {type: CPU}, runtimeRef: {name: ort}}
  - {name: other, device: {type: CPU}, runtimeRef: {name: ort}}
"""


def test_a_wish_is_what_the_job_says_of_the_target() -> None:
    digests = "ab" * 32, "cd" * 32
    text = JOB + (
        f"  publish: {{promotion: Manual, keep: 3, targets: [{{name: cpu, approvedDigest: 'sha256:{digests[0]}', "
        f"pinnedDigest: 'sha256:{digests[1]}'}}]}}\n"
    )
    job = load_documents(text, "test").job("resnet")
    assert Wish.of(job, "cpu") == Wish("Manual", *digests, keep=3)
    assert Wish.of(job, "other") == Wish("Manual", keep=3)
    assert Wish.of(load_documents(JOB, "test").job("resnet"), "cpu") == Wish("Automatic", None, None, KEEP)


@pytest.mark.parametrize("effect", [False, True])
@pytest.mark.parametrize("case", ["first", "edited back", "promoted", "pinned", "unpinned"])
def test_killed_at_any_operation_a_repeat_comes_to_the_same_end(case: str, effect: bool) -> None:
    def prepare(store: ObjectStore) -> tuple[Finished, Wish]:
        done, other = write(store, finished(model="m1")), write(store, finished(model="m2"))
        if case == "first":
            return done, Wish()
        own = put_out(store, done, Wish(promotion="Manual")).published.digest
        if case == "promoted":
            return done, Wish(promotion="Manual", approved=own)
        put_out(store, done)
        put_out(store, other)
        if case == "pinned":
            return other, Wish(pinned=own)
        if case == "unpinned":
            put_out(store, other, Wish(pinned=own))
            return other, Wish()
        return done, Wish()

    def outcome(store: ObjectStore, done: Finished, wish: Wish) -> tuple[object, ...]:
        ended = put_out(store, done, wish)
        assert ended.pointer is not None
        return ended.state, ended.published.digest, ended.pointer.current.manifest, ended.pointer.pinned

    plain = fresh_store()
    expected = outcome(plain, *prepare(plain))
    for crash_at in range(1, 200):
        world = World(fresh_store())
        done, wish = prepare(world.view())
        actor = Actor(world, lambda view, done=done, wish=wish: put_out(view, done, wish), crash_at, effect)  # type: ignore[misc]
        while not actor.finished:
            actor.step()
        if actor.error is None:
            assert crash_at > 10
            return
        assert isinstance(actor.error, Crashed)
        if (pointer := pointers.read(world.inner, NAME)) is not None:
            pointers.check_engine(world.inner, pointers.load_manifest(world.inner, pointer.current.manifest), "")
            assert pointer.owner == OWNER
        assert outcome(world.inner, done, wish) == expected
    pytest.fail("it never came to an end")
