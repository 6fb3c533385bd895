"""The first record of a run."""

from __future__ import annotations

from tuner_job.api.base import InputError
from tuner_job.api.effective import inputs_digest, run_id
from tuner_job.api.inputs import Owner, RunInputs
from tuner_job.api.messages import RunRecord
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore, StoreUnavailable
from tuner_job.store.records import create_record, read_record, timestamp


def start_run(
    store: ObjectStore,
    owner: Owner,
    target: str,
    inputs: RunInputs,
    *,
    shards: int,
    rerun_token: str = "",
    trigger: str = "Created",
) -> RunRecord:
    """The run of these inputs: a new one, or the one that exists already, as it was started.

    Raises InputError if it is retired, or if what lies under its id is a run of something else: what is signed rests on it.
    """
    digest = inputs_digest(inputs)
    run = run_id(owner, target, digest, rerun_token)
    record = RunRecord(
        run=run,
        owner=owner,
        target=target,
        inputs=inputs,
        inputs_digest=digest,
        rerun_token=rerun_token,
        trigger=trigger,
        seed=seed_of(run),
        shards=shards,
        created_at=timestamp(),
    )
    if store.exists(layout.retired(run)):
        raise InputError(
            f"run {run} is retired and about to be deleted from {store.url}; set another rerun token to tune anew",
            reason="RunRetired",
        )
    key = layout.run(run)
    if create_record(store, key, record):
        return record
    existing = read_record(store, key, RunRecord)
    if existing is None:
        raise StoreUnavailable(f"{key} in {store.url} was there and is gone; try again")
    same = (existing.run, existing.owner, existing.target, existing.rerun_token, existing.inputs_digest, existing.seed)
    if same != (run, owner, target, rerun_token, digest, record.seed) or inputs_digest(existing.inputs) != digest:
        raise InputError(
            f"{key} in {store.url}: is not of these inputs; something else wrote it. Set another rerun token to tune anew",
            reason="PoisonedRecord",
        )
    return existing


def seed_of(run: str) -> int:
    """Every random choice of a run derives from its id."""
    return int(run[:8], 16)
