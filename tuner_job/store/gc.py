"""Garbage collection: what no pointer and no living run reaches is deleted, once it is old enough.

Why a publisher beside it is safe: a pointer only ever moves to a manifest that it lists, or whose run was seen unretired
between the read of the pointer and the swap (pointers._admit). So

- a collection first cuts each history to `keep` by compare-and-swap and then takes what the pointers reach: a rollback to an
  entry that was cut loses its swap;
- a run is collected in two steps: `retired.json` ends its publication, and only a collection a whole grace period later counts
  it as dead. A publisher that saw it unretired has swapped by then, and is seen;
- objects are listed before they are marked, and looked at again before they are deleted: writing a blob again renews it.

The grace period must be longer than any upload, than any pause of a process between two requests, and than the difference
between our clock and the store's. Deleting goes from the referring to the referred, so that a crash leaves only garbage.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from tuner_job.api.base import InputError, TrtfleetError, canonical_json
from tuner_job.api.measurement import Digest
from tuner_job.api.messages import DiscoveryRecord, PointerRecord, Record, VerdictRecord
from tuner_job.store import layout, pointers
from tuner_job.store.ledger import Ledger
from tuner_job.store.objects import Info, ObjectStore, StoreCorrupt
from tuner_job.store.pointers import PointerName
from tuner_job.store.records import read_record

MIN_GRACE_SECONDS = 3600.0
DEFAULT_GRACE_SECONDS = 7 * 86400.0
RETIRED = canonical_json({"kind": "Retired", "schemaVersion": 1})
"""`retired.json`. Only that it is there, and since when, counts."""

R = TypeVar("R", bound=Record)


class CannotCollect(TrtfleetError):
    """What a pointer or a living run reaches is unknown, because a record cannot be read; nothing was deleted."""

    reason = "CannotCollect"


@dataclass
class Report:
    """What a collection did, or would do."""

    dry_run: bool
    deleted: Counter[str] = field(default_factory=Counter)
    """Objects by kind: manifests, attestations, blobs, runs (objects of runs), ledger, probe."""
    freed_bytes: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    """Objects of the same kinds that stay."""
    retired: list[str] = field(default_factory=list)
    """Runs that may not publish any more; a collection after the grace period deletes them."""
    trimmed: list[str] = field(default_factory=list)
    """Keys of pointers whose history was cut."""
    swept: int = 0
    """Files half written that were removed; only in a file:// store."""


def collect(
    store: ObjectStore,
    *,
    keep: int,
    now: datetime,
    grace_seconds: float = DEFAULT_GRACE_SECONDS,
    dry_run: bool = False,
    run_retention_seconds: float | None = None,
    ledger_retention_seconds: float | None = None,
) -> Report:
    """Delete what is unreachable and was last written more than `grace_seconds` before `now`.

    Reachable: what each pointer serves or is pinned to, its newest `keep` former manifests (the rest of its history is
    forgotten), the references, timing cache, samples, layers and engines of every run that is not retired, and the timing caches
    of the ledger. Runs that no pointer names and in
    which nothing was written for `run_retention_seconds` are retired; ledger records older than `ledger_retention_seconds` are
    deleted. None: never.

    Raises CannotCollect, InputError.
    """
    if grace_seconds < MIN_GRACE_SECONDS:
        raise InputError(
            f"gc: a grace period of {grace_seconds:.0f} s could hit a publisher; use {MIN_GRACE_SECONDS:.0f} s or more"
        )
    if not 0 <= keep <= pointers.HISTORY:
        raise InputError(f"gc: keep is {keep}; use 0 to {pointers.HISTORY}")
    if now.tzinfo is None:
        raise InputError("gc: `now` needs a time zone")
    return _Collection(store, keep, now, timedelta(seconds=grace_seconds), dry_run).run(
        run_retention_seconds, ledger_retention_seconds
    )


@dataclass
class _Run:
    records: list[Info] = field(default_factory=list)
    retired: Info | None = None

    def idle_since(self, moment: datetime) -> bool:
        return all(info.modified < moment for info in self.records)


