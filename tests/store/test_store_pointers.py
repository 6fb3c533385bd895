from __future__ import annotations

import pytest
from store_publish_helpers import NAME, OWNER, finished, fresh_store, write

from tuner_job.api.base import InputError
from tuner_job.api.inputs import Owner
from tuner_job.api.messages import PointerRecord
from tuner_job.store import layout, pointers
from tuner_job.store.attest import VerificationFailed
from tuner_job.store.keys import Signer
from tuner_job.store.objects import ObjectStore
from tuner_job.store.pointers import PointerName, PointerRefused, move, pin, read, rollback, trim, unpin
from tuner_job.store.publish import Published, publish


@pytest.fixture
def store() -> ObjectStore:
    return fresh_store()


SIGNER = Signer.generate()


def put_out(store: ObjectStore, token: str, promotion: str = "Automatic") -> Published:
    done = write(store, finished(token))
    return publish(
        store,
        done.run,
        done.verdict,
        SIGNER,
        current_inputs_digest=done.run.inputs_digest,
        promotion=promotion,  # type: ignore[arg-type]
    )


def served(store: ObjectStore) -> PointerRecord:
    pointer = read(store, NAME)
    assert pointer is not None
    return pointer


def refused(call: object) -> str:
    with pytest.raises(PointerRefused) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return caught.value.reason


def test_rollback_serves_what_was_served_before_and_keeps_the_history(store: ObjectStore) -> None:
    first, second = put_out(store, "1"), put_out(store, "2")
    pointer = rollback(store, NAME)
    assert pointer.current.manifest == first.digest
    assert pointer.current.why == "rollback"
    assert [entry.manifest for entry in pointer.history] == [second.digest, first.digest]
    assert pointer.generation == 3


def test_rollback_twice_returns_to_where_it_came_from(store: ObjectStore) -> None:
    put_out(store, "1")
    second = put_out(store, "2")
    rollback(store, NAME)
    assert rollback(store, NAME).current.manifest == second.digest


def test_rollback_to_a_named_manifest_of_the_history(store: ObjectStore) -> None:
    first = put_out(store, "1")
    put_out(store, "2")
    put_out(store, "3")
    assert rollback(store, NAME, first.digest).current.manifest == first.digest


def test_rollback_to_what_is_served_already_changes_nothing(store: ObjectStore) -> None:
    put_out(store, "1")
    second = put_out(store, "2")
    assert rollback(store, NAME, second.digest).generation == 2


def test_a_rollback_outlives_a_repeated_publication_but_not_a_new_run(store: ObjectStore) -> None:
    first = put_out(store, "1")
    put_out(store, "2")
    rollback(store, NAME)
    assert not put_out(store, "2").served
    assert served(store).current.manifest == first.digest
    assert put_out(store, "3").served


def test_rollback_without_history_or_pointer_or_to_a_stranger_is_refused(store: ObjectStore) -> None:
    assert refused(lambda: rollback(store, NAME)) == "PointerMissing"
    put_out(store, "1")
    assert refused(lambda: rollback(store, NAME)) == "NotInHistory"
    assert refused(lambda: rollback(store, NAME, "0" * 64)) == "NotInHistory"


def test_rollback_to_a_manifest_without_its_engine_is_refused(store: ObjectStore) -> None:
    first = put_out(store, "1")
    second = put_out(store, "2")
    store.delete(layout.blob(first.manifest.engine.digest))
    with pytest.raises(VerificationFailed, match=first.manifest.engine.digest) as caught:
        rollback(store, NAME)
    assert caught.value.reason == "EngineMissing"
    assert served(store).current.manifest == second.digest


def test_a_pinned_pointer_only_gets_history(store: ObjectStore) -> None:
    first = put_out(store, "1")
    assert pin(store, NAME).pinned == first.digest
    second = put_out(store, "2")
    assert not second.served
    pointer = served(store)
    assert pointer.current.manifest == first.digest
    assert [(entry.manifest, entry.why) for entry in pointer.history] == [(second.digest, "held")]
    assert refused(lambda: rollback(store, NAME)) == "PointerPinned"


def test_after_unpin_the_next_run_moves_the_pointer_and_rollback_skips_what_was_never_served(store: ObjectStore) -> None:
    first = put_out(store, "1")
    pin(store, NAME)
    put_out(store, "2")
    unpin(store, NAME)
    assert served(store).current.manifest == first.digest
    put_out(store, "3")
    assert rollback(store, NAME).current.manifest == first.digest


