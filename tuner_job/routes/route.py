"""Routes in canonical form, and the checks that TensorRT does not make.

`IBuilderConfig.build_route` takes and returns any string without an error (measured on 11.2.1.2), so a route is only ever
handed to a builder after it passed here. Whether writing a default out equals leaving the knob away is unproven: the two stay
different routes, and the canonical form keeps explicit defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuner_job.api.base import InputError
from tuner_job.routes.knobs import KnobList, at, show

_PRINTABLE = re.compile(r"[ -~]*")


class BadRoute(InputError):
    """Text that is no route at all: a token without dash or value, a knob twice, tabs, newlines, non-ASCII."""

    reason = "BadRoute"


@dataclass(frozen=True, slots=True)
class Route:
    """An assignment of values to knobs, in knob-list order. Made by `parse_route` or `make_route` only."""

    tokens: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """The canonical form; parsing it gives the same route."""
        return " ".join(f"{name}={value}" for name, value in self.tokens)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)


EMPTY = Route()
"""The true default."""


def make_route(values: Mapping[str, str], knobs: KnobList, where: str = "") -> Route:
    """The route that sets each knob to its value. Raises UnknownKnob or BadValue."""
    for name, value in values.items():
        knobs.find(name, where).check(value, where)
    return Route(tuple((name, values[name]) for name in sorted(values, key=knobs.order)))


def parse_route(text: str, knobs: KnobList, where: str = "") -> Route:
    """Check a route against the knob list and put it into canonical form (spaces may be many, order free).

    `where` (a field path, a file and line) opens every message. Raises UnknownKnob, BadValue or BadRoute.
    """
    values: dict[str, str] = {}
    for token in split_tokens(text, where):
        name, value = split_token(token, knobs, where)
        if name in values:
            raise BadRoute(f"{at(where)}{name} is set twice; a route sets each knob once")
        knobs.find(name, where).check(value, where)
        values[name] = value
    return make_route(values, knobs, where)


def split_tokens(text: str, where: str) -> list[str]:
    """Tokens of text that separates them by spaces only. Raises BadRoute for any other white space or a non-ASCII character."""
    if not _PRINTABLE.fullmatch(text):
        odd = next(c for c in text if not " " <= c <= "~")
        raise BadRoute(f"{at(where)}{odd!a} in {show(text)}; only printable ASCII, tokens separated by spaces")
    return text.split()


def split_token(token: str, knobs: KnobList, where: str) -> tuple[str, str]:
    """`-name=value` → (name, value), both not empty. Raises BadRoute, or UnknownKnob if the name alone is already wrong."""
    name, equals, value = token.partition("=")
    if not name.startswith("-"):
        raise BadRoute(f"{at(where)}{show(token)} does not begin with a dash; write -name=value")
    if not equals or not value:
        knobs.find(name, where)
        raise BadRoute(f"{at(where)}{show(token)} has no value; write {name}=value")
    return name, value
