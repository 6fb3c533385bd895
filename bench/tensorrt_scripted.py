"""A whole campaign over all 211 knobs of TensorRT, without a GPU: `trtfleet run` against the stand-in for TensorRT.

    python -m bench.tensorrt_scripted [--trials N] [--seed N] [--keep FOLDER] [--output FILE]

What is real: command, store, planning, workers, children, backend, accuracy (ONNX Runtime computes the outputs), statistics,
signing, report. What stands in: TensorRT, the driver and NVML (tests/stand_in). Device time is planted, so the winner can be held
against the truth, and runs on a virtual clock, so nothing waits for it.

The truth: LIVE of the 207 changes of one knob have an effect, some only beside their parent, some pairs interact; others change
nothing, but that some fail, each in another way (FAILING). Builds differ by luck, sessions by the drift recorded on an H200.
Writes bench/results/tensorrt-scripted.md, or --output.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from onnx import TensorProto, helper, numpy_helper

REPOSITORY = Path(__file__).parent.parent
sys.path[:0] = [str(REPOSITORY / "tests")]

from stand_in.device_truth import Truth, flips, plant  # noqa: E402
from stand_in.stage import KNOBS, Stage  # noqa: E402

from bench.overhead import Shard, shards  # noqa: E402
from tuner_job.api.messages import DiscoveryRecord, ResultRecord, VerdictRecord  # noqa: E402
from tuner_job.api.outcome import Outcome  # noqa: E402
from tuner_job.campaign.reader import RunReader  # noqa: E402
from tuner_job.routes.knobs import parse_knob_list  # noqa: E402
from tuner_job.store.objects import ObjectStore  # noqa: E402

RESULT = Path(__file__).parent / "results" / "tensorrt-scripted.md"
VERSION = "11.2.1.2"
BASE_SECONDS = 0.0005
LIVE = 16
FAILING = {
    "refuse": Outcome.REFUSED,
    "segfault": Outcome.CRASHED,
    "hang": Outcome.HUNG,
    "outOfDeviceMemory": Outcome.OUT_OF_MEMORY,
    "nan": Outcome.INVALID_OUTPUT,
    "wrong": Outcome.INFEASIBLE,
    "executeFails": Outcome.CRASHED,
    "loadFails": Outcome.CRASHED,
}
"""What that many dead changes do, and how a trial with one of them has to end."""
QUICK = {"sessions": 5, "sessionMilliseconds": 2, "sessionSamples": 20, "warmupMilliseconds": 2, "warmupLimitMilliseconds": 50}
TRIAL_SECONDS = 15
"""Of the trials in the goal for overhead: a real build takes far longer than a scripted one."""


@dataclass(frozen=True)
class Finished:
    """What a campaign left in its store."""

    discovery: DiscoveryRecord
    results: Sequence[ResultRecord]
    verdict: VerdictRecord
    shards: Sequence[Shard]
    seconds: float
    """Wall time of the command."""


@dataclass(frozen=True)
class Campaign:
    """A finished run over all knobs and what was planted."""

    truth: Truth
    failing: Mapping[str, str]
    finished: Finished

    def held(self, result: ResultRecord) -> list[str]:
        """What the failing changes of a trial do."""
        return [action for token, action in self.failing.items() if token in result.candidate.route.split()]

    def as_planted(self, result: ResultRecord) -> bool:
        """Whether it ended as one of its failing changes wants it, or well if it has none."""
        return result.outcome in ({FAILING[action] for action in self.held(result)} or {Outcome.FEASIBLE})


def write_model(path: Path, name: str = "perceptron", layers: int = 12) -> Path:
    """A perceptron of 2 × `layers` nodes, float32 [1, 64] → [1, 64], in a graph of that name; the same bytes every time."""
    rng = np.random.default_rng(0)
    nodes, weights, latest = [], [], "x"
    for number in range(layers):
        weights.append(numpy_helper.from_array((rng.standard_normal((64, 64)) / 8).astype(np.float32), f"w{number}"))
        nodes.append(helper.make_node("MatMul", [latest, f"w{number}"], [f"h{number}"], name=f"matmul_{number}"))
        latest = "y" if number == layers - 1 else f"r{number}"
        nodes.append(helper.make_node("Tanh", [f"h{number}"], [latest], name=f"tanh_{number}"))
    tensors = [helper.make_tensor_value_info(one, TensorProto.FLOAT, [1, 64]) for one in "xy"]
    graph = helper.make_graph(nodes, name, tensors[:1], tensors[1:], weights)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 19)]), path)
    return path


def job(search: Mapping[str, Any], trials: int, *, version: str = VERSION, **model: Any) -> list[dict[str, Any]]:
    """The documents of a job file."""
    runtime = {
        "apiVersion": "trtfleet.dev/v1alpha1",
        "kind": "TunerRuntime",
        "metadata": {"name": "tensorrt"},
        "spec": {"family": "TensorRT", "version": version},
    }
    tuning = {
        "apiVersion": "trtfleet.dev/v1alpha1",
        "kind": "TuningJob",
        "metadata": {"name": "scripted"},
        "spec": {
            "model": {"uri": "model.onnx", **model},
            "targets": [{"name": "gpu", "runtimeRef": {"name": "tensorrt"}, "device": {"type": "GPU"}}],
            "objective": {"metric": "LatencyP50", "minImprovement": "0.01"},
            "accuracy": {"source": "Generated", "generated": {"samples": 2}, "metric": "cosine", "threshold": "0.001"},
            "measurement": QUICK,
            "search": dict(search),
            "budget": {"maxTrials": trials, "trialTimeoutSeconds": 10},
            "storeRef": {"name": "local"},
        },
    }
    return [runtime, tuning]


def planted(seed: int) -> tuple[Truth, dict[str, str]]:
    """What changes really do, and which of them fail in which way."""
    tokens = every_change()
    truth = plant(tokens, live=LIVE, seed=seed, median=0.02)
    dead = [token for token in tokens if token not in truth.effects]
    chosen = np.random.default_rng([seed, 1]).permutation(len(dead))
    return truth, {dead[index]: action for index, action in zip(chosen, FAILING, strict=False)}


def run(folder: Path, trials: int, seed: int, search: Mapping[str, Any] | None = None) -> Campaign:
    """A campaign with planted truth. `folder` is empty."""
    truth, failing = planted(seed)
    script = {"seed": seed, "seconds": BASE_SECONDS, "truth": truth.to_plain(), "when": failing, "version": VERSION}
    write_model(folder / "model.onnx")
    return Campaign(truth, failing, finish(folder, script, job(search or {"strategy": "Adaptive"}, trials)))


def finish(folder: Path, script: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> Finished:
    """`trtfleet run` over the stand-in with this script. Raises CalledProcessError if the command fails, after its words."""
    stage = Stage.make(folder / "stage", script)
    (folder / "job.yaml").write_text(yaml.safe_dump_all(documents, sort_keys=False))
    command = [sys.executable, "-m", "tuner_job.cli.main", "run", "job.yaml", "--json"]
    home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    began = time.monotonic()
    with (folder / "answer.json").open("wb") as answers:
        subprocess.run(command, cwd=folder, env={**os.environ, **stage.environment, **home}, stdout=answers, check=True)
    seconds = time.monotonic() - began
    answer = json.loads((folder / "answer.json").read_bytes())["runs"][0]
    store = folder / "trtfleet-out" / "store"
    reader = RunReader(ObjectStore.open(store.resolve().as_uri()), answer["run"])
    discovery, verdict = reader.discovery(), reader.verdict()
    assert discovery is not None
    assert verdict is not None
    return Finished(discovery, list(reader.fold().folded), verdict, list(shards(store)), seconds)


def every_change() -> list[str]:
    """Of one bounded knob."""
    return flips(parse_knob_list(KNOBS.read_text()))


def changes(route: str) -> list[str]:
    return [token for token in route.split() if token in every_change()]


def text(campaign: Campaign, command: str) -> str:
    """The page of results."""
    truth, finished = campaign.truth, campaign.finished
    verdict, results = finished.verdict, finished.results
    best, best_log = truth.best(avoid=campaign.failing)
    found = changes(verdict.published.route)
    reached = truth.log_ratio(found)
    counts = Counter(str(result.outcome) for result in results)
    tried = {token for result in results for token in changes(result.candidate.route)}
    overhead = overhead_of(finished.shards)
    gain = verdict.route_gain
    lines = [
        "# A whole campaign over all 211 knobs, scripted TensorRT",
        "",
        f"`{command}`: {finished.seconds:.0f} s in all, discover, explore, final and publish.",
        "",
        f"- Trials: {len(results)}; by outcome: {', '.join(f'{n} {name}' for name, n in counts.most_common())}.",
        f"- Trials that ended as planted: **{sum(campaign.as_planted(result) for result in results)} of {len(results)}**.",
        f"- Knob changes tried, alone or with others: {len(tried)} of {len(every_change())}.",
        f"- Planted: {sum(t.startswith('-') for t in truth.effects)} live changes, {len(truth.needs)} of them only beside "
        f"another, {len(truth.pairs)} pairs that interact; optimum {speedup(best_log)} "
        f"({len(truth.active(best))} changes).",
        f"- Found: **{speedup(reached)}** by the truth, {share(reached, best_log)} of the optimum's log gain; "
        f"latency saved {-math.expm1(reached):.2%}, by the final {interval(gain)}, significant: {verdict.significant}.",
        f"- The winner's route: {len(found)} changes, {len(truth.active(found))} of them live, "
        f"{len(set(found) & set(campaign.failing))} of the failing ones.",
        f"- Worker overhead: {overhead:.2f} s of each trial were neither build nor check nor measurement: "
        f"{share_of_wall(finished.shards)} of these short trials, **{overhead / (TRIAL_SECONDS + overhead):.1%}** beside trials "
        f"of {TRIAL_SECONDS} s.",
        "",
        "| planted failure | change | has to end as | trials with it and no other failing change |",
        "|---|---|---|---|",
        *(
            f"| {action} | `{token}` | {FAILING[action]} | {ends(campaign, action)} |"
            for token, action in campaign.failing.items()
        ),
        "",
        "| live change | planted alone | needs | in the winner | in the optimum |",
        "|---|---|---|---|---|",
    ]
    for token, effect in sorted(truth.effects.items(), key=lambda one: one[1]):
        if token.startswith("-"):
            needs = f"`{truth.needs[token]}`" if token in truth.needs else ""
            lines.append(f"| `{token}` | {math.expm1(effect):+.2%} | {needs} | {mark(token in found)} | {mark(token in best)} |")
    return "\n".join(lines) + "\n"


def ends(campaign: Campaign, action: str) -> str:
    found = Counter(str(result.outcome) for result in campaign.finished.results if campaign.held(result) == [action])
    return ", ".join(f"{n} {outcome}" for outcome, n in found.most_common()) or "none"


def overhead_of(found: Sequence[Shard]) -> float:
    """Seconds a trial."""
    return sum(one.wall - one.work for one in found) / max(1, sum(one.trials for one in found))


def share_of_wall(found: Sequence[Shard]) -> str:
    wall = sum(one.wall for one in found)
    return f"{sum(one.wall - one.work for one in found) / wall:.0%}" if wall else "none"


def speedup(log_ratio: float) -> str:
    return f"{math.exp(-log_ratio):.3f}×"


def share(reached: float, best: float) -> str:
    return f"{reached / best:.0%}" if best else "none"


def interval(gain: Any) -> str:
    return "no interval" if gain is None else f"{gain.estimate:+.2%} [{gain.low:+.2%}, {gain.high:+.2%}]"


def mark(holds: bool) -> str:
    return "yes" if holds else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=256, help="budget.maxTrials [256, as of a job that names none]")
    parser.add_argument("--seed", type=int, default=5, help="of the planted truth")
    parser.add_argument("--keep", type=Path, help="folder for everything that the run writes [a temporary one]")
    parser.add_argument("--output", type=Path, default=RESULT, help="for the page, of a smaller run say")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tensorrt-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        campaign = run(folder, options.trials, options.seed)
        command = f"python -m bench.tensorrt_scripted --trials {options.trials} --seed {options.seed}"
        page = text(campaign, command)
    options.output.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
