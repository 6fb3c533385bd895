"""The page's plots, each with a text that says what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tuner_job.api.outcome import Outcome
from tuner_job.report.canvas import (
    BLUE,
    GREEN,
    GRID,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PURPLE,
    RED,
    NothingToShow,
    Plot,
    drawn,
    figure,
    limits,
    power_of_ten,
    short,
    thinned,
    whole_numbers,
)
from tuner_job.report.data import Page
from tuner_job.report.layers import SAME
from tuner_job.report.noise import Build
from tuner_job.report.words import latency_unit, plain_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_EFFECTS = 24


def all_plots(page: Page) -> dict[str, Plot]:
    """Every plot of the page by name. Never raises."""
    makers = {
        "leaders": leaders,
        "progress": progress,
        "effects": effects,
        "accuracy": accuracy,
        "pilot": pilot,
        "workers": workers,
        "final": final,
        "layers": layers,
    }
    return {name: drawn(name, partial(make, page)) for name, make in makers.items()}


def leaders(page: Page) -> tuple[Figure, str]:
    """Latency of the best candidates, each build with its interval, against the default."""
    if page.baseline_seconds is None or not page.leaders:
        raise NothingToShow("No feasible trial has been timed yet.")
    unit, factor = latency_unit(page.baseline_seconds)
    image, axes = figure(0.62 + 0.42 * len(page.leaders))
    for position, row in enumerate(page.leaders):
        color = BLUE if row.passes_final else ORANGE
        offsets = np.linspace(-0.08, 0.2, len(row.builds)) if len(row.builds) > 1 else [0.06]
        for offset, build in zip(offsets, row.builds, strict=True):
            y = position + offset
            axes.plot([build.seconds_low * factor, build.seconds_high * factor], [y, y], color=color, lw=1.4, alpha=0.55)
            axes.plot(build.seconds * factor, y, "o", color=color, ms=3.5, alpha=0.8)
        axes.plot(row.pooled.seconds * factor, position + 0.06, "|", color=color, ms=12, mew=2)
        name = ("★ " if row.picked else "") + short(row.candidate)
        axes.annotate(
            name, (0, position - 0.29), xycoords=("axes fraction", "data"), fontsize=7, va="center", family="monospace",
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
            fontweight="bold" if row.picked else "normal",
        )  # fmt: skip
        axes.annotate(
            f"{row.pooled.gain:+.1%}", (1.01, position + 0.06), xycoords=("axes fraction", "data"), fontsize=8.5, va="center",
        )  # fmt: skip
    axes.axvline(page.baseline_seconds * factor, color=MUTED, lw=1.2, ls=(0, (4, 3)))
    axes.annotate(
        "default", (page.baseline_seconds * factor, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
        textcoords="offset points", ha="center", color=MUTED, fontsize=8,
    )  # fmt: skip
    axes.set_ylim(len(page.leaders) - 0.55, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{unit} per inference (95% intervals)")
    best = page.leaders[0]
    return image, (
        f"Latency of the {len(page.leaders)} best candidates with 95% intervals. The best explored is {best.candidate} at "
        f"{best.pooled.seconds * factor:.4g} {unit}; the default takes {page.baseline_seconds * factor:.4g} {unit}."
    )


def progress(page: Page) -> tuple[Figure, str]:
    """Gain of every finished trial, and the best so far."""
    done = sorted((row for row in page.trials if row.order is not None), key=lambda row: row.order or 0)
    timed = [(row.order or 0, row.estimate.gain) for row in done if row.outcome == Outcome.FEASIBLE and row.estimate]
    if not timed:
        raise NothingToShow(f"{len(done)} trials have finished, but none of them is feasible with a timing.")
    x, y = np.array(timed, dtype=float).T
    best = np.maximum.accumulate(np.maximum(y, 0.0))
    low, high = (-limit for limit in reversed(limits(-100 * y)))
    low, high = min(low, 0.0), max(high, 0.0)
    image, axes = figure(3.3)
    kept = thinned(x.size)
    shown = np.clip(y * 100, low, high)
    axes.plot(x[kept], shown[kept], "o", color=BLUE, ms=4.5, alpha=0.55, label="feasible trial", mew=0)
    axes.step([0, *x, len(done)], [0, *best * 100, best[-1] * 100], where="post", color=GREEN, lw=1.8, label="best so far")
    lost = [row.order or 0 for row in done if row.outcome != Outcome.FEASIBLE]
    if lost:
        axes.plot(lost, np.full(len(lost), low), "x", color=RED, ms=4, label="not feasible")
    axes.axhline(0, color=MUTED, lw=1, ls=(0, (4, 3)))
    marks = [row.finished for row in page.rounds if row.folded is not None and 0 < row.finished < len(done)]
    for mark in marks:
        axes.axvline(mark + 0.5, color=MUTED, lw=0.7, ls=":")
    if marks:
        axes.plot([], [], color=MUTED, lw=0.7, ls=":", label="end of a round")
    margin = 0.06 * (high - low) or 1.0
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(0, len(done) + 1)
    axes.set_xlabel("trials finished")
    whole_numbers(axes)
    axes.set_ylabel("gain over the default, %")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.13), ncols=4)
    return image, (
        f"Gain against trials: {len(done)} trials finished, {len(timed)} feasible and timed; the best so far ends at "
        f"{best[-1]:+.1%} over the default, first seen at trial {int(x[np.argmax(best >= best[-1])])}."
    )


def effects(page: Page) -> tuple[Figure, str]:
    """Estimated effect of each choice; the clearest ones."""
    known = [
        (effect, 100 * effect.saved, 100 * effect.saved_low, 100 * effect.saved_high)
        for effect in page.effects
        if effect.saved is not None and effect.saved_low is not None and effect.saved_high is not None
    ]
    if not known:
        raise NothingToShow("No feasible trial with a knob set has been timed yet.")
    clearest = sorted(known, key=lambda item: -abs(item[1]) / max(item[3] - item[2], 1e-9))[:SHOWN_EFFECTS]
    clearest.sort(key=lambda item: -item[1])
    image, axes = figure(0.65 + 0.205 * len(clearest))
    for position, (_, middle, low, high) in enumerate(clearest):
        color = GREEN if low > 0 else RED if high < 0 else MUTED
        axes.plot([low, high], [position, position], color=color, lw=2, alpha=0.6, solid_capstyle="round")
        axes.plot(middle, position, "o", color=color, ms=4.5)
    axes.axvline(0, color=MUTED, lw=1, ls=(0, (4, 3)))
    labels = [f"{short(effect.choice, 52)}  ({effect.timed})" for effect, *_ in clearest]
    axes.set_yticks(range(len(clearest)), labels, family="monospace", fontsize=7.5)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(False, axis="y")
    axes.set_ylim(len(clearest) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("less time per inference, % (95% intervals; in brackets: feasible trials behind it)")
    top = clearest[0]
    return image, (
        f"Estimated effect of {len(clearest)} of {len(known)} choices. Largest saving: {top[0].choice}, {top[1]:+.1f}% "
        f"({top[2]:+.1f} to {top[3]:+.1f}%). The table below lists all."
    )


def accuracy(page: Page) -> tuple[Figure, str]:
    """Loss of the judged metric against latency."""
    if page.baseline_seconds is None:
        raise NothingToShow("Nothing has been timed yet.")
    rows = [row for row in page.trials if row.loss is not None]
    if not rows:
        raise NothingToShow("No trial has been compared with the references yet.")
    unit, factor = latency_unit(page.baseline_seconds)
    positive = [value for value in (*(row.loss or 0.0 for row in rows), page.baseline_loss or 0.0) if value > 0]
    floor = min([*positive, page.threshold]) / 10
    top = max([*positive, page.screening_threshold]) * 3
    image, axes = figure(3.6)
    times = np.array([row.estimate.seconds for row in rows if row.estimate] + [page.baseline_seconds]) * factor
    low, high = limits(times)
    beyond = high + 0.06 * ((high - low) or high)
    kinds: dict[str, list[tuple[float, float]]] = {}
    for row in (rows[k] for k in thinned(len(rows))):
        x = min(row.estimate.seconds * factor, high) if row.estimate else beyond
        kinds.setdefault(_kind(row.outcome, row.passes_final), []).append((x, max(row.loss or 0.0, floor)))
    for kind, marker, color in (
        ("passes the final threshold", "o", BLUE),
        ("passes screening only", "D", ORANGE),
        ("infeasible", "x", RED),
        ("another outcome", "+", PURPLE),
    ):
        if kind in kinds:
            x, y = np.array(kinds[kind]).T
            axes.plot(x, y, marker, color=color, ms=4.5, alpha=0.65, mew=1.3 if marker in "x+" else 0, label=f"{kind} ({len(x)})")
    if page.baseline_loss is not None:
        axes.plot(page.baseline_seconds * factor, max(page.baseline_loss, floor), "*", color=INK, ms=10, mew=0, label="default")
    for value, name, shift, side in ((page.threshold, "final", -2, "top"), (page.screening_threshold, "screening", 2, "bottom")):
        axes.axhline(value, color=RED, lw=1, ls=(0, (4, 3)), alpha=0.8)
        axes.annotate(f"{name} threshold", (1, value), xycoords=("axes fraction", "data"), xytext=(-2, shift),
                      textcoords="offset points", ha="right", va=side, fontsize=7.5, color=RED)  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: power_of_ten(value))
    axes.set_ylim(floor / 2, top)
    if any(row.estimate is None for row in rows):
        axes.axvline((high + beyond) / 2, color=GRID, lw=0.8)
        axes.annotate("not timed", (beyond, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
                      ha="center", fontsize=7.5, color=MUTED)  # fmt: skip
    if any((row.loss or 0.0) <= 0 for row in rows) or page.baseline_loss == 0:
        axes.axhspan(floor / 2, floor * 2, color=GRID, alpha=0.35, lw=0)
        axes.annotate("no loss at all", (0, floor), xycoords=("axes fraction", "data"), xytext=(3, 0),
                      textcoords="offset points", va="center", fontsize=7.5, color=MUTED)  # fmt: skip
    axes.set_xlabel(f"{unit} per inference")
    axes.set_ylabel(f"worst {page.loss_metric} loss")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.13), ncols=5, handletextpad=0.3)
    passing = len([row for row in rows if row.passes_final])
    return image, (
        f"Worst {page.loss_metric} loss against latency of {len(rows)} trials on a logarithmic scale; {passing} are under the "
        f"final threshold of {page.threshold:g}."
    )


def pilot(page: Page) -> tuple[Figure, str]:
    """Sessions of the pilot's default builds."""
    if page.noise is None or not page.noise.pilot:
        raise NothingToShow("The pilot has not been measured, or all of its sessions were throttled.")
    image = _strips(page.noise.pilot)
    return image, (
        f"Sessions of {len(page.noise.pilot)} default builds of the pilot. Standard deviation between builds "
        f"{page.noise.build_sd:.2%}, between sessions of one build {page.noise.session_sd:.2%}."
    )


