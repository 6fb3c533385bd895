"""Runs made of records alone, at every stage, with numbers that are known."""

from __future__ import annotations

import math
import secrets

import numpy as np

from tuner_job.api.base import digest_of
from tuner_job.api.beliefs import Beliefs
from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.inputs import AccuracyInput, Owner, RunInputs, RuntimeIdentity, SearchInput, VariantInput
from tuner_job.api.measurement import BASELINE, Candidate, Device, EngineFile, Losses, OutputLoss, Session, Timing
from tuner_job.api.messages import (
    Control,
    DiscoveryRecord,
    FinalBuild,
    Folded,
    Interval,
    PilotBuild,
    PlannedTrial,
    PlanRecord,
    Record,
    ResultRecord,
    RunRecord,
    SealRecord,
    VerdictRecord,
    trial_id,
)
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.reader import RunReader
from tuner_job.measure.samples import pack
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record

RUN = "0123456789abcdef0123"
BASE = 1e-3
"""Seconds of the default."""


def digest(number: int) -> str:
    return f"{number:064x}"


def timing(log_ratio: float, *, noise: float = 0.005, seed: int = 0, throttled: bool = False) -> Timing:
    rng = np.random.default_rng(seed)
    values = [BASE * math.exp(log_ratio + noise * rng.standard_normal()) for _ in range(5)]
    samples = pack(np.full(20, BASE))
    sessions = tuple(
        Session(at=k, median=v, mean=v, count=20, samples=samples, throttled=throttled) for k, v in enumerate(values)
    )
    return Timing(clock="host", sessions=sessions)


def losses(value: float = 1e-6, output: str = "scores", sample: str = "0") -> Losses:
    loss = OutputLoss(output=output, worst_sample=sample, l0=value, l1=value, l2=value, l_inf=value, cosine=value)
    return Losses(references_digest=digest(1), samples=8, atol=1e-5, rtol=1e-5, outputs=(loss,))


