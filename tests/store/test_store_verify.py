from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from store_publish_helpers import DEVICE, NAME, OWNER, finished, fresh_store, write

from tuner_job.api.base import InputError, digest_of
from tuner_job.api.inputs import Owner, RuntimeIdentity
from tuner_job.store import layout, pointers
from tuner_job.store.attest import VerificationFailed, attest, pae, statements
from tuner_job.store.keys import Signer, TrustRoot
from tuner_job.store.objects import ObjectStore
from tuner_job.store.publish import Published, publish
from tuner_job.store.verify import Expect, fetch_engine, verify, verify_file

SIGNER = Signer.generate()
TRUST = TrustRoot([SIGNER.public])
DONE = finished()


@pytest.fixture
def store() -> ObjectStore:
    return fresh_store()


@pytest.fixture
def published(store: ObjectStore) -> Published:
    return put_out(store)


def put_out(store: ObjectStore, token: str = "", signer: Signer = SIGNER) -> Published:
    done = write(store, finished(token))
    return publish(store, done.run, done.verdict, signer, current_inputs_digest=done.run.inputs_digest)


def bundle_key(published: Published, signer: Signer = SIGNER) -> str:
    return layout.attestation_by(published.digest, signer.key_id)


def damage(store: ObjectStore, key: str) -> None:
    found = store.get(key, 1 << 20)
    assert found is not None
    data = bytearray(found.data)
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))


def replaced_with_another_engine(store: ObjectStore, published: Published) -> None:
    """All of it is consistent and correctly signed, but by a stranger."""
    stranger = Signer.generate()
    other = put_out(store, "other", stranger)
    found = store.get(bundle_key(other, stranger), 1 << 20)
    assert found is not None
    store.put(bundle_key(other), found.data)


def with_the_attestation_of_another(store: ObjectStore, published: Published) -> None:
    pointer = store.get(NAME.key, 1 << 20)
    moved = store.get(bundle_key(put_out(store, "other")), 1 << 20)
    assert pointer is not None
    assert moved is not None
    store.put(bundle_key(published), moved.data)
    store.put(NAME.key, pointer.data)


TAMPERING: dict[str, tuple[Callable[[ObjectStore, Published], object], str]] = {
    "no pointer": (lambda s, p: s.delete(NAME.key), "PointerMissing"),
    "no manifest": (lambda s, p: s.delete(layout.manifest(p.digest)), "ManifestMissing"),
    "damaged manifest": (lambda s, p: damage(s, layout.manifest(p.digest)), "ManifestAltered"),
    "no attestation": (lambda s, p: s.delete(bundle_key(p)), "NotAttested"),
    "rubbish for an attestation": (lambda s, p: s.put(bundle_key(p), b"rubbish"), "AttestationMalformed"),
    "attestation of another manifest": (with_the_attestation_of_another, "SubjectMismatch"),
    "a stranger's signature": (replaced_with_another_engine, "UntrustedKey"),
    "no engine": (lambda s, p: s.delete(layout.blob(p.manifest.engine.digest)), "EngineMissing"),
    "damaged engine": (lambda s, p: damage(s, layout.blob(p.manifest.engine.digest)), "EngineAltered"),
    "short engine": (lambda s, p: s.put(layout.blob(p.manifest.engine.digest), b"x"), "EngineAltered"),
    "long engine": (lambda s, p: s.put(layout.blob(p.manifest.engine.digest), DONE.engine + b"x"), "EngineAltered"),
}


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_is_refused_with_its_reason_and_leaves_nothing(
    store: ObjectStore, published: Published, how: str, tmp_path: Path
) -> None:
    tamper, reason = TAMPERING[how]
    tamper(store, published)
    for call in (
        lambda: verify(store, NAME, TRUST, scratch=tmp_path),
        lambda: fetch_engine(store, NAME, TRUST, tmp_path / "engine"),
    ):
        with pytest.raises(VerificationFailed) as caught:
            call()
        assert caught.value.reason == reason
        assert "\n" not in str(caught.value)
        assert os.listdir(tmp_path) == []


