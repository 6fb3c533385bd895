"""All results as one posterior: effects of flips and related pairs, and the true log ratio of every candidate tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from tuner_job.search.failures import Failures, Stack
from tuner_job.search.noise import Array
from tuner_job.search.rounds import SMALLEST_SD, History
from tuner_job.search.space import SETTING, VARIANT, Flip, Flips
from tuner_job.search.sparse import PRIOR_LIVE, Belief, Fit, Shared, fit, logit
from tuner_job.search.timings import timings

_MOST_BELIEVED = 0.95
_SURELY_LIVE = 0.5
_PAIRED = 14
"""Flips whose pairs get effects of their own."""
_MET = 3
"""Timed trials that a pair was in before."""
_PAIR_ODDS = -0.7
"""Log odds of such a pair against a knob's flip."""
_CHANCES = {VARIANT: 0.96, SETTING: 0.32}
"""Another precision always matters, and by tens of per cent; a builder setting more often than a knob, and more."""
_SCALES = {VARIANT: 15.0, SETTING: 3.0}
"""Spread of such an effect over that of a knob's."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate that was feasible, its builds pooled."""

    stack: Stack
    estimate: float
    """Posterior mean of the log ratio, shrunken towards what its flips predict, and they towards 0."""
    sd: float
    builds: int


