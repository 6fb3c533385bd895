"""A whole cluster: control plane, node, object store, Prometheus, and the operator that helm installs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rig.kube.binaries import built
from rig.kube.control_plane import ControlPlane, Object, new_control_plane
from rig.kube.images import SOURCE, Image, image
from rig.kube.machine import CommandFailed, call
from rig.kube.node import Node, start_node
from rig.kube.object_store import BUCKET, MachineS3
from rig.kube.prometheus import Prometheus, start_prometheus
from rig.s3 import Address

NAME = "rig"
"""The cluster's name in stores."""
NAMESPACE = "trtfleet-system"
RELEASE = "trtfleet"
CREDENTIALS = "s3-credentials"
"""Name of the Secrets with the store's credentials, in the operator's namespace and in each tenant's."""
SIGNING = "signing"
RUNTIME = "onnxruntime"
OPERATOR_LABELS = {"app.kubernetes.io/name": "trtfleet", "app.kubernetes.io/instance": RELEASE}

INSTALL_SECONDS = 300.0


@dataclass(frozen=True)
class Tenant:
    """A namespace that may use a store of its own."""

    namespace: str
    store: str
    """Name of its ArtifactStore."""
    address: Address
    """The part of the store that is its own, for the test to read and write."""


@dataclass
class Cluster:
    plane: ControlPlane
    node: Node
    s3: MachineS3
    operator_image: Image
    worker_image: str
    """Name and digest of the workers' image, which the node holds."""
    public_key: Path
    """PEM, of the key that the operator signs with."""
    prometheus: Prometheus

    def helm(self, *arguments: str | Path, stdin: str | None = None) -> str:
        """Standard output. Raises CommandFailed with what helm said. It keeps nothing outside the machine's folder."""
        home = self.plane.machine.folder / "helm"
        folders = [f"HELM_{kind}_HOME={home / kind.lower()}" for kind in ("CACHE", "CONFIG", "DATA")]
        return call(
            *("env", *folders, built("helm"), "--kubeconfig", self.plane.kubeconfig, *arguments),
            stdin=stdin,
            seconds=INSTALL_SECONDS + 60,
        )

    def install(self, values: Mapping[str, object] | None = None, *, chart: Path = SOURCE / "charts" / "trtfleet") -> None:
        """Installs the chart, or upgrades it, and returns when the operator is ready. `values` win over the rig's own."""
        repository, _, tag = self.operator_image.name.rpartition(":")
        own: dict[str, object] = {
            "clusterName": NAME,
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "signing": {"existingSecret": SIGNING},
            "stores": [CREDENTIALS],
            "workers": {"resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}, "scratchSize": "2Gi"},
            "operator": {"pollSeconds": 2, "progressSeconds": 5},
        }
        self.helm(
            *("upgrade", "--install", RELEASE, chart, "--namespace", NAMESPACE, "--values=-"),
            *("--wait", f"--timeout={INSTALL_SECONDS:.0f}s"),
            stdin=json.dumps({**own, **(values or {})}),
        )

    def uninstall(self) -> None:
        self.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", f"--timeout={INSTALL_SECONDS:.0f}s")

    # the operator

    def operator_pods(self) -> list[Object]:
        pods: list[Object] = self.plane.get("pods", "--namespace", NAMESPACE, *_selector(OPERATOR_LABELS))["items"]
        return pods

    def kill_operator(self) -> None:
        """SIGKILL to its container's process, as if it had crashed; the kubelet starts it again."""
        for pod in self.operator_pods():
            for status in pod["status"].get("containerStatuses", []):
                self.kill_container(status["containerID"])

    def delete_operator_pod(self) -> None:
        """At once, as when its node is lost; another pod replaces it."""
        names = [pod["metadata"]["name"] for pod in self.operator_pods()]
        self.plane.kubectl("delete", "pod", "--namespace", NAMESPACE, "--grace-period=0", "--force", *names)

    def kill_container(self, container_id: str) -> None:
        """`container_id` as in a pod's status. One that is gone already is no error."""
        plain = container_id.removeprefix("containerd://")
        running = {words[0]: words[2] for words in map(str.split, self.node.ctr("tasks", "list").splitlines()) if len(words) == 3}
        if running.get(plain) == "RUNNING":
            try:
                self.node.ctr("tasks", "kill", "--signal=SIGKILL", plain)
            except CommandFailed as error:  # it ended in between
                if "not found" not in str(error):
                    raise

    def operator_log(self, *, previous: bool = False) -> str:
        arguments = ["--previous"] if previous else []
        return self.plane.kubectl("logs", "--namespace", NAMESPACE, "--tail=-1", *_selector(OPERATOR_LABELS), *arguments)

    def restart_operator(self) -> None:
        self.plane.kubectl("rollout", "restart", "--namespace", NAMESPACE, f"deployment/{RELEASE}")
        self.wait_for_operator()

    def wait_for_operator(self, seconds: float = 180.0) -> None:
        self.plane.kubectl(
            *("rollout", "status", "--namespace", NAMESPACE, f"deployment/{RELEASE}", f"--timeout={seconds:.0f}s"),
            seconds=seconds + 30,
        )

    # who uses it

    def new_tenant(self, *, labels: Mapping[str, str] | None = None, endpoint: str | None = None) -> Tenant:
        """A namespace with a store of its own, by default under the strictest pod security. `endpoint`: if not the server's."""
        namespace = self.plane.new_namespace()
        strict = {"pod-security.kubernetes.io/enforce": "restricted"}
        pairs = [f"{name}={value}" for name, value in (labels if labels is not None else strict).items()]
        if pairs:
            self.plane.kubectl("label", "namespace", namespace, *pairs)
        self.plane.apply(self._credentials(), namespace=namespace)
        store = f"store-{namespace}"
        self.plane.apply(
            {
                "apiVersion": "trtfleet.dev/v1alpha1",
                "kind": "ArtifactStore",
                "metadata": {"name": store},
                "spec": {
                    "url": f"s3://{BUCKET}/stores",
                    "endpoint": endpoint or self.s3.endpoint,
                    "region": self.s3.options["region"],
                    "insecureHttp": True,
                    "credentials": {
                        "type": "Secret",
                        "secret": {"operatorSecretName": CREDENTIALS, "tenantSecretName": CREDENTIALS},
                    },
                    "allowedNamespaces": [{"name": namespace, "prefix": namespace}],
                },
            }
        )
        return Tenant(namespace, store, self.s3.new_store(f"stores/{namespace}"))

    def _credentials(self) -> Object:
        keys = {"AWS_ACCESS_KEY_ID": self.s3.access_key, "AWS_SECRET_ACCESS_KEY": self.s3.secret_key}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CREDENTIALS}, "stringData": keys}

    def prepare(self, signing_key: str) -> None:
        """What an administrator makes before the chart: the operator's namespace, its Secrets."""
        self.plane.kubectl("create", "namespace", NAMESPACE)
        self.plane.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SIGNING}}
        self.plane.apply(self._credentials(), {**secret, "stringData": {"signing-key.pem": signing_key}}, namespace=NAMESPACE)

    def apply_runtime(self) -> None:
        """The TunerRuntime of the workers' image."""
        self.plane.apply(
            {
                "apiVersion": "trtfleet.dev/v1alpha1",
                "kind": "TunerRuntime",
                "metadata": {"name": RUNTIME},
                "spec": {"family": "ONNXRuntime", "version": onnxruntime_version(), "image": self.worker_image},
            }
        )


def onnxruntime_version() -> str:
    """Of the workers' image."""
    found = re.search(r"^onnxruntime==(\S+)", (SOURCE / "requirements" / "worker.txt").read_text(), re.MULTILINE)
    assert found, "requirements/worker.txt locks no onnxruntime"
    return found.group(1)


@contextmanager
def new_cluster() -> Iterator[Cluster]:
    """Everything but the chart. Raises RigUnavailable where a part can be neither built nor installed."""
    built("helm")
    operator, worker = image("operator"), image("worker")
    with new_control_plane() as plane:
        s3 = MachineS3(plane.machine)
        s3.start()
        node = start_node(plane)
        node.load(operator)
        key = Ed25519PrivateKey.generate()
        public_key = plane.machine.folder / "signing-public.pem"
        public_key.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        prometheus = start_prometheus(plane, namespace=NAMESPACE, service=f"{RELEASE}-metrics", port_name="http")
        cluster = Cluster(plane, node, s3, operator, node.load(worker), public_key, prometheus)
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        cluster.prepare(private.decode())
        yield cluster


def _selector(labels: Mapping[str, str]) -> list[str]:
    return ["--selector", ",".join(f"{name}={value}" for name, value in labels.items())]
