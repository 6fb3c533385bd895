"""What the terminal shows of a run: its progress, the best, why others lost, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import Interval, ResultRecord, RunRecord, VerdictRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.progress import Leader, Progress

SHOWN_LEADERS = 5
SHOWN_REASONS = 6


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


def latency_text(seconds: float) -> str:
    """With a unit that suits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.4g} {unit}"
    raise AssertionError


def interval_text(interval: Interval) -> str:
    return f"{interval.estimate:+.1%} ({interval.low:+.1%} to {interval.high:+.1%}, {interval.confidence:.0%})"


def leaders_table(leaders: Sequence[Leader], trials: int) -> Table:
    """The best so far, as explore sees them."""
    table = Table(title=f"Best of {trials} trials (explored, not proven)", title_justify="left", title_style="bold")
    table.add_column("gain", justify="right")
    table.add_column("±", justify="right")
    table.add_column("trial")
    table.add_column("candidate", overflow="fold")
    for leader in leaders[:SHOWN_LEADERS]:
        table.add_row(f"{leader.gain:+.1%}", f"{1.96 * leader.sd:.1%}", leader.trial, escape(candidate_text(leader.candidate)))
    return table


def losers_table(results: Iterable[ResultRecord]) -> Table | None:
    """Why others are out: outcomes with their most frequent reasons. None when nothing failed."""
    failed = [result for result in results if result.outcome is not Outcome.FEASIBLE]
    if not failed:
        return None
    counts: dict[tuple[str, str], list[ResultRecord]] = {}
    for result in failed:
        counts.setdefault((result.outcome, result.reason), []).append(result)
    table = Table(title="Why others are out", title_justify="left", title_style="bold")
    table.add_column("trials", justify="right")
    table.add_column("outcome")
    table.add_column("reason", overflow="fold")
    ranked = sorted(counts.items(), key=lambda item: -len(item[1]))
    for (outcome, reason), group in ranked[:SHOWN_REASONS]:
        table.add_row(str(len(group)), outcome, escape(reason or "no reason recorded"))
    if len(ranked) > SHOWN_REASONS:
        table.add_row(str(sum(len(group) for _, group in ranked[SHOWN_REASONS:])), "…", "see the report")
    return table


def outcome_line(progress: Progress) -> str:
    """`12 feasible · 2 infeasible · 1 hung`."""
    counts = [f"{count} {outcome}" for outcome, count in sorted(progress.outcomes.items(), key=lambda item: -item[1])]
    return " · ".join(counts) or "no trial finished yet"


def verdict_text(run: RunRecord, verdict: VerdictRecord) -> RenderableType:
    """What the final found, the two claims apart."""
    lines = []
    if verdict.significant:
        lines.append(Text(f"Proven: {candidate_text(verdict.candidate)}", style="bold green"))
    else:
        lines.append(Text(f"{verdict.reason}: the default engine is published", style="bold yellow"))
    lines.append(Text(f"  {verdict.message}"))
    if verdict.route_gain is not None:
        wanted = run.inputs.min_improvement
        lines.append(Text(f"  route over rebuilds  {interval_text(verdict.route_gain)}; had to exceed {wanted:.1%}"))
    if verdict.engine_gain is not None:
        lines.append(
            Text(
                f"  published bytes      {interval_text(verdict.engine_gain)}: {latency_text(verdict.latency_seconds)} "
                f"against {latency_text(verdict.baseline_seconds)} of the median default build"
            )
        )
    return Group(*lines)


def print_results(console: Console, progress: Progress, results: Sequence[ResultRecord]) -> None:
    if progress.leaders:
        console.print(leaders_table(progress.leaders, progress.finished))
    if (losers := losers_table(results)) is not None:
        console.print(losers)
