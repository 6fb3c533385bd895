from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given, settings
from hypothesis import strategies as st
from store_publish_helpers import finished

from tuner_job.api.base import digest_of
from tuner_job.api.messages import BlobRef, ManifestRecord
from tuner_job.store.attest import (
    MEASUREMENT,
    PAYLOAD_TYPE,
    PROVENANCE,
    Envelope,
    Failure,
    Signature,
    Statement,
    Subject,
    VerificationFailed,
    attest,
    check,
    pae,
    seal,
    statements,
    unseal,
)
from tuner_job.store.keys import PublicKey, Signer, TrustRoot

SIGNER, OTHER = Signer.generate(), Signer.generate("ECDSA-P256")
TRUST = TrustRoot([SIGNER.public])
DONE = finished()
MANIFEST = ManifestRecord(
    run=DONE.run.run,
    owner=DONE.run.owner,
    target="cpu",
    runtime=DONE.run.inputs.runtime,
    device=DONE.verdict.device,
    identity=DONE.verdict.identity,
    inputs_digest=DONE.run.inputs_digest,
    model=DONE.discovery.variants,
    candidate=DONE.verdict.published,
    blobs=(BlobRef(name="engine", digest=DONE.verdict.engine.digest, size=DONE.verdict.engine.size),),
    significant=True,
    reason="Proven",
    latency_seconds=0.1,
    verdict_digest=digest_of(DONE.verdict.to_json()),
    created_at=DONE.verdict.finished_at,
)
DIGEST = digest_of(MANIFEST.to_json())
BOTH = statements(MANIFEST, DONE.run, DONE.discovery, DONE.verdict)


def failure(envelope: bytes, trust: TrustRoot = TRUST) -> Failure:
    with pytest.raises(VerificationFailed, match=r"^here") as caught:
        unseal(envelope, trust, "here")
    assert "\n" not in str(caught.value)
    return caught.value.failure


def bundle_failure(bundle: bytes, trust: TrustRoot = TRUST, manifest: str = DIGEST) -> Failure:
    with pytest.raises(VerificationFailed, match=r"^here") as caught:
        check(bundle, manifest, trust, "here")
    return caught.value.failure


def altered(envelope: bytes, **fields: object) -> bytes:
    return json.dumps({**json.loads(envelope), **fields}).encode()


