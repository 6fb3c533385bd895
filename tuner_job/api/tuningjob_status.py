"""Status of a TuningJob: a cache of what the store's records say, at most 64 KiB whatever the number of trials."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner_job.api.conditions import Conditions, ReasonWord, TargetConditions
from tuner_job.api.resource import ContentDigest, DottedName, Keyed, Name, Spec, Time

Count = Annotated[int, Field(ge=0)]
Run = Annotated[str, Field(max_length=20, pattern=r"^[0-9a-f]{20}$")]
Gain = Annotated[str, Field(max_length=16, pattern=r"^-?[0-9]{1,6}(\.[0-9]{1,6})?$")]
"""A relative gain as a decimal: `"0.12"` is 12 % less latency (or more throughput)."""
Progress = Annotated[str, Field(max_length=32)]


class TrialCounts(Spec):
    """Trials of the active or last run, by how they ended."""

    planned: Count = 0
    """Planned so far."""
    running: Count = 0
    """In hand now."""
    feasible: Count = 0
    """Built, accurate and timed."""
    infeasible: Count = 0
    """Built, but not accurate enough."""
    failed: Count = 0
    """Refused, crashed, hung, out of memory, invalid output, or lost to infrastructure."""
    unsupported: Count = 0
    """A knob or value that this device does not have."""
    cache_hits: Count = 0
    """Taken from the ledger; nothing ran."""


class PastRun(Spec):
    """A run that ended."""

    id: Run
    """20 hex digits."""
    trigger: Annotated[str, Field(max_length=24)]
    """Why it was started, at most 24 characters."""
    reason: ReasonWord
    """How it ended, as one stable CamelCase word of at most 32 letters."""
    finished_time: Time
    """When it ended (RFC 3339, UTC)."""


class Incumbent(Spec):
    """The best candidate so far, by data that is not proof."""

    variant: Name
    """Model variant; at most 63 characters."""
    route: Annotated[str, Field(max_length=384)]
    """Its route, cut to 384 characters (whole in the store); empty for the default."""
    gain: Gain
    """Relative gain over the baseline, a decimal: `"0.12"` is 12 %."""


class GainInterval(Spec):
    """An interval for a relative gain."""

    low: Gain
    """Lower end, a decimal."""
    high: Gain
    """Upper end, a decimal."""
    confidence: Annotated[str, Field(max_length=6, pattern=r"^0\.[0-9]{1,4}$")]
    """Its confidence (`"0.95"`)."""


class PublishedEngine(Spec):
    """What the pointer names."""

    uri: Annotated[str, Field(max_length=400)]
    """Where the engine's blob lies; at most 400 characters."""
    digest: ContentDigest
    """Of the engine."""
    manifest: ContentDigest
    """Of the manifest; what `publish.targets[].approvedDigest` and `pinnedDigest` name."""
    runtime: DottedName
    """TunerRuntime it was built by."""
    speedup: Gain | None = None
    """Proven relative gain, a decimal; absent when a default engine is published."""
    interval: GainInterval | None = None
    """Interval of `speedup`."""


class TargetStatus(Spec):
    """One target."""

    name: Name
    """The target's name; at most 63 characters."""
    conditions: TargetConditions = ()
    """At most 4, one of each type."""
    store: Annotated[str | None, Field(max_length=12, pattern=r"^[0-9a-f]{12}$")] = None
    """Store that its runs are in: first 12 hex digits of the SHA-256 of its URL with the namespace's prefix."""
    active_run: Run | None = None
    """Run under way: 20 hex digits."""
    recent_runs: Annotated[tuple[PastRun, ...], Keyed(most=10, key="id")] = ()
    """Last runs, newest first; at most 10."""
    trials: TrialCounts | None = None
    """Trials of the active run, or of the last."""
    incumbent: Incumbent | None = None
    """Best candidate of the active run."""
    published: PublishedEngine | None = None
    """What the pointer names."""
    awaiting_approval: ContentDigest | None = None
    """Manifest that waits for `publish.targets[].approvedDigest`."""
    gpu_seconds: Annotated[int | None, Field(ge=0)] = None
    """Device seconds that the active or last run used."""
    last_progress_time: Time | None = None
    """When a trial last ended (RFC 3339, UTC); written at most every 30 s."""
    progress: Progress | None = None
    """Trials ended of trials planned (`37/64`); at most 32 characters."""
    stopping_since: Time | None = None
    """Since when its workers are leaving (RFC 3339, UTC); who has not left after one trial's time is ended."""


Phase = Literal[
    "Pending", "Discovering", "Exploring", "Proving", "Publishing", "AwaitingApproval", "Done", "Suspended", "Stalled"
]


class TuningJobStatus(Spec):
    """What the operator observed."""

    observed_generation: Annotated[int | None, Field(ge=0)] = None
    """The `metadata.generation` that this status was derived from."""
    conditions: Conditions = ()
    """At most 12, one of each type. `Ready`, `Reconciling` and `Stalled` as kstatus reads them."""
    phase: Phase | None = None
    """For people: the least advanced of the targets' phases. Programs read conditions."""
    progress: Progress | None = None
    """Trials ended of trials planned over all targets (`37/64`); at most 32 characters."""
    best_speedup: Annotated[str | None, Field(max_length=16)] = None
    """Best proven gain of all targets, for people (`12.3%`); at most 16 characters."""
    targets: Annotated[tuple[TargetStatus, ...], Keyed(most=12)] = ()
    """One for each target of the spec; at most 12."""
