"""The loop: a key comes out of the queue, one look at its TuningJob, what is due is done, one status write.

Nothing is remembered here that could not be read again: a lost key comes back with the next resync, a lost status with the next
look. Two controllers at once are harmless, only wasteful.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tuner_job.api.base import TrtfleetError
from tuner_job.api.tuningjob_status import TuningJobStatus
from tuning_operator import log as lines
from tuning_operator.actions import Decision
from tuning_operator.catalog import Catalog
from tuning_operator.changes import only_progress, transitions
from tuning_operator.cluster import ClusterStatus
from tuning_operator.config import OperatorConfig
from tuning_operator.kube.api import TUNING_JOBS, KubeApi, KubeError, NotFound, Throttled
from tuning_operator.kube.events import EventRecorder, Regarding
from tuning_operator.metrics import JobState, Metrics, gpu_class
from tuning_operator.queue import Key, QueueClosed, WorkQueue
from tuning_operator.reconcile.act import Actor
from tuning_operator.reconcile.decide import decide, decide_unreadable
from tuning_operator.reconcile.gather import Gatherer, Unreadable
from tuning_operator.roster import Roster, version_of
from tuning_operator.snapshot import Snapshot

LOOK_SECONDS = 120.0
"""For one look at one TuningJob. Each call within has a deadline of its own; this is for what nobody thought of."""

STUCK_SECONDS = 2 * LOOK_SECONDS
"""A look that has outlived its own cancellation for so long fails the liveness probe."""

log = logging.getLogger("trtfleet.controller")


@dataclass(frozen=True)
class _End:
    """How a look ended."""

    result: str
    """Of the metrics: ok, gone, error, timeout or unexpected."""
    again: float | None = None
    """Seconds to the next look, at least; None: when something changes, or with the queue's growing delay."""
    failed: bool = False
    """Whether the queue tries again by itself."""
    reason: str = ""
    """Of the error."""


@dataclass(frozen=True)
class _Told:
    """A TuningJob, and what its status says so far."""

    key: Key
    uid: str
    generation: int
    status: TuningJobStatus | None


