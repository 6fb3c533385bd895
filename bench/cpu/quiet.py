"""Whether this machine is quiet enough to be timed on."""

from __future__ import annotations

import os
import resource
import time

import psutil

from tuner_job.api.base import InputError

LOAD_PER_CORE = 0.25
"""Load average over a minute, for each core, above which a machine is busy before anything is begun."""
OTHERS = 0.05
"""Share of the cores' time that other processes, and the host of a virtual machine, may take meanwhile."""
AA_SPREAD = 0.01
"""Standard deviation of the log medians of equal builds that a quiet machine keeps below."""

Load = tuple[float, float, float]
"""Averages over 1, 5 and 15 minutes."""


class Busy(InputError):
    """Somebody else uses this machine."""

    reason = "Busy"


def quiet_load(busy: bool) -> Load:
    """The load averages before anything is begun. Raises Busy where they are too high, unless `busy`."""
    load = os.getloadavg()
    limit = LOAD_PER_CORE * (psutil.cpu_count() or 1)
    if load[0] > limit and not busy:
        raise Busy(f"the load average of the last minute is {load[0]:.2f}; wait until it is below {limit:.2f}, or say --busy")
    return load


class Others:
    """How much of all cores others have taken since it was made: whatever this process and its ended children did not."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._taken = _taken()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def share(self) -> float:
        """0 to 1. A child counts as ours once it has ended."""
        return max(0.0, _taken() - self._taken) / (self.seconds * (psutil.cpu_count() or 1))


def _taken() -> float:
    """CPU seconds of all but this process and its children."""
    machine = psutil.cpu_times()
    busy = sum(getattr(machine, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return float(busy - sum(one.ru_utime + one.ru_stime for one in own))
