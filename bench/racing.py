"""What racing saves, and how often it stops what it should not: simulated exploring on recorded noise.

    python -m bench.racing [--campaigns 200]

writes bench/results/racing.{json,md}. Bounds and looks are the product's own (`tuner_job.measure.racing`). One campaign is one
worker: four default builds of discover, then trials with a control before every fourth one, as campaign.baseline takes them.
Seeds are fixed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from bench.search.convert import from_h200
from bench.search.landscape import Landscape
from bench.search.noise import Noise, recorded
from bench.search.synthetic import RECIPES, synthetic
from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.campaign.baseline import RECENT_CONTROLS, TRIALS_PER_CONTROL
from tuner_job.measure.racing import ALPHA, bounds, looks, over
from tuner_job.measure.variance import components

HERE = Path(__file__).parent
RESULTS = HERE / "results"
H200 = ("landscape-cnn", "landscape-minilm")
TRIALS = 100
"""Of one campaign: the default of `budget.maxTrials`."""
SLOWER = (-0.02, 0.0, 0.02, 0.05, 0.1, 0.3, 1.0)
"""True log ratios to the default, all trials of a campaign alike."""
MOST_FLIPS = 8
"""Half of the trials on a landscape are single flips, the others stacks of two to so many."""
DRAWS = 2_000
"""Of the bootstrap over campaigns."""
CASE = ShapeCase(name="only")
SPARSE_TOO = ("synthetic-unnamed", "synthetic-host")
"""Recipes whose effects are those of `synthetic-sparse`."""
METRICS: tuple[Literal["LatencyP50", "LatencyMean"], ...] = ("LatencyP50", "LatencyMean")

Timed = SimpleNamespace
"""A timing, or one of its sessions, with what racing reads of it: the records' own models would take most of the time."""
Truths = Callable[[np.random.Generator], Sequence[float]]
"""True log ratios of a campaign's trials."""


@dataclass(frozen=True)
class Raced:
    """What happened to one trial."""

    truth: float
    raced: bool
    """There were controls enough."""
    sessions: int
    """That it took: all of them unless it was stopped."""
    stopped: bool
    against_leader: int
    """Sessions that it would have taken if it were raced against the fastest trial before it, as that was timed."""


@dataclass(frozen=True)
class Row:
    """Campaigns of one noise and one kind of trials."""

    noise: str
    metric: str
    order: str
    trials: str
    campaigns: int
    not_slower: int
    """Raced trials that are truly no slower than the default."""
    stopped: float
    """Share of these that was stopped; ALPHA is the bound. NaN without any."""
    stopped_high: float
    """Upper 95 % bound of that share (bootstrap over campaigns)."""
    slower: int
    """Raced trials that are truly slower."""
    slower_stopped: float
    best_stopped: float
    """Share of the campaigns in which the truly fastest trial, if faster than the default, was stopped."""
    saved: float
    """Sessions saved of all that were planned."""
    leader_saved: float
    """The same if trials were raced against the fastest one before."""
    leader_stopped: float
    """And the share of the trials no slower than the default that would then be stopped."""


class Machine:
    """A worker on noisy hardware: default builds, controls and trials, one after the other."""

    def __init__(self, noise: Noise, rng: np.random.Generator, *, in_sequence: bool) -> None:
        self._noise, self._rng = noise, rng
        self._own = rng.normal(0, noise.build_sd)
        self._at = int(rng.integers(len(noise.medians))) if in_sequence else None

    def build(self, truth: float = 0.0) -> Timed:
        return self._timing(truth + self._rng.normal(0, self._noise.build_sd))

    def control(self) -> Timed:
        """Of the worker's own default engine."""
        return self._timing(self._own)

    def _timing(self, log: float) -> Timed:
        if self._at is None:
            drawn = replace(self._noise, build_sd=0.0).timed(self._rng)
            medians, means = drawn.medians, drawn.means
        else:  # timings follow one another as in the recording, without a gap
            places = (self._at + np.arange(self._noise.sessions)) % len(self._noise.medians)
            self._at += self._noise.sessions
            medians, means = np.asarray(self._noise.medians)[places], np.asarray(self._noise.means)[places]
        logs = zip(medians, means, strict=True)
        sessions = (Timed(median=math.exp(log + median), mean=math.exp(log + mean), throttled=False) for median, mean in logs)
        return Timed(sessions=tuple(sessions))


