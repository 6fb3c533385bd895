"""What the page shows, as plain data: from a run's records, at whatever stage the run is. Nothing here draws or writes.

Gains are relative and positive when better; intervals are 95 %; seconds are per inference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np
from pydantic.alias_generators import to_camel

from tuner_job.accuracy.gate import judge
from tuner_job.accuracy.losses import loss_of
from tuner_job.api.base import Model, TrtfleetError
from tuner_job.api.child import ShapeCase
from tuner_job.api.inputs import AccuracyInput
from tuner_job.api.measurement import Candidate, Losses
from tuner_job.api.messages import DiscoveryRecord, PlannedTrial, PlanRecord, ResultRecord, RunRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.rounds import default_fingerprints
from tuner_job.measure.constraints import broken_by
from tuner_job.measure.controls import Score, scores
from tuner_job.measure.summary import Metric, gain, objective
from tuner_job.report import effects
from tuner_job.report.conditions import Conditions, conditions_of
from tuner_job.report.noise import Noise, noise_of
from tuner_job.report.story import Story, story_of
from tuner_job.report.why import Why, why_of
from tuner_job.report.words import candidate_text, failures

NORMAL_95 = 1.96
PLANNED = "planned"
"""Stands for the outcome of a trial that has none yet."""
SHOWN_LEADERS = 12


@dataclass(frozen=True)
class Estimate:
    """A trial's (or candidate's) gain over the baseline, and the latency that follows from it."""

    gain: float
    gain_low: float
    gain_high: float
    seconds: float
    seconds_low: float
    seconds_high: float

    @property
    def verdict(self) -> str:
        """`faster`, `slower` or `level`: what explore's own data say, which is no proof."""
        return "faster" if self.gain_low > 0 else "slower" if self.gain_high < 0 else "level"


@dataclass(frozen=True)
class TrialRow:
    """A planned trial and what became of it."""

    trial: str
    candidate: str
    candidate_id: str
    plan_reason: str
    outcome: str
    """An Outcome, or `planned`."""
    order: int | None = None
    """Its place among the finished trials, from 1."""
    reason: str = ""
    phase: str = ""
    estimate: Estimate | None = None
    loss: float | None = None
    """The worst output's loss of the judged metric."""
    loss_of: str = ""
    """That output and its worst sample."""
    passes_final: bool | None = None
    """Whether its losses pass the final threshold; None without losses."""
    broken: str = ""
    """The constraint that it breaks."""
    seconds: float = 0.0
    worker: str = ""
    tries: int = 0
    cached: bool = False
    convicted: bool = False
    engine: str = ""
    same_engine: bool = False
    """Its fingerprint is one of the pilot's default builds, and equal ones are one engine (discovery.fingerprints_hold): what it
    changed did nothing."""


@dataclass(frozen=True)
class LeaderRow:
    """A feasible candidate, all of its builds together."""

    candidate: str
    trials: tuple[str, ...]
    pooled: Estimate
    builds: tuple[Estimate, ...]
    picked: bool
    """It went to the final."""
    passes_final: bool


@dataclass(frozen=True)
class RoundRow:
    """A round: what was planned, what came back. `finished` is a count over all rounds up to this one."""

    number: int
    stage: str
    reason: str
    trials: int
    folded: int | None
    """None: not sealed yet."""
    carried_over: int
    finished: int


@dataclass(frozen=True)
class LostRow:
    """Trials that did not win, for one reason."""

    outcome: str
    reason: str
    trials: tuple[str, ...]
    log: str = ""
    """Tail of the first one's output."""


@dataclass(frozen=True)
class Page:
    """Everything on the page."""

    job: str
    target: str
    run: str
    story: Story
    baseline_seconds: float | None
    """Median of the pilot's default builds; None when it cannot be told."""
    rounds: tuple[RoundRow, ...]
    trials: tuple[TrialRow, ...]
    leaders: tuple[LeaderRow, ...]
    effects: tuple[effects.Effect, ...]
    lost: tuple[LostRow, ...]
    noise: Noise | None
    why: Why
    conditions: Conditions
    baseline_loss: float | None
    loss_metric: str
    threshold: float
    screening_threshold: float
    max_trials: int
    min_improvement: float
    higher_is_better: bool
    """The metric is Throughput: gains are of throughput, though seconds are shown."""
    problems: tuple[str, ...]
    """What could not be computed, and why."""

    @property
    def finished(self) -> int:
        return sum(row.outcome != PLANNED for row in self.trials)


def as_json(value: object) -> object:
    """A page, or a part of one, as plain data with the records' spelling of names."""
    if isinstance(value, Model):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, (list, tuple)):
        return [as_json(one) for one in value]
    if is_dataclass(value):
        return {to_camel(one.name): as_json(getattr(value, one.name)) for one in fields(value)}
    return value


