"""Publishing: a run's verdict becomes a manifest, an attestation and a pointer, in this order.

Each step is create-only or compare-and-swap and depends on the run's records alone, so that whoever repeats it, after a crash at
any point or beside another publisher, writes the same bytes. Readers start at the pointer: until it moves there is only garbage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tuner_job.api.base import TrtfleetError, digest_of
from tuner_job.api.inputs import Owner
from tuner_job.api.measurement import Digest
from tuner_job.api.messages import BlobRef, DiscoveryRecord, ManifestRecord, PointerEntry, PointerRecord, RunRecord, VerdictRecord
from tuner_job.store import layout, pointers
from tuner_job.store.attest import MAX_BUNDLE_BYTES, VerificationFailed, attest, check, statements
from tuner_job.store.keys import Signer, TrustRoot
from tuner_job.store.objects import ObjectStore
from tuner_job.store.pointers import PointerName
from tuner_job.store.records import create_record
from tuner_job.store.verify import attested
from tuner_job.store.vet import InconsistentVerdict, vet

Promotion = Literal["Automatic", "Manual"]


class NotCurrent(TrtfleetError):
    """The run's inputs are no longer those of its job: its result may be kept, but not published."""

    reason = "NotCurrent"


@dataclass(frozen=True)
class Published:
    manifest: ManifestRecord
    digest: Digest
    """Of the manifest; what `approvedDigest` and `pinnedDigest` name."""
    pointer: PointerRecord | None
    """None when promotion is manual."""

    @property
    def served(self) -> bool:
        """Whether the pointer serves this manifest: not while pinned, awaiting promotion, or after a rollback."""
        return self.pointer is not None and self.pointer.current.manifest == self.digest


def publish(
    store: ObjectStore,
    run: RunRecord,
    verdict: VerdictRecord,
    signer: Signer,
    *,
    current_inputs_digest: str | Callable[[], str],
    promotion: Promotion = "Automatic",
) -> Published:
    """Publish the engine of a verdict that holds (store.vet). Repeating it changes nothing.

    `current_inputs_digest`: what the job asks for now. Given as a function, it is asked again between each read of the pointer
    and the swap that depends on it, so that not even a publisher that slept in between can overtake a newer run.

    Raises NotCurrent, InconsistentVerdict, pointers.PointerRefused, VerificationFailed (engine missing or of another size).
    """

    def current() -> None:
        wanted = current_inputs_digest if isinstance(current_inputs_digest, str) else current_inputs_digest()
        if wanted != run.inputs_digest:
            raise NotCurrent(
                f"run {run.run}: tuned for inputs {run.inputs_digest[:12]}, but {run.owner} now has {wanted[:12]}; not published"
            )

    current()
    discovery = vet(store, run, verdict)
    manifest = _manifest(store, run, discovery, verdict)
    digest = digest_of(manifest.to_json())
    pointers.check_engine(store, manifest, digest)
    if not create_record(store, layout.manifest(digest), manifest):
        pointers.manifest_bytes(store, digest)  # raises: what stands there is not these bytes
    _attest(store, digest, attest(statements(manifest, run, discovery, verdict), signer), signer)
    if promotion == "Manual":
        return Published(manifest, digest, None)
    entry = PointerEntry(manifest=digest, run=run.run, at=verdict.finished_at, why=pointers.PUBLISHED)
    return Published(manifest, digest, pointers.publish(store, PointerName.of(manifest), entry, current))


def promote(store: ObjectStore, approved: Digest, trust: TrustRoot, *, owner: Owner, target: str | None = None) -> PointerRecord:
    """Move the pointer to an approved manifest of `owner` that is attested under `trust`. Repeating it changes nothing.

    An approval is somebody's word: unlike a publication it also undoes a rollback, so withdraw it before rolling back.

    Raises VerificationFailed, pointers.PointerRefused.
    """
    attested(store, approved, trust)
    manifest = pointers.load_manifest(store, approved)
    if manifest.owner != owner or target not in (None, manifest.target):
        raise pointers.PointerRefused(
            f"manifest {approved[:16]} is of {manifest.owner} target {manifest.target}, not of {owner} target {target or 'any'}",
            reason="ForeignPointer",
        )
    return pointers.move(store, PointerName.of(manifest), approved, why=pointers.PROMOTED)


def countersign(store: ObjectStore, manifest: Digest, signer: Signer, trust: TrustRoot) -> None:
    """Sign with another key what a trusted one already says about a manifest; for key rotation. Raises VerificationFailed."""
    known = attested(store, manifest, trust)
    _attest(store, manifest, attest((known.provenance, known.measurement), signer), signer)


def _manifest(store: ObjectStore, run: RunRecord, discovery: DiscoveryRecord, verdict: VerdictRecord) -> ManifestRecord:
    blobs = [BlobRef(name="engine", digest=verdict.engine.digest, size=verdict.engine.size)]
    if verdict.samples_blob is not None:
        key = layout.blob(verdict.samples_blob)
        info = store.info(key)
        if info is None:
            raise InconsistentVerdict(f"{key}: the samples of run {run.run} are gone, so its verdict cannot be published")
        blobs.append(BlobRef(name="samples", digest=verdict.samples_blob, size=info.size))
    return ManifestRecord(
        run=run.run,
        owner=run.owner,
        target=run.target,
        runtime=run.inputs.runtime,
        device=verdict.device,
        identity=verdict.identity,
        inputs_digest=run.inputs_digest,
        model=discovery.variants,
        candidate=verdict.published,
        blobs=tuple(blobs),
        significant=verdict.significant,
        reason=verdict.reason,
        gain=verdict.engine_gain,
        latency_seconds=verdict.latency_seconds,
        verdict_digest=digest_of(verdict.to_json()),
        created_at=verdict.finished_at,
    )


def _attest(store: ObjectStore, manifest: Digest, bundle: bytes, signer: Signer) -> None:
    key = layout.attestation_by(manifest, signer.key_id)
    if store.create(key, bundle):
        return
    # ECDSA signatures differ from time to time, so an earlier one of ours is as good; anything else there is not
    found = store.get(key, MAX_BUNDLE_BYTES)
    try:
        check(found.data if found else b"", manifest, TrustRoot((signer.public,), "this signer"), key)
    except VerificationFailed as error:
        raise VerificationFailed(error.failure, f"{error}; delete that object if it is not yours, then publish again") from None