def campaign(noise: Noise, truths: Sequence[float], metric: Any, rng: np.random.Generator, *, in_sequence: bool) -> list[Raced]:
    """One worker's trials, in rounds."""
    measure = MeasureSettings(metric=metric, sessions=noise.sessions)
    machine = Machine(noise, rng, in_sequence=in_sequence)
    pilot = [machine.build() for _ in range(4)]
    spread = components([[math.log(_number(one, metric)) for one in timing.sessions] for timing in pilot])
    discovery: Any = SimpleNamespace(
        pilot=[SimpleNamespace(timing=(one,), build_seconds=0.1, timing_seconds=0.7) for one in pilot],
        cases=(CASE,),
        build_sd=spread.build_sd,
        session_sd=spread.session_sd,
    )
    controls: list[Any] = []
    found: list[Raced] = []
    leader = 0.0
    for place, truth in enumerate(truths):
        if place % TRIALS_PER_CONTROL == 0:
            controls.append((machine.control(),))
            race = bounds(controls[-RECENT_CONTROLS:], discovery, measure, {})
            center = float(np.mean([_median(one, metric) for (one,) in controls]))
        timing = machine.build(truth)
        sessions, stopped = _sessions(race, timing, measure)
        shifted = tuple(bound + leader for bound in race)
        found.append(Raced(truth, bool(race), sessions, stopped, _sessions(shifted, timing, measure)[0]))
        leader = min(leader, _median(timing, metric, sessions) - center)
    return found


def _sessions(race: Sequence[float], timing: Timed, measure: MeasureSettings) -> tuple[int, bool]:
    """How many sessions a trial takes, and whether it was stopped."""
    request: Any = SimpleNamespace(race=race, measure=measure, cases=(CASE,))
    for count in looks(measure.sessions):
        if race and over(request, [timing.sessions[:count]]) is not None:
            return count, True
    return measure.sessions, False


def _number(one: Timed, metric: str) -> float:
    return float(one.median if metric == "LatencyP50" else one.mean)


def _median(timing: Timed, metric: str, count: int | None = None) -> float:
    return math.log(float(np.median([_number(one, metric) for one in timing.sessions[:count]])))


def alike(truth: float, _rng: np.random.Generator) -> Sequence[float]:
    return [truth] * (TRIALS)


def of_landscape(get: Callable[[int], Landscape], rng: np.random.Generator) -> Sequence[float]:
    """Single flips and random stacks that can be timed. `get`: the landscape of a seed."""
    landscape = get(int(rng.integers(2**31)))
    flips = landscape.space.flips
    found: list[float] = []
    while len(found) < TRIALS:
        size = 1 if len(found) % 2 else int(rng.integers(2, MOST_FLIPS + 1))
        drawn = [flips[k] for k in rng.permutation(len(flips))[:size]]
        truth = landscape.truth(frozenset({flip.dimension: flip for flip in drawn}.values()))
        if truth.log_ratio is not None:
            found.append(truth.log_ratio)
    return found


def row(noise: Noise, metric: Any, in_sequence: bool, trials: str, truths: Truths, campaigns: int) -> Row:
    series = []
    for seed in range(campaigns):
        rng = np.random.default_rng([seed, 6])
        series.append(campaign(noise, truths(rng), metric, rng, in_sequence=in_sequence))
    raced = [[one for one in each if one.raced] for each in series]
    good = [(sum(one.stopped for one in each if one.truth <= 0), sum(one.truth <= 0 for one in each)) for each in raced]
    everything = [one for each in series for one in each]
    slower = [one for each in raced for one in each if one.truth > 0]
    planned = noise.sessions * len(everything)
    best = [min(each, key=lambda one: one.truth) for each in raced]
    faster = [one for each in raced for one in each if one.truth <= 0]
    stopped, high = _share(good)
    return Row(
        noise=noise.name.partition(",")[0],
        metric=metric,
        order="in sequence" if in_sequence else "at random",
        trials=trials,
        campaigns=campaigns,
        not_slower=sum(count for _, count in good),
        stopped=stopped,
        stopped_high=high,
        slower=len(slower),
        slower_stopped=_mean(one.stopped for one in slower),
        best_stopped=_mean(one.stopped for one in best if one.truth < 0),
        saved=1 - sum(one.sessions for one in everything) / planned,
        leader_saved=1 - sum(one.against_leader for one in everything) / planned,
        leader_stopped=_mean(one.against_leader < noise.sessions for one in faster),
    )


