"""What a run found, short enough to be read by relatives: runs that are not the same, but near."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import FailFast, Field, model_validator

from tuner_job.api.base import Model, digest_of
from tuner_job.api.beliefs import Dimension
from tuner_job.api.inputs import Owner, RuntimeIdentity
from tuner_job.api.measurement import Candidate, Device, Digest
from tuner_job.api.messages import Record, RunId
from tuner_job.api.outcome import Outcome

MOST_FOUND = 2000
MOST_FLIPS = 1000
"""Different flips in all candidates together: reading them costs memory by its square."""
MOST_OF_ONE = 256
"""Flips of one candidate."""


class Subject(Model):
    """What was tuned, on what: by this, relatives find each other and tell how near they are."""

    owner: Owner
    runtime: RuntimeIdentity
    device: Device
    models: Annotated[dict[Dimension, Digest], Field(min_length=1, max_length=256)]
    """Variant → digest."""
    structure: Digest
    """Of the base variant's graph (model.inspect)."""
    cases_digest: Digest
    """Of the shape cases."""

    @property
    def kin(self) -> tuple[str, str]:
        """Under which names its findings are kept: the graph's structure, and the job.

        So another version of a model is one that has the same graph and other weights (whatever job tunes it), or whatever the
        same job tunes next: who edits a job's model says that it is the same one. Models that only look alike are not sought.
        """
        return (
            digest_of(["structure", self.runtime.family, self.structure])[:40],
            digest_of(["owner", self.runtime.family, self.owner.model_dump(mode="json")])[:40],
        )


class Finding(Model):
    """One trial's end, as the search of its run saw it."""

    candidate: Candidate
    outcome: Outcome
    log_ratio: Annotated[float, Field(ge=-20, le=20)] | None = None
    """ln(latency / baseline latency) by the run's own metric; negative is faster."""
    sd: Annotated[float, Field(ge=0, le=20)] | None = None
    fingerprint: Annotated[str, Field(max_length=128)] = ""

    @model_validator(mode="after")
    def _check_flips(self) -> Self:
        tokens = self.candidate.route.split()
        if len(tokens) + len(self.candidate.settings) > MOST_OF_ONE or any("=" not in token for token in tokens):
            raise ValueError(f"a candidate is at most {MOST_OF_ONE} flips, each name=value")
        return self


class FindingsRecord(Record):
    """`ledger/kin/<kin>/<identity>-<run>.json`: what a run has found by the end of its exploration."""

    MAX_BYTES: ClassVar[int] = 4 << 20
    MAX_ITEMS: ClassVar[int] = 60_000

    kind: Literal["Findings"] = "Findings"
    identity: Digest
    run: RunId
    subject: Subject
    defaults: Annotated[dict[Dimension, Annotated[str, Field(max_length=256)]], Field(max_length=4096)]
    """Dimension → what leaving it away meant."""
    found: Annotated[tuple[Finding, ...], FailFast()] = Field(max_length=MOST_FOUND)
    """In the order of planning, the default as discover built it first."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        flips = {token for one in self.found for token in one.candidate.route.split()}
        flips |= {f"setting:{name}={value}" for one in self.found for name, value in one.candidate.settings.items()}
        if len(flips) > MOST_FLIPS:
            raise ValueError(f"{len(flips)} different flips; at most {MOST_FLIPS} are read")
        return self
