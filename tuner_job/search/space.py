"""What a search may vary, as flips: single departures from the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.routes.knobs import KnobList
from tuner_job.routes.route import make_route
from tuner_job.routes.select import SearchKnob, require_search
from tuner_job.search.flips import Flip, Flips
from tuner_job.search.prior import Prior

__all__ = ["SETTING", "VARIANT", "Flip", "Flips", "Prior", "Space"]

VARIANT = "variant"
SETTING = "setting:"


@dataclass(frozen=True)
class Space:
    """Everything that a strategy may combine. Candidates are sets of flips with at most one flip per dimension."""

    knobs: KnobList
    choices: tuple[SearchKnob, ...] = ()
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Builder setting → values to try; leaving the setting away is its default."""
    variants: tuple[str, ...] = (BASELINE.variant,)
    prior: Prior = field(default_factory=Prior)
    """What is believed of the flips before the first trial; flips in it that the space does not have are passed over."""

    @cached_property
    def base(self) -> str:
        """The variant that is no flip: `default`, or the first one when there is none of that name."""
        return BASELINE.variant if BASELINE.variant in self.variants or not self.variants else self.variants[0]

    @cached_property
    def dimensions(self) -> dict[str, tuple[Flip, ...]]:
        """Dimension → its flips: variants, then settings by name, then knobs in list order."""
        found = {VARIANT: tuple(Flip(VARIANT, name) for name in self.variants if name != self.base)}
        for name in sorted(self.settings):
            found[SETTING + name] = tuple(Flip(SETTING + name, value) for value in dict.fromkeys(self.settings[name]))
        for choice in self.choices:
            found[choice.knob.name] = tuple(Flip(choice.knob.name, value) for value in choice.flips)
        return {dimension: flips for dimension, flips in found.items() if flips}

    @cached_property
    def flips(self) -> tuple[Flip, ...]:
        return tuple(flip for flips in self.dimensions.values() for flip in flips)

    @cached_property
    def _order(self) -> dict[Flip, int]:
        return {flip: i for i, flip in enumerate(self.flips)}

    def require_choices(self) -> None:
        """Raises EmptySearch unless there is something to vary."""
        require_search(self.choices, self.settings, self.variants, self.knobs.missing)

    def candidate(self, flips: Iterable[Flip]) -> Candidate:
        """The candidate with these flips; the baseline for none."""
        variant, settings, route = self.base, {}, {}
        for dimension, value in flips:
            if dimension == VARIANT:
                variant = value
            elif dimension.startswith(SETTING):
                settings[dimension.removeprefix(SETTING)] = value
            else:
                route[dimension] = value
        return Candidate(variant=variant, route=str(make_route(route, self.knobs)), settings=settings)

    def flips_of(self, candidate: Candidate) -> Flips:
        """A candidate's flips, whether or not the space has them: an explicit default is a flip of its own."""
        flips = {Flip(*token.split("=", 1)) for token in candidate.route.split()}
        flips |= {Flip(SETTING + name, value) for name, value in candidate.settings.items()}
        return frozenset(flips | ({Flip(VARIANT, candidate.variant)} if candidate.variant != self.base else set()))

    def sorted(self, flips: Iterable[Flip]) -> list[Flip]:
        """In the space's order; flips from outside of it last."""
        return sorted(flips, key=lambda flip: (self._order.get(flip, len(self._order)), flip))

    def describe(self, flips: Iterable[Flip], limit: int = 4) -> str:
        """For reasons: the first few flips."""
        names = [str(flip) for flip in self.sorted(flips)]
        more = f" and {len(names) - limit} more" if len(names) > limit else ""
        return ", ".join(names[:limit]) + more if names else "everything at its default"
