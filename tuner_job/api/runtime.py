"""TunerRuntime: what builds and runs engines. TunerChannel: a name that moves from one runtime to the next."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tuner_job.api.conditions import Conditions
from tuner_job.api.resource import AGE_COLUMN, READY_COLUMNS, Column, Naming, Reference, Resource, Rule, Spec


class TunerRuntimeSpec(Spec):
    """An engine family at one version. It never changes: results and published engines are filed under it."""

    family: Literal["TensorRT", "ONNXRuntime"]
    """The engine library."""
    version: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[0-9A-Za-z]([-0-9A-Za-z._]*[0-9A-Za-z])?$")]
    """Version of the engine library, as it names itself (`11.2.1.2`); at most 63 characters. Pointers are kept per version."""
    image: Annotated[str | None, Field(max_length=512, pattern=r"^[^\s@]+@sha256:[0-9a-f]{64}$")] = None
    """Worker image with its digest (`registry/name@sha256:…`), at most 512 characters. Pods need it; a local run takes what is
    installed."""

    transitions: ClassVar[tuple[Rule, ...]] = (Rule("self == oldSelf", "a TunerRuntime never changes; create another one"),)


class PlainStatus(Spec):
    """What the operator observed."""

    observed_generation: Annotated[int | None, Field(ge=0)] = None
    """The `metadata.generation` that this status was derived from."""
    conditions: Conditions = ()
    """At most 12, one of each type; `Ready` sums them up."""


class TunerRuntime(Resource):
    """A version of an engine library and the image that holds it."""

    naming: ClassVar[Naming] = Naming(
        plural="tunerruntimes",
        scope="Cluster",
        short_names=("tr",),
        columns=(Column("Family", ".spec.family"), Column("Version", ".spec.version"), *READY_COLUMNS, AGE_COLUMN),
        selectable=(".spec.family", ".spec.version"),
    )

    kind: Literal["TunerRuntime"] = "TunerRuntime"
    spec: TunerRuntimeSpec
    """The runtime; immutable."""
    status: PlainStatus | None = None
    """What the operator observed."""


class TunerChannelSpec(Spec):
    """Where a channel points."""

    runtime_ref: Reference
    """The TunerRuntime that followers are tuned for. Moving it makes their engines stale."""


class TunerChannel(Resource):
    """A name (`stable`) that targets follow from one runtime to the next."""

    naming: ClassVar[Naming] = Naming(
        plural="tunerchannels",
        scope="Cluster",
        short_names=("tch",),
        columns=(Column("Runtime", ".spec.runtimeRef.name"), *READY_COLUMNS, AGE_COLUMN),
        selectable=(".spec.runtimeRef.name",),
    )

    kind: Literal["TunerChannel"] = "TunerChannel"
    spec: TunerChannelSpec
    """Where the channel points."""
    status: PlainStatus | None = None
    """What the operator observed."""
