"""Synthetic landscapes over the real knobs of TensorRT 11.2: what could be true of a model, drawn by a seed.

    python -m bench.search.synthetic synthetic-sparse --seed 3 --output sparse-3.json.gz

Nothing here was measured but the noise (bench/data). The knob names, values, defaults and parents (`-kgen:mha` is the parent
of `-kgen:mha:fmha_v2`) are those of the real list; which of them matter, and how much, is drawn. Every seed is another truth, so
a result over many seeds speaks of the recipe and not of one lucky landscape. What is drawn, and why so: bench/search/README.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from bench.search.landscape import Landscape, save
from bench.search.noise import recorded
from bench.search.planted import Planted
from tuner_job.api.base import InputError
from tuner_job.api.outcome import Outcome
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.routes.select import select
from tuner_job.search.space import VARIANT, Flip, Space

KNOBS = Path(__file__).parents[2] / "tests" / "data" / "all_build_routes-11.2.1.2.json"
SETTINGS = {
    "optimizationLevel": ("0", "1", "2", "4", "5"),
    "tilingOptimizationLevel": ("FAST", "MODERATE", "FULL"),
    "maxAuxStreams": ("0", "2", "4"),
    "avgTimingIterations": ("8", "16"),
}
"""Builder settings and values beside the default of each."""
SETTING_EFFECTS = {
    "optimizationLevel": {"0": 0.35, "1": 0.12, "2": 0.03, "4": -0.004, "5": -0.012},
    "tilingOptimizationLevel": {"FAST": -0.004, "MODERATE": -0.008, "FULL": -0.012},
}
"""Ordered, as their documentation has it: a higher level never makes a worse engine on average. Scaled by a draw."""
BUILD_FACTORS = {
    "optimizationLevel": {"0": 0.3, "1": 0.5, "2": 0.8, "4": 1.8, "5": 4.0},
    "tilingOptimizationLevel": {"FAST": 1.3, "MODERATE": 2.0, "FULL": 4.0},
    "avgTimingIterations": {"8": 1.6, "16": 2.6},
}
VARIANT_EFFECT = -0.35
_BASE_BUILD_SECONDS = 20.0
_DIGITS = 6
"""Of log ratios, as the file holds them."""
_ENDS = (Outcome.REFUSED, Outcome.CRASHED, Outcome.INFEASIBLE, Outcome.HUNG, Outcome.OUT_OF_MEMORY)
_END_CHANCES = (0.5, 0.2, 0.2, 0.05, 0.05)


@dataclass(frozen=True)
class Recipe:
    """How a truth is drawn."""

    about: str
    live: int
    """Flips with an effect."""
    median: float = 0.012
    """Median size of an effect (log units); sizes are log-normal with a spread of `spread`."""
    spread: float = 0.7
    good: float = 0.6
    """Share of the live flips that are faster."""
    woken: float = 0.7
    """Chance that a live child with a live parent acts only beside it."""
    families: int = 0
    """Children of live parents that are made live as well, asleep without them."""
    pairs: float = 1 / 3
    """Pairs that interact or fail together, per live flip."""
    pair_size: float = 0.5
    """Spread of an interaction, in medians."""
    pair_failures: float = 0.25
    """Share of these pairs that fail."""
    failing: float = 0.04
    """Share of all flips that fail alone."""
    rescued: int = 0
    """Flips that fail but beside a certain other one, with which they are much faster (as recorded of `h200-cnn`)."""
    noise: Literal["graph", "host"] = "graph"
    fingerprints: bool = True
    settings: bool = False
    """Builder settings and a second model variant beside the knobs."""


RECIPES: dict[str, Recipe] = {
    "synthetic-sparse": Recipe("17 live flips", live=17),
    "synthetic-dense": Recipe("38 live flips", live=38),
    "synthetic-family": Recipe("12 live flips and 12 children that act only beside their parents", live=12, families=12),
    "synthetic-pairs": Recipe(
        "25 live flips, as many pairs, interactions as large as effects", live=25, pairs=1.0, pair_size=1.0
    ),
    "synthetic-failing": Recipe(
        "20 live flips, 12 % of all flips fail, half of the pairs too", live=20, failing=0.12, pairs=0.6, pair_failures=0.5
    ),
    "synthetic-rescued": Recipe("17 live flips, 4 of which fail unless another one is set", live=17, rescued=4),
    "synthetic-small": Recipe("60 live flips of 0.4 %", live=60, median=0.004),
    "synthetic-unnamed": Recipe("17 live flips, no fingerprints", live=17, fingerprints=False),
    "synthetic-host": Recipe("17 live flips, launched from the host", live=17, noise="host"),
    "synthetic-settings": Recipe("17 live flips, 4 builder settings, an FP16 variant", live=17, settings=True),
}


@cache
def space(settings: bool = False) -> Space:
    """All bounded knobs of the real list; with `settings`, builder settings and a variant as well."""
    knobs = parse_knob_list(KNOBS.read_text())
    return Space(knobs, select(knobs), SETTINGS if settings else {}, ("default", "fp16") if settings else ("default",))


def synthetic(name: str, seed: int) -> Landscape:
    """The landscape of a recipe and a seed. Raises InputError for an unknown name."""
    if name not in RECIPES:
        raise InputError(f"no synthetic landscape {name!a}; there are {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    where = space(recipe.settings)
    return Landscape(
        name=name,
        kind="synthetic",
        provenance={
            "about": f"synthetic: {recipe.about}; drawn by bench.search.synthetic with seed {seed}",
            "recipe": repr(recipe),
            "seed": str(seed),
            "knobs": KNOBS.name,
        },
        space=where,
        noise=recorded()[recipe.noise],
        planted=_draw(where, recipe, np.random.default_rng([seed, recipe.live, 11])),
    )


def plant(where: Space, live: int, seed: int, median: float = 0.012) -> Planted:
    """A truth of `live` flips over any space, with the other shares of `synthetic-sparse`."""
    return _draw(where, Recipe("", live=live, median=median), np.random.default_rng([seed, live]))


def _draw(where: Space, recipe: Recipe, rng: np.random.Generator) -> Planted:
    knobs = [flip for flip in where.flips if flip.dimension.startswith("-")]
    children = _children(knobs, recipe.families, rng)
    parents = {_parent(flip.dimension) for flip in children}
    order = [knobs[i] for i in rng.permutation(len(knobs))]
    order.sort(key=lambda flip: flip.dimension not in parents)  # those that are needed come first; the sort is stable
    chosen = [flip for flip in order if flip not in children][: recipe.live] + children
    truth = Planted(where, base_build_seconds=_BASE_BUILD_SECONDS, fingerprints=recipe.fingerprints)
    named = {flip.dimension: flip for flip in chosen}
    for place, flip in enumerate(chosen):
        size = float(np.exp(rng.normal(math.log(recipe.median), recipe.spread)))
        asleep = place >= recipe.live
        truth.effects[flip] = round(-size if asleep or rng.random() < recipe.good else size, _DIGITS)
        parent = named.get(_parent(flip.dimension))
        if parent is not None and (asleep or rng.random() < recipe.woken):
            truth.woken[flip] = parent
    for _ in range(round(recipe.pairs * recipe.live)):
        a, b = rng.choice(len(chosen), 2, replace=False)
        pair = frozenset((chosen[a], chosen[b]))
        if len({flip.dimension for flip in pair}) < 2:
            continue
        if rng.random() < recipe.pair_failures:
            truth.failing_pairs[pair] = _end(rng)
        else:
            truth.pairs[pair] = round(float(rng.normal(0, recipe.pair_size * recipe.median)), _DIGITS)
    dead = [flip for flip in knobs if flip not in truth.effects]
    if recipe.failing > 0:
        failing = [dead[i] for i in rng.permutation(len(dead))[: max(1, round(recipe.failing * len(knobs)))]]
        truth.failing = {flip: _end(rng) for flip in failing}
    faster = [flip for flip in chosen if truth.effects[flip] < 0 and flip not in truth.woken]
    for flip, mate in zip(faster[: recipe.rescued], faster[recipe.rescued : 2 * recipe.rescued], strict=False):
        if flip.dimension != mate.dimension:
            truth.failing[flip] = _end(rng)
            truth.rescued[flip] = mate
            truth.effects[flip] = round(truth.effects[flip] - recipe.median, _DIGITS)
    if recipe.settings:
        _settings(truth, where, chosen, rng)
    return truth


def _parent(name: str) -> str:
    return name.rpartition(":")[0]


def _children(knobs: Sequence[Flip], count: int, rng: np.random.Generator) -> list[Flip]:
    """Children of knobs of the list, no two on one line of descent."""
    names = {flip.dimension for flip in knobs}
    found: list[Flip] = []
    for flip in (knobs[i] for i in rng.permutation(len(knobs))):
        name = flip.dimension
        related = any(name.startswith(f"{o.dimension}:") or f"{o.dimension}:".startswith(f"{name}:") for o in found)
        if len(found) < count and _parent(name) in names and not related:
            found.append(flip)
    return found


def _settings(truth: Planted, where: Space, chosen: Sequence[Flip], rng: np.random.Generator) -> None:
    scale = float(np.exp(rng.normal(0, 0.5)))
    for flip in where.flips:
        name = flip.dimension.removeprefix("setting:")
        if name in SETTING_EFFECTS:
            truth.effects[flip] = round(scale * SETTING_EFFECTS[name][flip.value] + float(rng.normal(0, 0.002)), _DIGITS)
        if name in BUILD_FACTORS:
            truth.build_factors[flip] = BUILD_FACTORS[name][flip.value]
        if flip.dimension == VARIANT:
            truth.effects[flip] = round(VARIANT_EFFECT + float(rng.normal(0, 0.1)), _DIGITS)
            for knob in chosen:  # a third of the knobs matter otherwise in the other precision
                if rng.random() < 1 / 3:
                    effect = truth.effects[knob]
                    truth.pairs[frozenset((flip, knob))] = round(float(rng.normal(-effect, abs(effect) / 2)), _DIGITS)


def _end(rng: np.random.Generator) -> Outcome:
    return _ENDS[int(rng.choice(len(_ENDS), p=_END_CHANCES))]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(RECIPES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    save(synthetic(options.name, options.seed), options.output)


if __name__ == "__main__":
    main()
