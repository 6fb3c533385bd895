"""What stands behind the process boundary: a planted truth answers after a recorded time."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.scaling.world import Body
from bench.search.planted import BUILD_SD, SESSION_SD, SESSIONS, Planted
from tuner_job.api.child import ChildReport, ChildRequest, Limits, Phase
from tuner_job.api.measurement import EngineFile, Losses, OutputLoss, Session, Timing
from tuner_job.api.outcome import Outcome
from tuner_job.search.space import Space
from tuner_job.trial.supervisor import TrialEnd

RECORDS = Path(__file__).parents[1] / "results" / "h200" / "tune-records.tar.gz"
"""Every record of a real campaign on an H200: how long the phases of its trials took."""
SLOW = 3.0
"""A recorded trial that took so many times the median is a straggler."""
STRAGGLERS = 0.05
LATENCY = 1e-3
DIGEST = "ab" * 32
MEDIAN_EFFECT = 0.012


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


def plant(space: Space, live: int, seed: int) -> Planted:
    """`live` flips with log-normal effects (60 % good), 4 % of all flips failing alone, pairs among the live ones.

    Not that of bench.search.synthetic, which draws in another order: the truths are those of bench/results/scaling.json.
    """
    rng = np.random.default_rng([seed, live])
    flips = list(space.flips)
    truth = Planted(space)
    chosen = [flips[i] for i in rng.permutation(len(flips))[:live]]
    for flip in chosen:
        size = float(np.exp(rng.normal(np.log(MEDIAN_EFFECT), 0.7)))
        truth.effects[flip] = -size if rng.random() < 0.6 else size
    names = {flip.dimension: flip for flip in chosen}
    for flip in chosen:
        parent = names.get(flip.dimension.rpartition(":")[0])
        if parent is not None and rng.random() < 0.7:
            truth.woken[flip] = parent
    for _ in range(live // 3):
        a, b = rng.choice(live, 2, replace=False)
        pair = frozenset((chosen[a], chosen[b]))
        if rng.random() < 0.25:
            truth.failing_pairs[pair] = Outcome.REFUSED
        else:
            truth.pairs[pair] = float(rng.normal(0, MEDIAN_EFFECT / 2))
    dead = [flip for flip in flips if flip not in truth.effects]
    truth.failing = {dead[i]: Outcome.REFUSED for i in rng.permutation(len(dead))[: max(1, len(flips) // 25)]}
    return truth


class VirtualSupervisor:
    """A process boundary behind which a planted truth answers after a recorded time."""

    def __init__(
        self, body: Body, durations: Durations, truth: Planted, space: Space, seed: int, rng: np.random.Generator
    ) -> None:
        self._body = body
        self._durations = durations
        self._truth = truth
        self._space = space
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
            return TrialEnd(Outcome.FEASIBLE, Phase.BUILD, report=ChildReport(status="ok", engine=engine("base")))
        candidate = request.candidate
        # a route that is slow is so in each of its trials, whoever runs it
        own = np.random.default_rng([self._seed, int(candidate.id[:12], 16)])
        pool = self._durations.slow if own.random() < STRAGGLERS else self._durations.usual
        seconds = float(own.choice(pool))
        self._body.spend(seconds, "trials")
        flips = self._space.flips_of(candidate)
        spent = {"total": seconds}
        if self._truth.outcome(flips) is not Outcome.FEASIBLE:
            return TrialEnd(Outcome.REFUSED, Phase.BUILD, reason="the builder returned nothing", seconds=spent)
        report = ChildReport(
            status="ok",
            engine=engine(candidate.id),
            losses=losses(),
            timing=(self._timing(self._truth.log_ratio(flips) + float(self._rng.normal(0, BUILD_SD))),),
        )
        return TrialEnd(Outcome.FEASIBLE, Phase.MEASURE, report=report, seconds=spent)

    def _timing(self, log_ratio: float) -> Timing:
        return timing(log_ratio, self._rng)


def timing(log_ratio: float, rng: np.random.Generator) -> Timing:
    seconds = LATENCY * np.exp(log_ratio + rng.normal(0, SESSION_SD, SESSIONS))
    sessions = tuple(
        Session(at=float(k), median=float(one), mean=float(one), count=1, samples="") for k, one in enumerate(seconds)
    )
    return Timing(clock="device", launch="cudaGraph", sessions=sessions)


def engine(name: str) -> EngineFile:
    return EngineFile(digest=DIGEST, size=1, fingerprint=name)


def losses() -> Losses:
    output = OutputLoss(output="y", worst_sample="default/0", l0=0, l1=0, l2=0, l_inf=0, cosine=0)
    return Losses(references_digest=DIGEST, samples=1, atol=1e-5, rtol=1e-5, outputs=(output,))
