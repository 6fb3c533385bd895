"""Keys, typed records, blobs and the honesty probe."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig.faulty import FaultyStore, answering

from tuner_job.api.base import InputError
from tuner_job.api.effective import run_id
from tuner_job.api.inputs import Owner
from tuner_job.api.messages import PlanRecord, Record, SchemaMismatch, SealRecord, StopRecord, VerdictRecord
from tuner_job.store import layout
from tuner_job.store.blobs import get_blob, get_blob_file, put_blob, put_blob_file
from tuner_job.store.objects import ObjectStore, StoreCorrupt, StoreNotConditional, StoreUnavailable, check_key
from tuner_job.store.probe import probe
from tuner_job.store.records import create_record, find_record, put_record, read_record, swap_record

KEY = layout.stop("0" * 20, 1)


class TestLayout:
    @given(st.text(), st.text())
    def test_different_texts_give_different_parts(self, one: str, other: str) -> None:
        assert (layout.part(one) == layout.part(other)) == (one == other)

    @given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=400))
    def test_any_text_gives_one_valid_part(self, text: str) -> None:
        part = layout.part(text)
        assert re.fullmatch(r"[A-Za-z0-9._~-]{1,160}", part)
        check_key(f"pointers/{part}.json")

    @given(st.lists(st.text(max_size=8), min_size=5, max_size=5), st.lists(st.text(max_size=8), min_size=5, max_size=5))
    def test_different_pointers_have_different_keys(self, one: list[str], other: list[str]) -> None:
        def key(p: list[str]) -> str:
            return layout.pointer(Owner(cluster=p[0], namespace=p[1], name=p[2]), p[3], p[4])

        assert (key(one) == key(other)) == (one == other)

    def test_common_names_stay_readable(self) -> None:
        owner = Owner(cluster="local", namespace="default", name="resnet-50")
        assert layout.pointer(owner, "h100", "11.2.1.2") == "pointers/local/default/resnet-50/h100/11.2.1.2.json"

    def test_a_run_is_named_by_what_it_tunes(self) -> None:
        owner = Owner(name="a")
        runs = {
            run_id(owner, "t", "1" * 64),
            run_id(owner, "t", "1" * 64, "again"),
            run_id(owner, "u", "1" * 64),
            run_id(owner, "t", "2" * 64),
            run_id(Owner(name="a", namespace="b"), "t", "1" * 64),
        }
        assert len(runs) == 5
        assert all(re.fullmatch("[0-9a-f]{20}", run) for run in runs)
        assert run_id(owner, "t", "1" * 64) == run_id(owner, "t", "1" * 64, "")


class TestRecords:
    def test_a_record_is_created_once_and_read_back(self, object_store: ObjectStore) -> None:
        record = StopRecord(attempt=1, reason="suspended")
        assert read_record(object_store, KEY, StopRecord) is None
        assert create_record(object_store, KEY, record)
        assert not create_record(object_store, KEY, StopRecord(attempt=1, reason="cancelled"))
        assert read_record(object_store, KEY, StopRecord) == record

    def test_a_found_record_carries_digest_and_tag(self, object_store: ObjectStore) -> None:
        put_record(object_store, KEY, StopRecord(attempt=1, reason="one"))
        found = find_record(object_store, KEY, StopRecord)
        assert found is not None
        assert found.digest == hashlib.sha256(found.record.to_json()).hexdigest()
        assert swap_record(object_store, KEY, StopRecord(attempt=1, reason="two"), found.tag)
        assert not swap_record(object_store, KEY, StopRecord(attempt=1, reason="three"), found.tag)

    @pytest.mark.parametrize(
        "data",
        [
            *(b"", b"null", b"[]", b"\xff\xfe", b"{", b'{"schemaVersion": 1}', b"[" * 100_000),
            b'{"schemaVersion": 1, "kind": "Stop", "attempt": 1, "reason": "x", "more": 1}',
            b'{"schemaVersion": 1, "kind": "Beat", "attempt": 1, "reason": "x"}',
        ],
    )
    def test_a_poisoned_record_is_named(self, data: bytes) -> None:
        store = ObjectStore.open("memory://poisoned")
        store.put(KEY, data)
        with pytest.raises(InputError, match=re.escape(KEY)) as caught:
            read_record(store, KEY, StopRecord)
        assert caught.value.reason == "PoisonedRecord"
        assert len(str(caught.value)) < 1000

    @pytest.mark.parametrize(("version", "age"), [(0, "older"), (2, "newer")])
    def test_a_record_of_another_schema_says_which(self, version: int, age: str) -> None:
        store = ObjectStore.open("memory://schema")
        store.put(KEY, b'{"schemaVersion": %d, "kind": "Stop", "unknown": 1}' % version)
        with pytest.raises(SchemaMismatch, match=f"{re.escape(KEY)}: schema version {version} is {age}"):
            read_record(store, KEY, StopRecord)

    def test_an_endless_record_is_refused_unread(self, object_store: ObjectStore) -> None:
        object_store.put(KEY, b" " * (Record.MAX_BYTES + 1))
        with pytest.raises(InputError, match=re.escape(KEY)) as caught:
            read_record(object_store, KEY, StopRecord)
        assert caught.value.reason == "PoisonedRecord"

    def test_a_record_of_endless_items_is_refused_unparsed(self) -> None:
        """16 MiB of `{}` would cost the reader minutes and gigabytes."""
        store = ObjectStore.open("memory://items")
        store.put(KEY, b'{"kind":"Plan","schemaVersion":1,"trials":[' + b",".join([b"{}"] * 60_000) + b"]}")
        with pytest.raises(InputError, match="240004 items; a PlanRecord has at most 50000") as caught:
            read_record(store, KEY, PlanRecord)
        assert caught.value.reason == "PoisonedRecord"

    @pytest.mark.parametrize(
        ("kind", "field"),
        [(PlanRecord, "trials"), (SealRecord, "folded"), (VerdictRecord, "builds")],
        ids=["plan", "seal", "verdict"],
    )
    def test_a_long_list_of_wrong_items_fails_at_its_first(self, kind: type[Record], field: str) -> None:
        store = ObjectStore.open(f"memory://wrong-{field}")
        store.put(KEY, b'{"schemaVersion":1,"%s":[' % field.encode() + b",".join([b"{}"] * 1000) + b"]}")
        with pytest.raises(InputError) as caught:
            read_record(store, KEY, kind)
        others = re.search(r"and (\d+) more", str(caught.value))
        assert others is not None
        assert int(others[1]) < 40

    def test_a_record_with_more_faults_than_can_be_told_tells_their_number(self) -> None:
        store = ObjectStore.open("memory://faults")
        store.put(KEY, b'{"schemaVersion":1,' + b",".join(b'"x%d":0' % each for each in range(5000)) + b"}")
        with pytest.raises(InputError, match=r"not a valid StopRecord: .whole.: 500[0-9] values are wrong"):
            read_record(store, KEY, StopRecord)

    def test_a_record_that_no_one_would_read_is_not_written(self) -> None:
        store = ObjectStore.open("memory://long")
        with pytest.raises(InputError, match="StopRecord has at most"):
            create_record(store, KEY, StopRecord(attempt=1, reason="x" * Record.MAX_BYTES))
        with pytest.raises(InputError, match="items; a StopRecord has at most"):
            create_record(store, KEY, StopRecord(attempt=1, reason="," * Record.MAX_ITEMS))
        assert not store.exists(KEY)


class TestBlobs:
    def test_a_blob_is_found_by_its_digest(self, object_store: ObjectStore, tmp_path: Path) -> None:
        digest = put_blob(object_store, b"bytes")
        assert digest == hashlib.sha256(b"bytes").hexdigest()
        assert put_blob(object_store, b"bytes") == digest
        assert get_blob(object_store, digest, 5) == b"bytes"
        target = tmp_path / "target"
        assert get_blob_file(object_store, digest, target).size == 5
        assert put_blob_file(object_store, target, digest).digest == digest

    def test_a_damaged_blob_is_refused(self, object_store: ObjectStore, tmp_path: Path) -> None:
        digest = put_blob(object_store, b"bytes")
        object_store.put(layout.blob(digest), b"bytez")
        with pytest.raises(StoreCorrupt, match=f"{digest} in .* not {digest}"):
            get_blob(object_store, digest, 5)
        with pytest.raises(StoreCorrupt):
            get_blob_file(object_store, digest, tmp_path / "target")
        assert not (tmp_path / "target").exists()

    def test_a_missing_blob_is_named(self, object_store: ObjectStore, tmp_path: Path) -> None:
        digest = "0" * 64
        with pytest.raises(StoreCorrupt, match=f"{digest} in .* is gone"):
            get_blob(object_store, digest, 5)
        with pytest.raises(StoreCorrupt, match="is gone"):
            get_blob_file(object_store, digest, tmp_path / "target")


class TestProbe:
    def test_an_honest_store_passes_and_is_left_clean(self, object_store: ObjectStore) -> None:
        probe(object_store)
        assert list(object_store.list("")) == []

    def test_a_store_that_ignores_conditions_is_found_out_and_left_clean(self, object_store: ObjectStore) -> None:
        liar = FaultyStore(object_store)
        liar.ignores_conditions = True
        with pytest.raises(StoreNotConditional, match="ignores conditions: a second create of the same object succeeded"):
            probe(liar)
        assert list(object_store.list("")) == []

    def test_a_store_that_ignores_only_versions_is_found_out(self, object_store: ObjectStore) -> None:
        class NoVersions(FaultyStore):
            def swap(self, key: str, data: bytes, tag: str) -> bool:
                self.put(key, data)
                return True

        with pytest.raises(StoreNotConditional, match="compare-and-swap of an outdated version succeeded"):
            probe(NoVersions(object_store))

    def test_a_store_that_checks_before_it_locks_is_found_out(self, object_store: ObjectStore) -> None:
        import threading

        together = threading.Barrier(4, timeout=30)

        class Racy(FaultyStore):
            def create(self, key: str, data: bytes) -> bool:
                if not key.endswith("-race"):
                    return super().create(key, data)
                free = not self.exists(key)
                together.wait()
                if free:
                    self.put(key, data)
                return free

        with pytest.raises(StoreNotConditional, match="4 of 4 simultaneous creates of one object succeeded"):
            probe(Racy(object_store))

    def test_a_server_that_answers_yes_to_everything_is_found_out(self) -> None:
        with answering() as answers, pytest.raises(StoreNotConditional, match="store s3://liar ignores conditions"):
            probe(ObjectStore.open("s3://liar", answers.options))

    def test_an_unreachable_store_is_unavailable(self, object_store: ObjectStore) -> None:
        store = FaultyStore(object_store)
        store.down = True
        with pytest.raises(StoreUnavailable, match="down on purpose"):
            probe(store)
