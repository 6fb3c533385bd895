"""A supervisor over real children, and the proof after every test that nothing of them is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from trial_helpers import COMMAND, QUICK

from tuner_job.accuracy.references import Sample, save
from tuner_job.api.child import ChildRequest, Limits, Phase, ShapeCase
from tuner_job.api.measurement import Candidate
from tuner_job.trial import processes
from tuner_job.trial.supervisor import Supervisor


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two samples of y = 2x."""
    folder = tmp_path_factory.mktemp("references") / "references"
    x = [np.arange(4, dtype=np.float32) + k for k in range(2)]
    save(folder, [Sample("only", str(k), {"x": v}, {"y": v * 2}) for k, v in enumerate(x)])
    return folder


@pytest.fixture
def supervisor(root: Path, notes: Path) -> Iterator[Supervisor]:
    """Checks, when the test is over, that no process, descriptor or folder of its children is left."""
    descriptors = set(os.listdir("/proc/self/fd"))
    with Supervisor(root, command=COMMAND, grace_seconds=1.0, extra_environment={"NOTES": str(notes)}) as made:
        yield made
    assert processes.family(thorough=True) == []
    assert processes.marked(f"NOTES={notes}") == []
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    assert list(root.iterdir()) == []


@pytest.fixture
def request_for(references: Path) -> Callable[..., ChildRequest]:
    """A trial whose child does something at a phase: `request_for(build="segfault")`."""

    def make(operation: str = "trial", output: Path | None = None, **settings: str) -> ChildRequest:
        return ChildRequest.model_validate(
            {
                "operation": operation,
                "backend": "scripted",
                "cases": (ShapeCase(name="only"),),
                "candidate": Candidate(settings=settings),
                "references": str(references),
                "measure": QUICK,
                "output": str(output or ""),
            }
        )

    return make


@pytest.fixture
def limits() -> Limits:
    """Generous, for a loaded machine; tests lower the one that they are about."""
    return Limits(phase_seconds=dict.fromkeys(Phase, 60.0))
