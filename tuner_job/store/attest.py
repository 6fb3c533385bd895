"""Signed statements about what is published: in-toto Statement v1 in DSSE envelopes.

An attestation is one object per manifest and signing key: an in-toto bundle (JSON Lines) of two envelopes, so that one write
makes both or neither. The first states where the engine came from (SLSA provenance v1), the second what was measured. Both have
the engine and the manifest as subjects. What a statement says is what the workers claimed; the signature proves who vouched
for the claim.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field, JsonValue

from tuner_job.api.base import InputError, Model, TrtfleetError, digest_of
from tuner_job.api.measurement import Digest
from tuner_job.api.messages import DiscoveryRecord, ManifestRecord, RunRecord, VerdictRecord
from tuner_job.store.keys import Signer, TrustRoot

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
MEASUREMENT = "https://trtfleet.dev/measurement/v1"
BUILD_TYPE = "https://trtfleet.dev/tuning/v1"

ENGINE_SUBJECT = "engine"
MANIFEST_SUBJECT = "manifest"

MAX_BUNDLE_BYTES = 4 << 20
MAX_ENVELOPES = 16
MAX_SIGNATURES = 16

M = TypeVar("M", bound=Model)


class Failure(StrEnum):
    """Why something published is not to be used."""

    POINTER_MISSING = "PointerMissing"
    POINTER_FOREIGN = "PointerForeign"
    MANIFEST_MISSING = "ManifestMissing"
    MANIFEST_ALTERED = "ManifestAltered"
    NOT_ATTESTED = "NotAttested"
    ATTESTATION_MALFORMED = "AttestationMalformed"
    UNTRUSTED_KEY = "UntrustedKey"
    SIGNATURE_INVALID = "SignatureInvalid"
    WRONG_PAYLOAD_TYPE = "WrongPayloadType"
    SUBJECT_MISMATCH = "SubjectMismatch"
    ENGINE_MISSING = "EngineMissing"
    ENGINE_ALTERED = "EngineAltered"
    WRONG_OWNER = "WrongOwner"
    WRONG_RUNTIME = "WrongRuntime"
    WRONG_DEVICE = "WrongDevice"


class VerificationFailed(TrtfleetError):
    """`reason` is one of Failure. Nothing that failed was deserialised or left at its destination."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message, reason=failure.value)
        self.failure = failure


class Signature(Model):
    keyid: str = ""
    """Only a hint at the key to try."""
    sig: str


class Envelope(Model):
    """DSSE v1."""

    payload: str
    payload_type: str
    signatures: tuple[Signature, ...] = Field(min_length=1, max_length=MAX_SIGNATURES)


class Subject(Model):
    name: str
    digest: dict[str, str]
    """Algorithm → hex."""


class Statement(Model):
    """in-toto Statement v1."""

    type: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")] = STATEMENT_TYPE
    subject: tuple[Subject, ...] = Field(min_length=1)
    predicate_type: str
    predicate: dict[str, JsonValue]

    def digest(self, name: str) -> str | None:
        """SHA-256 of the subject `name`; None when it is not named exactly once."""
        found = [subject.digest.get("sha256") for subject in self.subject if subject.name == name]
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True)
class Opened:
    """An envelope of which at least one signature is by a trusted key."""

    payload: bytes
    signers: frozenset[str]
    """Ids of the trusted keys whose signatures hold."""


@dataclass(frozen=True)
class Attested:
    """Both statements about one manifest, under trusted signatures."""

    manifest: Digest
    engine: Digest
    signers: frozenset[str]
    """Ids of the trusted keys that signed both."""
    provenance: Statement
    measurement: Statement


