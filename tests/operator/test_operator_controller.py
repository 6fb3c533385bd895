"""The loop over the fake API server: real gather, decide and act; nothing of the operator is replaced."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from fake_api import FakeApi, Request
from virtual_time import run as run_virtually

from tuner_job.api.messages import BeatRecord
from tuner_job.api.tuningjob_status import Phase
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import put_record, timestamp
from tuning_operator.catalog import Catalog
from tuning_operator.cluster import ClusterStatus
from tuning_operator.config import OperatorConfig
from tuning_operator.controller import LOOK_SECONDS, STUCK_SECONDS, Controller
from tuning_operator.kube.api import (
    ARTIFACT_STORES,
    EVENTS,
    JOBS,
    TUNER_RUNTIMES,
    TUNING_JOBS,
    Conflict,
    Forbidden,
    NotFound,
    Object,
    Throttled,
    Unavailable,
)
from tuning_operator.kube.events import EventRecorder
from tuning_operator.metrics import PREFIX, Metrics
from tuning_operator.queue import WorkQueue
from tuning_operator.reconcile.act import Actor
from tuning_operator.reconcile.gather import Gatherer
from tuning_operator.reconcile.memory import Memory
from tuning_operator.records.mirror import Mirror
from tuning_operator.records.publisher import Publisher
from tuning_operator.records.stores import Stores

PATIENCE_SECONDS = 30.0


@dataclass
class Parts:
    """A controller and what is around it."""

    api: FakeApi
    controller: Controller
    queue: WorkQueue
    catalog: Catalog
    metrics: Metrics
    store: ObjectStore

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(PREFIX + name, labels) or 0.0

    def status(self, name: str = "a") -> Object:
        found = self.api.peek(TUNING_JOBS, name, "team")
        assert found is not None
        status: Object = found.get("status", {})
        return status

    def has_run(self) -> bool:
        return any("activeRun" in target for target in self.status().get("targets", ()))

    def written(self, name: str = "a") -> int:
        """Statuses written for a TuningJob."""
        return sum(each.verb == "apply_status" and each.name == name for each in self.api.requests)

    async def until(self, what: Callable[[], bool]) -> None:
        """Real time: threads work meanwhile."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not what():  # noqa: ASYNC110 - what is waited for are the objects of an API server
                await asyncio.sleep(0.01)


def parts(tmp_path: Path, **config: Any) -> Parts:
    settings = OperatorConfig(cluster="lab", operator_namespace="trtfleet", signing_key=tmp_path / "key.pem", **config)
    api, queue, metrics = FakeApi(), WorkQueue(), Metrics()
    store = ObjectStore.open(f"memory://{secrets.token_hex(6)}")
    catalog, memory = Catalog(api), Memory()
    stores = Stores(settings, opener=lambda _url, _options: store)
    controller = Controller(
        settings,
        api,
        queue,
        catalog,
        Gatherer(settings, api, catalog, stores, Mirror(), memory),
        Actor(settings, api, catalog, stores, Publisher(settings.signing_key), memory),
        EventRecorder(api, instance="operator-0"),
        metrics,
        ClusterStatus(api, catalog, stores),
    )
    return Parts(api, controller, queue, catalog, metrics, store)


@asynccontextmanager
async def running(these: Parts) -> AsyncIterator[None]:
    working = asyncio.create_task(these.controller.run())
    try:
        yield
    finally:
        await these.controller.stop()
        await working


def tuning_job(name: str = "a", **spec: Any) -> Object:
    target = {"name": "cpu", "runtimeRef": {"name": "ort"}, "device": {"type": "CPU"}}
    whole = {"model": {"uri": "s3://models/demo.onnx"}, "storeRef": {"name": "main"}, "targets": [target], **spec}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": whole}


def runtime() -> Object:
    image = f"registry.example/worker@sha256:{'ab' * 32}"
    return {"metadata": {"name": "ort"}, "spec": {"family": "ONNXRuntime", "version": "1.23.2", "image": image}}


def store() -> Object:
    allowed = [{"name": "team", "prefix": "team"}]
    return {"metadata": {"name": "main"}, "spec": {"url": "s3://tuning", "allowedNamespaces": allowed}}


def whole_cluster(api: FakeApi) -> None:
    api.seed(TUNER_RUNTIMES, runtime())
    api.seed(ARTIFACT_STORES, store())
    api.seed(TUNING_JOBS, tuning_job(), "team")


def condition(status: Object, kind: str) -> Object:
    found: Object = next(each for each in status["conditions"] if each["type"] == kind)
    return found


# What follows needs no store, since a reference is missing: so time is virtual.


