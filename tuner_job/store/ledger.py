"""Results that other runs may reuse: the first deterministic result of each candidate under each identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner_job.api.base import InputError, digest_of
from tuner_job.api.child import ShapeCase
from tuner_job.api.inputs import RunInputs, VariantInput
from tuner_job.api.measurement import PROTOCOL_VERSION, Candidate, Device
from tuner_job.api.messages import LedgerRecord, ResultRecord, RunRecord, TimingCacheRecord
from tuner_job.api.outcome import Outcome
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore, StoreCorrupt
from tuner_job.store.records import create_record, read_record

BY_CHANCE = frozenset({Outcome.HUNG, Outcome.INFRASTRUCTURE, Outcome.OUT_OF_MEMORY})
"""Outcomes that say more about the day, or the machine's memory, than about the candidate."""


def identity(
    inputs: RunInputs,
    *,
    variants: Sequence[VariantInput],
    cases: Sequence[ShapeCase],
    device: Device,
    versions: Mapping[str, str],
    knobs_digest: str,
    references_digest: str,
    environment: Mapping[str, str],
) -> str:
    """Digest of all that a candidate's result depends on, less the candidate itself.

    In: what the variants hold (not where they lie), shapes, runtime and library versions, image, knob list, device class,
    plugins, steering environment, how timings and losses are taken. Out: thresholds, search and budget: they judge or choose
    results and change none. Raises InputError for a variant without a digest.
    """
    undigested = next((variant.name for variant in variants if variant.digest is None), None)
    if undigested is not None:
        raise InputError(f"model variant {undigested} has no digest; fetch it first")
    accuracy = inputs.accuracy
    return digest_of(
        {
            "protocol": PROTOCOL_VERSION,
            "variants": {variant.name: variant.digest for variant in variants},
            "cases": [case.model_dump(mode="json") for case in cases],
            "runtime": inputs.runtime.model_dump(mode="json"),
            "versions": dict(versions),
            "knobs": knobs_digest,
            "device": device.model_dump(mode="json"),
            "plugins": [plugin.digest for plugin in inputs.plugins],
            "environment": dict(environment),
            "measure": inputs.measure.model_dump(mode="json"),
            "references": [references_digest, accuracy.atol, accuracy.rtol, sorted(accuracy.outputs)],
        }
    )


def ignores_ledger(run: RunRecord) -> bool:
    """A rerun measures anew; so does a run without warm start."""
    return bool(run.rerun_token) or run.inputs.search.warm_start == "None"


class Ledger:
    """The ledger of one store, which is one trust domain."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def lookup(self, identity: str, candidate: Candidate) -> ResultRecord | None:
        """The recorded result. Raises InputError if the record is not valid, StoreCorrupt if it lies under a wrong key."""
        key = layout.ledger(identity, candidate)
        record = read_record(self._store, key, LedgerRecord)
        if record is None:
            return None
        if record.identity != identity or record.result.candidate != candidate:
            raise StoreCorrupt(f"{key} in {self._store.url} records another candidate or identity; delete it")
        return record.result

    def add(self, identity: str, result: ResultRecord) -> bool:
        """Record a result that is no matter of chance, conviction or the ledger itself. False: not recorded, or not first."""
        if result.outcome in BY_CHANCE or result.convicted or result.cached:
            return False
        record = LedgerRecord(identity=identity, result=result)
        return create_record(self._store, layout.ledger(identity, result.candidate), record)

    def timing_cache(self, identity: str) -> str | None:
        """Digest of the blob with the identity's timing cache. Raises as `lookup` does."""
        key = layout.timing_cache(identity)
        record = read_record(self._store, key, TimingCacheRecord)
        if record is None:
            return None
        if record.identity != identity:
            raise StoreCorrupt(f"{key} in {self._store.url} names the cache of another identity; delete it")
        return record.blob

    def name_timing_cache(self, identity: str, blob: str) -> bool:
        """Make the blob the identity's timing cache for good. False: it has another one."""
        return create_record(self._store, layout.timing_cache(identity), TimingCacheRecord(identity=identity, blob=blob))
