"""Why the winner is faster: the layers of two engines, set side by side by the nodes of the model that they do.

Pure: profiles in, a comparison out. Seconds are per inference, a layer timed by itself, which slows the whole: they show where
the difference lies, not how large it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from tuner_job.api.layers import Layer, LayerProfile

SHOWN_GROUPS = 12

SAME = "same"


@dataclass(frozen=True)
class Group:
    """Layers of both engines that do the same part of the model: the smallest such sets."""

    baseline: tuple[Layer, ...]
    candidate: tuple[Layer, ...]
    what: str
    """`same`, `fused`, `split`, `regrouped`, `only in the default`, `only in the candidate`, or what differs: `tactic`, …"""

    @property
    def changed(self) -> bool:
        return self.what != SAME

    @property
    def baseline_seconds(self) -> float | None:
        return _total(self.baseline)

    @property
    def candidate_seconds(self) -> float | None:
        return _total(self.candidate)

    @property
    def saved(self) -> float | None:
        """Seconds that the candidate saves here; None when a side was not timed."""
        before, after = self.baseline_seconds, self.candidate_seconds
        return None if before is None or after is None else before - after

    @property
    def name(self) -> str:
        """What part of the model this is: its nodes, else its layers."""
        layers = self.baseline or self.candidate
        nodes = list(dict.fromkeys(node for layer in layers for node in layer.nodes))
        return _listed(nodes) if nodes else _listed([layer.name for layer in layers])


@dataclass(frozen=True)
class Comparison:
    """Two engines, layer by layer."""

    groups: tuple[Group, ...]
    """In the default's order; what only the candidate has comes last."""
    baseline_seconds: float | None
    """Sum over the default's layers; None when not all were timed."""
    candidate_seconds: float | None
    clock: str
    runs: int
    counts: tuple[int, int]
    """Layers of the default, of the candidate."""

    @property
    def changed(self) -> tuple[Group, ...]:
        """The groups that differ, those that save or cost most first."""
        return tuple(sorted((group for group in self.groups if group.changed), key=_weight))

    @property
    def saved(self) -> float | None:
        """What all layers together save, in seconds of layers timed by themselves."""
        if self.baseline_seconds is None or self.candidate_seconds is None:
            return None
        return self.baseline_seconds - self.candidate_seconds

    @property
    def top(self) -> tuple[Group, ...]:
        """The largest contributors to the difference, changed or not, largest first."""
        moved = [group for group in self.groups if group.saved]
        return tuple(sorted(moved, key=_weight)[:SHOWN_GROUPS])

    @property
    def explained(self) -> float | None:
        """The share of `saved` that lies in the groups that changed; None when the layers show no saving.

        Over 1 when what did not change took longer.
        """
        if self.saved is None or self.saved <= 0:
            return None
        return sum(group.saved or 0.0 for group in self.changed) / self.saved

    @property
    def kinds(self) -> tuple[tuple[str, int], ...]:
        """What changed and how often, the commonest first."""
        return tuple(Counter(group.what for group in self.groups if group.changed).most_common())


def compare(baseline: LayerProfile, candidate: LayerProfile) -> Comparison:
    """Set the layers of two engines side by side."""
    pairs = _aligned(baseline.layers, candidate.layers)
    return Comparison(
        groups=tuple(Group(one, other, _what(one, other)) for one, other in pairs),
        baseline_seconds=_total(baseline.layers),
        candidate_seconds=_total(candidate.layers),
        clock=candidate.clock or baseline.clock,
        runs=min(baseline.runs, candidate.runs),
        counts=(len(baseline.layers), len(candidate.layers)),
    )


_Pair = tuple[tuple[Layer, ...], tuple[Layer, ...]]


def _aligned(baseline: Sequence[Layer], candidate: Sequence[Layer]) -> list[_Pair]:
    """Layers that share a node of the model belong together, and so does whatever those share nodes with.

    A layer whose nodes are unknown, or not done by any layer of the other engine, is paired by name and kind, then by kind and
    order: names may change from build to build.
    """
    shared = {node for layer in baseline for node in layer.nodes} & {node for layer in candidate for node in layer.nodes}
    sides = (baseline, candidate)
    parents: dict[Hashable, Hashable] = {}

    def root(item: Hashable) -> Hashable:
        while parents.setdefault(item, item) != item:
            parents[item] = parents[parents[item]]
            item = parents[item]
        return item

    loose: tuple[list[int], list[int]] = ([], [])
    for side, layers in enumerate(sides):
        for index, layer in enumerate(layers):
            common = [node for node in layer.nodes if node in shared]
            if not common:
                loose[side].append(index)
            for node in common:
                parents[root(("node", node))] = root((side, index))
    sets: dict[Hashable, tuple[list[int], list[int]]] = {}
    for side, layers in enumerate(sides):
        known = set(loose[side])
        for index in range(len(layers)):
            if index not in known:
                sets.setdefault(root((side, index)), ([], []))[side].append(index)
    found = [(tuple(one), tuple(other)) for one, other in sets.values()]
    found += _paired(sides, loose)
    found.sort(key=lambda pair: (not pair[0], pair[0] or pair[1]))
    return [(tuple(baseline[i] for i in one), tuple(candidate[i] for i in other)) for one, other in found]


def _paired(
    sides: tuple[Sequence[Layer], Sequence[Layer]], loose: tuple[list[int], list[int]]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Layers without a common node: by kind and name, then by kind alone, each in order. Who finds no partner stands alone."""
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    left, right = loose
    keys: tuple[Callable[[Layer], Hashable], ...] = (lambda layer: (layer.kind, layer.name), lambda layer: layer.kind)
    for key in keys:
        waiting: dict[Hashable, list[int]] = {}
        for index in reversed(right):
            waiting.setdefault(key(sides[1][index]), []).append(index)
        unmatched = []
        for index in left:
            partners = waiting.get(key(sides[0][index]))
            if partners:
                found.append(((index,), (partners.pop(),)))
            else:
                unmatched.append(index)
        left, right = unmatched, sorted(index for partners in waiting.values() for index in partners)
    return found + [((index,), ()) for index in left] + [((), (index,)) for index in right]


def _what(baseline: Sequence[Layer], candidate: Sequence[Layer]) -> str:
    if not candidate:
        return "only in the default"
    if not baseline:
        return "only in the candidate"
    if len(candidate) < len(baseline):
        return "fused"
    if len(candidate) > len(baseline):
        return "split"
    if sorted(sorted(layer.nodes) for layer in baseline) != sorted(sorted(layer.nodes) for layer in candidate):
        return "regrouped"
    first, second = (sorted(layers, key=lambda layer: sorted(layer.nodes)) for layers in (baseline, candidate))
    pairs = list(zip(first, second, strict=True))
    differs = [
        name
        for name, value in (("kind", _kind), ("tactic", _tactic), ("format", _formats))
        if any(value(one) != value(other) for one, other in pairs)
    ]
    return " and ".join(differs) or SAME


def _kind(layer: Layer) -> str:
    return layer.kind


def _tactic(layer: Layer) -> str:
    return layer.tactic


def _formats(layer: Layer) -> tuple[str, ...]:
    return layer.formats


def _total(layers: Iterable[Layer]) -> float | None:
    """None when a layer was not timed."""
    total = 0.0
    for layer in layers:
        if layer.seconds is None:
            return None
        total += layer.seconds
    return total


def _weight(group: Group) -> float:
    return -abs(group.saved or 0.0)


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(name for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
