"""What a run is made from: owner, runtime, model, accuracy, search. Frozen in `run.json`; their digest names the run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tuner_job.api.base import Model
from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.measurement import Digest


class Owner(Model):
    """The TuningJob that a run belongs to. A recreated job of the same name is the same owner."""

    cluster: str = "local"
    namespace: str = "default"
    name: str

    def __str__(self) -> str:
        return f"{self.cluster}/{self.namespace}/{self.name}"


class RuntimeIdentity(Model):
    """The engine family and version that the workers must be."""

    family: Literal["TensorRT", "ONNXRuntime"]
    version: str
    image_digest: str = ""

    @property
    def backend(self) -> str:
        """Name of the backend entry point."""
        return self.family.lower()


class VariantInput(Model):
    """One model variant, frozen."""

    name: str = "default"
    uri: str
    digest: Digest | None = None
    """SHA-256 over the ONNX file and its external data (model.digest)."""


class PluginInput(Model):
    """One plugin library, frozen."""

    uri: str
    digest: Digest
    """SHA-256 of the file."""


class AccuracyInput(Model):
    """Where references come from and what is judged."""

    source: Literal["References", "Generated"]
    uri: str = ""
    digest: Digest | None = None
    """Of the user's references, if the job names it."""
    samples: int = 8
    """Samples to generate per shape case."""
    metric: Literal["l0", "l1", "l2", "lInf", "cosine"] = "l0"
    atol: float = 1e-5
    rtol: float = 1e-5
    threshold: float
    """The final gate: a loss at or over it fails."""
    screening_threshold: float
    """The gate during explore; never tighter than `threshold`."""
    outputs: tuple[str, ...] = ()


class SearchInput(Model):
    """What to try, and how much."""

    strategy: str = "Adaptive"
    """Adaptive, OneAtATime, Mixed, Full, Expression, or the name of an entry point of group `trtfleet.strategies`."""
    expression: str = ""
    options: dict[str, str] = Field(default_factory=dict)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    values: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    settings: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Builder settings to search: name → values."""
    start_with: tuple[str, ...] = ()
    """Routes that are tried before any other."""
    warm_start: Literal["Ledger", "None"] = "Ledger"
    max_trials: int = 100
    device_seconds: float = 0.0
    """Budget over all workers of the run; 0 means none. The final's share is reserved from it."""
    deadline_seconds: float = 0.0
    trial_seconds: float = 900.0
    round_deadline_seconds: float = 0.0
    """A round is sealed so long after a worker first saw its plan; 0 means 4 × trial_seconds."""


class RunInputs(Model):
    """Everything that decides what a run would find. Its digest decides whether a new run is needed."""

    runtime: RuntimeIdentity
    device_type: Literal["CPU", "GPU"] = "CPU"
    variants: tuple[VariantInput, ...] = Field(min_length=1)
    cases: tuple[ShapeCase, ...] = ()
    """Empty: the model's own static shapes."""
    min_improvement: float
    """Relative: 0.01 means that the winner must be proven more than 1 % faster."""
    constraints: dict[str, float] = Field(default_factory=dict)
    """Bounds that a winner must keep, by metric: seconds (latencies), inferences a second (Throughput), bytes (EngineSize)."""
    measure: MeasureSettings
    accuracy: AccuracyInput
    search: SearchInput
    plugins: tuple[PluginInput, ...] = ()
    hardware: dict[str, str] = Field(default_factory=dict)
    """What the target asks of its device: `product`, `migProfile`, `count`, `label/<node label>`, `claim/<name>`. Empty: any."""
