"""The catalog of cluster-scoped objects against the fake API server."""

from __future__ import annotations

import asyncio

import pytest
from fake_api import FakeApi

from tuning_operator.catalog import Catalog, Named
from tuning_operator.kube.api import ARTIFACT_STORES, TUNER_CHANNELS, TUNER_RUNTIMES, Object, Resource, Unavailable

DIGEST = "sha256:" + "ab" * 32


def named(name: str, spec: Object) -> Object:
    return {"metadata": {"name": name}, "spec": spec}


RUNTIME = named("trt-11", {"family": "TensorRT", "version": "11.2.1", "image": f"r/worker@{DIGEST}"})
CHANNEL = named("stable", {"runtimeRef": {"name": "trt-11"}})
STORE = named("main", {"url": "s3://bucket/x", "allowedNamespaces": [{"name": "team", "prefix": "team"}]})


def cluster() -> FakeApi:
    api = FakeApi()
    api.seed(TUNER_RUNTIMES, RUNTIME)
    api.seed(TUNER_CHANNELS, CHANNEL)
    api.seed(ARTIFACT_STORES, STORE)
    return api


def test_the_first_list_brings_everything() -> None:
    async def main() -> None:
        catalog = Catalog(cluster())
        assert not catalog.synced
        changed = await catalog.resync()
        assert changed == {Named(TUNER_RUNTIMES, "trt-11"), Named(TUNER_CHANNELS, "stable"), Named(ARTIFACT_STORES, "main")}
        assert catalog.synced
        runtime, channel, store = catalog.runtime("trt-11"), catalog.channel("stable"), catalog.store("main")
        assert runtime is not None
        assert (runtime.spec.family, runtime.spec.version) == ("TensorRT", "11.2.1")
        assert channel is not None
        assert channel.spec.runtime_ref.name == "trt-11"
        assert store is not None
        assert store.spec.allowed_namespaces[0].prefix == "team"

    asyncio.run(main())


def test_what_is_not_there_is_none_without_a_problem() -> None:
    async def main() -> None:
        catalog = Catalog(cluster())
        await catalog.resync()
        assert catalog.runtime("stable") is None
        assert catalog.problem(TUNER_RUNTIMES, "stable") == ""

    asyncio.run(main())


def test_a_list_without_news_says_so() -> None:
    async def main() -> None:
        api = cluster()
        catalog = Catalog(api)
        await catalog.resync()
        api.edit(ARTIFACT_STORES, "main", None, lambda body: body["metadata"].update(labels={"team": "a"}))
        assert await catalog.resync() == frozenset()
        assert api.writes == []

    asyncio.run(main())


def test_a_resync_repairs_what_the_watch_lost() -> None:
    async def main() -> None:
        api = cluster()
        catalog = Catalog(api)
        await catalog.resync()
        api.remove(TUNER_CHANNELS, "stable")
        api.seed(TUNER_RUNTIMES, named("trt-12", {"family": "TensorRT", "version": "12.0"}))
        api.edit(ARTIFACT_STORES, "main", None, lambda body: body["spec"].update(url="s3://other"))
        changed = await catalog.resync()
        assert changed == {Named(TUNER_CHANNELS, "stable"), Named(TUNER_RUNTIMES, "trt-12"), Named(ARTIFACT_STORES, "main")}
        assert catalog.channel("stable") is None
        store = catalog.store("main")
        assert store is not None
        assert store.spec.url == "s3://other"

    asyncio.run(main())


def test_an_event_refreshes_one_object() -> None:
    async def main() -> None:
        api = cluster()
        catalog = Catalog(api)
        await catalog.resync()
        assert not await catalog.refresh(TUNER_CHANNELS, "stable")
        api.edit(TUNER_CHANNELS, "stable", None, lambda body: body["spec"].update(runtimeRef={"name": "trt-12"}))
        assert await catalog.refresh(TUNER_CHANNELS, "stable")
        channel = catalog.channel("stable")
        assert channel is not None
        assert channel.spec.runtime_ref.name == "trt-12"
        api.remove(TUNER_CHANNELS, "stable")
        assert await catalog.refresh(TUNER_CHANNELS, "stable")
        assert not await catalog.refresh(TUNER_CHANNELS, "stable")
        assert catalog.channel("stable") is None

    asyncio.run(main())


