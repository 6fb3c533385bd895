from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_api import Request
from store_cluster import COMPLETE, OWNER, Cluster, asyncly, beat, finish, seed_job, target, tuning_job, write_beat

from tuner_job.api.base import TrtfleetError
from tuner_job.api.messages import BeatRecord, EndRecord, RunRecord, StopRecord
from tuner_job.store import layout, pointers
from tuner_job.store.objects import ObjectStore, StoreUnavailable
from tuner_job.store.pointers import PointerName
from tuner_job.store.records import create_record, read_record
from tuning_operator.actions import Action, CreateJob, DeleteJob, Publish, RecordDeath, StartRun, StopAttempt
from tuning_operator.kube.api import JOBS, TUNING_JOBS, AlreadyExists, Forbidden, Invalid, KubeError, Object, Unavailable
from tuning_operator.reconcile.act import Refused
from tuning_operator.reconcile.memory import PAUSE_CAP_SECONDS, PAUSE_SECONDS
from tuning_operator.snapshot import Problem, Publication, Snapshot, Wanted

NAME = PointerName(OWNER, "cpu", "1.23.2")
LOST = Unavailable("the answer was lost")


def wanted_in(snapshot: Snapshot) -> Wanted:
    wanted = target(snapshot).wanted
    assert wanted is not None
    return wanted


def remembered(cluster: Cluster, snapshot: Snapshot) -> object:
    """What publishing the wanted run came to."""
    metadata = snapshot.job.metadata
    return cluster.memory.publication(metadata.uid, "cpu", metadata.generation, wanted_in(snapshot).place)


def start(snapshot: Snapshot) -> StartRun:
    return StartRun("cpu", wanted_in(snapshot), 2, "Created")


def create(snapshot: Snapshot, **more: Any) -> CreateJob:
    plain: dict[str, Any] = {"stage": "discover", "attempt": 1, "workers": 1, "failures": 0, "deadline_seconds": 0.0} | more
    return CreateJob("cpu", wanted_in(snapshot), **plain)


def publish(snapshot: Snapshot) -> Publish:
    return Publish("cpu", wanted_in(snapshot))


def jobs(cluster: Cluster) -> list[Object]:
    return cluster.api.all(JOBS, "team")


def refusal(cluster: Cluster) -> Problem | None:
    place = cluster.wanted().place
    body = cluster.api.peek(TUNING_JOBS, "demo", "team")
    assert body is not None
    return cluster.memory.refusal(body["metadata"]["uid"], "cpu", body["metadata"]["generation"], place)


# Runs.


@asyncly
async def test_a_run_is_started_once_under_its_owner(cluster: Cluster) -> None:
    await cluster.start()
    snapshot = await cluster.look()
    assert "started run" in await cluster.actor.act(start(snapshot), snapshot)
    record = read_record(cluster.store, layout.run(wanted_in(snapshot).run), RunRecord)
    assert record is not None
    assert (record.owner, record.target, record.shards, record.trigger) == (OWNER, "cpu", 2, "Created")
    await cluster.actor.act(replace(start(snapshot), trigger="Rerun"), snapshot)
    assert read_record(cluster.store, layout.run(record.run), RunRecord) == record
    assert target(await cluster.look()).run is not None


@asyncly
async def test_a_retired_run_is_refused_and_said_so(cluster: Cluster) -> None:
    await cluster.start()
    snapshot = await cluster.look()
    cluster.store.create(layout.retired(wanted_in(snapshot).run), b"{}")
    with pytest.raises(Refused, match="retired") as caught:
        await cluster.actor.act(start(snapshot), snapshot)
    assert caught.value.reason == "RunRetired"
    seen = target(await cluster.look()).refused
    assert seen is not None
    assert (seen.reason, seen.transient) == ("RunRetired", False)


@asyncly
async def test_a_store_that_is_away_raises_and_leaves_no_refusal(cluster: Cluster) -> None:
    await cluster.start()
    snapshot = await cluster.look()
    cluster.store.down = True
    with pytest.raises(StoreUnavailable):
        await cluster.actor.act(start(snapshot), snapshot)
    assert refusal(cluster) is None