def pae(payload_type: str, payload: bytes) -> bytes:
    """DSSE v1 pre-authentication encoding: the bytes that are signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def seal(payload: bytes, signers: Sequence[Signer], payload_type: str = PAYLOAD_TYPE) -> bytes:
    """A DSSE envelope, canonical JSON on one line."""
    signed = pae(payload_type, payload)
    return Envelope(
        payload=base64.b64encode(payload).decode(),
        payload_type=payload_type,
        signatures=tuple(
            Signature(keyid=signer.key_id, sig=base64.b64encode(signer.sign(signed)).decode()) for signer in signers
        ),
    ).to_json()


def unseal(envelope: bytes, trust: TrustRoot, where: str, payload_type: str = PAYLOAD_TYPE) -> Opened:
    """Check an envelope's signatures, then return its payload. Raises VerificationFailed naming `where`.

    Signatures that do not hold, or are by keys unknown here, are passed over as DSSE asks; one good one is needed.
    """
    parsed = _parse(Envelope, envelope, where)
    payload = _decode(parsed.payload, f"{where}: payload")
    signed = pae(parsed.payload_type, payload)
    good, known = set[str](), False
    for signature in parsed.signatures:
        raw = _decode(signature.sig, f"{where}: signatures")
        for key in trust:
            if signature.keyid in ("", key.key_id):
                known = known or signature.keyid != ""
                if key.verifies(raw, signed):
                    good.add(key.key_id)
    if not good:
        if known:
            raise VerificationFailed(
                Failure.SIGNATURE_INVALID,
                f"{where}: a trusted key is named but its signature does not hold; the content was changed",
            )
        ids = ", ".join(sorted({signature.keyid[:16] or "unnamed" for signature in parsed.signatures}))
        raise VerificationFailed(
            Failure.UNTRUSTED_KEY,
            f"{where}: signed by {ids}, not by a key in {trust.where}; add the publisher's public key if you trust it",
        )
    if parsed.payload_type != payload_type:
        raise VerificationFailed(
            Failure.WRONG_PAYLOAD_TYPE, f"{where}: payload type {parsed.payload_type[:80]!r} where {payload_type!r} is expected"
        )
    return Opened(payload, frozenset(good))


def statements(
    manifest: ManifestRecord, run: RunRecord, discovery: DiscoveryRecord, verdict: VerdictRecord
) -> tuple[Statement, Statement]:
    """Provenance and measurement. They depend on records alone, never on the clock, so that a repeat says the same."""
    subject = (
        Subject(name=ENGINE_SUBJECT, digest={"sha256": manifest.engine.digest}),
        Subject(name=MANIFEST_SUBJECT, digest={"sha256": digest_of(manifest.to_json())}),
    )
    builder = "local" if run.owner.cluster == "local" else "operator"
    provenance = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "owner": str(run.owner),
                "target": run.target,
                "inputs": _plain(run.inputs),
                "inputsDigest": run.inputs_digest,
                "rerunToken": run.rerun_token,
            },
            "internalParameters": {
                "candidate": _plain(manifest.candidate),
                "device": _plain(verdict.device),
                "environment": dict(discovery.environment),
                "identity": verdict.identity,
                "knobsDigest": discovery.knobs_digest,
                "seed": run.seed,
                "versions": dict(discovery.versions),
            },
            "resolvedDependencies": _dependencies(run, discovery),
        },
        "runDetails": {
            "builder": {"id": f"https://trtfleet.dev/builders/{builder}/v1"},
            "metadata": {"invocationId": run.run, "startedOn": run.created_at, "finishedOn": verdict.finished_at},
        },
    }
    measured = verdict.model_dump(
        mode="json",
        by_alias=True,
        exclude_none=True,
        exclude={"kind", "schema_version", "builds", "engine", "run", "inputs_digest", "identity"},
    )
    measured["verdictDigest"] = manifest.verdict_digest
    return (
        Statement(subject=subject, predicate_type=PROVENANCE, predicate=provenance),
        Statement(subject=subject, predicate_type=MEASUREMENT, predicate=measured),
    )


def attest(both: tuple[Statement, Statement], signer: Signer) -> bytes:
    """The bundle: an envelope a line. Raises InputError if it would be too long to be read."""
    bundle = b"".join(seal(statement.to_json(), (signer,)) + b"\n" for statement in both)
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise InputError(f"attestation of {len(bundle)} bytes; at most {MAX_BUNDLE_BYTES} are allowed: shorten the job's inputs")
    return bundle


def check(bundle: bytes, manifest: Digest, trust: TrustRoot, where: str) -> Attested:
    """Verify a bundle about `manifest`. Raises VerificationFailed.

    Both statements must be there exactly once, signed by the same trusted key, and have the manifest and one engine as subjects.
    """
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise _malformed(where, f"{len(bundle)} bytes; an attestation has at most {MAX_BUNDLE_BYTES}")
    lines = bundle.splitlines()
    if not 0 < len(lines) <= MAX_ENVELOPES:
        raise _malformed(where, f"{len(lines)} lines; an attestation has 1 to {MAX_ENVELOPES}")
    by_type: dict[str, tuple[Statement, frozenset[str]]] = {}
    for number, line in enumerate(lines, 1):
        opened = unseal(line, trust, f"{where} line {number}")
        statement = _parse(Statement, opened.payload, f"{where} line {number}: statement")
        if statement.digest(MANIFEST_SUBJECT) != manifest:
            raise VerificationFailed(
                Failure.SUBJECT_MISMATCH,
                f"{where} line {number}: is about another manifest than {manifest[:16]}; it was moved there",
            )
        if statement.predicate_type in by_type:
            raise _malformed(where, f"two statements of type {statement.predicate_type[:80]}")
        by_type[statement.predicate_type] = statement, opened.signers
    missing = [kind for kind in (PROVENANCE, MEASUREMENT) if kind not in by_type]
    if missing:
        raise _malformed(where, f"no statement of type {missing[0]}")
    (provenance, first), (measurement, second) = by_type[PROVENANCE], by_type[MEASUREMENT]
    if not first & second:
        raise VerificationFailed(Failure.UNTRUSTED_KEY, f"{where}: no trusted key signed both statements")
    engine = provenance.digest(ENGINE_SUBJECT)
    if engine is None or engine != measurement.digest(ENGINE_SUBJECT):
        raise VerificationFailed(Failure.SUBJECT_MISMATCH, f"{where}: its statements are not about one engine")
    return Attested(manifest, engine, first & second, provenance, measurement)


def _dependencies(run: RunRecord, discovery: DiscoveryRecord) -> list[JsonValue]:
    found: list[JsonValue] = [
        {"name": f"model/{variant.name}", "uri": variant.uri, "digest": {"sha256": variant.digest}}
        for variant in discovery.variants
        if variant.digest is not None
    ]
    found.append({"name": "references", "digest": {"sha256": discovery.references_digest}})
    found += [{"name": f"plugin/{index}", "digest": {"sha256": plugin.digest}} for index, plugin in enumerate(run.inputs.plugins)]
    if image := run.inputs.runtime.image_digest:
        algorithm, _, value = image.rpartition(":")
        found.append({"name": "worker-image", "digest": {algorithm or "sha256": value}})
    return found


def _plain(model: Model) -> JsonValue:
    plain: JsonValue = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain


def _parse(kind: type[M], data: bytes, where: str) -> M:
    """Strict: UTF-8, no field twice, none unknown. Parsers that disagree about a duplicate would see different statements."""
    try:
        json.loads(data, object_pairs_hook=_unique)
        return kind.from_json(data)
    except RecursionError:
        raise _malformed(where, "nested too deeply") from None
    except ValueError as error:
        raise _malformed(where, f"not JSON: {error}") from None
    except InputError as error:
        raise _malformed(where, str(error)) from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field occurs twice")
    return found


def _decode(text: str, where: str) -> bytes:
    """Standard or URL-safe base64, each in its one canonical spelling, so that equal envelopes have equal bytes."""
    url_safe = "-" in text or "_" in text
    try:
        data = base64.b64decode(text, altchars=b"-_" if url_safe else None, validate=True)
    except (binascii.Error, ValueError):
        raise _malformed(where, "not base64") from None
    encoded = base64.urlsafe_b64encode(data) if url_safe else base64.b64encode(data)
    if encoded.decode() != text:
        raise _malformed(where, "base64 that is not in canonical form")
    return data


def _malformed(where: str, problem: str) -> VerificationFailed:
    return VerificationFailed(Failure.ATTESTATION_MALFORMED, f"{where}: {problem}")