def page_of(reader: RunReader) -> Page:
    """Read all records of the run. Raises InputError when there is no such run, or a record is poisoned."""
    run, discovery, verdict = reader.run, reader.discovery(), reader.verdict()
    plans = tuple(reader.plans())
    planned = {trial.trial: trial for plan in reversed(plans) for trial in plan.trials}
    results = {trial: result for trial in sorted(planned) if (result := reader.result(trial))}
    problems: list[str] = []
    metric = run.inputs.measure.metric
    by_trial: Mapping[str, Score] = {}
    baseline = _baseline_log(discovery, metric, problems) if discovery else None
    if discovery:
        try:
            by_trial = scores(list(results.values()), discovery, metric)
        except TrtfleetError as error:
            problems.append(f"gains could not be computed: {error}")
    pick = verdict.candidate if verdict else plans[-1].pick if plans else None
    in_time = sorted(results.values(), key=lambda result: (result.finished_at, result.trial))
    rows = [
        _row(planned[trial], results.get(trial), by_trial.get(trial), baseline, run, discovery.cases if discovery else ())
        for trial in sorted(planned)
    ]
    order = {result.trial: number for number, result in enumerate(in_time, start=1)}
    same = _same_engines(discovery, results) if discovery else frozenset()
    rows = [replace(row, order=order.get(row.trial), same_engine=row.trial in same) for row in rows]
    return Page(
        job=str(run.owner),
        target=run.target,
        run=run.run,
        story=story_of(reader, plans, Counter(result.outcome for result in results.values())),
        baseline_seconds=None if baseline is None else math.exp(baseline),
        rounds=_rounds(reader, plans),
        trials=tuple(rows),
        leaders=_leaders(in_time, by_trial, baseline, pick, run),
        effects=effects.estimate([_effect_trial(result, by_trial) for result in results.values()]),
        lost=_lost(rows, in_time, pick),
        noise=noise_of(discovery, in_time, verdict, metric) if discovery else None,
        why=why_of(verdict, reader.layers, fingerprints_hold=discovery is not None and discovery.fingerprints_hold),
        conditions=conditions_of(discovery, in_time, verdict) if discovery else Conditions(),
        baseline_loss=_worst(discovery.baseline_losses, run.inputs.accuracy)[0] if discovery else None,
        loss_metric=run.inputs.accuracy.metric,
        threshold=run.inputs.accuracy.threshold,
        screening_threshold=run.inputs.accuracy.screening_threshold,
        max_trials=run.inputs.search.max_trials,
        min_improvement=run.inputs.min_improvement,
        higher_is_better=metric == "Throughput",
        problems=tuple(problems),
    )


def _same_engines(discovery: DiscoveryRecord, results: Mapping[str, ResultRecord]) -> frozenset[str]:
    """Trials whose engine is one that the default also gave."""
    default = default_fingerprints(discovery)
    return frozenset(
        trial
        for trial, result in results.items()
        if result.engine and result.engine.fingerprint in default and not result.candidate.is_baseline
    )


def _baseline_log(discovery: DiscoveryRecord, metric: Metric, problems: list[str]) -> float | None:
    """Median log seconds of the pilot's builds; None, and a line in `problems`, when none of them can be used."""
    logs, why = [], ""
    for build in discovery.pilot:
        try:
            logs.append(objective(build.timing, discovery.cases, metric))
        except TrtfleetError as error:
            why = str(error)
    if not logs:
        problems.append(f"the default's latency could not be computed: {why}")
    return float(np.median(logs)) if logs else None


def _estimate(log_ratio: float, sd: float, baseline: float, metric: Metric) -> Estimate:
    half = NORMAL_95 * sd
    return Estimate(
        gain=gain(log_ratio, metric),
        gain_low=gain(log_ratio + half, metric),
        gain_high=gain(log_ratio - half, metric),
        seconds=math.exp(baseline + log_ratio),
        seconds_low=math.exp(baseline + log_ratio - half),
        seconds_high=math.exp(baseline + log_ratio + half),
    )


def _worst(losses: Losses | None, accuracy: AccuracyInput) -> tuple[float | None, str]:
    """The largest loss that is judged, and where it was."""
    if losses is None or not losses.outputs:
        return None, ""
    worst = max(losses.outputs, key=lambda loss: loss_of(loss, accuracy.metric))
    return loss_of(worst, accuracy.metric), f"output {worst.output}, sample {worst.worst_sample}"


