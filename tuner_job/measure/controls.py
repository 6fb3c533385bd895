"""Scores of explore trials: their distance from the baseline, less what is known of their worker.

Workers differ (two cards of one product, a warm and a cool slot), and each one keeps re-timing its own baseline engine beside its
trials: its controls. Dividing by the nearest control would carry all of the control's noise into the score (recorded: error
0.3 % → 6 %). So a worker's effect is estimated from all of its controls and shrunk towards no effect by as much as the
controls are noisy (empirical Bayes; random effects after DerSimonian & Laird 1986, best linear unbiased prediction).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner_job.api.measurement import Timing
from tuner_job.api.messages import Control, DiscoveryRecord, ResultRecord
from tuner_job.measure.samples import Floats
from tuner_job.measure.summary import Metric, NoUsableSession, TooFewSamples, objective
from tuner_job.measure.variance import NORMAL_MAD, median_variance

DRIFT_SDS = 4.0
"""A control so many standard deviations off its worker's others calls for a re-time."""
SMALLEST_VARIANCE = 1e-12
"""Keeps weights finite when a clock is so coarse that repeats are identical."""


@dataclass(frozen=True)
class Score:
    """A trial against the baseline."""

    log_ratio: float
    """Log of seconds over the baseline's seconds: below 0 is faster."""
    sd: float
    """Its standard deviation: the build's own luck, its sessions, and what is not known of the worker and the baseline."""


@dataclass(frozen=True)
class _Worker:
    mean: float
    variance: float
    """Of `mean` as an estimate of the worker's true baseline."""


def scores(results: Sequence[ResultRecord], discovery: DiscoveryRecord, metric: Metric) -> dict[str, Score]:
    """Score of every result that has a timing, by trial.

    Results whose sessions were all throttled have no score, nor those too slow for the samples that LatencyP99 needs. The order
    of `results` does not matter. Raises TooFewSamples (LatencyP99, of the pilot), InputError (weights).
    """
    pilot = [y for y in (_objective(one.timing, discovery, metric, strict=True) for one in discovery.pilot) if y is not None]
    logs: dict[tuple[str, bool], list[float]] = defaultdict(list)
    engines: dict[tuple[str, bool], set[str]] = defaultdict(set)
    for result in sorted(results, key=lambda one: one.trial):
        for control in result.controls:
            value = _objective(control.timing, discovery, metric)
            if value is not None:
                logs[_worker(result)].append(value)
                engines[_worker(result)].add(control.engine)
    within = _timing_variance(list(logs.values()))
    build = discovery.build_sd**2
    session_counts = [len(c.timing[0].sessions) for r in results for c in r.controls] or [1]
    usual = int(np.median(session_counts))
    noise = max(within, median_variance(discovery.session_sd, usual), SMALLEST_VARIANCE)

    workers = {
        key: _Worker(float(np.median(values)), build / len(engines[key]) + median_variance(math.sqrt(noise), len(values)))
        for key, values in logs.items()
    }
    groups = list(workers.values())
    if pilot:
        groups.append(_Worker(float(np.median(pilot)), median_variance(math.sqrt(build + noise), len(pilot))))
    if not groups:
        raise NoUsableSession("discovery.pilot: every session of the baseline was throttled; nothing to compare with")
    spread = _between(groups)
    weights = np.array([1 / (one.variance + spread) for one in groups])
    center = float(np.dot(weights, [one.mean for one in groups]) / weights.sum())
    center_variance = float(1 / weights.sum())

    found: dict[str, Score] = {}
    for result in results:
        value = _objective(result.timing, discovery, metric) if result.timing else None
        if value is None:
            continue
        count = len(result.timing[0].sessions)
        fewer = max(1.0, median_variance(1.0, count) / median_variance(1.0, usual))  # it was stopped early (measure.racing)
        own = build + max(fewer * within, median_variance(discovery.session_sd, count))
        worker = workers.get(_worker(result))
        if worker is None:
            found[result.trial] = Score(value - center, math.sqrt(own + spread + center_variance))
            continue
        trust = spread / (spread + worker.variance)
        found[result.trial] = Score(
            value - (trust * worker.mean + (1 - trust) * center),
            math.sqrt(own + trust * worker.variance + (1 - trust) ** 2 * center_variance),
        )
    return found


def drifted(controls: Sequence[Control], discovery: DiscoveryRecord, metric: Metric) -> bool:
    """Whether the last of one worker's controls, in time order, is off its others: time the trials since then again.

    It never corrects a number: a control is too noisy for that.
    """
    logs = [y for y in (_objective(one.timing, discovery, metric) for one in controls) if y is not None]
    if len(logs) < 3:
        return False
    earlier = np.array(logs[:-1])
    center = float(np.median(earlier))
    expected = median_variance(discovery.session_sd, len(controls[-1].timing[0].sessions))
    seen = (NORMAL_MAD * float(np.median(np.abs(earlier - center)))) ** 2
    return abs(logs[-1] - center) > DRIFT_SDS * math.sqrt(max(expected, seen, SMALLEST_VARIANCE))


def _worker(result: ResultRecord) -> tuple[str, bool]:
    """A process, since each one builds its own baseline; results of other runs keep apart."""
    return result.worker_id, result.cached


def _objective(timing: Sequence[Timing], discovery: DiscoveryRecord, metric: Metric, *, strict: bool = False) -> float | None:
    try:
        return objective(timing, discovery.cases, metric)
    except NoUsableSession:
        return None
    except TooFewSamples:
        if strict:
            raise
        return None


def _timing_variance(groups: Sequence[Sequence[float]]) -> float:
    """Variance of one control about its worker, robust, pooled over workers with at least three controls."""
    deviations: list[Floats] = [np.abs(np.asarray(one) - np.median(one)) for one in groups if len(one) > 2]
    return (NORMAL_MAD * float(np.median(np.concatenate(deviations)))) ** 2 if deviations else 0.0


def _between(groups: Sequence[_Worker]) -> float:
    """Variance between workers beyond their own noise: DerSimonian & Laird's moment estimate, at least 0."""
    weights = np.array([1 / one.variance for one in groups])
    means = np.array([one.mean for one in groups])
    center = np.dot(weights, means) / weights.sum()
    excess = float(np.dot(weights, (means - center) ** 2)) - (len(groups) - 1)
    scale = float(weights.sum() - (weights**2).sum() / weights.sum())
    return max(0.0, excess / scale) if scale > 0 else 0.0
