"""What this process runs on."""

from __future__ import annotations

import ctypes
import math
import os
import platform
from pathlib import Path
from typing import Literal

from tuner_job.api.measurement import Device
from tuner_job.backends import nvml

CGROUPS = Path("/sys/fs/cgroup")

_FEATURES = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2", "sme"),
)
"""SIMD features for which ONNX Runtime has kernels of their own, in this order."""


def identify(device: Literal["CPU", "GPU"]) -> Device:
    """The device class. Raises TrtfleetError where a GPU is asked for and there is none."""
    if device == "GPU":
        return nvml.identify()
    product, features = cpu_model(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    return Device(
        type="CPU",
        product=product or platform.machine(),
        count=usable_cores(),
        compute_capability=",".join(features),
        driver=platform.release(),
    )


def cudnn_version() -> str:
    """Version of the cuDNN that this process uses (`9.12.0`), or "" where there is none."""
    try:
        number = int(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())
    except OSError:
        return ""
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def cpu_model(cpuinfo: str) -> tuple[str, tuple[str, ...]]:
    """Model name and SIMD features of the first processor in /proc/cpuinfo's text."""
    fields: dict[str, str] = {}
    for line in cpuinfo.split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip().lower()] = value.strip()
    present = set(fields.get("flags", fields.get("features", "")).split())
    arm = " ".join(fields[key] for key in ("cpu implementer", "cpu part", "cpu variant") if key in fields)
    return fields.get("model name") or arm, tuple(name for name in _FEATURES if name in present)


def allowed_cores(root: Path = CGROUPS) -> tuple[int, ...]:
    """The CPU numbers that this process may run on, no more of them than a container's quota gives time for."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    quota = _quota(root)
    return cores if quota is None else cores[: max(1, math.ceil(quota))]


def usable_cores(root: Path = CGROUPS) -> int:
    """How many cores the process may use."""
    return len(allowed_cores(root))


def _quota(root: Path) -> float | None:
    """CPU quota of the container in cores, from cgroup v2 or v1 below `root`; None when unlimited or unreadable."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    try:
        limit = (root / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
