"""The page and the plots of a series."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.search import score
from bench.search.score import Result


def label(fraction: float) -> str:
    """Of a budget."""
    return f"{fraction:g} O" if fraction > 0 else f"{-fraction:.0%} of all"


def page(results: Sequence[Result], about: dict[str, str], how: str, large: tuple[int, float, float] | None = None) -> str:
    """Markdown. `large`: results, seconds and megabytes of one large plan."""
    of_each = Counter(player for player, _ in {(one.strategy, one.seed) for one in results})
    seeds = of_each.get(score.OURS, max(of_each.values()))
    others = sorted({count for player, count in of_each.items() if player != score.OURS} - {seeds})
    more = f" (other players: {', '.join(map(str, others))})" if others else ""
    dull = score.easy(results)
    table = score.cells(results)
    lines = [
        "# Search: replays on landscapes",
        "",
        f"`{how}`. What landscapes, players and columns are: [bench/search/README.md](../../search/README.md).",
        f"{seeds} seeds{more}. A share is the true log gain of what was returned over the best one's; 0 when nothing was.",
        "A budget counts every build. O: builds of one-at-a-time.",
        "" if seeds >= 100 else f"\n**{seeds} seeds only: a short run that shows how it works, not a result.**\n",
        "## Targets",
        "",
        "| what | wanted | found | |",
        "|---|---|---|---|",
    ]
    verdict = {True: "met", False: "**missed**", None: "not played"}
    lines += [f"| {one.what} | {one.wanted} | {one.found} | {verdict[one.met]} |" for one in score.targets(results)]
    names = sorted({one.landscape for one in results}, key=lambda name: (name in dull, name))
    for name in names:
        lines += _landscape(name, [one for one in results if one.landscape == name], about.get(name, ""), name in dull)
    lines += _losses(results, dull)
    lines += [
        "",
        "## Worst cases",
        "",
        "| landscape | budget | Adaptive's worst seed | share | median |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {label(fraction)} | {cell.worst_seed} | {cell.worst:.2f} | {cell.median:.2f} |"
        for (name, fraction, strategy), cell in sorted(table.items())
        if strategy == score.OURS and fraction in (1.0, 2.0)
    ]
    lines += _costs(results)
    if large:
        lines += ["", f"One plan of Adaptive after {large[0]:,} results: {large[1]:.1f} s, {large[2]:.0f} MB in all."]
    return "\n".join(lines) + "\n"


def _landscape(name: str, results: Sequence[Result], about: str, dull: bool) -> list[str]:
    table = score.cells(results)
    budgets = {one.fraction: one.budget for one in results}
    fractions = sorted(budgets, key=lambda f: (budgets[f], f))
    lines = [
        "",
        f"## {name}{' (easy: left out of the headline)' if dull else ''}",
        "",
        f"{about}. Best flip alone: {np.median([one.single for one in results]):.0%} of the best gain (median over seeds).",
        "",
        f"![]({name}.svg)",
        "",
        "Median (10th percentile) of the share.",
        "",
        "| player | " + " | ".join(f"{label(f)} = {budgets[f]}" for f in fractions) + " |",
        "|---|" + "---|" * len(fractions),
    ]
    for strategy in _order({one.strategy for one in results}):
        found = [table.get((name, f, strategy)) for f in fractions]
        lines.append(f"| {strategy} | " + " | ".join(f"{c.median:.2f} ({c.tenth:.2f})" if c else "" for c in found) + " |")
    imputed = [one for one in results if one.imputed]
    if imputed:
        lines += ["", f"{len(imputed)} of {len(results)} returned candidates are imputed, not recorded."]
    return lines


def _losses(results: Sequence[Result], dull: set[str]) -> list[str]:
    """Where it is not shown that Adaptive is no more than a point worse."""
    lost = [one for one in score.compare(results) if one.inferior]
    lines = [
        "",
        "## Where Adaptive loses, or may",
        "",
        f"Mean paired difference of shares, Adaptive less the other, and its one-sided 95 % bounds; listed where the lower is "
        f"under {-score.MARGIN:g}. *Loses*: the upper one is under 0.",
        "",
        "| landscape | budget | against | mean | 95 % bounds | pairs | |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in sorted(lost, key=lambda one: one.mean):
        verdict = "**loses**" if one.upper < 0 else "not shown"
        lines.append(
            f"| {one.landscape}{' (easy)' if one.landscape in dull else ''} | {label(one.fraction)} | {one.other} "
            f"| {one.mean:+.3f} | {one.lower:+.3f}, {one.upper:+.3f} | {one.pairs} | {verdict} |"
        )
    return lines if lost else [*lines[:3], "Nowhere."]


def _costs(results: Sequence[Result]) -> list[str]:
    largest: dict[str, list[Result]] = defaultdict(list)
    for one in results:
        largest[one.strategy].append(one)
    lines = [
        "",
        "## What planning costs",
        "",
        "At the largest budget played. Memory is the most that the playing process ever held, landscape and packages included.",
        "",
        "| player | builds | failed builds | planning s (median) | slowest single plan s | memory MB |",
        "|---|---|---|---|---|---|",
    ]
    for strategy in _order(set(largest)):
        most = max(one.budget for one in largest[strategy])
        mine = [one for one in largest[strategy] if one.budget == most]
        lines.append(
            f"| {strategy} | {most} | {np.median([one.failures / max(1, one.builds) for one in mine]):.0%} "
            f"| {np.median([one.planning_seconds for one in mine]):.1f} | {max(one.slowest_plan for one in mine):.2f} "
            f"| {max(one.memory_mb for one in mine):.0f} |"
        )
    return lines


def _order(strategies: set[str]) -> list[str]:
    return sorted(strategies, key=lambda name: (name != score.OURS, name != score.BASIC, name))


def plots(results: Sequence[Result], folder: Path) -> None:
    """An SVG for each landscape: median as a line, from the 10th percentile on as a band for Adaptive."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "trtfleet"
    from matplotlib import pyplot as plt

    for name in sorted({one.landscape for one in results}):
        mine = [one for one in results if one.landscape == name]
        table = score.cells(mine)
        budgets = {one.fraction: one.budget for one in mine}
        figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
        for strategy in _order({one.strategy for one in mine}):
            points = sorted((budgets[f], c.median, c.tenth) for (_, f, s), c in table.items() if s == strategy)
            x, medians, tenths = (list(column) for column in zip(*points, strict=True))
            ours = strategy == score.OURS
            (line,) = axes.plot(x, medians, marker="o", lw=2.5 if ours else 1.2, ms=4, label=strategy, zorder=3 if ours else 2)
            axes.plot(x, tenths, ls=":", lw=1.5 if ours else 0.8, color=line.get_color())
        axes.set(xlabel="builds, all counted", ylabel="share of the best log gain", title=name, xscale="log", ylim=(-0.15, 1.05))
        axes.axhline(1, color="0.8", lw=0.8)
        axes.set_xticks(sorted(set(budgets.values())), [str(b) for b in sorted(set(budgets.values()))], rotation=45)
        axes.minorticks_off()
        axes.legend(fontsize="small", ncols=2)
        axes.text(0.01, 0.01, "solid: median, dotted: 10th percentile", transform=axes.transAxes, fontsize="x-small")
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)