def workers(page: Page) -> tuple[Figure, str]:
    """Controls of each worker over the run."""
    if page.noise is None or not any(worker.values for worker in page.noise.workers):
        raise NothingToShow("No worker has timed its own default engine beside its trials yet.")
    image, axes = figure(2.5)
    styles = [(BLUE, "o"), (GREEN, "s"), (ORANGE, "D"), (PURPLE, "^"), (RED, "v"), (MUTED, "P")]
    every = [100 * value for worker in page.noise.workers for value in worker.values]
    low, high = limits(np.array(every))
    for number, worker in enumerate(page.noise.workers):
        color, marker = styles[number % len(styles)]
        values = np.clip(100 * np.array(worker.values), low, high)
        label = plain_text(worker.name) if number < len(styles) else None
        axes.plot(worker.after, values, marker, ls="-", color=color, ms=4, lw=0.9, alpha=0.75, label=label)
    axes.axhline(0, color=MUTED, lw=1, ls=(0, (4, 3)))
    axes.set_xlabel("trials finished")
    whole_numbers(axes)
    axes.set_ylabel("against the pilot, %")
    if len(page.noise.workers) > 1:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.17), ncols=6)
    return image, (
        f"{len(every)} timings of the default engine by {len(page.noise.workers)} workers over the run, "
        f"{min(every):+.1f} to {max(every):+.1f}% from the pilot's median."
    )


