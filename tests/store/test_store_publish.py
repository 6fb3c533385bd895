from __future__ import annotations

from collections.abc import Callable

import pytest
from store_publish_helpers import DEVICE, NAME, OWNER, Finished, finished, fresh_store, write

from tuner_job.api.base import TrtfleetError, digest_of
from tuner_job.api.inputs import Owner
from tuner_job.api.measurement import EngineFile
from tuner_job.api.messages import ManifestRecord
from tuner_job.store import layout, pointers
from tuner_job.store.attest import VerificationFailed
from tuner_job.store.keys import Signer, TrustRoot
from tuner_job.store.objects import ObjectStore
from tuner_job.store.publish import InconsistentVerdict, NotCurrent, Published, countersign, promote, publish
from tuner_job.store.verify import verify

SIGNER = Signer.generate()
TRUST = TrustRoot([SIGNER.public])


@pytest.fixture
def store() -> ObjectStore:
    return fresh_store()


def put_out(store: ObjectStore, done: Finished, signer: Signer = SIGNER, **options: object) -> Published:
    asked = options.pop("current", done.run.inputs_digest)
    return publish(store, done.run, done.verdict, signer, current_inputs_digest=asked, **options)  # type: ignore[arg-type]


def keys(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list("")}


def test_a_published_verdict_is_served_and_verifies(store: ObjectStore) -> None:
    done = write(store, finished())
    published = put_out(store, done)
    assert published.served
    verified = verify(store, NAME, TRUST)
    assert verified.digest == published.digest
    assert verified.manifest.engine.digest == digest_of(done.engine)
    assert verified.manifest.model == done.discovery.variants
    assert verified.manifest.device == DEVICE
    assert [blob.name for blob in verified.manifest.blobs] == ["engine", "samples"]
    assert verified.signers == (SIGNER.key_id,)


def test_publishing_again_changes_nothing(store: ObjectStore) -> None:
    done = write(store, finished())
    first = put_out(store, done)
    before = {key: store.get(key, 1 << 20) for key in keys(store)}
    assert put_out(store, done) == first
    assert {key: store.get(key, 1 << 20) for key in keys(store)} == before


def test_an_ecdsa_signature_that_differs_each_time_does_not_stop_a_repeat(store: ObjectStore) -> None:
    signer = Signer.generate("ECDSA-P256")
    done = write(store, finished())
    assert put_out(store, done, signer) == put_out(store, done, signer)
    assert verify(store, NAME, TrustRoot([signer.public])).signers == (signer.key_id,)


def test_the_manifest_depends_on_records_alone() -> None:
    digests = set()
    for name in ("one", "two"):
        place = ObjectStore.open(f"memory://publish-{name}")
        digests.add(put_out(place, write(place, finished())).digest)
    assert len(digests) == 1


def test_a_run_whose_inputs_are_no_longer_current_is_refused_and_leaves_nothing(store: ObjectStore) -> None:
    done = write(store, finished())
    before = keys(store)
    with pytest.raises(NotCurrent, match="not published") as caught:
        put_out(store, done, current="f" * 64)
    assert caught.value.reason == "NotCurrent"
    assert keys(store) == before


def test_a_job_that_changes_between_reading_the_pointer_and_the_swap_is_not_overwritten(store: ObjectStore) -> None:
    old, new = write(store, finished(model="m1")), write(store, finished(model="m2"))
    asked = 0

    def current() -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            return old.run.inputs_digest
        if asked == 2:
            put_out(store, new)
        return new.run.inputs_digest

    with pytest.raises(NotCurrent):
        put_out(store, old, current=current)
    served = pointers.read(store, NAME)
    assert served is not None
    assert served.current.run == new.run.run


def test_a_newer_run_moves_the_pointer_and_an_older_one_never_moves_it_back(store: ObjectStore) -> None:
    first, second = write(store, finished("1")), write(store, finished("2"))
    put_out(store, first)
    assert put_out(store, second).served
    again = put_out(store, first)
    assert not again.served
    assert again.pointer is not None
    assert again.pointer.current.run == second.run.run
    assert [entry.run for entry in again.pointer.history] == [first.run.run]
    assert again.pointer.generation == 2


def test_each_runtime_version_has_its_own_pointer(store: ObjectStore) -> None:
    old, new = write(store, finished(version="1.22.0")), write(store, finished(version="1.23.0"))
    put_out(store, old)
    put_out(store, new)
    for done in (old, new):
        name = pointers.PointerName(OWNER, "cpu", done.run.inputs.runtime.version)
        served = pointers.read(store, name)
        assert served is not None
        assert served.current.run == done.run.run


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda d: {"run": "0" * 20}, "run"),
        (lambda d: {"inputs_digest": "0" * 64}, "inputsDigest"),
        (lambda d: {"identity": "0" * 64}, "identity"),
        (lambda d: {"device": DEVICE.model_copy(update={"product": "other"})}, "device"),
        (lambda d: {"engine": EngineFile(digest="0" * 64, size=3)}, "engine"),
    ],
)
def test_a_verdict_that_contradicts_its_run_is_refused(
    store: ObjectStore, change: Callable[[Finished], dict[str, object]], field: str
) -> None:
    done = write(store, finished())
    before = keys(store)
    with pytest.raises(InconsistentVerdict, match=f"{field}: contradicts"):
        publish(
            store,
            done.run,
            done.verdict.model_copy(update=change(done)),
            SIGNER,
            current_inputs_digest=done.run.inputs_digest,
        )
    assert keys(store) == before


