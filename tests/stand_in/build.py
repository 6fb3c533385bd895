"""Compiles the driver stand-in: libcuda.so.1, libnvidia-ml.so.1 and a plugin library."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "cuda"
LIBRARIES = {
    "libcuda.so.1": ("cuda.c", "device.c"),
    "libnvidia-ml.so.1": ("nvml.c", "device.c"),
    "libplugin.so": ("plugin.c",),
}
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")
INSTALL_SECONDS = 600


class NoCompiler(RuntimeError):
    """There is no C compiler, and none could be installed."""


@cache
def libraries() -> Path:
    """Folder with the libraries; compiled once per content of the sources, under ~/.cache/trtfleet. Raises NoCompiler."""
    digest = hashlib.sha256(repr(FLAGS).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtfleet"
    target = home / f"stand-in-{digest.hexdigest()[:16]}"
    if target.is_dir():
        return target
    compiler = _compiler()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="stand-in-part-") as aside:
        folder = Path(aside) / "libraries"
        folder.mkdir()
        for name, sources in LIBRARIES.items():
            paths = [str(SOURCES / source) for source in sources]
            subprocess.run([compiler, *FLAGS, f"-Wl,-soname,{name}", "-o", str(folder / name), *paths, "-ldl"], check=True)
        try:
            folder.rename(target)
        except OSError:  # somebody else was first
            if not target.is_dir():
                raise
    return target


def _compiler() -> str:
    """As root on Debian it is installed where it is missing, as the rig does with its packages."""
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return found
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise NoCompiler("no C compiler for the driver stand-in; install gcc and libc6-dev")
    for command in (["update"], ["install", "--yes", "--no-install-recommends", "gcc", "libc6-dev"]):
        done = subprocess.run(
            ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=600", *command],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )  # fmt: skip
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [str(done.returncode)]
            raise NoCompiler(f"apt-get {' '.join(command)}: {lines[-1]}")
    return _compiler()
