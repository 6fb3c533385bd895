"""Does what decide asks for. Each action may be done twice, cut off at any point, or done by another operator too."""

from __future__ import annotations

import asyncio
import logging
from typing import assert_never

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.messages import StopRecord
from tuner_job.campaign.start import start_run
from tuner_job.store import layout
from tuner_job.store.beats import mark_dead
from tuner_job.store.objects import ObjectStore, StoreUnavailable
from tuner_job.store.records import create_record
from tuner_job.store.release import Wish
from tuning_operator.actions import Action, CreateJob, DeleteJob, Publish, RecordDeath, StartRun, StopAttempt
from tuning_operator.catalog import Catalog
from tuning_operator.config import OperatorConfig
from tuning_operator.jobs.render import render
from tuning_operator.jobs.views import job_view
from tuning_operator.kube.api import (
    JOBS,
    TUNING_JOBS,
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    KubeApi,
    NotFound,
    Unavailable,
)
from tuning_operator.reconcile.memory import Memory
from tuning_operator.reconcile.wanted import owner_of, parse_job, store_of, wanted_of
from tuning_operator.records.publisher import Publisher
from tuning_operator.records.stores import Stores, problem_of
from tuning_operator.snapshot import Problem, Publication, RunView, Snapshot, Wanted

WRITE_SECONDS = 30.0
"""For one small record."""

PUBLISH_SECONDS = 90.0
"""For a publication: some thirty requests, one after the other."""

ASK_SECONDS = 15.0
"""For the job's present inputs, which a publication asks for in between."""

log = logging.getLogger("trtfleet.act")


class Refused(TrtfleetError):
    """An action was refused. The next snapshot says so in `TargetSnapshot.refused`."""

    reason = "Refused"


class Actor:
    """Carries out actions. Raises KubeError or TrtfleetError when one did not get through; it is then asked for again."""

    def __init__(
        self, config: OperatorConfig, api: KubeApi, catalog: Catalog, stores: Stores, publisher: Publisher, memory: Memory
    ) -> None:
        self._config = config
        self._api = api
        self._catalog = catalog
        self._stores = stores
        self._publisher = publisher
        self._memory = memory

    async def act(self, action: Action, snapshot: Snapshot) -> str:
        """What was done, in one line; empty when there was nothing left to do."""
        match action:
            case StartRun():
                done = await self._start_run(action, snapshot)
            case CreateJob():
                done = await self._create_job(action, snapshot)
            case DeleteJob():
                done = await self._delete_job(action, snapshot)
            case StopAttempt():
                done = await self._stop_attempt(action)
            case RecordDeath():
                done = await self._record_death(action)
            case Publish():
                done = await self._publish(action, snapshot)
            case _:
                assert_never(action)
        if done:
            log.info("%s", done)
        return done

    async def _start_run(self, action: StartRun, snapshot: Snapshot) -> str:
        place = _Place(self._memory, snapshot, action.target, action.wanted)
        if place.too_early():
            return ""
        wanted = action.wanted

        def start(store: ObjectStore) -> None:
            start_run(
                store,
                owner_of(snapshot.job, self._config),
                action.target,
                wanted.inputs,
                shards=action.shards,
                rerun_token=wanted.rerun_token,
                trigger=action.trigger,
            )

        try:
            await self._stores.call(wanted.store, start, WRITE_SECONDS)
        except InputError as error:
            raise place.refused(problem_of(error)) from None
        place.accepted()
        return f"started run {wanted.run} of target {action.target}: {action.trigger}"

    async def _create_job(self, action: CreateJob, snapshot: Snapshot) -> str:
        place = _Place(self._memory, snapshot, action.target, action.wanted)
        if place.too_early():
            return ""
        namespace = snapshot.job.metadata.namespace
        try:
            body = render(action, snapshot.job, _run_of(snapshot, action.target), self._config)
        except InputError as error:
            raise place.refused(problem_of(error)) from None
        name = body["metadata"]["name"]
        done = f"created Job {name} ({action.stage}, attempt {action.attempt}, {action.workers} workers)"
        try:
            await self._api.create(JOBS, body, namespace)
        except AlreadyExists as error:
            if not await self._is_ours(name, action, snapshot, place):
                raise Unavailable(f"Job {namespace}/{name} is being deleted; it is created again afterwards") from error
            done = f"found Job {name} as it was created before"
        except Forbidden as error:
            raise place.refused(_forbidden(str(error))) from None
        except Invalid as error:
            raise place.refused(_invalid(str(error))) from None
        place.accepted()
        return done

    async def _is_ours(self, name: str, action: CreateJob, snapshot: Snapshot, place: _Place) -> bool:
        """Whether the Job of that name is the one that was to be created, and stays. Raises Refused if it is another's."""
        metadata = snapshot.job.metadata
        try:
            found = await self._api.get(JOBS, name, metadata.namespace)
        except NotFound:
            return False
        view = job_view(found, metadata.uid)
        wanted = (action.target, action.wanted.run, action.stage, action.attempt)
        elsewhere = view is not None and view.store not in ("", action.wanted.store.url)
        if view is None or elsewhere or (view.target, view.run, view.stage, view.attempt) != wanted:
            owner = next((each.get("name") for each in found["metadata"].get("ownerReferences") or ()), "nobody")
            raise place.refused(
                Problem(
                    "JobNameTaken",
                    f"Job {name} is there already, but is not this run's attempt {action.attempt} (owner: {owner}); delete it",
                )
            )
        return not view.deleting

    async def _delete_job(self, action: DeleteJob, snapshot: Snapshot) -> str:
        try:
            await self._api.delete(JOBS, action.name, snapshot.job.metadata.namespace, uid=action.uid)
        except Conflict:  # the name has passed to another Job
            return ""
        return f"deleted Job {action.name}: {action.why}"

    async def _stop_attempt(self, action: StopAttempt) -> str:
        def mark(store: ObjectStore) -> bool:
            key = layout.stop(action.run, action.attempt)
            return not store.exists(key) and create_record(store, key, StopRecord(attempt=action.attempt, reason=action.reason))

        marked = await self._stores.call(action.store, mark, WRITE_SECONDS)
        return f"told attempt {action.attempt} of run {action.run} to stop: {action.reason}" if marked else ""

    async def _record_death(self, action: RecordDeath) -> str:
        def note(store: ObjectStore) -> bool:
            return mark_dead(
                store, action.run, action.worker, cause=action.cause, detail=action.detail, worker_id=action.worker_id
            )

        noted = await self._stores.call(action.store, note, WRITE_SECONDS)
        return f"noted the death of worker {action.worker} of run {action.run} ({action.cause}): {action.detail}" if noted else ""

    async def _publish(self, action: Publish, snapshot: Snapshot) -> str:
        job, wanted = snapshot.job, action.wanted
        if self._memory.rests(job.metadata.uid, action.target, job.metadata.generation, wanted.place):
            return ""
        wish = Wish.of(job, action.target)
        loop = asyncio.get_running_loop()

        def current_digest() -> str:
            """Called in a store's thread; the loop does the asking."""
            question = asyncio.run_coroutine_threadsafe(self._digest_now(snapshot, action.target), loop)
            try:
                return question.result(ASK_SECONDS)
            except TimeoutError:
                question.cancel()
                raise Unavailable(f"the API server did not tell within {ASK_SECONDS:g} s what {job.name} asks for now") from None

        def publish(store: ObjectStore) -> Publication | Problem:
            owner = owner_of(job, self._config)
            return self._publisher.publish(store, owner, action.target, wanted, wish, current_digest)

        try:
            outcome = await self._stores.call(wanted.store, publish, PUBLISH_SECONDS)
        except StoreUnavailable as error:
            outcome = problem_of(error)
        self._memory.published(job.metadata.uid, action.target, job.metadata.generation, wanted.place, outcome)
        what = f"run {wanted.run} of target {action.target}"
        if isinstance(outcome, Problem):
            return f"could not publish {what}: {outcome.reason}: {outcome.message}"
        return f"published {what}: {outcome.state}, manifest {outcome.manifest}"

    async def _digest_now(self, snapshot: Snapshot, target: str) -> str:
        """Of what the job asks for at this moment; empty when it asks for nothing any more."""
        metadata = snapshot.job.metadata
        try:
            body = await self._api.get(TUNING_JOBS, metadata.name, metadata.namespace)
            if body["metadata"].get("uid") != metadata.uid or body["metadata"].get("deletionTimestamp"):
                return ""
            job = parse_job(body, status=False)
        except (NotFound, InputError):
            return ""
        store = store_of(job, self._catalog)
        own = next((each for each in job.spec.targets if each.name == target), None)
        if own is None or isinstance(store, Problem):
            return ""
        wanted = wanted_of(job, own, store, self._catalog, self._config)
        return "" if isinstance(wanted, Problem) else wanted.digest


