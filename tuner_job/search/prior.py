"""What is believed of flips before the first trial of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner_job.search.flips import Flip, Flips


@dataclass(frozen=True)
class Prior:
    """Beliefs of single flips and candidates to begin with. A flip that is not named is as any other.

    Beliefs may be wrong: a strategy must get over them by its own results.
    """

    live: Mapping[Flip, float] = field(default_factory=dict)
    """Flip → probability that it matters at all, between 0 and 1, both excluded."""
    effect: Mapping[Flip, float] = field(default_factory=dict)
    """Flip → expected log ratio if it matters; negative is faster. 0 for others."""
    failing: Mapping[Flip, float] = field(default_factory=dict)
    """Flip → probability that it fails alone, less than 1."""
    starts: tuple[Flips, ...] = ()
    """Candidates to try first, the most promising first: what won for relatives."""
