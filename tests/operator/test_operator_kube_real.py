"""Client, Lease, events and watch against a real API server, and the fake's promises beside its own."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fake_api import FakeApi
from rig.kube.control_plane import ControlPlane

from tuning_operator.catalog import KINDS, Catalog
from tuning_operator.config import OperatorConfig
from tuning_operator.kube.api import (
    ARTIFACT_STORES,
    EVENTS,
    FIELD_MANAGER,
    JOBS,
    LEASES,
    NODES,
    PODS,
    TUNER_CHANNELS,
    TUNER_RUNTIMES,
    TUNING_JOBS,
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    KubeApi,
    KubeError,
    NotFound,
    Object,
    Resource,
    Unavailable,
)
from tuning_operator.kube.client import PAGE, KubeClient, NotInstalled, open_client
from tuning_operator.kube.events import NOTE_BYTES, EventRecorder, Regarding
from tuning_operator.kube.lease import Elector, LeaseLost
from tuning_operator.watch import Watch

SECONDS = 60.0
"""For what must happen."""

RUNTIME_SPEC: Object = {"family": "TensorRT", "version": "11.2.1"}


def name_of(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(4)}"


def runtime(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": TUNER_RUNTIMES.api_version,
        "kind": TUNER_RUNTIMES.kind,
        "metadata": {"name": name},
        "spec": {**RUNTIME_SPEC, **spec},
    }


def job(name: str, **spec: Any) -> Object:
    container = {"name": "worker", "image": "none.invalid/none:1"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "trtfleet", "case": name}},
        "spec": {"suspend": True, "template": {"spec": pod}, **spec},
    }


def tuning_job(name: str) -> Object:
    return {
        "apiVersion": TUNING_JOBS.api_version,
        "kind": TUNING_JOBS.kind,
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "https://models.invalid/m.onnx"},
            "storeRef": {"name": "main"},
            "targets": [{"name": "cpu", "runtimeRef": {"name": "ort"}, "device": {"type": "CPU"}}],
        },
    }


class Place:
    """An API server, real or fake, and a namespace of its own."""

    def __init__(self, plane: ControlPlane | None) -> None:
        self.plane = plane
        self.fake = FakeApi()
        self.namespace = plane.new_namespace() if plane else "ns"

    def use(self, play: Callable[[KubeApi], Awaitable[None]]) -> None:
        async def main() -> None:
            if self.plane is None:
                await play(self.fake)
                return
            async with open_client(self.plane.kubeconfig) as client:
                await play(client)

        asyncio.run(main())


@pytest.fixture(params=["fake", "real"])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(None if request.param == "fake" else request.getfixturevalue("control_plane"))


def client_of(plane: ControlPlane, play: Callable[[KubeClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_client(plane.kubeconfig) as client:
            await play(client)

    asyncio.run(main())


async def refused(error: type[KubeError], call: Awaitable[object]) -> str:
    with pytest.raises(KubeError) as found:
        await call
    assert type(found.value) is error, str(found.value)
    return str(found.value)


async def until(probe: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS):
        while not await probe():  # noqa: ASYNC110 - others do it, and do not tell
            await asyncio.sleep(0.1)


# -- what the fake and the real one must agree on


def test_an_object_lives_from_create_to_delete(place: Place) -> None:
    async def play(api: KubeApi) -> None:
        name, space = name_of("job"), place.namespace
        made = await api.create(JOBS, job(name), space)
        assert made["metadata"]["uid"]
        assert made["metadata"]["generation"] == 1
        await refused(AlreadyExists, api.create(JOBS, job(name), space))
        assert (await api.get(JOBS, name, space))["metadata"]["uid"] == made["metadata"]["uid"]
        (listed,) = await api.list(JOBS, space, labels=f"case={name}")
        assert (listed["apiVersion"], listed["kind"]) == ("batch/v1", "Job")
        assert await api.list(JOBS, space, labels=f"case!={name},app.kubernetes.io/managed-by=trtfleet") == []
        assert len(await api.list(JOBS, space, labels=f"case in ({name}, other)", fields=f"metadata.name={name}")) == 1
        await refused(Conflict, api.delete(JOBS, name, space, uid="00000000-0000-4000-8000-000000000000"))
        await api.delete(JOBS, name, space, uid=made["metadata"]["uid"])
        await api.delete(JOBS, name, space, uid=made["metadata"]["uid"])
        await refused(NotFound, api.get(JOBS, name, space))

    place.use(play)


def test_writes_that_change_nothing_leave_no_trace_and_generations_count_specs(place: Place) -> None:
    async def play(api: KubeApi) -> None:
        name = name_of("channel")
        body = {**runtime(name), "kind": TUNER_CHANNELS.kind, "spec": {"runtimeRef": {"name": "a"}}}
        made = await api.create(TUNER_CHANNELS, {**body, "status": {"observedGeneration": 9}})
        assert "status" not in made
        labelled = await api.merge(TUNER_CHANNELS, name, None, {"metadata": {"labels": {"a": "b"}}})
        assert labelled["metadata"]["generation"] == 1
        same = await api.merge(TUNER_CHANNELS, name, None, {"metadata": {"labels": {"a": "b"}}})
        assert same["metadata"]["resourceVersion"] == labelled["metadata"]["resourceVersion"]
        first = await api.apply_status(TUNER_CHANNELS, name, None, {"observedGeneration": 1})
        again = await api.apply_status(TUNER_CHANNELS, name, None, {"observedGeneration": 1})
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        assert again["metadata"]["generation"] == 1
        again["spec"]["runtimeRef"]["name"] = "b"
        again["status"] = {}
        moved = await api.replace(TUNER_CHANNELS, again)
        assert moved["metadata"]["generation"] == 2
        assert moved["status"] == {"observedGeneration": 1}
        await refused(Conflict, api.replace(TUNER_CHANNELS, again))
        pruned = await api.merge(TUNER_CHANNELS, name, None, {"spec": {"colour": "red"}, "status": {"observedGeneration": 5}})
        assert "colour" not in pruned["spec"]
        assert pruned["status"] == {"observedGeneration": 1}
        await api.delete(TUNER_CHANNELS, name, None, uid=made["metadata"]["uid"])

    place.use(play)


def test_a_status_is_applied_whole(place: Place) -> None:
    def condition(type_: str) -> Object:
        rest = {"status": "True", "reason": "Fine", "message": "", "lastTransitionTime": "2026-11-30T10:00:00Z"}
        return {"type": type_, "observedGeneration": 1, **rest}

    async def play(api: KubeApi) -> None:
        name = name_of("tj")
        await api.create(TUNING_JOBS, tuning_job(name), place.namespace)
        wide = {"observedGeneration": 1, "phase": "Exploring", "conditions": [condition("Ready"), condition("Stalled")]}
        assert (await api.apply_status(TUNING_JOBS, name, place.namespace, wide))["status"] == wide
        narrow = {"observedGeneration": 1, "conditions": [condition("Ready")]}
        assert (await api.apply_status(TUNING_JOBS, name, place.namespace, narrow))["status"] == narrow
        assert "conditions" in await refused(
            Invalid, api.apply_status(TUNING_JOBS, name, place.namespace, {"conditions": [{"type": "Ready"}]})
        )
        await refused(NotFound, api.apply_status(TUNING_JOBS, "nobody", place.namespace, narrow))

    place.use(play)


@pytest.mark.parametrize(
    ("resource", "body"),
    [
        (TUNER_RUNTIMES, runtime("r", family="Caffe")),
        (TUNER_RUNTIMES, {**runtime("r"), "spec": {"family": "TensorRT"}}),
        (TUNER_RUNTIMES, runtime("Not-A-Name")),
        (JOBS, job("j" * 64, completionMode="Indexed", completions=2, parallelism=2)),
        (JOBS, {**job("j"), "metadata": {"name": "j", "labels": {"a": "x" * 64}}}),
        (JOBS, {**job("j"), "metadata": {"name": "j", "annotations": {"a": 1}}}),
        (JOBS, job("j", template={"spec": {"restartPolicy": "Always", "containers": [{"name": "w", "image": "i"}]}})),
        (JOBS, {**job("j"), "kind": "CronJob"}),
    ],
)
def test_what_is_wrong_is_invalid(place: Place, resource: Resource, body: Object) -> None:
    async def play(api: KubeApi) -> None:
        await refused(Invalid, api.create(resource, body, place.namespace if resource.namespaced else None))

    place.use(play)


def test_a_jobs_template_is_fixed_and_its_suspension_is_not(place: Place) -> None:
    async def play(api: KubeApi) -> None:
        name = name_of("job")
        await api.create(JOBS, job(name, suspend=False, parallelism=0), place.namespace)
        await api.merge(JOBS, name, place.namespace, {"spec": {"suspend": True}})
        changed = {"spec": {"template": {"spec": {"restartPolicy": "OnFailure"}}}}
        assert "immutable" in await refused(Invalid, api.merge(JOBS, name, place.namespace, changed))

    place.use(play)


def test_unknown_field_selectors_are_invalid(place: Place) -> None:
    async def play(api: KubeApi) -> None:
        assert await api.list(TUNER_CHANNELS, fields="spec.runtimeRef.name=nobody") == []
        assert await api.list(EVENTS, place.namespace, fields="regarding.kind=Job,type=Warning,reason=FailedCreate") == []
        await refused(Invalid, api.list(TUNER_CHANNELS, fields="spec.colour=red"))
        await refused(Invalid, api.list(JOBS, place.namespace, labels="a=b c"))

    place.use(play)


def test_dependents_go_with_their_owner(place: Place) -> None:
    async def play(api: KubeApi) -> None:
        name = name_of("tj")
        owner = await api.create(TUNING_JOBS, tuning_job(name), place.namespace)
        reference = {key: owner[key] for key in ("apiVersion", "kind")} | {key: owner["metadata"][key] for key in ("name", "uid")}
        child = job(name)
        child["metadata"]["ownerReferences"] = [{**reference, "controller": True, "blockOwnerDeletion": True}]
        await api.create(JOBS, child, place.namespace)
        await api.delete(TUNING_JOBS, name, place.namespace, uid=owner["metadata"]["uid"])

        async def gone() -> bool:
            return await api.list(JOBS, place.namespace, labels=f"case={name}") == []

        await until(gone)

    place.use(play)


# -- only the real one


def test_status_is_ours_by_the_field_manager(control_plane: ControlPlane) -> None:
    space, name = control_plane.new_namespace(), name_of("tj")

    async def play(client: KubeClient) -> None:
        await client.create(TUNING_JOBS, tuning_job(name), space)
        await client.apply_status(TUNING_JOBS, name, space, {"observedGeneration": 1})
        found = await client.get(TUNING_JOBS, name, space)
        entries = {(each["manager"], each["operation"], each.get("subresource")) for each in found["metadata"]["managedFields"]}
        assert (FIELD_MANAGER, "Apply", "status") in entries
        assert all("managedFields" not in each["metadata"] for each in await client.list(TUNING_JOBS, space))

    client_of(control_plane, play)


def test_what_foreigners_wrote_to_the_status_is_overruled(control_plane: ControlPlane) -> None:
    space, name = control_plane.new_namespace(), name_of("tj")

    async def play(client: KubeClient) -> None:
        await client.create(TUNING_JOBS, tuning_job(name), space)
        patch = json.dumps({"status": {"observedGeneration": 77}})
        control_plane.kubectl("patch", "tj", name, "-n", space, "--subresource=status", "--type=merge", "--patch", patch)
        written = await client.apply_status(TUNING_JOBS, name, space, {"observedGeneration": 1})
        assert written["status"]["observedGeneration"] == 1

    client_of(control_plane, play)


def test_a_list_longer_than_a_page_is_whole(control_plane: ControlPlane) -> None:
    space = control_plane.new_namespace()
    number = PAGE + 7

    async def play(client: KubeClient) -> None:
        gate = asyncio.Semaphore(16)

        async def make(index: int) -> None:
            async with gate:
                await client.create(
                    LEASES, {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": f"l{index}"}}, space
                )

        await asyncio.gather(*(make(index) for index in range(number)))
        found = await client.list(LEASES, space)
        assert {each["metadata"]["name"] for each in found} == {f"l{index}" for index in range(number)}

    client_of(control_plane, play)


def test_kinds_that_are_served_are_known(control_plane: ControlPlane) -> None:
    async def play(client: KubeClient) -> None:
        await client.require([TUNING_JOBS, *KINDS, JOBS, LEASES, EVENTS, PODS, NODES])
        with pytest.raises(NotInstalled, match=r"widgets of trtfleet.dev/v1alpha1, engines of none.invalid/v1; install the CRDs"):
            await client.require(
                [
                    Resource("trtfleet.dev", "v1alpha1", "widgets", "Widget"),
                    Resource("none.invalid", "v1", "engines", "Engine"),
                    TUNING_JOBS,
                ]
            )

    client_of(control_plane, play)


def test_a_namespace_that_ends_or_never_was_refuses(control_plane: ControlPlane) -> None:
    space = control_plane.new_namespace()
    finalizer = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "keep", "finalizers": ["trtfleet.dev/test"]}}
    control_plane.apply(finalizer, namespace=space)
    control_plane.kubectl("delete", "namespace", space, "--wait=false")

    async def play(client: KubeClient) -> None:
        assert "being terminated" in await refused(Forbidden, client.create(JOBS, job("j"), space))
        await refused(NotFound, client.create(JOBS, job("j"), "no-such-namespace"))

    try:
        client_of(control_plane, play)
    finally:
        control_plane.kubectl(
            "patch", "configmap", "keep", "-n", space, "--type=merge", '--patch={"metadata":{"finalizers":null}}'
        )


def test_a_quota_is_forbidden_with_its_words(control_plane: ControlPlane) -> None:
    space = control_plane.new_namespace()
    control_plane.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "0"}}},
        namespace=space,
    )

    async def play(client: KubeClient) -> None:
        async def in_force() -> bool:
            found = control_plane.get("resourcequota", "none", "--namespace", space)
            return found.get("status", {}).get("hard") == {"count/jobs.batch": "0"}

        await until(in_force)
        assert "exceeded quota: none" in await refused(Forbidden, client.create(JOBS, job("j"), space))

    client_of(control_plane, play)


def test_without_rights_it_is_forbidden_and_with_a_wrong_token_unavailable(control_plane: ControlPlane, tmp_path: Any) -> None:
    space = control_plane.new_namespace()
    config = json.loads(control_plane.kubectl("config", "view", "--raw", "--output=json"))

    async def ask(token: str) -> KubeError:
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(config))
        async with open_client(path) as client:
            with pytest.raises(KubeError) as found:
                await client.get(TUNING_JOBS, "any", space)
        return found.value

    error = asyncio.run(ask(control_plane.token("default", space)))
    assert type(error) is Forbidden
    assert f"system:serviceaccount:{space}:default" in str(error)
    assert type(asyncio.run(ask("forged"))) is Unavailable


# -- Lease


def test_of_two_electors_one_leads_and_the_other_follows_it(control_plane: ControlPlane) -> None:
    space = control_plane.new_namespace()

    async def main() -> None:
        async with open_client(control_plane.kubeconfig) as one, open_client(control_plane.kubeconfig) as two:
            first, second = (
                Elector(api, namespace=space, name="lease", identity=who, lease_seconds=3.0)
                for api, who in ((one, "a"), (two, "b"))
            )
            await asyncio.wait(
                {asyncio.ensure_future(first.acquire()), asyncio.ensure_future(second.acquire())},
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert first.leading != second.leading
            leader, other = (first, second) if first.leading else (second, first)
            holding, waiting = asyncio.ensure_future(leader.hold()), asyncio.ensure_future(other.acquire())
            await asyncio.sleep(0)
            assert not waiting.done()
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            await leader.release()
            async with asyncio.timeout(SECONDS):
                await waiting
            assert other.leading
            spec = (await one.get(LEASES, "lease", space))["spec"]
            assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (other.identity, 3, 1)
            spec["holderIdentity"] = "thief"
            await one.merge(LEASES, "lease", space, {"spec": {"holderIdentity": "thief"}})
            with pytest.raises(LeaseLost, match="taken by thief"):
                await other.hold()

    asyncio.run(main())


# -- events


def test_the_real_server_accepts_events_and_their_series(control_plane: ControlPlane) -> None:
    space, name = control_plane.new_namespace(), name_of("tj")
    now = datetime.now(UTC)

    async def play(client: KubeClient) -> None:
        made = await client.create(TUNING_JOBS, tuning_job(name), space)
        about = Regarding(TUNING_JOBS, name, made["metadata"]["uid"], space)
        clock = now
        recorder = EventRecorder(client, instance="operator-0", now=lambda: clock)
        for _ in range(3):
            await recorder.emit(about, "Warning", "StoreUnavailable", "the store is away", action="Reconcile")
            clock += timedelta(seconds=30)
        await recorder.emit(about, "Normal", "Tuned", "×" * NOTE_BYTES, action="Reconcile")
        found = {each["reason"]: each for each in await client.list(EVENTS, space, fields=f"regarding.name={name}")}
        assert found["StoreUnavailable"]["series"]["count"] == 3
        assert len(found["Tuned"]["note"].encode()) <= NOTE_BYTES
        store = Regarding(ARTIFACT_STORES, name, "some-uid")
        await recorder.emit(store, "Warning", "StoreNotConditional", "it lies", action="Probe")
        assert len(await client.list(EVENTS, "default", fields=f"regarding.name={name}")) == 1

    client_of(control_plane, play)
    described = control_plane.kubectl("describe", "tuningjob", name, "--namespace", space)
    assert "StoreUnavailable" in described
    assert "the store is away" in described


# -- watch and catalog


class Ears:
    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []
        self._news = asyncio.Event()

    def job_event(self, namespace: str, name: str, version: int) -> None:
        self._hear("job", namespace, name)

    def enqueue(self, namespace: str, name: str) -> None:
        self._hear("enqueue", namespace, name)

    def enqueue_users(self, kind: str, name: str) -> None:
        self._hear("users", kind, name)

    def _hear(self, *what: str) -> None:
        self.told.append(what)
        self._news.set()

    async def hear(self, *what: str, times: int = 1) -> None:
        async with asyncio.timeout(SECONDS):
            while self.told.count(what) < times:
                self._news.clear()
                await self._news.wait()


def test_the_watch_sees_all_and_writes_nothing(control_plane: ControlPlane) -> None:
    space, name, store = control_plane.new_namespace(), name_of("tj"), name_of("store")
    before = control_plane.audit_log.stat().st_size

    async def main() -> None:
        ears, stop = Ears(), asyncio.Event()
        async with open_client(control_plane.kubeconfig) as client:
            config = OperatorConfig(cluster="c", operator_namespace="op", namespaces=(space,))
            catalog = Catalog(client)
            await catalog.resync()
            watch = Watch(config, control_plane.kubeconfig, ears, catalog)
            watching = asyncio.create_task(watch.run(stop))
            made = await client.create(TUNING_JOBS, tuning_job(name), space)
            await ears.hear("job", space, name)
            reference = {"apiVersion": made["apiVersion"], "kind": made["kind"], "name": name, "uid": made["metadata"]["uid"]}
            child = job(name)
            child["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
            await client.create(JOBS, child, space)
            await ears.hear("enqueue", space, name)
            heard = ears.told.count(("job", space, name))
            await client.apply_status(TUNING_JOBS, name, space, {"observedGeneration": 1})
            await ears.hear("job", space, name, times=heard + 1)
            body = {**runtime(store), "kind": "ArtifactStore", "spec": {"url": "s3://bucket/prefix"}}
            kept = await client.create(ARTIFACT_STORES, body)
            await ears.hear("users", "ArtifactStore", store)
            assert catalog.store(store) is not None
            await client.delete(ARTIFACT_STORES, store, None, uid=kept["metadata"]["uid"])
            await ears.hear("users", "ArtifactStore", store, times=2)
            assert catalog.store(store) is None
            seen = await client.get(TUNING_JOBS, name, space)
            assert "finalizers" not in seen["metadata"]
            assert "annotations" not in seen["metadata"]
            assert {each["manager"] for each in seen["metadata"]["managedFields"]} == {FIELD_MANAGER}
            heard = ears.told.count(("job", space, name))
            await client.delete(TUNING_JOBS, name, space, uid=made["metadata"]["uid"])
            await ears.hear("job", space, name, times=heard + 1)
            assert set(watch.last_event_at) >= {"tuningjobs", "jobs", "artifactstores"}
            stop.set()
            await watching

    asyncio.run(main())
    ours = [each for each in control_plane.requests(before) if each.agent.startswith("trtfleet-operator/")]
    assert any(each.verb == "watch" and each.resource == "tuningjobs" for each in ours)
    writes = {(each.verb, each.what) for each in ours if each.writes}
    assert writes == {
        ("create", "trtfleet.dev/tuningjobs"),
        ("patch", "trtfleet.dev/tuningjobs/status"),
        ("delete", "trtfleet.dev/tuningjobs"),
        ("create", "batch/jobs"),
        ("create", "trtfleet.dev/artifactstores"),
        ("delete", "trtfleet.dev/artifactstores"),
    }
    assert not [each for each in control_plane.requests(before) if "kopf" in each.agent]


@pytest.mark.slow
def test_the_watch_outlives_a_restart_of_the_api_server(control_plane: ControlPlane) -> None:
    space = control_plane.new_namespace()

    async def main() -> None:
        ears, stop = Ears(), asyncio.Event()
        async with open_client(control_plane.kubeconfig) as client:
            config = OperatorConfig(cluster="c", operator_namespace="op", namespaces=(space,))
            watching = asyncio.create_task(Watch(config, control_plane.kubeconfig, ears, Catalog(client)).run(stop))
            await client.create(TUNING_JOBS, tuning_job("before"), space)
            await ears.hear("job", space, "before")
            await asyncio.to_thread(control_plane.restart_api)
            await client.create(TUNING_JOBS, tuning_job("after"), space)
            await ears.hear("job", space, "after")
            assert not watching.done()
            stop.set()
            await watching

    asyncio.run(main())