def test_pin_can_move_the_pointer_to_a_named_manifest(store: ObjectStore) -> None:
    first, second = put_out(store, "1"), put_out(store, "2")
    pointer = pin(store, NAME, first.digest)
    assert (pointer.current.manifest, pointer.pinned, pointer.current.why) == (first.digest, first.digest, "pinned")
    assert pointer.history[0].manifest == second.digest
    assert pointer.generation == 3
    assert pin(store, NAME, second.digest).pinned == second.digest


def test_pin_and_unpin_repeat_without_effect(store: ObjectStore) -> None:
    put_out(store, "1")
    assert pin(store, NAME) == pin(store, NAME)
    assert unpin(store, NAME) == unpin(store, NAME)


def test_pin_of_an_unknown_manifest_is_refused(store: ObjectStore) -> None:
    put_out(store, "1")
    with pytest.raises(VerificationFailed) as caught:
        pin(store, NAME, "0" * 64)
    assert caught.value.reason == "ManifestMissing"
    assert served(store).pinned is None


def test_move_serves_an_approved_manifest_and_repeats_without_effect(store: ObjectStore) -> None:
    approved = put_out(store, "1", "Manual")
    assert move(store, NAME, approved.digest).current.why == "promoted"
    assert move(store, NAME, approved.digest).generation == 1


def test_move_while_pinned_only_enters_the_history_once(store: ObjectStore) -> None:
    put_out(store, "1")
    pin(store, NAME)
    approved = put_out(store, "2", "Manual")
    assert move(store, NAME, approved.digest).history[0].why == "held"
    assert len(move(store, NAME, approved.digest).history) == 1


def test_move_refuses_a_state_that_its_caller_did_not_judge(store: ObjectStore) -> None:
    first = put_out(store, "1")
    put_out(store, "2")
    assert refused(lambda: move(store, NAME, first.digest, expected_generation=1)) == "PointerMoved"
    assert move(store, NAME, first.digest, why="published", expected_generation=2).current.manifest == first.digest


def test_a_manifest_of_another_target_or_version_cannot_be_moved_to(store: ObjectStore) -> None:
    done = write(store, finished(version="1.0.0"))
    other = publish(store, done.run, done.verdict, SIGNER, current_inputs_digest=done.run.inputs_digest)
    assert refused(lambda: move(store, NAME, other.digest)) == "ForeignPointer"


def test_a_pointer_that_belongs_to_another_owner_is_refused(store: ObjectStore) -> None:
    put_out(store, "1")
    stolen = served(store).model_copy(update={"owner": Owner(name="thief")})
    store.put(NAME.key, stolen.to_json())
    for call in (
        lambda: read(store, NAME),
        lambda: put_out(store, "2"),
        lambda: rollback(store, NAME),
        lambda: pin(store, NAME),
    ):
        assert refused(call) == "ForeignPointer"


def test_names_that_differ_have_keys_that_differ() -> None:
    names = [PointerName(OWNER, "a/b", "1"), PointerName(OWNER, "a", "b/1"), PointerName(OWNER, "a~2Fb", "1"), NAME]
    assert len({name.key for name in names}) == len(names)


def test_the_history_is_bounded_and_can_be_trimmed(store: ObjectStore) -> None:
    first, second = put_out(store, "1"), put_out(store, "2")
    for _ in range(pointers.HISTORY + 3):
        rollback(store, NAME)
    pointer = served(store)
    assert len(pointer.history) == pointers.HISTORY
    trimmed = trim(store, NAME, 1)
    assert len(trimmed.history) == 1
    assert trimmed.generation == pointer.generation + 1
    assert trim(store, NAME, 1) == trimmed
    assert {trimmed.current.manifest, trimmed.history[0].manifest} == {first.digest, second.digest}


def test_a_pointer_that_is_no_pointer_is_named(store: ObjectStore) -> None:
    store.put(NAME.key, b'{"schemaVersion": 1}')
    with pytest.raises(InputError, match="not a valid PointerRecord") as caught:
        read(store, NAME)
    assert NAME.key in str(caught.value)


def test_a_pointer_of_a_newer_version_is_refused_by_name(store: ObjectStore) -> None:
    store.put(NAME.key, b'{"schemaVersion": 99}')
    with pytest.raises(InputError, match="schema version 99 is newer"):
        rollback(store, NAME)


class _Contended(ObjectStore):
    """Somebody else always wins."""

    def __new__(cls, inner: ObjectStore) -> ObjectStore:  # type: ignore[misc]
        kind = type(inner)
        lost = type("Contended", (kind,), {"swap": lambda *_: False})
        inner.__class__ = lost
        return inner


def test_races_that_are_always_lost_end_with_a_reason(store: ObjectStore) -> None:
    put_out(store, "1")
    assert refused(lambda: pin(_Contended(store), NAME)) == "PointerContended"
