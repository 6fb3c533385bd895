"""How the operator's process starts and ends."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_process import LOOPBACK, OperatorProcess
from rig.kube.control_plane import ControlPlane
from rig.waiting import wait_for

LEASE = "trtfleet-operator"


def start(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tuning_operator.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def api_server(status: int, answer: dict[str, Any]) -> Iterator[str]:
    """An API server that says the same to everything; its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None: ...

    server = http.server.ThreadingHTTPServer((LOOPBACK, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": server}}],
        "users": [{"name": "test", "user": {"token": "not-a-secret"}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "config.yaml: No such file or directory; mount it, or name it with --config"),
        ("cluster: [", "config.yaml: not YAML"),
        ("- a list", "config.yaml: expected a mapping at the top"),
        ("operatorNamespace: trtfleet", "config.yaml: cluster: Field required"),
        ("{cluster: lab, operatorNamespace: x, reconcilers: 0}", "config.yaml: reconcilers: Input should be greater than"),
        ("{cluster: lab, operatorNamespace: x, reconciler: 4}", "config.yaml: reconciler: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_config_is_one_line_and_exit_code_2(tmp_path: Path, config: str | None, said: str) -> None:
    if config is not None:
        (tmp_path / "config.yaml").write_text(config)
    ended = start("--config", tmp_path / "config.yaml")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("trtfleet-operator: ")
    assert said in line


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (404, {"message": "not found"}, "does not serve tuningjobs of trtfleet.dev/v1alpha1"),
        (200, {"resources": [{"name": "tuningjobs"}]}, "does not serve"),
        (403, {"message": "may not get path /apis"}, "may not get path /apis"),
    ],
)
def test_a_cluster_it_cannot_work_on_is_said_in_one_line_with_exit_code_2(
    tmp_path: Path, status: int, answer: dict[str, Any], said: str
) -> None:
    with (
        api_server(status, answer) as server,
        OperatorProcess(tmp_path, kubeconfig(tmp_path, server), {"cluster": "lab", "operatorNamespace": "x"}) as operator,
    ):
        assert operator.wait() == 2
        last = operator.lines()[-1]
        assert last["level"] == "critical"
        assert said in last["message"]
        assert "traceback" not in last


def test_a_kubeconfig_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with OperatorProcess(tmp_path, tmp_path / "nowhere", {"cluster": "lab", "operatorNamespace": "x"}) as operator:
        assert operator.wait() == 2
        assert "nowhere" in operator.lines()[-1]["message"]


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path) -> None:
    with api_server(404, {}) as server:
        port = int(server.rpartition(":")[2])
        settings = {"cluster": "lab", "operatorNamespace": "x", "port": port}
        with OperatorProcess(tmp_path, kubeconfig(tmp_path, server), settings) as operator:
            assert operator.wait() == 2
            assert f"port {port}" in operator.lines()[-1]["message"]


def test_it_waits_for_an_api_server_that_is_away_and_can_be_stopped_meanwhile(tmp_path: Path) -> None:
    with api_server(503, {"message": "starting"}) as server:
        config = {"cluster": "lab", "operatorNamespace": "x"}
        with OperatorProcess(tmp_path, kubeconfig(tmp_path, server), config) as operator:
            wait_for("it says so", lambda: any("starting" in each["message"] for each in operator.lines()), 60)
            status, body = operator.get("/readyz")
            assert (status, json.loads(body)["failed"]) == (503, {"role": "starting"})
            assert operator.get("/healthz")[0] == 200
            assert operator.stop() == 0


# With a real API server.


@pytest.fixture
def place(control_plane: ControlPlane) -> str:
    return control_plane.new_namespace()


def operator_in(place: str, plane: ControlPlane, folder: Path, name: str) -> OperatorProcess:
    settings = {"cluster": "rig", "namespaces": [place], "operatorNamespace": place, "leaseSeconds": 4, "stopSeconds": 5}
    user = plane.authority.kubeconfig(plane.server, f"operator-{name}", "system:masters")
    return OperatorProcess(folder / name, user, settings)


@pytest.mark.slow
def test_a_second_replica_stands_by_ready_and_writes_nothing_until_the_first_one_is_killed(
    place: str, control_plane: ControlPlane, tmp_path: Path
) -> None:
    with operator_in(place, control_plane, tmp_path, "one") as one:
        one.wait_until_leading()
        before = control_plane.audit_log.stat().st_size
        with operator_in(place, control_plane, tmp_path, "two") as two:
            two.wait_until_ready()
            assert two.metric("leader") == 0
            one.process.kill()
            two.wait_until_leading()
            standing_by = [each for each in control_plane.requests(before) if each.user == "operator-two" and each.writes]
            assert {each.resource for each in standing_by} == {"leases"}
            two.wait_until_ready()
            assert two.stop() == 0


@pytest.mark.slow
def test_a_stopped_leader_hands_its_lease_over(place: str, control_plane: ControlPlane, tmp_path: Path) -> None:
    with operator_in(place, control_plane, tmp_path, "one") as one:
        one.wait_until_leading()
        assert one.stop() == 0
        lease = control_plane.get("lease", LEASE, "--namespace", place)
        assert lease["spec"].get("holderIdentity", "") == ""
        assert one.lines()[-1]["message"] == "stopped"


@pytest.mark.slow
def test_a_stolen_lease_ends_the_process(place: str, control_plane: ControlPlane, tmp_path: Path) -> None:
    with operator_in(place, control_plane, tmp_path, "one") as one:
        one.wait_until_leading()
        thief = json.dumps({"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 3600}})
        control_plane.kubectl("patch", "lease", LEASE, "--namespace", place, "--type=merge", "--patch", thief)
        assert one.wait() == 1
        last = one.lines()[-1]
        assert (last["level"], "traceback" in last) == ("critical", False)
        assert "taken by thief" in last["message"]


@pytest.mark.slow
def test_a_leader_whose_api_server_goes_away_ends_and_the_next_start_waits_for_it(
    place: str, control_plane: ControlPlane, tmp_path: Path
) -> None:
    with operator_in(place, control_plane, tmp_path, "one") as one:
        one.wait_until_leading()
        control_plane.stop_api()
        try:
            assert one.wait() == 1
            with operator_in(place, control_plane, tmp_path, "two") as two:
                wait_for("it waits", lambda: any("trying again" in each["message"] for each in two.lines()), 60)
                control_plane.start_api()
                two.wait_until_leading()
                assert two.stop() == 0
        finally:
            if not control_plane.machine.processes["kube-apiserver"].runs:
                control_plane.start_api()
