"""What the chart renders, value by value."""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from chart_helm import CHART, EVERYTHING, REQUIRED, ROOT, VALUES, Helm, Rendered, Values, parsed

from tuning_operator.config import OperatorConfig, WorkerDefaults, load

MONITORS = ("monitoring.coreos.com/v1/ServiceMonitor", "monitoring.coreos.com/v1/PodMonitor")


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_lint_finds_nothing(helm: Helm, values: Values) -> None:
    answer = helm.call("lint", "--strict", "--quiet", CHART, "--values", helm.values_file(values))
    assert (answer.returncode, answer.stdout.strip()) == (0, ""), answer.stdout + answer.stderr


# Custom resources


def test_the_charts_copy_of_the_crds_is_current() -> None:
    ours = {path.name: path.read_bytes() for path in (ROOT / "crds").glob("*.yaml")}
    assert ours == {path.name: path.read_bytes() for path in (CHART / "files" / "crds").iterdir()}, "run scripts/chart-crds"


def test_crds_pass_through_helm_unchanged(helm: Helm) -> None:
    for path in (ROOT / "crds").glob("*.yaml"):
        wanted = yaml.safe_load(path.read_text())
        found = helm.render().one("CustomResourceDefinition", wanted["metadata"]["name"])
        assert found["spec"] == wanted["spec"]


def test_crds_are_kept_on_uninstall_unless_told_otherwise(helm: Helm) -> None:
    def policies(rendered: Rendered) -> set[str | None]:
        crds = rendered.of("CustomResourceDefinition")
        return {each["metadata"].get("annotations", {}).get("helm.sh/resource-policy") for each in crds}

    assert policies(helm.render()) == {"keep"}
    assert policies(helm.render({"crds": {"keep": False}})) == {None}
    assert policies(helm.render({"crds": {"enabled": False}})) == set()


# The operator's settings


def config_of(rendered: Rendered, folder: Path) -> OperatorConfig:
    path = folder / "config.yaml"
    path.write_text(rendered.config)
    return load(path)


def test_the_charts_defaults_are_the_operators_own(helm: Helm, tmp_path: Path) -> None:
    assert config_of(helm.render(), tmp_path) == OperatorConfig(
        cluster="prod-eu", operator_namespace="trtfleet-system", lease_name="trtfleet"
    )


