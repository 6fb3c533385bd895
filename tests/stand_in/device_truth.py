"""What a route and builder settings really cost: planted, so that a campaign's winner can be held against it.

A token is `-knob=value` away from the knob's default, `setting=value` away from the builder's, or `model=NAME` of the graph that
is built. Nearly all change nothing.
It lies beside the package, since benchmarks read it without TensorRT's stand-in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner_job.routes.knobs import KnobList

SETTINGS = {
    "optimizationLevel=0": 0.35,
    "optimizationLevel=1": 0.12,
    "optimizationLevel=2": 0.04,
    "optimizationLevel=4": -0.006,
    "optimizationLevel=5": -0.010,
    "tilingOptimizationLevel=FAST": -0.004,
    "tilingOptimizationLevel=MODERATE": -0.008,
    "tilingOptimizationLevel=FULL": -0.008,
    "maxAuxStreams=0": 0.015,
    "tf32=off": 0.25,
}
"""Log ratios of builder settings, the same in every truth: rough sizes that the documentation suggests."""


@dataclass(frozen=True)
class Truth:
    """Log ratios to the default engine: they add up."""

    effects: Mapping[str, float] = field(default_factory=dict)
    """Token → log ratio. A token that is not here does nothing."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Token → the token without which it does nothing."""
    pairs: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """What two active tokens do together beyond their own effects."""

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> Truth:
        return Truth(
            {**SETTINGS, **plain.get("effects", {})},
            plain.get("needs", {}),
            {(first, second): float(ratio) for first, second, ratio in plain.get("pairs", ())},
        )

    def to_plain(self) -> dict[str, Any]:
        """For `script.json`."""
        effects = {token: ratio for token, ratio in self.effects.items() if token not in SETTINGS}
        return {"effects": effects, "needs": dict(self.needs), "pairs": [[*both, ratio] for both, ratio in self.pairs.items()]}

    def active(self, tokens: Iterable[str]) -> frozenset[str]:
        """Those that change the engine."""
        given = frozenset(tokens)
        return frozenset(one for one in given if one in self.effects and self.needs.get(one, one) in given)

    def log_ratio(self, tokens: Iterable[str]) -> float:
        active = self.active(tokens)
        alone = sum(self.effects[one] for one in sorted(active))
        return alone + sum(ratio for both, ratio in self.pairs.items() if active.issuperset(both))

    def best(self, avoid: Iterable[str] = ()) -> tuple[frozenset[str], float]:
        """The fastest set of knob tokens and its log ratio, without those to `avoid` (coordinate descent from several starts)."""
        live = sorted(token for token in self.effects if token.startswith("-") and token not in set(avoid))
        best: tuple[frozenset[str], float] = (frozenset(), 0.0)
        for start in range(8):
            order = np.random.default_rng(start).permutation(len(live))
            current, moved = frozenset[str](), True
            while moved:
                moved = False
                for token in (live[index] for index in order):
                    others = frozenset(one for one in current if _knob(one) != _knob(token))
                    for trial in (current - {token}, others | {token}, others | {token, self.needs.get(token, token)}):
                        if self.log_ratio(trial) < self.log_ratio(current) - 1e-12:
                            current, moved = trial, True
            if self.log_ratio(current) < best[1]:
                best = current, self.log_ratio(current)
        return best


def plant(tokens: Sequence[str], *, live: int, seed: int, median: float = 0.012) -> Truth:
    """`live` of the tokens have effects: log-normal sizes around `median` (sd 0.7 of the log), three of five for the better.

    Two fifths of them are parents and children (`-a` and `-a:b`): a child acts only beside its parent's token. A third as many
    pairs as live tokens interact, by half an effect either way.
    """
    rng = np.random.default_rng([seed, live])
    families = [(parent, child) for child in tokens for parent in tokens if _knob(child).rpartition(":")[0] == _knob(parent)]
    needs: dict[str, str] = {}
    for index in rng.permutation(len(families)):
        parent, child = families[index]
        if len(needs) < live // 5 and not {parent, child} & {*needs, *needs.values()}:
            needs[child] = parent
    related = {*needs, *needs.values()}
    others = [tokens[index] for index in rng.permutation(len(tokens)) if tokens[index] not in related]
    chosen = [*sorted(related), *others[: live - len(related)]]
    effects = {}
    for token in chosen:
        size = float(np.exp(rng.normal(np.log(median), 0.7)))
        effects[token] = -size if rng.random() < 0.6 else size
    pairs = {}
    for _ in range(live // 3):
        first, second = sorted(chosen[index] for index in rng.choice(live, 2, replace=False))
        if _knob(first) != _knob(second):
            pairs[first, second] = float(rng.normal(0, median / 2))
    return Truth({**SETTINGS, **effects}, needs, pairs)


def _knob(token: str) -> str:
    return token.partition("=")[0]


def flips(knobs: KnobList) -> list[str]:
    """Every token of a bounded knob, in listed order."""
    return [f"{knob.name}={value}" for knob in knobs.bounded for value in knob.values or () if value != knob.default]