@pytest.mark.parametrize("promotion", ["Automatic", "Manual"])
@pytest.mark.parametrize(("data", "reason"), [(None, "EngineMissing"), (b"short", "EngineAltered")])
def test_nothing_is_written_when_the_engine_is_missing_or_short(
    store: ObjectStore, promotion: str, data: bytes | None, reason: str
) -> None:
    done = write(store, finished())
    store.delete(layout.blob(done.verdict.engine.digest))
    if data is not None:
        store.put(layout.blob(done.verdict.engine.digest), data)
    before = keys(store)
    with pytest.raises(VerificationFailed) as caught:
        put_out(store, done, promotion=promotion)
    assert caught.value.reason == reason
    assert keys(store) == before


def test_samples_that_are_gone_are_named(store: ObjectStore) -> None:
    done = write(store, finished())
    assert done.verdict.samples_blob is not None
    store.delete(layout.blob(done.verdict.samples_blob))
    with pytest.raises(InconsistentVerdict, match=done.verdict.samples_blob):
        put_out(store, done)


def test_a_discovery_that_is_gone_is_named(store: ObjectStore) -> None:
    done = write(store, finished())
    store.delete(layout.discovery(done.run.run))
    with pytest.raises(InconsistentVerdict, match="discovery"):
        put_out(store, done)


def test_a_retired_run_may_not_publish(store: ObjectStore) -> None:
    done = write(store, finished())
    store.create(layout.retired(done.run.run), b"{}")
    with pytest.raises(pointers.PointerRefused) as caught:
        put_out(store, done)
    assert caught.value.reason == "RunRetired"
    assert pointers.read(store, NAME) is None


def test_manual_promotion_waits_for_the_approved_digest(store: ObjectStore) -> None:
    done = write(store, finished())
    published = put_out(store, done, promotion="Manual")
    assert published.pointer is None
    assert not published.served
    assert pointers.read(store, NAME) is None
    pointer = promote(store, published.digest, TRUST, owner=OWNER, target="cpu")
    assert pointer.current.manifest == published.digest
    assert pointer.current.why == "promoted"
    assert promote(store, published.digest, TRUST, owner=OWNER) == pointer
    assert verify(store, NAME, TRUST).digest == published.digest


def test_only_the_owner_of_a_manifest_can_promote_it(store: ObjectStore) -> None:
    published = put_out(store, write(store, finished()), promotion="Manual")
    for owner, target in ((Owner(name="other"), None), (OWNER, "gpu")):
        with pytest.raises(pointers.PointerRefused) as caught:
            promote(store, published.digest, TRUST, owner=owner, target=target)
        assert caught.value.reason == "ForeignPointer"


def test_what_no_trusted_key_attested_is_not_promoted(store: ObjectStore) -> None:
    published = put_out(store, write(store, finished()), promotion="Manual")
    with pytest.raises(VerificationFailed) as caught:
        promote(store, published.digest, TrustRoot([Signer.generate().public]), owner=OWNER)
    assert caught.value.reason == "UntrustedKey"
    assert pointers.read(store, NAME) is None


def test_a_second_key_can_attest_what_a_trusted_one_attested(store: ObjectStore) -> None:
    published = put_out(store, write(store, finished()))
    new = Signer.generate("ECDSA-P256")
    countersign(store, published.digest, new, TRUST)
    assert verify(store, NAME, TrustRoot([new.public])).signers == (new.key_id,)
    assert verify(store, NAME, TrustRoot([new.public, SIGNER.public])).signers == tuple(sorted((new.key_id, SIGNER.key_id)))


def test_publishing_again_under_a_new_key_adds_its_attestation(store: ObjectStore) -> None:
    done = write(store, finished())
    put_out(store, done)
    new = Signer.generate()
    put_out(store, done, new)
    assert verify(store, NAME, TrustRoot([new.public])).signers == (new.key_id,)


def test_a_key_cannot_countersign_what_it_does_not_trust(store: ObjectStore) -> None:
    published = put_out(store, write(store, finished()))
    stranger = Signer.generate()
    with pytest.raises(VerificationFailed):
        countersign(store, published.digest, stranger, TrustRoot([stranger.public]))
    assert store.get(layout.attestation_by(published.digest, stranger.key_id), 1 << 20) is None


def test_something_else_in_the_place_of_our_attestation_is_named_and_stops_the_pointer(store: ObjectStore) -> None:
    done = write(store, finished())
    published = put_out(store, done, promotion="Manual")
    key = layout.attestation_by(published.digest, SIGNER.key_id)
    store.put(key, b"rubbish")
    with pytest.raises(VerificationFailed, match="delete that object") as caught:
        put_out(store, done)
    assert key in str(caught.value)
    assert pointers.read(store, NAME) is None


def test_something_else_in_the_place_of_the_manifest_stops_the_pointer(store: ObjectStore) -> None:
    done = write(store, finished())
    published = put_out(store, done, promotion="Manual")
    store.put(layout.manifest(published.digest), b"{}")
    with pytest.raises(VerificationFailed) as caught:
        put_out(store, done)
    assert caught.value.reason == "ManifestAltered"
    assert pointers.read(store, NAME) is None


def test_errors_are_one_line(store: ObjectStore) -> None:
    done = write(store, finished())
    with pytest.raises(TrtfleetError) as caught:
        put_out(store, done, current="f" * 64)
    assert "\n" not in str(caught.value)


def test_a_manifest_reads_back_as_it_was_published(store: ObjectStore) -> None:
    published = put_out(store, write(store, finished()))
    assert pointers.load_manifest(store, published.digest) == published.manifest
    assert isinstance(published.manifest, ManifestRecord)
