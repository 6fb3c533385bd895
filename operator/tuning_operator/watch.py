"""Watching: kopf tells what changed, and nothing more is asked of it.

Its handlers only pass a name on: they cannot fail, and kopf neither retries them nor writes anything to the cluster on their
behalf (no finalizer, no annotation, no event). What an event did not tell is made good by the controller's resync.

Kopf runs in a thread with an event loop of its own. In the main loop it would take over the signal handlers, and when it stops it
cancels every task of its loop that is younger than itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import kopf

from tuner_job.api.base import GROUP
from tuning_operator.catalog import KINDS, Catalog
from tuning_operator.config import OperatorConfig
from tuning_operator.kube.api import JOBS, TUNING_JOBS, KubeError, Resource
from tuning_operator.kube.client import open_session
from tuning_operator.queue import WorkQueue

log = logging.getLogger(__name__)

JOB_SELECTOR = "app.kubernetes.io/managed-by=trtfleet"
SILENCE_SECONDS = 70.0
"""A stream that is silent for so long is dead, and begun anew: the server sends a bookmark each minute."""
STOP_SECONDS = 10.0
"""For kopf to end once it is told to."""


class WatchEnded(Exception):
    """The watch ended by itself: the API server refuses it or sends what cannot be gone on from. The process must end."""


class Listener(Protocol):
    """Whom the watch tells, in the loop that runs it. No method waits."""

    def job_event(self, namespace: str, name: str, version: int) -> None:
        """A TuningJob changed, or is gone. `version`: its resourceVersion."""
        ...

    def enqueue(self, namespace: str, name: str) -> None:
        """Something that belongs to this TuningJob changed."""
        ...

    def enqueue_users(self, kind: str, name: str) -> None:
        """A cluster object has another spec, or came or went; the catalog knows it already."""
        ...


class Watch:
    """TuningJobs, their Jobs, and the cluster objects of the catalog, from `run` on."""

    def __init__(
        self,
        config: OperatorConfig,
        kubeconfig: Path | None,
        listener: Listener,
        catalog: Catalog,
        heard: Callable[[str], None] = lambda _: None,
        *,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """`heard` is told the plural of each event's resource."""
        self.last_event_at: dict[str, float] = {}
        """Plural → when the last event about it came (loop time). A quiet cluster sends none: age alone proves no failure."""
        self._config = config
        self._kubeconfig = kubeconfig
        self._listener = listener
        self._catalog = catalog
        self._heard = heard
        self._silence = silence_seconds
        self._stale = WorkQueue()
        """Plural and name of cluster objects to read again."""

    async def run(self, stop: asyncio.Event) -> None:
        """Returns after `stop`, when kopf has ended. Raises WatchEnded when that ends before."""
        main, there = asyncio.get_running_loop(), asyncio.new_event_loop()
        told_to_stop = asyncio.Event()
        ended: asyncio.Future[None] = main.create_future()

        def live() -> None:
            problem: BaseException | None = None
            try:
                with asyncio.Runner(loop_factory=lambda: there) as runner:
                    runner.run(self._kopf(main, told_to_stop))
            except BaseException as error:  # whatever it is, the main thread must hear of it
                problem = error
            with suppress(RuntimeError):  # the main loop is closed: nobody waits any more
                main.call_soon_threadsafe(_settle, ended, problem)

        threading.Thread(target=live, name="kopf", daemon=True).start()
        refreshing = asyncio.create_task(self._refresh_forever(), name="catalog refresh")
        stopping = asyncio.create_task(stop.wait(), name="watch stop")
        try:
            waiting: set[asyncio.Future[Any]] = {ended, refreshing, stopping}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                raise WatchEnded(f"the watch ended: {_words(ended if ended.done() else refreshing)}")
        finally:
            with suppress(RuntimeError):  # it has ended already
                there.call_soon_threadsafe(told_to_stop.set)
            self._stale.close()
            refreshing.cancel()
            stopping.cancel()
            await asyncio.gather(refreshing, stopping, return_exceptions=True)
            await asyncio.wait({ended}, timeout=STOP_SECONDS)
            if not ended.done():
                log.warning("kopf has not ended %.0f s after it was told to", STOP_SECONDS)
            elif (error := ended.exception()) and stop.is_set():
                log.warning("kopf failed while it stopped: %s", error)

    async def _kopf(self, main: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        logging.getLogger("kopf._core.reactor.running").setLevel(
            logging.ERROR
        )  # it warns that it does not see signals, as it must
        namespaces = self._config.namespaces
        await kopf.operator(
            registry=self._registry(main),
            settings=_settings(self._silence),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
        )

    def _registry(self, main: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry, id="login", errors=kopf.ErrorsMode.PERMANENT)
        async def login(**_: object) -> kopf.AiohttpSession:
            session = await open_session(self._kubeconfig)
            return kopf.AiohttpSession(server=session.server, aiohttp_session=session.http)

        def forward(resource: Resource, tell: Callable[[Mapping[str, Any]], None]) -> None:  # Any: the server's JSON
            async def handle(meta: Mapping[str, Any], **_: object) -> None:
                main.call_soon_threadsafe(self._told, resource, tell, meta)

            kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=resource.plural)(handle)

        forward(TUNING_JOBS, self._tuning_job)
        forward(JOBS, self._job)
        for resource in KINDS:
            forward(resource, lambda meta, plural=resource.plural: self._stale.add((plural, meta["name"])))  # type: ignore[misc]
        return registry

    def _told(self, resource: Resource, tell: Callable[[Mapping[str, Any]], None], meta: Mapping[str, Any]) -> None:
        self.last_event_at[resource.plural] = asyncio.get_running_loop().time()
        self._heard(resource.plural)
        tell(meta)

    def _tuning_job(self, meta: Mapping[str, Any]) -> None:
        self._listener.job_event(meta["namespace"], meta["name"], int(meta["resourceVersion"]))

    def _job(self, meta: Mapping[str, Any]) -> None:
        for owner in meta.get("ownerReferences", ()):
            group = owner["apiVersion"].partition("/")[0]
            if owner.get("controller") and (group, owner["kind"]) == (GROUP, TUNING_JOBS.kind):
                self._listener.enqueue(meta["namespace"], owner["name"])

    async def _refresh_forever(self) -> None:
        resources = {resource.plural: resource for resource in KINDS}
        while True:
            plural, name = await self._stale.get()
            resource, failed = resources[plural], False
            try:
                if await self._catalog.refresh(resource, name):
                    self._listener.enqueue_users(resource.kind, name)
            except KubeError as error:
                log.warning("%s %s changed, but is not read: %s", resource.kind, name, error)
                failed = True
            finally:
                self._stale.done((plural, name), failed=failed)