def test_a_good_engine_arrives_whole(store: ObjectStore, published: Published, tmp_path: Path) -> None:
    destination = tmp_path / "engine"
    destination.write_bytes(b"the old one")
    verified = fetch_engine(store, NAME, TRUST, destination)
    assert destination.read_bytes() == DONE.engine
    assert verified.engine_checked
    assert verified.digest == published.digest
    assert os.listdir(tmp_path) == ["engine"]


def test_a_refused_engine_leaves_the_old_one_at_its_destination(store: ObjectStore, published: Published, tmp_path: Path) -> None:
    destination = tmp_path / "engine"
    destination.write_bytes(b"the old one")
    damage(store, layout.blob(published.manifest.engine.digest))
    with pytest.raises(VerificationFailed):
        fetch_engine(store, NAME, TRUST, destination)
    assert destination.read_bytes() == b"the old one"
    assert os.listdir(tmp_path) == ["engine"]


def test_a_destination_that_cannot_be_written_is_named(store: ObjectStore, published: Published, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no/folder"):
        fetch_engine(store, NAME, TRUST, tmp_path / "no" / "folder" / "engine")


def test_a_scratch_folder_that_cannot_be_used_is_named(store: ObjectStore, published: Published, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no place for an engine"):
        verify(store, NAME, TRUST, scratch=tmp_path / "nowhere")


def test_a_manifest_is_verified_by_its_digest_alone(store: ObjectStore, published: Published) -> None:
    store.delete(NAME.key)
    verified = verify(store, published.digest, TRUST)
    assert verified.pointer is None
    assert verified.manifest == published.manifest


def test_without_hashing_only_presence_and_size_are_seen(store: ObjectStore, published: Published) -> None:
    damage(store, layout.blob(published.manifest.engine.digest))
    assert not verify(store, NAME, TRUST, hash_engine=False).engine_checked
    store.put(layout.blob(published.manifest.engine.digest), b"short")
    with pytest.raises(VerificationFailed) as caught:
        verify(store, NAME, TRUST, hash_engine=False)
    assert caught.value.reason == "EngineAltered"


def test_a_pointer_set_to_another_targets_manifest_is_refused(store: ObjectStore, published: Published) -> None:
    done = write(store, finished(target="gpu"))
    other = publish(store, done.run, done.verdict, SIGNER, current_inputs_digest=done.run.inputs_digest)
    pointer = pointers.read(store, NAME)
    assert pointer is not None
    entry = pointer.current.model_copy(update={"manifest": other.digest})
    store.put(NAME.key, pointer.model_copy(update={"current": entry}).to_json())
    with pytest.raises(VerificationFailed) as caught:
        verify(store, NAME, TRUST)
    assert caught.value.reason == "PointerForeign"


def test_a_manifest_that_names_another_engine_than_was_attested_is_refused(store: ObjectStore, published: Published) -> None:
    manifest = published.manifest.model_copy(update={"blobs": (published.manifest.blobs[1],)})
    key = layout.manifest("x").removesuffix("x")
    forged = manifest.to_json()
    digest = digest_of(forged)
    store.put(key + digest, forged)
    both = statements(published.manifest, DONE.run, DONE.discovery, DONE.verdict)
    moved = tuple(
        each.model_copy(update={"subject": (each.subject[0], each.subject[1].model_copy(update={"digest": {"sha256": digest}}))})
        for each in both
    )
    store.put(layout.attestation_by(digest, SIGNER.key_id), attest(moved, SIGNER))  # type: ignore[arg-type]
    with pytest.raises(VerificationFailed) as caught:
        verify(store, digest, TRUST)
    assert caught.value.reason == "SubjectMismatch"


@pytest.mark.parametrize(
    ("expect", "reason"),
    [
        (Expect(runtime=RuntimeIdentity(family="ONNXRuntime", version="1.23.1")), "WrongRuntime"),
        (Expect(runtime=RuntimeIdentity(family="TensorRT", version="1.23.2")), "WrongRuntime"),
        (Expect(runtime=RuntimeIdentity(family="ONNXRuntime", version="1.23.2", image_digest="sha256:00")), "WrongRuntime"),
        (Expect(device=DEVICE.model_copy(update={"product": "Xeon"})), "WrongDevice"),
        (Expect(device=DEVICE.model_copy(update={"compute_capability": "avx2"})), "WrongDevice"),
        (Expect(owner=Owner(name="other")), "WrongOwner"),
        (Expect(target="gpu"), "WrongOwner"),
    ],
)
def test_what_the_user_is_not_is_refused(
    store: ObjectStore, published: Published, expect: Expect, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(VerificationFailed) as caught:
        fetch_engine(store, NAME, TRUST, tmp_path / "engine", expect)
    assert caught.value.reason == reason
    assert os.listdir(tmp_path) == []


def test_what_the_user_is_passes(store: ObjectStore, published: Published) -> None:
    expect = Expect(
        owner=OWNER,
        target="cpu",
        runtime=RuntimeIdentity(family="ONNXRuntime", version="1.23.2"),
        device=DEVICE.model_copy(update={"driver": "6.9.0", "count": 64}),
    )
    assert verify(store, NAME, TRUST, expect).manifest == published.manifest


def test_an_empty_trust_root_says_what_to_do(store: ObjectStore, published: Published) -> None:
    with pytest.raises(VerificationFailed, match="put the publisher's public key"):
        verify(store, NAME, TrustRoot([]))


def test_a_spoilt_attestation_beside_a_good_one_does_no_harm(store: ObjectStore, published: Published) -> None:
    other = Signer.generate()
    store.put(bundle_key(published, other), b"rubbish")
    assert verify(store, NAME, TrustRoot([SIGNER.public, other.public])).signers == (SIGNER.key_id,)


def test_a_local_file_is_verified_without_a_store(store: ObjectStore, published: Published, tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.write_bytes(DONE.engine)
    manifest, bundle = published.manifest.to_json(), store.get(bundle_key(published), 1 << 20)
    assert bundle is not None
    assert verify_file(engine, manifest, [bundle.data], TRUST).engine_checked
    for data, bundles, reason in (
        (manifest + b" ", [bundle.data], "SubjectMismatch"),
        (manifest, [], "NotAttested"),
        (manifest, [b"rubbish"], "AttestationMalformed"),
    ):
        with pytest.raises(VerificationFailed) as caught:
            verify_file(engine, data, bundles, TRUST)
        assert caught.value.reason == reason
    engine.write_bytes(DONE.engine + b"!")
    with pytest.raises(VerificationFailed, match="not the engine that was signed"):
        verify_file(engine, manifest, [bundle.data], TRUST)
    with pytest.raises(InputError, match="No such file"):
        verify_file(tmp_path / "nothing", manifest, [bundle.data], TRUST)


@pytest.mark.parametrize("algorithm", ["Ed25519", "ECDSA-P256"])
def test_openssl_verifies_by_hand_as_the_documentation_says(algorithm: str, tmp_path: Path) -> None:
    if shutil.which("openssl") is None and not os.environ.get("CI"):
        pytest.skip("no openssl command on this machine")
    root = Path(__file__).parents[2]
    page = (root / "docs" / "publishing.md").read_text()
    script = page.split("<!-- by hand -->")[1].split("```bash\n")[1].split("```")[0]
    store = ObjectStore.open(f"file://{tmp_path}/store")
    signer = Signer.generate(algorithm)  # type: ignore[arg-type]
    published = put_out(store, signer=signer)
    (tmp_path / "publisher.pem").write_bytes(signer.public.pem)

    def by_hand() -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "STORE": f"{tmp_path}/store",
            "POINTER": NAME.key,
            "KEY": "publisher.pem",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    good = by_hand()
    assert good.returncode == 0, good.stderr
    assert good.stdout.count("Verified") == 2
    damage(store, layout.blob(published.manifest.engine.digest))
    assert by_hand().returncode != 0
    damage(store, layout.blob(published.manifest.engine.digest))
    assert by_hand().returncode == 0
    (tmp_path / "publisher.pem").write_bytes(Signer.generate(algorithm).public.pem)  # type: ignore[arg-type]
    assert by_hand().returncode != 0


def test_the_signed_bytes_are_those_of_the_specification(store: ObjectStore, published: Published) -> None:
    bundle = store.get(bundle_key(published), 1 << 20)
    assert bundle is not None
    for line in bundle.data.splitlines():
        envelope = json.loads(line)
        signed = pae(envelope["payloadType"], base64.b64decode(envelope["payload"]))
        assert SIGNER.public.verifies(base64.b64decode(envelope["signatures"][0]["sig"]), signed)
