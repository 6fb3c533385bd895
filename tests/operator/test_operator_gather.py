from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_api import Request
from store_cluster import (
    COMPLETE,
    DEVICE,
    FAILED,
    Cluster,
    artifact_store,
    asyncly,
    beat,
    finish,
    runtime,
    seed_job,
    target,
    tuning_job,
    write_beat,
    write_discovery,
    write_plan,
)

from tuner_job.store import layout
from tuning_operator.kube.api import (
    ARTIFACT_STORES,
    EVENTS,
    JOBS,
    NODES,
    PODS,
    TUNER_CHANNELS,
    TUNER_RUNTIMES,
    TUNING_JOBS,
    Forbidden,
    Object,
    Resource,
    Unavailable,
)
from tuning_operator.reconcile.gather import Unreadable
from tuning_operator.snapshot import Problem, Publication


def asked(cluster: Cluster, resource: Resource) -> int:
    return sum(each.kind == resource.kind for each in cluster.api.requests)


# The job itself.


@asyncly
async def test_a_job_that_is_gone_or_going_is_none(cluster: Cluster) -> None:
    await cluster.start()
    assert await cluster.gatherer.gather("team", "other") is None
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["metadata"].update(finalizers=["foregroundDeletion"]))
    cluster.api.remove(TUNING_JOBS, "demo", "team")
    assert await cluster.gatherer.gather("team", "demo") is None


@asyncly
async def test_nothing_is_concluded_before_the_cluster_objects_were_listed(cluster: Cluster) -> None:
    cluster.api.seed(TUNING_JOBS, tuning_job(), "team")
    with pytest.raises(Unavailable, match="listed"):
        await cluster.gatherer.gather("team", "demo")


@asyncly
async def test_a_spec_that_cannot_be_read_names_its_first_fault(cluster: Cluster) -> None:
    await cluster.start()
    cluster.settle("ab" * 10)
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["spec"].update(oldField=1))
    found = await cluster.gatherer.gather("team", "demo")
    assert isinstance(found, Unreadable)
    assert (found.namespace, found.name, found.generation) == ("team", "demo", 2)
    assert (found.problem.reason, found.problem.transient) == ("InvalidSpec", False)
    assert "oldField" in found.problem.message
    assert found.status is not None
    assert found.status.observed_generation == 1


@asyncly
async def test_a_status_that_cannot_be_read_is_as_if_there_were_none(cluster: Cluster) -> None:
    await cluster.start()
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body.update(status={"phase": "Ancient"}))
    assert (await cluster.look()).job.status is None


@asyncly
async def test_metadata_of_a_newer_server_is_passed_over(cluster: Cluster) -> None:
    await cluster.start()
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["metadata"].update(shard="7"))
    assert (await cluster.look()).job.name == "demo"


# What stands before any run.


def without(resource: Resource, name: str) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.api.remove(resource, name)


def changed(resource: Resource, body: Object) -> Callable[[Cluster], None]:
    def change(cluster: Cluster) -> None:
        cluster.api.remove(resource, body["metadata"]["name"])
        cluster.api.seed(resource, body)

    return change


STRANGERS = [{"name": "strangers", "prefix": "x"}]


@pytest.mark.parametrize(
    ("job", "change", "reason", "words"),
    [
        ({}, without(ARTIFACT_STORES, "main"), "ReferenceNotFound", "spec.storeRef: there is no ArtifactStore main"),
        ({}, without(TUNER_RUNTIMES, "ort"), "ReferenceNotFound", "spec.targets[cpu].runtimeRef: there is no TunerRuntime ort"),
        ({"channelRef": "stable"}, without(TUNER_CHANNELS, "stable"), "ReferenceNotFound", "there is no TunerChannel stable"),
        ({"channelRef": "stable"}, without(TUNER_RUNTIMES, "ort"), "ReferenceNotFound", "TunerChannel stable: there is no"),
        ({"runtimeRef": "bare"}, None, "ImageMissing", "TunerRuntime bare"),
        ({}, changed(ARTIFACT_STORES, artifact_store(allowedNamespaces=STRANGERS)), "NamespaceNotAllowed", "namespace team"),
        ({}, changed(ARTIFACT_STORES, artifact_store(url="file:///srv/x")), "InvalidSpec", "file:///srv/x"),
        ({"device": {"type": "GPU", "gpu": {"product": "NVIDIA-L40S-SHARED"}}}, None, "SharedGpu", "allowShared"),
        ({"model": {"uri": "s3://me:pw@models/x"}}, None, "InvalidSpec", "spec.model.uri"),
    ],
)
def test_what_stands_before_any_run_is_told(
    tmp_path: Path, job: dict[str, Any], change: Callable[[Cluster], None] | None, reason: str, words: str
) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        body = tuning_job(**({"model": job["model"]} if "model" in job else {}))
        own = body["spec"]["targets"][0]
        if ref := {key: {"name": job[key]} for key in ("runtimeRef", "channelRef") if key in job}:
            del own["runtimeRef"]
            own |= ref
        own |= {"device": job["device"]} if "device" in job else {}
        await cluster.start(body)
        if change:
            change(cluster)
            await cluster.catalog.resync()
        seen = target(await cluster.look())
        assert seen.problem is not None
        assert (seen.problem.reason, seen.problem.transient, seen.wanted) == (reason, False, None)
        assert words in seen.problem.message
        assert not cluster.store.asked

    asyncio.run(main())


