"""What a plain process can see of the machine, without any engine library."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

_VERSION = re.compile(r"NVRM version:.*?(\d+\.\d+(?:\.\d+)?)\s")


def machine(root: Path = Path("/")) -> dict[str, str]:
    """Operating system, processor, Python; of the NVIDIA driver its version and how many device files there are."""
    facts = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "nvidiaDevices": str(len(list((root / "dev").glob("nvidia[0-9]*")))),
    }
    try:
        found = _VERSION.search((root / "proc/driver/nvidia/version").read_text())
    except OSError:
        found = None
    return facts | ({"nvidiaDriver": found[1]} if found else {})


def missing_gpu(facts: dict[str, str]) -> str:
    """Why no GPU can be used here, as far as files tell; empty when they look well."""
    if "nvidiaDriver" not in facts and facts["nvidiaDevices"] == "0":
        return "no NVIDIA driver is loaded and no device file is there; run it on a machine, or in a container, with a GPU"
    if facts["nvidiaDevices"] == "0":
        return f"the NVIDIA driver {facts['nvidiaDriver']} is loaded, but no device file is here; give the container a GPU"
    return ""
