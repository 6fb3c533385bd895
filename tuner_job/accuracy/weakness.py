"""References that could not tell a good engine from a bad one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuner_job.accuracy.arrays import Array
from tuner_job.accuracy.losses import tensor_loss
from tuner_job.accuracy.references import References, SampleEntry, TensorEntry
from tuner_job.api.measurement import Metric


def warnings(
    references: References, *, metric: Metric | None = None, threshold: float = 0.0, atol: float = 1e-5, rtol: float = 1e-5
) -> list[str]:
    """What is suspicious, a line each; empty if nothing is.

    With `metric` also tries the engine that ignores its input: it answers the mean over all samples, elementwise. If that
    passes `threshold`, the references are too weak. Memory: one sample and one output of each kind.
    """
    lines = _structure(references)
    if metric is not None and len(references) > 1:
        for name in references.outputs:
            worst = _loss_of_constant(references, name, metric, atol, rtol)
            if worst is not None and worst < threshold:
                lines.append(
                    f"output {name}: an engine that always answers the mean would pass ({metric} {worst:.3g} < {threshold:g}); "
                    f"tighten accuracy.threshold or give more varied samples"
                )
    if metric == "cosine":
        single = [entry.name for entry in _first(references).outputs if entry.shape and entry.size and np.prod(entry.shape) == 1]
        lines += [f"output {name}: cosine sees only the sign of a single element; use lInf or l1" for name in single]
    return lines


def _structure(references: References) -> list[str]:
    """Degenerate data: seen from the stored digests, and for constant tensors from the values."""
    lines = []
    if len(references) == 1:
        lines.append("there is only one sample; a fault that other inputs bring out stays unseen")
    groups = [case.samples for case in references.manifest.cases]
    repeated = sum(len(group) - len({_digests(sample.inputs) for sample in group}) for group in groups)
    if repeated:
        lines.append(f"{repeated} of {len(references)} samples repeat the inputs of another one")
    for index, name in enumerate(references.outputs):
        if all(len(group) > 1 and _same(group, index) for group in groups):
            lines.append(f"output {name}: is the same in every sample although the inputs differ or should")
    return lines + _constant_tensors(references)


def _constant_tensors(references: References) -> list[str]:
    """Inputs that are all zero, and outputs with one value throughout, in every sample."""
    zero_inputs = {entry.name for entry in _first(references).inputs if entry.size}
    flat_outputs = set(references.outputs)
    for sample in references:
        zero_inputs = {name for name in zero_inputs if not np.any(sample.inputs[name])}
        flat_outputs = {name for name in flat_outputs if sample.outputs[name].size > 1 and _is_flat(sample.outputs[name])}
        if not zero_inputs and not flat_outputs:
            break
    return [f"input {name}: is all zeros in every sample" for name in sorted(zero_inputs)] + [
        f"output {name}: has the same value in all its elements, in every sample" for name in sorted(flat_outputs)
    ]


def _is_flat(array: Array) -> bool:
    flat = array.reshape(-1)
    return bool((flat == flat[0]).all())


def _loss_of_constant(references: References, name: str, metric: Metric, atol: float, rtol: float) -> float | None:
    """The worst loss of the engine that answers the mean of all samples of a shape; None if no shape is there twice."""
    sums: dict[tuple[int, ...], tuple[npt.NDArray[np.float64], int]] = {}
    for sample in references:
        output = sample.outputs[name]
        total, count = sums.get(output.shape, (np.zeros(output.shape), 0))
        sums[output.shape] = total + output.astype(np.float64), count + 1
    losses = []
    for sample in references:
        output = sample.outputs[name]
        total, count = sums[output.shape]
        if count > 1 and output.size:
            mean = (total / count).astype(output.dtype)
            losses.append(tensor_loss(mean, output, atol=atol, rtol=rtol).of(metric))
    return max(losses, default=None)


def _first(references: References) -> SampleEntry:
    return references.manifest.cases[0].samples[0]


def _digests(entries: tuple[TensorEntry, ...]) -> tuple[str, ...]:
    return tuple(entry.sha256 for entry in entries)


def _same(group: tuple[SampleEntry, ...], index: int) -> bool:
    return len({sample.outputs[index].sha256 for sample in group}) == 1
