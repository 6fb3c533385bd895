"""The artifact stores that jobs name: who may use them, how they are opened, and on which threads they are asked.

Every store has threads of its own, and few of them. So one that hangs keeps its own jobs waiting, and no others: a call that
finds no free thread soon is refused as transient; one that outlasts its deadline is left to its thread until the store lets go.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from tuner_job.api.artifactstore import ArtifactStore
from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.conditions import Reason
from tuner_job.store.objects import ObjectStore, StoreFull, StoreNotConditional, StoreUnavailable
from tuner_job.store.probe import probe
from tuner_job.store.publish import NotCurrent
from tuning_operator.config import OperatorConfig
from tuning_operator.snapshot import Problem, StoreView

CLUSTER_SCHEMES = ("s3", "gs", "az")
"""Stores that pods on different nodes reach."""

OPENED = 256
"""Stores kept open, each namespace's prefix counted by itself."""

PATIENCE_SECONDS = 5.0
"""How long a call waits for a free thread of its store, or for a probe that is under way. A store that fails a call after longer
held up a reconciler, …"""

AWAY_SECONDS = 10.0
"""… and for so long after it nobody else is held up; then one call finds out whether the store is back. A call that was given up
at its own deadline tells nothing of the store: it may have read much."""

REQUEST_SECONDS = 10
"""For one request, less than workers give theirs: records are small, and threads few."""

PROBE_SECONDS = 60.0
PROBE_GOOD_SECONDS = 3600.0
PROBE_BAD_SECONDS = 300.0
"""An administrator may have put another server behind the URL."""
PROBE_AWAY_SECONDS = 15.0

MAX_CREDENTIAL_BYTES = 64 << 10

_CONTENDED = ("PointerContended", "PointerMoved")

_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "s3": {
        "AWS_ACCESS_KEY_ID": "accessKeyId",
        "AWS_SECRET_ACCESS_KEY": "secretAccessKey",
        "AWS_SESSION_TOKEN": "sessionToken",
    },
    "az": {"AZURE_STORAGE_ACCOUNT_KEY": "accountKey"},
    "gs": {"GOOGLE_SERVICE_ACCOUNT_KEY": "serviceAccountKey"},
}
"""Scheme → key of the Secret → option of ObjectStore.open."""
_OPTIONAL = frozenset({"AWS_SESSION_TOKEN"})

T = TypeVar("T")
Opener = Callable[[str, Mapping[str, str]], ObjectStore]


class StoreNotMounted(TrtfleetError):
    """The operator does not have the credentials that the ArtifactStore names."""

    reason = "StoreNotMounted"


class _GivenUp(StoreUnavailable):
    """The work did not come to its end in time; no request of it is known to have failed."""


def problem_of(error: TrtfleetError) -> Problem:
    """An error of the store side in the words of a condition."""
    away = isinstance(error, StoreUnavailable | StoreFull | NotCurrent) or error.reason in _CONTENDED
    return Problem(error.reason, str(error), transient=away)


@dataclass(frozen=True)
class _Opened:
    credentials: Mapping[str, str]
    store: ObjectStore


@dataclass(frozen=True)
class _Probed:
    problem: Problem | None
    until: float


