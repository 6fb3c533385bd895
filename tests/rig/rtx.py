"""TensorRT-RTX for tests and bench/tensorrt_rtx.py: the real library, which builds engines without a GPU and runs none.

Children find it by PYTHONPATH alone: its bindings load the libraries that lie in the package beside them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def rtx_path() -> str:
    """`python_path`. Where it cannot be had: a failure under CI=true, else a skip with the reason."""
    try:
        return python_path()
    except RtxUnavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no TensorRT-RTX: {error}", pytrace=False)
        pytest.skip(f"no TensorRT-RTX: {error}")
