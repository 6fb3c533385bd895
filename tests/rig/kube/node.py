"""A real node beside the control plane: kubelet, containerd and runc run real pods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml
from rig.kube.binaries import installed
from rig.kube.control_plane import ControlPlane
from rig.kube.images import PAUSE, Image, pause_image
from rig.kube.machine import CommandFailed, Machine, cgroups
from rig.waiting import wait_for

READY_SECONDS = 120.0

ROOM_BYTES = 6 << 30
"""Of memory, with which the images' files are kept there: they take one of them."""

GPU = "nvidia.com/gpu"


@dataclass
class Node:
    plane: ControlPlane
    name: str

    @property
    def machine(self) -> Machine:
        return self.plane.machine

    def ctr(self, *arguments: str | Path, seconds: float = 300.0) -> str:
        return self.machine.call("ctr", "--address", self._socket, "--namespace", "k8s.io", *arguments, seconds=seconds)

    def load(self, image: Image) -> str:
        """Makes an image known under its name and under its digest; returns the latter, which pods can use without a registry."""
        self.ctr("images", "import", image.archive)
        (line,) = self.ctr("images", "list", f"name=={image.name}").splitlines()[1:]
        digest = next(word for word in line.split() if word.startswith("sha256:"))
        reference = f"{image.repository}@{digest}"
        self.ctr("images", "tag", "--force", image.name, reference)
        return reference

    def advertise_gpus(self, count: int, labels: Mapping[str, str] | None = None, resource: str = GPU) -> None:
        """Capacity that is not there, and the labels that GPU feature discovery would set. Pods get no device by it."""
        key = resource.replace("/", "~1")
        patch = [{"op": "add", "path": f"/status/{part}/{key}", "value": str(count)} for part in ("capacity", "allocatable")]
        self.plane.kubectl("patch", "node", self.name, "--subresource=status", "--type=json", "--patch", json.dumps(patch))
        if labels:
            pairs = [f"{key}={value}" for key, value in labels.items()]
            self.plane.kubectl("label", "node", self.name, "--overwrite", *pairs)

    def drain(self) -> None:
        self.plane.kubectl(
            *("drain", self.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s"), seconds=150
        )

    def uncordon(self) -> None:
        self.plane.kubectl("uncordon", self.name)

    # starting and stopping its parts

    @property
    def root(self) -> Path:
        return self.machine.folder / "node"

    @property
    def _socket(self) -> Path:
        return Path("/run/containerd/containerd.sock")

    def start_containerd(self) -> None:
        root = self.root
        network = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "pods0",
                    "isGateway": True,
                    "ipam": {"type": "host-local", "subnet": self.machine.pods, "routes": [{"dst": "0.0.0.0/0"}]},
                }
            ],
        }
        (root / "cni").mkdir(parents=True, exist_ok=True)
        (root / "cni" / "pods.conflist").write_text(json.dumps(network))
        (root / "containerd.toml").write_text(
            f"""\
version = 2
root = "{root}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{root}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
        )
        process = self.machine.start("containerd", "containerd", "--config", root / "containerd.toml")

        def answers() -> bool:
            process.check()
            with suppress(CommandFailed):
                self.ctr("version", seconds=10)
                return True
            return False

        wait_for("containerd answers", answers, READY_SECONDS)

    def start_kubelet(self) -> None:
        """Returns when the node is ready."""
        plane, root = self.plane, self.root
        serving = plane.authority.server("kubelet", [self.name, self.machine.address])
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.machine.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(plane.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.machine.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": True,
            "resolvConf": "",
            "evictionHard": {"memory.available": "100Mi"},  # how full this machine's disk is, is no matter of the tests
            "imageGCHighThresholdPercent": 100,
            "syncFrequency": "5s",
            "nodeStatusReportFrequency": "30s",
            "shutdownGracePeriod": "0s",
            "enableControllerAttachDetach": False,
        }
        (root / "kubelet.yaml").write_text(yaml.safe_dump(config))
        process = self.machine.start(
            "kubelet",
            plane.binaries / "kubelet",
            f"--config={root / 'kubelet.yaml'}",
            f"--kubeconfig={plane.authority.kubeconfig(plane.server, f'system:node:{self.name}', 'system:nodes')}",
            f"--root-dir={root / 'kubelet'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.machine.address}",
        )

        def ready() -> bool:
            process.check()
            found = plane.find("node", self.name)
            conditions = found["status"].get("conditions", []) if found else []
            return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

        wait_for("the node is ready", ready, READY_SECONDS)

    def stop_kubelet(self) -> None:
        """The node is lost; its pods run on."""
        self.machine.processes["kubelet"].stop()


def start_node(plane: ControlPlane, name: str = "node1") -> Node:
    """Ready for pods; it ends with the machine. Raises RigUnavailable where a program can be neither built nor installed."""
    installed("containerd", "ctr", "runc", "/usr/lib/cni/bridge", "iptables")
    pause = pause_image()
    for cgroup in cgroups(plane.machine.cgroup):
        cgroup.mkdir(exist_ok=True)
    _fill_cpuset(plane.machine.cgroup)
    node = Node(plane, name)
    if psutil.virtual_memory().available > ROOM_BYTES:
        _keep_files_in_memory(node)
    node.start_containerd()
    node.load(pause)
    node.start_kubelet()
    return node


def _keep_files_in_memory(node: Node) -> None:
    """Those of the images: tens of thousands of small files cost some disks half a minute."""
    snapshots = node.root / "containerd" / "io.containerd.snapshotter.v1.overlayfs"
    snapshots.mkdir(parents=True)
    node.machine.call("mount", "-t", "tmpfs", "tmpfs", snapshots)


def _fill_cpuset(name: str) -> None:
    """Under version 1 a new group may use no processor until it is told which."""
    for cgroup in cgroups(name):
        for what in ("cpuset.cpus", "cpuset.mems"):
            own, parent = cgroup / what, cgroup.parent / what
            if own.exists() and parent.exists() and not own.read_text().strip():
                own.write_text(parent.read_text())
