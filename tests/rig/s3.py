"""A real S3 server on loopback for tests."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tuner_job.store.objects import ObjectStore

BUILD_SECONDS = 900
START_SECONDS = 60

_DIE_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
"""PR_SET_PDEATHSIG, SIGKILL: a test run that is killed leaves no server."""


@dataclass(frozen=True)
class Address:
    """Where a store is: what `ObjectStore.open` and a worker's command line take."""

    url: str
    options: dict[str, str]

    def open(self) -> ObjectStore:
        return ObjectStore.open(self.url, self.options)


@dataclass
class S3Server:
    """versitygw over a folder; its buckets are that folder's folders.

    Versions are kept in extended attributes: with `--sidecar`, version 1.8.0 loses a third of simultaneous swaps.
    """

    endpoint: str
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def options(self) -> dict[str, str]:
        return {"endpoint": self.endpoint, "accessKeyId": "tester", "secretAccessKey": "testing-secret", "region": "us-east-1"}

    def new_store(self) -> Address:
        """An empty store of its own, under a prefix."""
        (self.folder / "bucket").mkdir(exist_ok=True)
        return Address(f"s3://bucket/{secrets.token_hex(6)}", self.options)


def build_versitygw() -> Path:
    script = Path(__file__).with_name("versitygw.sh")
    built = subprocess.run([script], capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    if built.returncode != 0:
        raise RuntimeError(built.stderr.strip().splitlines()[-1] if built.stderr.strip() else "versitygw.sh failed")
    return Path(built.stdout.strip())


@contextmanager
def serve_s3(folder: Path, port: int = 0) -> Iterator[S3Server]:
    """Over `folder`, which keeps the objects; started again over the same one, it has them still. 0: any free port."""
    binary = build_versitygw()
    buckets = folder / "buckets"
    buckets.mkdir(exist_ok=True)
    if port == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    log = (folder / "versitygw.log").open("ab")
    process = subprocess.Popen(
        [sys.executable, "-c", _DIE_WITH_PARENT, binary, "--port", f"127.0.0.1:{port}", "--quiet", "posix", buckets],
        env={"PATH": os.environ["PATH"], "ROOT_ACCESS_KEY": "tester", "ROOT_SECRET_KEY": "testing-secret"},
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
        cwd=folder,
    )
    try:
        _wait_until_listening(process, port, folder / "versitygw.log")
        yield S3Server(f"http://127.0.0.1:{port}", buckets, process)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        log.close()


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"versitygw ended with {process.returncode}: {log.read_text()[-500:]}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if time.monotonic() > give_up:
            raise RuntimeError(f"versitygw does not listen after {START_SECONDS} s")
        time.sleep(0.05)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Built on the first use on a machine. Where it cannot be had: a failure under CI=true, else a skip with the reason."""
    with tempfile.TemporaryDirectory(prefix="trtfleet-s3-") as folder:
        try:
            build_versitygw()
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(f"no S3 server: {error}")
        with serve_s3(Path(folder)) as server:
            yield server


@pytest.fixture(params=["memory", "file", "s3"])
def store_address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """An empty store of each kind."""
    if request.param == "memory":
        return Address(f"memory://{secrets.token_hex(6)}", {})
    if request.param == "file":
        return Address((tmp_path / "store").as_uri(), {})
    server: S3Server = request.getfixturevalue("s3_server")
    return server.new_store()


@pytest.fixture
def object_store(store_address: Address) -> ObjectStore:
    """An empty store of each kind, opened."""
    return store_address.open()
