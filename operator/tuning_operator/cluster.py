"""What the cluster-scoped objects are told of themselves: the condition `Ready` of each runtime, channel and store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from tuner_job.api.artifactstore import ArtifactStore
from tuner_job.api.conditions import ConditionType, Reason, with_condition
from tuner_job.api.runtime import PlainStatus, TunerChannel, TunerRuntime
from tuning_operator.catalog import Catalog, Kept
from tuning_operator.kube.api import KubeApi, KubeError
from tuning_operator.records.stores import Stores
from tuning_operator.snapshot import Problem

log = logging.getLogger("trtfleet.cluster")


class ClusterStatus:
    """Writes a status only where it differs from the one that the catalog read."""

    def __init__(
        self, api: KubeApi, catalog: Catalog, stores: Stores, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._api = api
        self._catalog = catalog
        self._stores = stores
        self._now = now
        self.is_due = asyncio.Event()
        """Set after a listing and a change: `run` looks again."""

    async def run(self) -> None:
        """Look whenever it is due. Not a part of the resync, since a store may be slow to answer."""
        while True:
            await self.is_due.wait()
            self.is_due.clear()
            await self.look()

    async def look(self) -> None:
        """At all objects. One whose status cannot be written is tried again when it is due next."""
        for kept in self._catalog.all():
            problem = await self._problem(kept)
            before = kept.status or PlainStatus()
            conditions = with_condition(
                before.conditions,
                ConditionType.READY,
                problem is None,
                problem.reason if problem else Reason.VALID,
                problem.message if problem else "",
                generation=kept.generation,
                now=self._now(),
            )
            after = PlainStatus(observed_generation=kept.generation, conditions=conditions)
            if after == before:
                continue
            resource, name = kept.named.resource, kept.named.name
            try:
                body = after.model_dump(mode="json", by_alias=True, exclude_none=True)
                await self._api.apply_status(resource, name, None, body)
            except KubeError as error:
                log.warning("%s %s: its status was not written: %s", resource.kind, name, error)

    async def _problem(self, kept: Kept) -> Problem | None:
        match kept.model:
            case TunerRuntime() as runtime if not runtime.spec.image:
                return Problem(Reason.IMAGE_MISSING, "spec.image is missing, which pods need; create a runtime that has it")
            case TunerChannel() as channel if self._catalog.runtime(name := channel.spec.runtime_ref.name) is None:
                return Problem(Reason.REFERENCE_NOT_FOUND, f"spec.runtimeRef: there is no TunerRuntime {name} that can be read")
            case ArtifactStore() as store:
                return await self._store_problem(store)
            case None:
                return Problem(Reason.INVALID_SPEC, kept.problem)
        return None

    async def _store_problem(self, store: ArtifactStore) -> Problem | None:
        """As the first of its namespaces sees it: honesty and credentials are the same for all."""
        allowed = store.spec.allowed_namespaces
        view = Stores.view(store, allowed[0].name if allowed else "")
        return view if isinstance(view, Problem) else await self._stores.check(view)