OPERATOR: Values = {
    "readNodes": False,
    "deviceLabels": "None",
    "reconcilers": 3,
    "resyncSeconds": 60,
    "pollSeconds": 2.5,
    "progressSeconds": 0,
    "leaseSeconds": 30,
    "stopSeconds": 5,
    "logLevel": "DEBUG",
}
WORKERS: Values = {
    "serviceAccountName": "tuner",
    "allowedServiceAccounts": ["other"],
    "runtimeClassName": "nvidia",
    "imagePullSecrets": [{"name": "registry"}],
    "tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 60}],
    "resources": {"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"memory": "8Gi"}},
    "scratchSize": "1.5Ti",
    "labels": {"azure.workload.identity/use": "true"},
    "ttlSeconds": 3_600_000,
    "stopGraceSeconds": 5,
}
OF_THE_CHART = {
    "cluster",
    "namespaces",
    "operatorNamespace",
    "leaseName",
    "storesFolder",
    "signingKey",
    "workers",
    "port",
    "bindAddress",
}


def aliases(model: type[OperatorConfig | WorkerDefaults]) -> set[str]:
    return {str(field.alias or field.serialization_alias or name) for name, field in model.model_fields.items()}


def test_every_setting_is_a_value_of_the_same_name(helm: Helm, tmp_path: Path) -> None:
    assert aliases(OperatorConfig) == OPERATOR.keys() | OF_THE_CHART
    assert aliases(WorkerDefaults) == WORKERS.keys()
    config = config_of(helm.render({"watchNamespaces": ["vision"], "operator": OPERATOR, "workers": WORKERS}), tmp_path)
    plain = config.model_dump(mode="json", by_alias=True)
    for name, value in OPERATOR.items():
        assert plain[name] == value, name
    for name, value in WORKERS.items():
        found = plain["workers"][name]
        kept = [{k: v for k, v in each.items() if v is not None} for each in found] if name == "tolerations" else found
        assert kept == value, name
    assert config.namespaces == ("vision",)


def test_worker_accounts_that_the_chart_makes_are_allowed_and_hold_no_token(helm: Helm, tmp_path: Path) -> None:
    accounts = [{"namespace": each, "name": "tuner", "annotations": {"example.com/role": each}} for each in ("vision", "speech")]
    rendered = helm.render({"workers": {"allowedServiceAccounts": ["own"], "serviceAccounts": accounts}})
    assert config_of(rendered, tmp_path).workers.allowed_service_accounts == ("own", "tuner")
    made = [each for each in rendered.of("ServiceAccount") if each["metadata"]["name"] == "tuner"]
    assert [each["metadata"]["namespace"] for each in made] == ["vision", "speech"]
    assert [each["metadata"]["annotations"]["example.com/role"] for each in made] == ["vision", "speech"]
    assert {each["automountServiceAccountToken"] for each in made} == {False}


def test_a_changed_setting_restarts_the_pods_and_nothing_else_does(helm: Helm) -> None:
    def annotations(values: Values) -> Any:
        return helm.render(values).one("Deployment")["spec"]["template"]["metadata"]["annotations"]

    assert annotations({"operator": {"pollSeconds": 5}}) != annotations({})
    assert annotations({"networkPolicy": {"enabled": True}}) == annotations({})


def test_releases_beside_each_other_have_leases_of_their_own(helm: Helm) -> None:
    answer = helm.call("template", "second", CHART, "--namespace", "trtfleet-system", "--values", helm.values_file({}))
    second = [each for each in yaml.safe_load_all(answer.stdout) if each and each["kind"] == "ConfigMap"]
    assert yaml.safe_load(second[0]["data"]["config.yaml"])["leaseName"] == "second-trtfleet"


# The pod


def test_the_image_goes_by_digest_then_tag_then_the_charts_version(helm: Helm) -> None:
    digest = f"sha256:{'0123456789abcdef' * 4}"
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    repository = REQUIRED["image"]["repository"]
    assert helm.render().container["image"] == f"{repository}:{version}"
    assert helm.render({"image": {"tag": "edge"}}).container["image"] == f"{repository}:edge"
    assert helm.render({"image": {"tag": "edge", "digest": digest}}).container["image"] == f"{repository}@{digest}"


def test_chart_and_code_have_one_version() -> None:
    from tuner_job import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def mounted(rendered: Rendered) -> dict[str, tuple[Any, Any]]:
    """Mount path → mount, volume."""
    volumes = {each["name"]: each for each in rendered.pod["volumes"]}
    mounts = {each["mountPath"]: (each, volumes[each["name"]]) for each in rendered.container["volumeMounts"]}
    assert {volume["name"] for _, volume in mounts.values()} == volumes.keys()
    return mounts


def test_the_signing_key_lies_where_the_operator_looks_and_only_its_group_may_read_it(helm: Helm, tmp_path: Path) -> None:
    rendered = helm.render()
    key = config_of(rendered, tmp_path).signing_key
    mount, volume = mounted(rendered)[str(key.parent)]
    assert mount["readOnly"]
    assert volume["secret"]["secretName"] == "engine-key"
    assert "items" not in volume["secret"]  # earlier keys' public halves may lie beside it
    assert stat.S_IMODE(volume["secret"]["defaultMode"]) == 0o440
    assert rendered.pod["securityContext"]["fsGroup"] > 0


def test_each_store_is_mounted_under_its_secrets_name_and_a_missing_one_holds_up_nothing(helm: Helm, tmp_path: Path) -> None:
    rendered = helm.render({"stores": ["engines-operator", "archive.eu"]})
    folder = config_of(rendered, tmp_path).stores_folder
    for name in ("engines-operator", "archive.eu"):
        mount, volume = mounted(rendered)[str(folder / name)]
        assert mount["readOnly"]
        secret = volume["secret"]
        assert (secret["secretName"], secret["optional"], secret["defaultMode"]) == (name, True, 0o440)


def test_the_config_file_is_named_to_the_operator_and_mounted_there(helm: Helm) -> None:
    rendered = helm.render()
    option, path = rendered.container["args"]
    assert option == "--config"
    _, volume = mounted(rendered)[str(PurePosixPath(path).parent)]
    assert volume["configMap"]["name"] == rendered.one("ConfigMap")["metadata"]["name"]
    assert PurePosixPath(path).name in rendered.one("ConfigMap")["data"]


def test_the_probes_ask_the_port_that_the_operator_serves(helm: Helm, tmp_path: Path) -> None:
    rendered = helm.render()
    (port,) = rendered.container["ports"]
    assert port["containerPort"] == config_of(rendered, tmp_path).port
    asked = {name: rendered.container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {each["port"] for each in asked.values()} == {port["name"]}
    assert [each["path"] for each in asked.values()] == ["/healthz", "/healthz", "/readyz"]


def test_a_pod_that_is_told_to_stop_is_given_the_time_that_the_operator_takes(helm: Helm) -> None:
    assert helm.render({"operator": {"stopSeconds": 100}}).pod["terminationGracePeriodSeconds"] == 120


def test_only_the_operator_holds_a_token(helm: Helm) -> None:
    rendered = helm.render()
    assert rendered.pod["automountServiceAccountToken"] is True
    account = rendered.one("ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert account["metadata"]["name"] == rendered.pod["serviceAccountName"]


def test_an_openshift_cluster_may_choose_the_users(helm: Helm) -> None:
    context = helm.render({"podSecurity": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}).pod["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_an_account_that_exists_is_used_and_not_made(helm: Helm) -> None:
    rendered = helm.render({"serviceAccount": {"create": False, "name": "mine"}})
    assert rendered.pod["serviceAccountName"] == "mine"
    assert rendered.of("ServiceAccount") == []
    subjects = [
        subject["name"]
        for each in (*rendered.of("ClusterRoleBinding"), *rendered.of("RoleBinding"))
        for subject in each["subjects"]
    ]
    assert set(subjects) == {"mine"}


def test_what_a_pod_may_say_reaches_it(helm: Helm) -> None:
    rendered = helm.render(EVERYTHING)
    template = rendered.one("Deployment")["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "inference"
    assert template["metadata"]["annotations"]["example.com/scrape"] == "yes"
    for name in ("imagePullSecrets", "priorityClassName", "nodeSelector", "tolerations", "affinity"):
        assert template["spec"][name] == EVERYTHING[name], name
    assert rendered.container["env"] == EVERYTHING["env"]


def test_no_label_of_the_user_takes_the_pods_from_their_deployment(helm: Helm) -> None:
    deployment = helm.render({"podLabels": {"app.kubernetes.io/name": "mine"}}).one("Deployment")
    wanted = deployment["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_a_standby_brings_a_budget_and_a_second_node(helm: Helm) -> None:
    alone, pair = helm.render(), helm.render({"replicas": 2})
    assert "PodDisruptionBudget" not in alone.kinds
    assert "topologySpreadConstraints" not in alone.pod
    selector = pair.one("Deployment")["spec"]["selector"]
    assert pair.one("PodDisruptionBudget")["spec"]["selector"] == selector
    (spread,) = pair.pod["topologySpreadConstraints"]
    assert (spread["labelSelector"], spread["whenUnsatisfiable"]) == (selector, "ScheduleAnyway")


def test_an_update_needs_no_room_for_another_pod(helm: Helm) -> None:
    strategy = helm.render({"replicas": 2}).one("Deployment")["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


# Metrics and network


def test_a_monitor_needs_its_flag_and_a_cluster_that_knows_the_kind(helm: Helm) -> None:
    for kind, value in (("ServiceMonitor", "serviceMonitor"), ("PodMonitor", "podMonitor")):
        on: Values = {"metrics": {value: {"enabled": True, "interval": "10s", "labels": {"release": "prometheus"}}}}
        assert kind not in helm.render(on).kinds
        assert kind not in helm.render(apis=MONITORS).kinds
        rendered = helm.render(on, apis=MONITORS)
        monitor = rendered.one(kind)
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert monitor["spec"]["selector"] == rendered.one("Deployment")["spec"]["selector"]
        (endpoint,) = monitor["spec"]["endpoints" if kind == "ServiceMonitor" else "podMetricsEndpoints"]
        assert endpoint == {"port": "http", "path": "/metrics", "interval": "10s"}


def test_a_service_monitor_finds_the_metrics_service(helm: Helm) -> None:
    rendered = helm.render({"metrics": {"serviceMonitor": {"enabled": True}}}, apis=MONITORS)
    service, monitor = rendered.one("Service"), rendered.one("ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["name"] == monitor["spec"]["endpoints"][0]["port"]
    assert service["spec"]["selector"] == rendered.one("Deployment")["spec"]["selector"]["matchLabels"]


def test_the_network_policy_lets_through_metrics_names_the_api_server_and_stores(helm: Helm) -> None:
    assert "NetworkPolicy" not in helm.render().kinds
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    rendered = helm.render(
        {
            "networkPolicy": {
                "enabled": True,
                "metricsFrom": peers,
                "apiServer": {"ports": [6443], "cidrs": ["10.0.0.1/32"]},
                "stores": {"ports": [443, 9000]},
            }
        }
    )
    spec = rendered.one("NetworkPolicy")["spec"]
    assert spec["podSelector"] == rendered.one("Deployment")["spec"]["selector"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}], "from": peers}]
    names, server, stores = spec["egress"]
    assert names == {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
    assert server == {"ports": [{"port": 6443, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}
    assert stores == {"ports": [{"port": 443, "protocol": "TCP"}, {"port": 9000, "protocol": "TCP"}]}


# The rest


def test_extra_objects_may_be_templates(helm: Helm) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: '{{ .Release.Name }}-mine'\n"
    plain = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ kept }}"}}
    rendered = helm.render({"extraObjects": [text, plain]})
    assert rendered.one("ConfigMap", "trtfleet-mine")
    assert rendered.one("ConfigMap", "{{ kept }}")


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_object_says_whose_it_is_and_lies_in_a_namespace_that_was_named(helm: Helm, values: Values) -> None:
    cluster_wide = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    for each in helm.render(values, namespace="elsewhere").objects:
        metadata = each["metadata"]
        if metadata["name"].startswith("extra-"):
            continue
        assert metadata["labels"]["app.kubernetes.io/instance"] == "trtfleet", metadata["name"]
        assert ("namespace" in metadata) == (each["kind"] not in cluster_wide), metadata["name"]
        assert metadata.get("namespace", "elsewhere") in ("elsewhere", "vision", "speech")


def test_no_two_objects_have_one_name(helm: Helm) -> None:
    for values in VALUES.values():
        names = [
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in helm.render(values).objects
        ]
        assert len(names) == len(set(names))


def test_the_operators_selector_never_matches_a_worker(helm: Helm) -> None:
    selector = helm.render().one("Deployment")["spec"]["selector"]["matchLabels"]
    assert selector["app.kubernetes.io/name"] != "trtfleet-worker"


def test_long_names_still_make_legal_objects(helm: Helm) -> None:
    for override in ("fullnameOverride", "nameOverride"):
        for each in helm.render({override: "n" * 50}).objects:
            if each["kind"] != "CustomResourceDefinition":
                assert len(each["metadata"]["name"]) <= 63


def test_the_packaged_chart_is_whole(helm: Helm, tmp_path: Path) -> None:
    helm.done("package", CHART, "--destination", tmp_path)
    (package,) = tmp_path.glob("trtfleet-*.tgz")
    answer = helm.call("template", "trtfleet", package, "--namespace", "trtfleet-system", "--values", helm.values_file({}))
    assert tuple(parsed(answer.stdout)) == helm.render().objects
