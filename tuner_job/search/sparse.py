"""Which flips matter: a sparse, robust Bayesian regression on log ratios.

    y_i = sum_j x_ij b_j + d_i + e_i,   b_j = 0 with probability 1 - pi, else N(0, tau^2),   e_i ~ N(0, v_i) with v_i known,
    d_i: what the sum misses (interactions), Student-t with scale m

The posterior is sampled by Gibbs chains (George and McCulloch, JASA 1993) that are cooled from a flattened likelihood, so that
they hold side by side the explanations that groups cannot tell apart. While they cool, pi, tau, m and the Student-t weights
(Lange, Little and Taylor, JASA 1989) follow the chains' mean (Monte Carlo EM). Deterministic: the chains' seed is fixed. No
intercept: the empty route is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_SLOWEST = 0.25
"""Log ratios are cut here: how much slower a bad candidate is teaches nothing, but would widen the slab for all."""
_FREEDOM = 4.0
"""Degrees of freedom of the Student-t."""
_PRIOR_LIVE = 0.06
_PRIOR_TAU = 0.02
_PRIOR_MISFIT = 0.003
_PRIOR_WEIGHT = 4.0
"""Pseudo-counts behind the priors of tau and m; ten times as many behind that of pi."""
_CHAINS = 20
_COOLING = 32
"""Sweeps from a tenth of the likelihood to all of it; not kept."""
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


def fit(x: Array, y: Array, v: Array) -> Fit:
    """x: (n, p) of 0 and 1; y: (n,) log ratios; v: (n,) variances of their errors."""
    rng = np.random.default_rng(0)
    n, p = x.shape
    y = np.minimum(y, _SLOWEST)
    pi, tau2 = _PRIOR_LIVE, _PRIOR_TAU**2
    # Begin with the whole spread of y as misfit and its outliers down-weighted, lest a few of them are explained by chance flips.
    misfit2 = _PRIOR_MISFIT**2 + float(np.median(np.abs(y))) ** 2 if n else _PRIOR_MISFIT**2
    robust = (_FREEDOM + 1) / (_FREEDOM + y**2 / (v + misfit2))
    seen = np.flatnonzero(x.any(axis=0))
    x_seen = x[:, seen]
    effects = np.zeros((len(seen), _CHAINS))
    kept = []
    for sweep in range(_COOLING + _KEPT * _THINNING):
        if sweep <= _COOLING and sweep % _REWEIGHT == 0:
            if sweep:
                residual2 = ((y[:, None] - x_seen @ effects) ** 2).mean(axis=1)
                robust = (_FREEDOM + 1) / (_FREEDOM + residual2 / (v + misfit2))
                surplus = float(np.sum(robust * residual2 - v))
                misfit2 = max(1e-8, (_PRIOR_WEIGHT * _PRIOR_MISFIT**2 + surplus) / (_PRIOR_WEIGHT + n))
                live = np.count_nonzero(effects) / _CHAINS
                pi = min(0.5, (10 * _PRIOR_WEIGHT * _PRIOR_LIVE + live) / (10 * _PRIOR_WEIGHT + len(seen)))
                tau2 = (_PRIOR_WEIGHT * _PRIOR_TAU**2 + float((effects**2).sum()) / _CHAINS) / (_PRIOR_WEIGHT + live)
            weighted = x_seen * (robust / (v + misfit2))[:, None]
            gram = weighted.T @ x_seen
            remaining = (weighted.T @ y)[:, None] - gram @ effects  # xᵀW(y - x effects)
        _sweep(gram, remaining, effects, min(1.0, 0.1 + 0.9 * sweep / _COOLING), pi, tau2, rng)
        if sweep >= _COOLING and (sweep - _COOLING) % _THINNING == _THINNING - 1:
            half = rng.normal(0, np.sqrt(tau2), (p, _CHAINS // 2)) * (rng.random((p, _CHAINS // 2)) < pi)
            draw = np.hstack([half, -half])  # unseen flips follow the prior, with a mean of exactly 0
            draw[seen] = effects
            kept.append(draw.T)
    # Squared standardised residuals over the universal threshold 2 ln n (Donoho and Johnstone, Biometrika 1994) are no chance.
    surprise = (_FREEDOM + 1) / robust - _FREEDOM
    missed = np.where(surprise > 2 * np.log(max(n, 2)), (v + misfit2) / robust - v, misfit2)
    return Fit(np.concatenate(kept), float(np.sqrt(misfit2)), np.maximum(missed, misfit2))


def _sweep(gram: Array, remaining: Array, effects: Array, heat: float, pi: float, tau2: float, rng: np.random.Generator) -> None:
    """One Gibbs sweep over all effects (p, chains), in place, under the likelihood to the power of `heat`."""
    diagonal = np.diag(gram)
    s2 = 1.0 / (heat * diagonal + 1.0 / tau2)
    limits = rng.logistic(size=effects.shape) - (np.log(pi / (1 - pi)) + 0.5 * np.log(s2 / tau2))[:, None]
    noise = rng.normal(size=effects.shape) * np.sqrt(s2)[:, None]
    for j in rng.permutation(len(effects)):
        pull = heat * (remaining[j] + diagonal[j] * effects[j])
        mean = s2[j] * pull
        new = np.where(0.5 * mean * pull > limits[j], mean + noise[j], 0.0)
        change = new - effects[j]
        if change.any():
            remaining -= np.multiply.outer(gram[j], change)
            effects[j] = new
