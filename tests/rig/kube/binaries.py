"""Programs that the rig runs: Kubernetes and helm built from source, the rest Debian's."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

BUILD_SECONDS = 3600
INSTALL_SECONDS = 900

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtfleet"

_PACKAGES = {
    "buildah": "buildah",
    "containerd": "containerd",
    "ctr": "containerd",
    "debootstrap": "debootstrap",
    "etcd": "etcd-server",
    "ip": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "runc": "runc",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
"""Command → the Debian package that holds it."""

_POLICY = Path("/usr/sbin/policy-rc.d")
"""Debian's way to keep a package from starting its service when it is installed."""


class RigUnavailable(RuntimeError):
    """This machine cannot run the rig. `str()` says why and what would help, in one line."""


def require_root() -> None:
    if os.geteuid() != 0:
        raise RigUnavailable("the cluster rig makes namespaces and mounts: run as root")


def built(name: str) -> Path:
    """`kubernetes` (a folder of its programs), `helm` or `pause`; built on the first use on a machine."""
    script = Path(__file__).with_name("build.sh")
    done = subprocess.run([script, name], capture_output=True, text=True, timeout=BUILD_SECONDS)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise RigUnavailable(f"build.sh {name}: {lines[-1] if lines else f'ended with {done.returncode}'}")
    return Path(done.stdout.strip())


def installed(*commands: str) -> None:
    """Installs the Debian packages of the commands that are missing. Their services are not started."""
    if missing := _missing(commands):
        packages = sorted({_PACKAGES[command] for command in missing})
        if shutil.which("apt-get") is None:
            raise RigUnavailable(f"missing: {', '.join(missing)}; install what Debian calls {' '.join(packages)}")
        with alone("apt"):
            if _missing(commands):
                _install(packages)
        if missing := _missing(commands):
            raise RigUnavailable(f"still missing after installing {' '.join(packages)}: {', '.join(missing)}")


def _missing(commands: Iterable[str]) -> list[str]:
    return sorted(command for command in commands if shutil.which(command) is None)


def _install(packages: list[str]) -> None:
    made = not _POLICY.exists()
    if made:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    try:
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            done = subprocess.run(
                ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=600", *command],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False,
            )  # fmt: skip
            # An update that misses one of many sources may still serve: the install decides.
            if done.returncode != 0 and command != ["update"]:
                lines = done.stderr.strip().splitlines()
                raise RigUnavailable(f"apt-get install {' '.join(packages)}: {lines[-1] if lines else done.returncode}")
    finally:
        if made:
            _POLICY.unlink()


@contextmanager
def alone(name: str) -> Iterator[None]:
    """One process of this machine at a time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
