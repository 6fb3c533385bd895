"""What each knob does, estimated from all results at once.

    y_i = sum_j x_ij b_j + e_i,   b_j ~ N(0, tau^2),   e_i ~ N(0, sd_i^2 + m^2)

y: log ratio to the baseline, x: whether the candidate sets knob j to its value, m: what a sum of effects misses (interactions).
A ridge regression whose strength is not chosen but estimated: tau and m maximise the marginal likelihood (empirical Bayes;
Bishop, Pattern Recognition and Machine Learning, §3.5), m under a half-Cauchy prior: where every knob was tried once, alone,
the data cannot tell an effect from an interaction, and an effect is likelier. No intercept: the empty route is 0. It describes;
the search has its own model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuner_job.api.measurement import Candidate

SLOWEST = math.log(2)
"""Log ratios are cut here: a candidate that is many times slower would drown the scale of all effects."""
_SMALLEST_SD = 1e-5
_TAUS = np.geomspace(1e-3, 1.0, 13)
_MISFITS = np.concatenate([[0.0], np.geomspace(2e-3, 0.3, 5)])
_MISFIT_SHARE = 0.3
"""Scale of m's prior, as a share of tau (and of the noise, since a standard deviation may be too small)."""
_NORMAL_95 = 1.96

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """What one result says about the choices of its candidate."""

    choices: tuple[str, ...]
    log_ratio: float | None
    """None when it was not feasible, or not timed."""
    sd: float = 0.0


@dataclass(frozen=True)
class Effect:
    """Log ratios: below 0 is faster."""

    choice: str
    """`-knob=value`, `setting=value` or `variant name`."""
    timed: int
    """Feasible trials behind the estimate."""
    failed: int
    """Trials with this choice that were not feasible (for whatever reason)."""
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    """95 % interval. None when nothing was timed."""

    @property
    def saved(self) -> float | None:
        """Share of the time per inference that the choice saves; its interval is `saved_low` to `saved_high`."""
        return None if self.estimate is None else -math.expm1(self.estimate)

    @property
    def saved_low(self) -> float | None:
        return None if self.high is None else -math.expm1(self.high)

    @property
    def saved_high(self) -> float | None:
        return None if self.low is None else -math.expm1(self.low)


def choices(candidate: Candidate) -> tuple[str, ...]:
    """The ways in which a candidate departs from the default."""
    found = candidate.route.split() + [f"{name}={value}" for name, value in sorted(candidate.settings.items())]
    return (*found, f"variant {candidate.variant}") if candidate.variant != "default" else tuple(found)


def estimate(trials: Sequence[Trial]) -> tuple[Effect, ...]:
    """An effect per choice: timed ones first, the fastest leading."""
    timed = [(trial, trial.log_ratio) for trial in trials if trial.log_ratio is not None]
    behind = Counter(choice for trial, _ in timed for choice in set(trial.choices))
    every = Counter(choice for trial in trials for choice in set(trial.choices))
    names = sorted(behind)
    found = []
    if names:
        number = {name: j for j, name in enumerate(names)}
        x = np.zeros((len(timed), len(names)))
        for i, (trial, _) in enumerate(timed):
            x[i, [number[choice] for choice in trial.choices]] = 1.0
        y = np.array([min(log_ratio, SLOWEST) for _, log_ratio in timed])
        sd = np.array([max(trial.sd, _SMALLEST_SD) for trial, _ in timed])
        mean, spread = _posterior(x, y, sd)
        for name, center, half in zip(names, mean, _NORMAL_95 * spread, strict=True):
            counts = behind[name], every[name] - behind[name]
            found.append(Effect(name, *counts, float(center), float(center - half), float(center + half)))
    found.sort(key=lambda effect: (effect.estimate, effect.choice))
    return (*found, *(Effect(name, 0, every[name]) for name in sorted(set(every) - set(names))))


def _posterior(x: _Floats, y: _Floats, sd: _Floats) -> tuple[_Floats, _Floats]:
    """Means and standard deviations of the effects at the best tau and misfit."""
    best = -math.inf
    typical2 = float(np.median(sd)) ** 2
    mean, spread = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for misfit in _MISFITS:
        variance = sd**2 + misfit**2
        weighted = x / variance[:, None]
        values, vectors = np.linalg.eigh(x.T @ weighted)
        target = vectors.T @ (weighted.T @ y)
        fixed = float(np.log(variance).sum() + (y**2 / variance).sum())
        for tau in _TAUS:
            precision = np.maximum(values, 0.0) + tau**-2
            # Woodbury: log det and quadratic form of x x' tau^2 + diag(variance) in the basis of the effects.
            score = -0.5 * (fixed + float(np.log(precision * tau**2).sum() - (target**2 / precision).sum()))
            score -= math.log1p(misfit**2 / (_MISFIT_SHARE**2 * (tau**2 + typical2)))
            if score > best:
                best = score
                mean = vectors @ (target / precision)
                spread = np.sqrt((vectors**2) @ (1 / precision))
    return mean, spread
