"""One campaign on 1 to 64 workers in virtual time: how busy they are kept, and where the rest of the time goes.

    python -m bench.scaling [--workers 1 2 4 8 16 32 64] [--trials 24 416 2048] [--processes 2]

writes bench/results/scaling.{json,md}. Workers are the product's own (Explorer, TrialRunner, Baseline, Claims, Heart, RunReader
over a store in memory), planned by its own `next_plan` with its default strategy over the 211 knobs. Only three things are made
up: the clock, which jumps from event to event; the child processes, which take a recorded time and answer from a planted truth
(bench.planted); and who is killed. Seeds are fixed; planning takes the processor time that it really took, which varies a little.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np

from bench.planted import BUILD_SD, SESSION_SD, SESSIONS, Truth, plant
from tuner_job.api.child import ChildReport, ChildRequest, Limits, MeasureSettings, Phase, ShapeCase
from tuner_job.api.effective import inputs_digest, run_id
from tuner_job.api.inputs import AccuracyInput, Owner, RunInputs, RuntimeIdentity, SearchInput, VariantInput
from tuner_job.api.measurement import Device, EngineFile, Losses, OutputLoss, Session, Timing
from tuner_job.api.messages import DiscoveryRecord, PilotBuild, PlanRecord, RunRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign import rounds
from tuner_job.campaign.baseline import Baseline
from tuner_job.campaign.explore import Explorer
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.trials import TrialRunner
from tuner_job.campaign.workspace import Workspace
from tuner_job.store import layout
from tuner_job.store.beats import BEAT_SECONDS, Heart
from tuner_job.store.models import RemoteModels
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record
from tuner_job.store.tries import Claims
from tuner_job.trial.supervisor import Supervisor, TrialEnd

HERE = Path(__file__).parent
RECORDS = HERE / "results" / "h200" / "tune-records.tar.gz"
"""Every record of a real campaign on an H200: how long the phases of its trials took."""
KNOBS = HERE.parent / "tests" / "data" / "all_build_routes-11.2.1.2.json"
SLOW = 3.0
"""A recorded trial that took so many times the median is a straggler."""
STRAGGLERS = 0.05
KILLED = 0.02
"""Of the workers, rounded up, once each; nobody notes their death."""
RESTART_SECONDS = 60.0
"""Until a killed worker is replaced."""
POLL_SECONDS = 5.0
"""Coarser than the product's 2, for the simulation's sake: it makes waiting a little longer."""
LATENCY = 1e-3
LIVE = 38
SMALLEST_POOL = 2
KINDS = ("trials", "controls", "waiting", "ending", "planning", "lost", "down")
"""`waiting`: at the end of a round. `ending`: once no trial was left to begin. `down`: from a worker's death to its successor."""
WHOLE_ROUNDS = ((2, 24), (32, 416))
"""Workers and trials of campaigns that are shown without overlap as well."""
FEWEST_TRIALS = 4
"""Of each worker; a larger pool is not tried."""
TARGETS = {32: 0.9, 64: 0.8}
DIGEST = "ab" * 32


@dataclass(frozen=True)
class Durations:
    """Recorded trials, scaled so that the median one takes as long as is wanted. Seconds."""

    usual: tuple[float, ...]
    slow: tuple[float, ...]
    control: tuple[float, ...]
    """Of loading and timing an engine that is there already."""

    @classmethod
    def recorded(cls, median: float, path: Path = RECORDS) -> Durations:
        phases = []
        with tarfile.open(path) as archive:
            for member in sorted(archive.getnames()):
                if member.endswith("/result.json") and "/trials/" in member:
                    file = archive.extractfile(member)
                    assert file is not None
                    phases.append(json.loads(file.read())["seconds"])
        middle = float(np.median([one["total"] for one in phases]))
        usual = [one for one in phases if one["total"] < SLOW * middle]
        scale = median / middle
        return cls(
            usual=tuple(scale * one["total"] for one in usual),
            slow=tuple(scale * one["total"] for one in phases if one["total"] >= SLOW * middle),
            control=tuple(scale * (one["start"] + one["load"] + one["measure"]) for one in usual if "measure" in one),
        )


class Killed(BaseException):
    """SIGKILL: nothing above it gets a word in."""


