"""What the verdict is worth: false winners, power, coverage, bias and regret of simulated finals, beside simpler rules.

    python -m bench.verdict [--finals 200] [--processes 2]

writes bench/results/verdict.{json,md}. A simulated final is that of bench.aa: planned by the product's `design` from its own
simulated pilot, sampled from recorded noise, decided by the product's `decide`. Seeds are fixed and are not those of bench.aa.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.aa import HERE, RECORDED, ROUTES, Final, Noise, recorded, simulate
from bench.series import upper_bound
from tuner_job.measure.final import ALPHA

FIRST_SEED = 100_000
MARGIN = 0.01
"""The default `minImprovement`."""
PLANNED = ((MARGIN, 0.0), (MARGIN, 0.01), (MARGIN, 0.03), (MARGIN, 0.05), (0.0, 0.0), (0.0, 0.01))
"""Margin and true gain of finals of the size that the product plans. A gain of just the margin cannot be proven, so a gain of 1 %
is asked for at margin 0 as well."""
BUILDS, SESSIONS = (5, 8, 12, 16), (12, 20, 40)
SIZED = ((0.0, 0.01), (MARGIN, 0.03), (MARGIN, 0.05))
"""Margin and true gain of finals of every size."""
FINALISTS = 4
MODELS = 5
"""Of one recording."""
LOTTERY = 0.03

FALSE_WINNERS = 4 / 200
REGRET = 0.014
"""Targets."""
COVERAGE = 0.95
POWER = 0.9
"""Wanted at a true gain of 3 %."""


@dataclass(frozen=True)
class Rate:
    """A share, with 95 % Clopper–Pearson bounds."""

    hits: int
    count: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.hits / self.count if self.count else math.nan

    def __str__(self) -> str:
        return f"{self.share:.1%} ({self.low:.1%}–{self.high:.1%})" if self.count else "–"


def rate(hits: Iterable[bool]) -> Rate:
    """Of no cases nothing is known: 0 to 1."""
    found = [bool(one) for one in hits]
    if not found:
        return Rate(0, 0, 0.0, 1.0)
    high = upper_bound(sum(found), len(found), 0.975)
    return Rate(sum(found), len(found), 1 - upper_bound(len(found) - sum(found), len(found), 0.975), high)


@dataclass(frozen=True)
class Medians:
    """Plain medians on the draws of the final: one build of each side, medians of all its sessions."""

    winners: Rate
    """Strictly less wins."""
    winners_beyond_margin: Rate
    """By more than the margin."""
    winners_of_four: Rate
    """The fastest of four builds of the candidate against one default build: four finalists, all equal if the gain is 0."""
    bias: float | None
    """Mean of claim less true gain of that build where strictly less won; None where nothing did."""


@dataclass(frozen=True)
class Cell:
    """Finals of one noise, margin and true gain. Gains, biases and regrets are relative: 0.01 is 1 %."""

    noise: str
    min_improvement: float
    true_gain: float
    builds: float
    """Of the candidate (median; twice as many of the default)."""
    sessions: float
    proven: Rate
    route_covered: Rate
    """Interval of the route holds the true gain (nominal 95 %)."""
    bytes_covered: Rate
    """Interval of the published bytes holds their true gain."""
    route_bias: float
    """Mean of the estimate less the true gain, over all finals."""
    route_bias_proven: float | None
    """Over the proven ones; None where none is."""
    bytes_bias: float
    """Of the reported speed-up: mean of the published estimate less the true gain of those bytes, over all finals."""
    bytes_bias_proven: float | None
    regret: float
    """Mean true loss of the published bytes against the fastest build that the final measured."""
    regret_p90: float
    medians: Medians
    size: tuple[int, int] | None
    """Builds and sessions, where they were given; None: as the product planned them."""


@dataclass(frozen=True)
class Trtexec:
    """trtexec's rule over 208 routes, one of which has the true gain: the mean of one run each, strictly less wins."""

    noise: str
    true_gain: float
    winners: Rate
    """Series in which it crowns a route. All are false at a gain of 0."""
    right: Rate
    """Series in which it crowns the route that is faster."""
    claim: float
    """Median claimed gain."""
    bias: float
    """Mean of the claim less the true gain of the engine that it crowns."""


