"""Which configurations of which example are recorded: every combination of a few knobs of ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner_job.api.base import InputError
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.routes.select import select
from tuner_job.search.space import Space


@dataclass(frozen=True)
class Product:
    """A reduced search space and how often each configuration of it is built and timed."""

    values: Mapping[str, tuple[str, ...]]
    """Knob → values beside its default."""
    passes: int = 3

    def space(self, knobs: str) -> Space:
        """Over a backend's knob list (its text). Raises InputError for a knob or value that it does not have."""
        listed = parse_knob_list(knobs)
        return Space(listed, select(listed, list(self.values), values=self.values))


_THREADS = {"-session:intra_op_threads": ("1",), "-session:intra_op_spinning": ("off",)}
_PARALLEL = {"-session:execution_mode": ("parallel",)}
_BLOCKS = {"-session:dynamic_block_base": ("4",)}
_PREPACKING = {"-session:prepacking:disable": ("on",)}
_PATTERN = {"-session:memory_pattern": ("off",)}
_ARENA = {"-session:cpu_arena": ("off",)}
_ORDER = {"-session:execution_order": ("priority_based",)}


def _disable(*optimizers: str) -> dict[str, tuple[str, ...]]:
    return {f"-graph:disable:{name}": ("on",) for name in optimizers}


def _level(*names: str) -> dict[str, tuple[str, ...]]:
    return {"-graph:level": names}


PRODUCTS: dict[str, Product] = {
    "magika": Product(_THREADS | _PARALLEL | _BLOCKS | _PREPACKING | _PATTERN | _level("disabled", "basic")),
    "silero-vad": Product(_THREADS | _PREPACKING | _PATTERN | _ARENA | _ORDER | _level("basic") | _disable("ConstantFolding")),
    "ocr-classifier": Product(
        _THREADS | _PARALLEL | _BLOCKS | _PREPACKING | _ARENA | _level("basic") | _disable("MatMulAddFusion")
    ),
    "ocr-detector": Product(_THREADS | _PARALLEL | _BLOCKS | _PREPACKING | _PATTERN | _level("basic"), passes=2),
    "ocr-recogniser": Product(
        _THREADS | _PREPACKING | _PATTERN | _level("basic") | _disable("LayerNormFusionL2", "ReshapeFusion"), passes=2
    ),
}
"""By the name of the job's file. Each value gives another engine of that model; how much faster or slower was not looked at. As
many as some ten minutes on two idle cores are enough for."""


def product_of(job: Path) -> Product:
    """Raises InputError for a job that has none."""
    if job.stem not in PRODUCTS:
        raise InputError(f"{job}: no product is chosen for it; there are {', '.join(PRODUCTS)} (bench/cpu/products.py)")
    return PRODUCTS[job.stem]