class TestEnvelope:
    def test_the_encoding_is_that_of_the_specification(self) -> None:
        assert pae("http://example.com/HelloWorld", b"hello world") == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        assert pae("é", b"") == b"DSSEv1 2 \xc3\xa9 0 "

    def test_the_signed_example_of_the_specification_holds(self) -> None:
        x = 46950820868899156662930047687818585632848591499744589407958293238635476079160
        y = 5640078356564379163099075877009565129882514886557779369047442380624545832820
        key = PublicKey(ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key())
        raw = base64.b64decode("A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA==")
        # the specification writes r and s one after the other, where DER is usual elsewhere
        der = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
        envelope = {
            "payload": "aGVsbG8gd29ybGQ=",
            "payloadType": "http://example.com/HelloWorld",
            "signatures": [{"sig": base64.b64encode(der).decode()}],
        }
        opened = unseal(json.dumps(envelope).encode(), TrustRoot([key]), "here", "http://example.com/HelloWorld")
        assert opened.payload == b"hello world"
        assert opened.signers == {key.key_id}

    @pytest.mark.parametrize("signer", [SIGNER, OTHER])
    def test_what_is_sealed_opens_under_its_key(self, signer: Signer) -> None:
        opened = unseal(seal(b"payload", [signer]), TrustRoot([signer.public]), "here")
        assert opened.payload == b"payload"

    def test_several_signatures_need_one_that_is_trusted(self) -> None:
        envelope = seal(b"payload", [OTHER, SIGNER])
        assert unseal(envelope, TRUST, "here").signers == {SIGNER.key_id}
        assert unseal(envelope, TrustRoot([SIGNER.public, OTHER.public]), "here").signers == {SIGNER.key_id, OTHER.key_id}
        assert failure(envelope, TrustRoot([Signer.generate().public])) == Failure.UNTRUSTED_KEY

    def test_a_key_counts_once_however_often_it_signed(self) -> None:
        assert unseal(seal(b"payload", [SIGNER, SIGNER]), TRUST, "here").signers == {SIGNER.key_id}

    def test_the_key_id_is_only_a_hint(self) -> None:
        envelope = seal(b"payload", [SIGNER])
        signature = json.loads(envelope)["signatures"][0]["sig"]
        assert unseal(altered(envelope, signatures=[{"sig": signature}]), TRUST, "here").signers == {SIGNER.key_id}
        forged = seal(b"payload", [OTHER])
        theirs = json.loads(forged)["signatures"][0]["sig"]
        assert failure(altered(forged, signatures=[{"keyid": SIGNER.key_id, "sig": theirs}])) == Failure.SIGNATURE_INVALID

    def test_an_unknown_key_is_named(self) -> None:
        envelope = seal(b"payload", [OTHER])
        with pytest.raises(VerificationFailed, match=OTHER.key_id[:16]):
            unseal(envelope, TRUST, "here")

    def test_another_payload_or_type_breaks_the_signature(self) -> None:
        envelope = seal(b"payload", [SIGNER])
        assert failure(altered(envelope, payload=base64.b64encode(b"Payload").decode())) == Failure.SIGNATURE_INVALID
        assert failure(altered(envelope, payloadType="text/plain")) == Failure.SIGNATURE_INVALID

    def test_a_wrong_type_is_refused_even_when_signed(self) -> None:
        assert failure(seal(b"payload", [SIGNER], "text/plain")) == Failure.WRONG_PAYLOAD_TYPE

    def test_url_safe_base64_is_accepted_as_the_specification_demands(self) -> None:
        envelope = seal(b"\xfb\xff\xfe" * 5, [SIGNER])
        parsed = json.loads(envelope)
        swapped = parsed["payload"].replace("+", "-").replace("/", "_")
        assert swapped != parsed["payload"]
        assert unseal(altered(envelope, payload=swapped), TRUST, "here").payload == b"\xfb\xff\xfe" * 5

    @pytest.mark.parametrize(
        "payload", ["aGVsbG8", "aGVsbG9=", "aGVs bG8=", "aGVs\nbG8=", "aGVsbG8=\n", "====", "aGVsbG8=é", "-_+/"]
    )
    def test_base64_that_is_not_canonical_is_refused(self, payload: str) -> None:
        assert failure(altered(seal(b"hello", [SIGNER]), payload=payload)) == Failure.ATTESTATION_MALFORMED

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"null",
            b"[]",
            b"{}",
            b"\xff\xfe",
            b'{"payload": "", "payloadType": "x", "signatures": []}',
            b'{"payload": "", "payload": "", "payloadType": "x", "signatures": [{"sig": ""}]}',
            b'{"payload": "", "payloadType": "x", "signatures": [{"sig": ""}], "extra": 1}',
            b'{"payload": "", "payloadType": "x", "signatures": [{"sig": "", "sig": "AAAA"}]}',
            b"[" * 100_000,
            seal(b"x", [SIGNER]) + b"{}",
            b'{"payload": "", "payloadType": "\\ud800", "signatures": [{"sig": ""}]}',
            b'{"payload": "", "payloadType": "x", "signatures": [{"sig": ' + b"1" * 10_000 + b"}]}",
            '{"payload": "", "payloadType": "x", "signatures": [{"sig": ""}]}'.encode("utf-16"),
        ],
    )
    def test_what_is_no_envelope_is_refused(self, data: bytes) -> None:
        assert failure(data) == Failure.ATTESTATION_MALFORMED

    def test_a_flood_of_signatures_is_refused(self) -> None:
        one = Signature(sig="AAAA")
        with pytest.raises(ValueError, match="signatures"):
            Envelope(payload="", payload_type="x", signatures=(one,) * 17)

    @pytest.mark.parametrize("signer", [SIGNER, OTHER])
    @pytest.mark.parametrize("raw", [b"", b"\0", b"\0" * 64, b"\x30\x06\x02\x01\x00\x02\x01\x00", b"x" * 5_000])
    def test_a_signature_of_any_shape_but_the_right_one_is_invalid(self, signer: Signer, raw: bytes) -> None:
        fake = [{"keyid": signer.key_id, "sig": base64.b64encode(raw).decode()}]
        assert (
            failure(altered(seal(b"payload", [signer]), signatures=fake), TrustRoot([signer.public])) == Failure.SIGNATURE_INVALID
        )

    @settings(max_examples=100, deadline=None)
    @given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)), st.text(max_size=20), st.text(max_size=20))
    def test_arbitrary_content_only_ever_fails_verification(self, data: bytes, payload: str, kind: str) -> None:
        shaped = json.dumps({"payload": payload, "payloadType": kind, "signatures": [{"keyid": kind, "sig": payload}]}).encode()
        for bundle in (data, shaped, shaped + b"\n" + data, seal(data, [SIGNER])):
            with pytest.raises(VerificationFailed):
                check(bundle, DIGEST, TRUST, "here")

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_no_flipped_bit_opens(self, data: st.DataObject) -> None:
        envelope = bytearray(seal(b'{"some": "statement"}', [SIGNER]))
        position = data.draw(st.integers(0, len(envelope) - 1))
        envelope[position] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(VerificationFailed):
            unseal(bytes(envelope), TRUST, "here")


