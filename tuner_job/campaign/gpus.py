"""One GPU for each local worker: two on the same one would disturb each other's timings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tuner_job.api.base import InputError
from tuner_job.api.inputs import RunInputs

VISIBLE = "CUDA_VISIBLE_DEVICES"

_NODE = re.compile(r"nvidia\d+")


def visible(environment: Mapping[str, str], nodes: Path = Path("/dev")) -> tuple[str, ...]:
    """GPUs as CUDA_VISIBLE_DEVICES names them: those that it lists, else one number for each device node.

    Empty where nobody knows without loading the driver, which the supervising process never does.
    """
    listed = environment.get(VISIBLE)
    if listed is not None:
        return tuple(name for part in listed.split(",") if (name := part.strip()))
    try:
        count = sum(_NODE.fullmatch(node.name) is not None for node in nodes.iterdir())
    except OSError:
        return ()
    return tuple(map(str, range(count)))


def deal(inputs: RunInputs, workers: int, gpus: tuple[str, ...]) -> tuple[str, ...]:
    """The GPU of each explore worker; empty where they need none of their own, or the GPUs are not known.

    Raises InputError for more workers than GPUs, unless the job allows that they are shared.
    """
    if inputs.device_type != "GPU" or workers == 1 or not gpus:
        return ()
    if workers > len(gpus) and not inputs.measure.allow_shared:
        raise InputError(
            f"--workers {workers}: this machine shows {len(gpus)} GPU{'s' if len(gpus) > 1 else ''} ({', '.join(gpus)}), and "
            f"workers on one GPU disturb each other's timings; use --workers {len(gpus)}, or set "
            f"targets[].device.gpu.allowShared"
        )
    return tuple(gpus[index % len(gpus)] for index in range(workers))
