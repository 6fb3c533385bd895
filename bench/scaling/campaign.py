"""One campaign of the product's own workers and planning, in virtual time."""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from unittest import mock

import numpy as np

from bench.scaling.children import (
    DIGEST,
    STRAGGLERS,
    Durations,
    VirtualSupervisor,
    engine,
    losses,
    plant,
    timing,
)
from bench.scaling.world import Body, Killed, World
from bench.search.planted import BUILD_SD, SESSION_SD
from tuner_job.api.child import Limits, MeasureSettings, ShapeCase
from tuner_job.api.effective import inputs_digest, run_id
from tuner_job.api.inputs import AccuracyInput, Owner, RunInputs, RuntimeIdentity, SearchInput, VariantInput
from tuner_job.api.measurement import Device
from tuner_job.api.messages import DiscoveryRecord, PilotBuild, PlanRecord, RunRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign import rounds
from tuner_job.campaign.baseline import Baseline
from tuner_job.campaign.explore import Explorer
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.trials import TrialRunner
from tuner_job.campaign.workspace import Workspace
from tuner_job.store import layout
from tuner_job.store.beats import Heart
from tuner_job.store.models import RemoteModels
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record
from tuner_job.store.tries import Claims
from tuner_job.trial.supervisor import Supervisor

KNOBS = Path(__file__).parents[2] / "tests" / "data" / "all_build_routes-11.2.1.2.json"
KILLED = 0.02
"""Of the workers, rounded up, once each; nobody notes their death."""
RESTART_SECONDS = 60.0
"""Until a killed worker is replaced."""
POLL_SECONDS = 5.0
"""Coarser than the product's 2, for the simulation's sake: it makes waiting a little longer."""
LIVE = 38
SMALLEST_POOL = 2
KINDS = ("trials", "controls", "waiting", "ending", "planning", "lost", "down")
"""`waiting`: at the end of a round. `ending`: once no trial was left to begin. `down`: from a worker's death to its successor."""


@dataclass(frozen=True)
class Scene:
    """One campaign."""

    workers: int
    trials: int
    seed: int
    killed: float = KILLED
    """Share of the workers, rounded up, that are killed once."""
    killed_tries: float = 0.0
    """Share of the tries that kill their worker: each of them, whoever runs it."""
    trial_seconds: float = 60.0
    """Of the median trial."""
    overlap: float = rounds.OVERLAP
    """Most of a round that may be unknown when the next one is planned; negative: none, rounds are whole."""
    strategy: str = "Adaptive"
    planning: float | None = None
    """Seconds that a plan takes; None: what it took."""


@dataclass(frozen=True)
class Outturn:
    """What came of it. Seconds are virtual, over all workers unless said otherwise."""

    scene: Scene
    rounds: int
    folded: int
    """Trials with a result in a sealed round."""
    makespan: float
    seconds: Mapping[str, float]
    """By kind; they add up to workers × makespan, less what is left at the end of each worker."""
    repeated: int
    """Tries beyond the first."""
    plan_seconds: float
    """Of all plans, once each."""
    share: float
    """True log gain of the pick over that of the planted optimum."""

    def of_time(self, kind: str) -> float:
        """Share of the workers' whole time."""
        return self.seconds.get(kind, 0.0) / (self.scene.workers * self.makespan)


