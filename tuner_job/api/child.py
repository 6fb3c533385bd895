"""The contract between the supervisor and the child process that touches an engine library.

The supervisor writes `request.json` into the child's scratch folder and starts it with that folder as its first argument.
The child writes a line of JSON `{"phase": "build"}` to file descriptor 3 whenever a phase begins, and
`report.json` (written aside, then renamed) at the end, then exits 0. When there is no space left for a report it exits with
EXIT_NO_SPACE. Standard output and error belong to the libraries: they are captured with a bound and never parsed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from tuner_job.api.base import Model
from tuner_job.api.layers import LayerProfile
from tuner_job.api.measurement import (
    BuilderSetting,
    Candidate,
    Device,
    DeviceState,
    Digest,
    EngineFile,
    Losses,
    Metric,
    Seconds,
    Timing,
)
from tuner_job.api.tensors import TensorSpec

REQUEST_FILE = "request.json"
REPORT_FILE = "report.json"
ENGINE_FILE = "engine"
TIMING_CACHE_FILE = "timing-cache"
PHASE_FD = 3
MAX_REPORT_BYTES = 64 << 20
"""A larger report is not read."""
EXIT_NO_SPACE = 74
"""Exit code of a child that could not write: no space or no quota left."""


RUNTIME_FAULT = "runtime"


class Phase(StrEnum):
    """What a child is doing; each phase has its own deadline."""

    START = "start"  # process start, import, device initialisation
    BUILD = "build"
    LOAD = "load"
    CHECK = "check"
    MEASURE = "measure"


class ShapeCase(Model):
    """One set of concrete input shapes with its weight in the objective."""

    name: str
    tensors: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    """Input name → dimensions at which this case is checked and timed (`opt`)."""
    minimum: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    maximum: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    weight: float = 1.0


class MeasureSettings(Model):
    """How an engine is timed. Defaults suit small models on a CPU; part of a result's identity."""

    metric: Literal["LatencyP50", "LatencyP99", "LatencyMean", "Throughput"] = "LatencyP50"
    streams: int = 1
    cuda_graph: bool = True
    """Ignored on CPUs."""
    transfers: bool = False
    """Count host-device copies into the number."""
    sessions: Annotated[int, Field(ge=1)] = 5
    """Sessions per engine."""
    session_seconds: Annotated[float, Field(gt=0)] = 0.1
    """A session lasts at least so long …"""
    session_samples: Annotated[int, Field(ge=1)] = 20
    """… and has at least so many samples."""
    warmup_seconds: Annotated[float, Field(ge=0)] = 0.2
    """Shortest warm-up; it goes on until windows agree."""
    warmup_limit_seconds: Annotated[float, Field(gt=0)] = 5.0
    """Longest warm-up."""
    allow_shared: bool = False
    """Measure also while other processes use the GPU."""


class Limits(Model):
    """What one child may use. None means no limit."""

    memory_bytes: int | None = None
    """Resident memory of the child and all its descendants, shared pages counted once."""
    disk_bytes: int | None = None
    """Size of its scratch folder."""
    processes: int | None = 4096
    """Processes and threads: stops fork bombs, and lies far above what the thread pools of many sessions on many cores need."""
    cpus: float | None = None
    log_bytes: int = 1 << 20
    """Captured output: the first and last half of this are kept."""
    phase_seconds: dict[Phase, float] = Field(
        default_factory=lambda: {
            Phase.START: 60.0,
            Phase.BUILD: 600.0,
            Phase.LOAD: 120.0,
            Phase.CHECK: 300.0,
            Phase.MEASURE: 300.0,
        }
    )
    """Deadline of each phase: seconds spent in it, over all its beginnings. A phase that is not named has none."""


