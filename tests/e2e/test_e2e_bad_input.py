"""TuningJobs that cannot work, on a real cluster: each says what is wrong, and the operator goes on undisturbed.

All are applied at once; each test then waits for what its own one says.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from e2e_jobs import magika_job, tuning_job, upload_magika, upload_tiny
from faults_s3 import S3Gate, serving
from rig.kube.cluster import BUCKET, RUNTIME, Cluster, Tenant
from rig.kube.control_plane import ControlPlane, Object
from rig.kube.machine import CommandFailed
from rig.waiting import NeverHappened, wait_for

SECONDS = 420
"""For pods on two busy cores; alone each takes seconds."""

pytestmark = pytest.mark.timeout(3600)

JOBS_CRD = "tuningjobs.trtfleet.dev"
NO_IMAGE = f"localhost/none@sha256:{'0' * 64}"
POLICY = "no-jobs-today"


@dataclass(frozen=True)
class Case:
    """What a TuningJob is to say, and for how long."""

    name: str
    stalled: bool
    """Whether a person must act; else it waits for what may come."""
    reason: str
    words: str
    """In the message."""


CASES = (
    Case("unknown-runtime", True, "ReferenceNotFound", "TunerRuntime nobody"),
    Case("unknown-store", True, "ReferenceNotFound", "ArtifactStore nobody"),
    Case("foreign-store", True, "NamespaceNotAllowed", "allowedNamespaces"),
    Case("no-node", False, "NoNodeForTarget", "since"),
    Case("no-image", False, "ImagePullFailed", "pod tj-no-image"),
    Case("quota-of-pods", False, "QuotaExceeded", "exceeded quota"),
    Case("quota-of-jobs", False, "QuotaExceeded", "exceeded quota"),
    Case("denied", True, "AdmissionDenied", "no Jobs today"),
    Case("older-schema", True, "InvalidSpec", "spec"),
    Case("lying-store", True, "StoreNotConditional", "ignores conditions"),
    Case("model-not-found", True, "InvalidInput", "no such object"),
    Case("impossible-accuracy", True, "BaselineFails", "accuracy check"),
    Case("l" * 63, True, "InvalidInput", "no such object"),
)


@dataclass(frozen=True)
class Applied:
    cluster: Cluster
    namespaces: dict[str, str]
    """TuningJob → its namespace."""
    restarts: int
    """Of the operator, before."""

    def job(self, name: str) -> Object:
        return self.cluster.plane.get("tuningjob", name, "--namespace", self.namespaces[name])


@pytest.fixture(scope="module")
def applied(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applied]:
    folder = tmp_path_factory.mktemp("models")
    with serving(cluster.s3) as gate:
        makers = _makers(cluster, gate, folder)
        assert set(makers) == {case.name for case in CASES}
        restarts = _restarts(cluster)
        namespaces = {name: make(name) for name, make in makers.items()}
        yield Applied(cluster, namespaces, restarts)
        for namespace in sorted(set(namespaces.values())):  # so that nothing keeps trying
            cluster.plane.kubectl("delete", "tuningjobs", "--all", "--namespace", namespace, "--wait=false")
        cluster.plane.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", POLICY)


def _restarts(cluster: Cluster) -> int:
    return sum(each["restartCount"] for pod in cluster.operator_pods() for each in pod["status"].get("containerStatuses", []))


def _makers(cluster: Cluster, gate: S3Gate, folder: Path) -> dict[str, Callable[[str], str]]:
    """By name: what applies the TuningJob and returns its namespace."""
    plane = cluster.plane
    plain = cluster.new_tenant()
    tiny = {"uri": upload_tiny(cluster, plain, folder)}

    def change(name: str, alter: Callable[[Object], None], tenant: Tenant = plain, model: Object = tiny) -> str:
        job = tuning_job(name, tenant, model, parallelism=1, knobs=1)
        alter(job["spec"])
        plane.apply(job)
        return tenant.namespace

    def target(**fields: object) -> Callable[[Object], None]:
        return lambda spec: spec["targets"][0].update(fields)

    def in_own_namespace(name: str, prepare: Callable[[Tenant], None]) -> str:
        tenant = cluster.new_tenant()
        prepare(tenant)
        return change(name, lambda spec: None, tenant, {"uri": upload_tiny(cluster, tenant, folder)})

    def no_image(name: str) -> str:
        runtime = plane.get("tunerruntime", RUNTIME)
        spec = {**runtime["spec"], "image": NO_IMAGE}
        plane.apply({"apiVersion": runtime["apiVersion"], "kind": "TunerRuntime", "metadata": {"name": name}, "spec": spec})
        return change(name, target(runtimeRef={"name": name}))

    def accuracy(name: str) -> str:
        job = magika_job(name, plain, upload_magika(cluster, plain), parallelism=1, knobs=1)
        job["spec"]["accuracy"].update(metric="lInf", threshold="0.000000000001")
        plane.apply(job)
        return plain.namespace

    nowhere = {"uri": f"s3://{BUCKET}/models/nobody.onnx"}
    return {
        "unknown-runtime": lambda name: change(name, target(runtimeRef={"name": "nobody"})),
        "unknown-store": lambda name: change(name, lambda spec: spec.update(storeRef={"name": "nobody"})),
        "foreign-store": lambda name: change(name, lambda spec: spec.update(storeRef={"name": cluster.new_tenant().store})),
        "no-node": lambda name: change(name, target(nodeSelector={"trtfleet.dev/nowhere": "true"})),
        "no-image": no_image,
        "quota-of-pods": lambda name: in_own_namespace(name, partial(_quota, plane, {"pods": "0"})),
        "quota-of-jobs": lambda name: in_own_namespace(name, partial(_quota, plane, {"count/jobs.batch": "0"})),
        "denied": lambda name: in_own_namespace(name, partial(_deny_jobs, plane)),
        "older-schema": lambda name: _store_older(plane, name),
        "lying-store": lambda name: in_own_namespace(name, partial(_lie, plane, gate)),
        "model-not-found": lambda name: change(name, lambda spec: None, model=nowhere),
        "impossible-accuracy": accuracy,
        "l" * 63: lambda name: change(name, target(name="t" * 63), model=nowhere),
    }


def _quota(plane: ControlPlane, hard: dict[str, str], tenant: Tenant) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": hard}}
    plane.apply(quota, namespace=tenant.namespace)

    def counted() -> object:
        return plane.get("resourcequota", "none", "--namespace", tenant.namespace).get("status", {}).get("hard")

    wait_for("the quota holds", counted, seconds=60)


def _deny_jobs(plane: ControlPlane, tenant: Tenant) -> None:
    api = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
    plane.apply(
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": POLICY},
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": "false", "message": "no Jobs today"}],
            },
        },
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": POLICY},
            "spec": {
                "policyName": POLICY,
                "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": tenant.namespace}}},
            },
        },
    )

    def denies() -> bool:
        try:
            plane.kubectl("create", "job", "probe", "--image=none", "--dry-run=server", "--namespace", tenant.namespace)
        except CommandFailed as error:
            return "no Jobs today" in str(error)
        return False

    wait_for("the policy is in force", denies, seconds=60)


def _lie(plane: ControlPlane, gate: S3Gate, tenant: Tenant) -> None:
    """Its store answers to conditional writes as if it had not heard the condition."""
    gate.lie(f"/stores/{tenant.namespace}/")
    patch = json.dumps({"spec": {"endpoint": gate.endpoint}})
    plane.kubectl("patch", "artifactstore", tenant.store, "--type=merge", "--patch", patch)


def _store_older(plane: ControlPlane, name: str) -> str:
    """A TuningJob as a version with another schema would have stored it."""
    namespace = plane.new_namespace()
    old = {
        "apiVersion": "trtfleet.dev/v1alpha1",
        "kind": "TuningJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"modelUri": "s3://bucket/model.onnx", "gpu": "NVIDIA-L40S", "targets": "everywhere"},
    }
    with _relaxed(plane):

        def stored() -> bool:
            try:
                plane.apply(old)
            except CommandFailed:  # the API server has not heard of the relaxed schema yet
                return False
            return True

        wait_for("the older TuningJob is stored", stored, seconds=60)
    return namespace


@contextmanager
def _relaxed(plane: ControlPlane) -> Iterator[None]:
    """The CRD without a schema for the spec, but for the field that can be selected by."""
    schema = "/spec/versions/0/schema/openAPIV3Schema"
    was = plane.get("crd", JOBS_CRD)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    selected = {"storeRef": {"type": "object", "properties": {"name": {"type": "string"}}}}
    open_spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": selected}
    loose = {
        **{key: value for key, value in was.items() if key != "x-kubernetes-validations"},
        "properties": {**was["properties"], "spec": open_spec},
    }

    def put(value: Object) -> None:
        patch = json.dumps([{"op": "replace", "path": schema, "value": value}])
        plane.kubectl("patch", "crd", JOBS_CRD, "--type=json", "--patch", patch)

    put(loose)
    try:
        yield
    finally:
        put(was)


def _conditions(job: Object) -> dict[str, Object]:
    return {each["type"]: each for each in job.get("status", {}).get("conditions", [])}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name[:20])
def test_it_says_what_is_wrong(applied: Applied, case: Case) -> None:
    def told() -> Object | None:
        conditions = _conditions(applied.job(case.name))
        ready = conditions.get("Ready", {})
        return conditions if (ready.get("reason"), ready.get("status")) == (case.reason, "False") else None

    try:
        conditions = wait_for(f"{case.name} says {case.reason}", told, SECONDS, every=0.5)
    except NeverHappened as error:
        pytest.fail(f"{error}; it says {_conditions(applied.job(case.name)).get('Ready')}", pytrace=False)

    assert case.words in conditions["Ready"]["message"]
    assert conditions["Stalled"]["status"] == str(case.stalled)
    assert conditions["Reconciling"]["status"] == str(not case.stalled)
    if not case.stalled:
        assert applied.job(case.name)["status"]["phase"] == "Pending"


def test_a_namespace_that_ends_gets_no_job(applied: Applied, tmp_path: Path) -> None:
    cluster = applied.cluster
    plane, tenant = cluster.plane, cluster.new_tenant()
    job = tuning_job("late", tenant, {"uri": upload_tiny(cluster, tenant, tmp_path)}, parallelism=1, knobs=1)
    job["spec"]["suspend"] = True
    plane.apply(job)
    controllers = plane.machine.processes["kube-controller-manager"]

    def reason() -> str:
        return str(_conditions(plane.get("tuningjob", "late", "--namespace", tenant.namespace)).get("Ready", {}).get("reason"))

    wait_for("it is suspended", lambda: reason() == "Suspended", SECONDS)
    controllers.signal(signal.SIGSTOP)  # so that the namespace is only about to end
    try:
        plane.kubectl("delete", "namespace", tenant.namespace, "--wait=false")
        plane.kubectl(
            *("patch", "tuningjob", "late", "--namespace", tenant.namespace, "--type=merge"),
            *("--patch", json.dumps({"spec": {"suspend": False}})),
        )
        wait_for("it says why", lambda: reason() == "NamespaceTerminating", SECONDS)
    finally:
        controllers.signal(signal.SIGCONT)
    wait_for("the namespace is gone", lambda: plane.find("namespace", tenant.namespace) is None, SECONDS)


def test_the_operator_took_no_harm(applied: Applied) -> None:
    assert _restarts(applied.cluster) == applied.restarts
    assert '"traceback"' not in applied.cluster.operator_log()


def test_nothing_is_tried_again_and_again(applied: Applied) -> None:
    """Of those that a person must mend: one Job at most, and one pod."""
    for case in CASES:
        if case.stalled:
            selector = f"trtfleet.dev/job={case.name}"
            pods = applied.cluster.plane.get("pods", "--namespace", applied.namespaces[case.name], "--selector", selector)[
                "items"
            ]
            assert len(pods) <= 1, case.name
