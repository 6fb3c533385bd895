"""A planted truth: what each candidate costs by rule. Synthetic, and known exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner_job.api.measurement import Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.search.rounds import Observation
from tuner_job.search.space import Flip, Flips, Space

Pair = frozenset[Flip]

BUILD_SD = 0.003
SESSION_SD = 0.012
SESSIONS = 5

_WORST = tuple(outcome for outcome in Outcome if outcome is not Outcome.FEASIBLE)


@dataclass
class Planted:
    """Log ratios by flip and pair, failures by flip and pair, factors of the build's seconds by flip."""

    space: Space | None = None
    effects: dict[Flip, float] = field(default_factory=dict)
    pairs: dict[Pair, float] = field(default_factory=dict)
    """Added when both are active."""
    woken: dict[Flip, Flip] = field(default_factory=dict)
    """Child flip → the parent flip without which it does nothing."""
    failing: dict[Flip, Outcome] = field(default_factory=dict)
    rescued: dict[Flip, Flip] = field(default_factory=dict)
    """Failing flip → the flip beside which it does not fail."""
    failing_pairs: dict[Pair, Outcome] = field(default_factory=dict)
    build_factors: dict[Flip, float] = field(default_factory=dict)
    base_build_seconds: float = 20.0
    fingerprints: bool = True
    """Whether engines that are equal say so."""

    def active(self, flips: Flips) -> Flips:
        """Those with an effect here; a child whose parent sleeps has none."""
        return frozenset(f for f in flips if f in self.effects and (f not in self.woken or self.woken[f] in flips))

    def outcome(self, flips: Flips) -> Outcome:
        ends = {end for flip, end in self.failing.items() if flip in flips and self.rescued.get(flip) not in flips}
        ends |= {end for pair, end in self.failing_pairs.items() if pair <= flips}
        return min(ends, key=lambda end: -_WORST.index(end)) if ends else Outcome.FEASIBLE

    def log_ratio(self, flips: Flips) -> float:
        """Failures apart."""
        active = self.active(flips)
        return sum(self.effects[f] for f in sorted(active)) + sum(e for pair, e in self.pairs.items() if pair <= active)

    def fingerprint(self, flips: Flips) -> str:
        if not self.fingerprints:
            return ""
        return hashlib.sha256(repr(sorted(self.active(flips))).encode()).hexdigest()[:16]

    def build_seconds(self, flips: Flips) -> float:
        return self.base_build_seconds * float(np.prod([self.build_factors.get(flip, 1.0) for flip in flips]))

    def best(self, space: Space | None = None) -> tuple[Flips, float]:
        """The optimum: coordinate descent over live flips from the default, in several orders, parents flipped along.

        Not exhaustive: a better one may exist where pairs conspire, and a share may then exceed 1.
        """
        inside = set((space or self.space or _no_space()).flips)
        live = sorted(flip for flip in self.effects if flip in inside)
        best: tuple[Flips, float] = (frozenset(), 0.0)
        for start in range(8):
            order = np.random.default_rng(start).permutation(len(live))
            current, value, moved = Flips(), 0.0, True
            while moved:
                moved = False
                for flip in (live[j] for j in order):
                    parents = {mates[flip] for mates in (self.woken, self.rescued) if flip in mates}
                    others = frozenset(f for f in current if f.dimension != flip.dimension)
                    for trial in (current - {flip}, others | {flip}, others | {flip} | parents):
                        if len({f.dimension for f in trial}) < len(trial) or self.outcome(trial) is not Outcome.FEASIBLE:
                            continue
                        if self.log_ratio(trial) < value - 1e-12:
                            current, value, moved = trial, self.log_ratio(trial), True
            if value < best[1]:
                best = current, value
        return best

    def observe(self, trial: str, candidate: Candidate, rng: np.random.Generator) -> Observation:
        """With normal noise as large as an H200's under CUDA graph. For tests; `simulate` resamples recordings."""
        flips = (self.space or _no_space()).flips_of(candidate)
        if (end := self.outcome(flips)) is not Outcome.FEASIBLE:
            return Observation(trial, candidate, end)
        sd = float(np.hypot(BUILD_SD, SESSION_SD / SESSIONS**0.5))
        ratio = self.log_ratio(flips) + float(rng.normal(0, sd))
        return Observation(trial, candidate, end, ratio, sd, self.fingerprint(flips), 1.0)

    def to_document(self) -> dict[str, Any]:
        """For the landscape file: flips are `[dimension, value]`."""
        return {
            "effects": [[*flip, round(effect, 6)] for flip, effect in sorted(self.effects.items())],
            "pairs": [[_pair(pair), round(effect, 6)] for pair, effect in sorted(self.pairs.items(), key=_by_pair)],
            "woken": [[list(child), list(parent)] for child, parent in sorted(self.woken.items())],
            "failing": [[*flip, end.value] for flip, end in sorted(self.failing.items())],
            "rescued": [[list(flip), list(mate)] for flip, mate in sorted(self.rescued.items())],
            "failing_pairs": [[_pair(pair), end.value] for pair, end in sorted(self.failing_pairs.items(), key=_by_pair)],
            "build_factors": [[*flip, factor] for flip, factor in sorted(self.build_factors.items())],
            "base_build_s": self.base_build_seconds,
            "fingerprints": self.fingerprints,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Planted:
        return cls(
            effects={Flip(d, v): float(e) for d, v, e in document["effects"]},
            pairs={_read_pair(pair): float(e) for pair, e in document["pairs"]},
            woken={Flip(*child): Flip(*parent) for child, parent in document["woken"]},
            failing={Flip(d, v): Outcome(end) for d, v, end in document["failing"]},
            rescued={Flip(*flip): Flip(*mate) for flip, mate in document["rescued"]},
            failing_pairs={_read_pair(pair): Outcome(end) for pair, end in document["failing_pairs"]},
            build_factors={Flip(d, v): float(f) for d, v, f in document["build_factors"]},
            base_build_seconds=float(document["base_build_s"]),
            fingerprints=bool(document["fingerprints"]),
        )


def _pair(pair: Pair) -> list[list[str]]:
    return [list(flip) for flip in sorted(pair)]


def _by_pair(item: tuple[Pair, object]) -> list[Flip]:
    return sorted(item[0])


def _read_pair(pair: list[list[str]]) -> Pair:
    return frozenset(Flip(*flip) for flip in pair)


def _no_space() -> Space:
    raise ValueError("this planted truth was made without a space")