# Jobs.


@asyncly
async def test_a_job_is_created_as_it_is_rendered(cluster: Cluster) -> None:
    await cluster.start()
    snapshot = await cluster.look()
    assert "created Job tj-demo-" in await cluster.actor.act(create(snapshot), snapshot)
    (job,) = jobs(cluster)
    assert job["metadata"]["labels"]["trtfleet.dev/run"] == wanted_in(snapshot).run
    assert [each.attempt for each in target(await cluster.look()).jobs] == [1]


@pytest.mark.parametrize("lost", [False, True])
def test_a_job_that_was_created_before_is_adopted(tmp_path: Path, lost: bool) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        await cluster.start()
        snapshot = await cluster.look()
        if lost:
            cluster.api.fail(LOST, "create", JOBS, after=True)
            with pytest.raises(Unavailable):
                await cluster.actor.act(create(snapshot), snapshot)
        else:
            await cluster.actor.act(create(snapshot), snapshot)
        before = jobs(cluster)
        assert "found Job" in await cluster.actor.act(create(snapshot), snapshot)
        assert jobs(cluster) == before
        assert refusal(cluster) is None

    asyncio.run(main())


@pytest.mark.parametrize("whose", ["another owner", "nobody", "another run", "another attempt"])
def test_a_job_of_that_name_that_is_another_is_never_adopted(tmp_path: Path, whose: str) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        await cluster.start()
        snapshot = await cluster.look()
        job = seed_job(cluster, snapshot=snapshot)

        def change(body: Object) -> None:
            metadata = body["metadata"]
            if whose == "another owner":
                metadata["ownerReferences"][0]["uid"] = "someone-else"
            elif whose == "nobody":
                del metadata["ownerReferences"]
            elif whose == "another run":
                metadata["labels"]["trtfleet.dev/run"] = "ab" * 10
            else:
                metadata["labels"]["trtfleet.dev/attempt"] = "2"

        cluster.api.edit(JOBS, job["metadata"]["name"], "team", change)
        with pytest.raises(Refused) as caught:
            await cluster.actor.act(create(snapshot), snapshot)
        assert caught.value.reason == "JobNameTaken"
        problem = refusal(cluster)
        assert problem is not None
        assert job["metadata"]["name"] in problem.message

    asyncio.run(main())


@asyncly
async def test_a_job_of_that_name_that_is_going_is_waited_for(cluster: Cluster) -> None:
    await cluster.start()
    snapshot = await cluster.look()
    job = seed_job(cluster, snapshot=snapshot)
    name = job["metadata"]["name"]
    cluster.api.edit(JOBS, name, "team", lambda body: body["metadata"].update(finalizers=["foregroundDeletion"]))
    cluster.api.remove(JOBS, name, "team")
    with pytest.raises(KubeError) as caught:
        await cluster.actor.act(create(snapshot), snapshot)
    assert caught.value.retriable
    assert refusal(cluster) is None
    cluster.api.remove(JOBS, name, "team", now=True)
    await cluster.actor.act(create(snapshot), snapshot)
    assert len(jobs(cluster)) == 1


@asyncly
async def test_a_job_that_went_between_conflict_and_look_is_tried_again(cluster: Cluster) -> None:
    await cluster.start()
    snapshot = await cluster.look()
    cluster.api.fail(AlreadyExists("there", code=409), "create", JOBS)
    with pytest.raises(KubeError) as caught:
        await cluster.actor.act(create(snapshot), snapshot)
    assert caught.value.retriable


QUOTA = 'jobs.batch "x" is forbidden: exceeded quota: few, requested: count/jobs.batch=1'
PSA = 'jobs.batch "x" is forbidden: violates PodSecurity "restricted:latest"'
WEBHOOK = 'admission webhook "policy.example" denied the request: no'
POLICY = "jobs.batch \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: no"
RBAC = 'jobs.batch is forbidden: User "x" cannot create resource "jobs" in API group "batch"'
ENDING = "unable to create new content in namespace team because it is being terminated"


