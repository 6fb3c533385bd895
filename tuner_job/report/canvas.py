"""Figures that become inline SVG of the page: their style, their range, their labels. Knows matplotlib and nothing of runs.

Colours are CSS variables of the page, so that one drawing suits light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner_job.measure.samples import Floats
from tuner_job.report.words import plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Stand-ins that matplotlib writes and `_themed` replaces; never seen by anybody.
INK, MUTED, GRID, BLUE, GREEN, ORANGE, RED, PURPLE, PAPER = (f"#0{k}0{k}0{k}" for k in range(1, 10))
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--rule",
    BLUE: "--blue",
    GREEN: "--green",
    ORANGE: "--orange",
    RED: "--red",
    PURPLE: "--purple",
    PAPER: "--paper",
}

WIDTH = 9.6
"""Inches; 72 SVG units each."""
MOST_POINTS = 3_000
"""Points of a scatter; more are thinned evenly."""
_LABEL = 118
"""Characters of a route that fit the width."""

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "trtfleet",
    "text.parse_math": False,  # a route may hold `$`
    "font.family": "sans-serif",
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


class NothingToShow(Exception):
    """Why there is no plot, a sentence."""


@dataclass(frozen=True)
class Plot:
    """A drawing, or why there is none."""

    svg: str
    """Empty: see `missing`."""
    alt: str
    """What it shows, for who cannot see it."""
    missing: str = ""


def drawn(name: str, make: Callable[[], tuple[Figure, str]]) -> Plot:
    """The plot that `make` draws, with its text, or why there is none. Never raises: a picture never costs anybody a report."""
    try:
        import matplotlib as mpl

        with mpl.rc_context():
            for setting, value in _STYLE.items():
                mpl.rcParams[setting] = value  # type: ignore[index]  # the stubs list every name; so does matplotlib itself
            figure, alt = make()
            return Plot(_svg(figure, name, alt), alt)
    except NothingToShow as why:
        return Plot("", "", str(why))
    except Exception as error:  # whatever a drawing library does, the numbers on the page stand without it
        return Plot("", "", f"This plot could not be drawn ({type(error).__name__}: {error}); the tables hold the same numbers.")


def figure(height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure as Canvas

    image = Canvas(figsize=(WIDTH, height), layout="constrained")
    return image, image.add_subplot()


def limits(times: Floats) -> tuple[float, float]:
    """The range of times to show: all that is fast, while what is very slow is drawn at the edge."""
    fastest, first, middle, third, slowest = (float(value) for value in np.quantile(times, [0, 0.25, 0.5, 0.75, 1]))
    return fastest, min(slowest, third + max(6 * (third - first), 3 * (middle - fastest)))


def thinned(count: int) -> list[int]:
    return list(range(count)) if count <= MOST_POINTS else [int(k) for k in np.linspace(0, count - 1, MOST_POINTS)]


def short(text: str, limit: int = _LABEL) -> str:
    """One line that fits: the first words whole and how many more there are; a first one too long is cut in the middle."""
    words = plain_text(text).split() or [""]
    shown = next((k for k in range(len(words), 0, -1) if len(" ".join(words[:k])) <= limit), 0)
    if shown == len(words):
        return " ".join(words)
    if shown:
        return f"{' '.join(words[:shown])} … {len(words) - shown} more"
    return f"{words[0][: limit * 2 // 3]}…{words[0][-limit // 3 :]}"


def whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def power_of_ten(value: float) -> str:
    """`10⁻³`; matplotlib's own are formulas, which are off here."""
    return "10" + str(round(np.log10(value))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _svg(figure: Figure, name: str, alt: str) -> str:
    """Inline SVG: no prologue, no metadata, ids of its own, sized by the page, colours by its theme."""
    from markupsafe import escape

    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue()
    head, _, body = text[text.index("<svg") :].partition(">")
    view = re.search(r'viewBox="([0-9. -]+)"', head)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", body)
    for color, variable in _VARIABLES.items():
        body = body.replace(color, f"var({variable})")
    return (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{view.group(1) if view else ""}" role="img" '
        f'aria-label="{escape(plain_text(alt))}">{body}'
    )
