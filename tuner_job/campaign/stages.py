"""What a worker does in each stage, and how it leaves the stage's record behind."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tuner_job.api.base import TrtfleetError
from tuner_job.api.measurement import BASELINE
from tuner_job.api.messages import DISCOVER, FINAL, DiscoveryRecord, PlanRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign import rounds
from tuner_job.campaign.baseline import Baseline
from tuner_job.campaign.discover import DeviceUnusable, describe, discover, require_runtime
from tuner_job.campaign.explore import Explorer
from tuner_job.campaign.final import Final
from tuner_job.campaign.patience import Wait, created
from tuner_job.campaign.processes import seconds_alive
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.trials import TrialRunner
from tuner_job.campaign.workspace import Stopped, Workspace
from tuner_job.measure.racing import races
from tuner_job.store import layout
from tuner_job.store.beats import Heart
from tuner_job.store.ledger import Ledger, ignores_ledger
from tuner_job.store.objects import StoreUnavailable
from tuner_job.store.probe import probe
from tuner_job.store.records import create_record
from tuner_job.store.tries import Claim, Claims, Done
from tuner_job.trial.environment import steering

log = logging.getLogger("trtfleet.worker")


class WrongDevice(TrtfleetError):
    """This worker's device is not of the class that discover froze."""

    reason = "WrongDevice"


class StageConvicted(TrtfleetError):
    """Discover or final kept killing its workers; no further start would mend that."""

    reason = "StageConvicted"


@dataclass(frozen=True)
class Post:
    """A worker at its post: what every stage needs."""

    space: Workspace
    reader: RunReader
    heart: Heart
    claims: Claims
    index: int
    check_stop: Callable[[], str]
    """Raises Stopped when the worker was told to stop; why exploring is to end, when only that is; else empty."""
    wait: Wait
    deadline_seconds: float
    poll_seconds: float


def run_stage(stage: str, post: Post) -> None:
    """Returns when nothing is left to do in the stage. Raises TrtfleetError or Stopped."""
    {"discover": _discover, "explore": _explore, "final": _final}[stage](post)


def _discover(post: Post) -> None:
    run = post.reader.run
    if not _take_alone(post, DISCOVER, lambda: post.reader.discovery() is not None):
        return
    probe(post.space.store)
    own = False
    if post.reader.discovery() is None:
        found = discover(post.space)
        own = created(post.space.store, layout.discovery(run.run), found, post.wait)
    discovery = _discovery(post)
    create_record(post.space.store, layout.plan(run.run, 1), rounds.first_plan(run, discovery))
    post.heart.finished(
        Outcome.FEASIBLE if own else None,
        device_seconds=sum(build.seconds for build in discovery.pilot) if own else None,
    )


def _explore(post: Post) -> None:
    _last_plan(post)
    discovery = _prepared(post)
    inputs = post.reader.run.inputs
    log.info("racing: %s", races(inputs.measure, inputs.constraints, discovery)[1])
    ledger = None if ignores_ledger(post.reader.run) else Ledger(post.space.store)
    post.space.fetch_timing_cache(discovery.timing_cache_blob)
    Explorer(
        post.space.store,
        post.reader,
        post.claims,
        TrialRunner(post.space, discovery, ledger, prepared=seconds_alive()),
        Baseline(post.space, discovery),
        post.heart,
        index=post.index,
        check_stop=post.check_stop,
        wait=post.wait,
        deadline_seconds=post.deadline_seconds,
        poll_seconds=post.poll_seconds,
    ).run()


def _final(post: Post) -> None:
    plan = _last_plan(post)
    if plan.stage != "final":
        raise StoreUnavailable(f"run {post.reader.run.run} has no plan for its final yet; let its explore stage end first")
    if not _take_alone(post, FINAL, lambda: post.reader.verdict() is not None):
        return
    verdict = Final(post.space, _prepared(post), post.reader.fold(), plan, post.heart.phase, post.wait).verdict()
    own = created(post.space.store, layout.verdict(verdict.run), verdict, post.wait)
    post.heart.finished(Outcome.FEASIBLE if own else None, device_seconds=verdict.seconds)


def _take_alone(post: Post, trial: str, is_done: Callable[[], bool]) -> bool:
    """Claim a stage that is one trial; waits while another worker has it. False: it is done. Raises StageConvicted."""
    while True:
        if post.check_stop():
            raise Stopped
        if is_done():
            return trial == DISCOVER and not post.reader.plans()
        claim = post.claims.claim(trial, BASELINE)
        if isinstance(claim, Claim):
            return True
        if isinstance(claim, Done) and (end := post.reader.result(trial)) is not None:
            raise StageConvicted(f"stage {trial} of run {post.reader.run.run}: {end.reason}; see its log, then set a rerun token")
        post.wait(post.poll_seconds)


def _prepared(post: Post) -> DiscoveryRecord:
    """Discovery, with its models and references here and the device checked against it."""
    discovery = _discovery(post)
    post.space.fetch_plugins()
    try:
        device, described = describe(post.space)
    except DeviceUnusable as error:  # discover had a device, so it is this machine that is wrong, not the job
        raise TrtfleetError(str(error), reason="NoDevice") from None
    require_runtime(post.reader.run.inputs.runtime, described.versions)
    if device != discovery.device:
        raise WrongDevice(
            f"this worker has {device.product} ({device.class_id}), the run was discovered on "
            f"{discovery.device.product} ({discovery.device.class_id}); results must not be mixed: "
            "go on there, or set a rerun token (--rerun TOKEN)"
        )
    _require_same("library", described.versions, discovery.versions)
    _require_same("variable", steering(os.environ, {}), discovery.environment)
    post.space.fetch_models(discovery.variants)
    post.space.unpack_references(discovery)
    return discovery


def _require_same(what: str, here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Whatever is part of a result's identity is the same for all of a run's workers."""
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            raise WrongDevice(
                f"{what} {name} is {here.get(name, 'absent')} here, and was {there.get(name, 'absent')} when the run was "
                f"discovered; results must not be mixed: make it the same again, or set a rerun token",
                reason="WrongEnvironment",
            )


def _last_plan(post: Post) -> PlanRecord:
    plans = post.reader.plans()
    if not plans:
        raise StoreUnavailable(f"run {post.reader.run.run} has no plan yet; start its discover stage first")
    return plans[-1]


def _discovery(post: Post) -> DiscoveryRecord:
    discovery = post.reader.discovery()
    if discovery is None:
        raise StoreUnavailable(f"run {post.reader.run.run} has no discovery.json yet; start its discover stage first")
    return discovery
