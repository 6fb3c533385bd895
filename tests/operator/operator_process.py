"""The operator as a process of this machine, with its config, probes, metrics and log."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

import yaml
from prometheus_client.parser import text_string_to_metric_families
from rig.waiting import wait_for

LOOPBACK = "127.0.0.1"
PREFIX = "tuning_operator_"
READY_SECONDS = 120.0

_open = build_opener(ProxyHandler({})).open


class OperatorProcess:
    """Started at once. `settings` are those of the config file, as YAML has them."""

    def __init__(self, folder: Path, kubeconfig: Path, settings: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = _free_port()
        self.log = folder / "operator.log"
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump({"port": self.port, "bindAddress": LOOPBACK, **settings}))
        command = [sys.executable, "-m", "tuning_operator.main", "--config", config, "--kubeconfig", kubeconfig]
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def __enter__(self) -> OperatorProcess:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 90.0) -> int:
        """SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = 90.0) -> int:
        """Until it ends by itself; its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the operator goes on after {seconds:.0f} s:\n{self.tail()}") from None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def lines(self) -> list[dict[str, Any]]:
        """What it logged so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; 0 when nobody answers."""
        try:
            with _open(f"http://{LOOPBACK}:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()
        except (URLError, OSError):
            return 0, ""

    def metric(self, name: str, **labels: str) -> float:
        """0 when there is none."""
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == PREFIX + name and sample.labels == labels:
                    return sample.value
        return 0.0

    def wait_until_leading(self, seconds: float = READY_SECONDS) -> None:
        wait_for("the operator leads", lambda: self._runs() and self.metric("leader") == 1, seconds)

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        wait_for("the operator is ready", lambda: self._runs() and self.get("/readyz")[0] == 200, seconds)

    def _runs(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the operator ended with {self.process.returncode}:\n{self.tail()}")
        return True


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port: int = free.getsockname()[1]
        return port