def final(page: Page) -> tuple[Figure, str]:
    """Sessions of every build of the final, candidate against default."""
    if page.noise is None or not page.noise.final:
        raise NothingToShow("There are no sessions of a final yet.")
    builds = page.noise.final
    image = _strips(builds)
    own = [build.median for build in builds if build.is_candidate]
    default = [build.median for build in builds if not build.is_candidate]
    if not own:
        return image, f"The final timed {len(default)} default builds and no candidate."
    wins = np.mean([one < other for one in own for other in default]) if default else 0.0
    return image, (
        f"Sessions of the final: {len(own)} candidate builds against {len(default)} default builds, fastest at the top. "
        f"The candidate's build is the faster one in {wins:.0%} of all pairs."
    )


def layers(page: Page) -> tuple[Figure, str]:
    """Time by part of the model in both engines, where it changed most."""
    parts = [
        (part, part.baseline_seconds, part.candidate_seconds)
        for part in page.why.top
        if part.baseline_seconds is not None and part.candidate_seconds is not None
    ]
    if not parts:
        raise NothingToShow("No layer's time differs, or none was timed.")
    unit, factor = latency_unit(max(max(before, after) for _, before, after in parts))
    image, axes = figure(0.75 + 0.42 * len(parts))
    for position, (_, before, after) in enumerate(parts):
        axes.barh(position - 0.02, before * factor, height=0.22, color=MUTED, alpha=0.6)
        axes.barh(position + 0.22, after * factor, height=0.22, color=GREEN if after < before else RED)
    for position, (part, _, _) in enumerate(parts):
        axes.annotate(
            f"{short(part.name, 84)}  {'' if part.what == SAME else f'({part.what})'}", (0, position - 0.27),
            xycoords=("axes fraction", "data"), xytext=(2, 0), textcoords="offset points", fontsize=7, va="center",
            family="monospace", bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.4, "alpha": 0.85},
        )  # fmt: skip
        axes.annotate(
            f"{-(part.saved or 0.0) * factor:+.3g}", (1.01, position + 0.08), xycoords=("axes fraction", "data"), fontsize=8.5,
            va="center",
        )  # fmt: skip
    axes.set_ylim(len(parts) - 0.5, -0.6)
    axes.set_yticks([])
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{unit} per inference, each layer timed by itself (right: difference)")
    first = parts[0][0]
    return image, (
        f"Time in the default and in the candidate of the {len(parts)} parts of the model that changed most. The first is "
        f"{first.name} ({first.what}): {parts[0][1] * factor:.3g} against {parts[0][2] * factor:.3g} {unit}."
    )


