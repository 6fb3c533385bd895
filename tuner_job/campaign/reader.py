"""A run as its records tell it. Immutable records are read once and kept; nothing here writes."""

from __future__ import annotations

from collections.abc import Sequence

from tuner_job.api.base import InputError
from tuner_job.api.messages import (
    BeatRecord,
    DiscoveryRecord,
    PlanRecord,
    ResultRecord,
    RunRecord,
    SealRecord,
    VerdictRecord,
)
from tuner_job.campaign.rounds import Fold
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import read_record


class RunReader:
    """Reads one run. Completeness is judged by keys that the plan knows, never by listing."""

    def __init__(self, store: ObjectStore, run: str) -> None:
        self._store = store
        self._id = run
        self._run: RunRecord | None = None
        self._discovery: DiscoveryRecord | None = None
        self._plans: list[PlanRecord] = []
        self._seals: list[SealRecord] = []
        self._results: dict[str, ResultRecord] = {}
        self._verdict: VerdictRecord | None = None

    @property
    def run(self) -> RunRecord:
        """Raises InputError when the store has no such run."""
        if self._run is None:
            self._run = read_record(self._store, layout.run(self._id), RunRecord)
        if self._run is None:
            raise InputError(f"no run {self._id} in {self._store.url}", reason="NoSuchRun")
        return self._run

    def discovery(self) -> DiscoveryRecord | None:
        if self._discovery is None:
            self._discovery = read_record(self._store, layout.discovery(self._id), DiscoveryRecord)
        return self._discovery

    def plans(self) -> Sequence[PlanRecord]:
        """Every plan written so far, round 1 first."""
        while not self._plans or self._plans[-1].stage != "final":
            plan = read_record(self._store, layout.plan(self._id, len(self._plans) + 1), PlanRecord)
            if plan is None:
                break
            self._plans.append(plan)
        return self._plans

    def seals(self) -> Sequence[SealRecord]:
        while seal := read_record(self._store, layout.seal(self._id, len(self._seals) + 1), SealRecord):
            self._seals.append(seal)
        return self._seals

    def result(self, trial: str) -> ResultRecord | None:
        if trial not in self._results:
            found = read_record(self._store, layout.result(self._id, trial), ResultRecord)
            if found is None:
                return None
            self._results[trial] = found
        return self._results[trial]

    def known(self, trial: str) -> ResultRecord | None:
        """The result if it was read before; asks the store nothing."""
        return self._results.get(trial)

    def verdict(self) -> VerdictRecord | None:
        if self._verdict is None:
            self._verdict = read_record(self._store, layout.verdict(self._id), VerdictRecord)
        return self._verdict

    def beat(self, worker: str) -> BeatRecord | None:
        return read_record(self._store, layout.beat(self._id, worker), BeatRecord)

    def workers(self) -> list[str]:
        """Names of all workers that ever beat, latest attempt last. By listing: for display and local bookkeeping only."""
        names = [info.key.rpartition("/")[2].removesuffix(".json") for info in self._store.list(layout.beats(self._id))]
        return sorted(names, key=lambda name: tuple(int(part) for part in name.split("-") if part.isdigit()))

    def newest_beat(self) -> BeatRecord | None:
        """The beat of a worker of the latest attempt."""
        names = self.workers()
        return self.beat(names[-1]) if names else None

    def fold(self) -> Fold:
        """All sealed rounds with their results. Needs discovery."""
        discovery = self.discovery()
        if discovery is None:
            raise InputError(f"run {self._id} has not been discovered yet", reason="NotDiscovered")
        seals = tuple(self.seals())
        plans = tuple(self.plans()[: len(seals)])
        results = {}
        for seal in seals:
            for item in seal.folded:
                result = self.result(item.trial)
                if result is None:
                    raise InputError(
                        f"{layout.seal(self._id, seal.round)} folds {item.trial}, whose result is gone from {self._store.url}",
                        reason="PoisonedRecord",
                    )
                results[item.trial] = result
        return Fold(self.run, discovery, plans, seals, results)
