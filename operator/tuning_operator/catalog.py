"""The cluster-scoped objects that TuningJobs name: runtimes, channels, stores. There are few, so all are kept.

They are listed at the start and at each resync, and a list replaces what was known: a deletion that the watch lost is made good
then. Between the lists each event has its object read again. Nothing here writes.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TypeVar

from tuner_job.api.artifactstore import ArtifactStore
from tuner_job.api.base import InputError
from tuner_job.api.documents import parse_resource
from tuner_job.api.resource import Resource as Model
from tuner_job.api.runtime import PlainStatus, TunerChannel, TunerRuntime
from tuning_operator.kube.api import ARTIFACT_STORES, TUNER_CHANNELS, TUNER_RUNTIMES, KubeApi, NotFound, Object, Resource

KINDS: dict[Resource, type[Model]] = {
    TUNER_RUNTIMES: TunerRuntime,
    TUNER_CHANNELS: TunerChannel,
    ARTIFACT_STORES: ArtifactStore,
}
_READ = ("name", "uid", "generation", "labels", "annotations", "creationTimestamp", "deletionTimestamp")
"""Of the metadata: the rest may hold what a newer server adds."""

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class Named:
    """An object of a kind."""

    resource: Resource
    name: str


@dataclass(frozen=True)
class Kept:
    """All that is kept of an object."""

    named: Named
    generation: int
    problem: str
    """Why there is no model."""
    model: Model | None
    status: PlainStatus | None


@dataclass(frozen=True)
class _Entry:
    uid: str
    generation: int
    problem: str
    """Why there is no model."""
    model: Model | None = field(compare=False)
    """Of this uid and generation: the same entry has the same spec."""
    status: PlainStatus | None = field(compare=False, default=None)
    """As it was read last."""


class Catalog:
    """What is there now, as far as lists and events tell."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._entries: dict[Resource, dict[str, _Entry]] = {resource: {} for resource in KINDS}
        self._lock = asyncio.Lock()
        """Reads follow each other, so that the later answer is the newer one."""
        self.synced = False
        """Whether all kinds have been listed; until then an object that is not here may only be unread."""

    def runtime(self, name: str) -> TunerRuntime | None:
        return self._find(TUNER_RUNTIMES, name, TunerRuntime)

    def channel(self, name: str) -> TunerChannel | None:
        return self._find(TUNER_CHANNELS, name, TunerChannel)

    def store(self, name: str) -> ArtifactStore | None:
        return self._find(ARTIFACT_STORES, name, ArtifactStore)

    def stores(self) -> tuple[ArtifactStore, ...]:
        """Those that could be parsed."""
        known = (entry.model for entry in self._entries[ARTIFACT_STORES].values())
        return tuple(model for model in known if isinstance(model, ArtifactStore))

    def all(self) -> tuple[Kept, ...]:
        return tuple(
            Kept(Named(resource, name), entry.generation, entry.problem, entry.model, entry.status)
            for resource, entries in self._entries.items()
            for name, entry in sorted(entries.items())
        )

    def problem(self, resource: Resource, name: str) -> str:
        """Why an object that is there could not be parsed, in one line; empty when it could, or is not there."""
        entry = self._entries[resource].get(name)
        return entry.problem if entry else ""

    async def resync(self) -> frozenset[Named]:
        """List all kinds; returns what is new, gone or of another spec. Raises KubeError, and has changed nothing then."""
        async with self._lock:
            listed = {resource: _entries(resource, await self._api.list(resource)) for resource in KINDS}
            known, self._entries, self.synced = self._entries, listed, True
        return frozenset(
            Named(resource, name)
            for resource in KINDS
            for name in known[resource].keys() | listed[resource]
            if known[resource].get(name) != listed[resource].get(name)
        )

    async def refresh(self, resource: Resource, name: str) -> bool:
        """Read one object again; whether its spec changed, or it came or went. Raises KubeError."""
        async with self._lock:
            try:
                entry = _entry(resource, await self._api.get(resource, name))
            except NotFound:
                return self._entries[resource].pop(name, None) is not None
            changed = self._entries[resource].get(name) != entry
            self._entries[resource][name] = entry
            return changed

    def _find(self, resource: Resource, name: str, model: type[M]) -> M | None:
        entry = self._entries[resource].get(name)
        return entry.model if entry is not None and isinstance(entry.model, model) else None


def _entries(resource: Resource, bodies: list[Object]) -> dict[str, _Entry]:
    return {each["metadata"]["name"]: _entry(resource, each) for each in bodies}


def _entry(resource: Resource, body: Object) -> _Entry:
    metadata = body["metadata"]
    uid, generation = metadata.get("uid", ""), metadata.get("generation", 0)
    status = None
    with contextlib.suppress(ValueError):  # one that cannot be read is written anew
        status = PlainStatus.model_validate(body.get("status") or {})
    plain = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {part: metadata[part] for part in _READ if part in metadata},
        "spec": body.get("spec", {}),
    }
    try:
        return _Entry(uid, generation, "", parse_resource(plain, "cluster"), status)
    except InputError as error:
        return _Entry(uid, generation, str(error), None, status)
