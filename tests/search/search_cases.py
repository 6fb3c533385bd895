"""Small spaces and scripted worlds for the tests of strategies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from tuner_job.api.measurement import Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.routes.knobs import KnobList, parse_knob_list
from tuner_job.routes.select import select
from tuner_job.search.strategy import Budget, Done, Flip, Observation, Proposal, Space, Strategy

World = Callable[[str, Candidate], Observation]


def knob_list(sizes: Sequence[int]) -> KnobList:
    """Knobs -k0, -k1, … with values 0 … size-1, default 0; every third is a child of its predecessor by name."""
    names = [f"-k{i}" if i % 3 != 2 else f"-k{i - 1}:c{i}" for i in range(len(sizes))]
    options = [
        {"option": n, "allowed_values": f"{n}=[{'|'.join(map(str, range(s)))}]", "default_value": "0", "help": ""}
        for n, s in zip(names, sizes, strict=True)
    ]
    return parse_knob_list(json.dumps({"tuner_version": "t", "tuner_options": options}))


def small_space(
    sizes: Sequence[int] = (2, 3, 2, 2),
    settings: dict[str, tuple[str, ...]] | None = None,
    variants: tuple[str, ...] = ("default",),
) -> Space:
    knobs = knob_list(sizes)
    return Space(knobs, select(knobs), settings or {}, variants)


@st.composite
def spaces(draw) -> Space:
    sizes = draw(st.lists(st.integers(2, 4), min_size=1, max_size=9))
    settings = draw(st.dictionaries(st.sampled_from(["level", "tiling"]), st.just(("4", "5")), max_size=2))
    variants = draw(st.sampled_from([("default",), ("default", "fp16"), ("fp32", "fp16", "int8")]))
    return small_space(sizes, settings, variants)


def random_world(seed: int, fail: float, space: Space, noise: float = 0.005) -> World:
    """Additive effects, failing flips and random failures; the same candidate always fails or always works."""
    rng = np.random.default_rng([seed, 1])
    effects = {flip: float(rng.normal(0, 0.03)) for flip in space.flips}
    failing = {flip for flip in space.flips if rng.random() < fail}

    def observe(trial: str, candidate: Candidate) -> Observation:
        mine = np.random.default_rng([seed, int(candidate.id, 16)])
        flips = space.flips_of(candidate)
        outcomes = [o for o in Outcome if o is not Outcome.FEASIBLE]
        if flips & failing or mine.random() < fail:
            return Observation(trial, candidate, outcomes[int(mine.integers(len(outcomes)))])
        ratio = sum(effects.get(f, 0.0) for f in sorted(flips)) + float(
            np.random.default_rng([seed, len(trial)]).normal(0, noise)
        )
        fingerprint = candidate.id[:1] if fail > 0.3 else ""
        return Observation(trial, candidate, Outcome.FEASIBLE, ratio, noise, fingerprint, 1.0)

    return observe


def additive_world(effects: dict[Flip, float], space: Space, sd: float = 0.001) -> World:
    """Exact sums, no noise, nothing fails."""

    def observe(trial: str, candidate: Candidate) -> Observation:
        ratio = sum(effects.get(f, 0.0) for f in sorted(space.flips_of(candidate)))
        return Observation(trial, candidate, Outcome.FEASIBLE, ratio, sd)

    return observe


def run(
    chosen: Strategy, space: Space, world: World, trials: int, seed: int = 0, round_limit: int = 16, workers: int = 1
) -> tuple[list[Observation], list[tuple[Proposal, ...]], str]:
    """The whole search: history, rounds, and why it ended. Fails if it does not end."""
    history: list[Observation] = []
    rounds: list[tuple[Proposal, ...]] = []
    for number in range(1, 10 * trials + 10):
        answer = chosen.next_round(space, history, Budget(trials, len(history), round_limit, workers), seed)
        if isinstance(answer, Done):
            return history, rounds, answer.reason
        rounds.append(answer)
        history += [world(f"{number:03d}-{i:05d}", p.candidate) for i, p in enumerate(answer)]
    raise AssertionError("the search does not end")