class _Place:
    """Where a refusal is remembered: a target's run under one generation of its job."""

    def __init__(self, memory: Memory, snapshot: Snapshot, target: str, wanted: Wanted) -> None:
        self._memory = memory
        metadata = snapshot.job.metadata
        self._key = (metadata.uid, target, metadata.generation, wanted.place)
        self._target = target

    def too_early(self) -> bool:
        return self._memory.too_early(*self._key)

    def accepted(self) -> None:
        self._memory.accepted(*self._key)

    def refused(self, problem: Problem) -> Refused:
        """To be raised."""
        self._memory.refused(*self._key, problem)
        return Refused(f"target {self._target}: {problem.message}", reason=problem.reason)


def _run_of(snapshot: Snapshot, target: str) -> RunView | None:
    return next((each.run for each in snapshot.targets if each.name == target), None)


_FORBIDDEN: tuple[tuple[str, str, bool], ...] = (
    ("exceeded quota", "QuotaExceeded", True),
    ("being terminated", "NamespaceTerminating", True),
    ("violates PodSecurity", "AdmissionDenied", False),
    ("denied the request", "AdmissionDenied", False),
    ("ValidatingAdmissionPolicy", "AdmissionDenied", False),
    ("cannot create resource", "Forbidden", False),
)
"""What a 403 says, its reason here, and whether it may pass by itself. The API server has no other word for which it is."""


def _forbidden(message: str) -> Problem:
    for words, reason, transient in _FORBIDDEN:
        if words in message:
            return Problem(reason, message, transient)
    return Problem("AdmissionDenied", message)


def _invalid(message: str) -> Problem:
    """A policy answers with 422 unless its author chose 403, and so may a webhook."""
    denied = "ValidatingAdmissionPolicy" in message or "denied the request" in message
    return Problem("AdmissionDenied" if denied else "JobInvalid", message)
