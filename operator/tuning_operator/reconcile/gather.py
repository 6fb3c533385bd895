"""Everything that one look at a TuningJob needs to know, read in the order that snapshot.py promises. Writes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.conditions import Reason
from tuner_job.api.measurement import Device
from tuner_job.api.messages import BeatState
from tuner_job.api.tuningjob import Target, TuningJob
from tuner_job.api.tuningjob_status import TuningJobStatus
from tuner_job.store.objects import ObjectStore
from tuning_operator.catalog import Catalog
from tuning_operator.config import OperatorConfig
from tuning_operator.jobs import names
from tuning_operator.jobs.nodes import matching
from tuning_operator.jobs.template import placement
from tuning_operator.jobs.views import create_problem, job_view, pod_view
from tuning_operator.kube.api import EVENTS, JOBS, PODS, TUNING_JOBS, KubeApi, KubeError, NotFound, Object, Unavailable
from tuning_operator.reconcile.case import in_store
from tuning_operator.reconcile.memory import Memory
from tuning_operator.reconcile.nodes import Nodes
from tuning_operator.reconcile.wanted import parse_job, store_at, store_of, wanted_of
from tuning_operator.records.mirror import Mirror
from tuning_operator.records.stores import Stores, problem_of
from tuning_operator.snapshot import JobView, PodView, Problem, RunView, Snapshot, StoreView, TargetSnapshot, Wanted

READ_SECONDS = 30.0
"""For the records of one job's runs. The first read of a run with a thousand workers takes some seconds."""

Records = Mapping[str, RunView | Problem | None]
"""Run → what its records say."""


@dataclass(frozen=True)
class _Means:
    """What a look reads with."""

    config: OperatorConfig
    api: KubeApi
    catalog: Catalog
    stores: Stores
    mirror: Mirror
    memory: Memory
    nodes: Nodes
    now: Callable[[], datetime]


@dataclass(frozen=True)
class Unreadable:
    """A TuningJob that is there, but whose spec this operator cannot read (an older or newer schema)."""

    namespace: str
    name: str
    uid: str
    generation: int
    problem: Problem
    status: TuningJobStatus | None
    """As stored, if that much can be read."""


