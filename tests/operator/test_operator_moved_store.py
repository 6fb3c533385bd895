"""A TuningJob that names another store, or whose store moves: what it asks for is looked for there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reconcile_cases import CONFIG, SERVED, STORE, after, batch, done, kinds, later, look, pod, run, said, snapshot
from store_cluster import (
    Body,
    Cluster,
    CountingStore,
    artifact_store,
    asyncly,
    counting_store,
    finish,
    tuning_job,
    write_discovery,
    write_plan,
)
from target_cases import JOB, TRIAL, WANTED

from tuner_job.api.tuningjob_status import TuningJobStatus
from tuner_job.store import layout
from tuning_operator.actions import Decision, DeleteJob, StartRun, StopAttempt
from tuning_operator.kube.api import ARTIFACT_STORES, JOBS, TUNING_JOBS
from tuning_operator.reconcile.decide import decide
from tuning_operator.snapshot import TargetSnapshot

ELSEWHERE = replace(STORE, name="second", url="s3://other/team")
THERE = replace(WANTED, store=ELSEWHERE)


async def step(cluster: Cluster) -> TuningJobStatus:
    """One whole look: gather, decide, act, write."""
    seen = await cluster.look()
    decision = decide(seen, cluster.config)
    for action in decision.actions:
        await cluster.actor.act(action, seen)
    body = decision.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda job: job.update(status=body))
    return decision.status


async def moved(cluster: Cluster, how: str) -> CountingStore:
    """The store that the job is in from now on."""
    other, first = counting_store(), cluster.store
    cluster.stores._opener = lambda url, _options: other if url.startswith("s3://tuning2") else first
    await cluster.start(tuning_job())
    await step(cluster)
    finish(first.inner, cluster.run())
    for _ in range(3):
        status = await step(cluster)
    assert status.phase == "Done"
    assert status.targets[0].store == cluster.wanted().store.mark
    if how == "the job names another":
        second = artifact_store(url="s3://tuning2")
        second["metadata"]["name"] = "second"
        cluster.api.seed(ARTIFACT_STORES, second)
        cluster.api.edit(TUNING_JOBS, "demo", "team", lambda job: job["spec"].update(storeRef={"name": "second"}))
    else:

        def change(store: Body) -> None:
            store["spec"]["url"] = "s3://tuning2"

        cluster.api.edit(ARTIFACT_STORES, "main", None, change)
    await cluster.catalog.resync()
    return other


@pytest.mark.parametrize("how", ["the job names another", "its own has another URL"])
def test_a_finished_run_of_another_store_is_tuned_again_where_the_job_is_now(how: str, tmp_path: object) -> None:
    @asyncly
    async def in_cluster(cluster: Cluster) -> None:
        other = await moved(cluster, how)
        run = cluster.run()
        other.inner.delete(layout.run(run.run))
        status = await step(cluster)
        assert said(status, "Ready") == ("False", "Retuning")
        assert other.inner.exists(layout.run(run.run))
        assert status.targets[0].recent_runs == ()
        finish(other.inner, run)
        for _ in range(3):
            status = await step(cluster)
        assert said(status, "Ready") == ("True", "Current")
        (target,) = status.targets
        assert target.published is not None
        assert target.published.uri.startswith(other.url)
        assert [each.id for each in target.recent_runs] == [run.run]
        assert cluster.wanted().store.url == "s3://tuning2/lab/team"
        assert target.store == cluster.wanted().store.mark
        assert [*other.inner.list("pointers")]

    in_cluster(tmp_path)  # type: ignore[arg-type]


@asyncly
async def test_workers_of_the_old_store_are_told_there_to_stop(cluster: Cluster) -> None:
    other, first = counting_store(), cluster.store
    cluster.stores._opener = lambda url, _options: other if url.startswith("s3://tuning2") else first
    await cluster.start(tuning_job())
    await step(cluster)
    run = cluster.run()
    write_discovery(first.inner, run)
    write_plan(first.inner, run, 1)
    await step(cluster)
    (job,) = await cluster.api.list(JOBS, "team")
    cluster.set_job(job["metadata"]["name"], active=1, ready=1)
    cluster.seed_pod(job, "uid-1-0")
    second = artifact_store(url="s3://tuning2")
    second["metadata"]["name"] = "second"
    cluster.api.seed(ARTIFACT_STORES, second)
    await cluster.catalog.resync()
    cluster.api.edit(TUNING_JOBS, "demo", "team", lambda body: body["spec"].update(storeRef={"name": "second"}))
    for _ in range(3):
        status = await step(cluster)
    assert first.inner.exists(layout.stop(run.run, 1))
    assert not [*other.inner.list("runs")]
    assert said(status, "Reconciling") == ("True", "Stopping")
    assert [each["metadata"]["name"] for each in await cluster.api.list(JOBS, "team")] == [job["metadata"]["name"]]
    cluster.api.remove(JOBS, job["metadata"]["name"], "team")
    await step(cluster)
    assert other.inner.exists(layout.run(run.run))


# decide


def seen(now: float = 0.0, *, known: bool = True, status: TuningJobStatus | None = None) -> Decision:
    live = batch(WANTED, "explore", 2, store=STORE.url)
    target = TargetSnapshot("gpu", wanted=THERE, jobs=(live,), pods=(pod(live),))
    stores = {live.uid: STORE} if known else {}
    job = JOB.model_copy(update={"status": status})
    return decide(snapshot(job, target, now=later(now), orphan_stores=stores), CONFIG)


def test_how_long_workers_of_the_old_store_take_is_known_before_that_store_is_asked() -> None:
    first = seen()
    assert first.actions == ()
    assert first.status.targets[0].stopping_since is not None
    assert seen(1, status=first.status).actions == (StopAttempt(WANTED.run, STORE, 2, "InputsChanged"),)
    assert kinds(seen(TRIAL + 1, status=first.status)) == ["DeleteJob"]


def test_workers_of_a_store_that_nobody_knows_any_more_end_at_once() -> None:
    (action,) = seen(known=False).actions
    assert isinstance(action, DeleteJob)


def test_counters_of_the_same_run_elsewhere_are_not_taken_for_its_own() -> None:
    before = look(JOB, run=run(WANTED, "explore"))
    assert before.status.progress is not None
    target = look(after(JOB, before), wanted=THERE).status.targets[0]
    assert (target.trials, target.progress, target.gpu_seconds, target.active_run) == (None, None, None, None)


def test_a_status_that_names_no_store_is_of_the_present_one() -> None:
    status = done(JOB).status
    assert status is not None
    older = status.model_copy(update={"targets": tuple(each.model_copy(update={"store": None}) for each in status.targets)})
    decision = look(JOB.model_copy(update={"status": older}))
    assert decision.actions == ()
    assert said(decision.status, "Ready") == ("True", "Current")
    assert decision.status.targets[0].store == STORE.mark


def test_back_in_the_old_store_its_verdict_is_published_again() -> None:
    begun = look(done(JOB), wanted=THERE)
    (start,) = begun.actions
    assert isinstance(start, StartRun)
    assert start.wanted.store == ELSEWHERE
    back = look(after(JOB, begun), run=run(WANTED, None))
    assert kinds(back) == ["Publish"]
    assert said(look(after(JOB, back), run=run(WANTED, None), publication=SERVED).status, "Ready") == ("True", "Current")