def test_a_new_job_gets_a_status_and_an_event(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path)
        these.api.seed(TUNING_JOBS, tuning_job(), "team")
        async with running(these):
            await asyncio.sleep(5)
        assert condition(these.status(), "Stalled")["reason"] == "ReferenceNotFound"
        (event,) = these.api.all(EVENTS, "team")
        assert (event["type"], event["reason"], event["regarding"]["name"]) == ("Warning", "ReferenceNotFound", "a")
        assert these.value("jobs", phase="Stalled") == 1
        assert these.value("reconcile_total", result="ok") == these.value("reconcile_duration_seconds_count", result="ok") == 1

    run_virtually(main())


def test_what_does_not_change_is_written_once_whatever_the_number_of_resyncs(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path, resync_seconds=10)
        these.api.seed(TUNING_JOBS, tuning_job(), "team")
        async with running(these):
            await asyncio.sleep(5)
            before = len(these.api.writes)
            await asyncio.sleep(600)
            assert len(these.api.writes) == before
        assert these.value("reconcile_total", result="ok") > 10
        assert these.written() == 1

    run_virtually(main())


def test_the_echo_of_an_own_write_is_not_looked_at_but_an_edit_is(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path, resync_seconds=10_000)

        def watch(_event: str, kind: object, body: Object) -> None:
            if kind == TUNING_JOBS:
                these.controller.job_event("team", body["metadata"]["name"], int(body["metadata"]["resourceVersion"]))

        these.api.seed(TUNING_JOBS, tuning_job(), "team")
        these.api.listeners.append(watch)
        async with running(these):
            await asyncio.sleep(60)
            assert these.value("reconcile_total", result="ok") == 1
            these.api.edit(TUNING_JOBS, "a", "team", lambda body: body["spec"].update(suspend=True))
            await asyncio.sleep(60)
            assert these.value("reconcile_total", result="ok") == 2
            assert these.status()["observedGeneration"] == 2

    run_virtually(main())


def test_a_change_of_a_cluster_object_reaches_those_that_name_it(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path, resync_seconds=10_000)
        these.api.seed(ARTIFACT_STORES, store())
        these.api.seed(TUNING_JOBS, tuning_job(), "team")
        these.api.seed(
            TUNING_JOBS, tuning_job("b", targets=[{"name": "x", "channelRef": {"name": "c"}, "device": {"type": "CPU"}}]), "team"
        )
        async with running(these):
            await asyncio.sleep(5)
            looks = these.value("reconcile_total", result="ok")
            these.controller.enqueue_users("TunerRuntime", "another")  # nobody names it, but a channel may lead to it
            await asyncio.sleep(5)
            assert these.value("reconcile_total", result="ok") == looks + 1
            these.controller.enqueue_users("TunerRuntime", "ort")
            await asyncio.sleep(5)
            assert these.value("reconcile_total", result="ok") == looks + 3

    run_virtually(main())


def test_a_job_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path, resync_seconds=10)
        these.api.seed(TUNING_JOBS, tuning_job(), "team")
        async with running(these):
            await asyncio.sleep(5)
            assert these.value("jobs", phase="Stalled") == 1
            these.api.remove(TUNING_JOBS, "a", "team")
            await asyncio.sleep(30)  # no event told: the resync finds out
            assert these.value("jobs", phase="Stalled") == 0
            looks = these.value("reconcile_total", result="ok")
            await asyncio.sleep(300)
            assert these.value("reconcile_total", result="ok") == looks

    run_virtually(main())


def test_a_job_that_comes_back_while_it_is_found_gone_is_looked_at(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path, resync_seconds=10_000)

        class Late(FakeApi):
            async def get(self, resource: Any, name: str, namespace: str | None = None) -> Object:
                try:
                    return await FakeApi.get(self, resource, name, namespace)
                except NotFound:
                    if these.api.peek(TUNING_JOBS, "a", "team") is None:
                        body = these.api.seed(TUNING_JOBS, tuning_job(), "team")
                        these.controller.job_event("team", "a", int(body["metadata"]["resourceVersion"]))
                    raise

        async with running(these):
            await asyncio.sleep(1)
            these.api.__class__ = Late
            these.controller.job_event("team", "a", 0)
            await asyncio.sleep(60)
            assert these.status() != {}

    run_virtually(main())


