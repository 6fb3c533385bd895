"""The watch against a stub of the API server that can break in every way a stream breaks."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_api import FakeApi
from stub_server import kubeconfig, serving, status

import tuning_operator
from tuning_operator.catalog import KINDS, Catalog
from tuning_operator.config import OperatorConfig
from tuning_operator.kube.api import JOBS, TUNER_CHANNELS, TUNING_JOBS, Object, Resource, Unavailable
from tuning_operator.watch import JOB_SELECTOR, Watch, WatchEnded

WATCHED = (TUNING_JOBS, JOBS, *KINDS)
SECONDS = 30.0
"""For what must happen; nothing here waits for it to pass."""

CUT = object()


class WatchServer:
    """Lists, and streams what a test sends. Objects of all namespaces are in one list."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = defaultdict(dict)
        self.version = 100
        self.requests: list[tuple[str, str]] = []
        self.watches: dict[str, list[dict[str, str]]] = defaultdict(list)
        """Plural → query of each watch that was begun."""
        self.refusal: Callable[[web.Request], web.Response | None] = lambda _: None
        self._streams: dict[str, list[asyncio.Queue[Any]]] = defaultdict(list)
        self._changed = asyncio.Event()

    # what a test does

    def put(self, resource: Resource, name: str, **metadata: Any) -> Object:
        """Without telling any stream."""
        self.version += 1
        place = {"namespace": "team"} if resource.namespaced else {}
        body: Object = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(self.version), **place, **metadata},
        }
        self.objects[resource.plural][name] = body
        return body

    def send(self, resource: Resource, event: Any) -> None:
        """To every open stream of the resource."""
        for stream in self._streams[resource.plural]:
            stream.put_nowait(event)

    def tell(self, resource: Resource, type_: str, body: Object) -> None:
        self.send(resource, {"type": type_, "object": body})

    async def watched(self, resource: Resource, times: int = 1) -> None:
        """Until so many streams of it have been begun."""
        async with asyncio.timeout(SECONDS):
            while len(self.watches[resource.plural]) < times:
                self._changed.clear()
                await self._changed.wait()

    # what it answers

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        if (refused := self.refusal(request)) is not None:
            return refused
        path = request.path.strip("/").split("/")
        if request.path == "/api":
            return web.json_response({"versions": ["v1"]})
        if request.path == "/api/v1":
            return web.json_response({"resources": [_served("namespaces", "Namespace", False), _served("events", "Event", True)]})
        if request.path == "/apis":
            return web.json_response({"groups": [_group("trtfleet.dev", "v1alpha1"), _group("batch", "v1")]})
        if len(path) == 3:
            found = [each for each in WATCHED if each.api_version == "/".join(path[1:])]
            return web.json_response({"resources": [_served(each.plural, each.kind, each.namespaced) for each in found]})
        plural = path[-1]
        if "watch" not in request.query:
            items = list(self.objects[plural].values())
            return web.json_response({"kind": "List", "metadata": {"resourceVersion": str(self.version)}, "items": items})
        return await self._stream(request, plural)

    async def _stream(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._streams[plural].append(queue)
        self.watches[plural].append(dict(request.query))
        self._changed.set()
        try:
            while (event := await queue.get()) is not CUT:
                await response.write(json.dumps(event).encode() + b"\n")
            assert request.transport is not None
            request.transport.abort()
        finally:
            self._streams[plural].remove(queue)
        return response


def _served(plural: str, kind: str, namespaced: bool) -> Object:
    verbs = ["get", "list", "watch", "create", "patch", "delete"]
    return {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": namespaced, "verbs": verbs}


def _group(name: str, version: str) -> Object:
    which = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [which], "preferredVersion": which}


class Ears:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []
        self.threads: set[int] = set()
        self._news = asyncio.Event()

    def job_event(self, namespace: str, name: str, version: int) -> None:
        self._hear("job", namespace, name, str(version))

    def enqueue(self, namespace: str, name: str) -> None:
        self._hear("enqueue", namespace, name)

    def enqueue_users(self, kind: str, name: str) -> None:
        self._hear("users", kind, name)

    def _hear(self, *what: str) -> None:
        self.told.append(what)
        self.threads.add(threading.get_ident())
        self._news.set()

    async def hear(self, *what: str) -> None:
        """Until this has been told."""
        async with asyncio.timeout(SECONDS):
            while what not in self.told:
                self._news.clear()
                await self._news.wait()


class Stage:
    """A running watch and both of its ends."""

    def __init__(self, server: WatchServer, ears: Ears, api: FakeApi, watch: Watch) -> None:
        self.server, self.ears, self.api, self.watch = server, ears, api, watch
        self.stop = asyncio.Event()
        self.running: asyncio.Task[None]


@asynccontextmanager
async def staged(
    folder: Path, *, namespaces: tuple[str, ...] = (), server: WatchServer | None = None, **options: Any
) -> AsyncIterator[Stage]:
    server, ears, api = server or WatchServer(), Ears(), FakeApi()
    async with serving(server) as url:
        config = OperatorConfig(cluster="c", operator_namespace="op", namespaces=namespaces)
        stage = Stage(server, ears, api, Watch(config, kubeconfig(folder, url), ears, Catalog(api), **options))
        stage.running = asyncio.ensure_future(stage.watch.run(stage.stop))
        try:
            yield stage
        finally:
            stage.stop.set()
            await asyncio.gather(stage.running, return_exceptions=True)


def on_stage(folder: Path, play: Callable[[Stage], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with staged(folder, **options) as stage:
            await play(stage)

    asyncio.run(main())


def test_what_is_there_and_what_changes_is_told_in_the_main_loop(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        server, ears = stage.server, stage.ears
        await ears.hear("job", "team", "old", "101")
        await server.watched(TUNING_JOBS)
        new = server.put(TUNING_JOBS, "new")
        server.tell(TUNING_JOBS, "ADDED", new)
        await ears.hear("job", "team", "new", "102")
        server.tell(TUNING_JOBS, "MODIFIED", server.put(TUNING_JOBS, "new"))
        await ears.hear("job", "team", "new", "103")
        server.tell(TUNING_JOBS, "DELETED", server.put(TUNING_JOBS, "new"))
        await ears.hear("job", "team", "new", "104")
        assert ears.threads == {threading.get_ident()}

    server = WatchServer()
    server.put(TUNING_JOBS, "old")
    on_stage(tmp_path, play, server=server)


def test_a_job_is_told_to_the_tuningjob_that_controls_it(tmp_path: Path) -> None:
    ours = {"apiVersion": "trtfleet.dev/v1alpha1", "kind": "TuningJob", "name": "resnet", "uid": "u", "controller": True}

    async def play(stage: Stage) -> None:
        server = stage.server
        await server.watched(JOBS)
        assert server.watches["jobs"][0]["labelSelector"] == JOB_SELECTOR
        server.tell(JOBS, "ADDED", server.put(JOBS, "stray"))
        server.tell(
            JOBS, "ADDED", server.put(JOBS, "other", ownerReferences=[{**ours, "kind": "CronJob", "apiVersion": "batch/v1"}])
        )
        server.tell(JOBS, "ADDED", server.put(JOBS, "guest", ownerReferences=[{**ours, "name": "guest", "controller": False}]))
        server.tell(JOBS, "MODIFIED", server.put(JOBS, "tj-1", ownerReferences=[ours]))
        await stage.ears.hear("enqueue", "team", "resnet")
        assert stage.ears.told == [("enqueue", "team", "resnet")]

    on_stage(tmp_path, play)


def test_a_cluster_object_is_read_again_before_its_users_are_told(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        server, api = stage.server, stage.api
        await server.watched(TUNER_CHANNELS)
        api.seed(TUNER_CHANNELS, {"metadata": {"name": "stable"}, "spec": {"runtimeRef": {"name": "r"}}})
        api.fail(Unavailable("no answer"), "get", TUNER_CHANNELS)  # it is tried again
        server.tell(TUNER_CHANNELS, "ADDED", server.put(TUNER_CHANNELS, "stable"))
        await stage.ears.hear("users", "TunerChannel", "stable")
        assert len(api.requests) == 2
        assert api.writes == []

    on_stage(tmp_path, play)


def test_it_only_ever_reads(tmp_path: Path) -> None:
    """No finalizer, no annotation, no event, no peering object: kopf is a watcher."""

    async def play(stage: Stage) -> None:
        server = stage.server
        await server.watched(TUNING_JOBS)
        big = {"annotations": {"note": "x" * 300_000}}
        server.tell(TUNING_JOBS, "ADDED", server.put(TUNING_JOBS, "big", **big))
        server.tell(TUNING_JOBS, "MODIFIED", server.put(TUNING_JOBS, "big", deletionTimestamp="2026-11-30T10:00:00Z", **big))
        await stage.ears.hear("job", "team", "big", "102")
        stage.stop.set()
        await stage.running
        assert {method for method, _ in server.requests} == {"GET"}

    on_stage(tmp_path, play)


@pytest.mark.parametrize("how", ["told", "cancelled"])
def test_told_to_stop_it_ends_and_leaves_no_thread(tmp_path: Path, how: str) -> None:
    others = set(threading.enumerate())

    async def play(stage: Stage) -> None:
        await stage.server.watched(TUNING_JOBS)
        (thread,) = (each for each in set(threading.enumerate()) - others if each.name == "kopf")
        if how == "told":
            stage.stop.set()
        else:
            stage.running.cancel()
        await asyncio.gather(stage.running, return_exceptions=True)
        thread.join(SECONDS)
        assert not thread.is_alive()

    on_stage(tmp_path, play)


def test_told_to_stop_before_it_began_it_ends(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.stop.set()
        await stage.running

    on_stage(tmp_path, play)


def test_tasks_of_the_main_loop_survive_its_end(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        await stage.server.watched(TUNING_JOBS)
        younger = asyncio.ensure_future(asyncio.Event().wait())
        stage.stop.set()
        await stage.running
        await asyncio.sleep(0)
        assert not younger.done()
        younger.cancel()

    on_stage(tmp_path, play)


def test_an_error_in_the_stream_ends_it(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        await stage.server.watched(TUNING_JOBS)
        stage.server.tell(TUNING_JOBS, "ERROR", {"kind": "Status", "code": 500, "message": "etcd is on fire"})
        with pytest.raises(WatchEnded, match=r"the watch ended: .*etcd is on fire"):
            async with asyncio.timeout(SECONDS):
                await stage.running

    on_stage(tmp_path, play)


@pytest.mark.slow
def test_a_right_that_is_missing_ends_it(tmp_path: Path) -> None:
    server = WatchServer()
    server.refusal = lambda request: status(403, "Forbidden", "not for you") if request.path.endswith("/jobs") else None

    async def play(stage: Stage) -> None:
        with pytest.raises(WatchEnded, match="not for you"):
            async with asyncio.timeout(SECONDS):
                await stage.running

    on_stage(tmp_path, play, server=server)


@pytest.mark.slow
def test_credentials_that_are_refused_for_good_end_it(tmp_path: Path) -> None:
    server = WatchServer()
    server.refusal = lambda _: status(401, "Unauthorized", "who are you")

    async def play(stage: Stage) -> None:
        with pytest.raises(WatchEnded, match="the watch ended: the API server refused the credentials"):
            async with asyncio.timeout(SECONDS):
                await stage.running
        assert len(server.requests) < 50

    on_stage(tmp_path, play, server=server)


def test_credentials_that_cannot_be_read_end_it(tmp_path: Path) -> None:
    server = WatchServer()
    server.refusal = lambda _: status(401, "Unauthorized", "who are you")

    async def play(stage: Stage) -> None:
        (tmp_path / "kubeconfig").write_text("{}")
        with pytest.raises(WatchEnded, match="the watch ended: kubeconfig"):
            async with asyncio.timeout(SECONDS):
                await stage.running

    on_stage(tmp_path, play, server=server)


def test_a_401_in_between_is_signed_in_anew_and_loses_nothing(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        server = stage.server
        await server.watched(TUNING_JOBS)
        left = 1

        def refuse(request: web.Request) -> web.Response | None:
            nonlocal left
            if left and request.path.endswith("/tuningjobs"):
                left -= 1
                return status(401, "Unauthorized", "token expired")
            return None

        server.refusal = refuse
        server.put(TUNING_JOBS, "meanwhile")
        server.send(TUNING_JOBS, {"type": "ERROR", "object": {"kind": "Status", "code": 410}})
        await stage.ears.hear("job", "team", "meanwhile", "101")
        assert left == 0

    on_stage(tmp_path, play)


def test_after_a_410_it_lists_anew(tmp_path: Path) -> None:
    """What was deleted in the gap is told by nobody: that is why the controller lists for itself."""
    server = WatchServer()
    server.put(TUNING_JOBS, "kept")
    server.put(TUNING_JOBS, "deleted")

    async def play(stage: Stage) -> None:
        await server.watched(TUNING_JOBS)
        await stage.ears.hear("job", "team", "deleted", "102")
        told = stage.ears.told.copy()
        del server.objects["tuningjobs"]["deleted"]
        server.put(TUNING_JOBS, "kept")
        server.send(TUNING_JOBS, {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
        await stage.ears.hear("job", "team", "kept", "103")
        await server.watched(TUNING_JOBS, times=2)
        assert [each for each in stage.ears.told if each not in told] == [("job", "team", "kept", "103")]

    on_stage(tmp_path, play, server=server)


def test_a_connection_that_is_cut_is_made_again_from_where_it_was(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        server = stage.server
        await server.watched(TUNING_JOBS)
        server.tell(TUNING_JOBS, "ADDED", server.put(TUNING_JOBS, "a"))
        await stage.ears.hear("job", "team", "a", "101")
        server.send(TUNING_JOBS, CUT)
        await server.watched(TUNING_JOBS, times=2)
        assert server.watches["tuningjobs"][1]["resourceVersion"] == "101"
        server.tell(TUNING_JOBS, "MODIFIED", server.put(TUNING_JOBS, "a"))
        await stage.ears.hear("job", "team", "a", "102")

    on_stage(tmp_path, play)


def test_a_stream_that_falls_silent_is_begun_anew(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        await stage.server.watched(TUNING_JOBS, times=3)
        assert not stage.running.done()

    on_stage(tmp_path, play, silence_seconds=0.3)


def test_of_chosen_namespaces_only_these_are_watched(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        server = stage.server
        await server.watched(TUNING_JOBS, times=2)
        await server.watched(JOBS, times=2)
        await server.watched(TUNER_CHANNELS)
        paths = {path for _, path in server.requests if path.endswith("s") and path.count("/") > 3}
        assert {each for each in paths if each.endswith(("/tuningjobs", "/jobs"))} == {
            f"/apis/{each.api_version}/namespaces/{space}/{each.plural}" for each in (TUNING_JOBS, JOBS) for space in ("a", "b")
        }
        assert "/apis/trtfleet.dev/v1alpha1/tunerchannels" in paths

    on_stage(tmp_path, play, namespaces=("a", "b"))


def test_when_something_was_last_heard_is_known_for_each_kind(tmp_path: Path) -> None:
    heard: list[str] = []

    async def play(stage: Stage) -> None:
        await stage.server.watched(JOBS)
        await stage.server.watched(TUNING_JOBS)
        assert stage.watch.last_event_at == {}
        before = asyncio.get_running_loop().time()
        stage.server.tell(JOBS, "ADDED", stage.server.put(JOBS, "j"))
        stage.server.tell(TUNING_JOBS, "ADDED", stage.server.put(TUNING_JOBS, "t"))
        stage.server.tell(TUNING_JOBS, "MODIFIED", stage.server.put(TUNING_JOBS, "t"))
        await stage.ears.hear("job", "team", "t", "103")
        assert heard.count("tuningjobs") == 2
        assert stage.watch.last_event_at["tuningjobs"] >= before

    on_stage(tmp_path, play, heard=heard.append)


def test_a_storm_on_one_object_is_told_event_by_event(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        server = stage.server
        await server.watched(TUNING_JOBS)
        for _ in range(500):
            server.tell(TUNING_JOBS, "MODIFIED", server.put(TUNING_JOBS, "busy"))
        await stage.ears.hear("job", "team", "busy", str(server.version))
        versions = [int(each[3]) for each in stage.ears.told]
        assert versions == sorted(versions)

    on_stage(tmp_path, play)


def test_kopf_is_asked_for_events_and_nothing_else() -> None:
    """Its other handlers write to the cluster, die silently, or do not scale."""
    used: dict[str, set[str]] = {}
    for path in Path(tuning_operator.__file__).parent.rglob("*.py"):
        if found := re.findall(r"\bkopf\.(on\.\w+|timer|daemon|index|adopt|event|info|warn|exception|run)\b", path.read_text()):
            used[path.name] = set(found)
    assert used == {"watch.py": {"on.event", "on.login", "on.cleanup"}}