@asyncly
async def test_a_cluster_object_of_an_older_schema_is_named_with_its_fault(cluster: Cluster) -> None:
    await cluster.start()
    cluster.api.edit(TUNER_RUNTIMES, "ort", None, lambda body: body["spec"].update(family="Ancient"))
    await cluster.catalog.resync()
    problem = target(await cluster.look()).problem
    assert problem is not None
    assert problem.reason == "InvalidSpec"
    assert "family" in problem.message


@asyncly
async def test_a_channel_leads_to_its_runtime(cluster: Cluster) -> None:
    job = tuning_job()
    job["spec"]["targets"][0] |= {"channelRef": {"name": "stable"}}
    del job["spec"]["targets"][0]["runtimeRef"]
    await cluster.start(job)
    before = target(await cluster.look()).wanted
    assert before is not None
    assert (before.runtime.name, before.runtime.version) == ("ort", "1.23.2")
    cluster.api.seed(TUNER_RUNTIMES, runtime("next", "1.24.0"))
    cluster.api.edit(TUNER_CHANNELS, "stable", None, lambda body: body["spec"].update(runtimeRef={"name": "next"}))
    await cluster.catalog.resync()
    after = target(await cluster.look()).wanted
    assert after is not None
    assert after.runtime.name == "next"
    assert after.run != before.run


@asyncly
async def test_a_target_that_cannot_run_does_not_hold_up_another(cluster: Cluster) -> None:
    good = {"name": "cpu", "runtimeRef": {"name": "ort"}, "device": {"type": "CPU"}}
    await cluster.start(tuning_job(targets=[good, {**good, "name": "bad", "runtimeRef": {"name": "none"}}]))
    snapshot = await cluster.look()
    assert target(snapshot).problem is None
    assert target(snapshot, "bad").problem is not None
    assert [each.name for each in snapshot.targets] == ["cpu", "bad"]


@asyncly
async def test_another_token_asks_for_another_run_of_the_same_inputs(cluster: Cluster) -> None:
    await cluster.start()
    before = cluster.wanted()
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["spec"].update(rerun={"token": "t1"}))
    after = target(await cluster.look()).wanted
    assert after is not None
    assert (after.digest, after.rerun_token) == (before.digest, "t1")
    assert after.run != before.run


# The store.


@asyncly
async def test_a_store_that_is_away_is_waited_for(cluster: Cluster) -> None:
    await cluster.start()
    cluster.run()
    assert await cluster.stores.check(cluster.wanted().store) is None
    cluster.store.down = True
    seen = target(await cluster.look())
    assert seen.problem is not None
    assert (seen.problem.reason, seen.problem.transient) == ("StoreUnavailable", True)
    assert seen.wanted is not None
    assert seen.run is None


@asyncly
async def test_a_store_that_is_not_honest_is_refused(cluster: Cluster) -> None:
    await cluster.start()
    cluster.store.ignores_conditions = True
    problem = target(await cluster.look()).problem
    assert problem is not None
    assert (problem.reason, problem.transient) == ("StoreNotConditional", False)


@asyncly
async def test_a_run_is_shown_as_its_records_have_it(cluster: Cluster) -> None:
    await cluster.start()
    assert target(await cluster.look()).run is None
    run = cluster.run()
    write_discovery(cluster.store, run)
    seen = target(await cluster.look()).run
    assert seen is not None
    assert (seen.record, seen.device) == (run, DEVICE)


