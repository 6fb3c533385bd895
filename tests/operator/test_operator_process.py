"""The operator's real process over a real API server, controller manager, scheduler and S3 server, up to a published engine.

Only the kubelet is stood in for: workers are processes of this machine (process_node.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from operator_process import OperatorProcess
from process_node import ProcessNode, process_node
from rig.kube.control_plane import ControlPlane
from rig.s3 import Address, S3Server
from rig.tiny import write_tiny_model
from rig.waiting import wait_for

from tuner_job.api.inputs import Owner
from tuner_job.campaign.reader import RunReader
from tuner_job.store import pointers
from tuner_job.store.keys import Signer
from tuner_job.store.objects import ObjectStore

SECRET = "s3"
USER = "trtfleet-operator"
TUNE_SECONDS = 900.0
"""For a whole run on a busy machine."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@dataclass
class Site:
    """A namespace with all that a TuningJob needs, a node, and what an operator needs to serve it."""

    plane: ControlPlane
    namespace: str
    node: ProcessNode
    store: ObjectStore
    model: str
    folder: Path
    kubeconfig: Path
    settings: dict[str, Any]

    def operator(self, name: str = "operator", **settings: Any) -> OperatorProcess:
        return OperatorProcess(self.folder / name, self.kubeconfig, self.settings | settings)

    def apply_job(self, name: str, **spec: Any) -> None:
        whole = {
            "model": {"uri": self.model},
            "storeRef": {"name": self.namespace},
            "targets": [{"name": "cpu", "runtimeRef": {"name": self.namespace}, "device": {"type": "CPU"}, "parallelism": 2}],
            "accuracy": {"source": "Generated", "generated": {"samples": 2}, "metric": "l1", "threshold": "0.001"},
            "measurement": {
                "sessions": 2,
                "sessionMilliseconds": 5,
                "sessionSamples": 5,
                "warmupMilliseconds": 10,
                "warmupLimitMilliseconds": 100,
            },
            "search": {"strategy": "Expression", "expression": "-session:memory_pattern=[on|off] -session:memory_reuse=[on|off]"},
            "budget": {"gpuSeconds": 100_000, "maxTrials": 4, "trialTimeoutSeconds": 120},
            **spec,
        }
        body = {"apiVersion": "trtfleet.dev/v1alpha1", "kind": "TuningJob", "metadata": {"name": name}, "spec": whole}
        self.plane.apply(body, namespace=self.namespace)

    def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.plane.get("tuningjob", name, "--namespace", self.namespace).get("status", {})
        return status

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        found = [each for each in self.status(name).get("conditions", ()) if each["type"] == kind]
        return found[0] if found else {"status": "", "reason": "", "message": ""}

    def events(self, name: str) -> list[dict[str, Any]]:
        listed = self.plane.get("events.events.k8s.io", "--namespace", self.namespace)["items"]
        return [each for each in listed if each["regarding"]["name"] == name]

    def operator_writes(self, offset: int) -> list[str]:
        """What operators wrote since the audit log had `offset` bytes, less their Lease."""
        found = [each for each in self.plane.requests(offset) if each.user == USER and each.writes]
        return [f"{each.verb} {each.what} {each.name}" for each in found if each.resource != "leases"]


