"""The one candidate that goes to the final."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner_job.api.measurement import Candidate
from tuner_job.search.posterior import Posterior
from tuner_job.search.rounds import History, Observation
from tuner_job.search.space import Space

SMALLEST_GAIN = 0.001
"""No final can prove less."""
_TIE = 0.0005
"""Estimates so near to each other (log units) are equal: the simpler candidate is picked."""


@dataclass(frozen=True, slots=True)
class Pick:
    """What to prove."""

    candidate: Candidate
    gain: float
    """Expected relative gain, 0.1: 10 % less latency. Shrunken, but from the data that chose: never to be published."""


def pick(history: Sequence[Observation], space: Space, build_sd: float) -> Pick | None:
    """The candidate with the best shrunken estimate, the fewest flips among equals; None when nothing is credibly faster.

    Estimates are pooled over rebuilds and equal fingerprints, and shrunken towards what the candidate's flips predict; these are
    shrunken towards 0 (`sparse`). `build_sd` (log units) is a floor of each observation's standard error.
    """
    floored = [o if o.sd is None else replace(o, sd=max(o.sd, build_sd)) for o in history]
    posterior = Posterior(History(space, floored))
    leaders = [t for t in posterior.tried if t.stack]
    if not leaders or leaders[0].estimate > math.log1p(-SMALLEST_GAIN):
        return None
    equals = [t for t in leaders if t.estimate <= leaders[0].estimate + _TIE]
    best = min(equals, key=lambda t: (len(t.stack), round(t.estimate, 9), sorted(t.stack)))
    return Pick(space.candidate(posterior.named(best.stack)), -math.expm1(best.estimate))