def _row(
    planned: PlannedTrial,
    result: ResultRecord | None,
    score: Score | None,
    baseline: float | None,
    run: RunRecord,
    cases: Sequence[ShapeCase],
) -> TrialRow:
    named = TrialRow(
        trial=planned.trial,
        candidate=candidate_text(planned.candidate),
        candidate_id=planned.candidate.id,
        plan_reason=planned.reason,
        outcome=PLANNED,
    )
    if result is None:
        return named
    accuracy = run.inputs.accuracy
    loss, where = _worst(result.losses, accuracy)
    estimate = None
    if score is not None and baseline is not None:
        estimate = _estimate(score.log_ratio, score.sd, baseline, run.inputs.measure.metric)
    return replace(
        named,
        outcome=str(result.outcome),
        reason=result.reason,
        phase=result.phase,
        estimate=estimate,
        loss=loss,
        loss_of=where,
        passes_final=judge(result.losses, accuracy.metric, accuracy.threshold)[0] if result.losses else None,
        broken=_broken(result, run, cases),
        seconds=result.seconds.get("total", 0.0),
        worker=result.worker,
        tries=result.tries,
        cached=result.cached,
        convicted=result.convicted,
        engine=result.engine.digest if result.engine else "",
    )


def _broken(result: ResultRecord, run: RunRecord, cases: Sequence[ShapeCase]) -> str:
    try:
        return broken_by(result, run.inputs.constraints, cases)
    except TrtfleetError:
        return ""  # it has no usable timing, and is listed as such


def _leaders(
    results: Sequence[ResultRecord], by_trial: Mapping[str, Score], baseline: float | None, pick: Candidate | None, run: RunRecord
) -> tuple[LeaderRow, ...]:
    """Feasible candidates, the fastest first, builds pooled by their precision."""
    if baseline is None:
        return ()
    metric, accuracy = run.inputs.measure.metric, run.inputs.accuracy
    groups: dict[str, list[ResultRecord]] = {}
    for result in results:
        if result.outcome is Outcome.FEASIBLE and result.trial in by_trial:
            groups.setdefault(result.candidate.id, []).append(result)
    rows = []
    for group in groups.values():
        mine = [by_trial[result.trial] for result in group]
        weights = [1 / max(score.sd, 1e-9) ** 2 for score in mine]
        mean = sum(w * score.log_ratio for w, score in zip(weights, mine, strict=True)) / sum(weights)
        passed = all(r.losses is None or judge(r.losses, accuracy.metric, accuracy.threshold)[0] for r in group)
        rows.append(
            LeaderRow(
                candidate=candidate_text(group[0].candidate),
                trials=tuple(result.trial for result in group),
                pooled=_estimate(mean, sum(weights) ** -0.5, baseline, metric),
                builds=tuple(_estimate(score.log_ratio, score.sd, baseline, metric) for score in mine),
                picked=group[0].candidate == pick,
                passes_final=passed,
            )
        )
    rows.sort(key=lambda row: row.pooled.seconds)
    return tuple(row for position, row in enumerate(rows) if position < SHOWN_LEADERS or row.picked)


def _effect_trial(result: ResultRecord, by_trial: Mapping[str, Score]) -> effects.Trial:
    score = by_trial.get(result.trial) if result.outcome is Outcome.FEASIBLE else None
    chosen = effects.choices(result.candidate)
    return effects.Trial(chosen, score.log_ratio, score.sd) if score else effects.Trial(chosen, None)


def _rounds(reader: RunReader, plans: Sequence[PlanRecord]) -> tuple[RoundRow, ...]:
    seals = {seal.round: seal for seal in reader.seals()}
    rows, finished = [], 0
    for plan in plans:
        seal = seals.get(plan.round)
        finished += len(seal.folded) if seal else 0
        rows.append(
            RoundRow(
                number=plan.round,
                stage=plan.stage,
                reason=plan.reason,
                trials=len(plan.trials),
                folded=len(seal.folded) if seal else None,
                carried_over=len(seal.carried_over) if seal else 0,
                finished=finished,
            )
        )
    return tuple(rows)


def _lost(rows: Sequence[TrialRow], results: Sequence[ResultRecord], pick: Candidate | None) -> tuple[LostRow, ...]:
    """Every finished trial but those of the pick, once: feasible ones by what their timing says, others by their reason."""
    logs = {result.trial: result.log for result in results}
    kinds: dict[str, list[str]] = {}
    for row in rows:
        if row.outcome == Outcome.FEASIBLE and (pick is None or row.candidate_id != pick.id):
            kinds.setdefault(_why_not(row, pick is not None), []).append(row.trial)
    feasible = [LostRow(str(Outcome.FEASIBLE), reason, tuple(trials)) for reason, trials in kinds.items()]
    failed = [LostRow(one.outcome, one.reason, one.trials, logs[one.trials[0]]) for one in failures(results)]
    return tuple(sorted(feasible, key=lambda row: -len(row.trials)) + failed)


def _why_not(row: TrialRow, decided: bool) -> str:
    if row.passes_final is False:
        return "passes the screening threshold but not the final one"
    if row.estimate is None:
        return "has no usable timing"
    if row.broken:
        return "breaks a constraint"
    return {
        "faster": "faster than the default, but another one was picked" if decided else "faster than the default so far",
        "slower": "slower than the default",
        "level": "not told apart from the default",
    }[row.estimate.verdict]