class Run:
    """Writes records, one stage after the other."""

    def __init__(
        self,
        *,
        metric: str = "LatencyP50",
        name: str = "demo",
        target: str = "cpu",
        model: str = "file:///m.onnx",
        constraints: dict[str, float] | None = None,
    ) -> None:
        self.store = ObjectStore.open(f"memory://{secrets.token_hex(8)}")
        inputs = RunInputs(
            runtime=RuntimeIdentity(family="ONNXRuntime", version="1.23.2"),
            variants=(VariantInput(uri=model),),
            min_improvement=0.01,
            constraints=constraints or {},
            measure=MeasureSettings(metric=metric),
            accuracy=AccuracyInput(source="Generated", metric="l1", threshold=1e-3, screening_threshold=4e-3),
            search=SearchInput(max_trials=40),
        )
        self.run = RunRecord(
            run=RUN,
            owner=Owner(name=name),
            target=target,
            inputs=inputs,
            inputs_digest=digest_of(inputs.to_json()),
            seed=7,
            created_at="2026-01-01T00:00:00Z",
        )
        self._write(layout.run(RUN), self.run)

    @property
    def reader(self) -> RunReader:
        return RunReader(self.store, RUN)

    def _write(self, key: str, record: Record) -> None:
        assert create_record(self.store, key, record)

    def discover(
        self,
        *,
        noise: float = 0.005,
        loss: float = 1e-6,
        throttled: bool = False,
        warnings: tuple[str, ...] = (),
        beliefs: Beliefs | None = None,
    ) -> Run:
        engine = EngineFile(digest=digest(2), size=1000)
        pilot = tuple(
            PilotBuild(engine=engine, timing=(timing(0.0, noise=noise, seed=k, throttled=throttled),), seconds=2.0)
            for k in range(4)
        )
        record = DiscoveryRecord(
            run=RUN,
            device=Device(type="CPU", product="EPYC 9654", count=2, driver="6.8.0"),
            versions={"onnxruntime": "1.23.2"},
            knobs="{}",
            knobs_digest=digest(3),
            identity=digest(4),
            variants=self.run.inputs.variants,
            cases=(ShapeCase(name="only", tensors={"x": (1, 3)}),),
            references_digest=digest(1),
            references_blob=digest(5),
            reference_warnings=warnings,
            baseline_losses=losses(loss),
            pilot=pilot,
            build_sd=0.6 * noise,
            session_sd=noise,
            trial_seconds=2.0,
            beliefs=beliefs or Beliefs(),
        )
        self._write(layout.discovery(RUN), record)
        return self

    def plan(self, number: int, candidates: list[Candidate], *, reason: str = "one at a time") -> Run:
        trials = tuple(
            PlannedTrial(trial=trial_id(number, k), candidate=one, shard=0, reason=reason) for k, one in enumerate(candidates)
        )
        self._write(
            layout.plan(RUN, number), PlanRecord(run=RUN, round=number, stage="explore", trials=trials, reason="new ones")
        )
        return self

    def result(self, trial: str, candidate: Candidate, log_ratio: float | None = None, **fields: object) -> Run:
        """Feasible with a timing, or whatever `fields` say."""
        seed = int(trial.replace("-", ""))
        given: dict[str, object] = {
            "outcome": Outcome.FEASIBLE,
            "timing": () if log_ratio is None else (timing(log_ratio, seed=seed),),
            "losses": losses(),
            "seconds": {"total": 2.0},
            "worker": "1-0",
        }
        if seed % 4 == 0:
            given["controls"] = (Control(engine=digest(2), timing=(timing(0.0, seed=seed + 1),)),)
        record = ResultRecord(
            run=RUN,
            trial=trial,
            candidate=candidate,
            tries=1,
            worker_id="a1",
            finished_at=f"2026-01-01T00:{seed % 100000 // 60 % 60:02d}:{seed % 60:02d}Z",
            **(given | fields),
        )
        self._write(layout.result(RUN, trial), record)
        return self

    def seal(self, number: int, trials: list[str], carried: tuple[str, ...] = ()) -> Run:
        folded = tuple(Folded(trial=trial, digest=digest(9)) for trial in trials)
        self._write(layout.seal(RUN, number), SealRecord(run=RUN, round=number, folded=folded, carried_over=carried))
        return self

    def final_plan(self, number: int, pick: Candidate | None) -> Run:
        self._write(
            layout.plan(RUN, number), PlanRecord(run=RUN, round=number, stage="final", pick=pick, reason="the budget is used up")
        )
        return self

    def verdict(
        self, pick: Candidate | None, *, significant: bool = True, gain: float = 0.2, reason: str = "", **fields: object
    ) -> Run:
        names = [f"baseline-{k}" for k in range(1, 11)] + ([f"candidate-{k}" for k in range(1, 6)] if pick else [])
        builds = tuple(
            FinalBuild(
                name=name,
                engine=EngineFile(digest=digest(20 + k), size=1000),
                losses=losses(),
                sessions=(self._final_sessions(k, math.log1p(-gain) if name.startswith("candidate") else 0.0),),
            )
            for k, name in enumerate(names)
        )
        interval = Interval(estimate=gain, low=gain - 0.02, high=gain + 0.02)
        given: dict[str, object] = {
            "message": "found it",
            "method": {"method": "rank-sum-1", "power": "5 candidate and 10 default builds: proven with 90%"},
            "route_gain": interval if pick else None,
            "p_value": 0.001 if pick else None,
            "builds": builds,
        }
        record = VerdictRecord(
            run=RUN,
            inputs_digest=self.run.inputs_digest,
            identity=digest(4),
            device=Device(type="CPU", product="EPYC 9654"),
            candidate=pick or BASELINE,
            significant=significant,
            reason=reason or ("Proven" if significant else "NoSignificantWin"),
            published=pick if significant and pick else BASELINE,
            engine=EngineFile(digest=digest(30), size=1000),
            engine_gain=interval,
            engine_percentile=0.9,
            losses=losses(),
            latency_seconds=BASE * (1 - gain),
            baseline_seconds=BASE,
            seconds=60.0,
            finished_at="2026-01-01T01:00:00Z",
            **(given | fields),
        )
        self._write(layout.verdict(RUN), record)
        return self

    def _final_sessions(self, build: int, log_ratio: float) -> tuple[Session, ...]:
        rng = np.random.default_rng(build)
        values = [BASE * math.exp(log_ratio + 0.004 * rng.standard_normal()) for _ in range(12)]
        return tuple(Session(at=20 * k + build, median=v, mean=v, count=20, samples="") for k, v in enumerate(values))


def knob(number: int, value: str = "on") -> Candidate:
    return Candidate(route=f"-knob{number}={value}")


def explored(**fields: object) -> Run:
    """A round of eight: knob 0 is 20 % faster, knob 1 slower, the others do nothing; knobs 5 to 7 fail."""
    run = Run(**fields).discover()  # type: ignore[arg-type]
    candidates = [knob(k) for k in range(8)]
    run.plan(1, candidates)
    for k, ratio in enumerate([math.log(0.8), math.log(1.3), 0.0, 0.0, 0.0]):
        run.result(trial_id(1, k), candidates[k], ratio)
    for k, layer in ((5, 17), (6, 23)):
        reason = f"builder said no to layer {layer}"
        run.result(
            trial_id(1, k), candidates[k], outcome=Outcome.REFUSED, reason=reason, losses=None, phase="build", log=f"log {k}"
        )
    run.result(trial_id(1, 7), candidates[7], outcome=Outcome.INFEASIBLE, reason="l1 0.5", losses=losses(0.5), phase="check")
    return run.seal(1, [trial_id(1, k) for k in range(8)])


def proven() -> Run:
    return explored().final_plan(2, knob(0)).verdict(knob(0))
