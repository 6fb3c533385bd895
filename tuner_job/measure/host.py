"""The guard of the host's clock: a gain on the device's clock is none if the whole call got slower.

The device's clock ranks, since it is the quiet one. But it does not see what the host does around the work: an engine that cannot
be captured as a CUDA graph, launches many small kernels or waits for the host can win on the device and lose end to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner_job.api.measurement import Session
from tuner_job.api.messages import Interval
from tuner_job.measure.drift import without_drift
from tuner_job.measure.ranks import rank_sum_p, shift_interval
from tuner_job.measure.samples import Floats
from tuner_job.measure.summary import gain

HOST_ALPHA = 0.005
"""One-sided level of the guard. Stricter than that of the claim: a false alarm would throw a proven winner away."""


@dataclass(frozen=True)
class EndToEnd:
    """The candidate's builds against the default builds by the host's clock."""

    gain: Interval
    """Of latency, at build level (Hodges–Lehmann)."""
    slower: bool
    """By more than the margin, beyond the noise of builds."""


def end_to_end(
    builds: Mapping[str, Sequence[Sequence[Session]]],
    candidates: Sequence[str],
    baselines: Sequence[str],
    weights: Floats,
    margin: float,
) -> EndToEnd | None:
    """Compare the host medians of sessions that were not throttled, less the drift, as the claim compares device medians.

    `builds`: sessions per shape case, at least one of each that was not throttled; `weights`: shares of the cases, sum 1;
    `margin`: relative loss that is let pass. None without builds on both sides, or where a session has no host median: then the
    host's clock is the one that ranks, or nobody asked it.
    """
    names = [*candidates, *baselines]
    kept = {name: [[one for one in case if not one.throttled] for case in builds[name]] for name in names}
    if (
        not candidates
        or not baselines
        or any(one.host_median is None for cases in kept.values() for case in cases for one in case)
    ):
        return None
    values = dict.fromkeys(names, 0.0)
    for case, weight in enumerate(weights):
        series = [kept[name][case] for name in names]
        at = [np.array([one.at for one in sessions]) for sessions in series]
        logs = [np.log([one.host_median for one in sessions if one.host_median is not None]) for sessions in series]
        for name, adjusted in zip(names, without_drift(at, logs), strict=True):
            values[name] += float(weight * np.median(adjusted))
    first, second = (np.array([values[name] for name in group]) for group in (candidates, baselines))
    shift = shift_interval(first, second, HOST_ALPHA)
    return EndToEnd(
        gain=Interval(
            estimate=gain(shift.estimate, "LatencyP50"),
            low=gain(shift.high, "LatencyP50"),
            high=gain(shift.low, "LatencyP50"),
            confidence=shift.confidence,
        ),
        slower=rank_sum_p(second + np.log1p(margin), first) <= HOST_ALPHA,
    )
