"""The operator's process under the settings and the rights that the chart gives it, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_cluster import OPERATOR, Cluster
from chart_helm import NAMESPACE, RELEASE, Values
from chart_rights import CLUSTER, JOBS, OWN
from operator_process import OperatorProcess
from rig.kube.audit import Request
from rig.kube.fixtures import BUILD_TIMEOUT
from rig.s3 import S3Server
from rig.waiting import wait_for

from tuner_job.store.keys import Signer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_TIMEOUT)]

SECRET = "engines-operator"
SECONDS = 120.0
"""For any one thing to happen, on a busy machine."""

MODES: dict[str, Values] = {
    "whole-cluster": {},
    "one-namespace": {"watchNamespaces": ["vision"], "operator": {"readNodes": False}},
}


@dataclass
class Site:
    cluster: Cluster
    operator: OperatorProcess
    asked_from: int
    """Of the audit log, in bytes."""

    @property
    def requests(self) -> list[Request]:
        return [each for each in self.cluster.plane.requests(self.asked_from) if each.user == OPERATOR]

    @property
    def used(self) -> set[tuple[str, str, str]]:
        return {
            (each.group, f"{each.resource}/{each.subresource}".rstrip("/"), each.verb) for each in self.requests if each.resource
        }


@pytest.fixture(params=MODES.values(), ids=MODES)
def site(request: pytest.FixtureRequest, cluster: Cluster, s3_server: S3Server, tmp_path: Path) -> Iterator[Site]:
    plane = cluster.plane
    cluster.install({"stores": [SECRET], **request.param})
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    plane.fake_node("n1", {})
    address = s3_server.new_store()
    secret = {
        "AWS_ACCESS_KEY_ID": address.options["accessKeyId"],
        "AWS_SECRET_ACCESS_KEY": address.options["secretAccessKey"],
    }
    mounted = tmp_path / "stores" / SECRET
    mounted.mkdir(parents=True)
    for name, value in secret.items():
        (mounted / name).write_text(value)
    key = tmp_path / "signing-key.pem"
    key.touch(mode=0o600)
    key.write_bytes(Signer.generate()._private_pem())
    store = {
        "url": address.url,
        "endpoint": address.options["endpoint"],
        "region": address.options["region"],
        "credentials": {"type": "Secret", "secret": {"operatorSecretName": SECRET, "tenantSecretName": "engines-worker"}},
        "allowedNamespaces": [{"name": "vision", "prefix": "vision"}],
    }
    runtime = {"family": "ONNXRuntime", "version": "1.0.0", "image": f"localhost/worker@sha256:{'0' * 64}"}
    plane.apply(
        resource("ArtifactStore", "engines", store),
        resource("TunerRuntime", "onnxruntime", runtime),
    )
    worker = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "engines-worker"}, "stringData": secret}
    plane.apply(worker, namespace="vision")
    rendered = yaml.safe_load(plane.get("configmap", f"{RELEASE}-config", "--namespace", NAMESPACE)["data"]["config.yaml"])
    here = {"storesFolder": str(mounted.parent), "signingKey": str(key), "pollSeconds": 1, "leaseSeconds": 5, "resyncSeconds": 5}
    settings = {name: value for name, value in {**rendered, **here}.items() if name != "port"}
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}")
    kubeconfig = plane.authority.kubeconfig(plane.server, OPERATOR, *groups)
    asked_from = plane.audit_log.stat().st_size
    with OperatorProcess(tmp_path / "operator", kubeconfig, settings) as operator:
        yield Site(cluster, operator, asked_from)
    plane.kubectl("delete", "tuningjobs", "--all", "--namespace", "vision", "--wait")
    plane.kubectl("delete", "lease", RELEASE, "--namespace", NAMESPACE)
    cluster.clean()


def resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "trtfleet.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def tuning_job() -> dict[str, Any]:
    target = {"name": "cpu", "runtimeRef": {"name": "onnxruntime"}, "device": {"type": "CPU"}}
    spec = {"model": {"uri": "s3://bucket/model.onnx"}, "storeRef": {"name": "engines"}, "targets": [target]}
    return resource("TuningJob", "rights", spec)


def test_it_does_its_work_and_asks_for_nothing_that_it_was_not_granted(site: Site) -> None:
    plane = site.cluster.plane
    site.operator.wait_until_leading(SECONDS)
    site.operator.wait_until_ready(SECONDS)
    plane.apply(tuning_job(), namespace="vision")

    def jobs() -> list[Any]:
        found: list[Any] = plane.get("jobs", "--namespace", "vision")["items"]
        return found

    wait_for("the first stage has its Job", lambda: len(jobs()) == 1, SECONDS)
    wait_for("it has looked at the Job's pod", lambda: ("", "pods", "list") in site.used, SECONDS)
    wait_for("status tells of a run", lambda: plane.get("tuningjob", "rights", "--namespace", "vision").get("status"), SECONDS)
    plane.kubectl("delete", "jobs", "--all", "--namespace", "vision", "--wait")
    wait_for("the next attempt has its Job", lambda: len(jobs()) == 1, SECONDS)
    wait_for("people are told", lambda: ("events.k8s.io", "events", "create") in site.used, SECONDS)

    assert site.operator.stop() == 0
    assert [each for each in site.requests if each.code == 403] == []
    granted = JOBS | CLUSTER | OWN
    assert site.used <= granted
    needed = {
        ("trtfleet.dev", "tuningjobs", "get"),
        ("trtfleet.dev", "tuningjobs", "list"),
        ("trtfleet.dev", "tuningjobs", "watch"),
        ("trtfleet.dev", "tuningjobs/status", "patch"),
        ("trtfleet.dev", "artifactstores", "watch"),
        ("batch", "jobs", "watch"),
        ("batch", "jobs", "create"),
        ("events.k8s.io", "events", "create"),
        *OWN,
    }
    assert needed <= site.used
