"""Peers that need nothing but this repository: trtexec's searches by their own rules, and random routes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from bench.search.simulate import Built
from tuner_job.api.measurement import Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.routes.select import SearchKnob
from tuner_job.search.space import Flip, Flips, Space


class Fastest:
    """Base of players that hand on the fastest feasible build as it was timed, the earliest of equals, the default among them."""

    anytime = True

    def __init__(self) -> None:
        self._fastest: tuple[float, Candidate] | None = None
        self.built: list[Built] = []

    def value(self, built: Built) -> float | None:
        """What is compared."""
        return built.log_ratio

    def tell(self, built: Built) -> None:
        self.built.append(built)
        value = self.value(built)
        if built.outcome is Outcome.FEASIBLE and value is not None and (self._fastest is None or value < self._fastest[0]):
            self._fastest = value, built.candidate

    def choice(self) -> Candidate | None:
        return self._fastest[1] if self._fastest and not self._fastest[1].is_baseline else None


class Trtexec(Fastest):
    """`--tuningSearch=fast` or `mixed` of TensorRT 11.4's trtexec, by reading its source.

    `fast`: the default, then the last knob first, values in listed order. `mixed`: then the product of the whole listed values of
    every knob of which any value was faster than the default by any margin (a failed accuracy check does not matter there); it
    begins when there are two such values, has no cap, and builds anew what was built before. The winner has the lowest mean of
    its one run, strictly, the earliest of equals. It knows knobs only, no settings or variants, and works on one route at a time.
    """

    def __init__(self, space: Space, mixed: bool) -> None:
        super().__init__()
        self._space = space
        self._mixed = mixed
        self._planned = self._routes()

    def value(self, built: Built) -> float | None:
        return built.mean_ratio

    def ask(self, count: int, left: int, pending: Sequence[Candidate]) -> Sequence[Candidate]:  # noqa: ARG002
        return list(itertools.islice(self._planned, 1))

    def _routes(self) -> Iterator[Candidate]:
        for choice in reversed(self._space.choices):
            for value in choice.flips:
                yield self._space.candidate([Flip(choice.knob.name, value)])
        if self._mixed:
            yield from self._second_phase()

    def _second_phase(self) -> Iterator[Candidate]:
        base = self.built[0].mean_ratio
        faster: list[Flip] = []
        for one in self.built[1:]:
            value = one.mean_ratio
            if base is not None and value is not None and value < base:
                faster += self._space.flips_of(one.candidate)
        if len(faster) < 2:
            return
        positive = {flip.dimension for flip in faster}
        axes = [_listed(choice) for choice in self._space.choices if choice.knob.name in positive]
        for row in itertools.product(*axes):  # the last knob varies fastest
            yield self._space.candidate([flip for flip in row if flip is not None])


def _listed(choice: SearchKnob) -> list[Flip | None]:
    """All values in the list's order; None is the default."""
    knob = choice.knob
    values = [value for value in knob.values or choice.values if value in choice.values]
    return [None if value == knob.default else Flip(knob.name, value) for value in values]


class Random(Fastest):
    """Routes with each dimension flipped with a small chance, never one twice."""

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__()
        self._space = space
        self._rng = np.random.default_rng([seed, 3])
        # As many flips as there is hope to have all succeed and a few of them good; a fair half in a small space.
        self._chance = min(0.5, max(0.02, 3 / len(space.dimensions)))
        self._seen: set[Flips] = {Flips()}

    def ask(self, count: int, left: int, pending: Sequence[Candidate]) -> Sequence[Candidate]:  # noqa: ARG002
        found: list[Candidate] = []
        misses = 0
        while len(found) < count and misses < 1000:
            drawn = [flips[int(self._rng.integers(len(flips)))] for flips in self._space.dimensions.values() if self._heads()]
            stack = frozenset(drawn)
            if stack in self._seen:
                misses += 1
                continue
            self._seen.add(stack)
            found.append(self._space.candidate(stack))
        return found

    def _heads(self) -> bool:
        return bool(self._rng.random() < self._chance)