class Posterior:
    """Flips are numbered in the space's order; those of the history and of pending trials that the space does not have come last.

    Effects are numbered likewise: all flips, then `pairs`, for what two flips do together beyond what each does alone.
    """

    def __init__(self, past: History) -> None:
        space = past.space
        carried = [space.flips_of(candidate) for candidate in past.pending]
        foreign = sorted({flip for flips in (*past.flips, *carried) for flip in flips} - set(space.flips))
        self.past = past
        self.flips: tuple[Flip, ...] = (*space.flips, *foreign)
        self.size = len(space.flips)
        """Flips below this number belong to the space."""
        self._number = {flip: j for j, flip in enumerate(self.flips)}
        self.stacks = [self.stack(flips) for flips in past.flips]
        self.related = self._related()
        """Child flip and parent flip, of the space: `-mha_fusion:v2:ws` is named under `-mha_fusion:v2`."""
        failing = {self._number[f]: min(chance, _MOST_BELIEVED) for f, chance in space.prior.failing.items() if f in self._number}
        self.failures = Failures([o.outcome for o in past.observations], self.stacks, failing)
        self.timed = [i for i, o in enumerate(past.observations) if o.timed]
        self.timings = timings([past.observations[i] for i in self.timed])
        self.pairs = self.related
        """Related flips, and those that matter most with each other."""
        self.fit = self._fit()
        if more := self._conspicuous():
            self.pairs = [*self.related, *more]
            self.fit = self._fit()

    def stack(self, flips: Flips) -> Stack:
        return frozenset(sorted(self._number[flip] for flip in flips))

    def named(self, stack: Sequence[int] | Stack) -> Flips:
        return frozenset(self.flips[j] for j in stack)

    def row(self, stack: Stack) -> Array:
        """(effects,) of 0 and 1: which effects are in."""
        flips = np.zeros(len(self.flips))
        flips[sorted(stack)] = 1.0
        return np.concatenate([flips, flips[self._first] * flips[self._second]])

    def _fit(self) -> Fit:
        self._first, self._second = [a for a, _ in self.pairs], [b for _, b in self.pairs]
        flips = self._members
        self.x = np.hstack([flips, flips[:, self._first] * flips[:, self._second]])
        # Each timing tells of its engine's first candidate (of none, if it is the baseline's engine), …
        engines = self.timings.engines
        told = np.array([np.zeros_like(row) if e is None else self.x[e] for row, e in zip(self.x, engines, strict=True)])
        told = told.reshape(self.x.shape)
        # … and as a row that is known: another candidate of that engine differs from it by nothing.
        differ = np.flatnonzero((self.x != told).any(axis=1))
        none = np.zeros(len(differ))
        y, v = np.concatenate([self.timings.y, none]), np.concatenate([self.timings.v, none + SMALLEST_SD**2])
        rows = np.concatenate([self.timings.shared.rows, none])
        shared = Shared(rows, self.timings.shared.variance)
        return fit(np.vstack([told, self.x[differ] - told[differ]]), y, v, self._belief(), shared, rows > 0)

    @cached_property
    def _members(self) -> Array:
        """(timed, flips) of 0 and 1."""
        flips = np.zeros((len(self.timed), len(self.flips)))
        for row, i in enumerate(self.timed):
            flips[row, sorted(self.stacks[i])] = 1.0
        return flips

    def _conspicuous(self) -> list[tuple[int, int]]:
        """Pairs of the flips that matter most, as far as trials can tell what they do together."""
        size = np.abs(self.fit.effect)
        live = [j for j in range(self.size) if self.fit.live[j] >= _SURELY_LIVE]
        top = sorted(sorted(live, key=lambda j: (-float(size[j]), j))[:_PAIRED])
        related = {frozenset(pair) for pair in self.related}
        return [
            (a, b)
            for a, b in combinations(top, 2)
            if self.flips[a].dimension != self.flips[b].dimension
            and frozenset((a, b)) not in related
            and int((self.x[:, a] * self.x[:, b]).sum()) >= _MET
        ]

    def predict(self, stack: Stack) -> float:
        """Posterior mean of the log ratio of any candidate, from its flips alone."""
        return float(self.fit.effect @ self.row(stack))

    def beside(self, effects: Array, stack: Stack) -> Array:
        """(..., flips) what each flip does next to these flips; effects: (..., effects)."""
        found = effects[..., : len(self.flips)].copy()
        for k, (a, b) in enumerate(self.pairs, start=len(self.flips)):
            if b in stack:
                found[..., a] += effects[..., k]
            if a in stack:
                found[..., b] += effects[..., k]
        return found

    def _related(self) -> list[tuple[int, int]]:
        """Pairs of flips of knobs of which one is named under the other."""
        named: dict[str, list[int]] = {}
        for j in range(self.size):
            named.setdefault(self.flips[j].dimension, []).append(j)
        return [
            (child, parent)
            for child in range(self.size)
            for parent in named.get(self.flips[child].dimension.rpartition(":")[0], ())
        ]

    def _belief(self) -> Belief:
        prior = self.past.space.prior
        belief = Belief.none(len(self.flips) + len(self.pairs))
        belief.odds[len(self.flips) + len(self.related) :] = _PAIR_ODDS
        for j, flip in enumerate(self.flips):
            belief.odds[j] = logit(prior_chance(flip)) - logit(PRIOR_LIVE)
            belief.scale[j] = _SCALES.get(_kind(flip), 1.0)
        for flip, chance in prior.live.items():
            if flip in self._number:
                chance = min(max(chance, 1 - _MOST_BELIEVED), max(_MOST_BELIEVED, prior_chance(flip)))
                belief.odds[self._number[flip]] = logit(chance) - logit(PRIOR_LIVE)
        for flip, effect in prior.effect.items():
            if flip in self._number:
                belief.center[self._number[flip]] = effect
        return belief

    @cached_property
    def tried(self) -> list[Tried]:
        """Feasible candidates, the fastest first; of equals the one with fewer flips, then in the space's order."""
        y, v, missed, engines = self.fit.level, self.fit.own, self.fit.missed, self.timings.engines
        rows: dict[Stack, list[int]] = {}
        told: dict[int | None, Array] = {}  # per engine: sums of precisions, weighted levels, what is missed; timings
        for row, i in enumerate(self.timed):
            rows.setdefault(self.stacks[i], []).append(row)
            told[engines[row]] = told.get(engines[row], np.zeros(4)) + np.array([1 / v[row], y[row] / v[row], missed[row], 1.0])
        found = []
        for stack, mine in rows.items():
            of = dict.fromkeys(engines[row] for row in mine)
            weight, total, surprise, builds = np.sum([told[engine] for engine in of], axis=0)
            mean, variance = (float(total / weight), float(1 / weight)) if None not in of else (0.0, SMALLEST_SD**2)
            own = float(surprise / builds)
            predicted = self.fit.of(self.x[mine[0]])
            prior = float(predicted.mean())
            prior_variance = own + float(predicted.var())
            keep = own / (own + variance)
            found.append(Tried(stack, prior + keep * (mean - prior), (1 / (1 / variance + 1 / prior_variance)) ** 0.5, len(mine)))
        return sorted(found, key=lambda t: (round(t.estimate, 9), len(t.stack), sorted(t.stack)))


def prior_chance(flip: Flip) -> float:
    """Chance that a flip of this kind matters, before anything is known."""
    return _CHANCES.get(_kind(flip), PRIOR_LIVE)


def _kind(flip: Flip) -> str:
    return SETTING if flip.dimension.startswith(SETTING) else flip.dimension
