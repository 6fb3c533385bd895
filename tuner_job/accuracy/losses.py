"""How far an engine's outputs are from the references.

Definitions are trtexec's (`sampleInference.cpp`, the L0 … Cosine validators), accumulated in double. What differs is what
trtexec lets through: here every element type counts, NaN and Inf are problems instead of passing, and every output of every
sample must be there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuner_job.accuracy.arrays import Array, dtype_of
from tuner_job.accuracy.references import References, Sample
from tuner_job.api.base import InputError
from tuner_job.api.measurement import Losses, Metric, OutputLoss

MAX_PROBLEMS = 20
NORM_EPSILON = 1e-12
"""Norms below this count as zero (trtexec's constant)."""

_CHUNK = 1 << 20
"""Elements converted to double at a time: bounds memory at some tens of MiB whatever the tensor."""

_Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TensorLoss:
    """Every loss of one tensor against its reference."""

    l0: float
    l1: float
    l2: float
    l_inf: float
    cosine: float

    def of(self, metric: Metric) -> float:
        return float(getattr(self, _FIELD[metric]))


_FIELD: dict[Metric, str] = {"l0": "l0", "l1": "l1", "l2": "l2", "lInf": "l_inf", "cosine": "cosine"}


def loss_of(loss: OutputLoss, metric: Metric) -> float:
    """The stored loss that `metric` names."""
    return float(getattr(loss, _FIELD[metric]))


def tensor_loss(actual: Array, reference: Array, *, atol: float, rtol: float) -> TensorLoss:
    """Losses of two tensors of one shape and type; elements that are the same infinity in both count as equal.

    All zero for tensors without elements. Integers and bools are compared as numbers; integers too large for a double still
    differ by at least 1 if they differ. Not finite where a double overflows, or for NaN: callers look for NaN first.
    """
    mismatched, total, squares, largest = 0, 0.0, 0.0, 0.0
    dot, actual_norm2, reference_norm2, actual_largest = 0.0, 0.0, 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for a, r, difference in _chunks(actual, reference):
            mismatched += int(np.count_nonzero(~(difference <= atol + rtol * np.abs(r))))
            total += float(difference.sum())
            squares += float(np.square(difference).sum())
            largest = max(largest, float(difference.max()))
            dot += float(a @ r)
            actual_norm2 += float(a @ a)
            reference_norm2 += float(r @ r)
            actual_largest = max(actual_largest, float(np.abs(a).max()))
    count = max(reference.size, 1)
    a_norm, r_norm = math.sqrt(actual_norm2), math.sqrt(reference_norm2)
    if r_norm < NORM_EPSILON:
        cosine = 0.0 if a_norm < NORM_EPSILON or actual_largest <= atol else 1.0
    elif a_norm < NORM_EPSILON:
        cosine = 1.0
    else:
        cosine = min(max(1.0 - dot / a_norm / r_norm, 0.0), 2.0)  # rounding alone may leave the range
    return TensorLoss(mismatched / count, total / count, squares / count, largest, cosine)


def _chunks(actual: Array, reference: Array) -> Iterator[tuple[_Doubles, _Doubles, _Doubles]]:
    """Chunks of both as doubles, and of |a - r|; matching infinities are replaced by zeros."""
    a_flat, r_flat = actual.reshape(-1), reference.reshape(-1)
    integers = reference.dtype.kind in "iu"
    for start in range(0, reference.size, _CHUNK):
        a_raw, r_raw = a_flat[start : start + _CHUNK], r_flat[start : start + _CHUNK]
        a, r = a_raw.astype(np.float64), r_raw.astype(np.float64)
        if not integers and (same := np.isinf(r) & (a == r)).any():
            a[same] = r[same] = 0.0
        difference = np.abs(a - r)
        if integers:
            difference[(a_raw != r_raw) & (difference == 0.0)] = 1.0
        yield a, r, difference


class Comparison:
    """Accumulates the worst losses of each output over samples and cases."""

    def __init__(
        self, references: References, *, atol: float, rtol: float, metric: Metric = "l0", outputs: tuple[str, ...] = ()
    ) -> None:
        """`outputs` are checked; empty means all. `metric` only decides which sample is called the worst.

        Raises InputError if a tolerance is negative or not finite, or the references lack one of the outputs.
        """
        for name, value in (("atol", atol), ("rtol", rtol)):
            if not math.isfinite(value) or value < 0:
                raise InputError(f"accuracy.{name}: {value} is not a finite number of at least 0")
        if missing := [name for name in outputs if name not in references.outputs]:
            held = ", ".join(references.outputs)
            raise InputError(f"accuracy.outputs: the references hold no output {missing[0]!r}; they hold {held}")
        self._references = references
        self._atol, self._rtol, self._metric = atol, rtol, metric
        self._all = not outputs
        self._outputs = outputs or references.outputs
        self._worst: dict[str, tuple[TensorLoss, str]] = {}
        self._largest: dict[str, TensorLoss] = {}
        self._seen: set[tuple[str, str]] = set()
        self._problems: list[str] = []

    def add(self, sample: Sample, actual: Mapping[str, Array]) -> None:
        """Compare an engine's outputs for one sample."""
        self._seen.add((sample.case, sample.name))
        for name in self._outputs:
            if name not in actual:
                self._problem(f"output {name}: missing for sample {sample.label}")
                continue
            found, reference = actual[name], sample.outputs[name]
            if problem := _invalid(found, reference):
                self._problem(f"output {name}, sample {sample.label}: {problem}")
                continue
            loss = tensor_loss(found, reference, atol=self._atol, rtol=self._rtol)
            if not all(math.isfinite(loss.of(metric)) for metric in _FIELD):
                self._problem(f"output {name}, sample {sample.label}: a loss is not a finite number")
                continue
            self._fold(name, sample.label, loss)
        if self._all and (extra := sorted(set(actual) - set(self._outputs))):
            self._problem(f"output {extra[0]}: has no reference (sample {sample.label})")

    def losses(self) -> Losses:
        """The worst so far. Samples that were never added are a problem: nothing passes unchecked."""
        problems = list(self._problems)
        if absent := [key for key in self._references.keys if key not in self._seen]:
            line = f"only {len(self._seen)} of {len(self._references)} samples were compared; {'/'.join(absent[0])} was not"
            problems.insert(0, line)
        return Losses(
            references_digest=self._references.digest,
            samples=len(self._seen),
            atol=self._atol,
            rtol=self._rtol,
            outputs=tuple(self._output(name) for name in self._outputs if name in self._worst),
            problems=tuple(problems[:MAX_PROBLEMS]),
        )

    def _fold(self, name: str, label: str, loss: TensorLoss) -> None:
        worst = self._worst.get(name)
        if worst is None:
            self._worst[name], self._largest[name] = (loss, label), loss
            return
        key = (loss.of(self._metric), loss.l_inf)
        if key > (worst[0].of(self._metric), worst[0].l_inf):
            self._worst[name] = loss, label
        so_far = self._largest[name]
        self._largest[name] = TensorLoss(*(max(getattr(so_far, f), getattr(loss, f)) for f in _FIELD.values()))

    def _output(self, name: str) -> OutputLoss:
        loss, (_, label) = self._largest[name], self._worst[name]
        return OutputLoss(
            output=name, worst_sample=label, l0=loss.l0, l1=loss.l1, l2=loss.l2, l_inf=loss.l_inf, cosine=loss.cosine
        )

    def _problem(self, line: str) -> None:
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(line)


def compare(
    references: References,
    run: Callable[[Sample], Mapping[str, Array]],
    *,
    atol: float,
    rtol: float,
    metric: Metric = "l0",
    outputs: tuple[str, ...] = (),
) -> Losses:
    """Run an engine on every sample and compare. Exceptions of `run` pass through."""
    comparison = Comparison(references, atol=atol, rtol=rtol, metric=metric, outputs=outputs)
    for sample in references:
        comparison.add(sample, run(sample))
    return comparison.losses()


def _invalid(actual: Array, reference: Array) -> str:
    """Why an output cannot be compared with its reference; "" if it can."""
    dtype_of(reference.dtype.name, "references")
    if actual.dtype != reference.dtype:
        return f"element type {actual.dtype.name} where the reference has {reference.dtype.name}"
    if actual.shape != reference.shape:
        return f"shape {list(actual.shape)} where the reference has {list(reference.shape)}"
    if reference.dtype.kind in "biu":
        return ""
    wrong, nan, first = 0, 0, 0
    for start in range(0, reference.size, _CHUNK):
        a = actual.reshape(-1)[start : start + _CHUNK].astype(np.float64)
        r = reference.reshape(-1)[start : start + _CHUNK].astype(np.float64)
        bad = ~((np.isfinite(a) & np.isfinite(r)) | (np.isinf(r) & (a == r)))
        if bad.any():
            first = first if wrong else start + int(bad.argmax())
            wrong += int(bad.sum())
            nan += int((np.isnan(a) & bad).sum())
    if not wrong:
        return ""
    index = [int(i) for i in np.unravel_index(first, reference.shape)]
    return f"{nan} NaN and {wrong - nan} misplaced Inf among {reference.size} elements, first at {index}"
