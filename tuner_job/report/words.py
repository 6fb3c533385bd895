"""How candidates, numbers and failures read: shared by the terminal and the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import Interval, ResultRecord
from tuner_job.api.outcome import Outcome

_NUMBER = re.compile(r"\d[\w.+-]*")
# Control characters but newline and tab, what reorders text, and lone surrogates: nothing that foreign text may bring along.
_UNSHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Group:
    """Trials that are out for one reason."""

    outcome: str
    reason: str
    """Of the first of them; numbers differ among the others."""
    trials: tuple[str, ...]


def plain_text(text: str) -> str:
    """Foreign text with everything that steers a terminal, reorders a line or is no character at all replaced."""
    return _UNSHOWN.sub("�", text)


def candidate_text(candidate: Candidate) -> str:
    """A candidate in one line, for people."""
    parts = [candidate.route] if candidate.route else []
    parts += [f"{name}={value}" for name, value in sorted(candidate.settings.items())]
    if candidate.variant != "default":
        parts.append(f"variant {candidate.variant}")
    return " ".join(parts) or "(default)"


def seconds_text(seconds: float) -> str:
    """`12 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def latency_text(seconds: float, like: float | None = None) -> str:
    """With a unit that suits, or with the one that suits `like`."""
    unit, factor = latency_unit(seconds if like is None else like)
    return f"{seconds * factor:.4g} {unit}"


def latency_unit(seconds: float) -> tuple[str, float]:
    """The unit that suits, and how many of it are in a second."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return unit, factor
    return "µs", 1e6


def interval_text(interval: Interval) -> str:
    return f"{interval.estimate:+.1%} ({interval.low:+.1%} to {interval.high:+.1%}, {interval.confidence:.0%})"


def outcomes_text(outcomes: Mapping[Outcome, int]) -> str:
    """`12 feasible · 2 infeasible · 1 hung`."""
    counts = [f"{count} {outcome}" for outcome, count in sorted(outcomes.items(), key=lambda item: (-item[1], item[0]))]
    return " · ".join(counts) or "no trial finished yet"


def failures(results: Iterable[ResultRecord]) -> list[Group]:
    """Why trials are not feasible, the commonest reason first. Reasons that differ in numbers alone are one."""
    groups: dict[tuple[str, str], list[ResultRecord]] = {}
    for result in results:
        if result.outcome is not Outcome.FEASIBLE:
            groups.setdefault((result.outcome, _NUMBER.sub("#", result.reason)), []).append(result)
    found = [
        Group(outcome, group[0].reason or "no reason recorded", tuple(result.trial for result in group))
        for (outcome, _), group in groups.items()
    ]
    return sorted(found, key=lambda group: -len(group.trials))
