"""Container images without a registry: a Debian base, the targets of the Dockerfile, and the pause image."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from rig.kube.binaries import CACHE, RigUnavailable, alone, built, installed, require_root
from rig.kube.machine import CommandFailed, call

Target = Literal["operator", "worker", "cli"]

SOURCE = Path(__file__).parents[3]
BUILD_SECONDS = 1800.0
KEEP = 2
"""Archives of a target: those of earlier sources may serve again, or serve another checkout."""
MOST_LAYERS = 300
"""In buildah's storage. A change of sources adds about ten, of some megabytes each."""

PAUSE = "localhost/pause:1"
"""Name of the pause image."""

_LOCKS: Mapping[Target, tuple[str, ...]] = {
    "operator": ("requirements/build.txt", "requirements/operator.txt"),
    "worker": ("requirements/build.txt", "requirements/worker.txt"),
    "cli": ("requirements/build.txt", "requirements/run.txt"),
}

_BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_BASE_VERSION = 1
"""Counts changes of how the base is made."""

_PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "timeout", "retries", "proxy")


@dataclass(frozen=True)
class Image:
    """An image in an archive of docker's kind, whose layers are not compressed: nobody sends it anywhere."""

    name: str
    """With its tag: `localhost/trtfleet-worker:1f0c…`."""
    archive: Path

    @property
    def repository(self) -> str:
        return self.name.rpartition(":")[0]


def image(target: Target) -> Image:
    """A target of the Dockerfile on the Debian base, built unless one of exactly these sources lies in the cache."""
    base = _base()
    inputs = ["Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", "tuner_job", "operator", *_LOCKS[target]]
    key = _digest([base.encode(), *_contents(SOURCE, inputs)])
    found = Image(f"localhost/trtfleet-{target}:{key}", CACHE / "images" / f"{target}-{key}.tar")
    if not found.archive.exists():
        with alone("images"), tempfile.TemporaryDirectory(prefix="trtfleet-pip-") as folder:
            if not found.archive.exists():
                arguments = [f"--target={target}", f"--build-arg=BASE={base}", *_pip_secrets(Path(folder))]
                _build(found, SOURCE, SOURCE / "Dockerfile", arguments)
                _forget_others(found)
    return found


def _forget_others(kept: Image) -> None:
    """Images of earlier sources. Layers stay for the next build, until there are too many."""
    tag = kept.name.rpartition(":")[2]
    for line in buildah("images", "--format={{.Name}}:{{.Tag}}").split():
        if line.startswith(f"{kept.repository}:") and line != kept.name:
            buildah("rmi", line)
    if len(buildah("images", "--all", "--quiet").split()) > MOST_LAYERS:
        buildah("rmi", "--prune", "--force")
    former = sorted(
        kept.archive.parent.glob(f"{kept.archive.name.removesuffix(f'{tag}.tar')}*.tar"), key=lambda path: path.stat().st_mtime
    )
    for path in former[:-KEEP]:
        path.unlink(missing_ok=True)


def pause_image() -> Image:
    """Holds a pod's namespaces."""
    found = Image(PAUSE, CACHE / "images" / f"{built('pause').name}.tar")
    if not found.archive.exists():
        installed("buildah")
        with alone("images"), tempfile.TemporaryDirectory(prefix="trtfleet-pause-") as folder:
            context = Path(folder)
            shutil.copy2(built("pause"), context / "pause")
            (context / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n')
            _build(found, context, context / "Dockerfile", [])
    return found


def _build(made: Image, context: Path, dockerfile: Path, arguments: Iterable[str]) -> None:
    made.archive.parent.mkdir(parents=True, exist_ok=True)
    aside = made.archive.with_suffix(f".{os.getpid()}")
    try:
        form = ("--layers", "--timestamp=0", "--format=oci")
        buildah("build", *form, f"--tag={made.name}", f"--file={dockerfile}", *arguments, context)
        buildah("push", made.name, f"docker-archive:{aside}:{made.name}")
        aside.replace(made.archive)
    except CommandFailed as error:
        raise RigUnavailable(f"image {made.name}: {error}") from None
    finally:
        aside.unlink(missing_ok=True)


def buildah(*arguments: str | Path) -> str:
    """Standard output. Its storage is the rig's own."""
    require_root()
    installed("buildah")
    return call("env", "BUILDAH_ISOLATION=chroot", "buildah", *_storage(_driver()), *arguments, seconds=BUILD_SECONDS)


def _storage(driver: str) -> list[str]:
    folder = CACHE / f"buildah-{driver}"
    return ["--root", str(folder / "root"), "--runroot", str(folder / "run"), "--storage-driver", driver]


@cache
def _driver() -> str:
    """How buildah keeps layers. Within a container, overlays cannot be stacked: there each layer is a whole copy."""
    try:
        call("buildah", *_storage("overlay"), "info")
    except CommandFailed:
        return "vfs"
    return "overlay"


def _base() -> str:
    """Name of a Debian image with Python in buildah's storage."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    key = _digest([release.encode(), *(package.encode() for package in _BASE_PACKAGES), str(_BASE_VERSION).encode()])
    name = f"localhost/trtfleet-base:{key}"
    with alone("images"):
        if name not in buildah("images", "--format={{.Name}}:{{.Tag}}").split():
            _make_base(name, release)
    return name


def _make_base(name: str, release: str) -> None:
    installed("debootstrap")
    with tempfile.TemporaryDirectory(prefix="trtfleet-base-", dir=CACHE) as folder:
        root = Path(folder) / "root"
        try:
            call(
                *("debootstrap", "--variant=minbase", f"--include={','.join(_BASE_PACKAGES)}"),
                *(release, root, _mirror(release)),
                seconds=BUILD_SECONDS,
            )
        except CommandFailed as error:
            raise RigUnavailable(f"no base image: {str(error).splitlines()[-1]}") from None
        for waste in ("var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            for each in (root / waste).iterdir():
                shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        container = buildah("from", "scratch").strip()
        buildah("add", "--quiet", container, root, "/")
        buildah("config", "--cmd=python3", container)
        buildah("commit", "--quiet", "--rm", "--timestamp=0", "--format=oci", container, name)


def _mirror(release: str) -> str:
    """Where this machine's own packages come from."""
    said = call("apt-get", "indextargets", "--format=$(REPO_URI)", "Created-By: Packages", f"Codename: {release}")
    if not said.split():
        raise RigUnavailable(f"no base image: apt has no source for {release}")
    return said.split()[0]


def _pip_secrets(folder: Path) -> list[str]:
    """This machine's way to a package index, told to the build and kept out of the image."""
    settings = _pip_settings()
    lines = ["[global]", *(f"{name} = {settings[name]}" for name in _PIP_SETTINGS if name in settings)]
    secrets = []
    certificates = settings.get("cert") or os.environ.get("SSL_CERT_FILE")
    if certificates and Path(certificates).exists():
        lines.append("cert = /run/secrets/ca.crt")
        secrets.append(f"--secret=id=ca.crt,src={certificates}")
    (folder / "pip.conf").write_text("\n".join(lines) + "\n")
    return [f"--secret=id=pip.conf,src={folder / 'pip.conf'}", *secrets]


def _pip_settings() -> Mapping[str, str]:
    """Of its files and environment, the strongest last."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    settings = {}
    for line in sorted(said.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = value.strip("'\"")
    return settings


def _contents(root: Path, names: Iterable[str]) -> Iterable[bytes]:
    for name in names:
        top = root / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{path.relative_to(root)} {path.stat().st_size}\n".encode() + path.read_bytes()


def _digest(parts: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]