class Controller:
    """Owns the reconcilers and the resync. `run` works until `stop`."""

    def __init__(
        self,
        config: OperatorConfig,
        api: KubeApi,
        queue: WorkQueue,
        catalog: Catalog,
        gatherer: Gatherer,
        actor: Actor,
        recorder: EventRecorder,
        metrics: Metrics,
        cluster: ClusterStatus,
    ) -> None:
        self._config = config
        self._api = api
        self._queue = queue
        self._catalog = catalog
        self._gatherer = gatherer
        self._actor = actor
        self._recorder = recorder
        self._metrics = metrics
        self._cluster = cluster
        self._roster = Roster()
        self._tasks: list[asyncio.Task[None]] = []
        self._looking: dict[Key, float] = {}
        """Key under work → since when (monotonic)."""
        self._stopping = False
        self._began_at: float | None = None
        self._resynced_at: float | None = None
        metrics.depth.set_function(lambda: queue.depth)
        metrics.untold.set_function(lambda: self._roster.untold(_now()))
        metrics.count_jobs(lambda: [each.state for each in self._roster.entries.values() if each.state is not None])

    # What the watch tells.

    def job_event(self, namespace: str, name: str, version: int) -> None:
        """A TuningJob is there, or is no more. `version`: its resourceVersion as a number."""
        key = (namespace, name)
        if self._roster.told(key, version) and key not in self._looking:
            self._queue.add(key)

    def enqueue(self, namespace: str, name: str) -> None:
        """Something that belongs to the TuningJob changed."""
        self._queue.add((namespace, name))

    def enqueue_users(self, kind: str, name: str) -> None:
        """A cluster object changed: whoever names it looks again."""
        self._cluster.is_due.set()
        for key in self._roster.users(kind, name):
            self._queue.add(key)

    # What the probes ask.

    def reconcilers_problem(self) -> str:
        ended = [task.get_name() for task in self._tasks if task.done()]
        if ended and not self._stopping:
            return f"{', '.join(ended)} ended"
        longest = max((_now() - since for since in self._looking.values()), default=0.0)
        if longest <= STUCK_SECONDS:
            return ""
        return f"a look at a TuningJob has taken {longest:.0f} s; the limit is {LOOK_SECONDS:.0f} s"

    def resync_problem(self) -> str:
        since = self._resynced_at if self._resynced_at is not None else self._began_at
        limit = 3 * self._config.resync_seconds + LOOK_SECONDS
        if since is None or _now() - since <= limit:
            return ""
        return f"no full listing succeeded for {_now() - since:.0f} s; the limit is {limit:.0f} s"

    def watch_problem(self) -> str:
        untold = self._roster.untold(_now())
        return f"changes of {untold} TuningJobs were listed, but no watch event told of them" if untold else ""

    # The tasks.

    async def run(self) -> None:
        """Reconcile and resync. Returns after `stop`; raises when a task ends before, with what ended it."""
        self._began_at = _now()
        self._tasks = [
            asyncio.create_task(self._reconcile_forever(), name=f"reconciler-{n}") for n in range(self._config.reconcilers)
        ]
        self._tasks.append(asyncio.create_task(self._resync_forever(), name="resync"))
        self._tasks.append(asyncio.create_task(self._cluster.run(), name="cluster status"))
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            if not self._stopping:
                ended = done.pop()
                raise RuntimeError(f"{ended.get_name()} ended") from (None if ended.cancelled() else ended.exception())
            await asyncio.wait(self._tasks)
        finally:
            await self._cancel()

    async def stop(self) -> None:
        """Take no more keys; give looks that are under way `stop_seconds`, then cancel them. Every task is awaited."""
        self._stopping = True
        self._queue.close()
        try:
            async with asyncio.timeout(self._config.stop_seconds):
                await self._queue.idle()
        except TimeoutError:
            log.warning("%d looks are not through after %.0f s: cancelled", len(self._looking), self._config.stop_seconds)
        await self._cancel()

    async def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _resync_forever(self) -> None:
        while True:
            pause = self._config.resync_seconds
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self.resync()
            except (KubeError, TimeoutError) as error:
                log.warning("resync failed: %s", str(error) or f"not through after {LOOK_SECONDS:.0f} s")
                pause = min(10.0, pause)
            await asyncio.sleep(pause * random.uniform(0.95, 1.05))  # noqa: S311 - it spreads load, no more

    async def resync(self) -> None:
        """List cluster objects and TuningJobs anew; look at all of these, and at those known that are listed no more.

        Raises KubeError.
        """
        await self._catalog.resync()
        self._cluster.is_due.set()
        listed = [each for space in self._config.namespaces or (None,) for each in await self._api.list(TUNING_JOBS, space)]
        now = _now()
        for key in self._roster.listed(listed, now, first=self._resynced_at is None):
            self._queue.add(key)
        self._resynced_at = now
        self._metrics.last_resync.set_to_current_time()
        log.info("resync: %d TuningJobs", len(listed))

    async def _reconcile_forever(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except QueueClosed:
                return
            end = _End("cancelled")
            began = self._looking[key] = _now()
            try:
                with lines.about(namespace=key[0], name=key[1], reconcile=secrets.token_hex(4)):
                    end = await self._reconcile(key)
            finally:
                del self._looking[key]
                if self._roster.is_behind(key):  # told meanwhile, and not by an own write
                    self._queue.add(key)
                self._queue.done(key, failed=end.failed, after=end.again)
                self._metrics.looked(end.result, _now() - began, reason=end.reason, retried=end.failed)

    # One look.

    async def _reconcile(self, key: Key) -> _End:
        """Raises nothing: whatever ends a look goes to the log, once, and this TuningJob is tried again."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return _End("ok", await self._look(key))
        except NotFound as error:  # it went meanwhile; the next look sees what is left
            log.info("%s", error)
            return _End("gone", failed=True)
        except KubeError as error:
            log.warning("%s: %s", error.reason, error)
            wait = error.retry_after if isinstance(error, Throttled) else None
            return _End("error", wait, failed=error.retriable, reason=error.reason)
        except TrtfleetError as error:
            log.warning("%s: %s", error.reason, error)
            return _End("error", failed=True, reason=error.reason)
        except TimeoutError:
            log.error("not through after %.0f s: cancelled", LOOK_SECONDS)  # noqa: TRY400 - a traceback would show the cancellation
            return _End("timeout", failed=True, reason="Timeout")
        except Exception:
            log.exception("internal error")
            return _End("unexpected", failed=True, reason="Unexpected")

    async def _look(self, key: Key) -> float | None:
        """Seconds after which to look again although nothing tells; None: when something changes."""
        told = self._roster.entry(key).told
        found = await self._gatherer.gather(*key)
        if found is None:
            again = self._roster.entry(key).told > told  # it may be back under its old name
            self._roster.forget(key)
            self._queue.forget(key)
            return 0.0 if again else None
        if isinstance(found, Unreadable):
            lines.also_about(generation=found.generation)
            decision = decide_unreadable(found.status, found.generation, found.problem, datetime.now(UTC))
            return await self._write(_Told(key, found.uid, found.generation, found.status), decision, {})
        metadata = found.job.metadata
        lines.also_about(generation=metadata.generation)
        self._roster.looked(key, found.job)
        decision = decide(found, self._config)
        for action in decision.actions:
            await self._actor.act(action, found)
        return await self._write(_Told(key, metadata.uid, metadata.generation, found.job.status), decision, _gpu_classes(found))

    async def _write(self, told: _Told, decision: Decision, gpu_classes: Mapping[str, str]) -> float | None:
        """The one status write, its events and counts. Seconds to the next look, or None."""
        before, after, entry = told.status, decision.status, self._roster.entry(told.key)
        if before != after:
            since = _now() - entry.written_at
            if since < self._config.progress_seconds and before is not None and only_progress(before, after):
                rest = self._config.progress_seconds - since
                return rest if decision.again_seconds is None else min(rest, decision.again_seconds)
            namespace, name = told.key
            body = after.model_dump(mode="json", by_alias=True, exclude_none=True)
            written = await self._api.apply_status(TUNING_JOBS, name, namespace, body)
            entry.written_at = _now()
            if written["metadata"].get("generation") == told.generation:
                entry.version = max(entry.version, version_of(written))  # so that its echo is no news
            self._metrics.accrue(before, after, gpu_classes)
            about = Regarding(TUNING_JOBS, name, told.uid, namespace)
            for each in transitions(before, after):
                log.info("%s: %s", each.reason, each.note)
                await self._recorder.emit(about, each.type, each.reason, each.note, action="Reconcile")
        entry.state = JobState.of(after)
        return decision.again_seconds


def _gpu_classes(snapshot: Snapshot) -> dict[str, str]:
    """By target: of the device that discover froze, else of the one that the spec asks for."""
    frozen = {each.name: each.run.device for each in snapshot.targets if each.run is not None}
    classes = {}
    for target in snapshot.job.spec.targets:
        device = frozen.get(target.name)
        asked = (target.device.gpu.product if target.device.gpu else None) or ""
        classes[target.name] = gpu_class(target.device.type, device.product if device else asked)
    return classes


def _now() -> float:
    """Monotonic seconds, of the event loop's clock."""
    return asyncio.get_running_loop().time()