def campaign(scene: Scene, knobs: str = "") -> Outturn:
    """Run explore of one campaign to its end, over a knob list (its text; default: TensorRT's 211 knobs)."""
    world = World()
    durations = Durations.recorded(scene.trial_seconds)
    run = _run(scene)
    discovery = _discovery(run, scene, knobs or KNOBS.read_text())
    space = rounds.space_of(run.inputs, discovery.knobs)
    truth = plant(space, min(LIVE, len(space.flips)), scene.seed)
    store = ObjectStore.open(f"memory://scaling-{scene.workers}-{scene.trials}-{scene.seed}-{time.monotonic_ns()}")
    create_record(store, layout.run(run.run), run)
    create_record(store, layout.discovery(run.run), discovery)
    create_record(store, layout.plan(run.run, 1), rounds.first_plan(run, discovery))
    kills = _kills(scene, durations)
    bodies: list[Body] = []
    downs: list[float] = []
    plans: dict[tuple[int, str], tuple[PlanRecord, float]] = {}

    def planner(body: Body) -> Callable[..., PlanRecord]:
        def next_plan(fold: rounds.Fold, *, over: str = "") -> PlanRecord:
            """The product's, worked out once: every planner of a round comes to the same."""
            key = (len(fold.plans), over)
            if key not in plans:
                began = time.thread_time()
                found = rounds.next_plan(fold, over=over)
                plans[key] = found, time.thread_time() - began if scene.planning is None else scene.planning
            plan, seconds = plans[key]
            body.spend(seconds, "planning")
            return plan

        return next_plan

    def worker(index: int, life: int, folder: Path) -> None:
        rng = np.random.default_rng([scene.seed, index, life])
        heart = Heart(
            store, run.run, worker=f"1-{index}", worker_id=f"{index}.{life}", stage="explore", clock=world.clock, interval=1e9
        )
        body = Body(world, heart, kills.get(index, math.inf) if life == 0 else math.inf, scene.killed_tries, rng)
        bodies.append(body)
        heart.beat()
        supervisor = VirtualSupervisor(body, durations, truth, space, scene.seed, rng)
        work = Workspace(
            store=store,
            remote=RemoteModels("memory://models", {}),
            run=run,
            root=folder / f"{index}-{life}",
            supervisor=cast(Supervisor, supervisor),
            limits=Limits(),
            stop=threading.Event(),
            on_phase=heart.phase,
        )

        def wait(seconds: float) -> bool:
            body.spend(seconds, "waiting")
            return False

        explorer = Explorer(
            store,
            RunReader(store, run.run),
            Claims(store, run.run, heart, clock=world.clock),
            TrialRunner(work, discovery, None, clock=world.clock),
            Baseline(work, discovery),
            heart,
            index=index,
            check_stop=lambda: "",
            wait=wait,
            poll_seconds=POLL_SECONDS,
            clock=world.clock,
            planner=planner(body),
        )
        try:
            explorer.run()
        except Killed:
            downs.append(world.now)
            world.start(lambda: worker(index, life + 1, folder), RESTART_SECONDS)
            return
        heart.close()

    whole = scene.overlap < 0
    with (
        tempfile.TemporaryDirectory(prefix="scaling-") as name,
        mock.patch.object(rounds, "overlaps", (lambda *_: False) if whole else rounds.overlaps),
        mock.patch.object(rounds, "OVERLAP", scene.overlap),
    ):
        for index in range(scene.workers):
            world.start(lambda index=index: worker(index, 0, Path(name)))  # type: ignore[misc]
        world.run()
    reader = RunReader(store, run.run)
    fold = reader.fold()
    pick = reader.plans()[-1].pick
    seconds: dict[str, float] = {kind: sum(body.spent[kind] for body in bodies) for kind in KINDS}
    seconds["down"] = sum(min(RESTART_SECONDS, world.now - at) for at in downs)
    last = max(body.last_trial for body in bodies)
    seconds["ending"] = sum(end - max(began, last) for body in bodies for began, end in body.waits if end > last)
    seconds["waiting"] = max(0.0, seconds["waiting"] - seconds["ending"])
    flips = space.flips_of(pick) if pick else frozenset()
    found = truth.log_ratio(flips) if truth.outcome(flips) is Outcome.FEASIBLE else 0.0
    return Outturn(
        scene=scene,
        rounds=len(fold.plans),
        folded=len(fold.folded),
        makespan=world.now,
        seconds=seconds,
        repeated=sum(result.tries - 1 for result in fold.folded),
        plan_seconds=sum(took for _, took in plans.values()),
        share=found / truth.best()[1],
    )


def _kills(scene: Scene, durations: Durations) -> dict[int, float]:
    """Worker → when it is killed: at some moment of an undisturbed campaign. A lone worker is let live."""
    if scene.workers < SMALLEST_POOL or scene.killed == 0:
        return {}
    rng = np.random.default_rng([scene.seed, 99])
    mean = (1 - STRAGGLERS) * float(np.mean(durations.usual)) + STRAGGLERS * float(np.mean(durations.slow))
    chosen = rng.permutation(scene.workers)[: math.ceil(scene.killed * scene.workers)]
    return {int(index): float(rng.random()) * scene.trials * mean / scene.workers for index in chosen}


def _run(scene: Scene) -> RunRecord:
    inputs = RunInputs(
        runtime=RuntimeIdentity(family="TensorRT", version="11.2.1.2"),
        device_type="GPU",
        variants=(VariantInput(uri="model.onnx", digest=DIGEST),),
        min_improvement=0.01,
        measure=MeasureSettings(),
        accuracy=AccuracyInput(source="Generated", metric="l1", threshold=1e-3, screening_threshold=4e-3),
        search=SearchInput(strategy=scene.strategy, max_trials=scene.trials, trial_seconds=15 * scene.trial_seconds),
    )
    digest, owner = inputs_digest(inputs), Owner(name="scaling")
    return RunRecord(
        run=run_id(owner, "gpu", digest),
        owner=owner,
        target="gpu",
        inputs=inputs,
        inputs_digest=digest,
        seed=scene.seed,
        shards=scene.workers,
        created_at="now",
    )


def _discovery(run: RunRecord, scene: Scene, knobs: str) -> DiscoveryRecord:
    rng = np.random.default_rng([scene.seed, 11])
    return DiscoveryRecord(
        run=run.run,
        device=Device(type="GPU", product="NVIDIA H200"),
        versions={"tensorrt": "11.2.1.2"},
        knobs=knobs,
        knobs_digest=DIGEST,
        identity=DIGEST,
        variants=run.inputs.variants,
        cases=(ShapeCase(name="default"),),
        references_digest=DIGEST,
        references_blob=DIGEST,
        baseline_losses=losses(),
        pilot=tuple(PilotBuild(engine=engine("base"), timing=(timing(0.0, rng),), seconds=scene.trial_seconds) for _ in range(4)),
        fingerprints_hold=False,
        build_sd=BUILD_SD,
        session_sd=SESSION_SD,
        trial_seconds=scene.trial_seconds,
    )
