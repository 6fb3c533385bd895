"""How a TuningJob judges: what better means, how engines are timed, what is accurate enough."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner_job.api.resource import ContentDigest, Distinct, Fraction, Keyed, PositiveDecimal, Spec, Uri, Word, rule

Metric = Literal["LatencyP50", "LatencyP99", "LatencyMean", "Throughput"]


class Constraint(Spec):
    """A bound that a winner must keep."""

    metric: Literal["LatencyP50", "LatencyP99", "LatencyMean", "Throughput", "EngineSize"]
    """What is bounded."""
    limit: PositiveDecimal
    """A decimal above 0: at most so many seconds (latencies) or bytes (EngineSize), at least so many inferences a second
    over all streams (Throughput); in every shape case."""


class Objective(Spec):
    """What better means."""

    metric: Metric | None = None
    """What is compared; absent means LatencyP50."""
    min_improvement: Fraction | None = None
    """Relative gain that the winner must be proven to exceed, a decimal from 0 to below 1; absent means `"0.01"` (1 %)."""
    constraints: Annotated[tuple[Constraint, ...], Keyed(most=5, key="metric")] = ()
    """Bounds that a winner must keep; at most 5."""


class Measurement(Spec):
    """How engines are timed. Whatever is absent follows metric and device."""

    streams: Annotated[int | None, Field(ge=1, le=64)] = None
    """Inferences in flight at once, 1 to 64; absent means 1."""
    cuda_graph: bool | None = None
    """Launch as one CUDA graph, as production should; absent means true. Ignored on CPUs."""
    transfers: bool = False
    """Count host-device copies into the number."""
    sessions: Annotated[int | None, Field(ge=1, le=1000)] = None
    """Sessions per engine, 1 to 1,000; absent means 5."""
    session_milliseconds: Annotated[int | None, Field(ge=1, le=60_000)] = None
    """A session lasts at least so many milliseconds, 1 to 60,000; absent means 100."""
    session_samples: Annotated[int | None, Field(ge=1, le=100_000)] = None
    """A session has at least so many samples, 1 to 100,000; absent means 20, or 5,000 over all
    sessions where LatencyP99 is the metric or a constraint. At most 100,000 over all sessions and shapes."""
    warmup_milliseconds: Annotated[int | None, Field(ge=0, le=60_000)] = None
    """Shortest warm-up in milliseconds, 0 to 60,000; absent means 200. It goes on until windows agree."""
    warmup_limit_milliseconds: Annotated[int | None, Field(ge=1, le=600_000)] = None
    """Longest warm-up in milliseconds, 1 to 600,000; absent means 5,000."""

    @rule(
        "(has(self.warmupMilliseconds) ? self.warmupMilliseconds : 200)"
        " <= (has(self.warmupLimitMilliseconds) ? self.warmupLimitMilliseconds : 5000)",
        "warmupMilliseconds (absent: 200) is over warmupLimitMilliseconds (absent: 5,000)",
    )
    def _warmup_within_limit(self) -> bool:
        shortest = 200 if self.warmup_milliseconds is None else self.warmup_milliseconds
        return shortest <= (5000 if self.warmup_limit_milliseconds is None else self.warmup_limit_milliseconds)


class ReferenceFiles(Spec):
    """Reference inputs and outputs that the user supplies."""

    uri: Uri
    """Folder or archive (npz, npy, raw, ONNX test_data_set_N); at most 512 characters."""
    digest: ContentDigest | None = None
    """SHA-256 of the references, checked after fetching; of a folder, of what `sha256sum` prints for its files by relative path,
    sorted (`find * -type f | LC_ALL=C sort | xargs sha256sum | sha256sum`)."""


class GeneratedReferences(Spec):
    """References from the unoptimised model on seeded inputs."""

    samples: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Samples per shape, 1 to 1,024; absent means 8."""


class Accuracy(Spec):
    """The gate that every engine must pass."""

    source: Literal["References", "Generated"]
    """Where the right outputs come from."""
    references: ReferenceFiles | None = None
    """For source References, and only for it."""
    generated: GeneratedReferences | None = None
    """For source Generated, and only for it; may be absent."""
    metric: Literal["l0", "l1", "l2", "lInf", "cosine"] | None = None
    """Loss, as trtexec defines it: l0 share of elements off by more than atol + rtol·|r|, l1 mean |a-r|, l2 mean (a-r)²,
    lInf max |a-r|, cosine 1 - cosine similarity. Metric and threshold are given together; absent means cosine and `"0.001"`."""
    threshold: PositiveDecimal | None = None
    """A loss at or over it fails the final gate; a decimal above 0, in the metric's own unit."""
    screening_threshold: PositiveDecimal | None = None
    """The looser gate while exploring, a decimal at or above `threshold`; absent means 4 × threshold."""
    atol: PositiveDecimal | None = None
    """Absolute tolerance of l0, a decimal above 0; absent means `"1e-5"`."""
    rtol: PositiveDecimal | None = None
    """Relative tolerance of l0, a decimal above 0; absent means `"1e-5"`."""
    outputs: Annotated[tuple[Word, ...], Distinct(most=64)] = ()
    """Outputs that are judged; at most 64 names of at most 128 characters; absent means all."""

    @rule(
        "(self.source == 'References') == has(self.references)",
        "source References goes with `references`, and only it",
        field_path=".references",
    )
    def _references_for_references(self) -> bool:
        return (self.source == "References") == (self.references is not None)

    @rule(
        "self.source == 'Generated' || !has(self.generated)", "generated goes with source Generated only", field_path=".generated"
    )
    def _generated_for_generated(self) -> bool:
        return self.source == "Generated" or self.generated is None

    @rule(
        "has(self.metric) == has(self.threshold)",
        "a threshold means nothing without its metric: give both, or neither",
    )
    def _metric_with_threshold(self) -> bool:
        return (self.metric is None) == (self.threshold is None)

    @rule(
        "!has(self.screeningThreshold)"
        " || double(self.screeningThreshold) >= (has(self.threshold) ? double(self.threshold) : 0.001)",
        "screeningThreshold must not be tighter than threshold (absent: 0.001)",
        field_path=".screeningThreshold",
    )
    def _screening_is_looser(self) -> bool:
        return self.screening_threshold is None or float(self.screening_threshold) >= float(self.threshold or "0.001")

    @rule(
        "!(has(self.atol) || has(self.rtol)) || (has(self.metric) && self.metric == 'l0')",
        "atol and rtol belong to metric l0 only",
    )
    def _tolerances_for_l0(self) -> bool:
        return (self.atol is None and self.rtol is None) or self.metric == "l0"
