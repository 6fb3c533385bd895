"""What a child sees of the supervisor's environment: an allow-list, so that no stray variable steers a build."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SCRATCH_VARIABLE = "TRTFLEET_SCRATCH"
"""Set in every child to its scratch folder; descendants inherit it, by which `scratch.sweep` knows them."""

_HARMLESS = frozenset({"PATH", "PYTHONPATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"})
_WHICH_DEVICE = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"})
_STEERING = frozenset({"LD_LIBRARY_PATH"})
_STEERING_PREFIXES = ("NVIDIA_",)


def _passes(name: str) -> bool:
    return name in _HARMLESS | _WHICH_DEVICE | _STEERING or name.startswith(_STEERING_PREFIXES)


def child_environment(base: Mapping[str, str], scratch: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """The allowed part of `base`, then `extra` (which the user asked for), home and temporary files inside the scratch folder.

    Everything else is scrubbed: `TRT_*`, `ORT_*`, `OMP_*`, `CUDA_*`, `LD_PRELOAD`, `MALLOC_*`, `PYTHON*`, …
    """
    kept = {name: value for name, value in base.items() if _passes(name)}
    kept.update(extra)
    kept.update({"HOME": str(scratch), "TMPDIR": str(scratch), SCRATCH_VARIABLE: str(scratch)})
    return kept


def steering(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Variables that reach the child and can change what it builds or how fast that runs, sorted by name.

    Part of a result's identity. Variables that only choose which device is seen are left out: they differ from worker to
    worker, and the device class says what matters.
    """
    kept = {name: value for name, value in base.items() if _passes(name)} | dict(extra)
    return {name: kept[name] for name in sorted(kept) if name not in _HARMLESS | _WHICH_DEVICE}