class ChildRequest(Model):
    """One thing for a child to do.

    operation  what it does                                                                          report fields
    describe   device identity, knob list, builder settings                                          device, knobs, versions, …
    reference  run the unoptimised model on seeded inputs, write the references folder to `output`    losses.samples in `detail`
    trial      build → load → check → measure of `candidate`; engine to `<output>/engine`             engine, losses, timing
    build      as trial without measure                                                              engine, losses
    compile    build alone: the engine is neither loaded nor checked                                  engine
    time       load every file of `engines` and time random interleaved sessions                      timings
    inspect    load every file of `engines`: its layers, and the time that each takes                 layers

    Every report of a child on a GPU has the device's `state`. Builds write `<output>/timing-cache` where the backend has one.
    """

    operation: Literal["describe", "reference", "trial", "build", "compile", "time", "inspect"]
    backend: str
    """Name of the backend: `onnxruntime`, `tensorrt`, or an entry point of group `trtfleet.backends`."""
    device: Literal["CPU", "GPU"] = "CPU"
    model: str = ""
    """Path of the ONNX file of the candidate's variant; external data lies beside it."""
    cases: tuple[ShapeCase, ...] = ()
    """At least one, each with a shape for every input, and a range for every dynamic one (model.shapes.resolve_cases)."""
    candidate: Candidate = Candidate()
    references: str = ""
    """Folder of references (accuracy.references)."""
    references_digest: Digest | None = None
    metric: Metric = "l0"
    """Decides only which sample is called the worst."""
    atol: float = 1e-5
    rtol: float = 1e-5
    inputs: tuple[TensorSpec, ...] = ()
    """The model's inputs, for `reference` (accuracy.generate)."""
    samples: Annotated[int, Field(ge=1)] = 8
    """Samples per case, for `reference`."""
    outputs: tuple[str, ...] = ()
    """Outputs to check; empty means all."""
    measure: MeasureSettings = MeasureSettings()
    engines: dict[str, str] = Field(default_factory=dict)
    """Name → engine file, for `time` and `inspect`."""
    timing_cache: str = ""
    """File with the builder's timing cache to start from; empty: none."""
    race: tuple[float, ...] = ()
    """Of a trial: bounds in log seconds over which its timing ends early (measure.racing). Empty: it takes all sessions."""
    plugins: tuple[str, ...] = ()
    """Paths of plugin libraries, loaded before anything else."""
    seed: int = 0
    output: str
    """Folder that receives files. The caller names where it wants them; the child sees a folder inside its scratch folder, which
    the supervisor moves to that place once the report is good. Empty: nothing is kept."""


Failure = Literal["refused", "unsupported", "invalidInput", "outOfMemory", "failed", "busy", "noDevice"]


class ChildReport(Model):
    """What a child did. Only the supervisor turns it into an outcome."""

    status: Literal["ok", Failure]
    """`refused`: the builder returned nothing or said no; `invalidInput`: no candidate could work (bad model, shapes,
    references, backend); `failed`: an exception that the library raised while loading or running; `busy`: other processes use the
    device; `noDevice`: it does not answer, and `describe` says so as `failed`."""
    phase: Phase = Phase.START
    """The phase that ended it, when not ok."""
    reason: str = ""
    """One line for people, at most 2,000 characters."""
    seconds: dict[Phase, Seconds] = Field(default_factory=dict)
    device: Device | None = None
    knobs: str | None = None
    """The knob list as JSON text in TensorRT's `all_build_routes` form."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Library name → version, for the identity."""
    settings: tuple[BuilderSetting, ...] = ()
    """Builder settings that can be searched."""
    notes: tuple[str, ...] = ()
    """What a person should know of this library on this device, a line each."""
    state: DeviceState | None = None
    """The device before this child touched it."""
    engine: EngineFile | None = None
    losses: Losses | None = None
    timing: tuple[Timing, ...] = ()
    """One per shape case, in the request's order."""
    stopped_over: float | None = None
    """The bound of `race` that ended the timing early; None: it took all sessions."""
    timings: dict[str, tuple[Timing, ...]] = Field(default_factory=dict)
    """The same for every engine of `time`."""
    layers: dict[str, LayerProfile] = Field(default_factory=dict)
    """Of every engine of `inspect`."""
    detail: dict[str, str] = Field(default_factory=dict)
    """`fault`: RUNTIME_FAULT where the engine library is at fault and not the job."""
