"""Workers are killed, their Jobs and their node are taken away."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from rig.kube.cluster import NAMESPACE, RELEASE
from rig.kube.control_plane import Object
from rig.kube.machine import CommandFailed, cgroups

from bench.faults.checks import check_run
from bench.faults.drill import Notes, drill, require
from bench.faults.world import Run, World
from tuner_job.api.messages import DISCOVER, FINAL, TryRecord
from tuner_job.store import layout
from tuner_job.store.records import read_record

HOG = Path(__file__).with_name("hog.py")


def _container(pod: Object) -> str:
    return str(pod["status"]["containerStatuses"][0]["containerID"])


def _ends(run: Run, trial: str) -> str:
    """How earlier tries of a trial ended, as the later ones say."""
    known = run.run()
    tries = run.tries(known)[trial]
    records = [read_record(run.store, layout.claim(known, trial, number), TryRecord) for number in range(2, tries + 1)]
    return ", ".join(f"{each.previous.cause}: {each.previous.detail}" for each in records if each and each.previous) or "nobody"


@drill(alone=False)
def worker_killed(world: World) -> Notes:
    """worker's container killed (SIGKILL)
    | it has a trial in hand, others have their results
    | Ready; that trial has two tries, all others one; nothing is convicted
    """
    run = world.job("killed", knobs=4)
    run.start()
    trial, pod = run.until_trial_in_hand(run.run())
    run.remember(run.run())
    world.cluster.kill_container(_container(pod))
    run.kills = 1
    check_run(run)
    return [*run.notes, f"{trial} taken over: {_ends(run, trial)}"]


@drill(alone=False)
def worker_killed_in_discover_and_final(world: World) -> Notes:
    """worker's container killed (SIGKILL)
    | twice: discover is in hand, the final is in hand
    | Ready; each of the two has two tries
    """
    run = world.job("killed-ends", knobs=2)
    run.start()
    known = run.run()
    for trial in (DISCOVER, FINAL):
        run.until(f"{trial} is in hand", lambda trial=trial: run.store.exists(layout.claim(known, trial, 1)) or None, every=0.1)  # type: ignore[misc]
        claim = read_record(run.store, layout.claim(known, trial, 1), TryRecord)
        require(claim is not None and run.result_bytes(known, trial) is None, f"{trial} was through already")
        assert claim is not None
        (pod,) = [each for each in run.listed("pods") if each["metadata"]["uid"] == claim.worker_id]
        world.cluster.kill_container(_container(pod))
        run.kills += 1
    check_run(run)
    return [*run.notes, f"discover taken over: {_ends(run, DISCOVER)}", f"final taken over: {_ends(run, FINAL)}"]


@drill(alone=False)
def worker_out_of_memory(world: World) -> Notes:
    """worker's container out of memory as a whole (kernel)
    | it has a trial in hand
    | Ready; the trial is tried again and not convicted for one such death
    """
    run = world.job("memory", knobs=4)
    run.start()
    trial, pod = run.until_trial_in_hand(run.run())
    run.remember(run.run())
    process = world.process_of(_container(pod))
    require(process is not None, "the worker was gone")
    assert process is not None
    _starve(world, process)
    run.kills = 1

    def killed() -> str | None:
        """Its last termination, in the pod or its replacement's history."""
        for each in run.listed("pods"):
            if each["metadata"]["uid"] == pod["metadata"]["uid"]:
                state = each["status"]["containerStatuses"][0]["state"]
                return str(state["terminated"].get("reason")) if "terminated" in state else None
        return None

    reason = run.until("its container has ended", killed, seconds=60)
    require(reason == "OOMKilled", f"the container ended with {reason}")
    check_run(run)
    return [*run.notes, f"container ended with {reason}", f"{trial} taken over: {_ends(run, trial)}"]


