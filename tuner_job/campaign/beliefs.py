"""A search's prior as discover records it, and back."""

from __future__ import annotations

from collections.abc import Sequence

from tuner_job.api.beliefs import MOST_FLIPS, Beliefs, FlipBelief, Start
from tuner_job.search.posterior import prior_chance
from tuner_job.search.prior import Prior
from tuner_job.search.relatives import ORDINARY_FAILING, WarmStart
from tuner_job.search.space import Flip, Flips, Space


def beliefs_of(warm: WarmStart, relatives: Sequence[str]) -> Beliefs:
    """At most MOST_FLIPS flips: those of which something unusual is believed."""
    prior = warm.prior

    def unusual(flip: Flip) -> float:
        chance = prior_chance(flip)
        return abs(prior.live.get(flip, chance) - chance) + abs(prior.failing.get(flip, ORDINARY_FAILING) - ORDINARY_FAILING)

    flips = sorted(prior.live.keys() | prior.effect.keys() | prior.failing.keys(), key=lambda flip: (-unusual(flip), flip))
    return Beliefs(
        relatives=tuple(relatives),
        flips=tuple(
            FlipBelief(
                dimension=flip.dimension,
                value=flip.value,
                live=prior.live.get(flip),
                effect=prior.effect.get(flip),
                failing=prior.failing.get(flip),
            )
            for flip in sorted(flips[:MOST_FLIPS])
        ),
        starts=tuple(
            Start(flips={flip.dimension: flip.value for flip in sorted(flips)}, origin=origin)
            for flips, origin in zip(prior.starts, warm.origins, strict=True)
        ),
    )


def prior_of(beliefs: Beliefs, space: Space) -> Prior:
    """What is believed of the space's own flips."""
    inside = set(space.flips)
    known = {flip: one for one in beliefs.flips if (flip := Flip(one.dimension, one.value)) in inside}
    return Prior(
        live={flip: one.live for flip, one in known.items() if one.live is not None},
        effect={flip: one.effect for flip, one in known.items() if one.effect is not None},
        failing={flip: one.failing for flip, one in known.items() if one.failing is not None},
        starts=tuple(flips for start in beliefs.starts if (flips := _flips(start)) <= inside),
    )


def origins_of(beliefs: Beliefs, space: Space) -> dict[str, str]:
    """Candidate id → whose best it was, for candidates to start with."""
    inside = set(space.flips)
    return {space.candidate(_flips(one)).id: one.origin for one in beliefs.starts if _flips(one) <= inside}


def _flips(start: Start) -> Flips:
    return frozenset(Flip(dimension, value) for dimension, value in start.flips.items())
