"""What stands before every use of a published engine.

The order is fixed: pointer → manifest bytes against the digest that named them → signatures under the trust root → subjects →
contents of the manifest → expectations → engine bytes. Nothing is parsed before it is proven to be what was signed, except the
pointer, which is not signed: it can be set back to an older manifest of the same target by whoever can write to the store.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tuner_job.api.base import InputError, TrtfleetError, digest_of
from tuner_job.api.inputs import Owner, RuntimeIdentity
from tuner_job.api.measurement import Device, Digest
from tuner_job.api.messages import BlobRef, ManifestRecord, PointerRecord
from tuner_job.store import layout, pointers
from tuner_job.store.attest import MAX_BUNDLE_BYTES, Attested, Failure, VerificationFailed, check
from tuner_job.store.keys import TrustRoot
from tuner_job.store.objects import ObjectStore, StoreCorrupt
from tuner_job.store.pointers import PointerName

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Expect:
    """What the user of the engine is. None: any."""

    owner: Owner | None = None
    target: str | None = None
    runtime: RuntimeIdentity | None = None
    """Family and exact version; the image digest only if it is given."""
    device: Device | None = None
    """Compared by hardware: type, product, MIG profile and compute capability; not by driver or count."""


@dataclass(frozen=True)
class Verified:
    manifest: ManifestRecord
    digest: Digest
    """Of the manifest."""
    signers: tuple[str, ...]
    """Ids of the trusted keys that vouch for it, sorted."""
    engine: BlobRef
    pointer: PointerRecord | None
    """The pointer that led here, if one did."""
    engine_checked: bool
    """Whether the engine's bytes were hashed, rather than only their presence and size seen."""


ANY = Expect()


def verify(
    store: ObjectStore,
    what: PointerName | Digest,
    trust: TrustRoot,
    expect: Expect = ANY,
    *,
    hash_engine: bool = True,
    scratch: Path | None = None,
) -> Verified:
    """Check what a pointer, or a manifest named by digest, stands for. Raises VerificationFailed.

    The engine is downloaded into a temporary folder under `scratch` and hashed; with `hash_engine` off, as in the operator,
    which streams no engines, only its presence and size are seen. Raises InputError if the folder has no room for it.
    """
    verified = _signed(store, what, trust, expect)
    if not hash_engine:
        key = layout.blob(verified.engine.digest)
        info = store.info(key)
        if info is None:
            raise _engine_missing(key)
        if info.size != verified.engine.size:
            raise _engine_altered(key, f"it has {info.size} bytes, not {verified.engine.size}")
        return verified
    try:
        with tempfile.TemporaryDirectory(prefix="trtfleet-verify-", dir=scratch) as folder:
            _download(store, verified.engine, Path(folder, "engine"))
    except OSError as error:
        where = scratch or tempfile.gettempdir()
        raise InputError(
            f"{where}: no place for an engine of {verified.engine.size} bytes: {error.strerror}; set TMPDIR"
        ) from None
    return _checked(verified)


def fetch_engine(
    store: ObjectStore, what: PointerName | Digest, trust: TrustRoot, destination: Path, expect: Expect = ANY
) -> Verified:
    """Verify, and leave the engine at `destination`, which appears (or is replaced) only when whole and verified.

    Raises VerificationFailed, or InputError if `destination` cannot be written.
    """
    verified = _signed(store, what, trust, expect)
    try:
        _download(store, verified.engine, destination)
    except OSError as error:
        raise InputError(f"{destination}: cannot be written: {error.strerror}; choose another destination") from None
    return _checked(verified)


def verify_file(engine: Path, manifest: bytes, bundles: Iterable[bytes], trust: TrustRoot, expect: Expect = ANY) -> Verified:
    """Check a local engine against its manifest and attestations, without a store. Raises VerificationFailed, InputError."""
    digest = digest_of(manifest)
    attested = _first_good(((bundle, f"attestation {number}") for number, bundle in enumerate(bundles, 1)), digest, trust)
    verified = _agreed(manifest, attested, None, expect)
    try:
        with engine.open("rb") as stream:
            hashed = hashlib.sha256()
            while chunk := stream.read(_CHUNK):
                hashed.update(chunk)
    except OSError as error:
        raise InputError(f"{engine}: {error.strerror}") from None
    if hashed.hexdigest() != verified.engine.digest:
        raise _engine_altered(str(engine), f"its SHA-256 is {hashed.hexdigest()}, not {verified.engine.digest}")
    return _checked(verified)


def attested(store: ObjectStore, manifest: Digest, trust: TrustRoot) -> Attested:
    """What trusted keys say about a manifest. Raises VerificationFailed.

    Attestations are looked up by the ids of the keys in the trust root, so that nobody can bury a good one under others.
    """
    found = []
    for key in trust:
        where = layout.attestation_by(manifest, key.key_id)
        if (bundle := store.get(where, MAX_BUNDLE_BYTES)) is not None:
            found.append((bundle.data, where))
    if not found:
        raise _nobody(store, manifest, trust)
    return _first_good(found, manifest, trust)


def _signed(store: ObjectStore, what: PointerName | Digest, trust: TrustRoot, expect: Expect) -> Verified:
    pointer = None
    if isinstance(what, PointerName):
        pointer = pointers.read(store, what)
        if pointer is None:
            problem = (
                f"nothing is published for {what} in {store.url}; run the job first, or check the name and the store's URL, "
                "which on a cluster ends with the namespace's prefix"
            )
            raise VerificationFailed(Failure.POINTER_MISSING, problem)
        digest = pointer.current.manifest
    else:
        digest = what
    data = pointers.manifest_bytes(store, digest)
    return _agreed(data, attested(store, digest, trust), pointer, expect)