def test_an_unreadable_job_is_stalled_with_the_field_at_fault(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path)
        these.api.seed(TUNING_JOBS, tuning_job(), "team")
        these.api.edit(TUNING_JOBS, "a", "team", lambda body: body["spec"].update(oldField=1))
        async with running(these):
            await asyncio.sleep(5)
        stalled = condition(these.status(), "Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
        assert "oldField" in stalled["message"]
        assert these.written() == 1

    run_virtually(main())


@pytest.mark.parametrize("error", [Unavailable("away"), Forbidden("quota"), Conflict("changed")])
def test_a_failed_look_is_logged_in_one_line_counted_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Unavailable
) -> None:
    async def main() -> None:
        these = parts(tmp_path)
        these.api.seed(TUNING_JOBS, tuning_job(), "team")
        these.api.fail(error, "apply_status", times=2)
        async with running(these):
            await asyncio.sleep(60)
        assert condition(these.status(), "Stalled")["reason"] == "ReferenceNotFound"
        assert these.value("reconcile_total", result="error") == 2
        assert these.value("reconcile_errors_total", reason=error.reason) == 2
        assert these.value("workqueue_retries_total") == 2
        assert len(these.api.all(EVENTS, "team")) == 1

    with caplog.at_level(logging.WARNING):
        run_virtually(main())
    assert [record.getMessage() for record in caplog.records] == [f"{error.reason}: {error}"] * 2


def test_a_throttled_look_waits_as_long_as_the_server_asks(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path)
        these.api.seed(TUNING_JOBS, tuning_job(), "team")
        these.api.fail(Throttled("slow down", retry_after=100), "apply_status")
        async with running(these):
            await asyncio.sleep(95)
            assert these.status() == {}
            await asyncio.sleep(10)
            assert these.status() != {}

    run_virtually(main())


def test_a_job_that_goes_while_it_is_looked_at_is_no_error(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path)
        these.api.seed(TUNING_JOBS, tuning_job(), "team")
        these.api.fail(NotFound("gone"), "apply_status")
        async with running(these):
            await asyncio.sleep(60)
        assert these.value("reconcile_total", result="gone") == 1
        assert these.value("reconcile_total", result="error") == 0

    run_virtually(main())


def test_a_defect_costs_one_job_its_look_and_leaves_its_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        these = parts(tmp_path)
        broken = 3

        def before(request: Request) -> None:
            nonlocal broken
            if request.verb == "get" and request.name == "a" and broken:
                broken -= 1
                raise ZeroDivisionError("a defect")

        these.api.before = before
        these.api.seed(TUNING_JOBS, tuning_job("a"), "team")
        these.api.seed(TUNING_JOBS, tuning_job("b"), "team")
        async with running(these):
            await asyncio.sleep(0.1)
            assert these.status("b") != {}
            assert these.status("a") == {}
            await asyncio.sleep(60)
            assert these.status("a") != {}
            assert these.controller.reconcilers_problem() == ""
        assert these.value("reconcile_total", result="unexpected") == 3
        assert these.value("reconcile_errors_total", reason="Unexpected") == 3

    with caplog.at_level(logging.WARNING):
        run_virtually(main())
    defects = [record for record in caplog.records if record.exc_info]
    assert len(defects) == len(caplog.records) == 3


class Hanging(FakeApi):
    """An API server that takes a request and says nothing, against the promise of KubeApi."""

    hangs: str = ""
    """Name of the object."""
    stubborn = 0.0
    """For so long not even a cancellation ends the call."""

    async def get(self, resource: Any, name: str, namespace: str | None = None) -> Object:
        while name == self.hangs:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
                await asyncio.sleep(self.stubborn)
                raise
        return await super().get(resource, name, namespace)


def test_a_look_that_hangs_is_cancelled_counted_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        these = parts(tmp_path)
        api = these.api
        assert isinstance(api, Hanging)
        api.hangs = "a"
        for name in ("a", "b"):
            api.seed(TUNING_JOBS, tuning_job(name), "team")
        async with running(these):
            await asyncio.sleep(LOOK_SECONDS / 2)
            assert these.status("b") != {}
            await asyncio.sleep(LOOK_SECONDS)
            assert these.value("reconcile_total", result="timeout") == 1
            api.hangs = ""
            await asyncio.sleep(2 * LOOK_SECONDS)
            assert these.status("a") != {}

    monkeypatch.setattr("test_operator_controller.FakeApi", Hanging)
    run_virtually(main())


def test_a_look_that_outlives_its_cancellation_fails_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        these = parts(tmp_path)
        api = these.api
        assert isinstance(api, Hanging)
        api.hangs, api.stubborn = "a", 10 * STUCK_SECONDS
        api.seed(TUNING_JOBS, tuning_job(), "team")
        async with running(these):
            await asyncio.sleep(STUCK_SECONDS - 10)
            assert these.controller.reconcilers_problem() == ""
            await asyncio.sleep(20)
            assert "has taken" in these.controller.reconcilers_problem()

    monkeypatch.setattr("test_operator_controller.FakeApi", Hanging)
    run_virtually(main())


def test_a_resync_that_fails_is_repeated_and_the_probe_tells_when_it_goes_on_failing(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path, resync_seconds=100)
        these.api.down = True
        these.api.seed(TUNING_JOBS, tuning_job(), "team")
        async with running(these):
            await asyncio.sleep(100)
            assert these.controller.resync_problem() == ""
            await asyncio.sleep(400)
            assert "no full listing" in these.controller.resync_problem()
            these.api.down = False
            await asyncio.sleep(30)
            assert these.controller.resync_problem() == ""
            assert these.status() != {}

    run_virtually(main())


