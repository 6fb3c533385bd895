"""Findings: which ones a run gets to see of its relatives, and that none of them can harm it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rig.faulty import FaultyStore
from store_publish_helpers import fresh_store

from tuner_job.api.base import InputError, canonical_json
from tuner_job.api.findings import MOST_FLIPS, MOST_FOUND, MOST_OF_ONE, Finding, FindingsRecord, Subject
from tuner_job.api.inputs import Owner, RuntimeIdentity
from tuner_job.api.measurement import Candidate, Device
from tuner_job.api.outcome import Outcome
from tuner_job.store import layout
from tuner_job.store.findings import MOST_READ, keep, nearby
from tuner_job.store.gc import collect
from tuner_job.store.objects import ObjectStore

MINE = "f" * 64
SUBJECT = Subject(
    owner=Owner(name="job"),
    runtime=RuntimeIdentity(family="TensorRT", version="11.2"),
    device=Device(type="GPU", product="NVIDIA L4"),
    models={"default": "1" * 64},
    structure="2" * 64,
    cases_digest="3" * 64,
)


def findings(number: int = 1, run: int = 1, **changes: Any) -> FindingsRecord:
    """Under identity `number`; changes are the subject's, but for `found`."""
    found = changes.pop("found", (Finding(candidate=Candidate(route="-a=1"), outcome=Outcome.FEASIBLE, log_ratio=-0.1, sd=0.01),))
    subject = SUBJECT.model_copy(update=changes)
    return FindingsRecord(identity=f"{number:064x}", run=f"{run:020x}", subject=subject, defaults={"-a": "0"}, found=found)


def seen(store: ObjectStore, **options: Any) -> list[FindingsRecord]:
    found, notes = nearby(store, SUBJECT.kin, but_not=MINE, **options)
    assert notes == []
    return found


@pytest.fixture
def store() -> ObjectStore:
    return fresh_store()


def test_findings_are_seen_by_the_same_graph_and_by_the_same_job(object_store: ObjectStore) -> None:
    same_graph = findings(1, owner=Owner(name="other job"), models={"default": "9" * 64})
    same_job = findings(2, structure="9" * 64)
    stranger = findings(3, owner=Owner(name="other job"), structure="9" * 64)
    other_family = findings(4, runtime=RuntimeIdentity(family="ONNXRuntime", version="1"))
    for record in (same_graph, same_job, stranger, other_family):
        keep(object_store, record)
    assert {record.identity for record in seen(object_store)} == {same_graph.identity, same_job.identity}


def test_ones_own_identity_is_no_relative(store: ObjectStore) -> None:
    keep(store, findings(1))
    assert nearby(store, SUBJECT.kin, but_not=findings(1).identity) == ([], [])


def test_of_an_identity_the_run_that_has_most_to_tell_is_read(store: ObjectStore) -> None:
    more = findings(1, run=1, found=findings().found * 5)
    for record in (more, findings(1, run=2)):
        keep(store, record)
    assert seen(store) == [more]


def test_the_first_findings_of_a_run_stand(store: ObjectStore) -> None:
    first = findings(1)
    keep(store, first)
    keep(store, findings(1, found=first.found * 9))
    assert seen(store) == [first]


def test_only_the_newest_are_read(store: ObjectStore) -> None:
    for number in range(MOST_READ + 5):
        keep(store, findings(number))
    assert len(seen(store)) == MOST_READ


HUGE = b" " * (FindingsRecord.MAX_BYTES + 1)
POISONED = {
    "rubbish": b"rubbish",
    "another schema": b'{"schemaVersion": 99, "kind": "Findings"}',
    "not a number": findings().to_json().replace(b"-0.1", b"NaN"),
    "infinite": findings().to_json().replace(b"-0.1", b"1e400"),
    "a route that is none": findings().to_json().replace(b"-a=1", b"-a"),
    "unknown outcome": findings().to_json().replace(b"feasible", b"winner"),
    "many items": b"[" + b"," * (FindingsRecord.MAX_ITEMS + 1) + b"]",
}


@pytest.mark.parametrize("data", POISONED.values(), ids=POISONED)
def test_a_poisoned_record_is_passed_over_with_a_note(store: ObjectStore, data: bytes) -> None:
    good = findings(1)
    keep(store, good)
    key = layout.findings(SUBJECT.kin[0], "e" * 64, "0" * 20)
    store.put(key, data)
    found, notes = nearby(store, SUBJECT.kin, but_not=MINE)
    assert found == [good]
    assert len(notes) == 1
    assert key in notes[0]