@pytest.mark.parametrize(
    ("error", "reason", "transient"),
    [
        (Forbidden(QUOTA, code=403), "QuotaExceeded", True),
        (Forbidden(ENDING, code=403), "NamespaceTerminating", True),
        (Forbidden(PSA, code=403), "AdmissionDenied", False),
        (Forbidden(WEBHOOK, code=403), "AdmissionDenied", False),
        (Forbidden(RBAC, code=403), "Forbidden", False),
        (Invalid("spec.template: no", code=422), "JobInvalid", False),
        (Invalid(POLICY, code=422), "AdmissionDenied", False),
        (Invalid(WEBHOOK, code=422), "AdmissionDenied", False),
    ],
)
def test_what_the_server_refuses_is_said_and_not_tried_at_once(
    tmp_path: Path, error: KubeError, reason: str, transient: bool
) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        await cluster.start()
        snapshot = await cluster.look()
        cluster.api.fail(error, "create", JOBS, times=99)
        with pytest.raises(Refused) as caught:
            await cluster.actor.act(create(snapshot), snapshot)
        assert caught.value.reason == reason
        snapshot = await cluster.look()
        assert target(snapshot).refused == Problem(reason, str(error), transient)
        assert await cluster.actor.act(create(snapshot), snapshot) == "", "too early"
        assert not [each for each in cluster.api.requests if each.verb == "create"]

    asyncio.run(main())


@asyncly
async def test_what_was_refused_is_tried_ever_less_often_and_forgotten_when_it_succeeds(cluster: Cluster) -> None:
    await cluster.start()
    snapshot = await cluster.look()
    cluster.api.fail(Forbidden(QUOTA, code=403), "create", JOBS, times=6)
    tried = []
    while not jobs(cluster):
        try:
            if await cluster.actor.act(create(snapshot), snapshot):
                tried.append(cluster.clock)
        except Refused:
            tried.append(cluster.clock)
        cluster.clock += 1
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert pauses == [PAUSE_SECONDS, 60, 120, 240, PAUSE_CAP_SECONDS, PAUSE_CAP_SECONDS]
    assert refusal(cluster) is None


@asyncly
async def test_a_template_that_asks_for_too_much_is_refused_before_the_server_is_asked(cluster: Cluster) -> None:
    await cluster.start(tuning_job(workerTemplate={"serviceAccountName": "root"}))
    snapshot = await cluster.look()
    with pytest.raises(Refused, match="serviceAccountName"):
        await cluster.actor.act(create(snapshot), snapshot)
    assert cluster.api.writes == []
    assert refusal(cluster) is not None
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["spec"].pop("workerTemplate"))
    snapshot = await cluster.look()
    assert target(snapshot).refused is None
    await cluster.actor.act(create(snapshot), snapshot)
    assert len(jobs(cluster)) == 1


@asyncly
async def test_a_job_is_deleted_once_and_never_one_of_another_uid(cluster: Cluster) -> None:
    await cluster.start()
    snapshot = await cluster.look()
    job = seed_job(cluster, snapshot=snapshot)["metadata"]
    assert await cluster.actor.act(DeleteJob(job["name"], "another-uid", "test"), snapshot) == ""
    assert len(jobs(cluster)) == 1
    action = DeleteJob(job["name"], job["uid"], "its run is over")
    assert "its run is over" in await cluster.actor.act(action, snapshot)
    await cluster.actor.act(action, snapshot)
    assert jobs(cluster) == []


# Markers and deaths.


@asyncly
async def test_an_attempt_is_told_to_stop_once(cluster: Cluster) -> None:
    await cluster.start()
    run, snapshot = cluster.run(), await cluster.look()
    action = StopAttempt(run.run, wanted_in(snapshot).store, 3, "Suspended")
    assert "Suspended" in await cluster.actor.act(action, snapshot)
    assert await cluster.actor.act(replace(action, reason="InputsChanged"), snapshot) == ""
    marker = read_record(cluster.store, layout.stop(run.run, 3), StopRecord)
    assert marker is not None
    assert (marker.attempt, marker.reason) == (3, "Suspended")


