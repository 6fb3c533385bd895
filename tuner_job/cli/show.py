"""What the terminal shows of a run: its progress, the best, why others lost, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tuner_job.api.messages import ResultRecord, VerdictRecord
from tuner_job.campaign.leaders import Leader
from tuner_job.campaign.progress import Progress
from tuner_job.report.words import candidate_text, failures, interval_text, latency_text

SHOWN_LEADERS = 5
SHOWN_REASONS = 6


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
    ranked = failures(results)
    if not ranked:
        return None
    table = Table(title="Why others are out", title_justify="left", title_style="bold")
    table.add_column("trials", justify="right")
    table.add_column("outcome")
    table.add_column("reason", overflow="fold")
    for group in ranked[:SHOWN_REASONS]:
        table.add_row(str(len(group.trials)), group.outcome, escape(group.reason))
    if len(ranked) > SHOWN_REASONS:
        table.add_row(str(sum(len(group.trials) for group in ranked[SHOWN_REASONS:])), "…", "see the report")
    return table


def verdict_text(verdict: VerdictRecord) -> RenderableType:
    """What the final found, the two claims apart."""
    lines = []
    if verdict.significant:
        lines.append(Text(f"Proven: {candidate_text(verdict.candidate)}", style="bold green"))
    else:
        reason = "NoSignificantWin" if verdict.reason == "NoCandidate" else verdict.reason  # the message says the rest
        lines.append(Text(f"{reason}: the default engine is published", style="bold yellow"))
    lines.append(Text(f"  {verdict.message}"))
    if verdict.engine_gain is not None:
        lines.append(
            Text(
                f"  published bytes: {interval_text(verdict.engine_gain)}: {latency_text(verdict.latency_seconds)} "
                f"against {latency_text(verdict.baseline_seconds)} of the median default build"
            )
        )
    return Group(*lines)


def print_results(console: Console, progress: Progress, results: Sequence[ResultRecord]) -> None:
    if progress.leaders:
        console.print(leaders_table(progress.leaders, progress.finished))
    if (losers := losers_table(results)) is not None:
        console.print(losers)