@pytest.fixture
def site(control_plane: ControlPlane, s3_server: S3Server, tmp_path: Path) -> Iterator[Site]:
    namespace = control_plane.new_namespace()
    address = s3_server.new_store()
    bucket = ObjectStore.open("s3://bucket", address.options)
    model = f"models/{namespace}/tiny.onnx"
    bucket.put(model, write_tiny_model(tmp_path / "tiny.onnx").read_bytes())
    secret = {"AWS_ACCESS_KEY_ID": address.options["accessKeyId"], "AWS_SECRET_ACCESS_KEY": address.options["secretAccessKey"]}
    mounted = tmp_path / "stores" / SECRET
    mounted.mkdir(parents=True)
    for name, value in secret.items():
        (mounted / name).write_text(value)
    _signing_key(tmp_path / "signing-key.pem")
    control_plane.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": secret}, namespace=namespace
    )
    control_plane.apply(*_cluster_objects(namespace, address))
    with process_node(control_plane, tmp_path, f"node-{namespace}") as node:
        yield Site(
            plane=control_plane,
            namespace=namespace,
            node=node,
            store=ObjectStore.open(f"{address.url}/{namespace}", address.options),
            model=f"s3://bucket/{model}",
            folder=tmp_path,
            kubeconfig=control_plane.authority.kubeconfig(control_plane.server, USER, "system:masters"),
            settings={
                "cluster": "rig",
                "namespaces": [namespace],
                "operatorNamespace": namespace,
                "storesFolder": str(tmp_path / "stores"),
                "signingKey": str(tmp_path / "signing-key.pem"),
                "workers": {"resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}},
                "pollSeconds": 2,
                "progressSeconds": 2,
                "leaseSeconds": 5,
            },
        )


def _signing_key(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_bytes(Signer.generate()._private_pem())


def _cluster_objects(name: str, address: Address) -> tuple[dict[str, Any], dict[str, Any]]:
    """An ArtifactStore and a TunerRuntime of the namespace's name."""
    secrets = {"operatorSecretName": SECRET, "tenantSecretName": SECRET}
    store = {
        "url": address.url,
        "endpoint": address.options["endpoint"],
        "region": address.options["region"],
        "credentials": {"type": "Secret", "secret": secrets},
        "allowedNamespaces": [{"name": name, "prefix": name}],
    }
    image = f"localhost/worker@sha256:{'0' * 64}"
    runtime = {"family": "ONNXRuntime", "version": onnxruntime.__version__, "image": image}
    version = "trtfleet.dev/v1alpha1"
    return (
        {"apiVersion": version, "kind": "ArtifactStore", "metadata": {"name": name}, "spec": store},
        {"apiVersion": version, "kind": "TunerRuntime", "metadata": {"name": name}, "spec": runtime},
    )


def test_a_tuning_job_is_tuned_published_and_then_left_alone(site: Site) -> None:
    with site.operator(resyncSeconds=5) as operator:
        operator.wait_until_leading()
        site.apply_job("tiny")

        def settled() -> bool:
            assert site.node.problem is None
            if operator.process.poll() is not None:
                raise AssertionError(operator.tail())
            if site.condition("tiny", "Stalled")["status"] == "True":
                raise AssertionError(json.dumps(site.status("tiny"), indent=1))
            return site.condition("tiny", "Ready")["status"] == "True"

        wait_for("the TuningJob is Ready", settled, TUNE_SECONDS, every=1)
        status = site.status("tiny")
        site.plane.kubectl("wait", "--for=condition=Tuned", "tuningjob/tiny", "--namespace", site.namespace, "--timeout=10s")
        (target,) = status["targets"]

        # What status says is what the store's records say.
        run = target["recentRuns"][0]["id"]
        verdict = RunReader(site.store, run).verdict()
        assert verdict is not None
        assert target["recentRuns"][0]["reason"] == verdict.reason
        owner = Owner(cluster="rig", namespace=site.namespace, name="tiny")
        pointer = pointers.read(site.store, pointers.PointerName(owner, "cpu", onnxruntime.__version__))
        assert pointer is not None
        assert target["published"]["manifest"] == f"sha256:{pointer.current.manifest}"
        assert target["published"]["digest"] == f"sha256:{verdict.engine.digest}"

        # Every stage had its Job, and no worker runs any more.
        stages = {_stage(site.node.log(pod)) for pod in site.node.workers}
        assert stages == {"discover", "explore", "final"}
        assert all(process.poll() == 0 for process in site.node.workers.values())

        # Metrics say the same as status, and people can read what happened.
        for outcome in ("feasible", "infeasible", "failed", "unsupported"):
            assert operator.metric("trials_total", outcome=outcome) == target["trials"].get(outcome, 0)
        assert operator.metric("jobs", phase="Done") == 1
        assert operator.metric("published_total", reason=verdict.reason) == 1
        assert operator.metric("reconcile_total", result="unexpected") == 0
        reasons = [event["reason"] for event in site.events("tiny")]
        assert "RunStarted" in reasons
        assert "RunEnded" in reasons

        # From now on nothing is written but the Lease, whatever the number of looks.
        _wait_for_resyncs(operator, 2)
        quiet_from = site.plane.audit_log.stat().st_size
        _wait_for_resyncs(operator, 2)
        assert site.operator_writes(quiet_from) == []
        assert operator.get("/healthz")[0] == operator.get("/readyz")[0] == 200

        assert operator.stop() == 0
        lease = site.plane.get("lease", "trtfleet-operator", "--namespace", site.namespace)
        assert lease["spec"].get("holderIdentity", "") == ""
    before = site.status("tiny")
    with site.operator("again") as operator:
        operator.wait_until_leading()
        wait_for("it has looked at the TuningJob", lambda: operator.metric("jobs", phase="Done") == 1, 60)
        assert operator.metric("trials_total", outcome="feasible") == 0
        assert site.status("tiny") == before


def _wait_for_resyncs(operator: OperatorProcess, count: int) -> None:
    for _ in range(count):
        last = operator.metric("resync_last_success_timestamp_seconds")
        wait_for("another resync", lambda last=last: operator.metric("resync_last_success_timestamp_seconds") > last, 120)
    wait_for("what it enqueued is through", lambda: operator.metric("workqueue_depth") == 0, 60)


def test_an_operator_that_is_killed_at_every_step_loses_and_repeats_nothing(site: Site) -> None:
    site.apply_job("tiny")
    told: list[str] = []
    while site.condition("tiny", "Ready")["status"] != "True":
        with site.operator("killed") as operator:
            operator.wait_until_leading()

            def moved() -> bool:
                assert site.node.problem is None
                assert site.condition("tiny", "Stalled")["status"] != "True", site.status("tiny")
                return _step(site.status("tiny")) not in told

            wait_for("the TuningJob moves", moved, TUNE_SECONDS)
            told.append(_step(site.status("tiny")))
            operator.process.kill()
    assert len(told) > 3
    (target,) = site.status("tiny")["targets"]
    (run,) = target["recentRuns"]
    records = RunReader(site.store, run["id"])
    trials = [trial.trial for plan in records.plans() for trial in plan.trials]
    results = [records.result(trial) for trial in trials]
    assert [result.tries for result in results if result is not None] == [1] * len(trials)
    started = [_stage(site.node.log(pod)) for pod in site.node.workers]
    assert sorted(started) == ["discover", "explore", "explore", "final"]


def _step(status: dict[str, Any]) -> str:
    """What a reader of the status sees move, but for progress."""
    return f"{status.get('phase')} {[(each['type'], each['status'], each['reason']) for each in status.get('conditions', ())]}"


def _stage(worker_log: str) -> str:
    """From the worker's command line, which its log begins with."""
    return worker_log.partition("--stage ")[2].partition(" ")[0]
