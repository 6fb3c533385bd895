"""API server, etcd and the S3 server fail."""

from __future__ import annotations

from contextlib import ExitStack

from rig.kube.object_store import Fault

from bench.faults.checks import check_run
from bench.faults.drill import Notes, drill, require
from bench.faults.world import Run, World, pause
from tuner_job.api.messages import FINAL
from tuner_job.store import layout

OUTAGE_SECONDS = 60.0


def _exploring(world: World, name: str, knobs: int = 4) -> Run:
    run = world.job(name, knobs=knobs)
    run.start()
    known = run.run()
    run.until_trial_in_hand(known)
    run.remember(known)
    return run


def _restarted(world: World, before: int) -> str:
    return f"operator restarted {sum(world.restarts().values()) - before} times"


@drill(alone=True)
def api_server_and_etcd_restarted(world: World) -> Notes:
    """API server restarted; etcd restarted
    | workers explore; the final is in hand
    | Ready; workers do not notice, the operator goes on or starts again
    """
    run = _exploring(world, "restarts")
    known = run.run()
    before = sum(world.restarts().values())
    world.cluster.plane.restart_api()
    run.until("the final is in hand", lambda: run.store.exists(layout.claim(known, FINAL, 1)) or None)
    run.remember(known)
    world.cluster.plane.restart_etcd()
    check_run(run, most_crashes=2)
    note = _restarted(world, before)
    world.replace_operator()
    return [*run.notes, note]


@drill(alone=True)
def api_server_down(world: World) -> Notes:
    """API server away for a minute
    | workers explore
    | Ready; the operator ends for want of its Lease and comes back; workers go on meanwhile
    """
    run = _exploring(world, "api-down", knobs=6)
    plane = world.cluster.plane
    before, known = sum(world.restarts().values()), run.run()
    results = run.remember(known)
    plane.stop_api()
    try:
        pause(OUTAGE_SECONDS)
        went_on = run.remember(known) - results
    finally:
        plane.start_api()
    check_run(run, most_crashes=4)
    require(went_on > 0, "no worker finished a trial meanwhile")
    note = _restarted(world, before)
    world.replace_operator()
    return [*run.notes, note, f"{went_on} results came meanwhile"]


@drill(alone=True)
def s3_down(world: World) -> Notes:
    """S3 server away for a minute
    | workers have trials in hand
    | the job says StoreUnavailable meanwhile, then goes on by itself; Ready; no trial is repeated
    """
    run = _exploring(world, "s3-down", knobs=5)
    s3 = world.cluster.s3
    s3.stop()
    try:
        message = run.until_reason("StoreUnavailable", seconds=120)
        pause(OUTAGE_SECONDS)
    finally:
        s3.start()
    check_run(run)
    return [*run.notes, f"said StoreUnavailable: {message[:80]}"]


def _disturbed(world: World, name: str, *faults: Fault) -> Notes:
    """The whole run long."""
    run = world.job(name, knobs=3)
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(world.s3.fault(rf"/{run.namespace}/", fault))
        run.start()
        check_run(run)
    return run.notes


@drill(alone=False)
def s3_errors(world: World) -> Notes:
    """S3 answers 500, 503 (slow down), or closes the connection
    | each to one request in twenty, from the start to the end
    | Ready; no trial is repeated
    """
    share = 0.05
    return _disturbed(
        world, "s3-errors", Fault(status=500, share=share), Fault(status=503, share=share), Fault(drop=True, share=share)
    )


@drill(alone=False)
def s3_lost_answers(world: World) -> Notes:
    """S3 does what it is asked and the answer is lost
    | for one write in twenty, from the start to the end
    | Ready; no trial is repeated, whoever asks again finds its own write
    """
    return _disturbed(world, "s3-lost", Fault(drop=True, after=True, share=0.05, methods=("PUT",)))


@drill(alone=False)
def s3_slow(world: World) -> Notes:
    """S3 is slow
    | one request in ten takes 3 s more, from the start to the end
    | Ready; no trial is repeated
    """
    return _disturbed(world, "s3-slow", Fault(delay_seconds=3.0, share=0.1))
