"""Which values the chart takes, and what it says of those that it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from chart_helm import CHART, REQUIRED, Helm, Values

from tuner_job.api.base import InputError
from tuning_operator.config import OperatorConfig

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
TEXT = (CHART / "values.yaml").read_text()


def schemas(node: Any, at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if "type" in node and isinstance(node["type"], str | list):
            yield at, node
        for key, value in node.items():
            yield from schemas(value, f"{at}/{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from schemas(value, f"{at}/{index}")


def test_the_schema_leaves_nothing_open_but_what_is_kubernetes_own() -> None:
    for at, node in schemas(SCHEMA):
        if "object" in node["type"]:
            closed = node.get("additionalProperties")
            assert closed is False or isinstance(closed, dict) or "$comment" in node, at


def test_every_value_of_the_schema_has_a_default_and_the_other_way_round() -> None:
    def keys(schema: dict[str, Any]) -> set[str]:
        return set(schema["properties"])

    values = yaml.safe_load(TEXT)
    assert values.keys() == keys(SCHEMA) - {"global", "enabled"}
    for name, value in values.items():
        inner = SCHEMA["properties"][name]
        inner = SCHEMA["$defs"][inner["$ref"].rpartition("/")[2]] if "$ref" in inner else inner
        if isinstance(value, dict) and "properties" in inner and value:
            assert value.keys() == keys(inner), name


def test_every_value_is_explained() -> None:
    """Each key has a comment above it, or its parent explains its members together."""
    together = {"image", "crds", "signing", "resources", "podSecurity", "metrics", "networkPolicy", "rbac", "serviceAccount"}
    lines = TEXT.splitlines()
    bare: list[str] = []
    parent = ""
    for number, line in enumerate(lines):
        match = re.match(r"^( *)([A-Za-z]+):", line)
        if not match:
            continue
        depth, key = len(match[1]), match[2]
        if depth == 0:
            parent = key
        explained = lines[number - 1].lstrip().startswith("#")
        if depth == 0 and not explained and key not in together:
            bare.append(key)
        if depth == 2 and parent in ("operator", "workers") and not explained:
            bare.append(f"{parent}.{key}")
    obvious = {
        "fullnameOverride", "podLabels", "podAnnotations", "priorityClassName", "nodeSelector", "tolerations", "affinity",
    }  # fmt: skip
    assert set(bare) <= obvious


REFUSED: dict[str, tuple[Values, str]] = {
    "unknown": ({"clustername": "x"}, "'clustername' not allowed"),
    "unknown-inside": ({"operator": {"resync": 5}}, "'resync' not allowed"),
    "unknown-in-list": ({"workers": {"tolerations": [{"keys": "x"}]}}, "'keys' not allowed"),
    "cluster-name": ({"clusterName": "Prod EU"}, "/clusterName"),
    "replicas": ({"replicas": 3}, "/replicas"),
    "text-for-a-number": ({"operator": {"reconcilers": "8"}}, "/operator/reconcilers"),
    "namespace-twice": ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces"),
    "default-account": (
        {"workers": {"serviceAccounts": [{"namespace": "a", "name": "default"}]}},
        "/workers/serviceAccounts/0/name",
    ),
    "root": ({"podSecurity": {"runAsUser": 0}}, "/podSecurity/runAsUser"),
    "digest": ({"image": {"digest": "sha256:abc"}}, "/image/digest"),
    "digest-in-repository": ({"image": {"repository": "r/o@sha256:abc"}}, "/image/repository"),
    "store-path": ({"stores": ["../etc"]}, "/stores/0"),
    "cidr": ({"networkPolicy": {"stores": {"cidrs": ["everywhere"]}}}, "/networkPolicy/stores/cidrs/0"),
    "no-cluster-name": ({"clusterName": ""}, "clusterName: name this cluster"),
    "no-image": ({"image": {"repository": ""}}, "image.repository: name the operator's image"),
    "no-key": ({"signing": {"existingSecret": ""}}, "set signing.create=true to have a key made, or name yours"),
    "two-keys": ({"signing": {"create": True}}, "not both"),
    "no-account": ({"serviceAccount": {"create": False}}, "serviceAccount.name: name the service account that exists"),
    "two-monitors": (
        {"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}},
        "would scrape every pod twice; enable one",
    ),
    "monitor-without-service": ({"metrics": {"service": False, "serviceMonitor": {"enabled": True}}}, "needs metrics.service"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "said"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_value_is_refused_by_name(helm: Helm, values: Values, said: str) -> None:
    assert said in helm.refusal(values)


def test_without_values_helm_asks_for_the_clusters_name(helm: Helm) -> None:
    assert "clusterName: name this cluster" in helm.refusal({}, required={})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deviceLabels", "gfd"),
        ("reconcilers", 0),
        ("reconcilers", 65),
        ("resyncSeconds", 4),
        ("pollSeconds", 0.5),
        ("progressSeconds", -1),
        ("leaseSeconds", 2),
        ("logLevel", "TRACE"),
    ],
)
def test_what_the_operator_would_refuse_at_its_start_is_refused_before(helm: Helm, name: str, value: object) -> None:
    assert f"/operator/{name}" in helm.refusal({"operator": {name: value}})
    with pytest.raises(InputError, match=name):
        OperatorConfig.from_json(json.dumps({"cluster": "c", "operatorNamespace": "n", name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("serviceAccountName", "Tuner"),
        ("allowedServiceAccounts", ["a b"]),
        ("imagePullSecrets", [{"secret": "x"}]),
        ("tolerations", [{"operator": "Maybe"}]),
        ("resources", {"requests": {"memory": "2 GB"}}),
        ("labels", {"a": 1}),
        ("ttlSeconds", 599),
        ("stopGraceSeconds", 4),
    ],
)
def test_what_workers_could_not_have_is_refused_before(helm: Helm, name: str, value: object) -> None:
    assert f"/workers/{name}" in helm.refusal({"workers": {name: value}})
    with pytest.raises(InputError, match=name):
        OperatorConfig.from_json(json.dumps({"cluster": "c", "operatorNamespace": "n", "workers": {name: value}}))


def test_another_chart_can_depend_on_it_under_a_condition(helm: Helm) -> None:
    assert helm.render({"global": {"anything": 1}, "enabled": True}).objects == helm.render().objects


def test_it_refuses_a_cluster_that_is_too_old(helm: Helm) -> None:
    answer = helm.call("template", "trtfleet", CHART, "--kube-version", "1.33.9", "--values", helm.values_file(REQUIRED))
    assert answer.returncode != 0
    assert "requires kubeVersion: >=1.34.0-0" in answer.stderr
