"""Replays every strategy and its peers on every landscape, and says who finds how much with how many builds.

    python -m bench.search [--seeds 100] [--landscapes synthetic-sparse h200-cnn held-out.json.gz] [--strategies Adaptive random]

Writes bench/results/search: README.md, an SVG for each landscape, and all results (runs.jsonl.gz). A series that is cut goes on
where it stopped, as long as neither strategies nor landscapes have changed. Peers from packages are installed on the first use.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.search import packages, report, series
from tuner_job.api.base import InputError

OUTPUT = Path(__file__).parents[1] / "results" / "search"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--landscapes", nargs="+", default=series.landscapes(), help="names, or paths of landscape files")
    parser.add_argument("--strategies", nargs="+", default=list(series.KINDS), help=f"of {', '.join(series.KINDS)}, or a plug-in")
    parser.add_argument("--budgets", type=float, nargs="+", default=list(series.FRACTIONS), help="in builds of one-at-a-time")
    parser.add_argument("--workers", type=int, default=1, help="builds at a time")
    parser.add_argument("--late", type=float, default=0.0, help="chance that a build ends a round late")
    parser.add_argument("--jobs", type=int, default=2, help="processes that play")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--large", type=int, default=10_000, help="results of the plan that is timed by itself; 0: none")
    parser.add_argument("--report-only", action="store_true", help="play nothing")
    options = parser.parse_args(arguments)
    try:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        places = {name: series.landscape(name, options.first_seed) for name in options.landscapes}
        if not options.report_only and any(series.kind(name).packaged for name in options.strategies):
            packages.install()
        log = series.Log(options.output)
        kept = log.read()
        if not options.report_only:
            queue = series.tasks(
                options.landscapes, options.strategies, seeds, kept, options.budgets, options.workers, options.late
            )
            began = time.monotonic()
            for count, found in enumerate(series.play_all(queue, options.jobs), 1):
                log.append(found)
                one = found[0]
                print(f"{time.monotonic() - began:7.1f} s {count}: {one.landscape} {one.strategy} {one.seed}", file=sys.stderr)
            log.close(kept := log.read())
    except InputError as error:
        raise SystemExit(f"bench.search: {error}") from None
    names = {where.name for where in places.values()}
    shown = [
        one
        for one in kept
        if one.landscape in names
        and one.strategy in options.strategies
        and one.seed in seeds
        and one.code == series.code(one.strategy, options.workers, options.late)
    ]
    if not shown:
        raise SystemExit(f"bench.search: no result of the present code in {options.output}")
    about = {
        where.name: where.provenance.get("about", "").replace(f" with seed {options.first_seed}", " anew for each seed")
        for where in places.values()
    }
    how = "python -m bench.search" + (f" {' '.join(arguments if arguments is not None else sys.argv[1:])}".rstrip())
    large = (options.large, *series.plan_large(options.large)) if options.large else None
    text = report.page(shown, about, how, large)
    report.plots(shown, options.output)
    (options.output / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
