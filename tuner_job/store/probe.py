"""Does a store keep the promises on which workers without a coordinator rely?

Some S3 servers ignore `If-None-Match` in silence; with one of them every worker would win every claim.
"""

from __future__ import annotations

import contextlib
import secrets
from concurrent.futures import ThreadPoolExecutor

from tuner_job.api.base import TrtfleetError
from tuner_job.store.layout import PROBE
from tuner_job.store.objects import ObjectStore, StoreNotConditional, StoreUnavailable

_RACERS = 4
_BYTES = 64


def probe(store: ObjectStore) -> None:
    """Write, race, swap, list and delete a few small objects under `.probe/`.

    Raises StoreNotConditional if a condition is ignored, StoreUnavailable if a write is not seen at once, and whatever the store
    itself raises (read-only, full, unreachable, refused credentials).
    """
    name = secrets.token_hex(8)
    twice, race = f"{PROBE}/{name}-twice", f"{PROBE}/{name}-race"
    try:
        _probe_create(store, twice)
        _probe_swap(store, twice)
        _probe_race(store, race)
        _probe_visibility(store, twice)
    finally:
        for key in (twice, race):
            with contextlib.suppress(TrtfleetError):
                store.delete(key)


def _probe_create(store: ObjectStore, key: str) -> None:
    if not store.create(key, b"first"):
        raise _unseen(store, "a new object is said to exist already")
    if store.create(key, b"second") or _read(store, key) != b"first":
        raise _ignored(store, "a second create of the same object succeeded")


def _probe_swap(store: ObjectStore, key: str) -> None:
    old = store.get(key, _BYTES)
    if old is None or not store.swap(key, b"swapped", old.tag):
        raise _unseen(store, "an object that was just written is not found or has changed")
    if store.swap(key, b"stale", old.tag) or _read(store, key) != b"swapped":
        raise _ignored(store, "a compare-and-swap of an outdated version succeeded")


def _probe_race(store: ObjectStore, key: str) -> None:
    with ThreadPoolExecutor(_RACERS) as pool:
        won = list(pool.map(lambda racer: store.create(key, b"racer %d" % racer), range(_RACERS)))
    if won.count(True) != 1 or _read(store, key) != b"racer %d" % won.index(True):
        raise _ignored(store, f"{won.count(True)} of {_RACERS} simultaneous creates of one object succeeded")


def _probe_visibility(store: ObjectStore, key: str) -> None:
    if not any(info.key == key for info in store.list(PROBE)):
        raise _unseen(store, "an object that was just written is not listed")
    store.delete(key)
    if store.exists(key):
        raise _unseen(store, "an object that was just deleted is still there")


def _read(store: ObjectStore, key: str) -> bytes | None:
    found = store.get(key, _BYTES)
    return None if found is None else found.data


def _ignored(store: ObjectStore, what: str) -> StoreNotConditional:
    return StoreNotConditional(
        f"store {store.url} ignores conditions: {what}; workers would overwrite each other. "
        "Use a store that honours If-None-Match and If-Match"
    )


def _unseen(store: ObjectStore, what: str) -> StoreUnavailable:
    return StoreUnavailable(f"store {store.url} is not consistent: {what}; use a store with read-after-write consistency")
