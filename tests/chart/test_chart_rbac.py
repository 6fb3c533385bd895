"""Rights: what is rendered is what docs/rbac.md justifies."""

from __future__ import annotations

import re

from chart_helm import Helm, grants
from chart_rights import CLUSTER, JOBS, OWN, PAGE


def test_cluster_mode_grants_what_the_page_justifies_and_no_more(helm: Helm) -> None:
    rendered = helm.render({"rbac": {"aggregate": False}})
    assert grants(rendered.one("ClusterRole")) == JOBS | CLUSTER
    assert grants(rendered.one("Role")) == OWN


def test_namespaced_mode_reads_across_the_cluster_only_what_has_no_namespace(helm: Helm) -> None:
    rendered = helm.render({"watchNamespaces": ["vision", "speech"], "rbac": {"aggregate": False}})
    assert grants(rendered.one("ClusterRole")) == CLUSTER
    roles = {each["metadata"]["namespace"]: grants(each) for each in rendered.of("Role")}
    assert roles == {"trtfleet-system": OWN, "vision": JOBS, "speech": JOBS}


def test_a_watched_namespace_may_be_the_operators_own(helm: Helm) -> None:
    roles = helm.render({"watchNamespaces": ["trtfleet-system"]}).of("Role")
    assert [grants(each) for each in roles] in ([OWN, JOBS], [JOBS, OWN])


def test_without_read_nodes_there_is_no_right_to_nodes(helm: Helm) -> None:
    role = helm.render({"operator": {"readNodes": False}, "rbac": {"aggregate": False}}).one("ClusterRole")
    assert {each for each in CLUSTER | JOBS if each[1] != "nodes"} == grants(role)


def test_the_lease_is_named_wherever_a_rule_can_name_it(helm: Helm) -> None:
    rules = helm.render().one("Role")["rules"]
    assert {verb for rule in rules if "resourceNames" not in rule for verb in rule["verbs"]} == {"create"}
    (names,) = (rule["resourceNames"] for rule in rules if "resourceNames" in rule)
    assert names == ["trtfleet"]


def test_every_role_is_bound_to_the_operators_account_alone(helm: Helm) -> None:
    rendered = helm.render({"watchNamespaces": ["vision"], "rbac": {"aggregate": False}})
    bound = set()
    for binding in (*rendered.of("RoleBinding"), *rendered.of("ClusterRoleBinding")):
        (subject,) = binding["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": "trtfleet", "namespace": "trtfleet-system"}
        bound.add((binding["roleRef"]["kind"], binding["metadata"].get("namespace"), binding["roleRef"]["name"]))
    roles = (*rendered.of("Role"), *rendered.of("ClusterRole"))
    assert bound == {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in roles}


def test_peoples_roles_are_those_of_the_page(helm: Helm) -> None:
    rows = re.findall(r"^\| ([a-z, ]+) \| trtfleet\.dev \| ([a-z, /]+) \| ([a-z, ]+) \|$", PAGE, re.MULTILINE)
    wanted = [
        (set(roles.split(", ")), {("trtfleet.dev", r, v) for r in resources.split(", ") for v in verbs.split(", ")})
        for roles, resources, verbs in rows
    ]
    assert len(wanted) == 2
    found = []
    for role in helm.render().of("ClusterRole"):
        prefix = "rbac.authorization.k8s.io/aggregate-to-"
        into = {key.removeprefix(prefix) for key in role["metadata"]["labels"] if key.startswith(prefix)}
        if into:
            found.append((into, grants(role)))
    assert found == wanted


def test_without_rbac_nothing_is_granted(helm: Helm) -> None:
    kinds = helm.render({"rbac": {"create": False}}).kinds
    assert not kinds & {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
