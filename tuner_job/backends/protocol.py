"""What an engine library must offer to be tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.measurement import Candidate, Device

Tensors = Mapping[str, npt.NDArray[np.generic]]


class BuildRefused(Exception):
    """The builder returned nothing or said no. The message is the reason, with the library's own log lines."""


class Unsupported(Exception):
    """The candidate names a knob or value that this device's knob list does not have."""


class BadModel(Exception):
    """No candidate could work: the file, its shapes or its operators are at fault."""


class Timer(Protocol):
    """Times inferences on inputs that it holds already."""

    clock: Literal["device", "host"]
    launch: Literal["direct", "cudaGraph"]

    def sample(self, count: int) -> npt.NDArray[np.float64]:
        """`count` latencies in seconds, shape (count,), one after the other.

        With `streams` > 1: time per inference under that load.
        """
        ...

    def throttled(self) -> bool:
        """Whether the device reported thermal or hardware slowdown since the last call."""
        ...


class Engine(Protocol):
    """A loaded engine."""

    def run(self, inputs: Tensors) -> dict[str, npt.NDArray[np.generic]]:
        """One inference; arrays are copies in host memory."""
        ...

    def timer(self, inputs: Tensors, settings: MeasureSettings) -> Timer: ...

    def close(self) -> None: ...


class Backend(Protocol):
    """One engine library on one device. Made once per child, from `ChildRequest.device`."""

    name: str

    def identify(self) -> Device: ...

    def versions(self) -> dict[str, str]:
        """Library name → version; the one under this backend's `name` is the runtime's own."""
        ...

    def knob_list(self) -> str:
        """JSON text in TensorRT's `all_build_routes` form."""
        ...

    def build(self, model: Path, cases: Sequence[ShapeCase], candidate: Candidate, engine: Path) -> str:
        """Write the engine file; returns its fingerprint ("" if it has none).

        Raises BuildRefused, Unsupported or BadModel.
        """
        ...

    def load(self, engine: Path) -> Engine: ...

    def reference(self, model: Path) -> Engine:
        """The model with every optimisation off, on the CPU: the source of generated references."""
        ...
