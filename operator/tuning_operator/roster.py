"""The TuningJobs that this process knows of: which cluster objects they name, how far they were looked at, what status says.

All of it can be read again. It is kept so that a change reaches those whom it concerns, and the echo of an own write nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tuner_job.api.tuningjob import TuningJob
from tuning_operator.kube.api import Object
from tuning_operator.metrics import JobState
from tuning_operator.queue import Key

UNTOLD_SECONDS = 120.0
"""A change that a listing shows and no watch event has told for so long means that the watch is silent."""


@dataclass
class Entry:
    """One TuningJob."""

    version: int = 0
    """`metadata.resourceVersion` up to which it was looked at."""
    told: int = 0
    """The same, up to which watch events told of it."""
    uses: frozenset[str] = frozenset()
    """`<kind>/<name>` of the cluster objects that it names."""
    state: JobState | None = None
    written_at: float = float("-inf")
    """When its status was last written by this process (monotonic)."""


class Roster:
    """Pure but for the times it is given, which are monotonic seconds."""

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self._untold: dict[Key, tuple[int, float]] = {}
        """Key → version that a listing showed first, and when."""

    def entry(self, key: Key) -> Entry:
        return self.entries.setdefault(key, Entry())

    def forget(self, key: Key) -> None:
        self.entries.pop(key, None)
        self._untold.pop(key, None)

    def looked(self, key: Key, job: TuningJob) -> None:
        """It was read as it is in `job`."""
        entry = self.entry(key)
        entry.version = max(entry.version, _number(job.metadata.resource_version))
        entry.uses = frozenset(
            {f"ArtifactStore/{job.spec.store_ref.name}"}
            | {f"TunerRuntime/{each.runtime_ref.name}" for each in job.spec.targets if each.runtime_ref}
            | {f"TunerChannel/{each.channel_ref.name}" for each in job.spec.targets if each.channel_ref}
        )

    def told(self, key: Key, version: int) -> bool:
        """A watch event came; whether it tells anything new. An object without a version (0) always does."""
        entry = self.entry(key)
        entry.told = max(entry.told, version)
        if key in self._untold and version >= self._untold[key][0]:
            del self._untold[key]
        return version == 0 or version > entry.version

    def is_behind(self, key: Key) -> bool:
        """Whether events have told of more than was looked at."""
        entry = self.entries.get(key)
        return entry is not None and entry.told > entry.version

    def listed(self, objects: Iterable[Object], now: float, *, first: bool) -> set[Key]:
        """A listing came; all keys to look at: those listed, and those known but gone. `first`: no event can have told yet."""
        keys = set[Key]()
        for each in objects:
            key = key_of(each)
            keys.add(key)
            entry, version = self.entry(key), version_of(each)
            entry.uses = uses_of(each)
            if not first and version > max(entry.version, entry.told):
                self._untold.setdefault(key, (version, now))
        return keys | self.entries.keys()

    def untold(self, now: float) -> int:
        """TuningJobs whose change is overdue from the watch."""
        return sum(now - since > UNTOLD_SECONDS for _, since in self._untold.values())

    def users(self, kind: str, name: str) -> list[Key]:
        """Who must look again when this cluster object changes. Of a TunerRuntime, also whoever follows a channel."""
        channels = kind == "TunerRuntime"
        return [
            key
            for key, entry in self.entries.items()
            if f"{kind}/{name}" in entry.uses or (channels and any(each.startswith("TunerChannel/") for each in entry.uses))
        ]


def key_of(job: Object) -> Key:
    return job["metadata"]["namespace"], job["metadata"]["name"]


def version_of(job: Object) -> int:
    """Resource versions of one resource compare as numbers; 0 when a server should ever count otherwise."""
    return _number(str(job["metadata"].get("resourceVersion", "")))


def uses_of(job: Object) -> frozenset[str]:
    """The cluster objects that a TuningJob names, as far as its spec can be read at all."""
    spec = job.get("spec")
    if not isinstance(spec, dict):
        return frozenset()
    targets = [each for each in spec.get("targets") or () if isinstance(each, dict)]
    named = [
        ("ArtifactStore", spec.get("storeRef")),
        *(("TunerRuntime", each.get("runtimeRef")) for each in targets),
        *(("TunerChannel", each.get("channelRef")) for each in targets),
    ]
    return frozenset(f"{kind}/{ref['name']}" for kind, ref in named if isinstance(ref, dict) and "name" in ref)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