def _starve(world: World, process: int) -> None:
    """The kernel is told to choose the container's first process, with which the whole container ends."""
    machine = world.cluster.plane.machine
    groups = machine.call("cat", f"/proc/{process}/cgroup").splitlines()
    place = next(line.split(":")[2] for line in groups if line.split(":")[1] in ("memory", ""))
    root = next(each.parent for each in cgroups(machine.cgroup) if each.parent.name in ("memory", "cgroup"))
    with suppress(CommandFailed):  # once the first process is chosen, the kernel may take this one too
        machine.call(sys.executable, HOG, str(process), f"{root}{place}", seconds=60)


@drill(alone=False)
def worker_pod_deleted(world: World) -> Notes:
    """worker's pod deleted by hand, without grace
    | it has a trial in hand
    | Ready; the trial has two tries at most
    """
    run = world.job("pod-deleted", knobs=4)
    run.start()
    trial, pod = run.until_trial_in_hand(run.run())
    run.remember(run.run())
    run.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
    run.kills = 1
    check_run(run)
    return [*run.notes, f"{trial} taken over: {_ends(run, trial)}"]


@drill(alone=False)
def job_deleted(world: World) -> Notes:
    """explore's Job deleted by hand
    | two workers have trials in hand
    | Ready; another attempt does what is left
    """
    run = world.job("job-deleted", knobs=5)
    run.start()
    known = run.run()
    run.until_trial_in_hand(known)
    run.remember(known)
    (job,) = [each for each in run.listed("jobs") if each["metadata"]["labels"]["trtfleet.dev/stage"] == "explore"]
    run.kubectl("delete", "job", job["metadata"]["name"])
    run.kills = 2
    check_run(run)
    attempts = sorted({name.partition("-")[0] for name in run.reader(known).workers()})
    require(len(attempts) == 4, f"attempts: {attempts}")
    return [*run.notes, f"attempts {', '.join(attempts)}"]


@drill(alone=True)
def ttl_before_harvest(world: World) -> Notes:
    """explore's Job removed by its TTL (set to 0)
    | it has finished while no operator runs
    | Ready; what it did is read from the store
    """
    plane = world.cluster.plane
    run = world.job("ttl", knobs=5)
    run.start()
    run.until_trial_in_hand(run.run())
    process = world.operator_process()
    (job,) = [each for each in run.listed("jobs") if each["metadata"]["labels"]["trtfleet.dev/stage"] == "explore"]
    run.kubectl(
        *("patch", "job", job["metadata"]["name"], "--type=merge"),
        *("--patch", json.dumps({"spec": {"ttlSecondsAfterFinished": 0}})),
    )
    world.keep_logs()
    plane.kubectl("scale", f"deployment/{RELEASE}", "--namespace", NAMESPACE, "--replicas=0")
    world.signal(process, "KILL")
    try:

        def gone() -> bool | None:
            return True if not run.listed("jobs") else None

        run.until("the Job is gone", gone, seconds=300)
        require(not run.verdict(run.run()), "the final was through already")
    finally:
        plane.kubectl("scale", f"deployment/{RELEASE}", "--namespace", NAMESPACE, "--replicas=1")
        world.cluster.wait_for_operator()
    run.remember(run.run())
    check_run(run)
    return run.notes


@drill(alone=True)
def node_drained(world: World) -> Notes:
    """node drained (cordon, evict) and given back
    | two workers have trials in hand; the operator is evicted as well
    | Pending while there is no node; then Ready, evictions are explained
    """
    run = world.job("drained", knobs=5)
    run.start()
    known = run.run()
    trial, _ = run.until_trial_in_hand(known)
    run.remember(known)
    world.keep_logs()
    node = world.cluster.node
    try:
        node.drain()
        require(not [pod for pod in run.listed("pods") if pod["status"]["phase"] == "Running"], "workers still run")
    finally:
        node.uncordon()
    world.cluster.wait_for_operator()
    run.kills = 2
    check_run(run)
    return [*run.notes, f"{trial} taken over: {_ends(run, trial)}"]
