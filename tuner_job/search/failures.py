"""Which flips, and which pairs of flips, are behind failed trials.

A success exonerates every flip in it, alone and in pairs with the others in it. A failure needs a culprit: one of its flips that
no success holds, or one of its pairs that no success holds. Who it was is inferred from all failures together, by belief
propagation on a noisy-or (Pearl, Probabilistic Reasoning in Intelligent Systems, 1988): flips and pairs are guilty or not, each
with a small probability beforehand, and a trial fails if any one in it is. Every outcome but feasible counts (a wrong answer is
as useless as a refusal), except infrastructure, which says nothing. Flips are numbers here, so that sets of them iterate in the
same order in every process.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tuner_job.api.outcome import Outcome

Stack = frozenset[int]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

_MOST_BLAME = 0.95
_PAIR_RATE = 3e-4
"""Probability that a pair fails whose members do not, when nothing else is known."""
_MOST_EVIDENCE = 10.0
"""Log likelihood ratio that one failure can add."""
_FAILED_WITHOUT = 2
"""Failures of a flip before it is asked what it needs."""
_SWEEPS = 12
_MOST_EXAMINED = 400
_MOST_SUSPICIONS = 500_000
"""Unexplained failures, and flips and pairs of theirs, that are looked at, the smallest first: the larger, the less they tell."""


class Failures:
    """What failures and successes so far say about the next candidate."""

    def __init__(self, outcomes: Sequence[Outcome], stacks: Sequence[Stack], believed: Mapping[int, float] | None = None) -> None:
        """`believed`: flip → probability that it fails alone, before any result."""
        ends = list(zip(outcomes, stacks, strict=True))
        succeeded = list(dict.fromkeys(stack for outcome, stack in ends if outcome is Outcome.FEASIBLE))
        excused = {Outcome.FEASIBLE, Outcome.INFRASTRUCTURE}
        self.failed = {stack for outcome, stack in ends if outcome not in excused} - set(succeeded)
        self.exonerated: Stack = frozenset(flip for stack in succeeded for flip in stack)
        self.culprits: Stack = frozenset(
            flip for stack in self.failed for flip in stack - self.exonerated if len(stack - self.exonerated) == 1
        )
        """Flips that fail alone, as far as elimination can tell. A later success clears them."""
        self.against: dict[int, list[Stack]] = defaultdict(list)
        """Flip that never succeeded → the candidates that failed with it."""
        for stack in sorted(self.failed, key=sorted):
            for flip in sorted(stack - self.exonerated):
                self.against[flip].append(stack)
        self.rate = (1 + len(self.culprits)) / (25 + len(self.exonerated) + len(self.culprits))
        """Chance that a flip of which nothing is known fails alone."""
        size = 1 + max((flip for stack in (*succeeded, *self.failed) for flip in stack), default=-1)
        proven = _proven(succeeded, size)
        self.needs = self._needs(succeeded, proven)
        """Flip that failed without and works beside certain others → those others, as far as they are known by now."""
        unexplained = [
            stack
            for stack in self.failed
            if not stack & self.culprits and not any(flip in stack and not stack & mates for flip, mates in self.needs.items())
        ]
        self._suspects: Stack = frozenset(flip for stack in unexplained for flip in stack - self.exonerated)
        self._hazard, self._pair_hazard = self._infer(
            sorted(unexplained, key=lambda stack: (len(stack), sorted(stack)))[:_MOST_EXAMINED],
            proven,
            believed or {},
        )
        self._believed = {flip: hazard(chance) for flip, chance in (believed or {}).items()}

    def _needs(self, succeeded: Sequence[Stack], proven: npt.NDArray[np.bool_]) -> dict[int, Stack]:
        """What stood beside a flip in all of its successes and in none of its failures.

        Only failures count of which the rest is known to work together, and only if no single other flip explains them as well.
        """
        clean: dict[int, list[Stack]] = defaultdict(list)
        for stack in sorted(self.failed, key=sorted):
            members = sorted(stack)
            rows, columns = np.nonzero(~proven[np.ix_(members, members)])
            if len(rows):  # the rest works together if every pair that does not is one with the flip
                in_all = {members[rows[0]], members[columns[0]]}.intersection(
                    *({members[a], members[b]} for a, b in zip(rows.tolist(), columns.tolist(), strict=True))
                )
            else:
                in_all = set(members)
            for flip in in_all & self.exonerated:
                clean[flip].append(stack)
        found = {}
        for flip, failures in sorted(clean.items()):
            if len(failures) < _FAILED_WITHOUT:
                continue
            successes = [stack for stack in succeeded if flip in stack]
            mates = frozenset.intersection(*successes).difference(*failures)
            if mates and frozenset.intersection(*failures).difference(*successes) <= {flip}:
                found[flip] = mates
        return found

    def _infer(
        self, failed: Sequence[Stack], proven: npt.NDArray[np.bool_], believed: Mapping[int, float]
    ) -> tuple[Floats, Floats]:
        """(p,) hazards of flips alone and (p, p) of pairs: -log of the probability that it is innocent."""
        size = len(proven)
        alone = np.array([believed.get(flip, self.rate) for flip in range(size)])
        alone[sorted(self.exonerated)] = 0.0
        chance = np.where(proven, 0.0, _PAIR_RATE)
        np.fill_diagonal(chance, alone)  # a flip is its own pair
        chance[:, sorted(self.culprits)] = chance[sorted(self.culprits)] = 0.0
        owners, suspects = _suspicions(failed, chance)
        if len(owners):
            prior = np.log(chance.ravel()[suspects] / (1 - chance.ravel()[suspects]))
            evidence = np.zeros(len(owners))
            for _ in range(_SWEEPS):
                total = np.bincount(suspects, evidence, size * size)[suspects]
                guilt = np.logaddexp(0.0, prior + total - evidence)  # -log of innocence, as all other failures have it
                others = np.bincount(owners, guilt)[owners] - guilt
                found = -np.log(-np.expm1(-np.maximum(others, math.exp(-_MOST_EVIDENCE))))
                evidence = (evidence + found) / 2
            total = np.bincount(suspects, evidence, size * size)[suspects]
            chance.ravel()[suspects] = np.minimum(_MOST_BLAME, _sigmoid(prior + total))
        chance = np.maximum(np.triu(chance), np.triu(chance).T)  # suspects are counted once, above the diagonal
        hazards = -np.log1p(-chance)
        alone = np.diag(hazards).copy()
        np.fill_diagonal(hazards, 0.0)
        return alone, hazards

    def blame(self, flip: int) -> float:
        """Probability that the flip fails alone."""
        if flip in self.culprits:
            return 1.0
        return -math.expm1(-self._alone(flip))

    def _alone(self, flip: int) -> float:
        if flip < len(self._hazard):
            return float(self._hazard[flip])
        return self._believed.get(flip, hazard(self.rate))

    def untried_beside(self, flip: int, stack: Stack) -> Stack:
        """Which of these flips never stood beside this one in a failure: any of them may be what it needs.

        Some flips work only when another one is set (recorded on an H200: a fusion of convolutions that crashed in all 80
        configurations without the channels-last layout, worked in all 80 with it, and was needed for the best).
        """
        return stack.difference(*self.against[flip]) - {flip}

    def is_suspect(self, flip: int) -> bool:
        """Whether it stood in a failure that is not explained yet, and in no success."""
        return flip in self._suspects

    def hazard(self, flips: Iterable[int]) -> float:
        """-log of the probability that a candidate does not fail, culprits apart."""
        stack = sorted(flips)
        known = [flip for flip in stack if flip < len(self._hazard)]
        pairs = float(self._pair_hazard[np.ix_(known, known)].sum()) / 2
        fresh = len(stack) - len(known)  # pairs with a flip that was in no trial yet
        pairs += _PAIR_RATE * (fresh * len(known) + fresh * (fresh - 1) / 2)
        alone = float(self._hazard[known].sum()) + sum(self._alone(flip) for flip in stack[len(known) :])
        return alone + pairs

    def risk(self, flips: Iterable[int]) -> float:
        """Probability that a candidate fails. 1 for what failed already and for anything with a culprit in it."""
        stack = frozenset(flips)
        if stack in self.failed or stack & self.culprits:
            return 1.0
        safe = math.exp(-self.hazard(stack))
        for flip in self.needs.keys() & stack:
            safe *= max(1 - _MOST_BLAME, len(self.needs[flip] & stack) / len(self.needs[flip]))
        return 1 - safe


def hazard(chance: float) -> float:
    """-log of the probability that nothing of this chance happens."""
    return -math.log1p(-min(chance, _MOST_BLAME))


def _proven(succeeded: Sequence[Stack], size: int) -> npt.NDArray[np.bool_]:
    """(p, p): flips that stood together in a success."""
    member = np.zeros((len(succeeded), size), dtype=np.float32)
    for row, stack in enumerate(succeeded):
        member[row, sorted(stack)] = 1.0
    return np.asarray(member.T @ member > 0)


def _suspicions(failed: Sequence[Stack], chance: Floats) -> tuple[Ints, Ints]:
    """Two arrays of one length: a failure, and a flip or pair (as an index into the flattened matrix) that may be behind it."""
    owners: list[Ints] = []
    suspects: list[Ints] = []
    examined = 0
    for number, stack in enumerate(failed):
        examined += len(stack) * (len(stack) + 1) // 2
        if examined > _MOST_SUSPICIONS:
            break
        members = np.array(sorted(stack), dtype=np.intp)
        rows, columns = np.triu_indices(len(members))
        keys = members[rows] * len(chance) + members[columns]
        keys = keys[chance.ravel()[keys] > 0]
        owners.append(np.full(len(keys), number, dtype=np.intp))
        suspects.append(keys)
    empty = np.zeros(0, dtype=np.intp)
    return np.concatenate([empty, *owners]), np.concatenate([empty, *suspects])


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))
