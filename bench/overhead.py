"""Worker overhead of finished runs: which share of a worker's time was neither build nor measurement.

    python -m bench.overhead STORE_FOLDER [STORE_FOLDER …]

A worker's results tell its whole time, from the start of its process to its last result (`ResultRecord.seconds`):

    work       phases build, load, check and measure of its trials, and the worker's own default timings (controls)
    start      a child's start that no spare child hid: process, imports, device
    prepared   before its first trial: process, import, describing the device, fetching model and references
    store      between trials: results, claims, plans, the ledger
    rest       of a trial's wall time: hand-over, clean-up, tries that were repeated
    waiting    for trials in other hands: a round ends when its last trial does

Overhead is all but work. Waiting grows with the length of trials and shrinks with the size of rounds; the others do neither, so
what they are of trials of 15 seconds is told as well. Trials that were taken from the ledger count nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner_job.api.base import InputError

WORK = ("build", "load", "check", "measure")
LONG_TRIAL = 15.0
"""Seconds."""


@dataclass(frozen=True)
class Shard:
    """One worker's part in the explore rounds of a run; seconds."""

    run: str
    worker: str
    trials: int
    wall: float
    work: float
    start: float
    prepared: float
    store: float
    rest: float
    waiting: float

    @property
    def fixed(self) -> float:
        """What does not depend on how long trials are."""
        return self.start + self.prepared + self.store + self.rest

    @property
    def overhead(self) -> float:
        """Share of the wall time."""
        return 1 - self.work / self.wall

    @property
    def of_long_trials(self) -> float:
        """Overhead of trials of 15 seconds, without waiting."""
        return self.fixed / (self.trials * LONG_TRIAL)


def shards(store: Path) -> Iterator[Shard]:
    """Every worker of every run in a store's folder (`file://` stores; unpacked records of another).

    Raises InputError for results that do not tell what is between trials.
    """
    for run in sorted((store / "runs").iterdir()):
        own: dict[str, list[dict[str, Any]]] = {}
        for path in sorted(run.glob("trials/[0-9]*/result.json")):
            result = json.loads(path.read_bytes())
            if "waited" in result["seconds"]:
                own.setdefault(result["workerId"], []).append(result)
            elif not result.get("cached"):
                raise InputError(f"{path}: does not tell what its worker spent between trials; it is from an older version")
        for results in own.values():
            yield _shard(run.name, results)


def _shard(run: str, results: list[dict[str, Any]]) -> Shard:
    def total(*names: str) -> float:
        return sum(float(one["seconds"].get(name, 0.0)) for one in results for name in names)

    return Shard(
        run=run,
        worker=results[0]["worker"],
        trials=len(results),
        wall=total("total", "controls", "prepared", "between", "waited"),
        work=total(*WORK, "controls"),
        start=total("start"),
        prepared=total("prepared"),
        store=total("between"),
        rest=total("total") - total(*WORK, "start"),
        waiting=total("waited"),
    )


def table(found: list[Shard]) -> str:
    lines = [
        "| run | worker | trials | wall s | s per trial | work | child start | prepared | store | rest | waiting | overhead "
        f"| of {LONG_TRIAL:.0f}-second trials, without waiting |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        parts = (one.work, one.start, one.prepared, one.store, one.rest, one.waiting)
        lines.append(
            f"| {one.run} | {one.worker} | {one.trials} | {one.wall:.1f} | {one.wall / one.trials:.2f} | "
            + "".join(f"{part / one.wall:.1%} | " for part in parts)
            + f"**{one.overhead:.1%}** | {one.of_long_trials:.1%} |"
        )
    wall = sum(one.wall for one in found)
    work, waiting = sum(one.work for one in found), sum(one.waiting for one in found)
    lines.append(
        f"\nAll together: {1 - work / wall:.1%} of {wall:.0f} s, waiting {waiting / wall:.1%}." if wall else "\nNo trial."
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path, nargs="+", help="folder of a store: <--folder of trtfleet run>/store")
    options = parser.parse_args()
    try:
        print(table([one for store in options.stores for one in shards(store)]))
    except (InputError, OSError) as error:
        raise SystemExit(f"overhead: {error}") from None


if __name__ == "__main__":
    main()