class _Collection:
    def __init__(self, store: ObjectStore, keep: int, now: datetime, grace: timedelta, dry_run: bool) -> None:
        self._store, self._keep, self._now, self._dry_run = store, keep, now, dry_run
        self._old = now - grace
        self._report = Report(dry_run)

    def run(self, run_retention: float | None, ledger_retention: float | None) -> Report:
        blobs, manifests, attestations = (
            list(self._store.list(prefix)) for prefix in (layout.BLOBS, layout.MANIFESTS, layout.ATTESTATIONS)
        )
        runs = self._runs()
        served = self._pointers()
        pointed_runs = {entry.run for pointer in served for entry in pointers.entries(pointer)}
        dead = {run for run, state in runs.items() if run not in pointed_runs and self._is_dead(state)}

        pointed = {entry.manifest for pointer in served for entry in pointers.entries(pointer)}
        kept_manifests, used = self._mark_manifests(manifests, pointed, runs.keys() - dead)
        for run in runs.keys() - dead:
            used |= self._used_by(run)
        used |= self._timing_caches()

        self._delete("manifests", manifests, lambda info: _name(info) in kept_manifests)
        self._delete("attestations", attestations, lambda info: info.key.split("/")[2] in kept_manifests)
        self._delete("blobs", blobs, lambda info: _name(info) in used)
        self._delete_runs(runs, dead)
        if run_retention is not None:
            self._retire(runs, dead | pointed_runs, timedelta(seconds=run_retention))
        if ledger_retention is not None:
            limit = self._now - timedelta(seconds=ledger_retention)
            self._delete("ledger", self._store.list(layout.LEDGER), lambda info: info.modified >= limit)
        self._delete("probe", self._store.list(layout.PROBE), lambda _: False)
        if not self._dry_run:
            self._report.swept = self._store.sweep((self._now - self._old).total_seconds())
        return self._report

    def _pointers(self) -> list[PointerRecord]:
        """Every pointer, its history cut."""
        found = []
        for info in self._store.list(layout.POINTERS):
            pointer = self._readable(info.key, PointerRecord)
            if pointer is None:
                continue
            name = PointerName.of(pointer)
            if name.key != info.key:
                raise CannotCollect(f"{info.key}: belongs to {name}; delete it if nobody uses it. Nothing was collected")
            if len(pointer.history) > self._keep:
                self._report.trimmed.append(info.key)
                if self._dry_run:
                    pointer = pointer.model_copy(update={"history": pointer.history[: self._keep]})
                else:
                    pointer = pointers.trim(self._store, name, self._keep)
            found.append(pointer)
        return found

    def _runs(self) -> dict[str, _Run]:
        runs: defaultdict[str, _Run] = defaultdict(_Run)
        for info in self._store.list(layout.RUNS):
            run = info.key.split("/")[1]
            if info.key == layout.retired(run):
                runs[run].retired = info
            else:
                runs[run].records.append(info)
        return dict(runs)

    def _is_dead(self, run: _Run) -> bool:
        """Retired a grace period ago, and nobody has written to it within one."""
        return run.retired is not None and run.retired.modified < self._old and run.idle_since(self._old)

    def _mark_manifests(
        self, manifests: Iterable[Info], pointed: set[Digest], living: set[str]
    ) -> tuple[set[Digest], set[Digest]]:
        """Manifests that stay, and the blobs that they need."""
        kept: set[Digest] = set()
        used: set[Digest] = set()
        for digest in pointed:
            try:
                manifest = pointers.load_manifest(self._store, digest)
            except TrtfleetError as error:
                raise CannotCollect(f"{error}; a pointer reaches it, so nothing was collected") from None
            kept.add(digest)
            used.update(blob.digest for blob in manifest.blobs)
        for info in manifests:
            if (digest := _name(info)) in kept:
                continue
            try:
                manifest = pointers.load_manifest(self._store, digest)
            except TrtfleetError:
                continue  # no pointer can be moved to what is no manifest
            if manifest.run in living or info.modified >= self._old:
                kept.add(digest)
                used.update(blob.digest for blob in manifest.blobs)
        return kept, used

    def _used_by(self, run: str) -> set[Digest]:
        used: set[Digest] = set()
        if (discovery := self._readable(layout.discovery(run), DiscoveryRecord)) is not None:
            used.add(discovery.references_blob)
            used.update(build.engine.digest for build in discovery.pilot)
            if discovery.timing_cache_blob is not None:
                used.add(discovery.timing_cache_blob)
        if (verdict := self._readable(layout.verdict(run), VerdictRecord)) is not None:
            used.add(verdict.engine.digest)
            used.update(blob for blob in (verdict.samples_blob, verdict.layers_blob) if blob is not None)
        return used

    def _timing_caches(self) -> set[Digest]:
        """Those that the ledger names. A record that cannot be read is of no use to any run, so nothing is kept for it."""
        ledger = Ledger(self._store)
        used: set[Digest] = set()
        for info in self._store.list(layout.LEDGER):
            _, identity, *name = info.key.split("/")
            if name != [layout.TIMING_CACHE]:
                continue
            with contextlib.suppress(InputError, StoreCorrupt):
                if (blob := ledger.timing_cache(identity)) is not None:
                    used.add(blob)
        return used

    def _readable(self, key: str, kind: type[R]) -> R | None:
        try:
            return read_record(self._store, key, kind)
        except InputError as error:
            raise CannotCollect(f"{error}; what it reaches is unknown, so nothing was collected") from None

    def _delete(self, kind: str, objects: Iterable[Info], stays: Callable[[Info], bool]) -> None:
        for info in objects:
            if stays(info) or info.modified >= self._old:
                self._report.kept[kind] += 1
                continue
            if not self._dry_run:
                fresh = self._store.info(info.key)
                if fresh is None or fresh.modified > info.modified:
                    continue
                self._store.delete(info.key)
            self._report.deleted[kind] += 1
            self._report.freed_bytes += info.size

    def _delete_runs(self, runs: dict[str, _Run], dead: set[str]) -> None:
        """`run.json` first, which ends all admission, and `retired.json` last, so that a crash leaves the run dead."""
        for name, run in sorted(runs.items()):
            own = sorted(run.records, key=lambda info: info.key != layout.run(name))
            every = [*own, run.retired] if run.retired is not None else own
            if name in dead:
                self._delete("runs", every, lambda _: False)
            else:
                self._report.kept["runs"] += len(every)

    def _retire(self, runs: dict[str, _Run], spared: set[str], retention: timedelta) -> None:
        for name, run in sorted(runs.items()):
            if name in spared or run.retired is not None or not run.idle_since(self._now - retention):
                continue
            self._report.retired.append(name)
            if not self._dry_run:
                self._store.create(layout.retired(name), RETIRED)


def _name(info: Info) -> str:
    return info.key.rpartition("/")[2]