def _settings(silence_seconds: float) -> kopf.OperatorSettings:
    """As little of kopf as there is, and no wait without an end."""
    chosen = kopf.OperatorSettings()
    watching = chosen.watching
    watching.server_timeout = 300
    watching.client_timeout = 310
    watching.connect_timeout = 10
    watching.inactivity_timeout = silence_seconds
    watching.chunk_size = 500
    watching.label_selectors[JOBS.group, JOBS.version, JOBS.plural] = JOB_SELECTOR
    chosen.networking.request_timeout = 30
    chosen.networking.error_backoffs = (1, 2, 3, 5)
    chosen.scanning.disabled = True  # else it watches CRDs and namespaces, which namespaced RBAC forbids
    chosen.posting.enabled = False
    chosen.process.ultimate_exiting_timeout = None  # the process ends itself
    return chosen


def _settle(ended: asyncio.Future[None], problem: BaseException | None) -> None:
    if ended.done():
        return
    if problem is None:
        ended.set_result(None)
    elif isinstance(problem, Exception):
        ended.set_exception(problem)
    else:
        ended.set_exception(RuntimeError(f"{type(problem).__name__}: {problem}"))  # a future cannot carry SystemExit and its like


def _words(ended: asyncio.Future[None]) -> str:
    error = ended.exception()
    return " ".join(f"{type(error).__name__}: {error}".split()) if error is not None else "without a reason"