def test_one_that_was_deleted_and_made_again_has_changed() -> None:
    async def main() -> None:
        api = cluster()
        catalog = Catalog(api)
        await catalog.resync()
        api.remove(TUNER_RUNTIMES, "trt-11")
        api.seed(TUNER_RUNTIMES, named("trt-11", {"family": "TensorRT", "version": "11.3"}))
        assert await catalog.resync() == {Named(TUNER_RUNTIMES, "trt-11")}
        runtime = catalog.runtime("trt-11")
        assert runtime is not None
        assert runtime.spec.version == "11.3"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("resource", "name", "field", "value"),
    [
        (TUNER_RUNTIMES, "trt-11", "family", "Caffe"),
        (ARTIFACT_STORES, "main", "url", "ftp://x"),
        (TUNER_CHANNELS, "stable", "old", 1),
    ],
)
def test_one_of_an_older_schema_has_no_model_and_says_why(resource: Resource, name: str, field: str, value: object) -> None:
    async def main() -> None:
        api = cluster()
        api.edit(resource, name, None, lambda body: body["spec"].update({field: value}))
        catalog = Catalog(api)
        await catalog.resync()
        assert (catalog.runtime(name), catalog.channel(name), catalog.store(name)) == (None, None, None)
        assert f"{resource.kind} {name}: spec.{field}" in catalog.problem(resource, name)
        api.edit(resource, name, None, lambda body: body["spec"].update({field: "y"}))
        assert await catalog.refresh(resource, name)

    asyncio.run(main())


def test_metadata_and_status_of_a_newer_server_are_no_problem() -> None:
    async def main() -> None:
        api = cluster()

        def grow(body: Object) -> None:
            body["metadata"]["shardedBy"] = "a field of Kubernetes 1.40"
            body["metadata"]["managedFields"] = [{"manager": "kubectl"}]
            body["status"] = {"conditions": [{"type": "Of another version"}]}

        api.edit(TUNER_RUNTIMES, "trt-11", None, grow)
        catalog = Catalog(api)
        await catalog.resync()
        assert catalog.problem(TUNER_RUNTIMES, "trt-11") == ""
        assert catalog.runtime("trt-11") is not None

    asyncio.run(main())


def test_a_list_that_fails_halfway_changes_nothing_and_loses_no_change() -> None:
    async def main() -> None:
        api = cluster()
        catalog = Catalog(api)
        await catalog.resync()
        api.remove(TUNER_RUNTIMES, "trt-11")
        api.fail(Unavailable("no answer"), "list", ARTIFACT_STORES)
        with pytest.raises(Unavailable):
            await catalog.resync()
        assert catalog.runtime("trt-11") is not None
        assert await catalog.resync() == {Named(TUNER_RUNTIMES, "trt-11")}

    asyncio.run(main())


def test_a_list_under_way_does_not_undo_a_newer_read() -> None:
    class Slow(FakeApi):
        """Answers a list of channels as of when it was asked, but late."""

        slow = False
        asked = asyncio.Event()

        async def list(
            self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
        ) -> list[Object]:
            answer = await super().list(resource, namespace, labels=labels, fields=fields)
            if self.slow and resource == TUNER_CHANNELS:
                self.asked.set()
                for _ in range(10):
                    await asyncio.sleep(0)
            return answer

    async def main() -> None:
        api = Slow()
        api.seed(TUNER_CHANNELS, CHANNEL)
        catalog = Catalog(api)
        await catalog.resync()
        api.slow = True
        listing = asyncio.ensure_future(catalog.resync())
        await api.asked.wait()
        api.edit(TUNER_CHANNELS, "stable", None, lambda body: body["spec"].update(runtimeRef={"name": "new"}))
        await catalog.refresh(TUNER_CHANNELS, "stable")
        await listing
        channel = catalog.channel("stable")
        assert channel is not None
        assert channel.spec.runtime_ref.name == "new"

    asyncio.run(main())