@asyncly
async def test_a_poisoned_run_marks_its_target_and_no_other(cluster: Cluster) -> None:
    good = {"name": "cpu", "runtimeRef": {"name": "ort"}, "device": {"type": "CPU"}}
    await cluster.start(tuning_job(targets=[good, {**good, "name": "other"}]))
    run = cluster.run()
    cluster.run("other")
    cluster.store.put(layout.discovery(run.run), b"rubbish")
    snapshot = await cluster.look()
    problem = target(snapshot).run_problem
    assert problem is not None
    assert problem.reason == "PoisonedRecord"
    assert target(snapshot).problem is None
    assert target(snapshot, "other").run is not None


# Settled targets.


@asyncly
async def test_of_a_settled_target_no_record_is_read(cluster: Cluster) -> None:
    await cluster.start()
    run = cluster.run()
    finish(cluster.store, run)
    cluster.settle(run.run)
    snapshot = await cluster.look()
    seen = target(snapshot)
    assert (seen.run, seen.problem, seen.run_problem, seen.jobs, seen.pods) == (None, None, None, (), ())
    assert seen.wanted is not None
    assert cluster.store.asked == []
    assert [str(each) for each in cluster.api.requests] == ["get TuningJob team/demo", "list Job team"]


@asyncly
async def test_a_settled_target_does_not_mind_that_its_store_is_away(cluster: Cluster) -> None:
    await cluster.start()
    run = cluster.run()
    cluster.settle(run.run)
    cluster.store.down = True
    assert target(await cluster.look()).problem is None


@asyncly
async def test_an_ended_job_that_is_kept_for_its_log_does_not_unsettle(cluster: Cluster) -> None:
    await cluster.start()
    run = cluster.run()
    job = seed_job(cluster, snapshot=await cluster.look())
    cluster.set_job(job["metadata"]["name"], **FAILED)
    cluster.settle(run.run)
    assert len(target(await cluster.look()).jobs) == 1
    assert cluster.store.asked == []
    assert asked(cluster, PODS) == 0


@pytest.mark.parametrize("cause", ["edited", "live job", "another run"])
def test_what_is_not_settled_is_read(tmp_path: Path, cause: str) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        await cluster.start()
        run = cluster.run()
        first = await cluster.look()
        cluster.settle(run.run if cause != "another run" else "ab" * 10)
        if cause == "edited":
            cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["spec"].update(suspend=True))
        if cause == "live job":
            seed_job(cluster, snapshot=first)
        assert target(await cluster.look()).run is not None
        assert asked(cluster, PODS) == (cause == "live job")

    asyncio.run(main())


# Jobs and pods, in the order that decide relies on.


@asyncly
async def test_records_are_read_before_jobs_and_jobs_before_pods(cluster: Cluster) -> None:
    await cluster.start()
    run = cluster.run()
    write_beat(cluster.store, run, beat())
    seed_job(cluster, snapshot=await cluster.look())
    order: list[str] = []

    def before(request: Request) -> None:
        order.append(f"{request} after {'records' if cluster.store.asked else 'nothing'}")
        cluster.store.asked.clear()

    cluster.api.before = before
    await cluster.look()
    assert order == [
        "get TuningJob team/demo after nothing",
        "list Job team after records",
        "list Pod team after nothing",
        "list Event team after nothing",
    ]


@asyncly
async def test_jobs_and_pods_are_those_of_this_very_job(cluster: Cluster) -> None:
    await cluster.start()
    cluster.run()
    job = seed_job(cluster, snapshot=await cluster.look())
    cluster.seed_pod(job, "uid-1-0")
    cluster.api.seed(TUNING_JOBS, tuning_job("other"), "team")
    foreign = seed_job(cluster, snapshot=await cluster.look("other"))
    cluster.seed_pod(foreign, "uid-9-0")
    seen = target(await cluster.look())
    assert [each.name for each in seen.jobs] == [job["metadata"]["name"]]
    assert [each.uid for each in seen.pods] == ["uid-1-0"]


@asyncly
async def test_pods_of_a_job_that_is_gone_are_seen_while_a_beat_runs(cluster: Cluster) -> None:
    await cluster.start()
    run = cluster.run()
    job = seed_job(cluster, snapshot=await cluster.look())
    cluster.api.pods_linger = True
    cluster.seed_pod(job, "uid-1-0")
    write_beat(cluster.store, run, beat())
    cluster.api.remove(JOBS, job["metadata"]["name"], "team")
    seen = target(await cluster.look())
    assert seen.jobs == ()
    assert [(each.uid, each.deleting) for each in seen.pods] == [("uid-1-0", True)]


