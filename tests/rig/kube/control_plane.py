"""A real control plane in a machine of its own: etcd, API server, controller manager, scheduler."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rig.kube import audit
from rig.kube.binaries import built, installed
from rig.kube.machine import CommandFailed, Machine, Process, call, new_machine
from rig.kube.pki import Authority, signing_pair
from rig.waiting import wait_for

START_SECONDS = 120.0
"""Of one program, on a busy machine."""

API_PORT = 6443
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
"""The first address of SERVICES, which is where pods look for the API server."""

NOT_READY = "node.kubernetes.io/not-ready"

Object = dict[str, Any]


@dataclass
class ControlPlane:
    """Ready to use when it is made."""

    machine: Machine
    authority: Authority
    kubeconfig: Path
    """Of an administrator, with the authority's certificate in it."""
    audit_log: Path
    binaries: Path
    """Folder with kubectl and the node's programs."""
    lose_nodes: bool
    """Whether nodes that do not report are marked and their pods evicted."""
    starts: list[tuple[str, str]] = field(default_factory=list)
    """When the API server was started and when it was ready, RFC 3339. In between it knows no roles yet and refuses."""

    @property
    def server(self) -> str:
        return f"https://{self.machine.address}:{API_PORT}"

    def kubectl(self, *arguments: str | Path, stdin: str | None = None, seconds: float = 120.0) -> str:
        """Standard output. Raises CommandFailed with what kubectl said."""
        return call(self.binaries / "kubectl", "--kubeconfig", self.kubeconfig, *arguments, stdin=stdin, seconds=seconds)

    def get(self, *arguments: str) -> Object:
        """`kubectl get … -o json`."""
        found: Object = json.loads(self.kubectl("get", *arguments, "--output=json"))
        return found

    def find(self, *arguments: str) -> Object | None:
        """`kubectl get … -o json`, None when there is no such object."""
        said = self.kubectl("get", *arguments, "--output=json", "--ignore-not-found")
        found: Object | None = json.loads(said) if said.strip() else None
        return found

    def apply(self, *objects: Object, namespace: str | None = None) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        place = ["--namespace", namespace] if namespace else []
        self.kubectl("apply", "--server-side", *place, "--filename=-", stdin=json.dumps(listed))

    def new_namespace(self) -> str:
        """An empty namespace of its own, in which pods can be made."""
        name = f"test-{secrets.token_hex(4)}"
        self.kubectl("create", "namespace", name)
        self.wait_for_service_account("default", name)
        return name

    def wait_for_service_account(self, name: str, namespace: str) -> None:
        """The controller manager makes the default one a moment after its namespace."""
        wait_for(f"service account {name}", lambda: self.find("serviceaccount", name, "--namespace", namespace), seconds=30)

    def token(self, service_account: str, namespace: str) -> str:
        """A bearer token, valid for an hour."""
        return self.kubectl("create", "token", service_account, "--namespace", namespace).strip()

    def requests(self, offset: int = 0) -> Iterator[audit.Request]:
        """What the API server was asked since the audit log had `offset` bytes (`audit_log.stat().st_size`)."""
        return audit.read(self.audit_log, offset)

    def fake_node(self, name: str, capacity: Mapping[str, str], labels: Mapping[str, str] | None = None) -> None:
        """A node that is ready and has room, and on which nothing ever starts: for tests that play the kubelet."""
        self.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(labels or {})}})
        room = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti", **capacity}
        ready = {"type": "Ready", "status": "True", "reason": "Fake", "message": "no kubelet"}
        status = {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}
        self.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "--patch", json.dumps(status))
        taints = self.get("node", name)["spec"].get("taints", [])
        if any(taint["key"] == NOT_READY for taint in taints):  # put on every new node; here nobody else takes it off
            self.kubectl("taint", "node", name, f"{NOT_READY}-")

    # starting and stopping its parts

    def start_etcd(self) -> None:
        data = self.machine.folder / "etcd"
        self.machine.start(
            "etcd",
            "etcd",
            f"--data-dir={data}",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",  # a killed process loses nothing by it; this machine's power cut is no test
            "--log-level=warn",
        )

    def start_api(self) -> None:
        """Returns when it is ready."""
        pki = self.authority.folder
        began = _now()
        process = self.machine.start(
            "kube-apiserver",
            self.binaries / "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={self.machine.address}",
            f"--advertise-address={self.machine.address}",
            f"--secure-port={API_PORT}",
            f"--tls-cert-file={pki / 'api.crt'}",
            f"--tls-private-key-file={pki / 'api.key'}",
            f"--client-ca-file={self.authority.certificate}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'tokens.pub'}",
            f"--service-account-signing-key-file={pki / 'tokens.key'}",
            f"--service-cluster-ip-range={SERVICES}",
            f"--kubelet-certificate-authority={self.authority.certificate}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-policy-file={pki / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-maxsize=2000",
            "--allow-privileged=true",
            "--profiling=false",
        )
        self._wait_until_ready(process)
        self.starts.append((began, _now()))

    def _wait_until_ready(self, process: Process) -> None:
        def ready() -> bool:
            process.check()
            with suppress(CommandFailed):
                if self.kubectl("get", "--raw=/readyz", "--request-timeout=5s") == "ok":
                    self.kubectl("get", "namespace", "default", "--request-timeout=5s")  # which only etcd can answer
                    return True
            return False

        wait_for("the API server is ready", ready, START_SECONDS)

    def start_controllers(self) -> None:
        """Controller manager and scheduler. They begin to work when they can."""
        controllers = ["*", "-node-ipam-controller", "-certificatesigningrequest-signing-controller"]
        if not self.lose_nodes:
            controllers += ["-node-lifecycle-controller", "-taint-eviction-controller"]
        self.machine.start(
            "kube-controller-manager",
            self.binaries / "kube-controller-manager",
            f"--kubeconfig={self.authority.kubeconfig(self.server, 'system:kube-controller-manager')}",
            f"--controllers={','.join(controllers)}",
            f"--root-ca-file={self.authority.certificate}",
            f"--service-account-private-key-file={self.authority.folder / 'tokens.key'}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--secure-port=0",
            "--profiling=false",
        )
        self.machine.start(
            "kube-scheduler",
            self.binaries / "kube-scheduler",
            f"--kubeconfig={self.authority.kubeconfig(self.server, 'system:kube-scheduler')}",
            "--leader-elect=false",
            "--secure-port=0",
            "--profiling=false",
        )

    def stop_api(self) -> None:
        """Left alone, it would wait a minute for its watches to end."""
        self.machine.processes["kube-apiserver"].stop(seconds=5)

    def restart_api(self) -> None:
        """Returns when it is ready again."""
        self.stop_api()
        self.start_api()

    def restart_etcd(self) -> None:
        """Its data stay. Returns when the API server is ready again."""
        self.machine.processes["etcd"].stop()
        self.start_etcd()
        self._wait_until_ready(self.machine.processes["kube-apiserver"])


