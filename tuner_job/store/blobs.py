"""Bytes named by their SHA-256. Writing one twice is harmless, and renews its age for the garbage collector."""

from __future__ import annotations

from pathlib import Path

from tuner_job.api.base import digest_of
from tuner_job.store import layout
from tuner_job.store.objects import Content, ObjectStore, StoreCorrupt, corrupt


def put_blob(store: ObjectStore, data: bytes) -> str:
    """Returns the digest."""
    digest = digest_of(data)
    store.put(layout.blob(digest), data)
    return digest


def put_blob_file(store: ObjectStore, path: Path, digest: str) -> Content:
    """Upload a file whose digest is known. Raises StoreCorrupt, with nothing written, if the file has changed."""
    return store.put_file(layout.blob(digest), path, digest=digest)


def get_blob(store: ObjectStore, digest: str, max_bytes: int) -> bytes:
    """Verified bytes. Raises StoreCorrupt if the blob is gone or damaged, InputError if it is longer than `max_bytes`."""
    found = store.get(layout.blob(digest), max_bytes)
    if found is None:
        raise _gone(store, digest)
    actual = digest_of(found.data)
    if actual != digest:
        raise corrupt(f"{layout.blob(digest)} in {store.url}", actual, digest)
    return found.data


def get_blob_file(store: ObjectStore, digest: str, path: Path, max_bytes: int | None = None) -> Content:
    """Download to `path`, which appears only when whole and verified. Raises as get_blob."""
    content = store.get_file(layout.blob(digest), path, digest=digest, max_bytes=max_bytes)
    if content is None:
        raise _gone(store, digest)
    return content


def _gone(store: ObjectStore, digest: str) -> StoreCorrupt:
    return StoreCorrupt(f"{layout.blob(digest)} in {store.url} is gone; it was deleted, or never written")