@asyncly
async def test_a_death_is_noted_for_the_process_that_died(cluster: Cluster) -> None:
    await cluster.start()
    run, snapshot = cluster.run(), await cluster.look()
    write_beat(cluster.store, run, beat())
    action = RecordDeath(run.run, wanted_in(snapshot).store, "1-0", "uid-1-0", "outOfMemory", "OOMKilled")
    assert "1-0" in await cluster.actor.act(action, snapshot)
    end = read_record(cluster.store, layout.end(run.run, "uid-1-0"), EndRecord)
    last = read_record(cluster.store, layout.beat(run.run, "1-0"), BeatRecord)
    assert end is not None
    assert last is not None
    assert (end.cause, last.state) == ("outOfMemory", "dead")
    assert await cluster.actor.act(replace(action, cause="explained"), snapshot) == ""
    assert read_record(cluster.store, layout.end(run.run, "uid-1-0"), EndRecord) == end


@asyncly
async def test_a_note_that_nobody_can_read_does_not_keep_the_dead_alive(cluster: Cluster) -> None:
    """Else each look would fail at it, and what its job's other targets need would never be done."""
    await cluster.start()
    run, snapshot = cluster.run(), await cluster.look()
    write_beat(cluster.store, run, beat())
    cluster.store.inner.create(layout.end(run.run, "uid-1-0"), b"{}")
    action = RecordDeath(run.run, wanted_in(snapshot).store, "1-0", "uid-1-0", "explained", "its pod is gone")
    await cluster.actor.act(action, snapshot)
    last = read_record(cluster.store, layout.beat(run.run, "1-0"), BeatRecord)
    assert last is not None
    assert (last.state, last.cause) == ("dead", "explained")


@pytest.mark.parametrize(("cause", "state"), [("explained", "dead"), ("stopped", "stopped")])
def test_a_beat_whose_end_was_noted_before_the_beat_was_written_is_made_good(tmp_path: Path, cause: str, state: str) -> None:
    """Killed between the two, nobody else would ever say that the worker is over."""

    async def main() -> None:
        cluster = Cluster(tmp_path)
        await cluster.start()
        run, snapshot = cluster.run(), await cluster.look()
        write_beat(cluster.store, run, beat())
        note = {"worker": "1-0", "worker_id": "uid-1-0", "cause": cause, "detail": "as it was", "at": "2026-11-30T10:00:00Z"}
        create_record(cluster.store, layout.end(run.run, "uid-1-0"), EndRecord.model_validate(note))
        action = RecordDeath(run.run, wanted_in(snapshot).store, "1-0", "uid-1-0", "unexplained", "exit code 1")
        assert await cluster.actor.act(action, snapshot) == ""
        last = read_record(cluster.store, layout.beat(run.run, "1-0"), BeatRecord)
        assert last is not None
        assert (last.state, last.cause, last.detail) == (state, cause, "as it was")

    asyncio.run(main())


@asyncly
async def test_a_successors_beat_is_left_alone(cluster: Cluster) -> None:
    await cluster.start()
    run, snapshot = cluster.run(), await cluster.look()
    write_beat(cluster.store, run, beat(workerId="successor"))
    await cluster.actor.act(
        RecordDeath(run.run, wanted_in(snapshot).store, "1-0", "uid-1-0", "explained", "its pod is gone"), snapshot
    )
    last = read_record(cluster.store, layout.beat(run.run, "1-0"), BeatRecord)
    assert last is not None
    assert (last.worker_id, last.state) == ("successor", "running")


# Publishing.


async def proven(cluster: Cluster, **spec: Any) -> Snapshot:
    """A run that has its verdict."""
    await cluster.start(tuning_job(**spec))
    finish(cluster.store, cluster.run())
    return await cluster.look()