def noises() -> list[Noise]:
    """Every recording at hand, CUDA graph and host-launched, each also with a build lottery."""
    found = []
    others = sorted({*RECORDED.parent.glob("noise-*.json.gz"), *(HERE / "results" / "h200").glob("noise-*.json.gz")} - {RECORDED})
    for path in (RECORDED, *others):
        label = "" if path == RECORDED else f"{path.name.removeprefix('noise-').removesuffix('.json.gz')}: "
        graph, host, _, spread = recorded(path)
        for one in (graph, host):
            found.append(replace(one, name=label + one.name))
            found.append(replace(one, name=f"{label}{one.name}, a build in four 3 % slower", lottery=LOTTERY))
        found.append(replace(spread, name=label + spread.name))
    return found


def cell(noise: Noise, margin: float, true_gain: float, finals: int, size: tuple[int, int] | None) -> Cell:
    first = FIRST_SEED + round(true_gain * 1e6) + round(margin * 1e5)
    series = [simulate(noise, true_gain, margin, first + k, size) for k in range(finals)]
    return summarised(noise.name, margin, true_gain, size, series)


def summarised(name: str, margin: float, true_gain: float, size: tuple[int, int] | None, series: Sequence[Final]) -> Cell:
    route = [one.decision.route_gain for one in series]
    route_error = [gain.estimate - true_gain for gain in route if gain is not None]
    bytes_error = [one.decision.engine_gain.estimate - one.engine_gain for one in series]
    proven = [one.decision.significant for one in series]
    regrets = [one.regret for one in series]
    return Cell(
        noise=name,
        min_improvement=margin,
        true_gain=true_gain,
        builds=float(np.median([one.plan.repeats for one in series])),
        sessions=float(np.median([one.plan.sessions for one in series])),
        proven=rate(proven),
        route_covered=rate(gain is not None and gain.low <= true_gain <= gain.high for gain in route),
        bytes_covered=rate(one.decision.engine_gain.low <= one.engine_gain <= one.decision.engine_gain.high for one in series),
        route_bias=float(np.mean(route_error)),
        route_bias_proven=_mean(error for error, won in zip(route_error, proven, strict=True) if won),
        bytes_bias=float(np.mean(bytes_error)),
        bytes_bias_proven=_mean(error for error, won in zip(bytes_error, proven, strict=True) if won),
        regret=float(np.mean(regrets)),
        regret_p90=float(np.percentile(regrets, 90)),
        medians=_medians(series, margin, true_gain),
        size=size,
    )


def _medians(series: Sequence[Final], margin: float, true_gain: float) -> Medians:
    claims, of_four = [], []
    for one in series:
        values = np.median(one.logs, axis=1)
        default = values[one.plan.repeats]
        claims.append(-math.expm1(values[0] - default))
        of_four.append(-math.expm1(values[:FINALISTS].min() - default))
    return Medians(
        winners=rate(claim > 0 for claim in claims),
        winners_beyond_margin=rate(claim > margin for claim in claims),
        winners_of_four=rate(claim > 0 for claim in of_four),
        bias=_mean(claim - true_gain for claim in claims if claim > 0),
    )


def trtexec(noise: Noise, true_gain: float, count: int) -> Trtexec:
    claims, right, errors = [], [], []
    for k in range(count):
        rng = np.random.default_rng(FIRST_SEED + k)
        truth = noise.builds(rng, ROUTES + 1)
        good = 1 + int(rng.integers(ROUTES))
        truth[good] += math.log1p(-true_gain)
        means = truth + noise.sessions(rng, ROUTES + 1, noise.means)
        best = int(np.argmin(means))
        claims.append(-math.expm1(means[best] - means[0]))
        right.append(best == good and true_gain > 0)
        if best:
            errors.append(claims[-1] + math.expm1(truth[best] - truth[0]))
    return Trtexec(
        noise=noise.name,
        true_gain=true_gain,
        winners=rate(claim > 0 for claim in claims),
        right=rate(right),
        claim=float(np.median(claims)),
        bias=float(np.mean(errors)) if errors else 0.0,
    )


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(np.mean(found)) if found else None


