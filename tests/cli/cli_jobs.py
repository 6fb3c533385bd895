"""Jobs over a tiny real model, and the real command on them."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import psutil
import yaml
from onnx import TensorProto, helper, numpy_helper

from tuner_job.cli.main import main

COMMAND = [sys.executable, "-m", "tuner_job.cli.main"]

QUICK = {"sessions": 2, "sessionMilliseconds": 5, "sessionSamples": 5, "warmupMilliseconds": 10, "warmupLimitMilliseconds": 100}

JOB = {
    "apiVersion": "trtfleet.dev/v1alpha1",
    "kind": "TuningJob",
    "metadata": {"name": "tiny"},
    "spec": {
        "model": {"uri": "model.onnx", "shapes": [{"name": "one", "tensors": {"x": {"opt": [1, 32]}}}]},
        "targets": [{"name": "cpu", "runtimeRef": {"name": "onnxruntime"}, "device": {"type": "CPU"}}],
        "objective": {"minImprovement": "0.01"},
        "accuracy": {"source": "Generated", "generated": {"samples": 2}, "metric": "l1", "threshold": "0.001"},
        "measurement": QUICK,
        "search": {
            "strategy": "Full",
            "knobs": {"include": ["-session:memory_pattern"]},
        },
        "budget": {"maxTrials": 4, "gpuSeconds": 60},
        "storeRef": {"name": "local"},
    },
}


def tiny_model(seed: int = 0, opset: int = 17, nodes: list[onnx.NodeProto] | None = None) -> onnx.ModelProto:
    """y = relu(x W) V, float32 [n, 32] → [n, 8]."""
    rng = np.random.default_rng(seed)
    weights = [
        numpy_helper.from_array(rng.standard_normal((32, 64)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal((64, 8)).astype(np.float32), "v"),
    ]
    graph = helper.make_graph(
        nodes
        or [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "v"], ["y"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        weights,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("acme", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)


def merged(base: dict, changes: dict) -> dict:
    """`base` with the changes laid over it, dictionary by dictionary; None removes a field."""
    result = copy.deepcopy(base)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@dataclass
class Job:
    """A folder with a job file, its model and everything that the command writes."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_model(tiny_model())
        self.write()

    @property
    def file(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def out(self) -> Path:
        return self.folder / "trtfleet-out"

    def write_model(self, model: onnx.ModelProto) -> None:
        onnx.save(model, self.folder / "model.onnx")

    def write(self, spec: dict | None = None, *documents: dict, **top: object) -> None:
        """The job with `spec` laid over the usual one, and other documents after it."""
        whole = merged(JOB, {"spec": spec or {}, **top})
        self.file.write_text(yaml.safe_dump_all([whole, *documents], sort_keys=False))

    def start(self, *arguments: str, command: str = "run", what: str | None = "job.yaml", **rest) -> subprocess.Popen:
        return subprocess.Popen(
            [*COMMAND, command, *([what] if what else []), *arguments],
            cwd=self.folder,
            env={**os.environ, **self.settings, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **rest,
        )

    @property
    def settings(self) -> dict[str, str]:
        """Nothing of the user's own folders is read or written."""
        return {"TRTFLEET_CONFIG": str(self.folder / "config"), "XDG_STATE_HOME": str(self.folder / "state")}

    def call(self, *arguments: str, **rest) -> Answer:
        return ended(self.start(*arguments, **rest))

    def answer(self, *arguments: str) -> Answer:
        """What `trtfleet run` says, in this process: for what is answered before any worker starts. Main thread only."""
        out, err = io.StringIO(), io.StringIO()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        with (
            contextlib.chdir(self.folder),
            mock.patch.dict(os.environ, self.settings | self.env),
            mock.patch.object(sys, "argv", ["trtfleet", "run", "job.yaml", *arguments]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main()
            except SystemExit as end:
                return Answer(int(end.code or 0), out.getvalue(), err.getvalue())
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        raise AssertionError("the command returned")

    def processes(self) -> list[psutil.Process]:
        """Whatever still runs in this folder's name."""
        running = [process for process in psutil.process_iter(["cmdline"]) if process.pid != os.getpid()]
        return [process for process in running if str(self.folder) in " ".join(process.info["cmdline"] or [])]

    def files(self) -> set[str]:
        """What the command wrote, less what it made anew at each start."""
        return {str(path.relative_to(self.out)) for path in self.out.rglob("*") if path.is_file()}

    def leftovers(self) -> list[str]:
        """Scratch files, files half written, and processes: none may be left."""
        scratch = [str(path) for path in (self.out / "scratch").rglob("*")] if self.out.exists() else []
        aside = [str(path) for path in self.folder.rglob(".aside-*") if path.name != ".aside-lock"]
        parts = [str(path) for path in self.folder.rglob("*.part")]
        return scratch + aside + parts + [" ".join(p.info["cmdline"]) for p in self.processes()]


def ended(process: subprocess.Popen) -> Answer:
    """Waits for the command and returns what it said."""
    try:
        out, err = process.communicate(timeout=800)
    except BaseException:
        process.kill()
        raise
    return Answer(process.returncode, out, err)


def copied(job: Job, folder: Path) -> Job:
    """The job with all that it has made, in another folder."""
    shutil.copytree(job.folder, folder)
    return Job(folder)