class TestStatements:
    def test_they_are_in_toto_statements_about_engine_and_manifest(self) -> None:
        for line, kind in zip(attest(BOTH, SIGNER).splitlines(), (PROVENANCE, MEASUREMENT), strict=True):
            envelope = json.loads(line)
            assert envelope["payloadType"] == PAYLOAD_TYPE == "application/vnd.in-toto+json"
            statement = json.loads(base64.b64decode(envelope["payload"]))
            assert statement["_type"] == "https://in-toto.io/Statement/v1"
            assert statement["predicateType"] == kind
            assert statement["subject"] == [
                {"name": "engine", "digest": {"sha256": DONE.verdict.engine.digest}},
                {"name": "manifest", "digest": {"sha256": DIGEST}},
            ]

    def test_provenance_has_the_fields_of_slsa(self) -> None:
        predicate = json.loads(BOTH[0].to_json())["predicate"]
        assert predicate["buildDefinition"].keys() == {
            "buildType",
            "externalParameters",
            "internalParameters",
            "resolvedDependencies",
        }
        names = {each["name"]: each["digest"] for each in predicate["buildDefinition"]["resolvedDependencies"]}
        assert names["model/default"] == {"sha256": DONE.discovery.variants[0].digest}
        assert names["worker-image"] == {"sha256": "ab" * 32}
        assert predicate["runDetails"]["builder"]["id"] == "https://trtfleet.dev/builders/local/v1"
        assert predicate["runDetails"]["metadata"]["invocationId"] == DONE.run.run

    def test_the_measurement_says_what_was_claimed_and_on_what(self) -> None:
        predicate = json.loads(BOTH[1].to_json())["predicate"]
        gain = DONE.verdict.engine_gain
        assert gain is not None
        assert predicate["engineGain"] == {"estimate": gain.estimate, "low": gain.low, "high": gain.high, "confidence": 0.95}
        assert predicate["device"]["product"] == "EPYC 9654"
        assert predicate["verdictDigest"] == MANIFEST.verdict_digest

    def test_both_are_checked_together(self) -> None:
        found = check(attest(BOTH, SIGNER), DIGEST, TRUST, "here")
        assert (found.manifest, found.engine, found.signers) == (DIGEST, DONE.verdict.engine.digest, {SIGNER.key_id})
        assert (found.provenance, found.measurement) == BOTH

    def test_one_of_the_two_alone_twice_or_none_is_refused(self) -> None:
        first, second = attest(BOTH, SIGNER).splitlines()
        for lines in ([], [first], [second], [first, first], [first, second, second], [first] * 17):
            assert bundle_failure(b"\n".join(lines)) == Failure.ATTESTATION_MALFORMED

    def test_halves_by_different_keys_are_refused(self) -> None:
        halves = attest(BOTH, SIGNER).splitlines()[0] + b"\n" + attest(BOTH, OTHER).splitlines()[1]
        assert bundle_failure(halves, TrustRoot([SIGNER.public, OTHER.public])) == Failure.UNTRUSTED_KEY

    def test_an_attestation_moved_to_another_manifest_is_refused(self) -> None:
        assert bundle_failure(attest(BOTH, SIGNER), manifest="0" * 64) == Failure.SUBJECT_MISMATCH

    def test_statements_about_two_engines_are_refused(self) -> None:
        second = BOTH[1].model_copy(update={"subject": (Subject(name="engine", digest={"sha256": "0" * 64}), BOTH[1].subject[1])})
        assert bundle_failure(attest((BOTH[0], second), SIGNER)) == Failure.SUBJECT_MISMATCH

    def test_a_subject_named_twice_is_refused(self) -> None:
        doubled = BOTH[0].model_copy(update={"subject": (*BOTH[0].subject, BOTH[0].subject[1])})
        assert bundle_failure(attest((doubled, BOTH[1]), SIGNER)) == Failure.SUBJECT_MISMATCH

    def test_a_statement_of_another_version_is_refused(self) -> None:
        plain = json.loads(BOTH[0].to_json())
        plain["_type"] = "https://in-toto.io/Statement/v0.1"
        line = seal(json.dumps(plain).encode(), [SIGNER])
        assert bundle_failure(line + b"\n" + attest(BOTH, SIGNER).splitlines()[1]) == Failure.ATTESTATION_MALFORMED

    def test_a_statement_reads_back(self) -> None:
        assert Statement.from_json(BOTH[0].to_json()) == BOTH[0]
