"""A node without containers: it runs the workers of pods that are bound to it as processes of this machine.

It does what the operator can see of a kubelet: start, status with exit code and termination message, SIGTERM and removal of a pod
that is deleted. The pod's scratch folder and termination log are files of the test. Everything else of the pod (image, resources,
security) is left to the node tier.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import platform
import shlex
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rig.kube.control_plane import API_PORT, ControlPlane

POLL_SECONDS = 0.2

Object = dict[str, Any]


class Api:
    """The API server over plain HTTP, for one thread."""

    def __init__(self, plane: ControlPlane, user: str) -> None:
        pair = plane.authority.client(user, "system:masters")
        self._context = ssl.create_default_context(cafile=str(plane.authority.certificate))
        self._context.load_cert_chain(pair.certificate, pair.key)
        self._host = plane.machine.address
        self._connection: http.client.HTTPSConnection | None = None

    def call(self, method: str, path: str, body: Object | None = None, *, kind: str = "application/json") -> Object | None:
        """The answer; None for 404. Raises OSError while the server is away, RuntimeError for any other refusal."""
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(self._host, API_PORT, timeout=10, context=self._context)
        try:
            data = None if body is None else json.dumps(body)
            self._connection.request(method, path, data, {"Content-Type": kind, "Accept": "application/json"})
            answer = self._connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            self._connection = None
            raise OSError(str(error)) from error
        if answer.status == 404:
            return None
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status}: {text.decode(errors='replace')[:500]}")
        found: Object = json.loads(text)
        return found


@dataclass
class _Running:
    """A pod's worker."""

    process: subprocess.Popen[bytes]
    end_message: Path
    told_to_stop: bool = False
    reported: bool = False


class ProcessNode:
    """`workers` names each worker ever started: pod name → its process."""

    def __init__(self, plane: ControlPlane, folder: Path, name: str) -> None:
        self.name = name
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.problem: Exception | None = None
        """What ended the node's loop."""
        self._api = Api(plane, f"node-{name}")
        self._folder = folder
        self._pods: dict[str, _Running] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Kill what runs. The pods stay as they are."""
        self._stop.set()
        self._thread.join(30)
        for running in self._pods.values():
            with suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
            running.process.wait()

    def log(self, pod: str) -> str:
        return (self._folder / f"{pod}.log").read_text(errors="replace")

    def _run(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            try:
                self._look()
            except OSError:
                continue  # the API server restarts; pods run on meanwhile, as on a real node
            except Exception as error:
                self.problem = error
                raise

    def _look(self) -> None:
        listed = self._api.call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}")
        assert listed is not None
        pods = {each["metadata"]["uid"]: each for each in listed["items"]}
        for uid, pod in pods.items():
            if uid not in self._pods and pod["status"]["phase"] == "Pending" and not _deleting(pod):
                self._pods[uid] = self._start(pod)
            elif uid in self._pods:
                self._watch(pod, self._pods[uid])
            elif _deleting(pod):
                self._remove(pod)
        for uid in self._pods.keys() - pods.keys():  # deleted by force: the kubelet kills what is left of it
            with suppress(ProcessLookupError):
                os.killpg(self._pods[uid].process.pid, signal.SIGKILL)

    def _start(self, pod: Object) -> _Running:
        name = pod["metadata"]["name"]
        container = pod["spec"]["containers"][0]
        scratch, end_message = self._folder / f"{name}.scratch", self._folder / f"{name}.end"
        scratch.mkdir()
        places = {"/scratch": str(scratch), "/dev/termination-log": str(end_message), "python": sys.executable}
        own = {name: places.get(value, value) for name, value in self._environment(pod, container).items()}
        environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | own
        words = [_expanded(word, environment) for word in (*container.get("command", ()), *container.get("args", ()))]
        with (self._folder / f"{name}.log").open("wb") as log:
            log.write(f"{shlex.join(words)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                [places.get(word, word) for word in words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers[name] = process
        self._report(pod, "Running", {"running": {"startedAt": _now()}})
        return _Running(process, end_message)

    def _watch(self, pod: Object, running: _Running) -> None:
        code = running.process.poll()
        if code is None:
            if _deleting(pod) and not running.told_to_stop:
                running.process.terminate()
                running.told_to_stop = True
            return
        if not running.reported:
            message = running.end_message.read_text() if running.end_message.exists() else ""
            code = code if code >= 0 else 128 - code
            ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message, "finishedAt": _now()}
            self._report(pod, "Failed" if code else "Succeeded", {"terminated": ended})
            running.reported = True
        elif _deleting(pod):
            self._remove(pod)

    def _remove(self, pod: Object) -> None:
        self._api.call("DELETE", _path(pod), {"gracePeriodSeconds": 0})

    def _report(self, pod: Object, phase: str, state: Object) -> None:
        container = pod["spec"]["containers"][0]
        ready = phase == "Running"
        status = {
            "phase": phase,
            "startTime": pod["status"].get("startTime") or _now(),
            "conditions": [{"type": "Ready", "status": str(ready)}, {"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": container["image"],
                    "restartCount": 0,
                    "ready": ready,
                    "state": state,
                }
            ],
        }
        self._api.call("PATCH", f"{_path(pod)}/status", {"status": status}, kind="application/strategic-merge-patch+json")

    def _environment(self, pod: Object, container: Object) -> dict[str, str]:
        found: dict[str, str] = {}
        for each in container.get("env", ()):
            if "value" in each:
                found[each["name"]] = _expanded(each["value"], found)
            elif "valueFrom" not in each:
                found[each["name"]] = ""
            elif "fieldRef" in each["valueFrom"]:
                found[each["name"]] = _field(pod, each["valueFrom"]["fieldRef"]["fieldPath"])
            else:
                reference = each["valueFrom"]["secretKeyRef"]
                value = self._secret(pod["metadata"]["namespace"], reference["name"], reference["key"])
                if value is None and not reference.get("optional"):
                    raise RuntimeError(f"no key {reference['key']} in Secret {reference['name']}")
                if value is not None:
                    found[each["name"]] = value
        return found

    def _secret(self, namespace: str, name: str, key: str) -> str | None:
        secret = self._api.call("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
        data = (secret or {}).get("data", {}).get(key)
        return None if data is None else base64.b64decode(data).decode()


@contextmanager
def process_node(plane: ControlPlane, folder: Path, name: str, labels: dict[str, str] | None = None) -> Iterator[ProcessNode]:
    """A node that takes pods until the end of the block."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    own = {"kubernetes.io/arch": architecture, "kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    plane.fake_node(name, {}, own | (labels or {}))
    node = ProcessNode(plane, folder, name)
    node.start()
    try:
        yield node
    finally:
        node.stop()
        plane.kubectl("delete", "node", name)


def _deleting(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _field(pod: Object, path: str) -> str:
    """What the downward API gives for `metadata.uid`, `metadata.name`, `metadata.annotations['…']`."""
    if path.startswith(("metadata.annotations['", "metadata.labels['")):
        kind, _, key = path.removeprefix("metadata.").partition("['")
        return str(pod["metadata"][kind].get(key.removesuffix("']"), ""))
    part, _, name = path.partition(".")
    return str(pod[part].get(name, ""))


def _expanded(text: str, environment: dict[str, str]) -> str:
    for name, value in environment.items():
        text = text.replace(f"$({name})", value)
    return text


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