class World:
    """Threads of which one runs at a time, and a clock that jumps to whoever wakes first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, threading.Semaphore]] = []
        self._count = 0
        self._turn = threading.Semaphore(0)
        self._failure: BaseException | None = None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """In a thread of this world."""
        wake = threading.Semaphore(0)
        self._push(seconds, wake)
        self._turn.release()
        wake.acquire()

    def start(self, work: Callable[[], None], after: float = 0.0) -> None:
        """A thread that begins its work so many seconds from now."""
        wake = threading.Semaphore(0)

        def body() -> None:
            wake.acquire()
            try:
                work()
            except BaseException as error:  # told to whoever runs the world
                self._failure = error
            self._turn.release()

        threading.Thread(target=body, daemon=True).start()
        self._push(after, wake)

    def run(self) -> None:
        """Until nobody sleeps. Raises what a thread raised."""
        while self._sleepers and self._failure is None:
            self.now, _, wake = heapq.heappop(self._sleepers)
            wake.release()
            self._turn.acquire()
        if self._failure is not None:
            raise self._failure

    def _push(self, seconds: float, wake: threading.Semaphore) -> None:
        self._count += 1
        heapq.heappush(self._sleepers, (self.now + seconds, self._count, wake))


class Body:
    """What a worker process is to the world: it spends time, beats meanwhile, and may be killed."""

    def __init__(self, world: World, heart: Heart, kill_at: float, kill_share: float, rng: np.random.Generator) -> None:
        self.spent: Counter[str] = Counter()
        self.waits: list[tuple[float, float]] = []
        """From when until when it had nothing to do."""
        self.last_trial = 0.0
        """When its last one began."""
        self._world = world
        self._heart = heart
        self._kill_at = kill_at
        self._kill_share = kill_share
        """Of its trials, each at a random moment."""
        self._rng = rng
        self._beat_at = -math.inf

    def spend(self, seconds: float, kind: str) -> None:
        world = self._world
        began, end = world.now, world.now + seconds
        killed_at = self._kill_at
        if kind == "trials" and self._rng.random() < self._kill_share:
            killed_at = min(killed_at, began + float(self._rng.random()) * seconds)
        if kind in ("trials", "controls"):  # the trial in hand has changed
            self._beat()
        if kind == "trials":
            self.last_trial = began
        while world.now < end:
            world.sleep(max(0.0, min(end, killed_at, self._beat_at + BEAT_SECONDS) - world.now))
            if world.now >= killed_at:
                self.spent["lost" if kind in ("trials", "controls") else kind] += world.now - began
                raise Killed
            if world.now >= self._beat_at + BEAT_SECONDS:
                self._beat()
        self.spent[kind] += seconds
        if kind == "waiting":
            self.waits.append((began, end))

    def _beat(self) -> None:
        self._heart.beat()
        self._beat_at = self._world.now


class VirtualSupervisor:
    """A process boundary behind which a planted truth answers after a recorded time."""

    def __init__(self, body: Body, durations: Durations, truth: Truth, seed: int, rng: np.random.Generator) -> None:
        self._body = body
        self._durations = durations
        self._truth = truth
        self._seed = seed
        self._rng = rng

    def run(self, request: ChildRequest, _limits: Limits, **_: Any) -> TrialEnd:
        if request.operation == "time":
            seconds = float(self._rng.choice(self._durations.control))
            self._body.spend(seconds, "controls")
            report = ChildReport(status="ok", timings={"baseline": (self._timing(0.0),)})
            return TrialEnd(Outcome.FEASIBLE, Phase.MEASURE, report=report, seconds={"total": seconds})
        if request.operation == "build":
            seconds = float(self._rng.choice(self._durations.usual))
            self._body.spend(seconds, "controls")
            return TrialEnd(Outcome.FEASIBLE, Phase.BUILD, report=ChildReport(status="ok", engine=_engine("base")))
        candidate = request.candidate
        # a route that is slow is so in each of its trials, whoever runs it
        own = np.random.default_rng([self._seed, int(candidate.id[:12], 16)])
        pool = self._durations.slow if own.random() < STRAGGLERS else self._durations.usual
        seconds = float(own.choice(pool))
        self._body.spend(seconds, "trials")
        log_ratio = self._truth.log_ratio(self._truth.space.flips_of(candidate))
        spent = {"total": seconds}
        if log_ratio is None:
            return TrialEnd(Outcome.REFUSED, Phase.BUILD, reason="the builder returned nothing", seconds=spent)
        report = ChildReport(
            status="ok",
            engine=_engine(candidate.id),
            losses=_losses(),
            timing=(self._timing(log_ratio + float(self._rng.normal(0, BUILD_SD))),),
        )
        return TrialEnd(Outcome.FEASIBLE, Phase.MEASURE, report=report, seconds=spent)

    def _timing(self, log_ratio: float) -> Timing:
        return _timing(log_ratio, self._rng)


def _timing(log_ratio: float, rng: np.random.Generator) -> Timing:
    seconds = LATENCY * np.exp(log_ratio + rng.normal(0, SESSION_SD, SESSIONS))
    sessions = tuple(
        Session(at=float(k), median=float(one), mean=float(one), count=1, samples="") for k, one in enumerate(seconds)
    )
    return Timing(clock="device", launch="cudaGraph", sessions=sessions)


def _engine(name: str) -> EngineFile:
    return EngineFile(digest=DIGEST, size=1, fingerprint=name)


def _losses() -> Losses:
    output = OutputLoss(output="y", worst_sample="default/0", l0=0, l1=0, l2=0, l_inf=0, cosine=0)
    return Losses(references_digest=DIGEST, samples=1, atol=1e-5, rtol=1e-5, outputs=(output,))


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
        supervisor = VirtualSupervisor(body, durations, truth, scene.seed, rng)
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
    found = truth.log_ratio(truth.space.flips_of(pick)) if pick else 0.0
    return Outturn(
        scene=scene,
        rounds=len(fold.plans),
        folded=len(fold.folded),
        makespan=world.now,
        seconds=seconds,
        repeated=sum(result.tries - 1 for result in fold.folded),
        plan_seconds=sum(took for _, took in plans.values()),
        share=(found or 0.0) / truth.best(),
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
        baseline_losses=_losses(),
        pilot=tuple(
            PilotBuild(engine=_engine("base"), timing=(_timing(0.0, rng),), seconds=scene.trial_seconds) for _ in range(4)
        ),
        fingerprints_hold=False,
        build_sd=BUILD_SD,
        session_sd=SESSION_SD,
        trial_seconds=scene.trial_seconds,
    )


def efficiency(one: Outturn, alone: Outturn) -> float:
    """Time that its trials would take on as many workers, each as busy as the one of `alone`, over the time that it took.

    `alone`: one undisturbed worker, with as many controls a trial as it wants; so ideal workers share the trials perfectly.
    """
    needed = one.seconds["trials"] * (1 + alone.seconds["controls"] / alone.seconds["trials"])
    return needed / (one.scene.workers * one.makespan)


def scenes(workers: Sequence[int], trials: Sequence[int], seeds: int) -> list[Scene]:
    """Every pool with stragglers and kills, one undisturbed worker for each length and seed.

    Beside them one pool whose tries kill their workers, and short campaigns with whole rounds.
    """
    found = []
    for count in trials:
        for seed in range(1, seeds + 1):
            found.append(Scene(1, count, seed, killed=0.0))
            found += [Scene(pool, count, seed) for pool in workers if 1 < pool <= count / FEWEST_TRIALS]
    largest, longest = max(workers), max(trials)
    if largest > 1:
        found.append(Scene(largest, longest, 1, killed_tries=KILLED))
    found += [Scene(pool, count, 1, overlap=-1.0) for pool, count in WHOLE_ROUNDS if pool in workers and count in trials]
    return found


@dataclass(frozen=True)
class Row:
    """One pool and length, over seeds (means)."""

    workers: int
    trials: int
    whole_rounds: bool
    """Without overlap: for comparison."""
    kills: str
    seeds: int
    efficiency: float
    lowest: float
    rounds: float
    hours: float
    of_time: Mapping[str, float]
    share: float


def rows(outturns: Sequence[Outturn]) -> list[Row]:
    alone = {(o.scene.trials, o.scene.seed): o for o in outturns if o.scene.workers == 1}
    groups: dict[tuple[int, float, float, int], list[Outturn]] = {}
    for one in (o for o in outturns if (o.scene.trials, o.scene.seed) in alone):
        key = (one.scene.trials, one.scene.killed_tries, -one.scene.overlap, one.scene.workers)
        groups.setdefault(key, []).append(one)
    found = []
    for (trials, tries, whole, workers), members in sorted(groups.items()):
        values = [efficiency(one, alone[trials, one.scene.seed]) for one in members]
        found.append(
            Row(
                workers=workers,
                trials=trials,
                whole_rounds=whole > 0,
                kills=f"{tries:.0%} of the tries" if tries else "none" if workers == 1 else f"{KILLED:.0%} of the workers",
                seeds=len(members),
                efficiency=float(np.mean(values)),
                lowest=min(values),
                rounds=float(np.mean([one.rounds for one in members])),
                hours=float(np.mean([one.makespan for one in members])) / 3600,
                of_time={kind: float(np.mean([one.of_time(kind) for one in members])) for kind in KINDS},
                share=float(np.mean([one.share for one in members])),
            )
        )
    return found


def missed(found: Sequence[Row]) -> list[str]:
    """Rows below their target, a line each."""
    lines = []
    for one in found:
        target = TARGETS.get(one.workers)
        if target is not None and one.efficiency < target and not one.whole_rounds:
            worst = max(set(KINDS) - {"trials", "controls"}, key=lambda kind: one.of_time[kind])
            lines.append(
                f"{one.workers} workers, {one.trials} trials ({one.trials / one.workers:.1f} each), killed: {one.kills}: "
                f"{one.efficiency:.1%}, target {target:.0%}; most is lost in `{worst}` ({one.of_time[worst]:.1%})"
            )
    return lines


def markdown(found: Sequence[Row], durations: Durations, seconds: float) -> str:
    usual = np.array(durations.usual)
    lines = [
        "# A campaign on 1 to 64 workers",
        "",
        f"`python -m bench.scaling` ({seconds / 60:.0f} minutes). The product's own workers and planning in virtual time;",
        "docs/architecture.md explains. Efficiency: the time that the same trials would take if as many workers, each as busy as",
        "a lone one, shared them perfectly, over the time that they took.",
        "",
        f"Trials take recorded times, scaled to a median of {np.median([*usual, *durations.slow]):.0f} s: "
        f"{usual.min():.0f} to {usual.max():.0f} s, and {STRAGGLERS:.0%} of the routes "
        f"{min(durations.slow):.0f} to {max(durations.slow):.0f} s.",
        "",
        "| trials | workers | killed | efficiency (lowest) | target | rounds | hours | "
        + " | ".join(KINDS)
        + " | share of the optimum |",
        "|---|---|---|---|---|---|---|" + "---|" * len(KINDS) + "---|",
    ]
    for one in found:
        target = f"{TARGETS[one.workers]:.0%}" if one.workers in TARGETS else ""
        lines.append(
            f"| {one.trials} | {one.workers} | {one.kills}{'; whole rounds' * one.whole_rounds} | {one.seeds} "
            f"| **{one.efficiency:.1%}** ({one.lowest:.1%}) | {target} | {one.rounds:.0f} | {one.hours:.2f} | "
            + " | ".join(f"{one.of_time[kind]:.1%}" for kind in KINDS)
            + f" | {one.share:.2f} |"
        )
    lines += [
        "",
        "Shares of the workers' whole time. `controls`: each worker's own default engine, built once and timed again every few",
        "trials; `waiting`: at the end of a round; `ending`: once no trial was left to begin; `lost`: work of killed workers;",
        "`down`: until they were replaced. Share of the optimum: true log gain of the pick over that of the planted optimum.",
        "",
        "## Missed targets",
        "",
        *(f"- {line}" for line in missed(found) or ["None."]),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--trials", type=int, nargs="+", default=[24, 416, 2048])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--resume", action="store_true", help="keep the campaigns that the output folder has from this very code")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "scaling.json"
    before = json.loads(file.read_text()) if options.resume and file.exists() else {"seconds": 0, "campaigns": []}
    outturns = [Outturn(**{**one, "scene": Scene(**one["scene"])}) for one in before["campaigns"]]
    known = {one.scene for one in outturns}
    wanted = [scene for scene in scenes(options.workers, options.trials, options.seeds) if scene not in known]
    began = time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        for one in pool.map(campaign, wanted):
            outturns.append(one)
            print(
                f"{one.scene.trials} trials, {one.scene.workers} workers, seed {one.scene.seed}: done",
                file=sys.stderr,
                flush=True,
            )
            text = _write(options.output, outturns, before["seconds"] + time.monotonic() - began)
    print(text)


def _write(folder: Path, outturns: Sequence[Outturn], seconds: float) -> str:
    """Whatever is known by now; returns the page."""
    found = rows(outturns)
    document = {
        "seconds": round(seconds),
        "rows": [asdict(one) for one in found],
        "campaigns": [asdict(one) for one in outturns],
        "missed": missed(found),
    }
    (folder / "scaling.json").write_text(json.dumps(document, indent=1) + "\n")
    text = markdown(found, Durations.recorded(Scene(1, 1, 1).trial_seconds), seconds)
    (folder / "scaling.md").write_text(text)
    return text


if __name__ == "__main__":
    main()
