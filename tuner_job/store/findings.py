"""Findings of runs, kept for their relatives: nothing in them is ever taken for a result."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from itertools import islice

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.findings import FindingsRecord
from tuner_job.store import layout
from tuner_job.store.objects import Info, ObjectStore
from tuner_job.store.records import create_record, read_record

MOST_LISTED = 2000
"""Of one kin; what lies beyond is not seen."""
MOST_READ = 16
DEADLINE_SECONDS = 30.0
"""For all reading: what may be gained are a few trials."""

_NAME = re.compile(r"([0-9a-f]{64})-([0-9a-f]{20})\.json")


def keep(store: ObjectStore, record: FindingsRecord) -> None:
    """Record a run's findings under each name of its kin. Raises what the store raises."""
    for kin in record.subject.kin:
        create_record(store, layout.findings(kin, record.identity, record.run), record)


def nearby(
    store: ObjectStore,
    kins: Iterable[str],
    *,
    but_not: str,
    deadline_seconds: float = DEADLINE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[FindingsRecord], list[str]]:
    """Findings of the kin under other identities than `but_not`, the newest first, and notes on what was passed over.

    Of each identity the longest ones alone, since a run that had most to tell knows what the others know: at most MOST_READ.
    Records that cannot be read are passed over, and a store that does not answer ends the reading: nothing is raised for it.
    """
    give_up = clock() + deadline_seconds
    found: list[FindingsRecord] = []
    notes: list[str] = []
    try:
        for info in _chosen(store, kins, but_not):
            if clock() >= give_up:
                notes.append(f"the others were not read: {deadline_seconds:g} s are the most")
                break
            try:
                record = read_record(store, info.key, FindingsRecord)
                if record is not None and _lies_right(record, info.key):
                    found.append(record)
                elif record is not None:
                    notes.append(f"{info.key}: is of another run or kin; delete it")
            except InputError as error:
                notes.append(str(error))
            except MemoryError:
                notes.append(f"{info.key}: there is no memory to read it")
    except TrtfleetError as error:
        notes.append(f"the store ended the reading: {error}")
    return found, notes


def _chosen(store: ObjectStore, kins: Iterable[str], but_not: str) -> list[Info]:
    longest: dict[str, Info] = {}
    for kin in kins:
        for info in islice(store.list(layout.kin(kin)), MOST_LISTED):
            name = _NAME.fullmatch(info.key.rpartition("/")[2])
            if name is None or name[1] == but_not or info.size > FindingsRecord.MAX_BYTES:
                continue
            known = longest.get(name[1])
            if known is None or (info.size, info.modified, info.key) > (known.size, known.modified, known.key):
                longest[name[1]] = info
    return sorted(longest.values(), key=lambda info: (info.modified, info.key), reverse=True)[:MOST_READ]


def _lies_right(record: FindingsRecord, key: str) -> bool:
    return key in {layout.findings(kin, record.identity, record.run) for kin in record.subject.kin}
