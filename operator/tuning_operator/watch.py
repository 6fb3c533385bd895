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
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import kopf

from tuner_job.api.base import GROUP, InputError
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


SIGN_INS = 5
SIGN_IN_SECONDS = 60.0
"""As many sign-ins within so long mean that the API server refuses the credentials for good."""


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
        self._signed_in: deque[float] = deque(maxlen=SIGN_INS)
        self._stale = WorkQueue()
        """Plural and name of cluster objects to read again."""

    async def run(self, stop: asyncio.Event) -> None:
        """Returns after `stop`, when kopf has ended. Raises WatchEnded when that ends before."""
        kopf_thread = _KopfThread(self._kopf)
        refreshing = asyncio.create_task(self._refresh_forever(), name="catalog refresh")
        stopping = asyncio.create_task(stop.wait(), name="watch stop")
        try:
            waiting: set[asyncio.Future[Any]] = {kopf_thread.ending, kopf_thread.ended, refreshing, stopping}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                raise WatchEnded(f"the watch ended: {_words(refreshing) if refreshing.done() else kopf_thread.words}")
        finally:
            self._stale.close()
            refreshing.cancel()
            stopping.cancel()
            await asyncio.gather(refreshing, stopping, return_exceptions=True)
            await kopf_thread.end()

    async def _kopf(self, thread: _KopfThread) -> None:
        namespaces = self._config.namespaces
        await kopf.operator(
            registry=self._registry(thread),
            settings=_settings(self._silence),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=thread.told_to_stop,
        )

    def _registry(self, thread: _KopfThread) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.cleanup(registry=registry, id="cleanup")
        async def cleanup(**_: object) -> None:
            thread.tell(thread.begins_to_end, "")

        @kopf.on.login(registry=registry, id="login", errors=kopf.ErrorsMode.PERMANENT)
        async def login(**_: object) -> kopf.AiohttpSession:
            # Whoever is refused is sent here at once, without end; and a login that fails leaves kopf waiting for ever.
            try:
                await self._before_sign_in()
                session = await open_session(self._kubeconfig)
            except Exception as error:
                thread.tell(thread.begins_to_end, str(error))
                raise
            return kopf.AiohttpSession(server=session.server, aiohttp_session=session.http)

        def forward(resource: Resource, tell: Callable[[Mapping[str, Any]], None]) -> None:  # Any: the server's JSON
            async def handle(meta: Mapping[str, Any], **_: object) -> None:
                thread.tell(self._told, resource, tell, meta)

            kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=resource.plural)(handle)

        forward(TUNING_JOBS, self._tuning_job)
        forward(JOBS, self._job)
        for resource in KINDS:
            forward(resource, lambda meta, plural=resource.plural: self._stale.add((plural, meta["name"])))  # type: ignore[misc]
        return registry

    async def _before_sign_in(self) -> None:
        """Waits a little after the first one. Raises InputError when there were too many."""
        now = asyncio.get_running_loop().time()
        if len(self._signed_in) == SIGN_INS and now - self._signed_in[0] < SIGN_IN_SECONDS:
            raise InputError(f"the API server refused the credentials {SIGN_INS} times within {SIGN_IN_SECONDS:.0f} s")
        if self._signed_in:
            await asyncio.sleep(1)
        self._signed_in.append(now)

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


class _KopfThread:
    """Kopf's thread, as the loop that starts it sees it."""

    def __init__(self, work: Callable[[_KopfThread], Coroutine[Any, Any, None]]) -> None:
        self._main = asyncio.get_running_loop()
        self._own = asyncio.new_event_loop()
        self.told_to_stop = asyncio.Event()
        self.ending: asyncio.Future[str] = self._main.create_future()
        """Done as soon as kopf begins to end, with the reason if that is known: once one of its watches has failed, others of
        them may keep it from ending for ever."""
        self.ended: asyncio.Future[None] = self._main.create_future()
        self._last_words = _LastWords()
        self._thread = threading.Thread(target=self._live, args=(work,), name="kopf", daemon=True)
        self._thread.start()

    @property
    def words(self) -> str:
        """Why it ends."""
        told = self.ending.result() if self.ending.done() else ""
        return told or self._last_words.first or (_words(self.ended) if self.ended.done() else "kopf does not say why")

    def tell(self, what: Callable[..., None], *arguments: object) -> None:
        """From the thread: have the main loop do it."""
        with suppress(RuntimeError):  # that loop is closed: nobody listens any more
            self._main.call_soon_threadsafe(what, *arguments)

    def begins_to_end(self, why: str) -> None:
        if not self.ending.done():
            self.ending.set_result(why)

    async def end(self) -> None:
        """Wait until it has ended. Not when it fails: it may never end then, but the process does, and it with that."""
        if self.ending.done() or self.ended.done():
            return
        with suppress(RuntimeError):  # its loop is closed: it has just ended
            self._own.call_soon_threadsafe(self.told_to_stop.set)
        await asyncio.wait({self.ended}, timeout=STOP_SECONDS)
        if not self.ended.done():
            log.warning("kopf has not ended %.0f s after it was told to", STOP_SECONDS)
        elif error := self.ended.exception():
            log.warning("kopf failed while it stopped: %s", error)

    def _live(self, work: Callable[[_KopfThread], Coroutine[Any, Any, None]]) -> None:
        logger = logging.getLogger("kopf")
        logger.addHandler(self._last_words)
        # it warns that it sees no signals, as is meant
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
        problem: Exception | None = None
        try:
            with asyncio.Runner(loop_factory=lambda: self._own) as runner:
                runner.run(work(self))
        except Exception as error:
            problem = error
        except BaseException as error:  # a future carries no SystemExit and its like
            problem = RuntimeError(f"{type(error).__name__}: {error}")
        finally:
            logger.removeHandler(self._last_words)
            self.tell(self._settle, problem)

    def _settle(self, problem: Exception | None) -> None:
        if problem is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(problem)


class _LastWords(logging.Handler):
    """What kopf says of the first of its lasting tasks that fails: it keeps the error itself to the end, if it comes to one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if not self.first and " has failed: " in message:
            self.first = " ".join(message.split())


def _words(ended: asyncio.Future[None]) -> str:
    error = ended.exception()
    return " ".join(f"{type(error).__name__}: {error}".split()) if error is not None else "without a reason"
