"""The event recorder against the fake API server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from fake_api import FakeApi

from tuning_operator.kube.api import ARTIFACT_STORES, EVENTS, TUNING_JOBS, Forbidden, Object, Unavailable
from tuning_operator.kube.events import NOTE_BYTES, EventRecorder, Regarding, shortened

JOB = Regarding(TUNING_JOBS, "resnet", "uid-1", "team")
START = datetime(2026, 11, 30, 10, 0, 0, 123456, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def recorder(api: FakeApi) -> tuple[EventRecorder, Clock]:
    clock = Clock()
    return EventRecorder(api, instance="operator-0", now=clock), clock


def events(api: FakeApi) -> list[Object]:
    return api.all(EVENTS)


def test_an_event_says_what_happened_to_whom() -> None:
    async def main() -> None:
        api = FakeApi()
        events_of, _ = recorder(api)
        await events_of.emit(JOB, "Normal", "RunStarted", "target a: run 1", action="Reconcile")
        (event,) = events(api)
        name = event["metadata"]["name"]
        assert name.startswith("resnet.")
        del event["metadata"]
        assert event == {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "regarding": {
                "apiVersion": "trtfleet.dev/v1alpha1",
                "kind": "TuningJob",
                "namespace": "team",
                "name": "resnet",
                "uid": "uid-1",
            },
            "type": "Normal",
            "reason": "RunStarted",
            "note": "target a: run 1",
            "action": "Reconcile",
            "eventTime": "2026-11-30T10:00:00.123456Z",
            "reportingController": "trtfleet.dev/operator",
            "reportingInstance": "operator-0",
        }

    asyncio.run(main())


def test_repeats_within_ten_minutes_become_a_series() -> None:
    async def main() -> None:
        api = FakeApi()
        events_of, clock = recorder(api)
        for _ in range(4):
            await events_of.emit(JOB, "Warning", "StoreUnavailable", "store s3 is away", action="Reconcile")
            clock.now += timedelta(minutes=9)
        (event,) = events(api)
        assert event["series"] == {"count": 4, "lastObservedTime": "2026-11-30T10:27:00.123456Z"}
        assert event["eventTime"] == "2026-11-30T10:00:00.123456Z"

    asyncio.run(main())


def test_after_ten_minutes_of_silence_there_is_another_event() -> None:
    async def main() -> None:
        api = FakeApi()
        events_of, clock = recorder(api)
        await events_of.emit(JOB, "Normal", "Published", "engine published", action="Reconcile")
        clock.now += timedelta(minutes=10, seconds=1)
        await events_of.emit(JOB, "Normal", "Published", "engine published", action="Reconcile")
        assert len(events(api)) == 2
        assert all("series" not in each for each in events(api))

    asyncio.run(main())


@pytest.mark.parametrize(
    "other",
    [
        (Regarding(TUNING_JOBS, "resnet", "uid-2", "team"), "Normal", "Tuned", "done"),
        (JOB, "Normal", "Tuned", "done otherwise"),
        (JOB, "Normal", "Published", "done"),
        (JOB, "Warning", "Tuned", "done"),
    ],
)
def test_what_differs_is_another_event(other: tuple[Regarding, str, str, str]) -> None:
    async def main() -> None:
        api = FakeApi()
        events_of, _ = recorder(api)
        await events_of.emit(JOB, "Normal", "Tuned", "done", action="Reconcile")
        regarding, type_, reason, note = other
        await events_of.emit(regarding, type_, reason, note, action="Reconcile")  # type: ignore[arg-type]
        assert len(events(api)) == 2

    asyncio.run(main())


def test_an_event_that_the_server_has_dropped_is_written_anew() -> None:
    async def main() -> None:
        api = FakeApi()
        events_of, clock = recorder(api)
        await events_of.emit(JOB, "Normal", "Tuned", "done", action="Reconcile")
        first = events(api)[0]["metadata"]["name"]
        api.remove(EVENTS, first, "team")
        for _ in range(2):
            clock.now += timedelta(minutes=1)
            await events_of.emit(JOB, "Normal", "Tuned", "done", action="Reconcile")
        (event,) = events(api)
        assert event["metadata"]["name"] != first
        assert event["series"]["count"] == 2

    asyncio.run(main())


def test_events_of_cluster_objects_lie_in_the_default_namespace() -> None:
    async def main() -> None:
        api = FakeApi()
        events_of, _ = recorder(api)
        await events_of.emit(
            Regarding(ARTIFACT_STORES, "main", "uid"), "Warning", "StoreNotConditional", "it lies", action="Probe"
        )
        (event,) = events(api)
        assert event["metadata"]["namespace"] == "default"
        assert "namespace" not in event["regarding"]

    asyncio.run(main())


@pytest.mark.parametrize("character", ["a", "é", "×", "𝄞"])
@pytest.mark.parametrize("offset", range(4))
def test_a_long_note_is_cut_by_bytes_between_characters(character: str, offset: int) -> None:
    async def main() -> None:
        api = FakeApi()
        events_of, _ = recorder(api)
        await events_of.emit(JOB, "Warning", "InvalidInput", "x" * offset + character * 2000, action="Reconcile")
        note = events(api)[0]["note"]
        assert NOTE_BYTES - 4 < len(note.encode()) <= NOTE_BYTES
        assert set(note) <= {"x", character, "…"}
        assert note.endswith("…")

    asyncio.run(main())


def test_a_note_that_fits_is_left_as_it_is() -> None:
    assert shortened("é" * (NOTE_BYTES // 2)) == "é" * (NOTE_BYTES // 2)
    assert shortened("half a surrogate \ud800 of a poisoned record") == "half a surrogate ? of a poisoned record"


@pytest.mark.parametrize("name", ["a" * 253, "a" * 199 + "-" + "b" * 20, "x.y." + "z" * 249])
def test_the_longest_names_give_legal_event_names(name: str) -> None:
    async def main() -> None:
        api = FakeApi()
        events_of, _ = recorder(api)
        await events_of.emit(Regarding(TUNING_JOBS, name, "uid", "team"), "Normal", "Tuned", "done", action="Reconcile")
        assert len(events(api)) == 1

    asyncio.run(main())


def test_a_failure_is_logged_and_never_raised(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        api = FakeApi()
        events_of, _ = recorder(api)
        api.fail(Forbidden("create Event team/resnet.1: events is forbidden", code=403))
        await events_of.emit(JOB, "Normal", "Tuned", "done", action="Reconcile")
        assert events(api) == []
        await events_of.emit(JOB, "Normal", "Tuned", "done", action="Reconcile")
        api.fail(Unavailable("no answer"), "merge")
        await events_of.emit(JOB, "Normal", "Tuned", "done", action="Reconcile")
        await events_of.emit(JOB, "Normal", "Tuned", "done", action="Reconcile")
        assert events(api)[0]["series"]["count"] == 2

    asyncio.run(main())
    assert [each.levelname for each in caplog.records] == ["WARNING", "WARNING"]
    assert "event Tuned on TuningJob resnet not written: create Event team/resnet.1: events is forbidden" in caplog.text


def test_what_is_remembered_is_bounded() -> None:
    async def main() -> None:
        api = FakeApi()
        events_of, clock = recorder(api)
        for index in range(5000):
            await events_of.emit(JOB, "Normal", "Tuned", f"note {index}", action="Reconcile")
        assert len(events_of._lately) <= 4096
        clock.now += timedelta(hours=1)
        await events_of.emit(JOB, "Normal", "Tuned", "last", action="Reconcile")
        assert len(events_of._lately) == 1

    asyncio.run(main())
