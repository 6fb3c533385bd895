"""Whether an engine's fingerprint says enough: builds that share one must be one engine to the clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from tuner_job.measure.samples import Floats

ALPHA = 0.01
"""Chance that fingerprints which hold are not believed, so that nothing is pooled and a search needs more builds."""

TOLERANCE = 0.002
"""Standard deviation (log units) between processes that is no engine's doing: each build was timed in a process of its own, with
its own memory layout. Recorded builds differ by 0.1 to 0.3 % (docs/statistics.md)."""

_DRAWS = 100_000


def fingerprints_hold(builds: Iterable[tuple[str, Sequence[float]]]) -> bool:
    """Whether builds of equal fingerprint differ by no more than their sessions (and TOLERANCE) explain.

    `builds`: fingerprint and log seconds of each session, of builds of one candidate. One-way analysis of variance within
    fingerprints, pooled over them: the mean square between builds over that within builds, to which TOLERANCE is added. With no
    two builds of one fingerprint there is nothing to see, and the claim stays unproven: False. Then no timings are pooled, which
    costs builds and never a wrong conclusion.
    """
    groups: dict[str, list[Floats]] = defaultdict(list)
    for fingerprint, logs in builds:
        if fingerprint and len(logs) > 0:
            groups[fingerprint].append(np.asarray(logs, dtype=np.float64))
    repeated = [group for group in groups.values() if len(group) > 1]
    if not repeated:
        return False
    within_freedom = sum(one.size - 1 for group in repeated for one in group)
    between_freedom = sum(len(group) - 1 for group in repeated)
    between = sum(_between(group) for group in repeated) / between_freedom
    if within_freedom == 0:  # one session each: nothing to compare with but the tolerance
        return between <= TOLERANCE**2
    within = sum(float(((one - one.mean()) ** 2).sum()) for group in repeated for one in group) / within_freedom
    sessions = float(np.mean([one.size for group in repeated for one in group]))
    return between / (within + sessions * TOLERANCE**2) <= _critical(between_freedom, within_freedom)


@cache
def _critical(between: int, within: int) -> float:
    """The F ratio that chance alone exceeds with probability ALPHA, from fixed draws: good to a few percent of itself."""
    return float(np.quantile(np.random.default_rng([between, within]).f(between, within, _DRAWS), 1 - ALPHA))


def _between(group: Sequence[Floats]) -> float:
    grand = float(np.concatenate(group).mean())
    return sum(one.size * (float(one.mean()) - grand) ** 2 for one in group)
