"""Typed records in a store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from tuner_job.api.base import InputError, digest_of
from tuner_job.api.messages import Record, items_of
from tuner_job.store.objects import ObjectStore

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Stored(Generic[R]):
    """A record as it was read."""

    record: R
    digest: str
    """SHA-256 of its bytes in the store."""
    tag: str
    """For `swap_record`."""


def create_record(store: ObjectStore, key: str, record: Record) -> bool:
    """Write a record that must not exist yet. False: another one stands there."""
    return store.create(key, _bytes(key, record))


def put_record(store: ObjectStore, key: str, record: Record) -> None:
    """Overwrite; for beats only."""
    store.put(key, _bytes(key, record))


def swap_record(store: ObjectStore, key: str, record: Record, tag: str) -> bool:
    """Replace exactly the version that was found with `tag`; for pointers only. False: it has changed since."""
    return store.swap(key, _bytes(key, record), tag)


def find_record(store: ObjectStore, key: str, kind: type[R]) -> Stored[R] | None:
    """The record at `key`, or None. Raises InputError naming the key if it is too long or not valid."""
    found = store.get(key, kind.MAX_BYTES)
    if found is None:
        return None
    return Stored(kind.parse(found.data, key), digest_of(found.data), found.tag)


def read_record(store: ObjectStore, key: str, kind: type[R]) -> R | None:
    """As find_record, less digest and tag."""
    stored = find_record(store, key, kind)
    return None if stored is None else stored.record


def timestamp() -> str:
    """Now, for people (RFC 3339, UTC)."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _bytes(key: str, record: Record) -> bytes:
    data = record.to_json()
    if len(data) > record.MAX_BYTES:
        # written, it would be refused by every reader
        raise InputError(f"{key}: {len(data)} bytes; a {type(record).__name__} has at most {record.MAX_BYTES}")
    if (items := items_of(data)) > record.MAX_ITEMS:
        raise InputError(f"{key}: {items} items; a {type(record).__name__} has at most {record.MAX_ITEMS}")
    return data
