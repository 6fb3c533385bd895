"""Break everything at every moment on a real cluster, and see what is left.

    python -m bench.faults [--only NAME …] [--list] [--quiet-seconds 600]

A cluster of its own (tests/rig/kube), the chart, the Dockerfile's images, real pods, a real S3 server. Writes
bench/results/e2e-faults.md and .json; what failed drills leave lies in --folder. Ends with 1 when a drill fails.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "tests" / "e2e"), str(REPOSITORY / "tests" / "chart")]

from bench.faults.drill import DRILLS  # noqa: E402
from bench.faults.series import MODULES, play_all  # noqa: E402
from bench.faults.summary import Summary  # noqa: E402

assert MODULES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description="Breaks everything on a real cluster.")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=sorted(DRILLS), help="these drills alone")
    parser.add_argument("--into-summary", action="store_true", help="with --only: their rows of the summary are written anew")
    parser.add_argument("--list", action="store_true", help="names of all drills, and nothing else")
    parser.add_argument("--at-once", type=int, default=3, help="drills that run beside each other, of those that may (3)")
    parser.add_argument("--quiet-seconds", type=float, help="how long finished TuningJobs are watched (600; with --only: 0)")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/trtfleet-faults"), help="for what failed drills leave")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "bench" / "results" / "e2e-faults", help="of the summary")
    arguments = parser.parse_args()
    if arguments.list:
        for each in DRILLS.values():
            print(f"{each.name}\t{each.fault} · {each.when}")
        return 0
    every = list(DRILLS.values())
    if arguments.only:
        drills = [each for each in every if each.name in arguments.only]
        summary = Summary.load(arguments.out) if arguments.into_summary else None
    else:
        drills, summary = every, Summary(arguments.out)
        for suffix in (".md", ".json"):
            arguments.out.with_suffix(suffix).unlink(missing_ok=True)
    return play_all(
        drills,
        every=every,
        folder=arguments.folder,
        summary=summary,
        at_once=arguments.at_once,
        quiet_seconds=(0.0 if arguments.only else 600.0) if arguments.quiet_seconds is None else arguments.quiet_seconds,
    )


if __name__ == "__main__":
    sys.exit(main())