def _agreed(data: bytes, attested: Attested, pointer: PointerRecord | None, expect: Expect) -> Verified:
    """The manifest, parsed now that a trusted key vouches for these very bytes, against all that is known otherwise."""
    manifest = pointers.parse_manifest(data, attested.manifest)
    where = f"manifest {attested.manifest[:16]}"
    if manifest.engine.digest != attested.engine:
        raise VerificationFailed(Failure.SUBJECT_MISMATCH, f"{where}: names another engine than the one that was attested")
    if pointer is not None and PointerName.of(manifest) != PointerName.of(pointer):
        raise VerificationFailed(
            Failure.POINTER_FOREIGN, f"{where}: is of {PointerName.of(manifest)}, but the pointer is of {PointerName.of(pointer)}"
        )
    _expected(manifest, where, expect)
    signers = tuple(sorted(attested.signers))
    return Verified(manifest, attested.manifest, signers, manifest.engine, pointer, engine_checked=False)


def _expected(manifest: ManifestRecord, where: str, expect: Expect) -> None:
    if expect.owner is not None and manifest.owner != expect.owner:
        raise VerificationFailed(Failure.WRONG_OWNER, f"{where}: belongs to {manifest.owner}, not to {expect.owner}")
    if expect.target is not None and manifest.target != expect.target:
        raise VerificationFailed(Failure.WRONG_OWNER, f"{where}: is for target {manifest.target!r}, not {expect.target!r}")
    if (wanted := expect.runtime) is not None:
        built = manifest.runtime
        if (built.family, built.version) != (wanted.family, wanted.version):
            raise VerificationFailed(
                Failure.WRONG_RUNTIME,
                f"{where}: built with {built.family} {built.version}, but this is {wanted.family} {wanted.version}; "
                "use the pointer of this version",
            )
        if wanted.image_digest not in ("", built.image_digest):
            raise VerificationFailed(
                Failure.WRONG_RUNTIME, f"{where}: built in image {built.image_digest or 'none'}, not {wanted.image_digest}"
            )
    if expect.device is not None and (made := _hardware(manifest.device)) != (here := _hardware(expect.device)):
        raise VerificationFailed(Failure.WRONG_DEVICE, f"{where}: tuned on {_spell(made)}, but this is {_spell(here)}")


def _hardware(device: Device) -> tuple[str, ...]:
    return (device.type, device.product, device.mig_profile, device.compute_capability)


def _spell(hardware: tuple[str, ...]) -> str:
    return " ".join(part for part in hardware if part)


def _first_good(bundles: Iterable[tuple[bytes, str]], manifest: Digest, trust: TrustRoot) -> Attested:
    """All that hold, together; if none does, the first one's failure. A spoilt one beside a good one does no harm."""
    good: list[Attested] = []
    failure: VerificationFailed | None = None
    for bundle, where in bundles:
        try:
            good.append(check(bundle, manifest, trust, where))
        except VerificationFailed as error:
            failure = failure or error
    if not good:
        raise failure or VerificationFailed(Failure.NOT_ATTESTED, f"manifest {manifest[:16]}: there is no attestation")
    first = good[0]
    signers = first.signers.union(*(other.signers for other in good if other.engine == first.engine))
    return Attested(first.manifest, first.engine, signers, first.provenance, first.measurement)


def _nobody(store: ObjectStore, manifest: Digest, trust: TrustRoot) -> VerificationFailed:
    where = f"manifest {manifest[:16]}"
    others: list[str] = []
    with contextlib.suppress(TrtfleetError):  # listing is a courtesy, which readers may not be allowed
        others = [info.key.rpartition("/")[2][:16] for info in islice(store.list(layout.attestation(manifest)), 5)]
    if not len(trust):
        return VerificationFailed(
            Failure.UNTRUSTED_KEY if others else Failure.NOT_ATTESTED,
            f"{where}: {trust.where} holds no trusted key; put the publisher's public key (PEM) there",
        )
    if others:
        return VerificationFailed(
            Failure.UNTRUSTED_KEY,
            f"{where}: signed by {', '.join(sorted(others))}, not by a key in {trust.where}; "
            "add the publisher's public key if you trust it",
        )
    return VerificationFailed(Failure.NOT_ATTESTED, f"{where}: nobody attested it; publish it again, or choose another manifest")


def _download(store: ObjectStore, engine: BlobRef, path: Path) -> None:
    key = layout.blob(engine.digest)
    try:
        content = store.get_file(key, path, digest=engine.digest, max_bytes=engine.size)
    except (StoreCorrupt, InputError) as error:
        raise _engine_altered(key, str(error)) from None
    if content is None:
        raise _engine_missing(key)
    if content.size != engine.size:
        path.unlink(missing_ok=True)
        raise _engine_altered(key, f"it has {content.size} bytes, not {engine.size}")


def _checked(verified: Verified) -> Verified:
    return Verified(verified.manifest, verified.digest, verified.signers, verified.engine, verified.pointer, engine_checked=True)


def _engine_missing(key: str) -> VerificationFailed:
    return VerificationFailed(Failure.ENGINE_MISSING, f"{key}: the engine is not in the store; roll back, or run again")


def _engine_altered(key: str, problem: str) -> VerificationFailed:
    what = f"{key}: not the engine that was signed: {problem}; roll back, or run again with --rerun TOKEN"
    return VerificationFailed(Failure.ENGINE_ALTERED, what)
