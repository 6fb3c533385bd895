"""What an engine library must offer to be tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from tuner_job.api.base import TrtfleetError
from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.layers import LayerProfile
from tuner_job.api.measurement import BuilderSetting, Candidate, Device, DeviceState
from tuner_job.measure.sampling import Aside

Tensors = Mapping[str, npt.NDArray[np.generic]]


class BuildRefused(Exception):
    """The builder returned nothing or said no. The message is the reason, with the library's own log lines."""


class Unsupported(Exception):
    """The candidate names a knob or value that this device's knob list does not have."""


class BadModel(Exception):
    """No candidate could work: the file, its shapes or its operators are at fault."""


class DeviceBusy(Exception):
    """Other processes use the device, so nothing measured now would be worth keeping."""


class NoDevice(TrtfleetError):
    """The device does not answer, whatever it is asked to run: no candidate is at fault."""

    reason = "NoDevice"


class Cancelled(Exception):
    """The build was told by SIGTERM to stop, and did: the supervisor knows why."""


@dataclass(frozen=True)
class BuildOrder:
    """What to build."""

    model: Path
    cases: Sequence[ShapeCase]
    candidate: Candidate
    engine: Path
    """Where the engine file goes."""
    timing_cache: Path | None = None
    """To start from."""
    timing_cache_out: Path | None = None
    """Where the cache goes that this build leaves, if the library has one."""


class Timer(Protocol):
    """Times inferences on inputs that it holds already."""

    clock: Literal["device", "host"]
    launch: Literal["direct", "cudaGraph"]

    def sample(self, count: int) -> npt.NDArray[np.float64]:
        """`count` latencies in seconds, shape (count,), one after the other.

        With `streams` > 1: time per inference under that load.
        """
        ...

    def aside(self) -> Aside:
        """What went on since the last call."""
        ...


class Engine(Protocol):
    """A loaded engine."""

    def run(self, inputs: Tensors) -> dict[str, npt.NDArray[np.generic]]:
        """One inference; arrays are copies in host memory."""
        ...

    def timer(self, inputs: Tensors, settings: MeasureSettings) -> Timer: ...

    def profile(self, inputs: Tensors) -> LayerProfile:
        """Its layers, timed one by one where the library can."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """One engine library on one device. Made once per child, from `ChildRequest.device`."""

    name: str

    def state(self) -> DeviceState | None:
        """The device before this process touches it, so to be asked first; None for CPUs."""
        ...

    def identify(self) -> Device: ...

    def load_plugins(self, paths: Sequence[Path]) -> None:
        """Before any build or load. Raises BadModel for a library that cannot be loaded, or where there are no plugins."""
        ...

    def versions(self) -> dict[str, str]:
        """Library name → version; the one under this backend's `name` is the runtime's own."""
        ...

    def knob_list(self) -> str:
        """JSON text in TensorRT's `all_build_routes` form; without knobs it says why (routes.knobs.no_knobs)."""
        ...

    def settings(self) -> tuple[BuilderSetting, ...]:
        """Builder settings beside knobs."""
        ...

    def notes(self) -> tuple[str, ...]:
        """What a person should know of this library here, a line each."""
        ...

    def build(self, order: BuildOrder) -> str:
        """Write the engine file; returns its fingerprint ("" if it has none).

        Raises BuildRefused, Unsupported, BadModel or Cancelled.
        """
        ...

    def load(self, engine: Path) -> Engine: ...

    def reference(self, model: Path) -> Engine:
        """The model with every optimisation off, on the CPU: the source of generated references."""
        ...
