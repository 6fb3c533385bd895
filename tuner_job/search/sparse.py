"""Which flips matter: a sparse, robust Bayesian regression on log ratios.

    y_i = sum_j x_ij b_j + d_i + e_i,   b_j = 0 with probability 1 - pi_j, else N(m_j, (s_j tau)^2),   e_i ~ N(0, v_i), v_i known,
    logit pi_j = logit pi + o_j,   d_i: what the sum misses (interactions), Student-t with scale m

m_j, o_j (both 0) and s_j (1) are given, unlike that where something is believed beforehand.
The posterior is sampled by Gibbs chains (George and McCulloch, JASA 1993) that are cooled from a flattened likelihood, so that
they hold side by side the explanations that groups cannot tell apart. While they cool, pi, tau, m and the Student-t weights
(Lange, Little and Taylor, JASA 1989) follow the chains' mean (Monte Carlo EM). Deterministic: the chains' seed is fixed. No
intercept: the empty route is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_SLOWEST = 0.25
"""Log ratios are cut here: how much slower a bad candidate is teaches nothing, but would widen the slab for all."""
_FREEDOM = 4.0
"""Degrees of freedom of the Student-t."""
PRIOR_LIVE = 0.06
"""Chance that an effect of which nothing is believed is live."""
_PRIOR_TAU = 0.02
_PRIOR_MISFIT = 0.003
_PRIOR_WEIGHT = 4.0
"""Pseudo-counts behind the priors of tau and m; ten times as many behind that of pi."""
_CHAINS = 20
_COOLING = 32
"""Sweeps from a tenth of the likelihood to all of it; not kept."""
_MANY = 48
"""More effects than so: chance finds some that explain outliers. Then all of y begins as misfit, its outliers down-weighted, and
effects have to earn it; of fewer, large ones would never get so far."""
_REWEIGHT = 4
"""Sweeps between updates of pi, tau, m and the weights."""
_KEPT = 5
_THINNING = 3


@dataclass(frozen=True)
class Fit:
    """Posterior of the p effects."""

    samples: Array
    """(s, p) joint draws of all effects, an exact 0 where a flip is not live in that draw."""
    misfit: float
    """Scale of what the sum misses, in log units."""
    missed: Array
    """(n,) variance of what the sum misses of each row: misfit squared, but wide for a row that it cannot explain by chance."""

    @cached_property
    def effect(self) -> Array:
        """(p,) posterior means."""
        return np.asarray(self.samples.mean(axis=0).round(12))

    @cached_property
    def live(self) -> Array:
        """(p,) probability that the effect is not zero."""
        return np.asarray((self.samples != 0).mean(axis=0))

    def draw(self, rng: np.random.Generator) -> Array:
        """(p,) one draw of all effects."""
        return np.asarray(self.samples[rng.integers(len(self.samples))])

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


def fit(x: Array, y: Array, v: Array, belief: Belief | None = None) -> Fit:
    """x: (n, p) of 0 and 1; y: (n,) log ratios; v: (n,) variances of their errors."""
    rng = np.random.default_rng(0)
    n, p = x.shape
    belief = belief or Belief.none(p)
    y = np.minimum(y, _SLOWEST)
    seen = np.flatnonzero(x.any(axis=0))
    misfit2, robust, patience = _PRIOR_MISFIT**2, np.ones(n), _COOLING // 2
    if len(seen) > _MANY and n:
        misfit2 += float(np.median(np.abs(y))) ** 2
        robust, patience = (_FREEDOM + 1) / (_FREEDOM + y**2 / (v + misfit2)), 1
    x_seen = x[:, seen]
    odds, center, scale2 = belief.odds[seen], belief.center[seen], belief.scale[seen] ** 2
    effects = np.zeros((len(seen), _CHAINS))
    kept = []
    for sweep in range(_COOLING + _KEPT * _THINNING):
        if sweep <= _COOLING and sweep % _REWEIGHT == 0:
            is_live = effects != 0
            live = np.count_nonzero(is_live) / _CHAINS
            pi = min(0.5, (10 * _PRIOR_WEIGHT * PRIOR_LIVE + live) / (10 * _PRIOR_WEIGHT + len(seen)))
            spread = float((((effects - center[:, None]) * is_live) ** 2 / scale2[:, None]).sum()) / _CHAINS
            tau2 = (_PRIOR_WEIGHT * _PRIOR_TAU**2 + spread) / (_PRIOR_WEIGHT + live)
            if sweep >= patience:  # what chains miss that are still hot is no misfit
                residual2 = ((y[:, None] - x_seen @ effects) ** 2).mean(axis=1)
                robust = (_FREEDOM + 1) / (_FREEDOM + residual2 / (v + misfit2))
                surplus = float(np.sum(robust * residual2 - v))
                misfit2 = max(1e-8, (_PRIOR_WEIGHT * _PRIOR_MISFIT**2 + surplus) / (_PRIOR_WEIGHT + n))
            weighted = x_seen * (robust / (v + misfit2))[:, None]
            gram = weighted.T @ x_seen
            pull = weighted.T @ y
        heat = min(1.0, 0.1 + 0.9 * sweep / _COOLING)
        _sweep(gram, pull, effects, heat, odds + logit(pi), center, tau2 * scale2, rng)
        if sweep >= _COOLING and (sweep - _COOLING) % _THINNING == _THINNING - 1:
            # Unseen flips follow the belief, in pairs of draws, so that their mean is exactly what is believed.
            half = rng.normal(0, np.sqrt(tau2), (p, _CHAINS // 2)) * belief.scale[:, None]
            chance = 1 / (1 + np.exp(-(belief.odds + logit(pi))))
            draw = belief.center[:, None] + np.hstack([half, -half])
            draw *= np.tile(rng.random((p, _CHAINS // 2)) < chance[:, None], 2)
            draw[seen] = effects
            kept.append(draw.T)
    # Squared standardised residuals over the universal threshold 2 ln n (Donoho and Johnstone, Biometrika 1994) are no chance.
    surprise = (_FREEDOM + 1) / robust - _FREEDOM
    missed = np.where(surprise > 2 * np.log(max(n, 2)), (v + misfit2) / robust - v, misfit2)
    return Fit(np.concatenate(kept), float(np.sqrt(misfit2)), np.maximum(missed, misfit2))


def logit(chance: float) -> float:
    return math.log(chance / (1 - chance))


def _sweep(
    gram: Array,
    pull: Array,
    effects: Array,
    heat: float,
    log_odds: Array,
    center: Array,
    tau2: Array,
    rng: np.random.Generator,
) -> None:
    """One Gibbs sweep over all effects (p, chains), in place, under the likelihood to the power of `heat`.

    gram: (p, p) xᵀWx; pull: (p,) xᵀWy.
    """
    diagonal = heat * np.diag(gram)
    s2 = 1.0 / (diagonal + 1.0 / tau2)
    shift = 0.5 * np.log(s2 / tau2) - 0.5 * center**2 / tau2
    # Live if s2/2 pull² > limit, the pull towards this effect given all others.
    limits = 2 * (rng.logistic(size=effects.shape) - (log_odds + shift)[:, None]) / s2[:, None]
    noise = rng.normal(size=effects.shape) * np.sqrt(s2)[:, None]
    gram, own = heat * gram, heat * pull + center / tau2
    for j in rng.permutation(len(effects)):
        to = own[j] - gram[j] @ effects + diagonal[j] * effects[j]
        effects[j] = np.where(to * to > limits[j], s2[j] * to + noise[j], 0.0)
