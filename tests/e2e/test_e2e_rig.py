"""The rig keeps its promises: it is a real cluster, and nothing of it outlives the tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rig.kube.control_plane import ControlPlane
from rig.kube.machine import CommandFailed, call
from rig.waiting import wait_for

HOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
from rig.kube.machine import new_machine
with new_machine() as machine:
    # A daemon, as a container's shim is: it has left its starter's session and has no parent but the machine's first process.
    machine.call("sh", "-c", "setsid --fork sleep 86400 >/dev/null 2>&1")
    machine.call("mount", "-t", "tmpfs", "tmpfs", "/mnt")
    print(machine.pid, machine.address, machine.folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.usefixtures("control_plane")  # for its skip where there is no root
def test_a_killed_test_run_leaves_no_process_and_no_network() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(Path(__file__).parents[1])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    pid, address, _ = holder.stdout.readline().split()
    first = psutil.Process(int(pid))
    inside = [first, *wait_for("the daemon is adopted", first.children, seconds=10)]
    assert address in call("ip", "route")  # of its pods

    holder.send_signal(signal.SIGKILL)
    holder.communicate()

    _, alive = psutil.wait_procs(inside, timeout=30)
    assert alive == []
    wait_for("its network is gone", lambda: address not in call("ip", "route"), seconds=30)


def test_objects_outlive_restarts_of_api_server_and_etcd(control_plane: ControlPlane) -> None:
    namespace = control_plane.new_namespace()
    control_plane.kubectl("create", "configmap", "kept", "--namespace", namespace)
    uid = control_plane.get("configmap", "kept", "--namespace", namespace)["metadata"]["uid"]

    control_plane.restart_api()
    control_plane.restart_etcd()

    assert control_plane.get("configmap", "kept", "--namespace", namespace)["metadata"]["uid"] == uid


def test_a_service_account_may_do_what_it_was_granted_and_the_audit_log_tells(control_plane: ControlPlane) -> None:
    namespace = control_plane.new_namespace()
    place = ("--namespace", namespace)
    control_plane.kubectl("create", "role", "reader", "--verb=get,list", "--resource=tuningjobs.trtfleet.dev", *place)
    control_plane.kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:default", *place)
    token = control_plane.token("default", namespace)
    begin = control_plane.audit_log.stat().st_size

    def as_account(*arguments: str) -> str:
        """Without the administrator's certificate, and still with the authority checked."""
        bare = ("--server", control_plane.server, "--certificate-authority", control_plane.authority.certificate)
        return call(control_plane.binaries / "kubectl", "--kubeconfig=/dev/null", *bare, "--token", token, *place, *arguments)

    as_account("get", "tuningjobs")
    with pytest.raises(CommandFailed, match="forbidden"):
        as_account("get", "secrets")

    mine = f"system:serviceaccount:{namespace}:default"
    answers = {(r.verb, r.what): r.code for r in control_plane.requests(begin) if r.user == mine and r.resource}
    assert answers == {("list", "trtfleet.dev/tuningjobs"): 200, ("list", "secrets"): 403}


def test_a_node_that_is_not_there_takes_pods_that_ask_for_gpus(control_plane: ControlPlane) -> None:
    namespace = control_plane.new_namespace()
    control_plane.fake_node("rig-fake", {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu.product": "NVIDIA-H200"})
    container = {"name": "worker", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [container], "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"}}
    for name in ("first", "second"):
        control_plane.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, namespace=namespace)

    def verdicts() -> set[str] | None:
        pods = control_plane.get("pods", "--namespace", namespace)["items"]
        conditions = [each for pod in pods for each in pod["status"].get("conditions", []) if each["type"] == "PodScheduled"]
        return {each["status"] for each in conditions} if len(conditions) == len(pods) else None

    assert wait_for("the scheduler has looked at both", verdicts, seconds=60) == {"True", "False"}
    control_plane.kubectl("delete", "node", "rig-fake")
