"""What a warm start is worth: Adaptive with and without the results of a relative, on synthetic landscapes.

    python -m bench.search.warm [--seeds 20] [--landscapes synthetic-sparse synthetic-dense]

A relative is the same planted truth, disturbed: sizes of effects change, some live flips are replaced by others, some failures
move, and for the farther one some knobs have other names, some are not there yet, and some defaults differ. A misleading one is
another truth altogether under a relation that is trusted. How much is disturbed is chosen, not measured: it says what a warm
start does if relatives are that near, not that they are. The relative is searched by Adaptive with O builds, its results become
the prior as in a campaign, and both searches meet the same noise. Writes bench/results/search-warm.md and .json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bench.search.landscape import Landscape, Truth
from bench.search.noise import PILOT_BUILDS
from bench.search.ours import Ours
from bench.search.planted import Planted
from bench.search.score import bounds
from bench.search.simulate import play
from bench.search.synthetic import RECIPES, synthetic
from tuner_job.api.measurement import BASELINE
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.kin import NEAREST, OTHER_PRODUCT, OTHER_VERSION, OTHER_WEIGHTS
from tuner_job.routes.knobs import Knob, KnobList
from tuner_job.routes.select import SearchKnob
from tuner_job.search.prior import Prior
from tuner_job.search.relatives import Relative, defaults_of, warm_start
from tuner_job.search.rounds import Observation
from tuner_job.search.space import Flip, Flips, Space
from tuner_job.search.strategy import strategy

OUTPUT = Path(__file__).parents[1] / "results" / "search-warm"
FRACTIONS = (0.25, 0.5, 1.0)
OTHER_TRUTH = 50_000
"""Added to a seed: the truth of the misleading relative."""


@dataclass(frozen=True)
class Relation:
    """How far the relative's truth is from this one's."""

    about: str
    trust: float
    spread: float = 0.0
    """Of the log of each effect's size."""
    replaced: float = 0.0
    """Share of the live flips that are dead there, others in their stead."""
    failures: float = 0.0
    """Share of the failing flips that are others there."""
    renamed: float = 0.0
    """Share of the knobs that have another name there: gone for us, and new to it."""
    missing: float = 0.0
    """Share of the knobs that it does not have."""
    defaults: float = 0.0
    """Share of the knobs that have another default there."""
    unrelated: bool = False
    relatives: int = 1
    """Of the one truth, each searched by itself: they agree."""


RELATIONS = {
    "near": Relation("another GPU", NEAREST * OTHER_PRODUCT, spread=0.3, replaced=0.15, failures=0.2),
    "far": Relation(
        "other weights under an older runtime: an older knob list",
        NEAREST * OTHER_WEIGHTS * OTHER_VERSION,
        spread=0.6,
        replaced=0.4,
        failures=0.4,
        renamed=0.05,
        missing=0.05,
        defaults=0.03,
    ),
    "misleading": Relation("an unrelated truth, trusted as another GPU", NEAREST * OTHER_PRODUCT, unrelated=True),
    "misleading nearest": Relation("the same, trusted as the same device", NEAREST, unrelated=True),
    "misleading twice": Relation("two of the same that agree", NEAREST * OTHER_PRODUCT, unrelated=True, relatives=2),
}


@dataclass(frozen=True)
class Elsewhere(Landscape):
    """The disturbed truth as the relative sees it: with its own names, knobs and defaults."""

    inner: Landscape | None = None
    """In the names and defaults of here."""
    names: tuple[tuple[str, str], ...] = ()
    """Its name of a knob → the name here."""
    base: Flips = frozenset()
    """What its defaults are here."""

    def truth(self, flips: Flips) -> Truth:
        assert self.inner is not None
        names, here = dict(self.names), defaults_of(self.inner.space)
        chosen = {flip.dimension: flip.value for flip in self.base}
        chosen |= {names.get(flip.dimension, flip.dimension): flip.value for flip in flips}
        end = self.inner.truth(frozenset(Flip(name, value) for name, value in chosen.items() if here.get(name) != value))
        return end if end.log_ratio is None else replace(end, log_ratio=end.log_ratio - self._zero)

    @cached_property
    def _zero(self) -> float:
        assert self.inner is not None
        return self.inner.truth(self.base).log_ratio or 0.0


