"""People change their minds in the middle of a run."""

from __future__ import annotations

import copy

from bench.faults.checks import check_run
from bench.faults.drill import Notes, drill, require
from bench.faults.world import World
from tuner_job.api.messages import FINAL
from tuner_job.store import layout


@drill(alone=False)
def suspended_in_final(world: World) -> Notes:
    """suspended and resumed
    | the final is in hand
    | Suspended with no pod left; then Ready; the final is done once or twice
    """
    run = world.job("suspended", knobs=2)
    run.start()
    known = run.run()
    run.until("the final is in hand", lambda: run.store.exists(layout.claim(known, FINAL, 1)) or None, every=0.2)
    run.remember(known)
    run.patch({"suspend": True})
    run.until("it is suspended", lambda: run.condition("Suspended")[0] == "True" or None)
    require(not run.listed("pods"), "pods are left although it says Suspended")
    decided = run.verdict(known)
    run.patch({"suspend": False})
    run.kills = 0 if decided else 1
    check_run(run)
    return [*run.notes, "the final had ended when it was suspended" if decided else "the final was begun again"]


@drill(alone=False)
def suspended_in_explore(world: World) -> Notes:
    """suspended and resumed
    | workers have explore trials in hand
    | Suspended after these trials; then Ready; none is repeated
    """
    run = world.job("suspended-early", knobs=5)
    run.start()
    known = run.run()
    run.until_trial_in_hand(known)
    run.patch({"suspend": True})
    run.until("it is suspended", lambda: run.condition("Suspended")[0] == "True" or None)
    require(not run.listed("pods"), "pods are left although it says Suspended")
    results = run.remember(known)
    require(not run.verdict(known), "it was through before it was suspended")
    run.patch({"suspend": False})
    check_run(run)
    return [*run.notes, f"{results} results kept over the suspension"]


@drill(alone=False)
def edited(world: World) -> Notes:
    """inputs edited
    | workers have explore trials in hand
    | the old run is stopped and published nothing; Ready for the new inputs
    """
    run = world.job("edited", knobs=4)
    run.start()
    old = run.run()
    run.until_trial_in_hand(old)
    run.patch({"objective": {"metric": "LatencyP50", "minImprovement": "0.4"}})
    run.until("a new run is named", lambda: run.run() != old or None)
    check_run(run)
    require(not run.verdict(old), "the old run has a verdict")
    require(len(run.runs()) == 2, f"runs: {run.runs()}")
    require(run.store.exists(layout.stop(old, 2)), "the old run's explore attempt has no stop marker")
    tries = run.tries(old)
    require(all(number <= 1 for number in tries.values()), f"trials of the old run were repeated: {tries}")
    begun = [trial for trial, number in tries.items() if number and not run.result_bytes(old, trial)]
    require(not begun, f"trials of the old run that were begun and have no result: {begun}")
    return [*run.notes, "the old run's trials in hand were finished"]


@drill(alone=False)
def target_removed(world: World) -> Notes:
    """one of two targets removed
    | its workers have explore trials in hand
    | its workers stop and its status goes; Ready for the other
    """
    run = world.job("removed", knobs=4, parallelism=1)
    second = copy.deepcopy(run.body["spec"]["targets"][0])
    second["name"] = "other"
    run.body["spec"]["targets"].append(second)
    run.start()
    other = run.run("other")
    run.until_trial_in_hand(other, after=0)
    run.patch({"targets": run.body["spec"]["targets"][:1]})

    def gone() -> bool | None:
        left = [each for each in run.listed("jobs") if each["metadata"]["labels"]["trtfleet.dev/target"] == "other"]
        return True if not left else None

    run.until("its Jobs are gone", gone)
    check_run(run)
    require([each["name"] for each in run.get()["status"]["targets"]] == ["cpu"], "the removed target's status is left")
    require(not run.verdict(other), "the removed target has a verdict")
    begun = [trial for trial, number in run.tries(other).items() if number and not run.result_bytes(other, trial)]
    require(not begun, f"its trials that were begun and have no result: {begun}")
    return [*run.notes, "its trials in hand were finished"]


@drill(alone=False)
def longest_names(world: World) -> Notes:
    """longest legal names
    | from the start: 63 characters for job and target
    | Ready; Jobs and pods have legal names
    """
    run = world.job("j" * 63, knobs=1)
    run.body["spec"]["targets"][0]["name"] = "t" * 63
    run.start()
    check_run(run, "t" * 63)
    return run.notes