class Gatherer:
    """Makes snapshots, for many TuningJobs at once."""

    def __init__(
        self,
        config: OperatorConfig,
        api: KubeApi,
        catalog: Catalog,
        stores: Stores,
        mirror: Mirror,
        memory: Memory,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._means = _Means(config, api, catalog, stores, mirror, memory, Nodes(api, config), now)

    async def gather(self, namespace: str, name: str) -> Snapshot | Unreadable | None:
        """None: it is gone, or going with all that it owns. Raises KubeError."""
        if not self._means.catalog.synced:
            raise Unavailable("runtimes, channels and stores have not been listed yet")
        try:
            body = await self._means.api.get(TUNING_JOBS, name, namespace)
        except NotFound:
            return None
        if body["metadata"].get("deletionTimestamp"):
            return None
        job = _read(body)
        return job if isinstance(job, Unreadable) else await _Look(self._means, job).snapshot()


class _Look:
    """One look at one job."""

    def __init__(self, means: _Means, job: TuningJob) -> None:
        self._means = means
        self._job = job
        self._namespace = job.metadata.namespace or ""
        self._uid = job.metadata.uid
        store = self._store = store_of(job, means.catalog)
        self._asked: dict[str, Wanted | Problem] = {
            target.name: store if isinstance(store, Problem) else wanted_of(job, target, store, means.catalog, means.config)
            for target in job.spec.targets
        }
        self._away: Problem | None = None
        """Why no record can be read now."""

    async def snapshot(self) -> Snapshot:
        wanted = {name: each for name, each in self._asked.items() if isinstance(each, Wanted)}
        settled = {name for name, each in wanted.items() if self._is_settled(name, each)}
        adrift = self._adrift()
        records = dict(await self._records([*(wanted[name].run for name in wanted.keys() - settled), *adrift.values()]))
        jobs = await self._jobs()
        restless = {each.target for each in jobs if each.end is None}
        stale = {wanted[name].run for name in settled & restless} | _outrun(jobs, records)
        settled -= restless
        if stale:  # once more, so that no Job is seen to have ended before the record that it ended for
            records = {run: read for run, read in records.items() if run not in stale} | dict(await self._records(stale))
        for name in settled:
            self._means.mirror.forget(wanted[name].run)
        pods = await self._pods(jobs, records, settled)
        jobs = [await self._explained(each, pods) for each in jobs]
        targets = [await self._target(target, records, jobs, pods) for target in self._job.spec.targets]
        known = {target.name for target in self._job.spec.targets}
        return Snapshot(
            job=self._job,
            now=self._means.now(),
            targets=tuple(targets),
            orphans=tuple(each for each in jobs if each.target not in known),
            orphan_stores=self._orphan_stores(jobs, wanted),
        )

    def _adrift(self) -> dict[str, str]:
        """Target → its run under way, where it is not known what is wanted now: its workers go on, and are to be counted."""
        if isinstance(self._store, Problem) or self._job.status is None:
            return {}
        return {
            each.name: each.active_run
            for each in self._job.status.targets
            if each.active_run is not None and isinstance(self._asked.get(each.name), Problem) and in_store(each, self._store)
        }

    def _is_settled(self, target: str, wanted: Wanted) -> bool:
        status = self._job.status
        if status is None or status.observed_generation != self._job.metadata.generation:
            return False
        own = next((each for each in status.targets if each.name == target), None)
        if own is None or own.active_run is not None or not in_store(own, wanted.store):
            return False
        return own.recent_runs[:1] != () and own.recent_runs[0].id == wanted.run

    async def _records(self, runs: Iterable[str]) -> Records:
        """All runs of a job are in one store, so one thread reads them."""
        due = sorted({*runs})
        if not due or isinstance(self._store, Problem) or self._away is not None:
            return {}
        self._away = await self._means.stores.check(self._store)
        if self._away is not None:
            return {}

        def read(store: ObjectStore) -> Records:
            return {run: self._means.mirror.read(store, run) for run in due}

        try:
            return await self._means.stores.call(self._store, read, READ_SECONDS)
        except TrtfleetError as error:
            self._away = problem_of(error)
            return {}

    async def _jobs(self) -> list[JobView]:
        found = await self._means.api.list(JOBS, self._namespace, labels=names.workers_of(self._uid))
        views = (job_view(each, self._uid) for each in found)
        return sorted((each for each in views if each is not None), key=lambda each: (each.target, each.attempt, each.name))

    async def _pods(self, jobs: Iterable[JobView], records: Records, settled: set[str]) -> dict[str, list[PodView]]:
        """By target. Also of Jobs that are gone: a worker may outlive its Job for a while."""
        beating = any(
            beat.state is BeatState.RUNNING for run in records.values() if isinstance(run, RunView) for beat in run.beats.values()
        )
        if not beating and all(each.target in settled for each in jobs):
            return {}
        pods: dict[str, list[PodView]] = {}
        for body in await self._means.api.list(PODS, self._namespace, labels=names.workers_of(self._uid)):
            view = pod_view(body, self._uid)
            if view is not None:
                pods.setdefault(body["metadata"]["labels"].get(names.TARGET, ""), []).append(view)
        return pods

    async def _explained(self, job: JobView, pods: Mapping[str, list[PodView]]) -> JobView:
        """With the reason why it has no pod, although it should."""
        has_pods = job.active or job.terminating or any(pod.job == job.name for pod in pods.get(job.target, ()))
        if has_pods or job.end is not None or job.suspended or job.deleting:
            return job
        with contextlib.suppress(KubeError):  # it only explains
            events = await self._means.api.list(EVENTS, self._namespace, fields=f"regarding.uid={job.uid}")
            return replace(job, create_problem=create_problem(events))
        return job

    async def _target(
        self, target: Target, records: Records, jobs: Iterable[JobView], pods: Mapping[str, list[PodView]]
    ) -> TargetSnapshot:
        own_jobs = tuple(each for each in jobs if each.target == target.name)
        own_pods = tuple(pods.get(target.name, ()))
        asked = self._asked[target.name]
        if isinstance(asked, Problem):
            read = records.get(self._adrift().get(target.name, ""))
            going = read if isinstance(read, RunView) else None
            return TargetSnapshot(target.name, problem=asked, run=going, jobs=own_jobs, pods=own_pods)
        read = records.get(asked.run)
        unread = asked.run not in records and not self._is_settled(target.name, asked)
        run = read if isinstance(read, RunView) else None
        of_class = of_target = None
        if self._asks_for_nodes(run, asked, unread, own_jobs, own_pods):
            nodes = await self._means.nodes.list()
            if nodes is not None:
                of_target = self._fitting(nodes, target, None)
                of_class = None if run is None or run.device is None else self._fitting(nodes, target, run.device)
        place = (self._uid, target.name, self._job.metadata.generation, asked.place)
        return TargetSnapshot(
            target.name,
            problem=self._away if unread else None,
            wanted=asked,
            run=run,
            run_problem=read if isinstance(read, Problem) else None,
            publication=self._means.memory.publication(*place),
            refused=self._means.memory.refusal(*place),
            jobs=own_jobs,
            pods=own_pods,
            nodes_of_class=of_class,
            nodes_of_target=of_target,
        )

    def _asks_for_nodes(
        self, run: RunView | None, wanted: Wanted, unread: bool, jobs: Iterable[JobView], pods: Iterable[PodView]
    ) -> bool:
        """A Job is about to be created, or its pods find no node."""
        if any(pod.unschedulable for pod in pods):
            return True
        due = run.stage is not None if run is not None else not unread and not self._has_ended(wanted)
        return due and not self._job.spec.suspend and all(each.end is not None for each in jobs)

    def _has_ended(self, wanted: Wanted) -> bool:
        targets = self._job.status.targets if self._job.status else ()
        return any(past.id == wanted.run for target in targets for past in target.recent_runs)

    def _fitting(self, nodes: list[Object], target: Target, device: Device | None) -> int | None:
        try:
            return matching(nodes, placement(self._job, target, device, self._means.config))
        except (InputError, ValueError):  # what creating the Job will say better
            return None

    def _orphan_stores(self, jobs: Iterable[JobView], wanted: Mapping[str, Wanted]) -> dict[str, StoreView]:
        """Of Jobs that nobody wants any more. A store that no ArtifactStore names any more, or not to this namespace, is none."""
        now = None if isinstance(self._store, Problem) else self._store
        current = {each.run for each in wanted.values()}
        found = {}
        for each in jobs:
            if now is not None and each.store in ("", now.url):
                if each.run not in current:
                    found[each.uid] = now
            elif each.store and (other := store_at(each.store, self._namespace, self._means.catalog)) is not None:
                found[each.uid] = other
        return found


def _read(body: Object) -> TuningJob | Unreadable:
    """The job; without its status, if only that cannot be read."""
    try:
        return parse_job(body)
    except InputError:
        pass
    try:
        return parse_job(body, status=False)
    except InputError as error:
        metadata = body["metadata"]
        status = None
        with contextlib.suppress(ValueError):
            status = TuningJobStatus.model_validate(body.get("status") or {})
        return Unreadable(
            namespace=metadata.get("namespace", ""),
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            problem=Problem(Reason.INVALID_SPEC, str(error)),
            status=status,
        )


def _outrun(jobs: Iterable[JobView], records: Records) -> set[str]:
    """Runs whose records were read before a Job of their present stage was seen to have ended."""
    live = {each.run for each in jobs if each.end is None}
    ended = {(each.run, each.stage) for each in jobs if each.run not in live}
    return {run for run, read in records.items() if isinstance(read, RunView) and (run, read.stage) in ended}
