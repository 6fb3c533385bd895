"""The whole way of an engine over every kind of store, S3 among them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from store_publish_helpers import NAME, finished, write

from tuner_job.store import layout, pointers
from tuner_job.store.attest import VerificationFailed
from tuner_job.store.gc import collect
from tuner_job.store.keys import Signer, TrustRoot
from tuner_job.store.objects import ObjectStore
from tuner_job.store.publish import publish
from tuner_job.store.verify import fetch_engine, verify

SIGNER = Signer.generate()
TRUST = TrustRoot([SIGNER.public])


def test_publish_fetch_roll_back_pin_and_collect(object_store: ObjectStore, tmp_path: Path) -> None:
    first, second = (write(object_store, finished(token)) for token in ("1", "2"))
    digests = []
    for done in (first, second, first):
        published = publish(object_store, done.run, done.verdict, SIGNER, current_inputs_digest=done.run.inputs_digest)
        digests.append(published.digest)
    assert digests[0] == digests[2]
    fetch_engine(object_store, NAME, TRUST, tmp_path / "engine")
    assert (tmp_path / "engine").read_bytes() == second.engine
    pointers.rollback(object_store, NAME)
    fetch_engine(object_store, NAME, TRUST, tmp_path / "engine")
    assert (tmp_path / "engine").read_bytes() == first.engine
    assert pointers.pin(object_store, NAME).pinned == digests[0]
    assert pointers.unpin(object_store, NAME).generation == 5
    object_store.put(layout.blob("0" * 64), b"garbage")
    report = collect(object_store, keep=2, now=datetime.now(UTC) + timedelta(days=30), run_retention_seconds=86400.0)
    assert report.deleted == {"blobs": 1}
    assert verify(object_store, NAME, TRUST).digest == digests[0]
    object_store.put(layout.blob(first.verdict.engine.digest), second.engine)
    with pytest.raises(VerificationFailed) as caught:
        verify(object_store, NAME, TRUST)
    assert caught.value.reason == "EngineAltered"


def test_publishers_in_real_threads_lose_nothing(object_store: ObjectStore) -> None:
    runs = [write(object_store, finished(str(number))) for number in range(4)]

    def work(done: object) -> None:
        for _ in range(2):
            publish(object_store, done.run, done.verdict, SIGNER, current_inputs_digest=done.run.inputs_digest)  # type: ignore[attr-defined]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, runs))
    pointer = pointers.read(object_store, NAME)
    assert pointer is not None
    assert pointer.generation == 4
    assert sorted(entry.run for entry in pointers.entries(pointer)) == sorted(done.run.run for done in runs)
    verify(object_store, NAME, TRUST)
