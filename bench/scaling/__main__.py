"""One campaign on 1 to 64 workers in virtual time: how busy they are kept, and where the rest of the time goes.

    python -m bench.scaling [--workers 1 2 4 8 16 32 64] [--trials 24 416 2048] [--processes 2]

writes bench/results/scaling.{json,md}. Workers are the product's own (Explorer, TrialRunner, Baseline, Claims, Heart, RunReader
over a store in memory), planned by its own `next_plan` with its default strategy over the 211 knobs. Only three things are made
up: the clock, which jumps from event to event; the child processes, which take a recorded time and answer from a planted truth
(bench.scaling.children); and who is killed. Seeds are fixed; planning takes the processor time that it really took, which varies
a little.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.scaling.campaign import KILLED, Outturn, Scene, campaign
from bench.scaling.children import Durations
from bench.scaling.report import markdown, missed, rows

RESULTS = Path(__file__).parents[1] / "results"
WHOLE_ROUNDS = ((2, 24), (32, 416))
"""Workers and trials of campaigns that are shown without overlap as well."""
FEWEST_TRIALS = 4
"""Of each worker; a larger pool is not tried."""


def scenes(workers: Sequence[int], trials: Sequence[int], seeds: int) -> list[Scene]:
    """Every pool with stragglers and kills, one undisturbed worker for each length and seed.

    Beside them one pool whose tries kill their workers, and short campaigns with whole rounds.
    """
    found = []
    for count in trials:
        for seed in range(1, seeds + 1):
            found.append(Scene(1, count, seed, killed=0.0))
            found += [Scene(pool, count, seed) for pool in workers if 1 < pool <= count / FEWEST_TRIALS]
    largest, longest = max(workers), max(trials)
    if largest > 1:
        found.append(Scene(largest, longest, 1, killed_tries=KILLED))
    found += [Scene(pool, count, 1, overlap=-1.0) for pool, count in WHOLE_ROUNDS if pool in workers and count in trials]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--trials", type=int, nargs="+", default=[24, 416, 2048])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--resume", action="store_true", help="keep the campaigns that the output folder has from this very code")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "scaling.json"
    before: dict[str, Any] = json.loads(file.read_text()) if options.resume and file.exists() else {"seconds": 0, "campaigns": []}
    outturns = [Outturn(**{**one, "scene": Scene(**one["scene"])}) for one in before["campaigns"]]
    known = {one.scene for one in outturns}
    wanted = [scene for scene in scenes(options.workers, options.trials, options.seeds) if scene not in known]
    began = time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        for one in pool.map(campaign, wanted):
            outturns.append(one)
            print(
                f"{one.scene.trials} trials, {one.scene.workers} workers, seed {one.scene.seed}: done",
                file=sys.stderr,
                flush=True,
            )
            _write(options.output, outturns, before["seconds"] + time.monotonic() - began)
    print(_write(options.output, outturns, before["seconds"] + time.monotonic() - began))


def _write(folder: Path, outturns: Sequence[Outturn], seconds: float) -> str:
    """Whatever is known by now; returns the page."""
    found = rows(outturns)
    document = {
        "seconds": round(seconds),
        "rows": [asdict(one) for one in found],
        "campaigns": [asdict(one) for one in outturns],
        "missed": missed(found),
    }
    (folder / "scaling.json").write_text(json.dumps(document, indent=1) + "\n")
    text = markdown(found, Durations.recorded(Scene(1, 1, 1).trial_seconds), seconds)
    (folder / "scaling.md").write_text(text)
    return text


if __name__ == "__main__":
    main()
