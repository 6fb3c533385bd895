"""Which flips matter: a sparse, robust Bayesian regression on log ratios.

    y_i = sum_j x_ij b_j + u_i c + e_i,   b_j = 0 with probability 1 - pi_j, else N(m_j, (s_j tau)^2),
    logit pi_j = logit pi + o_j,   c ~ N(0, w),   e_i: `noise`, and what the sum misses (interactions)

w is known. c is the error that rows with u_i = 1 share; it is integrated out. m_j, o_j (both 0) and s_j (1) are given, unlike
that where something is believed beforehand.

The posterior is sampled by Gibbs chains (George and McCulloch, JASA 1993). They start at draws of what would be true if every
flip mattered a little: a ridge regression whose variances are fitted by EM (MacKay, Neural Computation 1992). From there effects
that are not needed fall to 0, and the chains hold side by side the explanations that groups cannot tell apart; from 0 on they
would find few of many small effects. While they settle, pi, tau and the noise follow the chains' mean (Monte
Carlo EM). Deterministic: the chains' seed is fixed. No intercept but c, since the empty
route is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner_job.search.noise import Array, Law, Left, Mask, Noise

_SLOWEST = 0.25
"""Log ratios are cut here and _ERRORS farther: how much slower a bad candidate is teaches nothing, but would widen the slab."""
_ERRORS = 6.0
"""Standard deviations beyond that."""
PRIOR_LIVE = 0.06
"""Chance that an effect of which nothing is believed is live."""
_PRIOR_TAU = 0.02
_PRIOR_WEIGHT = 4.0
"""Pseudo-counts behind the prior of tau; ten times as many behind that of pi."""
_RIDGE_TAU = 0.01
_RIDGE_MISFIT = 0.005
"""Log units, where the ridge begins. With a smaller tau, a large effect that few rows hold looks like outliers."""
_RIDGE_STEPS = 10
_FIRST_LIVE = 0.1
"""Most that pi is before the first sweep, when all effects are live: what is not needed then falls to 0 sooner."""
_FEW = 48
"""So few effects explain no outliers by chance, and large ones may be in one row each: their misfit and weights wait until half
of the sweeps that are not kept are over."""
_CHAINS = 20
_SETTLING = 16
"""Sweeps that are not kept."""
_REWEIGHT = 4
"""Sweeps between updates of pi, tau and the noise."""
_KEPT = 5
_THINNING = 3


@dataclass(frozen=True)
class Fit:
    """Posterior of the p effects."""

    samples: Array
    """(s, p) joint draws of all effects, an exact 0 where a flip is not live in that draw."""
    law: Law
    """Of the errors."""
    missed: Array
    """(n,) variance of what the sum misses of each row: misfit squared, but wide for a row that it cannot explain by chance."""
    offset: float
    """Posterior mean of the shared error."""
    level: Array
    """(n,) y less the shared error and what is owed to the slow mode."""
    own: Array
    """(n,) variances of the errors of level."""

    @cached_property
    def effect(self) -> Array:
        """(p,) posterior means."""
        return np.asarray(self.samples.mean(axis=0).round(12))

    @cached_property
    def live(self) -> Array:
        """(p,) probability that the effect is not zero."""
        return np.asarray((self.samples != 0).mean(axis=0))

    def draw(self, rng: np.random.Generator, count: int = 1) -> Array:
        """(p,) the mean of `count` draws of all effects: the more, the less is in it by chance."""
        return np.asarray(self.samples[rng.integers(len(self.samples), size=count)].mean(axis=0))

    def of(self, x: Array) -> Array:
        """(s,) draws of the sum for one row x of 0 and 1."""
        return self.samples @ x


@dataclass(frozen=True)
class Belief:
    """What is believed of p effects before any result."""

    odds: Array
    """(p,) log odds of being live over those of any other effect."""
    center: Array
    """(p,) expected effect if live."""
    scale: Array
    """(p,) spread of the effect if live, over that of any other effect."""

    @classmethod
    def none(cls, p: int) -> Belief:
        return cls(np.zeros(p), np.zeros(p), np.ones(p))


@dataclass(frozen=True)
class Shared:
    """An error that rows have in common."""

    rows: Array
    """(n,) 1 for a row that has it, else 0."""
    variance: float


def fit(
    x: Array, y: Array, v: Array, belief: Belief | None = None, shared: Shared | None = None, timing: Mask | None = None
) -> Fit:
    """x: (n, p) of 0 and 1, or -1 too in rows that are known; y: (n,) log ratios; v: (n,) variances of their own errors.

    timing: (n,) False for a row that was not timed but is known; None: all were timed.
    """
    rng = np.random.default_rng(0)
    n, p = x.shape
    belief = belief or Belief.none(p)
    shared = shared or Shared(np.zeros(n), 0.0)
    timing = np.ones(n, dtype=bool) if timing is None else timing
    if timing.any():
        y = np.minimum(y, _SLOWEST + _ERRORS * float(np.median(np.sqrt(v[timing]))))
    seen = np.flatnonzero(x.any(axis=0))
    x_seen = x[:, seen]
    odds, center, scale2 = belief.odds[seen], belief.center[seen], belief.scale[seen] ** 2
    effects, noise = _ridge(x_seen, y, v, scale2, shared, timing, rng)
    kept = []
    for sweep in range(_SETTLING + _KEPT * _THINNING):
        if sweep <= _SETTLING and sweep % _REWEIGHT == 0:
            is_live = effects != 0
            live = np.count_nonzero(is_live) / _CHAINS
            share = (10 * _PRIOR_WEIGHT * PRIOR_LIVE + live) / (10 * _PRIOR_WEIGHT + len(seen))
            pi = min(float(share), 0.5 if sweep else _FIRST_LIVE)
            spread = float((((effects - center[:, None]) * is_live) ** 2 / scale2[:, None]).sum()) / _CHAINS
            tau2 = (_PRIOR_WEIGHT * _PRIOR_TAU**2 + spread) / (_PRIOR_WEIGHT + live)
            if sweep >= (_SETTLING // 2 if len(seen) <= _FEW else 1):
                residual = y[:, None] - x_seen @ effects
                residual -= np.outer(shared.rows, _offset(residual - noise.pull[:, None], noise.precision, shared))
                noise = noise.updated(Left(residual.mean(axis=1), residual.var(axis=1), v, x_seen), timing, shared.variance > 0)
            gram, pull = _moments(x_seen, y - noise.pull, noise.precision, shared)
        _sweep(gram, pull, effects, odds + logit(pi), center, tau2 * scale2, rng)
        if sweep >= _SETTLING and (sweep - _SETTLING) % _THINNING == _THINNING - 1:
            # Unseen flips follow the belief, in pairs of draws, so that their mean is exactly what is believed.
            half = rng.normal(0, np.sqrt(tau2), (p, _CHAINS // 2)) * belief.scale[:, None]
            chance = 1 / (1 + np.exp(-(belief.odds + logit(pi))))
            draw = belief.center[:, None] + np.hstack([half, -half])
            draw *= np.tile(rng.random((p, _CHAINS // 2)) < chance[:, None], 2)
            draw[seen] = effects
            kept.append(draw.T)
    samples = np.concatenate(kept)
    offset = float(_offset(y - noise.pull - x @ samples.mean(axis=0), noise.precision, shared))
    return Fit(
        samples=samples,
        law=noise.law,
        missed=noise.missed(),
        offset=offset,
        level=y - noise.pull - shared.rows * offset,
        own=noise.own,
    )


def _ridge(
    x: Array, y: Array, v: Array, scale2: Array, shared: Shared, timing: Mask, rng: np.random.Generator
) -> tuple[Array, Noise]:
    """(p, chains) draws of all effects if every one were live, and the noise that leaves.

    What is believed of directions has no part in it: it holds for effects that are live, and not all are.
    """
    p = x.shape[1]
    tau2, noise = _RIDGE_TAU**2, Noise.start(v, _RIDGE_MISFIT)
    for _ in range(_RIDGE_STEPS):
        gram, pull = _moments(x, y - noise.pull, noise.precision, shared)
        precision = gram + np.diag(1 / (tau2 * scale2))
        covariance = np.linalg.inv(precision)
        mean = covariance @ pull
        spread = float((mean**2 + np.diag(covariance)) @ (1 / scale2))
        tau2 = (_PRIOR_WEIGHT * _RIDGE_TAU**2 + spread) / (_PRIOR_WEIGHT + p)
        residual = y - x @ mean
        residual -= shared.rows * _offset(residual - noise.pull, noise.precision, shared)
        if p > _FEW:
            noise = noise.updated(Left(residual, ((x @ covariance) * x).sum(axis=1), v, x), timing, shared.variance > 0)
    root = np.linalg.cholesky(precision)
    return mean[:, None] + np.linalg.solve(root.T, rng.normal(size=(p, _CHAINS))), noise


def _offset(residual: Array, weights: Array, shared: Shared) -> Array:
    """() or (chains,) posterior mean of the shared error, given (n,) or (n, chains) residuals."""
    if not shared.variance:
        return np.zeros(residual.shape[1:])
    mine = weights * shared.rows
    return np.asarray(mine @ residual / (mine.sum() + 1 / shared.variance))


def _moments(x: Array, y: Array, weights: Array, shared: Shared) -> tuple[Array, Array]:
    """(p, p) xᵀPx and (p,) xᵀPy for the precision P of the errors, the shared one integrated out (Sherman and Morrison, 1950)."""
    weighted = x * weights[:, None]
    gram, pull = weighted.T @ x, weighted.T @ y
    if shared.variance:
        mine = weights * shared.rows
        common = mine @ x
        known = mine.sum() + 1 / shared.variance
        gram -= np.outer(common, common) / known
        pull -= common * (mine @ y) / known
    return gram, pull


def logit(chance: float) -> float:
    return math.log(chance / (1 - chance))


def _sweep(
    gram: Array,
    pull: Array,
    effects: Array,
    log_odds: Array,
    center: Array,
    tau2: Array,
    rng: np.random.Generator,
) -> None:
    """One Gibbs sweep over all effects (p, chains), in place.

    gram: (p, p) xᵀPx; pull: (p,) xᵀPy.
    """
    diagonal = np.diag(gram)
    s2 = 1.0 / (diagonal + 1.0 / tau2)
    shift = 0.5 * np.log(s2 / tau2) - 0.5 * center**2 / tau2
    # Live if s2/2 pull² > limit, the pull towards this effect given all others.
    limits = 2 * (rng.logistic(size=effects.shape) - (log_odds + shift)[:, None]) / s2[:, None]
    noise = rng.normal(size=effects.shape) * np.sqrt(s2)[:, None]
    own = pull + center / tau2
    others = gram - np.diag(diagonal)
    for j in rng.permutation(len(effects)):
        to = own[j] - others[j] @ effects
        effects[j] = (to * to > limits[j]) * (s2[j] * to + noise[j])
