"""What a run believes of single flips before its first trial, as discover writes it down."""

from __future__ import annotations

from typing import Annotated

from pydantic import FailFast, Field

from tuner_job.api.base import Model

MOST_FLIPS = 2000
MOST_STARTS = 8

Dimension = Annotated[str, Field(min_length=1, max_length=256)]
Probability = Annotated[float, Field(gt=0, lt=1)]


class FlipBelief(Model):
    """Of one flip; what is absent is as for any other."""

    dimension: Dimension
    """A knob's name, `setting:<name>`, or `variant`."""
    value: Dimension
    live: Probability | None = None
    """Probability that it matters."""
    effect: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Expected log ratio if it matters; negative is faster."""
    failing: Probability | None = None
    """Probability that it fails alone."""


class Start(Model):
    """A candidate to try first."""

    flips: Annotated[dict[Dimension, Dimension], Field(min_length=1, max_length=1024)]
    """Dimension → value."""
    origin: Annotated[str, Field(max_length=512)]
    """Whose best it was, for people."""


class Beliefs(Model):
    """Guesses: from results of relatives, and from the operators in the model. A search gets over wrong ones."""

    relatives: Annotated[tuple[Annotated[str, Field(max_length=512)], ...], Field(max_length=16)] = ()
    """Whose results were read, for people, the nearest first."""
    flips: Annotated[tuple[FlipBelief, ...], FailFast()] = Field(default=(), max_length=MOST_FLIPS)
    starts: Annotated[tuple[Start, ...], FailFast()] = Field(default=(), max_length=MOST_STARTS)
