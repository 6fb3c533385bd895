"""What campaigns on many workers show: efficiency, rows over seeds, missed targets, the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.scaling.campaign import KILLED, KINDS, Outturn
from bench.scaling.children import STRAGGLERS, Durations

TARGETS = {32: 0.9, 64: 0.8}


def efficiency(one: Outturn, alone: Outturn) -> float:
    """Time that its trials would take on as many workers, each as busy as the one of `alone`, over the time that it took.

    `alone`: one undisturbed worker, with as many controls a trial as it wants; so ideal workers share the trials perfectly.
    """
    needed = one.seconds["trials"] * (1 + alone.seconds["controls"] / alone.seconds["trials"])
    return needed / (one.scene.workers * one.makespan)


@dataclass(frozen=True)
class Row:
    """One pool and length, over seeds (means)."""

    workers: int
    trials: int
    whole_rounds: bool
    """Without overlap: for comparison."""
    kills: str
    seeds: int
    efficiency: float
    lowest: float
    rounds: float
    hours: float
    of_time: Mapping[str, float]
    share: float


def rows(outturns: Sequence[Outturn]) -> list[Row]:
    alone = {(o.scene.trials, o.scene.seed): o for o in outturns if o.scene.workers == 1}
    groups: dict[tuple[int, float, float, int], list[Outturn]] = {}
    for one in (o for o in outturns if (o.scene.trials, o.scene.seed) in alone):
        key = (one.scene.trials, one.scene.killed_tries, -one.scene.overlap, one.scene.workers)
        groups.setdefault(key, []).append(one)
    found = []
    for (trials, tries, whole, workers), members in sorted(groups.items()):
        values = [efficiency(one, alone[trials, one.scene.seed]) for one in members]
        found.append(
            Row(
                workers=workers,
                trials=trials,
                whole_rounds=whole > 0,
                kills=f"{tries:.0%} of the tries" if tries else "none" if workers == 1 else f"{KILLED:.0%} of the workers",
                seeds=len(members),
                efficiency=float(np.mean(values)),
                lowest=min(values),
                rounds=float(np.mean([one.rounds for one in members])),
                hours=float(np.mean([one.makespan for one in members])) / 3600,
                of_time={kind: float(np.mean([one.of_time(kind) for one in members])) for kind in KINDS},
                share=float(np.mean([one.share for one in members])),
            )
        )
    return found


def missed(found: Sequence[Row]) -> list[str]:
    """Rows below their target, a line each."""
    lines = []
    for one in found:
        target = TARGETS.get(one.workers)
        if target is not None and one.efficiency < target and not one.whole_rounds:
            worst = max(set(KINDS) - {"trials", "controls"}, key=lambda kind: one.of_time[kind])
            lines.append(
                f"{one.workers} workers, {one.trials} trials ({one.trials / one.workers:.1f} each), killed: {one.kills}: "
                f"{one.efficiency:.1%}, target {target:.0%}; most is lost in `{worst}` ({one.of_time[worst]:.1%})"
            )
    return lines


def markdown(found: Sequence[Row], durations: Durations, seconds: float) -> str:
    usual = np.array(durations.usual)
    lines = [
        "# A campaign on 1 to 64 workers",
        "",
        f"`python -m bench.scaling` ({seconds / 60:.0f} minutes). The product's own workers and planning in virtual time;",
        "docs/architecture.md explains. Efficiency: the time that the same trials would take if as many workers, each as busy as",
        "a lone one, shared them perfectly, over the time that they took.",
        "",
        f"Trials take recorded times, scaled to a median of {np.median([*usual, *durations.slow]):.0f} s: "
        f"{usual.min():.0f} to {usual.max():.0f} s, and {STRAGGLERS:.0%} of the routes "
        f"{min(durations.slow):.0f} to {max(durations.slow):.0f} s.",
        "",
        "| trials | workers | killed | seeds | efficiency (lowest) | target | rounds | hours | "
        + " | ".join(KINDS)
        + " | share of the optimum |",
        "|---|---|---|---|---|---|---|---|" + "---|" * len(KINDS) + "---|",
    ]
    for one in found:
        target = f"{TARGETS[one.workers]:.0%}" if one.workers in TARGETS else ""
        lines.append(
            f"| {one.trials} | {one.workers} | {one.kills}{'; whole rounds' * one.whole_rounds} | {one.seeds} "
            f"| **{one.efficiency:.1%}** ({one.lowest:.1%}) | {target} | {one.rounds:.0f} | {one.hours:.2f} | "
            + " | ".join(f"{one.of_time[kind]:.1%}" for kind in KINDS)
            + f" | {one.share:.2f} |"
        )
    lines += [
        "",
        "Shares of the workers' whole time. `controls`: each worker's own default engine, built once and timed again every few",
        "trials; `waiting`: at the end of a round; `ending`: once no trial was left to begin; `lost`: work of killed workers;",
        "`down`: until they were replaced. Share of the optimum: true log gain of the pick over that of the planted optimum.",
        "",
        "## Missed targets",
        "",
        *(f"- {line}" for line in missed(found) or ["None."]),
    ]
    return "\n".join(lines) + "\n"
