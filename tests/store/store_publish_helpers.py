"""Finished runs to publish, and a store that a test drives one operation at a time."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np

from tuner_job.api.base import digest_of
from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.effective import run_id
from tuner_job.api.inputs import AccuracyInput, Owner, RunInputs, RuntimeIdentity, SearchInput, VariantInput
from tuner_job.api.measurement import Candidate, Device, EngineFile, Losses, OutputLoss, Session, Timing
from tuner_job.api.messages import DiscoveryRecord, FinalBuild, PilotBuild, PlanRecord, RunRecord, VerdictRecord
from tuner_job.measure.decision import Decision, decide
from tuner_job.store import layout
from tuner_job.store.blobs import put_blob
from tuner_job.store.objects import Content, Info, Object, ObjectStore
from tuner_job.store.pointers import PointerName
from tuner_job.store.records import create_record

OWNER = Owner(name="resnet")
VERSION = "1.23.2"
DEVICE = Device(type="CPU", product="EPYC 9654", count=2, compute_capability="avx512", driver="6.8.0")
NAME = PointerName(OWNER, "cpu", VERSION)


@dataclass(frozen=True)
class Finished:
    """A run whose final is over."""

    run: RunRecord
    discovery: DiscoveryRecord
    verdict: VerdictRecord
    engine: bytes


def fresh_store() -> ObjectStore:
    return ObjectStore.open(f"memory://{secrets.token_hex(8)}")


def finished(
    token: str = "", *, model: str = "m1", owner: Owner = OWNER, version: str = VERSION, target: str = "cpu"
) -> Finished:
    inputs = RunInputs(
        runtime=RuntimeIdentity(family="ONNXRuntime", version=version, image_digest="sha256:" + "ab" * 32),
        variants=(VariantInput(uri=f"file:///models/{model}.onnx"),),
        min_improvement=0.01,
        measure=MeasureSettings(),
        accuracy=AccuracyInput(source="Generated", threshold=1e-3, screening_threshold=1e-2),
        search=SearchInput(),
    )
    inputs_digest = digest_of(inputs.to_json())
    name = run_id(owner, target, inputs_digest, token)
    engine = f"engine of {name}".encode() * 50
    file = EngineFile(digest=digest_of(engine), size=len(engine))
    outputs = (OutputLoss(output="y", worst_sample="only/0", l0=0, l1=0, l2=0, l_inf=0, cosine=0),)
    losses = Losses(references_digest=digest_of(b"references"), samples=8, atol=1e-5, rtol=1e-5, outputs=outputs)
    timing = Timing(clock="host", sessions=(Session(at=0, median=0.001, mean=0.001, count=20, samples=""),))
    run = RunRecord(
        run=name,
        owner=owner,
        target=target,
        inputs=inputs,
        inputs_digest=inputs_digest,
        rerun_token=token,
        seed=1,
        created_at="2026-01-01T00:00:00Z",
    )
    discovery = DiscoveryRecord(
        run=name,
        device=DEVICE,
        versions={"onnxruntime": version},
        knobs="{}",
        knobs_digest=digest_of(b"{}"),
        identity=digest_of(b"identity"),
        variants=(VariantInput(uri=f"file:///models/{model}.onnx", digest=digest_of(model.encode())),),
        cases=(ShapeCase(name="only"),),
        references_digest=losses.references_digest,
        references_blob=digest_of(f"references of {name}".encode()),
        baseline_losses=losses,
        pilot=(PilotBuild(engine=file, timing=(timing,), seconds=1.0),),
        build_sd=0.01,
        session_sd=0.01,
        trial_seconds=1.0,
    )
    sessions, decision = final()
    route = Candidate(route="-knob=2")
    verdict = VerdictRecord(
        run=name,
        inputs_digest=inputs_digest,
        identity=discovery.identity,
        device=DEVICE,
        candidate=route,
        significant=decision.significant,
        reason="Proven",
        message=decision.message,
        p_value=decision.p_value,
        route_gain=decision.route_gain,
        published=route,
        engine=file,
        engine_gain=decision.engine_gain,
        engine_percentile=decision.engine_percentile,
        losses=losses,
        latency_seconds=decision.latency_seconds,
        baseline_seconds=decision.baseline_seconds,
        builds=tuple(
            FinalBuild(
                name=name,
                engine=file if name == decision.published else EngineFile(digest=digest_of(name.encode()), size=9),
                losses=losses,
                sessions=(own,),
            )
            for name, own in sessions.items()
        ),
        method=decision.method,
        samples_blob=digest_of(f"samples of {name}".encode()),
        seconds=10.0,
        finished_at="2026-01-01T01:00:00Z",
    )
    return Finished(run, discovery, verdict, engine)


@cache
def final() -> tuple[dict[str, tuple[Session, ...]], Decision]:
    """Five builds of the candidate, 12 % faster than ten of the default."""
    rng = np.random.default_rng(0)
    names = [f"candidate-{k}" for k in range(1, 6)], [f"baseline-{k}" for k in range(1, 11)]
    sessions = {}
    for seconds, group in zip((0.00088, 0.001), names, strict=True):
        for name in group:
            medians = [float(f"{value:.9g}") for value in seconds * np.exp(rng.normal(0, 0.002, 12))]
            sessions[name] = tuple(
                Session(at=float(k), median=value, mean=value, count=20, samples="") for k, value in enumerate(medians)
            )
    decision = decide(
        {name: (own,) for name, own in sessions.items()},
        *names,
        weights=[1.0],
        metric="LatencyP50",
        min_improvement=0.01,
        seed=1,
    )
    return sessions, decision


def write(store: ObjectStore, done: Finished) -> Finished:
    """All that the workers of the run left in the store."""
    run = done.run.run
    create_record(store, layout.run(run), done.run)
    create_record(store, layout.discovery(run), done.discovery)
    create_record(store, layout.plan(run, 1), PlanRecord(run=run, round=1, stage="explore", reason="first"))
    create_record(
        store, layout.plan(run, 2), PlanRecord(run=run, round=2, stage="final", pick=done.verdict.candidate, reason="done")
    )
    put_blob(store, f"references of {run}".encode())
    put_blob(store, f"samples of {run}".encode())
    put_blob(store, done.engine)
    create_record(store, layout.verdict(run), done.verdict)
    return done


class Crashed(BaseException):
    """The process died here. A BaseException, so that nothing handles it."""


@dataclass
class World:
    """One store and one clock, shared by all actors. A second passes with every operation."""

    inner: ObjectStore
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    modified: dict[str, datetime] = field(default_factory=dict)

    def pass_time(self, days: float) -> None:
        self.now += timedelta(days=days)

    def view(self, gate: Callable[[str], None] = lambda _: None, after: Callable[[], None] = lambda: None) -> View:
        return View(self, gate, after)


class View(ObjectStore):
    """An actor's view of the world: `gate` runs before each operation, `after` between its effect and its answer."""

    def __init__(self, world: World, gate: Callable[[str], None], after: Callable[[], None]) -> None:
        self._world, self._gate, self._after = world, gate, after
        self._inner = world.inner
        self.url = world.inner.url

    def _begin(self, verb: str) -> None:
        self._gate(verb)
        self._world.now += timedelta(seconds=1)

    def _wrote(self, key: str) -> None:
        self._world.modified[key] = self._world.now

    def _aged(self, info: Info) -> Info:
        return Info(info.key, info.size, self._world.modified[info.key])

    def get(self, key: str, max_bytes: int) -> Object | None:
        self._begin("get")
        found = self._inner.get(key, max_bytes)
        self._after()
        return found

    def create(self, key: str, data: bytes) -> bool:
        self._begin("create")
        there = self._inner.exists(key)
        done = self._inner.create(key, data)
        if not there:
            self._wrote(key)
        self._after()
        return done

    def put(self, key: str, data: bytes) -> None:
        self._begin("put")
        self._inner.put(key, data)
        self._wrote(key)
        self._after()

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        self._begin("swap")
        done = self._inner.swap(key, data, tag)
        if done:
            self._wrote(key)
        self._after()
        return done

    def list(self, prefix: str) -> Iterator[Info]:
        self._begin("list")
        found = [self._aged(info) for info in self._inner.list(prefix)]
        self._after()
        return iter(found)

    def delete(self, key: str) -> None:
        self._begin("delete")
        self._inner.delete(key)
        self._after()

    def info(self, key: str) -> Info | None:
        self._begin("info")
        found = self._inner.info(key)
        self._after()
        return None if found is None else self._aged(found)

    def put_file(self, key: str, path: Path, *, digest: str | None = None) -> Content:
        self._begin("put_file")
        content = self._inner.put_file(key, path, digest=digest)
        self._wrote(key)
        self._after()
        return content

    def get_file(self, key: str, path: Path, *, digest: str | None = None, max_bytes: int | None = None) -> Content | None:
        self._begin("get_file")
        return self._inner.get_file(key, path, digest=digest, max_bytes=max_bytes)

    def sweep(self, older_than_seconds: float) -> int:
        return 0


