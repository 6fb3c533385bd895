"""Seeded inputs for a model whose user brings no references.

They exercise an engine; they say little about real data. The notes tell the user so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from tuner_job.accuracy.arrays import Array, dtype_of
from tuner_job.api.base import InputError
from tuner_job.api.child import ShapeCase
from tuner_job.api.tensors import TensorSpec

INTEGER_LIMIT = 16
"""Generated integers stay below it: as indices they must not leave a small table."""

SAMPLE_RATE_NAMES = ("sr", "sample_rate", "sampling_rate")
"""Audio models branch on it; only real rates take a branch that works."""

SCALES = (1.0, 0.25, 2.0)
"""Standard deviation of floats by sample number: an overflow that only large inputs cause should show."""


def generate_inputs(specs: Iterable[TensorSpec], case: ShapeCase, sample_index: int, seed: int) -> dict[str, Array]:
    """Name → array for one sample of one case.

    Floats: normal around 0, standard deviation `SCALES`. bool: both values. uint8 and int8: their whole range (images, quantised
    data). Other integers: 0 to 15; by name masks (ones, then zeros), segments and token types (0 or 1), sample rates (16000).
    Each tensor has its own stream, from seed, case, sample number and name: order and other inputs do not matter.
    Raises InputError for an unsupported type, or a shape that neither the case nor the model gives.
    """
    return {spec.name: _tensor(spec, case, sample_index, seed) for spec in specs}


def generation_notes(specs: Iterable[TensorSpec]) -> list[str]:
    """What a user should know about generated inputs of this model, a line each."""
    integers = [spec.name for spec in specs if spec.dtype.startswith(("int", "uint")) and spec.dtype not in ("int8", "uint8")]
    notes = ["accuracy is checked on generated inputs; real reference data finds more (accuracy.source: References)"]
    if integers:
        notes.append(f"integer inputs {', '.join(integers)} hold generated values from 0 to {INTEGER_LIMIT - 1}")
    return notes


def _tensor(spec: TensorSpec, case: ShapeCase, sample_index: int, seed: int) -> Array:
    dtype = dtype_of(spec.dtype, f"input {spec.name}")
    shape = case.tensors.get(spec.name, spec.static_shape)
    if shape is None:
        raise InputError(f"shapes[{case.name}]: gives no shape for input {spec.name} ({spec})")
    name = hashlib.sha256(f"{len(case.name)}:{case.name}{spec.name}".encode()).digest()
    rng = np.random.default_rng([seed, sample_index, *np.frombuffer(name, np.uint32).tolist()])
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind not in "iu":
        return (rng.standard_normal(shape) * SCALES[sample_index % len(SCALES)]).astype(dtype)
    if dtype.itemsize == 1:
        lowest = -128 if dtype.kind == "i" else 0
        return rng.integers(lowest, lowest + 256, shape).astype(dtype)
    lowered = spec.name.lower()
    if "mask" in lowered and shape:
        return _mask(rng, shape).astype(dtype)
    if lowered in SAMPLE_RATE_NAMES:
        return np.full(shape, 16000, dtype)
    binary = any(word in lowered for word in ("mask", "segment", "token_type"))
    return rng.integers(0, 2 if binary else INTEGER_LIMIT, shape).astype(dtype)


def _mask(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Ones, then zeros, along the last axis: never all zeros, which would hide everything."""
    lengths = rng.integers(1, shape[-1] + 1, (*shape[:-1], 1)) if shape[-1] else np.zeros((*shape[:-1], 1), np.int64)
    mask: Array = np.arange(shape[-1]) < lengths
    return mask
