"""What results of relatives make believe before the first trial: runs of a like model, device, runtime, or older knob list.

A relative's results are fitted as its own search would fit them (`Posterior`), against its own defaults, and then told in terms
of this run's space:

- knobs are matched by name, values as they are written; what this space does not have is passed over, and nothing is believed of
  what the relative did not have or did not try;
- where a default has changed, an effect is the difference to the new default: the relative's empty route stands for the old
  default, here a flip, and its flip to the new default for none. Without a result of the new default there is no difference;
- whatever is believed is pulled back towards what is believed of any flip, by as much as the relative is not trusted. Relatives
  that agree add up, those that do not meet in the middle, and none makes anything certain.

A misleading relative costs the trials of its starts, and a search that looks in the wrong places first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner_job.api.measurement import BASELINE
from tuner_job.routes.knobs import KnobList
from tuner_job.search.failures import Failures, Stack
from tuner_job.search.families import factors
from tuner_job.search.noise import Array
from tuner_job.search.pick import SMALLEST_GAIN
from tuner_job.search.posterior import Posterior, prior_chance
from tuner_job.search.prior import Prior
from tuner_job.search.rounds import History, Observation
from tuner_job.search.space import VARIANT, Flip, Flips, Space

ORDINARY_FAILING = Failures((), ()).rate
"""Chance that a flip fails alone of which nothing is known."""
LEAST_LIVE, MOST_LIVE = 0.01, 0.9
"""Of mattering; but what is believed of any flip of a kind stands where it is more."""
LEAST_FAILING, MOST_FAILING = 0.005, 0.25
"""Of failing alone, however sure relatives are. Adaptive puts nothing together that fails too often (`_GROUP_FAILURES`): a flip
that is believed to do so alone would hardly be tried, and so never cleared. This is less, and leaves room for company."""
MOST_EFFECT = 0.3
"""Log units. A larger one is an outlier of the relative, or its timings were."""
_NEEDLESS = -0.0005
"""A flip of a start that is expected to gain less (log units) is needless, as far as the relative can tell."""
STARTS = 4
STARTS_OF_ONE = 2
"""Others of a relative are variations of its best."""


@dataclass(frozen=True)
class Relative:
    """Results under another identity."""

    name: str
    """For people; tells relatives apart."""
    trust: float
    """How far what it found is expected to hold here, 0 to 1."""
    defaults: Mapping[str, str]
    """Its dimensions → what leaving them away means: `defaults_of` its space."""
    observations: Sequence[Observation]

    @property
    def space(self) -> Space:
        """Enough of its space to read its candidates as flips."""
        return Space(KnobList("relative", ()), variants=(self.defaults.get(VARIANT, BASELINE.variant),))


@dataclass(frozen=True)
class WarmStart:
    """A prior, and where its starts come from."""

    prior: Prior
    origins: tuple[str, ...] = ()
    """Of each start: the name of the relative."""


def defaults_of(space: Space) -> dict[str, str]:
    """Every knob of the list, searched or not, and the variant. Builder settings have no default that is known by value."""
    return {**{knob.name: knob.default for knob in space.knobs.knobs}, VARIANT: space.base}


def warm_start(space: Space, relatives: Sequence[Relative], operators: Collection[str] = ()) -> WarmStart:
    """Beliefs of the space's flips from relatives (in any order) and from the operator types in the model.

    Numbers are rounded, so that the order of sums does not show.
    """
    order = sorted(relatives, key=lambda one: (-one.trust, one.name))
    known = [_Told(space, one) for one in order if one.trust > 0 and any(History(one.space, one.observations).flips)]
    guesses = factors(space.flips, operators)
    live: dict[Flip, float] = {}
    effect: dict[Flip, float] = {}
    failing: dict[Flip, float] = {}
    for flip in space.flips:
        base = prior_chance(flip) * guesses.get(flip, 1.0)
        draws = [(one.trust, samples) for one in known if (samples := one.samples(flip)) is not None]
        if draws or flip in guesses:
            lives = [(trust, float((samples != 0).mean())) for trust, samples in draws]
            live[flip] = round(min(max(MOST_LIVE, base), max(LEAST_LIVE, _pulled(base, lives))), 6)
            if size := _effect(draws, lives):
                effect[flip] = size
        if blamed := [(one.trust, min(blame, MOST_FAILING)) for one in known if (blame := one.blame(flip)) is not None]:
            failing[flip] = round(max(LEAST_FAILING, _pulled(ORDINARY_FAILING, blamed)), 6)
    starts = _starts(known)
    return WarmStart(Prior(live, effect, failing, tuple(starts)), tuple(starts.values()))


def _pulled(base: float, told: Sequence[tuple[float, float]]) -> float:
    """The base, moved by what each relative says times its trust; at most to their mean, however many there are."""
    return base + sum(trust * (value - base) for trust, value in told) / max(1.0, sum(trust for trust, _ in told))


def _effect(draws: Sequence[tuple[float, Array]], lives: Sequence[tuple[float, float]]) -> float:
    """Mean size if it matters, over relatives by trust, times their trust in all (at most 1)."""
    matters = sum(trust * share for trust, share in lives)
    if matters <= 0:
        return 0.0
    mean = sum(trust * float(samples.mean()) for trust, samples in draws) / matters
    return round(float(np.clip(mean * min(1.0, sum(trust for trust, _ in lives)), -MOST_EFFECT, MOST_EFFECT)), 6)


def _starts(known: Sequence[_Told]) -> dict[Flips, str]:
    """Start → name of its relative, the most promising first."""
    found: dict[Flips, tuple[float, str]] = {}
    for one in known:
        for flips, gain in one.best:
            found.setdefault(flips, (one.trust * gain, one.name))
    order = sorted(found, key=lambda flips: (round(found[flips][0], 9), len(flips), sorted(flips)))
    return {flips: found[flips][1] for flips in order[:STARTS]}


class _Told:
    """One relative in terms of this run's space."""

    def __init__(self, space: Space, relative: Relative) -> None:
        self.name = relative.name
        self.trust = min(1.0, relative.trust)
        self._space = space
        self._here = defaults_of(space)
        self._there = dict(relative.defaults)
        self._post = Posterior(History(relative.space, relative.observations))
        self._number = {flip: j for j, flip in enumerate(self._post.flips)}
        self._timed = np.asarray(self._post.x.any(axis=0))
        self._moved = {name: here for name, here in self._here.items() if self._there.get(name, here) != here}
        """Dimensions whose default differs → the default here."""

    def samples(self, flip: Flip) -> Array | None:
        """Draws of the flip's effect against the default here; None where the relative says nothing of it."""
        own = self._own(flip)
        if own is None or flip.dimension not in self._moved:
            return own
        default = self._own(Flip(flip.dimension, self._moved[flip.dimension]))
        return None if default is None else own - default

    def blame(self, flip: Flip) -> float | None:
        """How far the value is to blame for failures, 0 to 1; None where nothing is known. No matter of defaults."""
        if self._is_default(flip):
            return 0.0
        j, failures = self._number.get(flip), self._post.failures
        if j is None or not (j in failures.culprits or j in failures.exonerated or failures.is_suspect(j)):
            return None
        return failures.blame(j)

    @cached_property
    def best(self) -> list[tuple[Flips, float]]:
        """Its best feasible candidates as flips here, with their log ratios less what was lost on the way.

        The best one comes without its flips that seem needless first, since any of them may fail here, and then as it was, since
        one of them may be needed.
        """
        found: dict[Flips, float] = {}
        inside = set(self._space.flips)
        for tried in self._post.tried:
            kept, lost = self._translated(tried.stack, inside)
            gain = tried.estimate - self._post.predict(lost)
            if kept and gain < -SMALLEST_GAIN:
                found.setdefault(kept, gain)
        least = min(found.values(), default=0.0)
        # As near to the best as no final could tell: the simpler one has less to go wrong with elsewhere.
        behind = {flips: int((gain - least) / SMALLEST_GAIN + 1e-6) for flips, gain in found.items()}
        order = sorted(found, key=lambda flips: (behind[flips], len(flips), sorted(flips)))
        needed = frozenset(flip for flip in (order[0] if order else ()) if self._mean(flip) < _NEEDLESS)
        best = dict.fromkeys([needed, *order] if needed else order)
        return [(flips, found.get(flips, least)) for flips in list(best)[:STARTS_OF_ONE]]

    def _mean(self, flip: Flip) -> float:
        samples = self.samples(flip)
        return 0.0 if samples is None else float(samples.mean())

    def _translated(self, stack: Stack, inside: set[Flip]) -> tuple[Flips, Stack]:
        """The same values against the defaults here, and which of its flips this space cannot express."""
        own = self._post.named(stack)
        held = {flip.dimension for flip in own}
        stays = {flip for flip in own if self._here.get(flip.dimension) != flip.value}
        stays |= {Flip(name, self._there[name]) for name in self._moved if name not in held}
        lost = frozenset(self._number[flip] for flip in stays & own if flip not in inside)
        return frozenset(stays & inside), lost

    def _own(self, flip: Flip) -> Array | None:
        """Draws of the effect against the relative's own default."""
        if self._is_default(flip):
            return np.zeros(len(self._post.fit.samples))
        j = self._number.get(flip)
        return np.asarray(self._post.fit.samples[:, j]) if j is not None and self._timed[j] else None

    def _is_default(self, flip: Flip) -> bool:
        return self._there.get(flip.dimension) == flip.value