def elsewhere(where: Landscape, relation: Relation, seed: int) -> Landscape:
    """The relative's landscape."""
    if relation.unrelated:
        return synthetic(where.name, seed + OTHER_TRUTH)
    rng = np.random.default_rng([seed, 23])
    inner = replace(where, planted=_disturbed(where, relation, rng))
    knobs = [choice.knob for choice in where.space.choices]
    order = [knobs[i] for i in rng.permutation(len(knobs))]
    counts = [round(share * len(knobs)) for share in (relation.renamed, relation.missing, relation.defaults)]
    renamed, missing = order[: counts[0]], {knob.name for knob in order[counts[0] : sum(counts[:2])]}
    moved: dict[str, str] = {}
    for knob in order[sum(counts[:2]) :]:
        other = next((value for value in knob.values or () if value != knob.default), None)
        base = frozenset(Flip(*flip) for flip in {**moved, knob.name: other or ""}.items())
        if len(moved) < counts[2] and other is not None and inner.truth(base).outcome is Outcome.FEASIBLE:
            moved[knob.name] = other
    names = {knob.name: f"{knob.name}:as_it_was" for knob in renamed}

    def told(knob: Knob) -> Knob:
        return replace(knob, name=names.get(knob.name, knob.name), default=moved.get(knob.name, knob.default))

    listed = tuple(told(knob) for knob in where.space.knobs.knobs if knob.name not in missing)
    choices = []
    for choice in where.space.choices:
        if choice.knob.name not in missing:
            knob = told(choice.knob)
            flips = tuple(value for value in choice.values if value != knob.default)
            choices.append(SearchKnob(knob, (knob.default, *flips)))
    space = replace(where.space, knobs=KnobList("older", listed), choices=tuple(choices))
    shown = {name: old for old, name in names.items()}
    base = frozenset(Flip(*flip) for flip in moved.items())
    return Elsewhere(where.name, "synthetic", {}, space, where.noise, inner=inner, names=tuple(shown.items()), base=base)


def _disturbed(where: Landscape, relation: Relation, rng: np.random.Generator) -> Planted:
    truth = where.planted
    assert truth is not None
    knobs = [flip for flip in where.space.flips if flip.dimension.startswith("-")]
    live = sorted(flip for flip in truth.effects if flip in set(knobs))
    dead = [flip for flip in knobs if flip not in truth.effects and flip not in truth.failing]
    dead = [dead[i] for i in rng.permutation(len(dead))]
    gone = [live[i] for i in rng.permutation(len(live))[: round(relation.replaced * len(live))]]
    instead = {flip: dead.pop() for flip in gone}
    sizes = {flip: effect * float(np.exp(rng.normal(0, relation.spread))) for flip, effect in sorted(truth.effects.items())}
    failing = dict(truth.failing)
    alone = sorted(flip for flip in failing if flip not in truth.effects)
    for flip in (alone[i] for i in rng.permutation(len(alone))[: round(relation.failures * len(alone))]):
        failing[dead.pop()] = failing.pop(flip)
    stays = set(truth.effects) - set(gone)
    return replace(
        truth,
        effects={instead.get(flip, flip): size for flip, size in sizes.items()},
        pairs={pair: effect for pair, effect in truth.pairs.items() if pair <= stays},
        woken={child: parent for child, parent in truth.woken.items() if {child, parent} <= stays},
        failing={flip: end for flip, end in failing.items() if flip not in gone},
        rescued={flip: mate for flip, mate in truth.rescued.items() if {flip, mate} <= stays},
        failing_pairs={pair: end for pair, end in truth.failing_pairs.items() if pair <= stays},
    )


class _Ours(Ours):
    def results(self) -> list[Observation]:
        return self._history()


def _player(where: Landscape, space: Space, seed: int) -> _Ours:
    return _Ours(strategy("Adaptive"), space, seed, where.noise.told_sd, where.noise.build_sd, 1, False)


def prior_from(where: Landscape, relation: Relation, seed: int) -> Prior:
    """What searches of relatives with O builds make believe here."""
    other = elsewhere(where, relation, seed)
    found = []
    for k in range(relation.relatives):
        player = _player(other, other.space, seed + k)
        list(play(player, other, [where.one_at_a_time], seed + 1 + k, pilot=PILOT_BUILDS))
        found.append(Relative(f"relative {k + 1}", relation.trust, defaults_of(other.space), player.results()))
    return warm_start(where.space, found).prior


