"""Adaptive: screen flips in groups, stack the good ones, end by proving the leaders simple.

1. Screening (at most 35 % of the budget, 60 % for a few flips): every flip once alone if the budget allows it, else in two
   sparse groups.
2. Exploring: most trials are wide groups, flips that may still turn out well on top of most of the incumbent. The rest, more of
   it later, are stacks that the posterior holds for the best, the incumbent with one to three flips changed, and rebuilds of the
   leaders.
3. Finishing (last 15 %): nested stacks of the surest flips, the leaders with weak flips taken out, and rebuilds of the leaders.
Inert flips are never dropped for good, for a child may act only beside its parent, nor are flips that failed alone: some work
only beside another. Refused candidates are never tried again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from tuner_job.api.measurement import Candidate
from tuner_job.search.failures import Stack
from tuner_job.search.noise import Array
from tuner_job.search.options import check_names, integer
from tuner_job.search.posterior import Posterior
from tuner_job.search.rounds import Budget, Done, History, Observation, Proposal
from tuner_job.search.singles import on, variants_first
from tuner_job.search.space import VARIANT, Space

_SMALL_ROUND = 16
_TRIALS_PER_WORKER = 4
_SMALLEST_SHARE = 64
"""A round is at least such a part of what was tried before it, lest planning grows with its square."""
_SCREENING_SHARE = 0.35
_FINISHING_SHARE = 0.15
_FEW = 24
"""So few flips are tried alone, since in so small a space most of them matter and would hide each other in groups, …"""
_FEW_SHARE = 0.6
"""… if it takes at most so much of the budget."""
_GROUP_FAILURES = 0.3
"""Groups are made so small that about this share of them fails at most."""
_STACK_RISK = 0.35
_NEW_PER_STACK = 3
"""Flips that never succeeded yet, in one drawn stack."""
_NEEDLESS = 0.0005
"""A flip whose expected gain (log units) is smaller only makes a route longer."""
_TRIES = 30
"""Tries before a share of the round is given up as exhausted."""
_DRAWS_PER_STACK = 8
"""What one draw holds by chance is smaller in the mean of several, and what is _NEEDLESS is left out."""
_MOST_BUILDS = 4
_LEADERS = 5
_TRIALS_PER_APPEAL = 12
"""Of a round there is one trial in so many for flips that only ever failed."""
_WORKING = 200
"""Fastest candidates of which one is taken as company."""
_COMPANY = 8
"""Least number of flips beside which it was not tried yet, in such a trial."""
_WIDEST = 48
"""Flips of a group on top of its base."""
_FLOOR = 1e-4
"""Expected gain (log units) that is left to every flip: the draws are too few to say that there is none."""
_STAYS = 0.85
"""Chance of each flip of the incumbent to stay in a wide group, which tells what it is worth beside the others."""
_EARLY = (0.03, 0.05, 0.87, 0.05)
"""Shares of an exploring round: stacks, neighbours, wide groups, rebuilds; until _EARLY_SHARE of the budget is spent."""
_LATE = (0.4, 0.1, 0.45, 0.05)
_EARLY_SHARE = 0.6


class Adaptive:
    """See the module. Options: `group` (most unknown flips of a group, 8), `rounds` (least number, if workers allow it, 12)."""

    overlaps = True
    """May plan a round while trials of the last one are running (campaign.rounds.overlaps): their results enter the next fit."""

    def __init__(self, options: Mapping[str, str]) -> None:
        check_names("Adaptive", options, ("group", "rounds"))
        self.group = integer(options, "group", 8, 1, 64)
        self.rounds = integer(options, "rounds", 12, 1, 1000)

    def estimate(self, space: Space, budget: Budget) -> int:
        space.require_choices()
        return min(math.prod(len(flips) + 1 for flips in space.dimensions.values()) - 1 + _LEADERS * _MOST_BUILDS, budget.trials)

    def next_round(
        self, space: Space, history: Sequence[Observation], budget: Budget, seed: int, pending: Sequence[Candidate] = ()
    ) -> tuple[Proposal, ...] | Done:
        space.require_choices()
        if not budget.left:
            return Done(f"the budget of {budget.trials} trials is used up")
        # Small rounds learn from each other; so many trials a worker keep it busy.
        small = max(_SMALL_ROUND, _TRIALS_PER_WORKER * budget.workers, budget.spent // _SMALLEST_SHARE)
        size = min(-(-budget.trials // self.rounds), small)
        size = min(budget.next_round, max(1, budget.workers, size))
        round_ = _Round(History(space, history, pending), budget, seed, self.group)
        return tuple(round_.proposals(size)) or Done("every combination within reach was tried, and the leaders rebuilt")


class _Round:
    """One call's view of the search."""

    def __init__(self, past: History, budget: Budget, seed: int, group: int) -> None:
        self.past = past
        self.space = past.space
        self.budget = budget
        self.rng = np.random.default_rng([seed & (2**64 - 1), len(past.observations), budget.spent])
        self.post = Posterior(past)
        self.failures = self.post.failures
        numbers = range(self.post.size)
        self.dimension = [self.post.flips[j].dimension for j in range(len(self.post.flips))]
        self.knobs = [j for j in numbers if self.dimension[j] != VARIANT and j not in self.failures.culprits]
        self.base = self.post.stack(past.best_variant())
        own = frozenset(range(self.post.size))  # a `startWith` may hold flips that the space does not have
        self.incumbent = next((t.stack & own for t in self.post.tried if t.estimate < 0), self.base)
        self.seen = self._seen()
        self.group = self._group_size(group)

    def proposals(self, size: int) -> list[Proposal]:
        """At most `size`; none when nothing is left."""
        variants = variants_first(self.space, self.past)
        found = list(_up_to(size, variants or self._starts()))
        if variants and len(found) >= self.budget.workers:
            return found  # on which of them the rest is best tried is known next
        if (left := size - len(found)) and self._screening():
            found += self._screen(left)
        if (left := size - len(found)) and self.budget.spent >= self.budget.trials * (1 - _FINISHING_SHARE):
            found += _up_to(left, self._finish())
        if left := size - len(found):
            found += self._explore(left)
        if left := size - len(found):
            found += _up_to(left, self._rebuild(left))
        return found

    def _starts(self) -> Iterator[Proposal]:
        """What won elsewhere, as far as this space has it."""
        known = set(self.space.flips)
        for flips in self.space.prior.starts:
            inside = frozenset(flips & known)
            safe = self.failures.risk(self.post.stack(inside)) < 1
            if safe and len({flip.dimension for flip in inside}) == len(inside):
                yield from self.past.new([(self.space.candidate(inside), f"a relative's leader: {self.space.describe(inside)}")])

    # Screening

    def _seen(self) -> list[float]:
        """Per flip: trials that say something of it. A failure that is not explained says little."""
        seen = [0.0] * len(self.post.flips)
        pending = [self.post.stack(self.space.flips_of(c)) for c in self.past.pending]
        timed = set(self.post.timed)
        for i, stack in enumerate(self.post.stacks):
            for j in stack:
                seen[j] += 1.0 if i in timed else 0.25
        for stack in pending:
            for j in stack:
                seen[j] += 1.0
        return seen

    def _group_size(self, most: int) -> int:
        count = len(self.knobs)
        if count <= max(_SCREENING_SHARE * self.budget.trials, min(_FEW, _FEW_SHARE * self.budget.trials)):
            return 1
        wanted = math.ceil(2 * count / max(1.0, _SCREENING_SHARE * self.budget.trials))
        safe = int(math.log(1 - _GROUP_FAILURES) / math.log(1 - min(0.5, self.failures.rate)))
        return max(1, min(wanted, most, max(2, safe)))

    def _screening(self) -> bool:
        needed = 1.0 if self.group == 1 else 2.0
        unknown = any(self.seen[j] < needed for j in self.knobs)
        share = _FEW_SHARE if self.group == 1 and len(self.knobs) <= _FEW else _SCREENING_SHARE
        return unknown and self.budget.spent < share * self.budget.trials

    def _screen(self, count: int) -> list[Proposal]:
        what = "one at a time" if self.group == 1 else f"screening in groups of {self.group}"
        needed = 1.0 if self.group == 1 else 2.0
        wanted = [j for j in self.knobs if self.seen[j] < needed]
        first = all(self.seen[j] == 0 for j in wanted)  # then by family, which is the list's order
        rank = np.arange(len(self.dimension)) if first else self.rng.permutation(len(self.dimension))
        wanted.sort(key=lambda j: (math.floor(self.seen[j]), rank[j]))
        if self.group == 1:
            return [p for j in wanted[:count] for p in self._propose(self.base | {j}, f"{what}: {self._describe([j])}")]
        new = sum(j not in self.failures.exonerated for j in wanted)
        groups = max(-(-new // self.group), -(-len(wanted) // _WIDEST))
        return self._groups(min(count, groups), self.base, wanted, what)

    def _groups(self, count: int, base: Stack, pool: Sequence[int], what: str) -> list[Proposal]:
        """Deal flips, the first of the pool first, into at most `count` groups on top of `base`.

        As many of a group may be flips that never succeeded as keeps it from failing too often; of others there is room for many,
        since one timing says as much of a large group as of a small one. A child that never succeeded beside its parent takes it
        along, for it may act only there.
        """
        groups: list[set[int]] = [set() for _ in range(count)]
        held = {self.dimension[j] for j in base}
        for j in pool:
            if self.dimension[j] in held:
                continue
            company = {j, *(parent for parent in self._alone.get(j, ()) if parent not in base)}
            for group in groups:
                if self._has_room(group | company, base):
                    group |= company
                    break
        found = []
        for group in groups:
            found += self._propose(base | group, f"{what}: {self._describe(sorted(group))}{self._on(base)}") if group else []
        return found

    def _has_room(self, group: set[int], base: Stack) -> bool:
        clash = len({self.dimension[j] for j in group | base}) < len(group | base)
        # One suspect a group: the members of a failed group are told apart by where they succeed next.
        doubts = sum(self.failures.is_suspect(j) for j in group)
        new = sum(j not in self.failures.exonerated for j in group)
        fits = not clash and doubts <= 1 and new <= self.group and len(group) <= _WIDEST
        return fits and self.failures.risk(base | group) <= _GROUP_FAILURES

    @cached_property
    def _alone(self) -> dict[int, list[int]]:
        """Child flip → parents beside which it never succeeded yet, but could."""
        found: dict[int, list[int]] = {}
        together = [bool(column.any()) for column in self.post.x[:, len(self.post.flips) :].T]
        for (child, parent), met in zip(self.post.related, together, strict=False):
            if not met and parent not in self.failures.culprits:
                found.setdefault(child, []).append(parent)
        return {child: parents[:1] for child, parents in found.items()}

    # Exploring

    def _explore(self, count: int) -> list[Proposal]:
        """Stacks, neighbours of the incumbent, wide groups, rebuilds, by _EARLY or _LATE; if a kind is exhausted, others."""
        found: list[Proposal] = []
        shares = _EARLY if self.budget.spent < _EARLY_SHARE * self.budget.trials else _LATE
        kinds = self.rng.choice(4, size=count, p=shares).tolist()
        found += _up_to(kinds.count(3), self._rebuild(kinds.count(3)))
        if 2 * self.budget.spent >= self.budget.trials:  # sooner, what is not known yet promises more
            found += _up_to(min(-(-count // _TRIALS_PER_APPEAL), count - len(found)), self._appeals())
        found += _up_to(min(kinds.count(2), count - len(found)), self._wide_groups())
        found += _up_to(min(kinds.count(1), count - len(found)), self._neighbours())
        found += _up_to(count - len(found), self._stacks())
        found += _up_to(count - len(found), self._neighbours())
        return found + list(_up_to(count - len(found), self._wide_groups()))

    def _wide_groups(self) -> Iterator[Proposal]:
        misses = 0
        while misses < _TRIES:
            made = self._wide_group()
            misses = 0 if made else misses + 1
            yield from made

    def _wide_group(self) -> list[Proposal]:
        """A third of the flips that may still turn out well, on top of most of the incumbent.

        A timing says as much of many flips as of few, if they are mixed anew each time, those of the incumbent among them.
        """
        base = frozenset(sorted(j for j in sorted(self.incumbent) if self.rng.random() < _STAYS or j in self.base))
        hope = -np.minimum(self.post.beside(self.post.fit.samples, base), 0.0).mean(axis=0) + _FLOOR
        held = {self.dimension[j] for j in base}
        pool = [j for j in self.knobs if self.dimension[j] not in held]
        keys = {j: 0.25 * math.log(float(hope[j])) + float(self.rng.gumbel()) for j in pool}
        pool.sort(key=lambda j: -keys[j])
        size = min(_WIDEST, -(-len(pool) // 3))
        return self._groups(1, base, pool[:size], "hopeful flips beside the incumbent")

    def _stacks(self) -> Iterator[Proposal]:
        misses = 0
        while misses < _TRIES:
            stack = self._best_stack(self.post.fit.draw(self.rng, _DRAWS_PER_STACK))
            made = self._propose(stack, f"stack of flips that are probably faster: {self._describe(stack)}")
            misses = 0 if made else misses + 1
            yield from made

    def _best_stack(self, effects: Array) -> Stack:
        """The best candidate if these were the effects, less what is too risky."""
        best = self._improved(effects)
        new = sorted((j for j in best if j not in self.failures.exonerated), key=lambda j: float(effects[j]))
        stack = best - set(new[_NEW_PER_STACK:])
        beside = self.post.beside(effects, stack)
        by_gain = sorted(stack, key=lambda j: (-float(beside[j]) / (1e-3 + self.failures.blame(j)), j))
        while by_gain and self.failures.risk(by_gain) > _STACK_RISK:
            by_gain.pop(0)
        return frozenset(sorted(by_gain))

    def _improved(self, effects: Array) -> Stack:
        """The best flip of every dimension, and then pairs, one or both in or out, where that gains."""
        allowed = frozenset(j for j in self.knobs if j not in self.base)
        best = {self.dimension[j]: j for j in sorted(self.base)}
        for j in sorted(allowed):
            if effects[j] < -_NEEDLESS and (self.dimension[j] not in best or effects[j] < effects[best[self.dimension[j]]]):
                best[self.dimension[j]] = j
        stack = frozenset(best.values())
        value = float(effects @ self.post.row(stack))
        for k, (a, b) in enumerate(self.post.pairs, start=len(self.dimension)):
            # Only what both do together, or what one does that is in, can be worth another look.
            if not effects[k] or a not in allowed or b not in allowed:
                continue
            for changed in ({a}, {b}, {a, b}):
                others = frozenset(j for j in stack if self.dimension[j] not in {self.dimension[c] for c in changed})
                for made in (others, others | changed):
                    if (found := float(effects @ self.post.row(made))) < value - 1e-12:
                        stack, value = made, found
        return stack

    def _neighbours(self) -> Iterator[Proposal]:
        misses = 0
        while misses < _TRIES:
            effects = self.post.beside(self.post.fit.draw(self.rng), self.incumbent)
            effects = effects + self.rng.normal(0, 1e-4, len(effects))
            gain = {j: -float(effects[j]) for j in range(self.post.size) if j not in self.failures.culprits}
            for j in self.incumbent & gain.keys():
                gain[j] = -gain[j]
            changed = sorted(gain, key=lambda j: -gain[j])[: int(self.rng.integers(1, 4))]
            stack = self._toggle(self.incumbent, changed)
            risky = self.failures.risk(stack) > _STACK_RISK
            made = [] if risky else self._propose(stack, f"the incumbent with {self._describe(changed)} changed")
            misses = 0 if made else misses + 1
            yield from made

    def _appeals(self) -> Iterator[Proposal]:
        """Flips that only ever failed, beside candidates that work; and what it is that those need which then worked."""
        for j, mates in self.failures.needs.items():
            half = sorted(mates, key=lambda k: (k not in self.incumbent, k))[: -(-len(mates) // 2)]
            if len(mates) > 1 and max(j, *half) < self.post.size:
                stack = self._toggle(self.incumbent - mates - {j}, [*half, j])
                yield from self.past.new(
                    [(self.space.candidate(self.post.named(stack)), f"what does {self.post.flips[j]} need?")]
                )
        working = [t.stack for t in self.post.tried[:_WORKING] if all(j < self.post.size for j in t.stack)]
        doubtful = [j for j in range(self.post.size) if self.failures.against[j] and self.failures.blame(j) > _GROUP_FAILURES]
        appeals = []
        for j in doubtful:
            company = [self._toggle(stack, [j]) - {j} for stack in working if j not in stack]
            fresh = [len(self.failures.untried_beside(j, rest)) for rest in company]
            if fresh and max(fresh) >= min(_COMPANY, -(-len(self.knobs) // 8)):
                appeals.append((-max(fresh), j, company[fresh.index(max(fresh))]))
        for _, j, beside in sorted(appeals, key=lambda appeal: appeal[:2]):
            failed = f"{self.post.flips[j]} failed in {len(self.failures.against[j])} candidates; does it beside others?"
            yield from self.past.new([(self.space.candidate(self.post.named(beside | {j})), failed)])

    def _toggle(self, stack: Stack, changed: Sequence[int]) -> Stack:
        result = set(stack)
        for j in changed:
            if j in result:
                result.remove(j)
            else:
                result = {other for other in result if self.dimension[other] != self.dimension[j]} | {j}
        return frozenset(sorted(result))

    # Finishing

    def _finish(self) -> Iterator[Proposal]:
        """Rebuilds of the leaders take turns with stacks that are not tried yet."""
        builds, stacks = self._rebuild(_LEADERS * _MOST_BUILDS), self._final_stacks()
        alive = [stacks, builds]
        while alive:
            for source in list(alive):
                proposal = next(source, None)
                if proposal is None:
                    alive.remove(source)
                else:
                    yield proposal

    def _final_stacks(self) -> Iterator[Proposal]:
        effect, sd = self.post.fit.effect, self.post.fit.samples.std(axis=0)
        kept = np.where(effect < -_NEEDLESS, effect, 0.0)
        kept[len(self.dimension) :] = effect[len(self.dimension) :]  # what pairs cost counts too
        best = self._best_stack(kept)
        beside = self.post.beside(effect, best)
        sure = sorted(best, key=lambda j: (round(float(beside[j] / (sd[j] + 1e-6)), 6), j))
        length = min(range(len(sure) + 1), key=lambda k: (round(self.post.predict(frozenset(sure[:k])), 6), k))
        nested = [frozenset(sure[:k]) for k in dict.fromkeys(-(-length * part // 4) for part in (4, 3, 2)) if k]
        for leader in self.post.tried[:2]:
            beside = self.post.beside(effect, leader.stack)
            weak = sorted((j for j in leader.stack if beside[j] > -_NEEDLESS), key=lambda j: (-round(float(beside[j]), 9), j))
            if weak:
                yield from self._propose(leader.stack - set(weak), f"a leader without its {len(weak)} flips that seem needless")
            for j in weak[:2]:
                yield from self._propose(leader.stack - {j}, f"a leader without {self.post.flips[j]}, which seems needless")
        for stack in nested:
            yield from self._propose(stack, f"the {len(stack)} surest flips together: {self._describe(stack)}")

    def _rebuild(self, count: int) -> Iterator[Proposal]:
        """Fresh builds of the leaders, the least built first."""
        leaders = [t for t in self.post.tried[:_LEADERS] if t.stack and t.estimate < 0]
        for builds in range(1, _MOST_BUILDS):
            for rank, leader in enumerate(leaders):
                candidate = self.space.candidate(self.post.named(leader.stack))
                if count > 0 and self.past.builds.get(candidate.id, 0) == builds:
                    count -= 1
                    repeat = self.past.count(candidate)
                    yield Proposal(candidate, f"rebuild of leader {rank + 1}: is it the route or the build?", repeat)

    # Proposing

    def _propose(self, stack: Stack, reason: str) -> list[Proposal]:
        if not all(j < self.post.size for j in stack) or self.failures.risk(stack) >= 1:
            return []
        return list(self.past.new([(self.space.candidate(self.post.named(stack)), reason)]))

    def _describe(self, stack: Sequence[int] | Stack) -> str:
        return self.space.describe(self.post.named(stack))

    def _on(self, base: Stack) -> str:
        if not base:
            return ""
        return on(self.post.named(base)) if base == self.base else f", on top of {len(base)} flips of the incumbent"


def _up_to(count: int, proposals: Iterator[Proposal]) -> Iterator[Proposal]:
    """The first `count`, drawing no further (a proposal that is drawn counts as planned)."""
    while count > 0:
        proposal = next(proposals, None)
        if proposal is None:
            return
        count -= 1
        yield proposal
