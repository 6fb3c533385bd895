"""The client against a stub of the API server: what travels, and what becomes of answers that the real one rarely gives."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.config import incluster_config
from stub_server import kubeconfig, self_signed, serving, status

from tuner_job.api.base import InputError
from tuning_operator.kube.api import (
    JOBS,
    PODS,
    TUNER_RUNTIMES,
    TUNING_JOBS,
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    Object,
    Throttled,
    Unavailable,
)
from tuning_operator.kube.client import KubeClient, NotInstalled, open_client, open_session

JOB: Object = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {}}


class Server:
    """Answers from a list, the last one again and again, and keeps what it was asked."""

    def __init__(self, *answers: web.Response | Callable[[], web.Response]) -> None:
        self.answers = list(answers)
        self.asked: list[web.Request] = []
        self.bodies: list[Any] = []

    async def __call__(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        data = await request.read()
        self.bodies.append(json.loads(data) if data else None)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer() if callable(answer) else answer


def with_client(folder: Path, server: Any, use: Callable[[KubeClient], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with serving(server) as url, open_client(kubeconfig(folder, url), **options) as client:
            await use(client)

    asyncio.run(main())


def ok(body: Object) -> Callable[[], web.Response]:
    return lambda: web.json_response(body)


def test_each_verb_asks_what_the_api_server_expects(tmp_path: Path) -> None:
    server = Server(ok({**JOB, "metadata": {"name": "j", "namespace": "ns"}}))

    async def use(client: KubeClient) -> None:
        await client.get(JOBS, "j", "ns")
        await client.create(JOBS, JOB, "ns")
        await client.replace(JOBS, {**JOB, "metadata": {"name": "j", "namespace": "ns", "resourceVersion": "7"}})
        await client.merge(JOBS, "j", "ns", {"spec": {"suspend": True}})
        await client.apply_status(TUNER_RUNTIMES, "r", None, {"observedGeneration": 1})
        await client.delete(PODS, "p", "ns", uid="u-1")
        await client.get(TUNER_RUNTIMES, "r")

    with_client(tmp_path, server, use)
    assert [f"{each.method} {each.path_qs}" for each in server.asked] == [
        "GET /apis/batch/v1/namespaces/ns/jobs/j",
        "POST /apis/batch/v1/namespaces/ns/jobs?fieldManager=trtfleet-operator",
        "PUT /apis/batch/v1/namespaces/ns/jobs/j?fieldManager=trtfleet-operator",
        "PATCH /apis/batch/v1/namespaces/ns/jobs/j?fieldManager=trtfleet-operator",
        "PATCH /apis/trtfleet.dev/v1alpha1/tunerruntimes/r/status?fieldManager=trtfleet-operator&force=true",
        "DELETE /api/v1/namespaces/ns/pods/p",
        "GET /apis/trtfleet.dev/v1alpha1/tunerruntimes/r",
    ]
    types = [each.headers["Content-Type"] for each in server.asked]
    assert types[3:5] == ["application/merge-patch+json", "application/apply-patch+yaml"]
    assert {types[1], types[2], types[5]} == {"application/json"}
    assert server.bodies[3] == {"spec": {"suspend": True}}
    assert server.bodies[4] == {
        "apiVersion": "trtfleet.dev/v1alpha1",
        "kind": "TunerRuntime",
        "metadata": {"name": "r"},
        "status": {"observedGeneration": 1},
    }
    assert server.bodies[5]["preconditions"] == {"uid": "u-1"}
    assert server.bodies[5]["propagationPolicy"] == "Background"
    assert {each.headers["Authorization"] for each in server.asked} == {"Bearer secret-token"}
    assert all(each.headers["User-Agent"].startswith("trtfleet-operator/") for each in server.asked)


def test_a_list_asks_for_page_after_page(tmp_path: Path) -> None:
    pages = [
        {"kind": "PodList", "metadata": {"continue": "a+b/c=="}, "items": [{"metadata": {"name": "p1", "managedFields": [{}]}}]},
        {"kind": "PodList", "metadata": {"continue": "", "remainingItemCount": 0}, "items": [{"metadata": {"name": "p2"}}]},
    ]
    server = Server(*(ok(page) for page in pages))

    async def use(client: KubeClient) -> None:
        assert await client.list(PODS, "ns", labels="trtfleet.dev/job in (a, b),x!=y", fields="status.phase=Failed") == [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p1"}},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p2"}},
        ]

    with_client(tmp_path, server, use)
    first, second = (dict(each.query) for each in server.asked)
    assert first == {"labelSelector": "trtfleet.dev/job in (a, b),x!=y", "fieldSelector": "status.phase=Failed", "limit": "500"}
    assert second == {**first, "continue": "a+b/c=="}


def test_an_empty_list_may_be_null(tmp_path: Path) -> None:
    async def use(client: KubeClient) -> None:
        assert await client.list(TUNING_JOBS) == []

    with_client(tmp_path, Server(ok({"kind": "TuningJobList", "metadata": {}, "items": None})), use)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda: status(401, "Unauthorized", "no"), Unavailable),
        (lambda: status(403, "Forbidden", "no"), Forbidden),
        (lambda: status(404, "NotFound", "no"), NotFound),
        (lambda: status(409, "AlreadyExists", "no"), AlreadyExists),
        (lambda: status(409, "Conflict", "no"), Conflict),
        (lambda: status(400, "BadRequest", "no"), Invalid),
        (lambda: status(422, "Invalid", "no"), Invalid),
        (lambda: status(413, "RequestEntityTooLarge", "no"), Invalid),
        (lambda: status(410, "Expired", "no"), Unavailable),
        (lambda: status(429, "TooManyRequests", "no"), Throttled),
        (lambda: status(500, "InternalError", "no"), Unavailable),
        (lambda: status(503, "ServiceUnavailable", "no"), Unavailable),
        (lambda: status(504, "Timeout", "no"), Unavailable),
        (lambda: web.Response(status=502, text="<html>no"), Unavailable),
        (lambda: web.Response(text="<html>a portal of the network"), Unavailable),
        (lambda: web.Response(status=429, text="[1]"), Throttled),
    ],
)
def test_an_answer_becomes_the_error_that_fits(
    tmp_path: Path, answer: Callable[[], web.Response], error: type[KubeError]
) -> None:
    async def use(client: KubeClient) -> None:
        with pytest.raises(KubeError) as found:
            await client.create(JOBS, JOB, "ns")
        assert type(found.value) is error
        assert str(found.value).startswith("create Job ns/j: ")
        assert "\n" not in str(found.value)
        assert found.value.code == answer().status

    with_client(tmp_path, Server(answer), use)


def test_an_error_says_verb_object_and_the_servers_words(tmp_path: Path) -> None:
    words = 'jobs.batch "j" is forbidden: exceeded quota: gpus,\n requested: 4, limited: 2'

    async def use(client: KubeClient) -> None:
        with pytest.raises(Forbidden) as found:
            await client.create(JOBS, JOB, "ns")
        assert str(found.value) == (
            'create Job ns/j: jobs.batch "j" is forbidden: exceeded quota: gpus, requested: 4, limited: 2'
        )

    with_client(tmp_path, Server(lambda: status(403, "Forbidden", words)), use)


@pytest.mark.parametrize(
    ("header", "seconds"), [({"Retry-After": "17"}, 17.0), ({}, 1.0), ({"Retry-After": "Fri, 01 Jan 2027"}, 1.0)]
)
def test_a_throttled_call_knows_how_long_to_wait(tmp_path: Path, header: dict[str, str], seconds: float) -> None:
    async def use(client: KubeClient) -> None:
        with pytest.raises(Throttled) as found:
            await client.get(JOBS, "j", "ns")
        assert found.value.retry_after == seconds

    with_client(tmp_path, Server(lambda: status(429, "TooManyRequests", "slow down", **header)), use)


def test_what_is_gone_already_is_deleted(tmp_path: Path) -> None:
    async def use(client: KubeClient) -> None:
        await client.delete(JOBS, "j", "ns", uid="u")

    with_client(tmp_path, Server(lambda: status(404, "NotFound", "no")), use)


def test_a_replace_of_what_was_never_read_is_refused_before_it_travels(tmp_path: Path) -> None:
    server = Server(ok(JOB))

    async def use(client: KubeClient) -> None:
        with pytest.raises(Invalid, match="resourceVersion"):
            await client.replace(JOBS, {**JOB, "metadata": {"name": "j", "namespace": "ns"}})

    with_client(tmp_path, server, use)
    assert server.asked == []


@pytest.mark.parametrize("late", ["headers", "body"])
def test_a_server_that_does_not_answer_is_unavailable_after_the_deadline(tmp_path: Path, late: str) -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if late == "body":
            await response.prepare(request)
            await response.write(b'{"kind": ')
        await asyncio.Event().wait()
        return response

    async def use(client: KubeClient) -> None:
        with pytest.raises(Unavailable, match=r"get Job ns/j: no answer within 0\.2 s"):
            await client.get(JOBS, "j", "ns")

    with_client(tmp_path, hang, use, call_seconds=0.2)


def test_without_a_connection_it_is_unavailable(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(Server(ok(JOB))) as url:
            config = kubeconfig(tmp_path, url)
        async with open_client(config) as client:
            with pytest.raises(Unavailable, match=r"get Job ns/j: .*onnect"):
                await client.get(JOBS, "j", "ns")

    asyncio.run(main())


def test_a_connection_that_breaks_is_unavailable(tmp_path: Path) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def use(client: KubeClient) -> None:
        with pytest.raises(Unavailable, match="create Job ns/j: "):
            await client.create(JOBS, JOB, "ns")

    with_client(tmp_path, cut, use)


def test_each_answer_is_told_with_its_verb_kind_code_and_time(tmp_path: Path) -> None:
    told: list[tuple[str, str, int]] = []

    def observer(verb: str, plural: str, code: int, seconds: float) -> None:
        assert seconds >= 0
        told.append((verb, plural, code))

    server = Server(
        ok(JOB),
        lambda: status(404, "NotFound", "no"),
        lambda: web.Response(text="?"),
        ok({"metadata": {"continue": "x"}}),
        ok({}),
    )

    async def use(client: KubeClient) -> None:
        await client.get(JOBS, "j", "ns")
        for _ in range(2):
            with pytest.raises(KubeError):
                await client.get(JOBS, "j", "ns")
        await client.list(PODS)

    with_client(tmp_path, server, use, observer=observer)
    assert told == [
        ("get", "jobs", 200),
        ("get", "jobs", 404),
        ("get", "jobs", 200),
        ("list", "pods", 200),
        ("list", "pods", 200),
    ]


def test_kinds_that_are_not_served_are_named(tmp_path: Path) -> None:
    served = ok({"kind": "APIResourceList", "resources": [{"name": "tuningjobs"}, {"name": "tuningjobs/status"}]})

    async def use(client: KubeClient) -> None:
        await client.require([TUNING_JOBS])
        with pytest.raises(NotInstalled, match=r"tunerruntimes of trtfleet.dev/v1alpha1; install the CRDs"):
            await client.require([TUNING_JOBS, TUNER_RUNTIMES])

    with_client(tmp_path, Server(served), use)


def test_a_renewed_service_account_token_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        ahead = timedelta(0)

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + cls.ahead

    token = tmp_path / "token"
    token.write_text("first")
    tls, authority = self_signed(tmp_path)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    monkeypatch.setattr(incluster_config, "datetime", SimpleNamespace(datetime=Clock, timedelta=timedelta))
    server = Server(ok(JOB))

    async def main() -> None:
        async with serving(server, tls) as url:
            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", url.rpartition(":")[2])
            session = await open_session(None)
            async with open_client(None) as client, session.http:
                await client.get(JOBS, "j", "ns")
                token.write_text("second")
                Clock.ahead = timedelta(seconds=61)
                await client.get(JOBS, "j", "ns")
                async with session.http.get(f"{session.server}/apis") as response:
                    assert response.status == 200

    asyncio.run(main())
    signed = [each.headers["Authorization"].lower() for each in server.asked]
    assert signed == ["bearer first", "bearer second", "bearer second"]


def test_outside_of_a_cluster_without_a_kubeconfig_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def main() -> None:
        with pytest.raises(InputError, match="--kubeconfig"):
            async with open_client(None):
                pass

    asyncio.run(main())


@pytest.mark.parametrize("content", [None, "][", "current-context: nowhere", "just words", "[1]"])
def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)

    async def main() -> None:
        with pytest.raises(InputError, match=f"kubeconfig {path}: "):
            async with open_client(path):
                pass

    asyncio.run(main())


def test_a_session_signs_each_of_its_requests(tmp_path: Path) -> None:
    server = Server(ok(JOB))

    async def main() -> None:
        async with serving(server) as url:
            session = await open_session(kubeconfig(tmp_path, url))
            async with session.http, session.http.get(f"{session.server}/apis") as response:
                assert response.status == 200

    asyncio.run(main())
    assert server.asked[0].headers["Authorization"] == "Bearer secret-token"


def test_no_model_of_the_client_library_is_loaded() -> None:
    code = (
        "import sys; import tuning_operator.kube.client; "
        "print(*(name for name in sys.modules if name.startswith('kubernetes.') and '.models.' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
