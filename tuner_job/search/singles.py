"""OneAtATime and Mixed: trtexec's `fast` and `mixed` searches without their faults."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from tuner_job.api.measurement import Candidate
from tuner_job.search.options import check_names, choice, integer, number
from tuner_job.search.rounds import Budget, Done, History, Observation, Proposal, take
from tuner_job.search.space import VARIANT, Flip, Flips, Space


class OneAtATime:
    """Every value other than the default, one at a time, on the fastest variant.

    With several variants their empty routes come first; the knobs and settings are then swept on the one that was fastest.
    Option `order`: `list` (default) or `trtexec` (last knob first).
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        check_names("OneAtATime", options, ("order",))
        self.order = choice(options, "order", ("list", "trtexec"))

    def next_round(
        self,
        space: Space,
        history: Sequence[Observation],
        budget: Budget,
        seed: int,  # noqa: ARG002  nothing is random here
        pending: Sequence[Candidate] = (),
    ) -> tuple[Proposal, ...] | Done:
        space.require_choices()
        past = History(space, history, pending)
        return take(variants_first(space, past) or past.new(self._singles(space, past)), budget, "every value was tried alone")

    def estimate(self, space: Space, budget: Budget) -> int:
        space.require_choices()
        return min(len(space.flips), budget.trials)

    def _singles(self, space: Space, past: History) -> Iterator[tuple[Candidate, str]]:
        base = past.best_variant()
        for flip in singles(space, self.order):
            yield space.candidate(base | {flip}), f"one at a time: {flip}{on(base)}"


class Mixed:
    """One at a time, then every combination of the values that were significantly faster.

    Positive: feasible, and faster under Benjamini-Hochberg control of the false discovery rate over all singles. The
    combinations are over the default and the positive values of each positive knob, the strongest knobs first for as long as the
    product stays under the cap. Options: `fdr` (0.1), `maxPositives` (knobs, 10), `cap` (combinations, 256), `order`
    as in OneAtATime.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        check_names("Mixed", options, ("fdr", "maxPositives", "cap", "order"))
        self.fdr = number(options, "fdr", 0.1, 0.0, 0.5)
        self.max_positives = integer(options, "maxPositives", 10, 2, 20)
        self.cap = integer(options, "cap", 256, 2, 100_000)
        self.order = choice(options, "order", ("list", "trtexec"))

    def next_round(
        self, space: Space, history: Sequence[Observation], budget: Budget, seed: int, pending: Sequence[Candidate] = ()
    ) -> tuple[Proposal, ...] | Done:
        first = OneAtATime({"order": self.order}).next_round(space, history, budget, seed, pending)
        if not isinstance(first, Done) or not budget.left:
            return first
        past = History(space, history, pending)
        base = past.best_variant()
        strong = self._strongest(space, positives(past, base, self.fdr))
        if len(strong) < 2:
            return Done(f"every value was tried alone; {len(strong) or 'no'} knob was significantly faster, nothing to combine")
        return take(past.new(_combinations(space, base, strong)), budget, "every combination of the faster values was tried")

    def estimate(self, space: Space, budget: Budget) -> int:
        space.require_choices()
        return min(len(space.flips) + self.cap, budget.trials)

    def _strongest(self, space: Space, found: Mapping[Flip, float]) -> list[tuple[Flip, ...]]:
        """Dimensions to combine, each with its positive flips, strongest first."""
        by_strength = sorted(found, key=lambda flip: (-found[flip], space.flips.index(flip)))
        kept: dict[str, tuple[Flip, ...]] = {}
        for dimension in dict.fromkeys(flip.dimension for flip in by_strength):
            flips = tuple(flip for flip in space.dimensions[dimension] if flip in found)
            size = math.prod(len(f) + 1 for f in kept.values()) * (len(flips) + 1)
            if len(kept) < self.max_positives and size <= self.cap:
                kept[dimension] = flips
        return list(kept.values())


def variants_first(space: Space, past: History) -> Iterator[Proposal] | None:
    """The variants' empty routes, while any of them is untried; None afterwards."""
    flips = [flip for flip in space.dimensions.get(VARIANT, ()) if past.is_new(space.candidate([flip]))]
    if not flips:
        return None
    return past.new((space.candidate([flip]), f"model variant {flip.value} on its empty route") for flip in flips)


def singles(space: Space, order: str = "list") -> list[Flip]:
    """All flips but the variants; `trtexec`: last knob first, its values in listed order."""
    dimensions = [flips for dimension, flips in space.dimensions.items() if dimension != VARIANT]
    return [flip for flips in (reversed(dimensions) if order == "trtexec" else dimensions) for flip in flips]


def on(base: Flips) -> str:
    """` on variant x`, for reasons."""
    return "".join(f" on variant {flip.value}" for flip in base)


def positives(past: History, base: Flips, fdr: float) -> dict[Flip, float]:
    """Flips that are significantly faster alone than their variant's empty route, with their z scores.

    One-sided normal test on inverse-variance pooled rebuilds; Benjamini and Hochberg (1995) over all singles that were timed.
    """
    pooled: dict[Flips, tuple[float, float]] = {}  # flips → (weight, weighted sum)
    for o, flips in zip(past.observations, past.flips, strict=True):
        if o.timed and base <= flips and len(flips - base) <= 1:
            weight, total = pooled.get(flips, (0.0, 0.0))
            pooled[flips] = (weight + 1 / o.variance, total + (o.log_ratio or 0.0) / o.variance)
    weight, total = pooled.pop(base, (math.inf, 0.0))
    zero, zero_variance = (total / weight if base else 0.0), (1 / weight if base else 0.0)
    scores: dict[Flip, float] = {}
    for flips, (weight, total) in pooled.items():
        (flip,) = flips - base
        if flip in past.space.dimensions.get(flip.dimension, ()):
            scores[flip] = (zero - total / weight) / math.sqrt(1 / weight + zero_variance)
    ranked = sorted(scores, key=lambda flip: -scores[flip])
    passed = [
        rank for rank, flip in enumerate(ranked, 1) if math.erfc(scores[flip] / math.sqrt(2)) / 2 <= fdr * rank / len(ranked)
    ]
    return {flip: scores[flip] for flip in ranked[: max(passed, default=0)] if scores[flip] > 0}


def _combinations(space: Space, base: Flips, strong: Sequence[tuple[Flip, ...]]) -> Iterator[tuple[Candidate, str]]:
    """Largest stacks first: they are where the gain is, should the budget end early."""
    combinations = itertools.product(*([*flips, None] for flips in strong))
    stacks = [base | {flip for flip in combination if flip is not None} for combination in combinations]
    for flips in sorted(stacks, key=lambda flips: -len(flips)):
        yield space.candidate(flips), f"combination of values that were faster alone: {space.describe(flips - base)}{on(base)}"
