"""What a trial measured, as it is stored: device, timings, losses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import FailFast, Field

from tuner_job.api.base import Model, digest_of

Seconds = Annotated[float, Field(ge=0)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

Metric = Literal["l0", "l1", "l2", "lInf", "cosine"]
"""Which loss of an output is judged."""

PROTOCOL_VERSION = 1
"""Version of the way in which timings and losses are taken. Part of a result's identity: raise it when numbers change meaning."""


MOST_SAMPLES = 100_000
"""Kept of one engine over all its sessions and shape cases, so that its records stay within their bounds."""


class Candidate(Model):
    """What a trial tries."""

    variant: str = "default"
    """Name of the model variant; `default` is `model.uri` itself."""
    route: str = ""
    """Canonical route; empty is the true default."""
    settings: dict[str, str] = Field(default_factory=dict)
    """Builder settings other than knobs, by name."""

    @property
    def id(self) -> str:
        """20 hex digits that name the candidate in keys."""
        return digest_of(self.to_json())[:20]

    @property
    def is_baseline(self) -> bool:
        """Whether this is the empty route of the unchanged model under default settings."""
        return self == BASELINE


BASELINE = Candidate()


class Device(Model):
    """The device class that a result belongs to (what discover freezes), as its backend names it."""

    type: Literal["CPU", "GPU"]
    product: str
    """GPU product or CPU model name."""
    count: int = 1
    """GPUs, or the CPU cores that the process may use."""
    mig_profile: str = ""
    compute_capability: str = ""
    """`9.0` for CUDA devices; the SIMD features that matter, comma separated, for CPUs."""
    driver: str = ""
    """GPU driver version, or kernel release for CPUs."""

    @property
    def class_id(self) -> str:
        """12 hex digits; equal ids may share results."""
        return digest_of(self.to_json())[:12]


class GpuProcess(Model):
    """Another process that holds memory of the GPU."""

    pid: int
    """As the driver numbers it: in a container that may be the host's number."""
    memory_bytes: int | None = None


class DeviceState(Model):
    """A GPU as NVML saw it before this process touched it. None: the device or driver does not say."""

    uuid: str = ""
    vbios: str = ""
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    default_power_limit_watts: float | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    throttle_reasons: tuple[str, ...] = ()
    """NVML's names in lower camel case: `swPowerCap`, `hwSlowdown`, `swThermalSlowdown`, …"""
    utilization_percent: int | None = None
    """Share of the last sample period in which a kernel ran."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    processes: Annotated[tuple[GpuProcess, ...], FailFast()] = Field(default=(), max_length=1024)
    """Those that hold a context on it."""


class BuilderSetting(Model):
    """A builder setting other than a knob, as a backend offers it."""

    name: str
    """As `spec.search.builder.settings` names it: `optimizationLevel`."""
    values: tuple[str, ...] = ()
    """All that it allows; empty for a whole number from `low` to `high`."""
    low: int = 0
    high: int = 0
    default: str = ""
    """What leaving it away means, for people."""
    help: str = ""

    def accepts(self, value: str) -> bool:
        """Whether the value may be set."""
        if self.values:
            return value in self.values
        return value.isascii() and value.removeprefix("-").isdigit() and len(value) < 20 and self.low <= int(value) <= self.high

    @property
    def allowed(self) -> str:
        """What `accepts` accepts, for people."""
        return ", ".join(self.values) if self.values else f"a whole number from {self.low} to {self.high}"


class Session(Model):
    """One uninterrupted series of timed inferences."""

    at: Seconds
    """Start, in seconds since the measuring child's first session (monotonic)."""
    median: Annotated[float, Field(gt=0)]
    """Median latency in seconds."""
    mean: Annotated[float, Field(gt=0)]
    """Mean latency in seconds."""
    count: Annotated[int, Field(ge=1)]
    """Number of samples that are kept."""
    samples: str
    """Every sample, or evenly spaced ones where there were too many (MOST_SAMPLES): base64 of zlib of little-endian float32
    seconds (measure.samples packs and unpacks)."""
    throttled: bool = False
    """The device reported thermal or hardware slowdown meanwhile: never used in a decision."""
    power_capped: bool = False
    """The device ran at its software power cap meanwhile: normal on some cards, so recorded and used."""
    host_median: Annotated[float, Field(gt=0)] | None = None
    """Median host wall time in seconds from launch to completion, where `clock` is the device's."""


class Timing(Model):
    """All sessions of one engine in one process."""

    clock: Literal["device", "host"]
    """What is inside the number: device events around the compute, or host wall time around the whole call."""
    launch: Literal["direct", "cudaGraph"] = "direct"
    streams: int = 1
    warmup_seconds: Seconds = 0.0
    warmup_settled: bool = True
    """False when windows still disagreed when the warm-up limit came."""
    sessions: Annotated[tuple[Session, ...], FailFast()] = Field(min_length=1)


class OutputLoss(Model):
    """Losses of one output under trtexec's definitions, the worst over all samples and shapes."""

    output: str
    worst_sample: str
    """Name of the sample with the largest loss of the metric that is judged."""
    l0: float
    """Share of elements with |a-r| > atol + rtol*|r|."""
    l1: float
    """mean |a-r|."""
    l2: float
    """mean (a-r)^2."""
    l_inf: float
    """max |a-r|."""
    cosine: float
    """1 - cosine similarity, 0 to 2. A norm below 1e-12 counts as zero: 0.0 if both are, else 1.0; but 0.0 for a zero reference
    when max |a| <= atol, since no direction exists to be missed."""


class Losses(Model):
    """Accuracy of one engine. The verdict is derived from it, never stored."""

    references_digest: Digest
    samples: int
    """Samples compared (over all shapes)."""
    atol: float
    rtol: float
    outputs: Annotated[tuple[OutputLoss, ...], FailFast()] = ()
    problems: tuple[str, ...] = ()
    """What made the output invalid (NaN, Inf, shape, dtype, missing), a line each, at most 20. Not empty: invalidOutput."""


class EngineFile(Model):
    """A built engine as bytes."""

    digest: Digest
    size: Annotated[int, Field(ge=1)]
    """Bytes."""
    fingerprint: str = ""
    """Digest of what the engine computes, without bytes that differ from build to build; equal means the same engine."""
