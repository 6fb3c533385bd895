"""What a series of replays shows: shares of the best gain, non-inferiority by pairs, and the targets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MARGIN = 0.01
"""A mean difference in shares of at most so much to the worse is no inferiority."""
_NOTHING = 0.01
"""A share to compare with is at least this: nothing times 1.5 is easily had."""
_RESAMPLES = 2000
OURS = "Adaptive"
BASIC = "OneAtATime"


@dataclass(frozen=True)
class Result:
    """One player on one landscape with one seed at one budget."""

    landscape: str
    strategy: str
    seed: int
    budget: int
    fraction: float
    """Of O, the builds of one-at-a-time; negative: of the configurations of a full product."""
    share: float
    """Of the best log gain, by true values. 0: nothing was returned."""
    gain: float
    """True log gain of what was returned."""
    single: float
    """Share that the best flip alone has on this landscape."""
    easy: bool
    imputed: bool
    """Whether what was returned had not been recorded."""
    builds: int
    failures: int
    sessions: int
    planning_seconds: float
    slowest_plan: float
    hours: float
    memory_mb: float
    code: str
    """Digest of what was played: results of other code are not taken up again."""


@dataclass(frozen=True)
class Cell:
    """A strategy at a budget of a landscape, over seeds."""

    median: float
    tenth: float
    """10th percentile."""
    mean: float
    seeds: int
    worst_seed: int
    worst: float


@dataclass(frozen=True)
class Comparison:
    """Paired by landscape and seed, at one fraction."""

    landscape: str
    fraction: float
    other: str
    mean: float
    """Ours less theirs, in shares."""
    lower: float
    """One-sided 95 % bound of the mean (bootstrap over the pairs)."""
    upper: float
    pairs: int

    @property
    def inferior(self) -> bool:
        """Not shown to be no more than a point worse."""
        return self.lower < -MARGIN

    @property
    def better(self) -> bool:
        return self.lower > 0


@dataclass(frozen=True)
class Target:
    """A number to reach."""

    what: str
    wanted: str
    found: str
    met: bool | None
    """None: nothing was played that could tell."""


def cells(results: Sequence[Result]) -> dict[tuple[str, float, str], Cell]:
    """By landscape, fraction and strategy."""
    grouped: dict[tuple[str, float, str], list[Result]] = defaultdict(list)
    for one in results:
        grouped[one.landscape, one.fraction, one.strategy].append(one)
    found = {}
    for key, mine in grouped.items():
        shares = np.array([one.share for one in mine])
        worst = min(mine, key=lambda one: (one.share, one.seed))
        found[key] = Cell(
            median=float(np.median(shares)),
            tenth=float(np.percentile(shares, 10)),
            mean=float(shares.mean()),
            seeds=len(mine),
            worst_seed=worst.seed,
            worst=worst.share,
        )
    return found


def easy(results: Iterable[Result]) -> set[str]:
    """Landscapes that rank no strategy: on most seeds, the best flip alone has 95 % of the gain."""
    seen: dict[str, dict[int, bool]] = defaultdict(dict)
    for one in results:
        seen[one.landscape][one.seed] = one.easy
    return {name for name, seeds in seen.items() if sum(seeds.values()) * 2 > len(seeds)}


def bounds(differences: Sequence[float]) -> tuple[float, float]:
    """5th and 95th percentile of the bootstrapped mean."""
    values = np.asarray(differences)
    drawn = np.random.default_rng(0).integers(values.size, size=(_RESAMPLES, values.size))
    means = values[drawn].mean(axis=1)
    return float(np.percentile(means, 5)), float(np.percentile(means, 95))


def compare(results: Sequence[Result], ours: str = OURS) -> list[Comparison]:
    """Ours against every other player, by landscape and fraction."""
    table: dict[tuple[str, float, str], dict[int, float]] = defaultdict(dict)
    for one in results:
        table[one.landscape, one.fraction, one.strategy][one.seed] = one.share
    found = []
    for (landscape, fraction, other), theirs in sorted(table.items()):
        mine = table.get((landscape, fraction, ours), {})
        seeds = sorted(mine.keys() & theirs.keys())
        if other == ours or not seeds:
            continue
        differences = [mine[seed] - theirs[seed] for seed in seeds]
        low, high = bounds(differences)
        found.append(Comparison(landscape, fraction, other, float(np.mean(differences)), low, high, len(seeds)))
    return found


def targets(results: Sequence[Result]) -> list[Target]:
    """Those of the design, over the landscapes that are not easy."""
    dull = easy(results)
    table = cells([one for one in results if one.landscape not in dull])
    large = sorted({name for name, fraction, _ in table if (name, 1.0, BASIC) in table and name.startswith("synthetic-")})
    small = sorted({name for name, fraction, _ in table if fraction < 0})
    comparisons = [one for one in compare(results) if one.landscape not in dull]
    return [
        _small(table, small),
        *(_ratio(table, large, fraction, factor) for fraction, factor in ((0.25, 1.0), (0.5, 1.5))),
        *(_reached(table, large, fraction, share) for fraction, share in ((1.0, 0.85), (2.0, 0.95))),
        _never_worse(comparisons),
        _better(comparisons),
    ]


def _small(table: Mapping[tuple[str, float, str], Cell], names: Sequence[str]) -> Target:
    found = {name: table[name, -0.1, OURS].median for name in names if (name, -0.1, OURS) in table}
    median = float(np.median(list(found.values()))) if found else 0.0
    return Target(
        "small full products: median over landscapes of the median share with 10 % of the configurations",
        ">= 0.95",
        f"{median:.2f} ({_list(found)})" if found else "not played",
        median >= 0.95 if found else None,
    )


def _ratio(table: Mapping[tuple[str, float, str], Cell], names: Sequence[str], fraction: float, factor: float) -> Target:
    """Against what one-at-a-time has after all its O builds. Where that is so much that the whole optimum is less than the factor
    over it, nobody could reach it, and the landscape is not judged by it."""
    basic = {name: max(table[name, 1.0, BASIC].median, _NOTHING) for name in names if (name, fraction, OURS) in table}
    found = {name: table[name, fraction, OURS].median / share for name, share in basic.items()}
    judged = [value for name, value in found.items() if basic[name] * factor <= 1]
    capped = {name: 1 / share for name, share in basic.items() if share * factor > 1}
    return Target(
        f"211 knobs, {fraction:g} O: median share over one-at-a-time's at O, on each landscape",
        f">= {factor:g}",
        _list(found) + (f" (nobody can have more than: {_list(capped)})" if capped else "") if found else "not played",
        min(judged) >= factor if judged else None,
    )


def _reached(table: Mapping[tuple[str, float, str], Cell], names: Sequence[str], fraction: float, share: float) -> Target:
    found = {name: table[name, fraction, OURS].median for name in names if (name, fraction, OURS) in table}
    return Target(
        f"211 knobs, {fraction:g} O: median share of the planted optimum, on each landscape",
        f">= {share:g}",
        _list(found) if found else "not played",
        min(found.values()) >= share if found else None,
    )


def _never_worse(comparisons: Sequence[Comparison]) -> Target:
    lost = [one for one in comparisons if one.inferior]
    return Target(
        "not inferior to one-at-a-time nor to any peer, at every budget of every landscape that is not easy",
        f"lower 95 % bound >= {-MARGIN:g}",
        f"{len(comparisons) - len(lost)} of {len(comparisons)} comparisons" if comparisons else "not played",
        not lost if comparisons else None,
    )


def _better(comparisons: Sequence[Comparison]) -> Target:
    at_o = [one for one in comparisons if one.fraction == 1.0]
    won = [one for one in at_o if one.better]
    return Target(
        "better than any peer at O, on every landscape that is not easy",
        "lower 95 % bound > 0",
        f"{len(won)} of {len(at_o)} comparisons" if at_o else "not played",
        len(won) == len(at_o) if at_o else None,
    )


def _list(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name.removeprefix('synthetic-')} {value:.2f}" for name, value in sorted(found.items()))
