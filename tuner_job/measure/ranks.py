"""The exact rank-sum test of two small groups, and the interval that it implies.

Wilcoxon's rank-sum (Mann–Whitney) test as a permutation test: its null distribution is counted, ties included, so that no
normal approximation and no random draws are needed at any size used here. Lehmann, Nonparametrics (1975), ch. 1–2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from tuner_job.measure.samples import Floats


def rank_sum_p(first: Floats, second: Floats) -> float:
    """One-sided p-value of "`first` tends to be smaller than `second`", shapes (m,) and (n,); ties share their mean rank."""
    ranks = _doubled_ranks(np.concatenate([first, second]))
    observed = int(ranks[: first.size].sum())
    return float(min(1.0, _subset_sums(ranks, first.size)[: observed + 1].sum()))


@dataclass(frozen=True)
class Shift:
    """How much `first` lies above `second`."""

    estimate: float
    low: float
    high: float
    confidence: float


def shift_interval(first: Floats, second: Floats, alpha: float) -> Shift:
    """Hodges–Lehmann estimate of the shift, and the two-sided interval of all shifts that the test at `alpha` per side keeps.

    Confidence is 1 - 2 alpha, or less where the groups are too small for that (then the interval is all that was seen).
    """
    differences = np.sort(np.subtract.outer(first, second).ravel())
    critical = rank_sum_critical(first.size, second.size, alpha)
    confidence = 1 - 2 * alpha if critical >= 0 else max(0.0, 1 - 2 * smallest_p(first.size, second.size))
    cut = max(critical, 0)
    return Shift(float(np.median(differences)), float(differences[cut]), float(differences[-1 - cut]), confidence)


def rank_sum_critical(first: int, second: int, alpha: float) -> int:
    """The largest number of pairs against the claim at which the test still rejects, without ties; -1 if it never can."""
    return int(np.searchsorted(_lower_tail(first, second), alpha, side="right")) - 1


def smallest_p(first: int, second: int) -> float:
    """The smallest p-value that groups of these sizes can reach."""
    return float(_lower_tail(first, second)[0])


@cache
def _lower_tail(first: int, second: int) -> Floats:
    """P(U ≤ u) without ties, for u = 0 … first * second pairs."""
    sums = _subset_sums(2 * np.arange(1, first + second + 1), first)[::2]
    return np.asarray(np.cumsum(sums[first * (first + 1) // 2 :][: first * second + 1]))


def _doubled_ranks(values: Floats) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Twice the mid-ranks: integers even with ties."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, side="left")
    upto = np.searchsorted(ordered, values, side="right")
    return (below + upto + 1).astype(np.int64)


def _subset_sums(ranks: np.ndarray[tuple[int], np.dtype[np.int64]], size: int) -> Floats:
    """P(sum = s) over all subsets of `size` of the ranks, for s = 0 … total."""
    total = int(ranks.sum())
    counts = np.zeros((size + 1, total + 1))
    counts[0, 0] = 1.0
    for rank in ranks:
        counts[1:, rank:] += counts[:-1, : total + 1 - rank].copy()
    return np.asarray(counts[size] / counts[size].sum())
