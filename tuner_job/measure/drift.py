"""The device's drift: what all engines that are timed in turn feel at the same time.

Recorded on an H200, launched from the host: sessions of one build differ by 17 %, but after the drift that 16 interleaved builds
share is taken out, medians of 20 sessions differ by 0.6 % instead of 4.8 % (docs/statistics.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner_job.measure.samples import Floats

SMALLEST_WINDOW = 5


def without_drift(at: Sequence[Floats], logs: Sequence[Floats]) -> list[Floats]:
    """Log seconds of each build's sessions less the drift at their time; `at[b]` and `logs[b]` have the same shape (sessions,).

    Drift is a running median over time, as wide as one round of all builds, of each session's distance from its own build's
    median (a step of Tukey's median polish). So it does not see which build is which: adding a constant to a build adds exactly
    that constant to what is returned for it and changes nothing else. That keeps builds exchangeable, hence the rank test exact.
    """
    times = np.concatenate(list(at))
    residuals = np.concatenate([one - np.median(one) for one in logs])
    # Sorted by time, then by value, so that the order of the builds does not matter.
    order = np.lexsort((residuals, times))
    window = min(max(len(logs), SMALLEST_WINDOW), residuals.size)
    running = np.median(np.lib.stride_tricks.sliding_window_view(residuals[order], window), axis=1)
    drift = np.empty_like(residuals)
    drift[order] = running[np.clip(np.arange(residuals.size) - window // 2, 0, residuals.size - window)]
    splits = np.cumsum([one.size for one in logs])[:-1]
    return [one - part for one, part in zip(logs, np.split(drift, splits), strict=True)]
