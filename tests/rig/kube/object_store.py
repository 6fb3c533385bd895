"""A real S3 server inside a machine."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rig.kube.machine import Machine, Process
from rig.s3 import Address, build_versitygw
from rig.waiting import wait_for

S3_PORT = 7070
BUCKET = "bucket"
START_SECONDS = 60.0


@dataclass(frozen=True)
class Fault:
    """What goes wrong with requests, for a proxy before the server."""

    status: int = 0
    """It answers with this; 0: it passes the request on."""
    delay_seconds: float = 0.0
    """First it waits."""
    drop: bool = False
    """It closes the connection without an answer."""
    share: float = 1.0
    """Of the requests."""
    after: bool = False
    """The request is passed on, and its answer is what goes wrong."""
    methods: tuple[str, ...] = ()
    """Only these; empty: all."""


@dataclass
class MachineS3:
    """versitygw over a folder of the machine. Pods and tests reach it at the same address."""

    machine: Machine
    access_key: str = "tester"
    secret_key: str = "testing-secret"

    @property
    def endpoint(self) -> str:
        return f"http://{self.machine.address}:{S3_PORT}"

    @property
    def inner_endpoint(self) -> str:
        """For commands that run in the machine. The CLI speaks plain HTTP to nothing but loopback."""
        return f"http://127.0.0.1:{S3_PORT}"

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "allowHttp": "true",
            "accessKeyId": self.access_key,
            "secretAccessKey": self.secret_key,
        }

    @property
    def buckets(self) -> Path:
        return self.machine.folder / "buckets"

    def new_store(self, prefix: str = "") -> Address:
        """An empty store under a prefix of its own."""
        return Address(f"s3://{BUCKET}/{prefix or secrets.token_hex(6)}", self.options)

    def start(self) -> None:
        """Returns when it listens. Its objects are those of before."""
        (self.buckets / BUCKET).mkdir(parents=True, exist_ok=True)
        process = self.machine.start(
            "versitygw",
            build_versitygw(),
            *("--port", f":{S3_PORT}", "--quiet", "posix", self.buckets),
            env={"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key},
        )
        wait_until_listening(process, self.machine.address, S3_PORT)

    def stop(self) -> None:
        self.machine.processes["versitygw"].stop()


def wait_until_listening(process: Process, address: str, port: int) -> None:
    def listens() -> bool:
        process.check()
        with suppress(OSError), socket.create_connection((address, port), timeout=1):
            return True
        return False

    wait_for(f"{process.name} listens on {address}:{port}", listens, START_SECONDS)