def losing(cells: Sequence[Cell]) -> list[str]:
    """Every case that misses what is promised of it, a line each."""
    found = []
    for one in cells:
        where = (
            f"{one.noise}; margin {one.min_improvement:.0%}, true gain {one.true_gain:.0%}, "
            f"{one.builds:.0f} + {2 * one.builds:.0f} × {one.sessions:.0f}"
        )
        if one.true_gain == 0 and one.proven.share > FALSE_WINNERS:
            found.append(f"{where}: {one.proven.hits} of {one.proven.count} are false winners")
        if 0 < one.true_gain <= one.min_improvement and one.proven.low > ALPHA:
            found.append(f"{where}: {one.proven} are proven, at a level of {ALPHA:.1%}")
        if one.true_gain == 0.03 and one.proven.share < POWER:
            found.append(f"{where}: power {one.proven}")
        for what, covered in (("route", one.route_covered), ("bytes", one.bytes_covered)):
            if covered.high < COVERAGE:
                found.append(f"{where}: the interval of the {what} covers {covered}")
        if one.regret > REGRET:
            found.append(f"{where}: regret {one.regret:.2%}")
        if one.bytes_bias_proven is not None and one.bytes_bias_proven > 0.005 and one.proven.hits >= 10:
            found.append(f"{where}: the reported speed-up of what was proven is {one.bytes_bias_proven:+.2%} off")
    return found


