"""Whether a GPU is ours alone. Asked before this process has a context on it: whatever holds it then is foreign.

What counts, in this order:

processes    Any that NVML lists, computing or drawing. In a container the list is often empty, since other processes' numbers
             mean nothing there; so an empty list proves nothing.
memory       More than `IDLE_MEMORY` in use and no process to explain it. NVML's second form of the call leaves out what driver
             and firmware reserve, so an idle GPU or MIG slice shows next to nothing (0 to some 100 MiB), while a process that
             computes holds a context (from about 100 MiB on small cards to 500 MiB and more on large ones) and its model.
utilisation  More than `IDLE_PERCENT` and no process to explain it. NVML averages over up to a second; MIG slices do not say.

Each of these also shows what a child of ours left behind a moment ago: memory until the driver has torn its context down,
utilisation until NVML's window has passed; and a driver without persistence mode reports high utilisation while it wakes. So a
device that looks busy is looked at again until `PATIENCE_SECONDS` are over.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tuner_job.api.measurement import DeviceState
from tuner_job.backends.protocol import DeviceBusy

IDLE_MEMORY = 512 << 20
"""Bytes."""
IDLE_PERCENT = 10
PATIENCE_SECONDS = 3.0
_LOOK_SECONDS = 0.25

_SHOWN = 4
_REMEDY = (
    "stop what uses it, give the worker a GPU of its own, or set targets[].device.gpu.allowShared (the doctor: --allow-shared)"
)


def await_idle(
    look: Callable[[], DeviceState | None],
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> DeviceState | None:
    """The state of a device that nobody else uses; None where there is no GPU. Raises DeviceBusy."""
    deadline = clock() + PATIENCE_SECONDS
    while True:
        state = look()
        sign = busy(state) if state is not None else ""
        if not sign:
            return state
        if clock() >= deadline:
            raise DeviceBusy(f"the GPU {state.uuid if state else ''} {sign}; {_REMEDY}")
        pause(_LOOK_SECONDS)


def busy(state: DeviceState) -> str:
    """The sign that somebody else uses the device, to follow its name; "" without one."""
    if state.processes:
        shown = ", ".join(
            f"{one.pid}" + (f" ({one.memory_bytes >> 20} MiB)" if one.memory_bytes else "") for one in state.processes[:_SHOWN]
        )
        more = f" and {len(state.processes) - _SHOWN} more" if len(state.processes) > _SHOWN else ""
        return f"is in use by process {shown}{more}"
    if (state.memory_used_bytes or 0) > IDLE_MEMORY:
        return f"has {(state.memory_used_bytes or 0) >> 20} MiB in use by processes that cannot be seen from here"
    if (state.utilization_percent or 0) > IDLE_PERCENT:
        return f"is {state.utilization_percent} % busy with processes that cannot be seen from here"
    return ""
