"""From losses to a verdict. Fails closed: what is not a finite number below the threshold does not pass."""

from __future__ import annotations

import math

from tuner_job.accuracy.losses import loss_of
from tuner_job.api.base import InputError
from tuner_job.api.measurement import Losses, Metric

METRICS: tuple[Metric, ...] = ("l0", "l1", "l2", "lInf", "cosine")
LARGEST = {"l0": 1.0, "cosine": 2.0}
"""No loss is larger: a threshold above it would let everything pass."""


def check_thresholds(metric: str | None, threshold: float | None, screening: float | None = None) -> None:
    """Raises InputError for a threshold without a metric or the reverse, one that is not a positive finite number, a final one
    that no loss can reach, or a screening threshold that is tighter than the final one."""
    _check_threshold(metric, threshold)
    if metric in LARGEST and threshold is not None and threshold > LARGEST[metric]:
        raise InputError(f"accuracy.threshold: {threshold} passes every engine; a {metric} loss is at most {LARGEST[metric]:g}")
    if screening is not None:
        _check_threshold(metric, screening, "screeningThreshold")
        if threshold is not None and screening < threshold:
            raise InputError(f"accuracy.screeningThreshold: {screening} is tighter than the final threshold {threshold}")


def _check_threshold(metric: str | None, threshold: float | None, name: str = "threshold") -> None:
    if metric is None or metric not in METRICS:
        found = "not given" if metric is None else f"{metric!r}"
        raise InputError(f"accuracy.metric: {found}; a threshold means nothing without one of {', '.join(METRICS)}")
    if threshold is None:
        raise InputError(f"accuracy.threshold: not given; say which {metric} loss is too large")
    if not (math.isfinite(threshold) and threshold > 0):
        raise InputError(f"accuracy.{name}: {threshold} is not a positive number; a loss at or over it fails")


def judge(losses: Losses, metric: Metric, threshold: float) -> tuple[bool, str]:
    """Whether every output passes, and one line that says why (not). A loss at or over `threshold` fails (trtexec's rule).

    Problems (invalidOutput), no samples or no outputs never pass. The same function screens and decides, with another threshold.
    Raises InputError for an unknown metric or a threshold that is not a positive finite number.
    """
    _check_threshold(metric, threshold)
    if losses.problems:
        more = f" (and {len(losses.problems) - 1} more)" if len(losses.problems) > 1 else ""
        return False, f"invalid output: {losses.problems[0]}{more}"
    if not losses.outputs or losses.samples < 1:
        return False, "nothing was compared"
    failed = [loss for loss in losses.outputs if not _passes(loss_of(loss, metric), threshold)]
    worst = max(failed or losses.outputs, key=lambda loss: _rank(loss_of(loss, metric)))
    where = f"output {worst.output}: {metric} {loss_of(worst, metric):.6g}"
    if failed:
        more = f"; {len(failed) - 1} more outputs fail" if len(failed) > 1 else ""
        return False, f"{where} is at or over the threshold {threshold:g}, worst in sample {worst.worst_sample}{more}"
    return True, f"{where} is the worst of {len(losses.outputs)} outputs over {losses.samples} samples, under {threshold:g}"


def _passes(loss: float, threshold: float) -> bool:
    return math.isfinite(loss) and loss < threshold


def _rank(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
