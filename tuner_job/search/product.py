"""Full and Expression: whole products, enumerated lazily."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence

from tuner_job.api.base import InputError
from tuner_job.api.measurement import Candidate
from tuner_job.routes.expression import parse_expression
from tuner_job.search.options import check_names, choice
from tuner_job.search.rounds import Budget, Done, History, Observation, Proposal, take
from tuner_job.search.space import Flip, Space


class SpaceTooLarge(InputError):
    """The product has more candidates than the budget has trials."""

    reason = "SpaceTooLarge"


class Full:
    """Every combination of variants, settings and knob values, the default of each left away; the last knob varies fastest.

    A product larger than the budget is refused, unless option `sample` is `true`: then as many as the budget
    allows, spread evenly.
    """

    name = "Full"

    def __init__(self, options: Mapping[str, str]) -> None:
        check_names(self.name, options, ("sample",))
        self.sample = choice(options, "sample", ("false", "true")) == "true"

    def next_round(
        self, space: Space, history: Sequence[Observation], budget: Budget, seed: int, pending: Sequence[Candidate] = ()
    ) -> tuple[Proposal, ...] | Done:
        past = History(space, history, pending)
        axes = self.axes(space)
        count = self._checked_count(axes, budget)
        sampled = count > budget.trials + 1
        order = spread(count, seed) if sampled else iter(range(count))
        what = f"sampled from all {count} combinations" if sampled else f"one of all {count} combinations"
        return take(past.new((c, what) for c in _candidates(space, axes, order)), budget, f"all {count} combinations were tried")

    def estimate(self, space: Space, budget: Budget) -> int:
        return min(self._checked_count(self.axes(space), budget), budget.trials)

    def axes(self, space: Space) -> list[tuple[Flip | None, ...]]:
        """Each dimension's flips; None is its default."""
        space.require_choices()
        return [(None, *flips) for flips in space.dimensions.values()]

    def _checked_count(self, axes: Sequence[Sequence[Flip | None]], budget: Budget) -> int:
        count = math.prod(len(axis) for axis in axes)
        # One of them may be the baseline, which discover built. Once trials are planned, a budget that shrinks with the time that
        # they took must end the search, not refuse it.
        if count > budget.trials + 1 and not self.sample and not budget.spent:
            shown = str(count) if count < 10**9 else f"about 10^{math.log10(count):.0f}"
            raise SpaceTooLarge(
                f"search: {self.name} has {shown} candidates, the budget is {budget.trials} trials; "
                f"raise budget.maxTrials, narrow the search, or set search.options.sample to true to try a spread of them"
            )
        return count


class Expression(Full):
    """Every route of a trtexec expression (option `expression`), with its explicit defaults, on every variant and setting."""

    name = "Expression"

    def __init__(self, options: Mapping[str, str]) -> None:
        check_names(self.name, options, ("expression", "sample"))
        self.expression = options.get("expression", "")
        if not self.expression.strip():
            raise InputError("search.expression: empty; strategy Expression needs one, like -knob=[on|off]")
        super().__init__({name: value for name, value in options.items() if name != "expression"})

    def axes(self, space: Space) -> list[tuple[Flip | None, ...]]:
        expression = parse_expression(self.expression, space.knobs, "search.expression")
        knobs = {choice.knob.name for choice in space.choices}
        others: list[tuple[Flip | None, ...]] = [
            (None, *flips) for dimension, flips in space.dimensions.items() if dimension not in knobs
        ]
        return others + [tuple(Flip(term.knob.name, value) for value in term.values) for term in expression.terms]


def _candidates(space: Space, axes: Sequence[Sequence[Flip | None]], order: Iterator[int]) -> Iterator[Candidate]:
    for index in order:
        flips = []
        for axis in reversed(axes):
            index, digit = divmod(index, len(axis))
            flip = axis[digit]
            if flip is not None:
                flips.append(flip)
        yield space.candidate(flips)


def spread(count: int, seed: int) -> Iterator[int]:
    """All of range(count) once, in an order of which every beginning is spread evenly over the range.

    Multiples of the golden ratio (Weyl's additive recurrence) from a start that depends on the seed, in exact
    integers of any size.
    """
    digits = len(str(count)) + 5
    golden = (math.isqrt(5 * 10 ** (2 * digits)) - 10**digits) // 2  # (sqrt(5) - 1) / 2 in fixed point
    step = max(1, count * golden // 10**digits)
    while math.gcd(step, count) != 1:
        step += 1
    start = int.from_bytes(hashlib.sha512(f"{seed}".encode()).digest()) % count
    return ((start + i * step) % count for i in range(count))
