"""Which knobs a search varies, and over which values, from a user's globs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tuner_job.api.base import InputError
from tuner_job.routes.curated import curated_values
from tuner_job.routes.knobs import Knob, KnobList, UnknownKnob, show


class EmptySearch(InputError):
    """Nothing is left to search."""

    reason = "EmptySearch"


@dataclass(frozen=True, slots=True)
class SearchKnob:
    """A knob of the search and what to try: the default first (tried by leaving the knob away), at least one other value."""

    knob: Knob
    values: tuple[str, ...]

    @property
    def flips(self) -> tuple[str, ...]:
        """The values other than the default."""
        return self.values[1:]


def select(
    knobs: KnobList,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    values: Mapping[str, Sequence[str]] | None = None,
) -> tuple[SearchKnob, ...]:
    """Resolve names and globs (`-kgen:*`) against the knob list, in its order.

    Empty `include` means every knob. `values` (name or glob → values) replaces the values to try; a full name wins over globs. An
    unbounded knob without values is searched over its curated ones (routes.curated), but only where `include` asks for it, by its
    full name or by a glob that does not match every knob. Without curated values a full name is an error, and a glob passes it
    over.

    Raises UnknownKnob for a pattern that matches nothing, BadValue, InputError for a contradiction. The result may be empty,
    since settings or variants may be left to search: `require_search` judges them together.
    """
    given = _curated(knobs, include) | _given_values(knobs, values or {})
    chosen = _matching(knobs, include, "search.knobs.include") if include else set(knobs.names)
    chosen -= _matching(knobs, exclude, "search.knobs.exclude")
    for pattern in values or {}:
        if not any(fnmatchcase(name, pattern) for name in chosen):
            raise InputError(f"search.knobs.values: {show(pattern)} has values, but include and exclude leave no such knob")
    for name in include:
        if name in chosen and knobs.find(name).values is None and name not in given:
            raise InputError(f"search.knobs.include: {name} is unbounded; give its values under search.knobs.values")
    selected = []
    for knob in knobs.knobs:
        tried = given.get(knob.name, knob.values)
        if knob.name in chosen and tried is not None:
            flips = tuple(dict.fromkeys(value for value in tried if value != knob.default))
            if flips:
                selected.append(SearchKnob(knob, (knob.default, *flips)))
    return tuple(selected)


def require_search(
    selected: Sequence[SearchKnob], settings: Mapping[str, Sequence[str]], variants: Sequence[str], missing: str = ""
) -> None:
    """Raise EmptySearch unless something can differ from the baseline. `missing`: why the knob list is empty."""
    if not selected and not any(settings.values()) and len(variants) < 2:
        instead = (
            f"{missing}: name search.builder.settings or model.variants"
            if missing
            else ("widen search.knobs, or name search.builder.settings")
        )
        raise EmptySearch(f"search: no knob, builder setting or model variant is left to try; {instead}")


def _curated(knobs: KnobList, include: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Values for the unbounded knobs that `include` asks for."""
    asked = {name for name in knobs.names if any(_asks_for(knobs, pattern, name) for pattern in include)}
    return {name: values for name in asked if (values := curated_values(knobs.find(name)))}


def _asks_for(knobs: KnobList, pattern: str, name: str) -> bool:
    """Whether the pattern means this knob, and not simply all there are."""
    if not fnmatchcase(name, pattern):
        return False
    return pattern == name or not all(fnmatchcase(other, pattern) for other in knobs.names)


def _matching(knobs: KnobList, patterns: Sequence[str], where: str) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        found |= set(_matches(knobs, pattern, where))
    return found


def _matches(knobs: KnobList, pattern: str, where: str) -> list[str]:
    names = [name for name in knobs.names if fnmatchcase(name, pattern)]
    if not names:
        raise UnknownKnob(f"{where}: {show(pattern)} matches no knob{knobs.hint(pattern.strip('*'))}")
    return names


def _given_values(knobs: KnobList, values: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    where = "search.knobs.values"
    given: dict[str, tuple[str, ...]] = {}
    source: dict[str, str] = {}
    # Full names last, so that they win; two globs over one knob would depend on an order that JSON maps do not have.
    for pattern in sorted(values, key=lambda p: (p in knobs, p)):
        if not values[pattern]:
            raise InputError(f"{where}: {show(pattern)} has an empty list of values")
        for name in _matches(knobs, pattern, where):
            for value in values[pattern]:
                knobs.find(name).check(value, where)
            if name in given and pattern not in knobs:
                raise InputError(f"{where}: {show(source[name])} and {show(pattern)} both match {name}; name it in full")
            given[name] = tuple(values[pattern])
            source[name] = pattern
    return given