@asyncly
async def test_without_jobs_and_beats_no_pod_is_asked_for(cluster: Cluster) -> None:
    await cluster.start()
    run = cluster.run()
    write_beat(cluster.store, run, beat(state="done"))
    await cluster.look()
    assert asked(cluster, PODS) == 0


@asyncly
async def test_a_job_that_ends_while_records_are_read_is_not_seen_before_its_record(cluster: Cluster) -> None:
    await cluster.start()
    run = cluster.run()
    job = seed_job(cluster, snapshot=await cluster.look())

    def before(request: Request) -> None:
        if (request.verb, request.kind) == ("list", "Job"):
            write_discovery(cluster.store.inner, run)
            write_plan(cluster.store.inner, run, 1)
            cluster.set_job(job["metadata"]["name"], **COMPLETE)

    cluster.api.before = before
    seen = target(await cluster.look())
    assert seen.jobs[0].end == "Complete"
    assert seen.run is not None
    assert seen.run.stage == "explore"


@asyncly
async def test_a_failed_job_that_has_a_live_successor_costs_no_second_read(cluster: Cluster) -> None:
    await cluster.start()
    run = cluster.run()
    failed = seed_job(cluster, snapshot=await cluster.look())
    cluster.set_job(failed["metadata"]["name"], **FAILED)
    seed_job(cluster, attempt=2, snapshot=await cluster.look())
    await cluster.look()
    assert cluster.store.times("list", layout.beats(run.run)) == 1


@asyncly
async def test_records_that_cannot_be_read_again_are_not_relied_on(cluster: Cluster) -> None:
    await cluster.start()
    cluster.run()
    job = seed_job(cluster, snapshot=await cluster.look())
    cluster.set_job(job["metadata"]["name"], **FAILED)

    def before(request: Request) -> None:
        cluster.store.down = request.kind == "Job"

    cluster.api.before = before
    seen = target(await cluster.look())
    assert seen.run is None
    assert seen.problem is not None
    assert seen.problem.transient


# What explains.


@asyncly
async def test_why_a_job_has_no_pods_is_asked_only_of_jobs_without(cluster: Cluster) -> None:
    await cluster.start()
    cluster.run()
    job = seed_job(cluster, snapshot=await cluster.look())
    note = 'pods "x" is forbidden: exceeded quota: gpus'
    event = {
        "metadata": {"name": "e1"},
        "eventTime": "2026-11-30T10:00:00.000000Z",
        "reportingController": "job-controller",
        "reportingInstance": "job-controller",
        "action": "Create",
        "type": "Warning",
        "reason": "FailedCreate",
        "note": note,
        "regarding": {"kind": "Job", "name": job["metadata"]["name"], "namespace": "team", "uid": job["metadata"]["uid"]},
    }
    cluster.api.seed(EVENTS, event, "team")
    assert target(await cluster.look()).jobs[0].create_problem == note
    cluster.api.fail(Forbidden("no events for you"), "list", EVENTS)
    assert target(await cluster.look()).jobs[0].create_problem == ""
    cluster.seed_pod(job, "uid-1-0")
    await cluster.look()
    assert asked(cluster, EVENTS) == 0


def node(name: str, **labels: str) -> Object:
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "8", "memory": "64Gi", "ephemeral-storage": "100Gi"},
        "images": ["x"] * 100,
    }
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


@asyncly
async def test_nodes_are_counted_when_a_job_is_due_and_not_while_one_works(cluster: Cluster) -> None:
    await cluster.start()
    run = cluster.run()
    for name in ("a", "b"):
        cluster.api.seed(NODES, node(name, **{"kubernetes.io/arch": "amd64"}))
    cluster.api.seed(NODES, node("c", **{"kubernetes.io/arch": "arm64"}))
    first = await cluster.look()
    assert (target(first).nodes_of_target, target(first).nodes_of_class) == (3, None)
    write_discovery(cluster.store, run)
    write_plan(cluster.store, run, 1)
    seen = target(await cluster.look())
    assert (seen.nodes_of_target, seen.nodes_of_class) == (3, 2)
    assert asked(cluster, NODES) == 0, "listed a moment ago"
    job = seed_job(cluster, "explore", 2, snapshot=await cluster.look())
    seen = target(await cluster.look())
    assert (seen.nodes_of_target, seen.nodes_of_class) == (None, None)
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    cluster.seed_pod(job, "uid-2-0", phase="Pending", conditions=[unplaced])
    assert target(await cluster.look()).nodes_of_class == 2