@asyncly
async def test_a_verdict_is_published_and_the_next_look_tells(cluster: Cluster) -> None:
    snapshot = await proven(cluster)
    assert "Served" in await cluster.actor.act(publish(snapshot), snapshot)
    seen = target(await cluster.look()).publication
    assert isinstance(seen, Publication)
    pointer = pointers.read(cluster.store, NAME)
    assert pointer is not None
    assert f"sha256:{pointer.current.manifest}" == seen.manifest


@asyncly
async def test_publishing_that_was_refused_is_tried_again_after_a_pause(cluster: Cluster) -> None:
    snapshot = await proven(cluster)
    cluster.store.inner.put(NAME.key, b"{}")
    assert "PoisonedRecord" in await cluster.actor.act(publish(snapshot), snapshot)
    cluster.store.inner.delete(NAME.key)
    assert await cluster.actor.act(publish(snapshot), snapshot) == "", "too early"
    assert isinstance(target(await cluster.look()).publication, Problem)
    cluster.clock += PAUSE_SECONDS
    assert "Served" in await cluster.actor.act(publish(snapshot), snapshot)
    assert isinstance(target(await cluster.look()).publication, Publication)


@asyncly
async def test_an_approval_is_published_as_another_wish(cluster: Cluster) -> None:
    snapshot = await proven(cluster, publish={"promotion": "Manual"})
    await cluster.actor.act(publish(snapshot), snapshot)
    waiting = target(await cluster.look()).publication
    assert isinstance(waiting, Publication)
    assert waiting.state == "AwaitingApproval"
    decision = {"promotion": "Manual", "targets": [{"name": "cpu", "approvedDigest": waiting.manifest}]}
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["spec"].update(publish=decision))
    snapshot = await cluster.look()
    assert target(snapshot).publication is None
    await cluster.actor.act(publish(snapshot), snapshot)
    served = target(await cluster.look()).publication
    assert isinstance(served, Publication)
    assert (served.state, served.manifest) == ("Served", waiting.manifest)


@pytest.mark.parametrize("change", ["edited", "deleted", "recreated", "target removed", "unreadable"])
def test_a_job_that_changes_while_its_engine_is_published_is_not_overtaken(tmp_path: Path, change: str) -> None:
    """Between the read of the pointer and its swap."""

    async def main() -> None:
        cluster = Cluster(tmp_path)
        snapshot = await proven(cluster)
        asked = 0

        def before(request: Request) -> None:
            nonlocal asked
            asked += (request.verb, request.kind) == ("get", "TuningJob")
            if asked != 2:
                return
            cluster.api.before = None
            other = {"name": "new", "runtimeRef": {"name": "ort"}, "device": {"type": "CPU"}}
            changed: dict[str, Any] = {
                "edited": {"objective": {"minImprovement": "0.5"}},
                "target removed": {"targets": [other]},
                "unreadable": {"oldField": 1},
            }
            if change in changed:
                cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["spec"].update(changed[change]))
            else:
                cluster.api.remove(TUNING_JOBS, "demo", "team")
            if change == "recreated":
                cluster.api.seed(TUNING_JOBS, tuning_job(), "team")

        cluster.api.before = before
        await cluster.actor.act(publish(snapshot), snapshot)
        found = remembered(cluster, snapshot)
        assert isinstance(found, Problem)
        assert (found.reason, found.transient) == ("NotCurrent", True)
        assert pointers.read(cluster.store, NAME) is None

    asyncio.run(main())


@asyncly
async def test_while_the_api_server_is_away_nothing_is_published(cluster: Cluster) -> None:
    snapshot = await proven(cluster)
    cluster.api.down = True
    with pytest.raises(Unavailable):
        await cluster.actor.act(publish(snapshot), snapshot)
    assert pointers.read(cluster.store, NAME) is None
    assert remembered(cluster, snapshot) is None