def markdown(finals: int, seconds: float, planned: Sequence[Cell], sized: Sequence[Cell], peers: Sequence[Trtexec]) -> str:
    names = list(dict.fromkeys(one.noise for one in planned))
    lines = [
        "# What the verdict is worth",
        "",
        f"`python -m bench.verdict --finals {finals}` ({seconds / 60:.0f} minutes). {finals} simulated finals per cell, on",
        "recorded noise, planned and decided by the product's own code; shares with 95 % Clopper–Pearson bounds.",
        "docs/statistics.md explains.",
        "",
        "## Equal routes: false winners",
        "",
        f"Target: at most {FALSE_WINNERS:.0%} at the default margin of {MARGIN:.0%}. `medians`: one build of each, and the lower",
        "median of the same sessions wins.",
        "",
        f"| noise | verdict, margin {MARGIN:.0%} | verdict, margin 0 | medians | medians, by more than {MARGIN:.0%} "
        f"| medians, best of {FINALISTS} | trtexec's rule, {ROUTES} routes (median claim) |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        at = {(one.min_improvement, one.true_gain): one for one in planned if one.noise == name}
        equal, strict = at[MARGIN, 0.0], at[0.0, 0.0]
        peer = next(one for one in peers if one.noise == name and one.true_gain == 0)
        lines.append(
            f"| {name} | **{equal.proven.hits}**: {equal.proven} | {strict.proven.hits}: {strict.proven} "
            f"| {equal.medians.winners} | {equal.medians.winners_beyond_margin} | {equal.medians.winners_of_four} "
            f"| {peer.winners} ({peer.claim:.1%}) |"
        )
    lines += [
        "",
        "## Finals as the product plans them",
        "",
        "| noise | margin | true gain | builds × sessions (medians) | proven | route interval covers | bytes interval covers "
        "| bias: route (proven only) | bias: reported speed-up (proven only) | regret, mean (90th percentile) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in planned:
        lines.append(
            f"| {one.noise} | {one.min_improvement:.0%} | {one.true_gain:.0%} "
            f"| {one.builds:.0f} + {2 * one.builds:.0f} × {one.sessions:.0f} "
            f"| {one.proven} | {one.route_covered} | {one.bytes_covered} "
            f"| {one.route_bias:+.2%} ({_signed(one.route_bias_proven)}) "
            f"| {one.bytes_bias:+.2%} ({_signed(one.bytes_bias_proven)}) | {one.regret:.2%} ({one.regret_p90:.2%}) |"
        )
    lines += ["", "## Power against builds and sessions", ""]
    for margin, gain in SIZED:
        lines += [
            f"True gain {gain:.0%}, margin {margin:.0%}: share proven. Columns: builds of the candidate × sessions of each.",
            "",
            "| noise | " + " | ".join(f"{b} × {s}" for b in BUILDS for s in SESSIONS) + " |",
            "|---|" + "---|" * (len(BUILDS) * len(SESSIONS)),
        ]
        for name in names[:MODELS]:
            row = [one for one in sized if (one.noise, one.min_improvement, one.true_gain) == (name, margin, gain)]
            lines.append(f"| {name} | " + " | ".join(f"{one.proven.share:.1%}" for one in row) + " |")
        lines.append("")
    lines += [
        f"## trtexec's rule when one of {ROUTES} routes is faster",
        "",
        "| noise | true gain | crowns some route | crowns the faster one | median claim | bias of the claim |",
        "|---|---|---|---|---|---|",
        *(
            f"| {p.noise} | {p.true_gain:.0%} | {p.winners} | {p.right} | {p.claim:.1%} | {p.bias:+.2%} |"
            for p in peers
            if p.true_gain > 0
        ),
        "",
        "## Plain medians when the route is faster",
        "",
        "| noise | true gain | lower median wins | by more than the margin | bias of the claim |",
        "|---|---|---|---|---|",
        *(
            f"| {c.noise} | {c.true_gain:.0%} | {c.medians.winners} | {c.medians.winners_beyond_margin} "
            f"| {_signed(c.medians.bias)} |"
            for c in planned
            if c.true_gain > 0 and c.min_improvement == MARGIN
        ),
        "",
        "## Losing cases",
        "",
        f"Of the finals as planned. More than {FALSE_WINNERS:.0%} false winners; power below {POWER:.0%} at a true 3 %; coverage",
        f"surely below {COVERAGE:.0%}; mean regret above {REGRET:.1%}; the speed-up reported of proven routes more than 0.5",
        "points too high.",
        "",
        *(f"- {line}" for line in losing(planned) or ["None."]),
    ]
    return "\n".join(lines) + "\n"


def _rates(raw: dict[str, Any]) -> dict[str, Any]:
    """Of a document, with the rates that it was made from."""
    return {name: Rate(**value) if isinstance(value, dict) and "hits" in value else value for name, value in raw.items()}


def _cell(raw: dict[str, Any]) -> Cell:
    return Cell(**{**_rates(raw), "medians": Medians(**_rates(raw["medians"])), "size": raw["size"] and tuple(raw["size"])})


def _key(one: Cell) -> tuple[str, float, float, tuple[int, int] | None]:
    return one.noise, one.min_improvement, one.true_gain, one.size


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2%}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--finals", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--resume", action="store_true", help="keep what the output folder has from this very code")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    file = options.output / "verdict.json"
    before = json.loads(file.read_text()) if options.resume and file.exists() else {}
    known = {(one["noise"], one["true_gain"]): Trtexec(**_rates(one)) for one in before.get("trtexec", ())}
    cells = {_key(one): one for one in (_cell(raw) for part in ("planned", "sized") for raw in before.get(part, ()))}
    models = noises()
    wanted = [(n, m, g, None) for n in models for m, g in PLANNED]
    # every size on one recording, since it costs most
    sizes = [(builds, sessions) for builds in BUILDS for sessions in SESSIONS]
    wanted += [(n, m, g, size) for n in models[:MODELS] for m, g in SIZED for size in sizes]
    with ProcessPoolExecutor(options.processes) as pool:
        running = {
            key: pool.submit(cell, n, m, g, options.finals, size)
            for n, m, g, size in wanted
            if (key := (n.name, m, g, size)) not in cells
        }
        rules = {
            (n.name, gain): pool.submit(trtexec, n, gain, options.finals)
            for n in models
            for gain in (0.0, 0.01, 0.03, 0.05)
            if (n.name, gain) not in known
        }
        cells.update({key: one.result() for key, one in running.items()})
        known.update({key: one.result() for key, one in rules.items()})
    planned, sized = (
        [cells[n.name, m, g, size] for n, m, g, size in wanted if (size is None) == plain] for plain in (True, False)
    )
    peers = [known[n.name, gain] for n in models for gain in (0.0, 0.01, 0.03, 0.05)]
    seconds = before.get("seconds", 0) + time.monotonic() - began
    options.output.mkdir(parents=True, exist_ok=True)
    document = {
        "finals": options.finals,
        "routes": ROUTES,
        "seconds": round(seconds),
        "planned": [asdict(one) for one in planned],
        "sized": [asdict(one) for one in sized],
        "trtexec": [asdict(one) for one in peers],
        "losing": losing(planned),
    }
    (options.output / "verdict.json").write_text(json.dumps(document, indent=1) + "\n")
    text = markdown(options.finals, seconds, planned, sized, peers)
    (options.output / "verdict.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
