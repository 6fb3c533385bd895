"""trtexec's expressions: a set of routes as one line.

    expr  := token { ' ' token }        lines are joined with spaces, as trtexec does for a file
    token := knob '=' value             fixed
           | knob '=' '[' v {'|' v} ']' variable; spaces inside the brackets are allowed

Accepted is what trtexec accepts, less what it lets through silently: a knob in two tokens, and values of an unbounded knob
that are no values (the literal `int`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tuner_job.routes.knobs import Knob, KnobList, at, show
from tuner_job.routes.route import BadRoute, Route, make_route, split_token, split_tokens

_BRACKETS = re.compile(r"\[[^\[\]]*\]")


@dataclass(frozen=True, slots=True)
class Term:
    """One token: a knob and its values; `variable` if written as a list, even of one."""

    knob: Knob
    values: tuple[str, ...]
    variable: bool


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression, terms in written order."""

    knobs: KnobList
    terms: tuple[Term, ...]

    @property
    def count(self) -> int:
        """Number of routes of the full product (arbitrary precision); 1 if nothing varies."""
        return math.prod(len(term.values) for term in self.terms)

    def route(self, index: int) -> Route:
        """Route `index` in trtexec's order: the last token varies fastest, index 0 takes the first listed values."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        values: dict[str, str] = {}
        for term in reversed(self.terms):
            index, digit = divmod(index, len(term.values))
            values[term.knob.name] = term.values[digit]
        return make_route(values, self.knobs)

    def routes(self) -> Iterator[Route]:
        """Every route, lazily, in that order."""
        return (self.route(index) for index in range(self.count))

    def __str__(self) -> str:
        """One line; parsing it gives the same expression."""
        return " ".join(
            f"{t.knob.name}=[{'|'.join(t.values)}]" if t.variable else f"{t.knob.name}={t.values[0]}" for t in self.terms
        )


def parse_expression(text: str, knobs: KnobList, where: str = "") -> Expression:
    """Parse; empty text has one route, the empty one.

    `where` opens every message. Raises UnknownKnob, BadValue or BadRoute, naming the token.
    """
    joined = " ".join(text.replace("\r\n", "\n").split("\n"))
    terms: dict[str, Term] = {}
    for token in split_tokens(_BRACKETS.sub(_without_padding, joined), where):
        name, written = split_token(token, knobs, where)
        knob = knobs.find(name, where)
        if name in terms:
            raise BadRoute(f"{at(where)}{name} stands in two tokens; list its values in one: {name}=[a|b]")
        terms[name] = _term(knob, written, where)
    return Expression(knobs, tuple(terms.values()))


def _without_padding(brackets: re.Match[str]) -> str:
    """The list without the spaces around its values; a space inside a value stays, and is refused."""
    return f"[{'|'.join(value.strip(' ') for value in brackets[0][1:-1].split('|'))}]"


def _term(knob: Knob, written: str, where: str) -> Term:
    if "[" not in written and "]" not in written:
        knob.check(written, where)
        return Term(knob, (written,), variable=False)
    if not (written.startswith("[") and written.endswith("]")) or _BRACKETS.fullmatch(written) is None:
        raise BadRoute(f"{at(where)}{knob.name}={show(written)}: text outside of one pair of brackets")
    values = tuple(written[1:-1].split("|"))
    if not all(values):
        raise BadRoute(f"{at(where)}{knob.name}={show(written)}: empty list or value")
    if knob.values is None:
        raise BadRoute(
            f"{at(where)}{knob.name} is unbounded and takes one value here; search its values by `search.knobs.values`"
        )
    if len(set(values)) < len(values):
        raise BadRoute(f"{at(where)}{knob.name}={show(written)}: a value stands twice")
    for value in values:
        knob.check(value, where)
    return Term(knob, values, variable=True)
