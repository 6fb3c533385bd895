"""Which flips are behind failed trials.

A success exonerates every flip in it, alone and in pairs with the others in it. A failure is blamed on its flips that no success
holds; when every one has been exonerated, on its pairs that no success holds. Every outcome but feasible counts (a wrong answer
is as useless as a refusal), except infrastructure, which says nothing. Flips are numbers here, so that sets of them iterate in
the same order in every process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

from tuner_job.api.outcome import Outcome

Stack = frozenset[int]

_MOST_BLAME = 0.95
_MOST_FAILURES = 4
"""Candidates that failed with a culprit before it is given up for good."""


class Failures:
    """What failures and successes so far say about the next candidate."""

    def __init__(self, outcomes: Sequence[Outcome], stacks: Sequence[Stack]) -> None:
        ends = list(zip(outcomes, stacks, strict=True))
        succeeded = list(dict.fromkeys(stack for outcome, stack in ends if outcome is Outcome.FEASIBLE))
        excused = {Outcome.FEASIBLE, Outcome.INFRASTRUCTURE}
        self.failed = {stack for outcome, stack in ends if outcome not in excused} - set(succeeded)
        self.exonerated: Stack = frozenset(flip for stack in succeeded for flip in stack)
        self.culprits: Stack = frozenset(
            flip for stack in self.failed for flip in stack - self.exonerated if len(stack - self.exonerated) == 1
        )
        """Flips that fail alone, as far as elimination can tell. A later success clears them."""
        self.against: dict[int, list[Stack]] = {
            flip: sorted((stack for stack in self.failed if flip in stack), key=sorted) for flip in sorted(self.culprits)
        }
        """Culprit → the candidates that failed with it."""
        self._blame: dict[int, float] = defaultdict(float)
        self._pair_blame: dict[tuple[int, int], float] = defaultdict(float)
        proven = {pair for stack in succeeded for pair in combinations(sorted(stack), 2)}
        for stack in sorted(self.failed, key=sorted):
            suspects = stack - self.exonerated
            if suspects & self.culprits:
                continue  # explained
            for flip in suspects:
                self._blame[flip] += 1 / len(suspects)
            if not suspects:
                pairs = [pair for pair in combinations(sorted(stack), 2) if pair not in proven]
                for pair in pairs:
                    self._pair_blame[pair] += 1 / len(pairs)
        self.rate = (1 + len(self.culprits)) / (25 + len(self.exonerated) + len(self.culprits))
        """Chance that a flip of which nothing is known fails alone."""

    def blame(self, flip: int) -> float:
        """Probability that the flip fails alone."""
        if flip in self.culprits:
            return 1.0
        if flip in self.exonerated:
            return 0.0
        return min(_MOST_BLAME, max(self.rate, self._blame.get(flip, 0.0)))

    def may_appeal(self, flip: int, beside: Stack) -> bool:
        """Whether a culprit is worth another trial beside these flips: it failed in few candidates, in none that had them all.

        Some flips work only when another one is set (recorded on an H200: a fusion of convolutions that crashed in all 80
        configurations without the channels-last layout, worked in all 80 with it, and was needed for the best).
        """
        against = self.against.get(flip, [])
        return len(against) < _MOST_FAILURES and not any(beside <= stack for stack in against)

    def is_suspect(self, flip: int) -> bool:
        """Whether it stood in a failure that is not explained yet, and in no success."""
        return flip not in self.exonerated and self._blame.get(flip, 0.0) > 0

    def risk(self, flips: Iterable[int]) -> float:
        """Probability that a candidate fails. 1 for what failed already and for anything with a culprit in it."""
        stack = frozenset(flips)
        if stack in self.failed or stack & self.culprits:
            return 1.0
        safe = 1.0
        for flip in sorted(stack):
            safe *= 1 - self.blame(flip)
        for pair, blame in self._pair_blame.items():
            if pair[0] in stack and pair[1] in stack:
                safe *= 1 - min(_MOST_BLAME, blame)
        return 1 - safe
