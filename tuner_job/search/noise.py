"""How timings err: a fast mode, a slow one where there are two, and how wide they are; learned from what no effect explains.

    e_i ~ (1 - q) t4(0, s_i) + q t4(shift, s_i sqrt(wide)),   s_i^2 = told v_i + misfit^2

A device and its host have states: of the builds that were timed on an H200, one in three was 32 % slower when launched from the
host, and a few were 3 % slower under CUDA graph (bench/data). One law for both modes throws away most of what the fast one says.
v_i is what the campaign told of a timing's variance; where there are two modes, each is narrower than that (told < 1).

EM on residuals (Dempster, Laird and Rubin, JRSS B 1977), Student-t by weights (Lange, Little and Taylor, JASA 1989). Two modes
only where the BIC prefers them to one of any width, and where no flip goes with the slow one: then it would be the flip's effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_FREEDOM = 4.0
"""Degrees of freedom of the Student-t."""
_PRIOR_MISFIT = 0.003
_PRIOR_WEIGHT = 4.0
"""Pseudo-counts behind the priors of told (1), misfit and wide (_PRIOR_WIDE)."""
_PRIOR_WIDE = 2.0
_LEAST_TIMINGS = 16
"""Fewer say nothing of modes."""
_MOST_TIMINGS = 1000
"""More say nothing new."""
_STEPS = 8
_SHIFTS = (1.5, 4.0)
"""Where EM looks for the slow mode, in standard deviations as told, …"""
_PLACES = (0.15, 0.4)
"""… and for the fast one, in quantiles."""
_FARTHEST = 6.0
"""What is farther off, in the same deviations, is no mode but an effect or an outlier."""
_WIDEST = 16.0
_NARROWER = (1.0, 0.6, 0.35, 0.2, 0.12, 0.07, 0.04, 0.02)
"""What told may be of a single mode that two are compared with."""
_BY_CHANCE = 1.5
"""Standard deviations by which the slow mode may go with a flip, over the largest that is to be expected of so many flips."""
_SMALLEST2 = 1e-8


@dataclass(frozen=True)
class Left:
    """What effects leave of n rows."""

    mean: Array
    variance: Array
    """(n,) how uncertain the mean is, since effects are."""
    v: Array
    """(n,) the rows' own variances, as told."""
    x: Array
    """(n, p) what effects each row has."""

    def of(self, rows: npt.NDArray[np.intp]) -> Left:
        return Left(self.mean[rows], self.variance[rows], self.v[rows], self.x[rows])