def test_a_silent_watch_fails_the_probe_once_a_resync_has_seen_what_it_did_not_tell(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path, resync_seconds=100)
        these.api.seed(TUNING_JOBS, tuning_job(), "team")
        async with running(these):
            await asyncio.sleep(50)
            edited = these.api.edit(TUNING_JOBS, "a", "team", lambda body: body["spec"].update(suspend=True))
            await asyncio.sleep(100)
            assert these.controller.watch_problem() == ""
            await asyncio.sleep(150)
            assert "1 TuningJobs" in these.controller.watch_problem()
            assert these.value("watch_untold_changes") == 1
            these.controller.job_event("team", "a", int(edited["metadata"]["resourceVersion"]))
            assert these.controller.watch_problem() == ""

    run_virtually(main())


def test_a_stop_lets_a_look_come_to_its_end_and_begins_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path, reconcilers=1)
        begun = asyncio.Event()
        go_on = asyncio.Event()

        class Slow(FakeApi):
            async def apply_status(self, *arguments: Any) -> Object:
                begun.set()
                await go_on.wait()
                return await FakeApi.apply_status(self, *arguments)

        these.api.__class__ = Slow
        for name in ("a", "b"):
            these.api.seed(TUNING_JOBS, tuning_job(name), "team")
        working = asyncio.create_task(these.controller.run())
        await begun.wait()
        stopping = asyncio.create_task(these.controller.stop())
        await asyncio.sleep(5)
        go_on.set()
        await asyncio.gather(stopping, working)
        assert sorted(bool(these.status(name)) for name in ("a", "b")) == [False, True]

    run_virtually(main())


def test_a_stop_does_not_wait_for_a_look_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        these = parts(tmp_path, stop_seconds=7)
        api = these.api
        assert isinstance(api, Hanging)
        api.hangs = "a"
        api.seed(TUNING_JOBS, tuning_job(), "team")
        working = asyncio.create_task(these.controller.run())
        await asyncio.sleep(1)
        await these.controller.stop()
        await working
        assert asyncio.get_running_loop().time() == pytest.approx(8)

    monkeypatch.setattr("test_operator_controller.FakeApi", Hanging)
    run_virtually(main())


def test_a_part_that_ends_by_itself_ends_the_controller(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path)
        these.api.before = None

        async def broken(*_arguments: Any, **_named: Any) -> list[Object]:
            raise ZeroDivisionError("a defect of the resync")

        these.api.list = broken  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="resync ended"):
            await these.controller.run()

    run_virtually(main())


# What follows reaches a store, and so threads: time is real.


def test_a_job_whose_references_are_there_gets_its_discover_job(tmp_path: Path) -> None:
    async def main() -> None:
        these = parts(tmp_path)
        whole_cluster(these.api)
        async with running(these):
            await these.until(lambda: these.api.all(JOBS, "team") != [])
            await these.until(these.has_run)
        (job,) = these.api.all(JOBS, "team")
        assert job["metadata"]["labels"]["trtfleet.dev/stage"] == "discover"
        assert sum(these.value("jobs", phase=phase) for phase in get_args(Phase)) == 1
        reasons = {each["reason"] for each in these.api.all(EVENTS, "team")}
        assert "RunStarted" in reasons

    asyncio.run(main())


@pytest.mark.parametrize(("progress_seconds", "writes"), [(10_000, 0), (0, 1)])
def test_progress_alone_waits_for_its_turn(tmp_path: Path, progress_seconds: float, writes: int) -> None:
    async def main() -> None:
        these = parts(tmp_path, progress_seconds=progress_seconds, poll_seconds=1000)
        whole_cluster(these.api)
        async with running(these):
            await these.until(these.has_run)
            await these.until(lambda: these.queue.running == these.queue.depth == 0)
            run = these.status()["targets"][0]["activeRun"]
            before, looks = these.written(), these.value("reconcile_total", result="ok")
            beat = BeatRecord(
                worker="1-0",
                worker_id="w",
                sequence=1,
                stage="explore",
                device_seconds=7.0,
                at=timestamp(),
                outcomes={"feasible": 1},
            )
            put_record(these.store, layout.beat(run, "1-0"), beat)
            these.controller.enqueue("team", "a")
            await these.until(lambda: these.value("reconcile_total", result="ok") > looks)
            assert these.written() - before == writes
            assert these.value("trials_total", outcome="feasible") == writes
            assert these.value("gpu_seconds_total", gpu_class="CPU") == 7 * writes

    asyncio.run(main())
