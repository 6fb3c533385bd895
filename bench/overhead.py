"""Worker overhead of finished runs: which share of a shard's wall time was neither build nor measurement.

    python -m bench.overhead STORE_FOLDER [STORE_FOLDER …]

A shard's wall time runs from the first claim of a worker in explore to its last result, by the times of the records' files (which
tar and `cp -p` keep; the times inside the records are whole seconds, for people). Inside it:

    work       phases build, load, check and measure of its trials, and the worker's own default timings (controls)
    start      a child's start that no spare child hid: process, imports, device
    between    the rest of a trial's wall time (hand-over, clean-up) and all between trials: store, planning, folding, waits

Overhead is start + between. Trials taken from the ledger count as nothing but the time they took.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORK = ("build", "load", "check", "measure")


@dataclass(frozen=True)
class Shard:
    """One worker's part in the explore rounds of a run."""

    run: str
    worker: str
    trials: int
    wall: float
    """Seconds."""
    work: float
    start: float

    @property
    def overhead(self) -> float:
        """Share of the wall time."""
        return max(0.0, 1 - self.work / self.wall) if self.wall > 0 else 0.0


def shards(store: Path) -> Iterator[Shard]:
    """Every worker of every run in a store's folder (`file://` stores; unpacked records of another)."""
    for run in sorted((store / "runs").iterdir()):
        trials = [(path, json.loads(path.read_bytes())) for path in sorted(run.glob("trials/[0-9]*/result.json"))]
        for worker in sorted({result["workerId"] for _, result in trials}):
            own = [(path, result) for path, result in trials if result["workerId"] == worker and not result.get("cached")]
            if not own:
                continue
            began = min((path.parent / f"try-{result['tries']}.json").stat().st_mtime for path, result in own)
            ended = max(path.stat().st_mtime for path, _ in own)
            seconds = [result["seconds"] for _, result in own]
            yield Shard(
                run=run.name,
                worker=own[0][1]["worker"],
                trials=len(own),
                wall=ended - began,
                work=sum(one.get(phase, 0.0) for one in seconds for phase in WORK) + sum(s.get("controls", 0.0) for s in seconds),
                start=sum(one.get("start", 0.0) for one in seconds),
            )


def table(found: list[Shard]) -> str:
    lines = [
        "| run | worker | trials | wall s | s per trial | work | child start | between | overhead |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        between = max(0.0, one.wall - one.work - one.start)
        lines.append(
            f"| {one.run} | {one.worker} | {one.trials} | {one.wall:.1f} | {one.wall / max(1, one.trials):.2f} "
            f"| {one.work / one.wall:.1%} | {one.start / one.wall:.1%} | {between / one.wall:.1%} | **{one.overhead:.1%}** |"
        )
    wall, work = sum(one.wall for one in found), sum(one.work for one in found)
    lines.append(f"\nAll shards together: {1 - work / wall:.1%} of {wall:.0f} s." if wall else "\nNo shard.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path, nargs="+", help="folder of a store: <--folder of trtfleet run>/store")
    options = parser.parse_args()
    print(table([one for store in options.stores for one in shards(store)]))


if __name__ == "__main__":
    main()