def _now() -> str:
    """As the audit log writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@contextmanager
def new_control_plane(*, lose_nodes: bool = True) -> Iterator[ControlPlane]:
    """Raises RigUnavailable where there is no root, or a program can be neither built nor installed."""
    installed("etcd", "iptables")
    binaries = built("kubernetes")
    with new_machine() as machine:
        authority = Authority(machine.folder / "pki")
        authority.server("api", ["kubernetes", "kubernetes.default", "kubernetes.default.svc", API_SERVICE, machine.address])
        authority.client("kubelet-client", "system:masters")
        signing_pair(authority.folder)
        (authority.folder / "audit-policy.yaml").write_text(audit.POLICY)
        plane = ControlPlane(
            machine,
            authority,
            kubeconfig=authority.kubeconfig(f"https://{machine.address}:{API_PORT}", "admin", "system:masters"),
            audit_log=machine.folder / "audit.log",
            binaries=binaries,
            lose_nodes=lose_nodes,
        )
        _route_api_service(machine)
        plane.start_etcd()
        plane.start_api()
        plane.start_controllers()
        plane.wait_for_service_account("default", "default")
        yield plane


def _route_api_service(machine: Machine) -> None:
    """The API server at its service address, without a proxy for services."""
    for chain in ("PREROUTING", "OUTPUT"):
        machine.call(
            *("iptables", "--wait", "--table", "nat", "--append", chain, "--destination", API_SERVICE, "--protocol", "tcp"),
            *("--dport", "443", "--jump", "DNAT", "--to-destination", f"{machine.address}:{API_PORT}"),
        )
