"""What runtimes, channels and stores are told of themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi
from store_cluster import CountingStore, artifact_store, counting_store, runtime

from tuning_operator.catalog import Catalog
from tuning_operator.cluster import ClusterStatus
from tuning_operator.config import OperatorConfig
from tuning_operator.kube.api import ARTIFACT_STORES, TUNER_CHANNELS, TUNER_RUNTIMES, Object, Resource, Unavailable
from tuning_operator.records import stores as module
from tuning_operator.records.stores import Stores

SECRET = {"type": "Secret", "secret": {"operatorSecretName": "admin", "tenantSecretName": "tenant"}}


@dataclass
class World:
    api: FakeApi
    store: CountingStore
    catalog: Catalog
    stores: Stores
    status: ClusterStatus
    clock: list[float]

    async def look(self) -> None:
        await self.catalog.resync()
        await self.status.look()

    def ready(self, resource: Resource, name: str) -> Object:
        body = self.api.peek(resource, name)
        assert body is not None
        (condition,) = body["status"]["conditions"]
        assert condition["type"] == "Ready"
        assert body["status"]["observedGeneration"] == condition["observedGeneration"] == body["metadata"]["generation"]
        found: Object = condition
        return found


def world(tmp_path: Path, *, image: bool = True, **store: Any) -> World:
    api, kept, clock = FakeApi(), counting_store(), [0.0]
    api.seed(TUNER_RUNTIMES, runtime() if image else runtime(image=None))
    api.seed(TUNER_CHANNELS, {"metadata": {"name": "stable"}, "spec": {"runtimeRef": {"name": "ort"}}})
    api.seed(ARTIFACT_STORES, artifact_store(**store))

    def opener(_url: str, _options: Mapping[str, str]) -> CountingStore:
        return kept

    config = OperatorConfig(cluster="lab", operator_namespace="trtfleet", stores_folder=tmp_path)
    catalog, stores = Catalog(api), Stores(config, opener=opener, patience=60.0, clock=lambda: clock[0])

    def now() -> datetime:
        return datetime.fromtimestamp(1_800_000_000 + clock[0], UTC)

    return World(api, kept, catalog, stores, ClusterStatus(api, catalog, stores, now=now), clock)


def test_what_can_be_used_is_ready_and_is_told_so_once(tmp_path: Path) -> None:
    async def main() -> None:
        these = world(tmp_path)
        await these.look()
        for resource, name in ((TUNER_RUNTIMES, "ort"), (TUNER_CHANNELS, "stable"), (ARTIFACT_STORES, "main")):
            ready = these.ready(resource, name)
            assert (ready["status"], ready["reason"]) == ("True", "Valid")
        assert len(these.api.writes) == 3
        these.clock[0] = 600
        await these.look()
        assert len(these.api.writes) == 3, "nothing has changed"
        await these.stores.close()

    asyncio.run(main())


def test_a_runtime_without_an_image_is_not_ready(tmp_path: Path) -> None:
    async def main() -> None:
        these = world(tmp_path, image=False)
        await these.look()
        ready = these.ready(TUNER_RUNTIMES, "ort")
        assert (ready["status"], ready["reason"]) == ("False", "ImageMissing")
        await these.stores.close()

    asyncio.run(main())


def test_a_channel_is_ready_as_long_as_its_runtime_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        these = world(tmp_path)
        await these.look()
        since = these.ready(TUNER_CHANNELS, "stable")["lastTransitionTime"]
        these.api.remove(TUNER_RUNTIMES, "ort")
        these.clock[0] = 60
        await these.look()
        ready = these.ready(TUNER_CHANNELS, "stable")
        assert (ready["status"], ready["reason"]) == ("False", "ReferenceNotFound")
        assert "TunerRuntime ort" in ready["message"]
        assert ready["lastTransitionTime"] > since
        await these.stores.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fault", "spec", "reason"),
    [
        ("lies", {}, "StoreNotConditional"),
        ("down", {}, "StoreUnavailable"),
        ("", {"credentials": SECRET}, "StoreNotMounted"),
        ("", {"url": "file:///srv/tuning"}, "InvalidSpec"),
        ("", {"allowedNamespaces": []}, "NamespaceNotAllowed"),
    ],
)
def test_a_store_that_cannot_be_used_says_why(tmp_path: Path, fault: str, spec: dict[str, Any], reason: str) -> None:
    async def main() -> None:
        these = world(tmp_path, **spec)
        these.store.ignores_conditions, these.store.down = fault == "lies", fault == "down"
        await these.look()
        ready = these.ready(ARTIFACT_STORES, "main")
        assert (ready["status"], ready["reason"]) == ("False", reason)
        these.store.ignores_conditions = these.store.down = False
        these.clock[0] = module.PROBE_BAD_SECONDS + 1
        await these.look()
        assert (these.ready(ARTIFACT_STORES, "main")["status"] == "True") == bool(fault), "it is well again"
        await these.stores.close()

    asyncio.run(main())


def test_a_status_that_could_not_be_written_is_written_at_the_next_look(tmp_path: Path) -> None:
    async def main() -> None:
        these = world(tmp_path)
        these.api.fail(Unavailable("down"), resource=TUNER_RUNTIMES, verb="apply_status")
        await these.look()
        assert these.ready(TUNER_CHANNELS, "stable")["status"] == "True", "one failure holds up no other"
        await these.look()
        assert these.ready(TUNER_RUNTIMES, "ort")["status"] == "True"
        await these.stores.close()

    asyncio.run(main())
