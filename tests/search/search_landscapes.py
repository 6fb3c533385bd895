"""A landscape small enough to know by heart."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # bench is no part of the package

from bench.search.landscape import Landscape, Truth, knob_list
from bench.search.noise import Noise, make
from tuner_job.api.outcome import Outcome
from tuner_job.routes.select import select
from tuner_job.search.space import Flip, Flips, Space

A, B, C2, C3 = Flip("-a", "on"), Flip("-b", "on"), Flip("-c", "2"), Flip("-c", "3")
SILENT = make("none", 0.0, [0.0, 0.0], [0.0, 0.0], 2)
LOUD = make("loud", 0.01, [0.0, 0.02, -0.02], [0.01, 0.03, -0.01], 2)


def space() -> Space:
    knobs = knob_list({"-a": ("off", "on"), "-b": ("off", "on"), "-c": ("1", "2", "3")})
    return Space(knobs, select(knobs))


def table(rows: dict[Flips, Truth], noise: Noise = SILENT) -> Landscape:
    return Landscape("by-heart", "recorded", {"about": "made up"}, space(), noise, rows)


def additive(effects: dict[Flip, float], failing: dict[Flip, Outcome] | None = None, noise: Noise = SILENT) -> Landscape:
    """The full product of 12."""
    rows: dict[Flips, Truth] = {}
    for a in ((), (A,)):
        for b in ((), (B,)):
            for c in ((), (C2,), (C3,)):
                flips = frozenset((*a, *b, *c))
                ends = [end for flip, end in (failing or {}).items() if flip in flips]
                ratio = sum(effects.get(flip, 0.0) for flip in flips)
                timed = not ends or ends[0] is Outcome.INFEASIBLE
                live = sorted(flip for flip in flips if flip in effects)
                rows[flips] = Truth(ends[0] if ends else Outcome.FEASIBLE, ratio if timed else None, repr(live), 2.0)
    return table(rows, noise)
