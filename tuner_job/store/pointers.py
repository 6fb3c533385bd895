"""Pointers: which manifest of a target is served, per runtime version.

Every change is one compare-and-swap of the whole record and raises `generation` by one, so racers cannot lose each other's
changes and a change is never applied to a state that its author did not see. `history` is newest first, without `current`.

What a pointer may be moved to (see `_admit`): a manifest whose engine is there and which the pointer lists already, or whose
run is in the store and not retired. Garbage collection relies on exactly this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tuner_job.api.base import TrtfleetError, digest_of
from tuner_job.api.inputs import Owner
from tuner_job.api.measurement import Digest
from tuner_job.api.messages import ManifestRecord, PointerEntry, PointerRecord
from tuner_job.store import layout
from tuner_job.store.attest import Failure, VerificationFailed
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record, find_record, read_record, swap_record, timestamp

HISTORY = 50
ATTEMPTS = 30
"""Lost swaps before giving up; each one lost means that another writer got through."""

PUBLISHED = "published"
PROMOTED = "promoted"
ROLLBACK = "rollback"
PINNED = "pinned"
HELD = "held"
"""Came while the pointer was pinned: in the history, but never served."""


class PointerRefused(TrtfleetError):
    """A change that a pointer does not allow.

    `reason`: PointerMissing, ForeignPointer, PointerPinned, NotInHistory, RunRetired, PointerMoved (someone else moved it
    meanwhile: look again) or PointerContended (try again).
    """

    reason = "PointerRefused"


@dataclass(frozen=True)
class PointerName:
    owner: Owner
    target: str
    runtime_version: str

    @property
    def key(self) -> str:
        return layout.pointer(self.owner, self.target, self.runtime_version)

    @staticmethod
    def of(record: ManifestRecord | PointerRecord) -> PointerName:
        version = record.runtime.version if isinstance(record, ManifestRecord) else record.runtime_version
        return PointerName(record.owner, record.target, version)

    def __str__(self) -> str:
        return f"{self.owner} target {self.target} runtime {self.runtime_version}"


def read(store: ObjectStore, name: PointerName) -> PointerRecord | None:
    """None when nothing was published yet. Raises PointerRefused if what is there belongs to another owner or target."""
    pointer = read_record(store, name.key, PointerRecord)
    return None if pointer is None else _named(pointer, name)


def entries(pointer: PointerRecord) -> tuple[PointerEntry, ...]:
    """Everything that the pointer reaches, newest first."""
    return (pointer.current, *pointer.history)


def load_manifest(store: ObjectStore, digest: Digest) -> ManifestRecord:
    """Read a manifest whose bytes have the digest that names them. Raises VerificationFailed."""
    return parse_manifest(manifest_bytes(store, digest), digest)


def manifest_bytes(store: ObjectStore, digest: Digest) -> bytes:
    """The bytes, proven to have this digest and nothing else. Raises VerificationFailed."""
    key = layout.manifest(digest)
    found = store.get(key, ManifestRecord.MAX_BYTES)
    if found is None:
        raise VerificationFailed(
            Failure.MANIFEST_MISSING, f"{key}: there is no such manifest; it was never published or was collected"
        )
    if digest_of(found.data) != digest:
        raise VerificationFailed(Failure.MANIFEST_ALTERED, f"{key}: the bytes have another SHA-256; it was changed or damaged")
    return found.data


def parse_manifest(data: bytes, digest: Digest) -> ManifestRecord:
    return ManifestRecord.parse(data, layout.manifest(digest))


def check_engine(store: ObjectStore, manifest: ManifestRecord, digest: Digest) -> None:
    """See that the engine is there with its size; whoever uses it hashes it. Raises VerificationFailed."""
    key = layout.blob(manifest.engine.digest)
    blob = store.info(key)
    if blob is None:
        raise VerificationFailed(
            Failure.ENGINE_MISSING, f"{key}: the engine of manifest {digest[:16]} is not in the store; run again"
        )
    if blob.size != manifest.engine.size:
        raise VerificationFailed(
            Failure.ENGINE_ALTERED,
            f"{key}: {blob.size} bytes where manifest {digest[:16]} says {manifest.engine.size}; run again",
        )


def publish(store: ObjectStore, name: PointerName, entry: PointerEntry, check: Callable[[], None]) -> PointerRecord:
    """Put a run's manifest behind the pointer, once: a run that the pointer knows never moves it again.

    So neither a repeat after a crash nor an older run undoes a rollback or a newer run. While pinned, the entry only enters
    the history. `check` is called after each read of the pointer and before the swap that depends on it; it raises to refuse.
    """

    def change(pointer: PointerRecord | None) -> PointerRecord | None:
        check()
        if pointer is not None and any(known.run == entry.run for known in entries(pointer)):
            return None
        _admit(store, name, entry.manifest, pointer)
        return _to(pointer, name, entry)

    return _change(store, name, change)


def move(
    store: ObjectStore,
    name: PointerName,
    manifest: Digest,
    *,
    why: str = PROMOTED,
    at: str | None = None,
    expected_generation: int | None = None,
) -> PointerRecord:
    """Serve a named manifest, whether or not it was served before. Repeating it changes nothing.

    This is also how a job that was edited back gets its old engine again: the caller reads the pointer, finds that its old run is
    the current one, and moves with the generation that it judged. While pinned, the manifest only enters the history.
    Raises PointerRefused, VerificationFailed.
    """
    seen = _Seen()

    def change(pointer: PointerRecord | None) -> PointerRecord | None:
        if pointer is not None and manifest == pointer.current.manifest:
            return None
        seen.check(pointer, name)
        if expected_generation is not None and expected_generation != (pointer.generation if pointer else 0):
            raise _moved(name)
        if pointer is not None and pointer.pinned and any(known.manifest == manifest for known in pointer.history):
            return None
        admitted = _admit(store, name, manifest, pointer)
        return _to(pointer, name, PointerEntry(manifest=manifest, run=admitted.run, at=at or timestamp(), why=why))

    return _change(store, name, change)


def rollback(store: ObjectStore, name: PointerName, to: Digest | None = None, *, at: str | None = None) -> PointerRecord:
    """Serve `to`, or what was served before, out of the pointer's history. Raises PointerRefused, VerificationFailed.

    Like `kubectl rollout undo`, a second call without `to` returns to where the first one came from.
    """
    seen = _Seen()

    def change(pointer: PointerRecord | None) -> PointerRecord | None:
        pointer = _existing(pointer, name)
        if pointer.current.manifest == to:
            return None
        seen.check(pointer, name)
        if pointer.pinned:
            raise PointerRefused(f"{name}: pinned to {pointer.pinned[:16]}; unpin it first", reason="PointerPinned")
        target = _previous(pointer, name) if to is None else _listed(pointer, name, to)
        _admit(store, name, target.manifest, pointer)
        return _to(pointer, name, PointerEntry(manifest=target.manifest, run=target.run, at=at or timestamp(), why=ROLLBACK))

    return _change(store, name, change)


def pin(store: ObjectStore, name: PointerName, manifest: Digest | None = None, *, at: str | None = None) -> PointerRecord:
    """Serve `manifest` (default: what is served now) until unpinned, whatever is published. Raises PointerRefused."""
    seen = _Seen()

    def change(pointer: PointerRecord | None) -> PointerRecord | None:
        pointer = _existing(pointer, name)
        wanted = manifest or pointer.current.manifest
        if pointer.pinned == wanted:
            return None
        seen.check(pointer, name)
        if wanted != pointer.current.manifest:
            admitted = _admit(store, name, wanted, pointer)
            entry = PointerEntry(manifest=wanted, run=admitted.run, at=at or timestamp(), why=PINNED)
            pointer = _to(pointer.model_copy(update={"pinned": None}), name, entry)
            return pointer.model_copy(update={"pinned": wanted})
        return pointer.model_copy(update={"pinned": wanted, "generation": pointer.generation + 1})

    return _change(store, name, change)


def unpin(store: ObjectStore, name: PointerName) -> PointerRecord:
    """Let publishing move the pointer again, from the next run on. Raises PointerRefused."""

    def change(pointer: PointerRecord | None) -> PointerRecord | None:
        pointer = _existing(pointer, name)
        if pointer.pinned is None:
            return None
        return pointer.model_copy(update={"pinned": None, "generation": pointer.generation + 1})

    return _change(store, name, change)


def trim(store: ObjectStore, name: PointerName, keep: int) -> PointerRecord:
    """Forget all but the newest `keep` entries of the history. Raises PointerRefused."""

    def change(pointer: PointerRecord | None) -> PointerRecord | None:
        pointer = _existing(pointer, name)
        if len(pointer.history) <= keep:
            return None
        return pointer.model_copy(update={"history": pointer.history[:keep], "generation": pointer.generation + 1})

    return _change(store, name, change)


class _Seen:
    """What a person looked at when asking for a change: if it is no longer served, they should look again."""

    def __init__(self) -> None:
        self._manifest: Digest | None = None
        self._first = True

    def check(self, pointer: PointerRecord | None, name: PointerName) -> None:
        manifest = pointer.current.manifest if pointer else None
        if self._first:
            self._first, self._manifest = False, manifest
        elif manifest != self._manifest:
            raise _moved(name)


def _change(
    store: ObjectStore, name: PointerName, change: Callable[[PointerRecord | None], PointerRecord | None]
) -> PointerRecord:
    """Apply `change` (record → new record, or None for none) to the newest version."""
    for _ in range(ATTEMPTS):
        found = find_record(store, name.key, PointerRecord)
        pointer = None if found is None else _named(found.record, name)
        wanted = change(pointer)
        if wanted is None:
            return _existing(pointer, name)
        if create_record(store, name.key, wanted) if found is None else swap_record(store, name.key, wanted, found.tag):
            return wanted
    raise PointerRefused(f"{name}: lost {ATTEMPTS} races for the pointer in a row; try again", reason="PointerContended")


def _to(pointer: PointerRecord | None, name: PointerName, entry: PointerEntry) -> PointerRecord:
    if pointer is None:
        return PointerRecord(
            owner=name.owner, target=name.target, runtime_version=name.runtime_version, generation=1, current=entry
        )
    if pointer.pinned:
        current, newest = pointer.current, entry.model_copy(update={"why": HELD})
    else:
        current, newest = entry, pointer.current
    return pointer.model_copy(
        update={"generation": pointer.generation + 1, "current": current, "history": (newest, *pointer.history)[:HISTORY]}
    )


def _admit(store: ObjectStore, name: PointerName, digest: Digest, pointer: PointerRecord | None) -> ManifestRecord:
    """The manifest, if the pointer may be moved to it now.

    Called between the read and the swap. An entry that is listed stays reachable, or else the swap fails; anything else is
    safe from collection for a whole grace period after its run was seen unretired. The run is looked at last.
    """
    manifest = load_manifest(store, digest)
    if PointerName.of(manifest) != name:
        raise PointerRefused(
            f"manifest {digest[:16]} is of {PointerName.of(manifest)}, not of {name}; publish it there", reason="ForeignPointer"
        )
    check_engine(store, manifest, digest)
    listed = pointer is not None and any(known.manifest == digest for known in entries(pointer))
    if not listed and (store.exists(layout.retired(manifest.run)) or not store.exists(layout.run(manifest.run))):
        raise PointerRefused(
            f"manifest {digest[:16]}: its run {manifest.run} was retired by garbage collection; start another by `rerun.token`",
            reason="RunRetired",
        )
    return manifest


def _named(pointer: PointerRecord, name: PointerName) -> PointerRecord:
    if PointerName.of(pointer) != name:
        raise PointerRefused(f"{name.key}: belongs to {PointerName.of(pointer)}, not to {name}", reason="ForeignPointer")
    return pointer


def _existing(pointer: PointerRecord | None, name: PointerName) -> PointerRecord:
    if pointer is None:
        raise PointerRefused(f"{name}: nothing is published", reason="PointerMissing")
    return pointer


def _previous(pointer: PointerRecord, name: PointerName) -> PointerEntry:
    for entry in pointer.history:
        if entry.why != HELD and entry.manifest != pointer.current.manifest:
            return entry
    raise PointerRefused(f"{name}: nothing was served before {pointer.current.manifest[:16]}", reason="NotInHistory")


def _listed(pointer: PointerRecord, name: PointerName, manifest: Digest) -> PointerEntry:
    for entry in pointer.history:
        if entry.manifest == manifest:
            return entry
    known = ", ".join(entry.manifest[:16] for entry in pointer.history[:5]) or "empty"
    raise PointerRefused(f"{name}: {manifest[:16]} is not in its history ({known})", reason="NotInHistory")


def _moved(name: PointerName) -> PointerRefused:
    return PointerRefused(
        f"{name}: someone else moved the pointer meanwhile; look at its history and decide again", reason="PointerMoved"
    )