class Actor:
    """Runs `work` in a thread that stops before every store operation until it is let go on."""

    def __init__(self, world: World, work: Callable[[ObjectStore], object], crash_at: int | None, effect: bool) -> None:
        """`crash_at`: the operation in which it dies, before or (with `effect`) after it took effect."""
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._crash_at, self._effect, self._steps = crash_at, effect, 0
        self.finished = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work, world.view(self._gate, self._done)), daemon=True)
        self._thread.start()
        self._stopped.acquire()

    def step(self) -> None:
        """Let it do one operation and go on to the next."""
        self._go.release()
        self._stopped.acquire()

    def _gate(self, _verb: str) -> None:
        self._stopped.release()
        self._go.acquire()
        self._steps += 1
        if self._steps == self._crash_at and not self._effect:
            raise Crashed

    def _done(self) -> None:
        if self._steps == self._crash_at:
            raise Crashed

    def _run(self, work: Callable[[ObjectStore], object], view: ObjectStore) -> None:
        try:
            work(view)
        except BaseException as error:
            self.error = error
        self.finished = True
        self._stopped.release()


@dataclass(frozen=True)
class Part:
    """What one actor does, and where it dies."""

    work: Callable[[ObjectStore], object]
    crash_at: int | None = None
    effect: bool = False


def interleave(
    world: World, parts: Sequence[Part], schedule: Sequence[int], check: Callable[[], None]
) -> list[BaseException | None]:
    """Run all parts, an operation at a time in the order that `schedule` says, with `check` after each. Returns their errors."""
    actors = [Actor(world, part.work, part.crash_at, part.effect) for part in parts]
    turn = 0
    while alive := [actor for actor in actors if not actor.finished]:
        choice = schedule[turn % len(schedule)] if schedule else turn
        alive[choice % len(alive)].step()
        check()
        turn += 1
    return [actor.error for actor in actors]