def _share(counts: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Hits of cases over all campaigns, and its upper 95 % bound: campaigns are independent, trials of one are not."""
    hits, cases = np.array(counts, dtype=np.float64).T
    if not cases.sum():
        return math.nan, math.nan
    drawn = np.random.default_rng(0).integers(len(counts), size=(DRAWS, len(counts)))
    shares = hits[drawn].sum(axis=1) / np.maximum(1, cases[drawn].sum(axis=1))
    return float(hits.sum() / cases.sum()), float(np.percentile(shares, 97.5))


def _mean(values: Iterable[bool]) -> float:
    found = list(values)
    return float(np.mean(found)) if found else math.nan


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1%}"


def markdown(rows: Sequence[Row], campaigns: int, seconds: float) -> str:
    lines = [
        "# Racing: what it saves, and what it stops wrongly",
        "",
        f"`python -m bench.racing --campaigns {campaigns}` ({seconds / 60:.0f} minutes). {campaigns} simulated campaigns a row:",
        f"one worker, {TRIALS} trials of five sessions, looks after {', '.join(map(str, looks(5)))}. Noise: the encoder on an",
        "H200 (bench/data), each timing a stretch of the recording at a random place, or one after the other without a gap",
        "(slow spells then last for many trials). A trial that is truly no slower than the default should go on; at most",
        f"{ALPHA:.0%} of these may be stopped. In brackets: upper 95 % bounds (bootstrap over campaigns). docs/statistics.md",
        "explains.",
        "",
        "## Trials of landscapes",
        "",
        "Half single flips, half random stacks. `synthetic-*`: drawn as in bench/search/synthetic.py, a new truth each campaign;",
        "`landscape-*`: recorded products of an H200. Last two columns: trials raced against the fastest one so far instead of",
        "the default, which the product does not do: sessions saved, and share of the trials no slower than the default that is",
        "then cut short.",
        "",
        "| noise | metric | timings | trials | no slower: stopped | fastest trial stopped | slower: stopped "
        "| sessions saved | against the leader: saved | stopped |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.noise} | {one.metric} | {one.order} | {one.trials} | {_percent(one.stopped)} ({_percent(one.stopped_high)}) "
        f"of {one.not_slower} | {_percent(one.best_stopped)} | {_percent(one.slower_stopped)} of {one.slower} "
        f"| {_percent(one.saved)} | {_percent(one.leader_saved)} | {_percent(one.leader_stopped)} |"
        for one in rows
        if not one.trials.startswith("truth")
    ]
    lines += [
        "",
        "## Trials that are all alike",
        "",
        "Share of the raced trials that is stopped, by their true log ratio to the default (above 0: slower). At 0 the bound is",
        "exact; below it is safe by far.",
        "",
        "| noise | metric | timings | " + " | ".join(f"{truth:+.2f}" if truth else "0" for truth in SLOWER) + " |",
        "|---|---|---|" + "---|" * len(SLOWER),
    ]
    alike_rows = [one for one in rows if one.trials.startswith("truth")]
    for key in dict.fromkeys((one.noise, one.metric, one.order) for one in alike_rows):
        shares = [
            f"{_percent(one.stopped)} ({_percent(one.stopped_high)})" if one.not_slower else _percent(one.slower_stopped)
            for one in alike_rows
            if (one.noise, one.metric, one.order) == key
        ]
        lines.append(f"| {' | '.join(key)} | {' | '.join(shares)} |")
    broken = [one for one in rows if one.stopped > ALPHA]
    lines += ["", f"Rows over the bound of {ALPHA:.0%}: {len(broken)}."]
    lines += [f"- {one.noise}, {one.metric}, {one.order}, {one.trials}: {_percent(one.stopped)}" for one in broken]
    return "\n".join(lines) + "\n"


def _same(landscape: Landscape, _seed: int) -> Landscape:
    return landscape


def landscapes() -> dict[str, Truths]:
    kinds: dict[str, Truths] = {
        name: partial(of_landscape, partial(synthetic, name)) for name in RECIPES if name not in SPARSE_TOO
    }
    for name in H200:
        landscape = from_h200(RESULTS / "h200" / f"{name}.json.gz")
        kinds[name] = partial(of_landscape, partial(_same, landscape))
    return kinds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=200)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    rows = []
    kinds = landscapes()
    for noise in recorded().values():
        rows += [row(noise, "LatencyP50", False, trials, truths, options.campaigns) for trials, truths in kinds.items()]
        for metric in METRICS:
            for in_sequence in (False, True):
                rows += [
                    row(noise, metric, in_sequence, f"truth {truth:+g}", partial(alike, truth), options.campaigns)
                    for truth in SLOWER
                ]
    seconds = time.monotonic() - began
    text = markdown(rows, options.campaigns, seconds)
    (options.output / "racing.json").write_text(json.dumps([_plain(one) for one in rows], indent=1) + "\n")
    (options.output / "racing.md").write_text(text)
    print(text)


def _plain(one: Row) -> dict[str, Any]:
    """JSON knows no NaN."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in asdict(one).items()}


if __name__ == "__main__":
    main()
