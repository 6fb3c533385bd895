"""Records the landscape of an example on this machine's CPU: every configuration of a reduced product, several times.

    python -m bench.cpu examples/magika.yaml [examples/silero-vad.yaml …]

writes bench/results/cpu/recording-<model>.json.gz after every batch and, once it is whole, landscape-<model>.json.gz, which
bench.search plays on as `cpu-<model>`. Cut, it goes on where it was. It takes some ten minutes a model and wants the machine for
itself: a busy one is refused. How it records: bench/cpu/record.py; which configurations: bench/cpu/products.py.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.cpu.convert import from_cpu
from bench.cpu.products import PRODUCTS, product_of
from bench.cpu.quiet import quiet_load
from bench.cpu.record import record
from bench.h200.recordings import summary
from bench.search.landscape import save
from tuner_job.api.base import InputError

EXAMPLES = Path(__file__).parents[2] / "examples"
OUTPUT = Path(__file__).parents[1] / "results" / "cpu"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path, nargs="*", default=[EXAMPLES / f"{name}.yaml" for name in PRODUCTS])
    parser.add_argument("--busy", action="store_true", help="record on a busy machine as well; the landscape says so")
    parser.add_argument("--batches", type=int, help="so many at most, for a rehearsal")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder [bench/results/cpu]")
    options = parser.parse_args(arguments)
    try:
        load = quiet_load(options.busy)  # once: after the first model it is our own
        for job in options.jobs:
            recording = options.output / f"recording-{job.stem}.json.gz"
            document = record(job, product_of(job), recording, load, busy=options.busy, most=options.batches)
            print(summary(document), file=sys.stderr)
            landscape = from_cpu(recording)
            if landscape is None:
                print(f"{job.stem}: cut after {document['batches']} batches; the same command goes on", file=sys.stderr)
                continue
            save(landscape, options.output / f"landscape-{job.stem}.json.gz")
            best, ratio = landscape.best
            print(f"{landscape.name}: {landscape.provenance['about']}; {float(document['seconds']) / 60:.0f} minutes")
            print(
                f"best {1 / math.exp(ratio):.3f}x: {landscape.space.describe(best, 9)}; one flip alone has "
                f"{landscape.single_share:.0%} of that gain{' (easy)' if landscape.easy else ''}"
            )
    except InputError as error:
        raise SystemExit(f"bench.cpu: {error}") from None


if __name__ == "__main__":
    main()