@asyncly
async def test_nodes_that_may_not_be_seen_are_unknown(cluster: Cluster) -> None:
    await cluster.start()
    cluster.api.fail(Forbidden("no nodes for you"), "list", NODES)
    seen = target(await cluster.look())
    assert (seen.problem, seen.nodes_of_target) == (None, None)


def test_nodes_are_not_asked_for_where_the_settings_forbid_it(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path, settings={"read_nodes": False})
        await cluster.start()
        assert target(await cluster.look()).nodes_of_target is None
        assert asked(cluster, NODES) == 0

    asyncio.run(main())


@asyncly
async def test_a_run_under_way_is_read_although_its_runtime_is_gone(cluster: Cluster) -> None:
    await cluster.start()
    run = cluster.run()

    def under_way(body: Object) -> None:
        body["status"] = {"targets": [{"name": "cpu", "activeRun": run.run}]}

    cluster.api.edit(TUNING_JOBS, "demo", "team", under_way)
    cluster.api.remove(TUNER_RUNTIMES, "ort")
    await cluster.catalog.resync()
    seen = target(await cluster.look())
    assert (seen.wanted, seen.problem and seen.problem.reason) == (None, "ReferenceNotFound")
    assert seen.run is not None
    assert seen.run.record.run == run.run


# Jobs that nobody wants any more.


@asyncly
async def test_jobs_of_a_removed_target_are_orphans_whose_run_can_be_stopped(cluster: Cluster) -> None:
    good = {"name": "cpu", "runtimeRef": {"name": "ort"}, "device": {"type": "CPU"}}
    await cluster.start(tuning_job(targets=[good, {**good, "name": "old"}]))
    before = await cluster.look()
    job = seed_job(cluster, snapshot=before, name="old")
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["spec"].update(targets=[good]))
    snapshot = await cluster.look()
    assert [each.name for each in snapshot.orphans] == [job["metadata"]["name"]]
    wanted = target(before, "old").wanted
    assert wanted is not None
    assert snapshot.orphan_stores == {job["metadata"]["uid"]: wanted.store}


@asyncly
async def test_a_job_of_an_earlier_run_stays_with_its_target(cluster: Cluster) -> None:
    await cluster.start()
    before = await cluster.look()
    job = seed_job(cluster, snapshot=before)
    wanted = target(before).wanted
    assert wanted is not None
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["spec"].update(rerun={"token": "again"}))
    snapshot = await cluster.look()
    assert [each.name for each in target(snapshot).jobs] == [job["metadata"]["name"]]
    assert snapshot.orphans == ()
    assert snapshot.orphan_stores == {job["metadata"]["uid"]: wanted.store}


@asyncly
async def test_without_a_store_nobody_can_be_told_to_stop(cluster: Cluster) -> None:
    await cluster.start()
    seed_job(cluster, snapshot=await cluster.look(), run="ab" * 10)
    cluster.api.remove(ARTIFACT_STORES, "main")
    await cluster.catalog.resync()
    snapshot = await cluster.look()
    assert snapshot.orphan_stores == {}
    assert len(target(snapshot).jobs) == 1


# What this process remembers.


@asyncly
async def test_a_publication_is_shown_under_the_generation_that_it_was_made_for(cluster: Cluster) -> None:
    await cluster.start()
    made = Publication("AwaitingApproval", f"sha256:{'ab' * 32}", None)
    metadata = (await cluster.look()).job.metadata
    cluster.memory.published(metadata.uid, "cpu", metadata.generation, cluster.wanted().place, made)
    assert target(await cluster.look()).publication == made
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["spec"].update(publish={"promotion": "Manual"}))
    assert target(await cluster.look()).publication is None


@asyncly
async def test_a_refusal_is_shown_until_the_spec_changes(cluster: Cluster) -> None:
    await cluster.start()
    snapshot = await cluster.look()
    problem = Problem("QuotaExceeded", "no", transient=True)
    cluster.memory.refused(snapshot.job.metadata.uid, "cpu", 1, cluster.wanted().place, problem)
    assert target(await cluster.look()).refused == problem
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["spec"].update(suspend=True))
    assert target(await cluster.look()).refused is None
