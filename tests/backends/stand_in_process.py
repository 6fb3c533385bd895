"""Runs code in a process that finds the driver stand-ins, which are looked for only when a process starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stand_in.stage import Stage

PRELUDE = """
import ctypes, json
import numpy as np
from tuner_job.backends import cuda, nvml
def attempt(work):
    try:
        return repr(work())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
def free():
    room, whole = ctypes.c_size_t(), ctypes.c_size_t()
    ctypes.CDLL("libcuda.so.1").cuMemGetInfo_v2(ctypes.byref(room), ctypes.byref(whole))
    return room.value
def tell(**facts):
    print(json.dumps(facts))
"""


@dataclass
class Process:
    """A GPU that `device.txt` describes, and processes that see it."""

    stage: Stage

    def tell(self, code: str, device: Sequence[str] = ()) -> dict[str, Any]:
        """What `code` gives to `tell`."""
        self.stage.write({}, device)
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + code],
            env=os.environ | self.stage.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Process:
    folder: Path = tmp_path_factory.mktemp("gpu")
    return Process(Stage.make(folder / "stage"))
