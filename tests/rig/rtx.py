"""TensorRT-RTX for tests and bench/rtx_builds.py: the real library, which builds engines without a GPU and runs none.

Children find it by PYTHONPATH alone: its bindings load the libraries that lie in the package beside them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tuner_job.api.child import ChildRequest, ShapeCase
from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.cli.jobfile import JobFile
from tuner_job.model.fetch import fetch
from tuner_job.model.inspect import inspect
from tuner_job.model.shapes import resolve_cases
from tuner_job.trial.supervisor import Supervisor

BACKEND = "tensorrt_rtx"
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
INSTALL_SECONDS = 900

_SCRIPT = Path(__file__).parents[2] / "scripts" / "tensorrt-rtx"


class RtxUnavailable(RuntimeError):
    """It cannot be installed here. `str()` says why, in one line."""


def installed() -> Path:
    """The folder to put on PYTHONPATH; fetched on the first use on a machine. Raises RtxUnavailable."""
    done = subprocess.run([_SCRIPT], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise RtxUnavailable(f"{_SCRIPT.name}: {lines[-1] if lines else f'ended with {done.returncode}'}")
    return Path(done.stdout.strip())


def python_path() -> str:
    """PYTHONPATH for a child that must find it, before whatever the caller's own names."""
    return os.pathsep.join(filter(None, (str(installed()), os.environ.get("PYTHONPATH", ""))))


def supervisor(scratch: Path, path: str) -> Supervisor:
    """One whose children find TensorRT-RTX on `path` (`python_path`)."""
    return Supervisor(scratch, extra_environment={"PYTHONPATH": path})


def compile_request(model: Path, cases: Sequence[ShapeCase], output: Path, candidate: Candidate = BASELINE) -> ChildRequest:
    """A build of `model` alone. On device CPU this backend builds for every GPU that it knows, and needs none."""
    return ChildRequest(
        operation="compile",
        backend=BACKEND,
        device="CPU",
        model=str(model),
        cases=tuple(cases),
        candidate=candidate,
        output=str(output),
    )


def example(job: Path) -> tuple[Path, tuple[ShapeCase, ...]]:
    """Model and shape cases of a job file in `examples/`, as discover resolves them."""
    file = JobFile.load(job)
    inputs = file.inputs(file.target(None))
    model = fetch(inputs.variants[0].uri, job.parent, base=job.parent)  # packaged: it stays where it is
    return model, resolve_cases(inspect(model), inputs.cases)


def told(program: str, path: str, *arguments: str | Path) -> Any:
    """The JSON that a Python program prints, in a process of its own that finds the library on `path`."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def rtx_path() -> str:
    """`python_path`. Where it cannot be had: a failure under CI=true, else a skip with the reason."""
    try:
        return python_path()
    except RtxUnavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no TensorRT-RTX: {error}", pytrace=False)
        pytest.skip(f"no TensorRT-RTX: {error}")