def test_a_record_that_takes_all_memory_is_passed_over_with_a_note(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = findings(1), findings(2)
    for record in (good, bad):
        keep(store, record)
    read = FindingsRecord.parse.__func__  # type: ignore[attr-defined]

    def parse(cls: type[FindingsRecord], data: bytes, key: str) -> FindingsRecord:
        if bad.identity in key:
            raise MemoryError
        return read(cls, data, key)

    monkeypatch.setattr(FindingsRecord, "parse", classmethod(parse))
    found, notes = nearby(store, SUBJECT.kin, but_not=MINE)
    assert found == [good]
    assert bad.identity in notes[0]


def test_a_huge_record_and_names_that_are_none_are_not_read_at_all(store: ObjectStore) -> None:
    store.put(layout.findings(SUBJECT.kin[0], "e" * 64, "0" * 20), HUGE)
    store.put(f"{layout.kin(SUBJECT.kin[0])}/notes.txt", b"hello")
    store.put(f"{layout.kin(SUBJECT.kin[0])}/deeper/{'e' * 64}-{'0' * 20}.json", b"{}")
    found, notes = nearby(store, SUBJECT.kin, but_not=MINE)
    assert found == []
    assert all("deeper" in note for note in notes)


def test_a_record_under_a_wrong_key_is_passed_over(store: ObjectStore) -> None:
    """It may not pass for another identity, nor for kin that it is not."""
    stranger = findings(3, owner=Owner(name="other job"), structure="9" * 64)
    store.put(layout.findings(SUBJECT.kin[0], "e" * 64, "0" * 20), findings(1).to_json())
    store.put(layout.findings(SUBJECT.kin[0], stranger.identity, stranger.run), stranger.to_json())
    found, notes = nearby(store, SUBJECT.kin, but_not=MINE)
    assert found == []
    assert len(notes) == 2


def test_reading_ends_at_its_deadline_with_what_there_is(store: ObjectStore) -> None:
    for number in range(5):
        keep(store, findings(number))
    ticks = iter(range(100))
    found, notes = nearby(store, SUBJECT.kin, but_not=MINE, deadline_seconds=3, clock=lambda: float(next(ticks)))
    assert len(found) == 2
    assert "3 s are the most" in notes[0]


def test_a_store_that_is_away_is_noted_and_no_failure(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    faulty.down = True
    found, notes = nearby(faulty, SUBJECT.kin, but_not=MINE)
    assert found == []
    assert "down on purpose" in notes[0]


def test_a_record_is_bounded_in_flips_and_trials() -> None:
    def read(candidates: list[Candidate]) -> FindingsRecord:
        found = [{"candidate": one.model_dump(by_alias=True), "outcome": "refused"} for one in candidates]
        plain = {**findings().model_dump(mode="json", by_alias=True, exclude_none=True), "found": found}
        return FindingsRecord.parse(canonical_json(plain), "key")

    assert read([Candidate(route="-a=1")] * MOST_FOUND).found
    for wrong in (
        [Candidate(route="-a=1")] * (MOST_FOUND + 1),
        [Candidate(route=" ".join(f"-k{k}=1" for k in range(MOST_OF_ONE + 1)))],
        [Candidate(route=f"-k{k}=1") for k in range(MOST_FLIPS + 1)],
        [Candidate(settings={f"s{k}-{j}": "1" for j in range(100)}) for k in range(MOST_FLIPS // 100 + 1)],
    ):
        with pytest.raises(InputError, match="key"):
            read(wrong)


def test_the_largest_findings_can_be_written_and_read() -> None:
    one = Candidate(route=" ".join(f"-mha_fusion:v2:knob_{k}=off" for k in range(40)), settings={"optimizationLevel": "5"})
    found = (Finding(candidate=one, outcome=Outcome.FEASIBLE, log_ratio=-0.123456, sd=0.01, fingerprint="f" * 64),) * MOST_FOUND
    record = findings(found=found)
    assert FindingsRecord.parse(record.to_json(), "key") == record


def test_findings_are_collected_as_the_ledger_is(store: ObjectStore) -> None:
    keep(store, findings(1))
    later = datetime.now(UTC) + timedelta(days=50)
    assert collect(store, keep=1, now=later).deleted.total() == 0
    assert collect(store, keep=1, now=later, ledger_retention_seconds=86400.0 * 40).deleted["ledger"] == 2
    assert seen(store) == []