@dataclass(frozen=True)
class Law:
    """Log units."""

    misfit2: float
    told: float = 1.0
    share: float = 0.0
    """q. 0: there is one mode."""
    shift: float = 0.0
    wide: float = 1.0
    at: float = 0.0
    """Where the fast mode is seen, as long as the shared error is not yet right."""

    def scale2(self, v: Array) -> Array:
        return self.told * v + self.misfit2

    def split(self, left: Left, scale2: Array) -> tuple[Array, Array, Array]:
        """(n,) chances of the slow mode, and Student-t weights in the fast and in the slow one."""
        z = ((left.mean - self.at) ** 2 + left.variance) / scale2
        late = ((left.mean - self.at - self.shift) ** 2 + left.variance) / (self.wide * scale2)
        weights = (_FREEDOM + 1) / (_FREEDOM + z), (_FREEDOM + 1) / (_FREEDOM + late)
        if not self.share:
            return np.zeros(len(z)), *weights
        odds = math.log(self.share / (1 - self.share)) - 0.5 * math.log(self.wide)
        return 1 / (1 + np.exp(-odds - (_FREEDOM + 1) / 2 * (np.log1p(z / _FREEDOM) - np.log1p(late / _FREEDOM)))), *weights

    def likelihood(self, left: Left) -> float:
        """Log, but for a constant."""
        scale2 = self.scale2(left.v)
        z = ((left.mean - self.at) ** 2 + left.variance) / scale2
        fast = -0.5 * np.log(scale2) - (_FREEDOM + 1) / 2 * np.log1p(z / _FREEDOM)
        if not self.share:
            return float(fast.sum())
        late = ((left.mean - self.at - self.shift) ** 2 + left.variance) / (self.wide * scale2)
        slow = -0.5 * np.log(self.wide * scale2) - (_FREEDOM + 1) / 2 * np.log1p(late / _FREEDOM)
        return float(np.logaddexp(math.log(1 - self.share) + fast, math.log(self.share) + slow).sum())

    def fitted(self, left: Left, known: float, free: bool, steps: int) -> Law:
        """After so many steps of EM. known: rows of which it is known that nothing is missed; free: whether `at` is fitted."""
        law, farthest = self, _FARTHEST * float(np.median(np.sqrt(left.v)))
        for _ in range(steps):
            scale2 = law.scale2(left.v)
            chance, fast_weight, slow_weight = law.split(left, scale2)
            fast, slow = (1 - chance) * fast_weight, chance * slow_weight
            mean, count = left.mean - law.at, float((1 - chance).sum())
            square = mean**2 + left.variance
            told = (_PRIOR_WEIGHT + float((fast * square / left.v).sum())) / (_PRIOR_WEIGHT + count)
            told = min(1.0, told) if law.share else 1.0
            surplus = float((fast * square - (1 - chance) * told * left.v).sum())
            misfit2 = (_PRIOR_WEIGHT * _PRIOR_MISFIT**2 + surplus) / (_PRIOR_WEIGHT + count + known)
            slower = slow / law.wide
            at = float(((fast * left.mean + slower * (left.mean - law.shift)) / scale2).sum() / ((fast + slower) / scale2).sum())
            after = replace(law, told=told, misfit2=max(_SMALLEST2, misfit2), at=at if free else 0.0)
            if law.share:
                shift = float((slow / scale2 * mean).sum() / ((slow / scale2).sum() + 1e-12))
                spread = float((slow / scale2 * ((mean - law.shift) ** 2 + left.variance)).sum())
                wide = (_PRIOR_WEIGHT * _PRIOR_WIDE + spread) / (_PRIOR_WEIGHT + float(chance.sum()))
                after = replace(
                    after,
                    share=float((1 + chance.sum()) / (10 + len(mean))),
                    shift=min(max(0.0, shift), farthest),
                    wide=min(max(1.0, wide), _WIDEST),
                )
            law = after
        return law

    def learned(self, left: Left, known: float, free: bool) -> Law:
        """The law of one mode or of two that what is left speaks for, found from this one."""
        # The caller's loop is the EM of a single mode: ahead of the effects it would take large ones for outliers.
        law = replace(self, told=1.0, share=0.0).fitted(left, known, free, _STEPS if self.share else 1)
        if len(left.v) < _LEAST_TIMINGS:
            return law
        single = [law, *(Law(_SMALLEST2, told, at=law.at) for told in _NARROWER)]
        best = max(one.likelihood(left) for one in single) + 1.5 * math.log(len(left.v))
        starts = [self]
        if not self.share:
            sd = float(np.median(np.sqrt(left.v)))
            places = np.quantile(left.mean, _PLACES).tolist() if free else [0.0]
            starts = [Law(0.1 * law.misfit2, 0.3, 0.3, shift * sd, 1.0, at) for shift in _SHIFTS for at in places]
        for start in starts:
            two = start.fitted(left, known, free, _STEPS)
            if (found := two.likelihood(left)) > best and not two.goes_with_a_flip(left):
                best, law = found, two
        return law

    def goes_with_a_flip(self, left: Left) -> bool:
        """Whether the slow mode is more frequent with or without some effect than it would be by chance."""
        chance = self.split(left, self.scale2(left.v))[0]
        chance -= chance.mean()
        x = left.x - left.x.mean(axis=0)
        sizes = np.sqrt((x**2).sum(axis=0) * (chance**2).sum())
        together = np.abs(chance @ x)[sizes > 0] / sizes[sizes > 0]
        if not len(together):
            return False
        limit = math.sqrt(2 * math.log(len(together) + 1)) + _BY_CHANCE  # (Donoho, Johnstone, Biometrika 1994)
        return float(together.max()) * math.sqrt(len(chance)) > limit


@dataclass(frozen=True)
class Noise:
    """What is believed of the errors of n rows."""

    law: Law
    precision: Array
    """(n,) how much each row counts."""
    pull: Array
    """(n,) what is to be taken off each row, as far as it is of the slow mode."""
    robust: Array
    """(n,) Student-t weights: 1 for a row as expected, 0 for one that tells nothing."""
    own: Array
    """(n,) variances of the rows' own errors, outliers apart."""

    @classmethod
    def start(cls, v: Array, misfit: float) -> Noise:
        return cls(Law(misfit**2), 1 / (v + misfit**2), np.zeros(len(v)), np.ones(len(v)), v)

    def updated(self, left: Left, timing: Mask, free: bool) -> Noise:
        """timing: (n,) False for a row that was not timed but is known; free: whether timings share an error."""
        rows = np.flatnonzero(timing)
        if not len(rows):
            return self
        every = -(-len(rows) // _MOST_TIMINGS)
        known = (len(timing) - len(rows)) / every
        rows = rows[::every]
        law = self.law.learned(left.of(rows), known, free)
        by = law if law.share or self.law.share else replace(self.law, at=0.0)
        centred = replace(left, mean=left.mean - by.at * timing)
        widths = np.where(timing, by.told * left.v, left.v) + by.misfit2
        chance, fast_weight, slow_weight = replace(by, at=0.0).split(centred, widths)
        chance = chance * timing
        scale2 = np.where(timing, law.told * left.v, left.v) + law.misfit2
        fast, slow = (1 - chance) / scale2, chance / (scale2 * law.wide)
        precision = fast * fast_weight + slow * slow_weight
        return Noise(
            law=law,
            precision=precision,
            pull=slow * slow_weight * law.shift / precision,
            robust=(1 - chance) * fast_weight + chance * slow_weight,
            own=np.maximum(1 / (fast + slow) - law.misfit2, _SMALLEST2),
        )

    def missed(self) -> Array:
        """(n,) as in `sparse.Fit`."""
        # Squared standardised residuals over the universal threshold 2 ln n (Donoho, Johnstone, Biometrika 1994) are no chance.
        surprise = (_FREEDOM + 1) / self.robust - _FREEDOM
        wide = (self.own + self.law.misfit2) / self.robust - self.own
        usual = self.law.misfit2
        return np.maximum(np.where(surprise > 2 * np.log(max(len(wide), 2)), wide, usual), usual)