@asyncly
async def test_while_the_store_is_away_publishing_is_waited_for(cluster: Cluster) -> None:
    snapshot = await proven(cluster)
    cluster.store.down = True
    await cluster.actor.act(publish(snapshot), snapshot)
    cluster.store.down = False
    seen = target(await cluster.look()).publication
    assert isinstance(seen, Problem)
    assert seen.transient
    await cluster.actor.act(publish(snapshot), snapshot)
    assert isinstance(target(await cluster.look()).publication, Publication)


# Whatever is cut off is made good.


class _Failing:
    """Makes the `fail_at`-th write of a store fail: before it is done, or after it, so that only its answer is lost."""

    def __init__(self, cluster: Cluster, fail_at: int, after: bool) -> None:
        self._store, self._left, self._after = cluster.store, fail_at, after
        self.failed = False
        self._call = cluster.store._call
        cluster.store._call = self._counting  # type: ignore[method-assign]

    def _counting(self, call: Any, *, writes: bool = False) -> Any:
        if writes:
            self._left -= 1
            if self._left == 0:
                self.failed = True
                if self._after:
                    self._call(call, writes=writes)
                raise StoreUnavailable("cut off on purpose")
        return self._call(call, writes=writes)

    def mend(self) -> None:
        self._store._call = self._call  # type: ignore[method-assign]


def _objects(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list("")}


def actions(snapshot: Snapshot, run: str) -> list[Action]:
    store = wanted_in(snapshot).store
    return [
        start(snapshot),
        create(snapshot),
        StopAttempt(run, store, 1, "Suspended"),
        RecordDeath(run, store, "1-0", "uid-1-0", "explained", "its pod is gone"),
        publish(snapshot),
    ]


async def prepared(cluster: Cluster) -> tuple[Snapshot, RunRecord]:
    snapshot = await proven(cluster)
    run = cluster.run()
    write_beat(cluster.store, run, beat())
    cluster.store.delete(layout.run(run.run))
    return snapshot, run


@pytest.mark.parametrize("after", [False, True])
def test_cut_off_between_any_two_writes_the_same_actions_come_to_the_same_end(tmp_path: Path, after: bool) -> None:
    async def main() -> None:
        plain = Cluster(tmp_path)
        snapshot, run = await prepared(plain)
        for action in actions(snapshot, run.run):
            await plain.actor.act(action, snapshot)
        expected = _objects(plain.store)
        for fail_at in range(1, 50):
            cluster = Cluster(tmp_path)
            snapshot, run = await prepared(cluster)
            failing = _Failing(cluster, fail_at, after)
            try:
                for action in actions(snapshot, run.run):
                    await cluster.actor.act(action, snapshot)
            except TrtfleetError:
                assert failing.failed
            failing.mend()
            for action in actions(snapshot, run.run):
                await cluster.actor.act(action, snapshot)
            assert _objects(cluster.store) == expected
            pointer = pointers.read(cluster.store, NAME)
            assert pointer is not None
            assert pointer.generation == 1
            if not failing.failed:
                assert fail_at > 6
                return
        pytest.fail("it never came to an end")

    asyncio.run(main())


@asyncly
async def test_two_operators_that_do_the_same_do_it_once(cluster: Cluster) -> None:
    snapshot, run = await prepared(cluster)
    second = Cluster(cluster.folder, api=cluster.api, store=cluster.store)
    await second.catalog.resync()
    for action in actions(snapshot, run.run):
        await asyncio.gather(cluster.actor.act(action, snapshot), second.actor.act(action, snapshot))
    assert len(jobs(cluster)) == 1
    pointer = pointers.read(cluster.store, NAME)
    assert pointer is not None
    assert pointer.generation == 1
    await second.stores.close()


@asyncly
async def test_a_finished_job_is_not_created_again_by_a_late_decision(cluster: Cluster) -> None:
    """The name is that of the attempt: a decision from before its end finds it."""
    await cluster.start()
    snapshot = await cluster.look()
    await cluster.actor.act(create(snapshot), snapshot)
    cluster.set_job(jobs(cluster)[0]["metadata"]["name"], **COMPLETE)
    assert "found Job" in await cluster.actor.act(create(snapshot), snapshot)
    assert len(jobs(cluster)) == 1