@dataclass(frozen=True)
class Result:
    """A search with a prior, or without one."""

    landscape: str
    relation: str
    """`cold`: without a prior."""
    seed: int
    fraction: float
    """Of O."""
    share: float
    """Of the best log gain, by true values."""
    start: float
    """The same of the prior's first start; 0 without one."""


def run(name: str, seed: int) -> list[Result]:
    """All searches of one landscape and seed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    where = synthetic(name, seed)
    priors = {"cold": Prior(), **{kind: prior_from(where, relation, seed) for kind, relation in RELATIONS.items()}}
    found = []
    for kind, prior in priors.items():
        start = where.share(prior.starts[0]) if prior.starts else 0.0
        space = replace(where.space, prior=prior)
        for fraction in FRACTIONS:
            budget = round(fraction * where.one_at_a_time)
            (end,) = play(_player(where, space, seed), where, [budget], seed, pilot=PILOT_BUILDS)
            share = where.share(where.space.flips_of(end.choice or BASELINE))
            found.append(Result(name, kind, seed, fraction, round(share, 5), round(start, 5)))
    return found


def page(results: Sequence[Result]) -> str:
    """The table, and what was disturbed."""
    table: dict[tuple[str, str, float], dict[int, float]] = defaultdict(dict)
    starts: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for one in results:
        table[one.landscape, one.relation, one.fraction][one.seed] = one.share
        starts[one.landscape, one.relation][one.seed] = one.start
    names = [name for name in RECIPES if any(key[0] == name for key in table)]
    seeds = sorted({one.seed for one in results})
    lines = [
        "# Warm starts from relatives (synthetic)",
        "",
        f"Adaptive with and without a relative's results, seeds {seeds[0]} to {seeds[-1]}. Shares of the best log gain: median, "
        "10th percentile in brackets. **Difference**: mean of warm less cold, paired by seed, with its 90 % bootstrap interval. "
        "**First start**: median share of the relative's best candidate here, before anything was tried. How relatives are "
        "disturbed is chosen, not measured (`bench/search/warm.py`).",
        "",
    ]
    for kind, relation in RELATIONS.items():
        what = (
            f"effects ×/÷ {np.exp(relation.spread):.2g}, {relation.replaced:.0%} of live flips and {relation.failures:.0%} of "
            f"failing ones are others, {relation.renamed:.0%} of knobs renamed, {relation.missing:.0%} not there, "
            f"{relation.defaults:.0%} with another default"
        )
        lines.append(f"- **{kind}**: {relation.about}; trust {relation.trust:.2f}" + ("" if relation.unrelated else f"; {what}"))
    lines += ["", "| landscape | relation | builds | cold | warm | difference | first start |", "|---|---|---|---|---|---|---|"]
    for name in names:
        for kind in RELATIONS:
            for fraction in FRACTIONS:
                cold, warm = table[name, "cold", fraction], table[name, kind, fraction]
                paired = sorted(cold.keys() & warm.keys())
                if not paired:
                    continue
                differences = [warm[seed] - cold[seed] for seed in paired]
                low, high = bounds(differences)
                start = np.median([starts[name, kind][seed] for seed in paired])
                cells = [
                    name.removeprefix("synthetic-"),
                    kind,
                    f"{fraction:g} O",
                    _spread(cold, paired),
                    _spread(warm, paired),
                    f"{np.mean(differences):+.2f} [{low:+.2f}, {high:+.2f}]",
                    f"{start:.2f}",
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _spread(shares: dict[int, float], seeds: Sequence[int]) -> str:
    values = [shares[seed] for seed in seeds]
    return f"{np.median(values):.2f} ({np.percentile(values, 10):.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--landscapes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--jobs", type=int, default=2, help="processes that play")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="without an ending")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    games = [(name, seed) for seed in seeds for name in options.landscapes]
    results: list[Result] = []
    began = time.monotonic()
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for found in pool.map(run, *zip(*games, strict=True)):
            results += found
            print(f"{time.monotonic() - began:7.1f} s: {found[0].landscape} {found[0].seed}", file=sys.stderr)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    text = page(results)
    options.output.with_suffix(".md").write_text(text)
    options.output.with_suffix(".json").write_text(json.dumps([asdict(one) for one in results], indent=0) + "\n")
    print(text)


if __name__ == "__main__":
    main()