def _strips(builds: Sequence[Build]) -> Figure:
    """A row per build: every session a dot, the median a bar."""
    image, axes = figure(0.75 + 0.2 * len(builds))
    every = 100 * np.concatenate([build.sessions for build in builds])
    low, high = limits(every)
    for position, build in enumerate(builds):
        color = GREEN if build.is_candidate else MUTED
        values = np.clip(100 * np.array(build.sessions), low, high)
        axes.plot(values, np.full(values.size, position), "o", color=color, ms=3.5, alpha=0.35, mew=0)
        axes.plot(100 * build.median, position, "|", color=color, ms=10, mew=2.2)
    axes.axvline(0, color=MUTED, lw=1, ls=(0, (4, 3)))
    axes.set_yticks(range(len(builds)), [plain_text(build.name) for build in builds], fontsize=8)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(builds) - 0.4, -0.6)
    pad = 0.04 * (high - low) or 0.1
    axes.set_xlim(low - pad, high + pad)
    axes.set_xlabel("time per inference against the median default build, % (dot: a session, bar: a build's median)")
    return image


def _kind(outcome: str, passes_final: bool | None) -> str:
    if outcome == Outcome.FEASIBLE:
        return "passes the final threshold" if passes_final else "passes screening only"
    return "infeasible" if outcome == Outcome.INFEASIBLE else "another outcome"
