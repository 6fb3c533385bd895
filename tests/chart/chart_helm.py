"""The chart through the real helm, and what it renders as plain objects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "trtfleet"
NAMESPACE = "trtfleet-system"
RELEASE = "trtfleet"

Object = dict[str, Any]
Values = Mapping[str, Any]

REQUIRED: Values = {
    "clusterName": "prod-eu",
    "image": {"repository": "registry.example.com/trtfleet/operator"},
    "signing": {"existingSecret": "engine-key"},
}


EVERYTHING: Values = {
    "watchNamespaces": ["vision", "speech"],
    "imagePullSecrets": [{"name": "registry"}],
    "replicas": 2,
    "stores": ["engines-operator", "archive.eu"],
    "workers": {"serviceAccounts": [{"namespace": "vision", "name": "tuner", "annotations": {"example.com/role": "tuner"}}]},
    "serviceAccount": {"annotations": {"example.com/role": "operator"}},
    "podLabels": {"team": "inference"},
    "podAnnotations": {"example.com/scrape": "yes"},
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"}],
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "infra", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAntiAffinity": {}},
    "metrics": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "networkPolicy": {"enabled": True},
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "extra-config", "namespace": "vision"}}],
}

VALUES: dict[str, Values] = {
    "required": {},
    "everything": EVERYTHING,
    "generated-key": {"signing": {"create": True, "existingSecret": ""}},
    "no-extras": {
        "crds": {"enabled": False},
        "metrics": {"service": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "mine"},
    },
}


@dataclass(frozen=True)
class Rendered:
    """The objects of one rendering, in helm's order."""

    objects: tuple[Object, ...]

    def of(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Object:
        (found,) = [each for each in self.of(kind) if name in (None, each["metadata"]["name"])]
        return found

    @property
    def pod(self) -> Object:
        """The operator's pod template's spec."""
        spec: Object = self.one("Deployment")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        (only,) = self.pod["containers"]
        assert isinstance(only, dict)
        return only

    @property
    def config(self) -> str:
        """The operator's config.yaml."""
        text = self.one("ConfigMap")["data"]["config.yaml"]
        assert isinstance(text, str)
        return text

    @property
    def kinds(self) -> set[str]:
        return {each["kind"] for each in self.objects}


class Helm:
    """Without a cluster, unless it is given one's kubeconfig."""

    def __init__(self, binary: Path, folder: Path, kubeconfig: Path | None = None) -> None:
        self.binary = binary
        self.folder = folder
        self.kubeconfig = kubeconfig
        self._written = 0
        self._rendered: dict[str, Rendered] = {}

    def at(self, kubeconfig: Path) -> Helm:
        return Helm(self.binary, self.folder, kubeconfig)

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of the user's: no repositories, no cluster."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.kubeconfig or "/dev/null"),
        }

    def call(self, *words: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.binary), *map(str, words)],
            env=self.environment,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def done(self, *words: str | Path) -> str:
        """Standard output of a command that must succeed."""
        answer = self.call(*words)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def values_file(self, values: Values, *, required: Values = REQUIRED) -> Path:
        self._written += 1
        path = self.folder / f"values-{id(self)}-{self._written}.yaml"
        path.write_text(yaml.safe_dump(merged(required, values)))
        return path

    def template(
        self, values: Values, *, required: Values = REQUIRED, namespace: str = NAMESPACE, apis: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        return self.call(
            "template", RELEASE, CHART, "--namespace", namespace, "--values", self.values_file(values, required=required),
            *(word for api in apis for word in ("--api-versions", api)),
        )  # fmt: skip

    def render(
        self, values: Values | None = None, *, required: Values = REQUIRED, namespace: str = NAMESPACE, apis: Sequence[str] = ()
    ) -> Rendered:
        asked = json.dumps([merged(required, values or {}), namespace, list(apis)])
        if asked not in self._rendered:
            answer = self.template(values or {}, required=required, namespace=namespace, apis=apis)
            assert answer.returncode == 0, answer.stderr
            self._rendered[asked] = Rendered(tuple(parsed(answer.stdout)))
        return self._rendered[asked]

    def refusal(self, values: Values, *, required: Values = REQUIRED) -> str:
        """What helm says when it renders nothing."""
        answer = self.template(values, required=required)
        assert answer.returncode != 0, f"rendered in spite of {values}"
        return answer.stderr


def parsed(text: str) -> Iterator[Object]:
    for document in yaml.safe_load_all(text):
        if document is not None:
            assert isinstance(document, dict), document
            yield document


def merged(base: Values, over: Values) -> dict[str, Any]:
    """As helm merges: mappings key by key, all else replaced."""
    out = dict(base)
    for key, value in over.items():
        before = out.get(key)
        out[key] = merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return out


Grant = tuple[str, str, str]
"""API group, resource, verb."""


def grants(role: Object) -> set[Grant]:
    """Of a Role or ClusterRole. No rule may hold a wildcard."""
    found = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert "*" not in {word for grant in found for word in grant}
    return found
