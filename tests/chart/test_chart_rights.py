"""What the operator may do, as a real API server judges it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from chart_cluster import Cluster, Question
from chart_helm import NAMESPACE, RELEASE, Grant
from chart_rights import CLUSTER, JOBS, OWN
from rig.kube.fixtures import BUILD_TIMEOUT
from rig.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_TIMEOUT)]

OWN_BY_NAME = {(group, resource if verb == "create" else f"{resource}={RELEASE}", verb) for group, resource, verb in OWN}


@pytest.fixture(scope="module", autouse=True)
def installed(cluster: Cluster) -> None:
    cluster.install({"stores": ["engines-operator"]})


@pytest.fixture
def namespaced(cluster: Cluster) -> Iterator[None]:
    cluster.upgrade("--set", "watchNamespaces={vision}", "--set", "operator.readNodes=false")
    yield
    cluster.upgrade("--set", "watchNamespaces=null", "--set", "operator.readNodes=true")


@pytest.mark.parametrize("namespace", ["vision", "kube-system"])
def test_everywhere_it_may_do_what_the_page_says_and_nothing_more(cluster: Cluster, namespace: str) -> None:
    assert cluster.granted(namespace) == JOBS | CLUSTER


def test_where_it_lives_it_also_has_its_lease(cluster: Cluster) -> None:
    assert cluster.granted(NAMESPACE) == JOBS | CLUSTER | OWN_BY_NAME


@pytest.mark.usefixtures("namespaced")
def test_in_namespaced_mode_other_namespaces_are_closed(cluster: Cluster) -> None:
    without_nodes: set[Grant] = {each for each in CLUSTER if each[1] != "nodes"}
    assert cluster.granted("vision") == JOBS | without_nodes
    assert cluster.granted("speech") == without_nodes
    assert cluster.granted(NAMESPACE) == without_nodes | OWN_BY_NAME


REFUSED = [
    ("get", "secrets", ""),
    ("list", "secrets", ""),
    ("get", "configmaps", ""),
    ("create", "pods", ""),
    ("delete", "pods", ""),
    ("create", "pods/exec", ""),
    ("get", "pods/log", ""),
    ("create", "serviceaccounts/token", ""),
    ("update", "jobs.batch", ""),
    ("patch", "jobs.batch", ""),
    ("deletecollection", "jobs.batch", ""),
    ("create", "tuningjobs.trtfleet.dev", ""),
    ("update", "tuningjobs.trtfleet.dev", ""),
    ("patch", "tuningjobs.trtfleet.dev", ""),
    ("delete", "tuningjobs.trtfleet.dev", ""),
    ("update", "leases.coordination.k8s.io", "another"),
    ("delete", "leases.coordination.k8s.io", RELEASE),
    ("create", "deployments.apps", ""),
    ("create", "rolebindings.rbac.authorization.k8s.io", ""),
]
OF_THE_CLUSTER = [
    "artifactstores.trtfleet.dev",
    "customresourcedefinitions.apiextensions.k8s.io",
    "namespaces",
    "nodes",
    "tunerchannels.trtfleet.dev",
    "tunerruntimes.trtfleet.dev",
]


def test_it_may_not(cluster: Cluster) -> None:
    questions = [Question(verb, what, place, name) for verb, what, name in REFUSED for place in (NAMESPACE, "vision")]
    questions += [Question(verb, what) for verb in ("create", "update", "patch", "delete") for what in OF_THE_CLUSTER]
    allowed = [question for question, answer in zip(questions, cluster.may(*questions), strict=True) if answer]
    assert not allowed


def test_questions_that_are_answered_with_yes(cluster: Cluster) -> None:
    """So that the refusals above are no mistake in the asking."""
    assert all(
        cluster.may(
            Question("create", "jobs.batch", "vision"),
            Question("patch", "tuningjobs.trtfleet.dev/status", "vision"),
            Question("update", "leases.coordination.k8s.io", NAMESPACE, RELEASE),
            Question("list", "artifactstores.trtfleet.dev"),
            Question("patch", "artifactstores.trtfleet.dev/status"),
            Question("patch", "tunerchannels.trtfleet.dev/status"),
            Question("patch", "tunerruntimes.trtfleet.dev/status"),
        )
    )


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("view", ["get", "watch"], ["create", "patch", "delete"]),
        ("edit", ["get", "create", "patch", "delete"], []),
        ("admin", ["list", "update"], []),
    ],
)
def test_the_clusters_own_roles_cover_tuning_jobs(cluster: Cluster, role: str, may: list[str], may_not: list[str]) -> None:
    user = f"{role}er"
    cluster.plane.kubectl("create", "rolebinding", user, "--clusterrole", role, "--user", user, "--namespace", "vision")

    def asked(verbs: list[str]) -> list[bool]:
        return cluster.may(*(Question(verb, "tuningjobs.trtfleet.dev", "vision", user=user) for verb in verbs))

    wait_for("the roles are aggregated", lambda: all(asked(may)), seconds=60)
    assert not may_not or not any(asked(may_not))
    status = Question("patch", "tuningjobs.trtfleet.dev/status", "vision", user=user)
    elsewhere = Question("get", "tuningjobs.trtfleet.dev", "speech", user=user)
    assert cluster.may(status, elsewhere) == [False, False]


def test_its_pod_meets_the_restricted_standard(cluster: Cluster) -> None:
    """The namespace enforces it, so a pod that does not is refused."""
    deployment = cluster.plane.get("deployment", RELEASE, "--namespace", NAMESPACE)
    template = deployment["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alike", "namespace": NAMESPACE}, "spec": template["spec"]}
    cluster.accept(pod)
    spec = json.loads(json.dumps(template["spec"]))
    spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        cluster.accept({**pod, "spec": spec})
