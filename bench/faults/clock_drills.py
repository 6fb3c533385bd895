"""Clocks that are wrong."""

from __future__ import annotations

from datetime import UTC, datetime

from bench.faults.checks import check_run
from bench.faults.drill import Notes, drill, require
from bench.faults.skew import SKEW_SECONDS, skewed
from bench.faults.world import World
from tuner_job.api.messages import TryRecord
from tuner_job.store import layout
from tuner_job.store.records import read_record

RUNTIME = "onnxruntime-skewed"


@drill(alone=False)
def workers_clocks_skewed(world: World) -> Notes:
    """workers' clocks wrong
    | one worker ten minutes behind, the other ten minutes ahead, and one is killed
    | Ready; no one is taken for dead by its clock: only the killed one's trial is repeated
    """
    plane, cluster = world.cluster.plane, world.cluster
    reference = cluster.node.load(skewed("worker"))
    runtime = plane.get("tunerruntime", "onnxruntime")
    plane.apply(
        {
            "apiVersion": runtime["apiVersion"],
            "kind": "TunerRuntime",
            "metadata": {"name": RUNTIME},
            "spec": {**runtime["spec"], "image": reference},
        }
    )
    run = world.job("skewed", knobs=5)
    run.body["spec"]["targets"][0]["runtimeRef"] = {"name": RUNTIME}
    run.start()
    known = run.run()
    trial, pod = run.until_trial_in_hand(known)
    run.remember(known)
    cluster.kill_container(pod["status"]["containerStatuses"][0]["containerID"])
    run.kills = 1
    check_run(run)
    claims = [read_record(run.store, layout.claim(known, each, 1), TryRecord) for each in run.planned(known)]
    times = sorted(each.started_at for each in claims if each)
    apart = (datetime.fromisoformat(times[-1]) - datetime.fromisoformat(times[0])).total_seconds()
    require(apart > SKEW_SECONDS, f"the clocks were only {apart:.0f} s apart: {times}")
    return [*run.notes, f"clocks {apart / 60:.0f} min apart", f"{trial} was repeated"]


@drill(alone=True)
def operators_clock_skewed(world: World) -> Notes:
    """operator's clock wrong
    | ten minutes ahead; it takes the Lease over from one whose clock is right, and hands it back
    | Ready
    """
    cluster = world.cluster
    image = skewed("operator")
    cluster.node.load(image)
    repository, _, tag = image.name.rpartition(":")
    world.keep_logs()
    cluster.install({"image": {"repository": repository, "tag": tag, "pullPolicy": "Never"}})
    try:
        run = world.job("operator-skew", knobs=3)
        run.start()
        run.until_phase("Exploring")
        world.crash_operator(world.operator_process())  # so that one waits for the Lease of a dead one, both ahead of time
        check_run(run)
        body = run.get()
        told = [datetime.fromisoformat(each["lastTransitionTime"]) for each in body["status"]["conditions"]]
        ahead = (max(told) - datetime.now(UTC)).total_seconds()
        require(ahead > SKEW_SECONDS / 2, f"the operator's clock was only {ahead:.0f} s ahead")
    finally:
        world.keep_logs()
        cluster.install()
    return [*run.notes, f"its conditions are dated {ahead / 60:.0f} min ahead"]
