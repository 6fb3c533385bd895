"""A planted truth over a knob list: what each route would cost, known exactly, timed with the noise of an H200 under CUDA graph.

A few flips are live (most of them good), a few fail alone, some pairs fail or interact, some children act only beside their
parent.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from tuner_job.api.measurement import Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.search.rounds import Observation
from tuner_job.search.space import Flip, Flips, Space

BUILD_SD = 0.003
SESSION_SD = 0.012
SESSIONS = 5


@dataclass
class Truth:
    """Log ratios by flip and pair; failing flips and pairs."""

    space: Space
    effects: dict[Flip, float] = field(default_factory=dict)
    pairs: dict[frozenset[Flip], float] = field(default_factory=dict)
    woken: dict[Flip, Flip] = field(default_factory=dict)
    """Child flip → the parent flip without which it does nothing."""
    failing: set[Flip] = field(default_factory=set)
    failing_pairs: set[frozenset[Flip]] = field(default_factory=set)

    def active(self, flips: Flips) -> Flips:
        return frozenset(f for f in flips if f in self.effects and (f not in self.woken or self.woken[f] in flips))

    def log_ratio(self, flips: Flips) -> float | None:
        """None if it fails."""
        if flips & self.failing or any(pair <= flips for pair in self.failing_pairs):
            return None
        active = self.active(flips)
        return sum(self.effects[f] for f in sorted(active)) + sum(e for pair, e in self.pairs.items() if pair <= active)

    def best(self) -> float:
        """Log ratio of the optimum (coordinate descent over live flips from several starts)."""
        live = sorted(self.effects)
        lowest = 0.0
        for start in range(8):
            order = np.random.default_rng(start).permutation(len(live))
            current: Flips = frozenset()
            value, moved = 0.0, True
            while moved:
                moved = False
                for j in order:
                    flip = live[j]
                    parents = {self.woken[flip]} if flip in self.woken else set()
                    others = frozenset(f for f in current if f.dimension != flip.dimension)
                    for trial in (current ^ {flip} if flip in current else others | {flip}, others | {flip} | parents):
                        got = self.log_ratio(frozenset(trial))
                        if got is not None and got < value - 1e-12:
                            current, value, moved = frozenset(trial), got, True
            lowest = min(lowest, value)
        return lowest

    def observe(self, trial: str, candidate: Candidate, rng: np.random.Generator, fingerprints: bool = False) -> Observation:
        flips = self.space.flips_of(candidate)
        value = self.log_ratio(flips)
        if value is None:
            return Observation(trial, candidate, Outcome.REFUSED)
        sd = float(np.hypot(BUILD_SD, SESSION_SD / SESSIONS**0.5))
        digest = hashlib.sha256(repr(sorted(self.active(flips))).encode()).hexdigest() if fingerprints else ""
        return Observation(trial, candidate, Outcome.FEASIBLE, value + float(rng.normal(0, sd)), sd, digest, 1.0)


def plant(space: Space, live: int, seed: int, median: float = 0.012) -> Truth:
    """`live` flips with log-normal effects (60 % good), 4 % of all flips failing alone, pairs among the live ones."""
    rng = np.random.default_rng([seed, live])
    flips = list(space.flips)
    truth = Truth(space)
    chosen = [flips[i] for i in rng.permutation(len(flips))[:live]]
    for flip in chosen:
        size = float(np.exp(rng.normal(np.log(median), 0.7)))
        truth.effects[flip] = -size if rng.random() < 0.6 else size
    names = {f.dimension: f for f in chosen}
    for flip in chosen:
        parent = names.get(flip.dimension.rpartition(":")[0])
        if parent is not None and rng.random() < 0.7:
            truth.woken[flip] = parent
    for _ in range(live // 3):
        a, b = rng.choice(live, 2, replace=False)
        pair = frozenset((chosen[a], chosen[b]))
        if rng.random() < 0.25:
            truth.failing_pairs.add(pair)
        else:
            truth.pairs[pair] = float(rng.normal(0, median / 2))
    dead = [f for f in flips if f not in truth.effects]
    truth.failing = {dead[i] for i in rng.permutation(len(dead))[: max(1, len(flips) // 25)]}
    return truth