class _Lane:
    """The threads of one store."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=f"store-{name}")
        self.free = asyncio.Semaphore(threads)
        self.abandoned = 0
        """Calls that outlasted their deadline and still hold a thread."""
        self.slow = ""
        """How the last call failed, if it took long to."""
        self.until = 0.0
        """Time of the next try after that."""
        self.trying = False

    def admit(self, now: float) -> bool:
        """Whether this call finds out if the store is back. Raises StoreUnavailable at once for one that would only wait."""
        if self.slow and (self.trying or now < self.until):
            raise StoreUnavailable(self.slow)
        if self.abandoned >= self.threads:
            raise StoreUnavailable(f"store {self.name}: it hangs; {self.abandoned} calls wait for its answers. Check the store")
        trial = self.slow != ""
        self.trying = self.trying or trial
        return trial

    def failed(self, error: StoreUnavailable, now: float) -> None:
        self.slow, self.until = str(error), now + AWAY_SECONDS


class Stores:
    """Opens stores with the credentials that are mounted now, and runs all work on them. One event loop's."""

    def __init__(
        self,
        config: OperatorConfig,
        *,
        opener: Opener = ObjectStore.open,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`clock` is monotonic seconds."""
        self._folder = config.stores_folder
        self._threads = max(1, config.reconcilers // 2)
        self._opener = opener
        self._clock = clock
        self._patience = patience
        self._opened: OrderedDict[object, _Opened] = OrderedDict()
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._probed: dict[object, _Probed] = {}
        self._probing: dict[object, asyncio.Task[Problem | None]] = {}

    @staticmethod
    def view(store: ArtifactStore, namespace: str) -> StoreView | Problem:
        """The store as jobs of a namespace see it. Asks nobody."""
        spec, where = store.spec, f"ArtifactStore {store.name}"
        if urlsplit(spec.url).scheme not in CLUSTER_SCHEMES:
            known = ", ".join(f"{scheme}://" for scheme in CLUSTER_SCHEMES)
            return Problem(Reason.INVALID_SPEC, f"{where}: spec.url {spec.url} cannot be reached by pods; use one of {known}")
        allowed = next((each for each in spec.allowed_namespaces if each.name == namespace), None)
        if allowed is None:
            return Problem(
                Reason.NAMESPACE_NOT_ALLOWED,
                f"{where}: namespace {namespace} may not use it; ask an administrator to add it to spec.allowedNamespaces",
            )
        secret = spec.credentials.secret if spec.credentials else None
        return StoreView(
            name=store.name,
            url=f"{spec.url.rstrip('/')}/{allowed.prefix}",
            options=spec.options | ({"caPem": spec.ca_bundle} if spec.ca_bundle else {}),
            tenant_secret=secret.tenant_secret_name if secret else "",
            operator_secret=secret.operator_secret_name if secret else "",
        )

    def open(self, view: StoreView) -> ObjectStore:
        """The store, opened anew whenever its mounted credentials have changed. Reads files: for threads.

        Raises StoreNotMounted, InputError for a URL or option that is wrong.
        """
        credentials = self._credentials(view)
        place = (view.url, tuple(sorted(view.options.items())))
        with self._lock:
            known = self._opened.get(place)
            if known is not None and known.credentials == credentials:
                self._opened.move_to_end(place)
                return known.store
        store = self._opener(view.url, {"timeoutSeconds": str(REQUEST_SECONDS), **view.options, **credentials})
        with self._lock:
            self._opened[place] = _Opened(credentials, store)
            self._opened.move_to_end(place)
            while len(self._opened) > OPENED:
                self._opened.popitem(last=False)
        return store

    async def call(self, view: StoreView, work: Callable[[ObjectStore], T], seconds: float) -> T:
        """Run blocking `work` on the store in one of its threads; raises what it raises.

        Raises StoreUnavailable when no thread of the store becomes free soon, or after `seconds`. The work may still come to its
        end then, so it must be harmless to repeat.
        """
        lane = self._lanes.get(view.name)
        if lane is None:
            lane = self._lanes[view.name] = _Lane(view.name, self._threads)
        trial = lane.admit(self._clock())
        try:
            await self._thread(lane, view)
            began = self._clock()
            try:
                answer = await self._run(lane, view, work, seconds)
            except _GivenUp:
                raise
            except StoreUnavailable as error:
                if (now := self._clock()) - began >= self._patience:
                    lane.failed(error, now)
                raise
        finally:
            if trial:
                lane.trying = False
        lane.slow = ""
        return answer

    async def _thread(self, lane: _Lane, view: StoreView) -> None:
        """Wait for a free thread."""
        try:
            async with asyncio.timeout(self._patience):
                await lane.free.acquire()
        except TimeoutError:
            raise StoreUnavailable(f"store {view.url}: busy; each of its {lane.threads} calls takes long. Trying again") from None

    async def _run(self, lane: _Lane, view: StoreView, work: Callable[[ObjectStore], T], seconds: float) -> T:
        """In the thread that is free, and free it when the work ends, not when it is given up."""
        loop = asyncio.get_running_loop()
        try:
            call: Future[T] = lane.pool.submit(lambda: work(self.open(view)))
        except RuntimeError:  # closed
            lane.free.release()
            raise StoreUnavailable(f"store {view.url}: the operator is stopping") from None

        abandoned = False

        def free() -> None:
            lane.free.release()
            lane.abandoned -= abandoned

        def ended(_call: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(free)

        call.add_done_callback(ended)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(call)
        except TimeoutError:
            if not call.done():
                abandoned = True
                lane.abandoned += 1
            raise _GivenUp(f"store {view.url}: no answer within {seconds:g} s; check the store") from None

    async def check(self, view: StoreView) -> Problem | None:
        """Whether the store keeps the promises that runs rely on, as far as a probe of the last hour can tell."""
        place = self._place(view)
        known = self._probed.get(place)
        if known is not None and self._clock() < known.until:
            return known.problem
        task = self._probing.get(place)
        if task is None:
            task = self._probing[place] = asyncio.create_task(self._probe(view, place))
        if known is not None and known.problem is None:
            return None  # looked at anew meanwhile
        try:
            async with asyncio.timeout(self._patience):
                return await asyncio.shield(task)
        except TimeoutError:
            return Problem(Reason.STORE_UNAVAILABLE, f"store {view.url}: it is being checked, and slow to answer", transient=True)

    async def close(self) -> None:
        """Begin nothing more. Calls in hand go on in their threads; a store that hangs holds up only the process's own end."""
        for lane in self._lanes.values():
            lane.pool.shutdown(wait=False, cancel_futures=True)
        tasks = [*self._probing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe(self, view: StoreView, place: object) -> Problem | None:
        known = self._probed.get(place)
        problem, seconds = None, PROBE_GOOD_SECONDS
        try:
            await self.call(view, probe, PROBE_SECONDS)
        except (StoreNotConditional, StoreNotMounted, InputError) as error:
            problem, seconds = problem_of(error), PROBE_BAD_SECONDS
        except TrtfleetError as error:
            problem, seconds = problem_of(error), PROBE_AWAY_SECONDS
            if problem.transient and known is not None and known.problem is None:
                problem = None  # an outage says nothing about honesty
        finally:
            self._probing.pop(place, None)
        self._probed[place] = _Probed(problem, self._clock() + seconds)
        return problem

    def _place(self, view: StoreView) -> object:
        """The bucket, whatever the namespace's prefix: honesty is the server's."""
        parts = urlsplit(view.url)
        return (view.name, parts.scheme, parts.netloc, tuple(sorted(view.options.items())))

    def _credentials(self, view: StoreView) -> dict[str, str]:
        """As options of ObjectStore.open. Raises StoreNotMounted."""
        if not view.operator_secret:
            return {}
        folder = self._folder / view.operator_secret
        wanted = _OPTIONS[urlsplit(view.url).scheme]
        try:
            return _mounted(folder, wanted)
        except FileNotFoundError:
            pass
        try:
            return _mounted(folder, wanted)  # a rotation replaces the folder behind the link
        except FileNotFoundError as error:
            lacks = f"does not exist, or has no key {Path(error.filename).name}"
            what = lacks if folder.is_dir() else "is not mounted into the operator"
            raise StoreNotMounted(
                f"ArtifactStore {view.name}: Secret {view.operator_secret} {what} (looked in {folder}); "
                f"create it in the operator's namespace and name it in the chart's stores"
            ) from None


def _mounted(folder: Path, wanted: Mapping[str, str]) -> dict[str, str]:
    """All of one state of a Secret: its keys are links into a folder that is replaced as a whole. Raises FileNotFoundError."""
    state = folder / "..data"
    state = state.resolve(strict=True) if state.is_symlink() else folder
    found = {}
    for key, option in wanted.items():
        if key not in _OPTIONAL or (state / key).exists():
            found[option] = _text(state / key)
    return found


def _text(path: Path) -> str:
    """Of a small file, less the line end that editors leave. Raises FileNotFoundError, StoreNotMounted."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CREDENTIAL_BYTES + 1)
        if len(data) > MAX_CREDENTIAL_BYTES:
            raise StoreNotMounted(f"{path}: longer than {MAX_CREDENTIAL_BYTES} bytes, so no credential")
        return data.decode().strip()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise StoreNotMounted(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not text'}") from None
