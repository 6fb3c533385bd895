"""The life of a release on a real API server: install, upgrade, uninstall, install again."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest
import yaml
from chart_cluster import Cluster
from chart_helm import CHART, NAMESPACE, RELEASE, ROOT, VALUES, Object
from rig.kube.fixtures import BUILD_TIMEOUT
from rig.waiting import wait_for

from tuner_job.store.keys import Signer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_TIMEOUT)]

GENERATED = {"signing": {"create": True, "existingSecret": ""}}
KEY = f"{RELEASE}-signing"


def signing_key(cluster: Cluster, folder: Path) -> str:
    """The id of the key in the release's Secret, read as the operator reads it."""
    secret = cluster.plane.get("secret", KEY, "--namespace", NAMESPACE)
    path = folder / "signing-key.pem"
    path.write_bytes(base64.b64decode(secret["data"]["signing-key.pem"]))
    path.chmod(0o440)
    return Signer.load(path, group_may_read=True).key_id


def examples() -> list[Object]:
    files = sorted((ROOT / "examples" / "cluster").glob("*.yaml"))
    return [each for path in files for each in yaml.safe_load_all(path.read_text())]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_api_server_takes_whatever_is_rendered(cluster: Cluster, values: object) -> None:
    assert isinstance(values, dict)
    cluster.accept(*cluster.helm.render(values).objects)


def test_a_release_lives_and_dies_without_losing_key_or_jobs(cluster: Cluster, tmp_path: Path) -> None:
    plane = cluster.plane
    notes = cluster.install(GENERATED)
    first = signing_key(cluster, tmp_path)
    assert f"Back up Secret {KEY}" in notes
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    plane.kubectl(
        "apply", *(f"--filename={ROOT / 'examples' / 'cluster' / each}.yaml" for each in ("store", "runtime", "magika"))
    )

    said = cluster.upgrade("--set", "operator.pollSeconds=5")
    assert "Back up Secret" not in said
    assert signing_key(cluster, tmp_path) == first
    config = yaml.safe_load(plane.get("configmap", f"{RELEASE}-config", "--namespace", NAMESPACE)["data"]["config.yaml"])
    assert config["pollSeconds"] == 5

    cluster.uninstall()
    assert plane.find("deployment", RELEASE, "--namespace", NAMESPACE) is None
    assert plane.find("clusterrole", RELEASE) is None
    assert plane.find("tuningjob", "magika", "--namespace", "vision") is not None
    assert signing_key(cluster, tmp_path) == first

    cluster.install(GENERATED)
    assert signing_key(cluster, tmp_path) == first
    assert plane.find("tuningjob", "magika", "--namespace", "vision") is not None
    cluster.clean()


def test_two_installs_make_two_keys(cluster: Cluster, tmp_path: Path) -> None:
    keys = set()
    for _ in range(2):
        cluster.install(GENERATED)
        keys.add(signing_key(cluster, tmp_path))
        cluster.clean()
    assert len(keys) == 2


def test_crds_that_are_not_kept_go_with_the_release(cluster: Cluster) -> None:
    cluster.install({"crds": {"keep": False}})
    assert cluster.plane.find("crd", "tuningjobs.trtfleet.dev") is not None
    cluster.uninstall()
    wait_for("the CRDs are gone", lambda: cluster.plane.find("crd", "tuningjobs.trtfleet.dev") is None, seconds=60)


def test_crds_that_were_applied_by_hand_can_be_taken_over(cluster: Cluster) -> None:
    cluster.plane.kubectl("apply", "--server-side", "--filename", ROOT / "crds")
    with pytest.raises(AssertionError, match="invalid ownership metadata"):
        cluster.install()
    cluster.install({}, "--take-ownership")
    owner = cluster.plane.get("crd", "tuningjobs.trtfleet.dev")["metadata"]["annotations"]["meta.helm.sh/release-name"]
    assert owner == RELEASE
    cluster.clean()


def test_helm_waits_until_the_operator_is_ready_and_no_longer(cluster: Cluster) -> None:
    plane = cluster.plane
    plane.fake_node("n1", {})
    with subprocess.Popen(
        [
            str(cluster.helm.binary), "install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--wait", "--timeout", "120s",
            "--values", str(cluster.helm.values_file({"replicas": 2, "networkPolicy": {"enabled": True}})),
        ],
        env=cluster.helm.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as waiting:  # fmt: skip
        pods = wait_for("both pods have a node", lambda: placed(cluster), seconds=60)
        assert waiting.poll() is None
        for pod in pods:
            ready = {"type": "Ready", "status": "True"}
            status = {"phase": "Running", "conditions": [ready, {**ready, "type": "ContainersReady"}]}
            plane.kubectl(
                "patch", "pod", pod, "--namespace", NAMESPACE, "--subresource=status", "--type=merge",
                "--patch", json.dumps({"status": status}),
            )  # fmt: skip
        _, errors = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, errors
    cluster.clean()


def placed(cluster: Cluster) -> list[str] | None:
    """Names of the operator's pods, once all have a node."""
    pods = cluster.plane.get("pods", "--namespace", NAMESPACE)["items"]
    names = [each["metadata"]["name"] for each in pods if each["spec"].get("nodeName")]
    return names if len(names) == 2 else None


def test_the_examples_are_taken_by_a_cluster_that_has_the_chart(cluster: Cluster) -> None:
    cluster.install()
    cluster.plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    cluster.accept(*examples())
