"""Share of a planted optimum that each strategy reaches with a budget of builds (the table of docs: search).

    python bench/search_replay.py --knobs tests/data/all_build_routes-11.2.1.2.json --seeds 20 --budgets 21 52 104 208 416

The truth is planted over the bounded knobs of the list, `live` flips of them. A share is the true log gain of the candidate that
`pick` hands to the final, over that of the planted optimum; 0 when it hands on nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from planted import BUILD_SD, Truth, plant

from tuner_job.campaign.rounds import OVERLAP
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.routes.select import select
from tuner_job.search.pick import pick
from tuner_job.search.strategy import Budget, Done, Observation, Space, Strategy, strategy


def replay(
    chosen: Strategy,
    truth: Truth,
    trials: int,
    seed: int,
    round_limit: int,
    fingerprints: bool = False,
    workers: int = 1,
    overlap: bool = False,
) -> list[Observation]:
    """The history of one whole search.

    `overlap`: rounds are planned as early as campaign.rounds.overlaps lets them, while all other workers are in a trial, or as
    much of the round as may be.
    """
    rng = np.random.default_rng([seed, 7])
    history: list[Observation] = []
    running: list[Observation] = []
    number = 0
    while True:
        budget = Budget(trials, len(history) + len(running), round_limit, workers)
        proposals = chosen.next_round(truth.space, history, budget, seed, [one.candidate for one in running])
        if isinstance(proposals, Done):
            if not running:
                return history
            proposals = ()
        number += 1
        planned = running + [
            truth.observe(f"{number:03d}-{i:05d}", p.candidate, rng, fingerprints) for i, p in enumerate(proposals)
        ]
        late = min(workers - 1, max(1, int(OVERLAP * len(planned)))) if overlap and len(planned) >= workers else 0
        history += planned[: len(planned) - late]
        running = planned[len(planned) - late :]


def share(history: list[Observation], truth: Truth, best: float) -> float:
    chosen = pick(history, truth.space, BUILD_SD)
    value = truth.log_ratio(truth.space.flips_of(chosen.candidate)) if chosen else 0.0
    return (value or 0.0) / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--knobs", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budgets", type=int, nargs="+", default=[21, 52, 104, 208, 416])
    parser.add_argument("--live", type=int, nargs="+", default=[17, 38])
    parser.add_argument("--strategies", nargs="+", default=["OneAtATime", "Mixed", "Adaptive"])
    parser.add_argument("--round-limit", type=int, default=256)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--overlap", action="store_true", help="plan rounds while trials of the last one are running")
    parser.add_argument("--fingerprints", action="store_true", help="inert flips give the same engine")
    arguments = parser.parse_args()
    knobs = parse_knob_list(arguments.knobs.read_text())
    space = Space(knobs, select(knobs))
    print(f"{len(space.choices)} knobs, {len(space.flips)} flips, {arguments.seeds} seeds from {arguments.first_seed}")
    print("| strategy | live | " + " | ".join(f"{b} builds" for b in arguments.budgets) + " | s/run |")
    print("|---|---|" + "---|" * (len(arguments.budgets) + 1))
    for live in arguments.live:
        for name in arguments.strategies:
            cells = []
            started = time.perf_counter()
            for budget in arguments.budgets:
                shares = []
                for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                    truth = plant(space, live, seed)
                    history = replay(
                        strategy(name),
                        truth,
                        budget,
                        seed,
                        arguments.round_limit,
                        arguments.fingerprints,
                        arguments.workers,
                        arguments.overlap,
                    )
                    shares.append(share(history, truth, truth.best()))
                cells.append(f"{np.median(shares):.2f} ({np.percentile(shares, 10):.2f}) mean {np.mean(shares):.2f}")
            seconds = (time.perf_counter() - started) / arguments.seeds / len(arguments.budgets)
            print(f"| {name} | {live} | " + " | ".join(cells) + f" | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
