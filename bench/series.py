"""What a series of A/A finals shows, simulated or real."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuner_job.measure.decision import Decision

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """A series of A/A finals."""

    finals: int
    false_winners: int
    upper_bound: float
    """One-sided 95 % Clopper–Pearson bound of the rate of false winners."""
    median_interval_width: float
    """Of the route's gain."""
    claimed_by_trtexec: float | None
    """Share of series in which trtexec's rule claims a win on the same noise."""
    median_trtexec_claim: float | None


def summarise(finals: Sequence[Decision], trtexec_claims: Sequence[float] = ()) -> Summary:
    """What a series of A/A decisions shows; `trtexec_claims` are the gains that its rule claims on the same noise (0: none)."""
    false = sum(one.significant for one in finals)
    widths = [one.route_gain.high - one.route_gain.low for one in finals if one.route_gain is not None]
    wins = [claim for claim in trtexec_claims if claim > 0]
    return Summary(
        len(finals),
        false,
        upper_bound(false, len(finals)),
        float(np.median(widths)) if widths else 0.0,
        len(wins) / len(trtexec_claims) if trtexec_claims else None,
        float(np.median(wins)) if wins else None,
    )


def trtexec_claim(means: Sequence[float] | Floats) -> float:
    """Gain that trtexec's rule claims: the mean of one run each, baseline first, strictly less wins; 0 if none did."""
    return max(0.0, 1 - float(np.min(means[1:])) / float(means[0]))


def upper_bound(successes: int, count: int, confidence: float = 0.95) -> float:
    """One-sided Clopper–Pearson upper bound: the rate at which so few successes have probability 1 - confidence."""
    if successes >= count:
        return 1.0
    low, high = successes / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        tail = sum(math.comb(count, k) * middle**k * (1 - middle) ** (count - k) for k in range(successes + 1))
        low, high = (middle, high) if tail > 1 - confidence else (low, middle)
    return high


def stopping(finals: int, false_winners: int) -> str:
    """The preregistered rule: 0 of 59 passes; exactly one extends the series to 93; one of 93 passes; two fail at once."""
    if false_winners > 1:
        return "failed"
    if (finals >= 59 and false_winners == 0) or finals >= 93:
        return "passed"
    return "continue"
