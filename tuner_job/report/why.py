"""Why the candidate is faster or is not, as the page says it: what changed between the engines, and where the time went."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner_job.api.base import TrtfleetError
from tuner_job.api.layers import Layer, LayerProfile
from tuner_job.api.messages import VerdictRecord
from tuner_job.report.layers import Comparison, Group, compare
from tuner_job.report.words import latency_text

SHOWN_CHANGES = 200
SHOWN_LAYERS = 4
"""Of one side of a row."""

SLOWS = "Timing every layer by itself slows the whole: these times say where the difference lies, never how large it is."


_NO_CANDIDATE = "The final had no candidate whose layers could be compared with the default's."
_NO_LAYERS = "No layers are on record: the library does not tell what an engine is made of, or they could not be read then."


@dataclass(frozen=True)
class Part:
    """A part of the model and what does it in either engine."""

    name: str
    what: str
    """As layers.Group."""
    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    baseline_seconds: float | None
    candidate_seconds: float | None
    saved: float | None


@dataclass(frozen=True)
class Why:
    """The section."""

    missing: str
    """Why there is nothing to show; empty when there is."""
    lines: tuple[str, ...] = ()
    """What it comes to, a sentence each."""
    changes: tuple[Part, ...] = ()
    """Parts that differ, at most SHOWN_CHANGES, those that moved most first."""
    more_changes: int = 0
    top: tuple[Part, ...] = ()
    """The largest contributors to the difference."""
    clock: str = ""


def why_of(
    verdict: VerdictRecord | None, read: Callable[[], Mapping[str, LayerProfile]], *, fingerprints_hold: bool = True
) -> Why:
    """`read`: the layers of both sides, as stored; what it raises is said on the page, for no layer decides anything.

    `fingerprints_hold`: as discover found; without it equal fingerprints mean nothing.
    """
    if verdict is None:
        return Why("There is no verdict yet; layers are read in the final.")
    same = _same_engine(verdict) if fingerprints_hold else ""
    try:
        layers = read()
    except TrtfleetError as error:
        return Why(f"The layers could not be read: {error}")
    if "baseline" not in layers or "candidate" not in layers:
        return Why(same or (_NO_CANDIDATE if verdict.candidate.is_baseline else _NO_LAYERS))
    found = compare(layers["baseline"], layers["candidate"])
    changed = found.changed
    return Why(
        missing="",
        lines=tuple(line for line in (same, *_lines(found, same)) if line),
        changes=tuple(_part(group) for group in changed[:SHOWN_CHANGES]),
        more_changes=max(0, len(changed) - SHOWN_CHANGES),
        top=tuple(_part(group) for group in found.top),
        clock=f"{found.clock}, medians of {found.runs} inferences" if found.clock and found.runs else found.clock,
    )


def _same_engine(verdict: VerdictRecord) -> str:
    """A sentence when every candidate build is an engine that the default also gave."""
    prints = {
        side: {build.engine.fingerprint for build in verdict.builds if build.name.startswith(side)}
        for side in ("candidate-", "baseline-")
    }
    if not prints["candidate-"] or "" in prints["candidate-"] or not prints["candidate-"] <= prints["baseline-"]:
        return ""
    return (
        "Candidate and default are the same engine: every fingerprint of the candidate's builds is also one of the default's. "
        "What was measured between them is chance."
    )


def _lines(found: Comparison, same: str) -> Iterable[str]:
    kinds = found.kinds
    yield f"The default has {found.counts[0]} layers, the candidate {found.counts[1]}."
    if not kinds and not same:
        yield "No layer differs as far as the library tells."
    if kinds:
        yield f"Parts of the model that differ: {', '.join(f'{count} × {what}' for what, count in kinds)}."
    if found.saved is None or not found.baseline_seconds:
        yield "The layers were not timed one by one, so where the time went is not known."
        return
    before, after = found.baseline_seconds, found.candidate_seconds or 0.0
    share = abs(found.saved) / before
    yield (
        f"Timed one by one, the layers take {latency_text(before)} in the default and {latency_text(after, before)} in the "
        f"candidate: {share:.1%} {'less' if found.saved >= 0 else 'more'}."
    )
    if found.explained is not None and kinds:
        yield f"The parts that differ account for {found.explained:.0%} of that."
    if found.saved <= 0 and kinds:
        yield "The layers by themselves show no gain, so it lies between them: fewer launches, or more that runs at a time."
    yield SLOWS


def _part(group: Group) -> Part:
    return Part(
        name=group.name,
        what=group.what,
        baseline=_texts(group.baseline),
        candidate=_texts(group.candidate),
        baseline_seconds=group.baseline_seconds,
        candidate_seconds=group.candidate_seconds,
        saved=group.saved,
    )


def _texts(layers: Sequence[Layer]) -> tuple[str, ...]:
    shown = tuple(_text(layer) for layer in layers[:SHOWN_LAYERS])
    return shown if len(layers) <= SHOWN_LAYERS else (*shown, f"… {len(layers) - SHOWN_LAYERS} more")


def _text(layer: Layer) -> str:
    """`Convolution · sm90_xmma_… · Half NHWC`."""
    return " · ".join(part for part in (layer.kind or layer.name, layer.tactic, ", ".join(layer.formats)) if part)
