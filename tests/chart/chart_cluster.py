"""A real API server that the chart is installed on, and what it says of rights."""

from __future__ import annotations

import json
from dataclasses import dataclass

from chart_helm import CHART, NAMESPACE, RELEASE, REQUIRED, Grant, Helm, Object, Values
from rig.kube.control_plane import ControlPlane

OPERATOR = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
NOBODY = f"system:serviceaccount:{NAMESPACE}:nobody"


@dataclass
class Cluster:
    helm: Helm
    plane: ControlPlane

    def install(self, values: Values | None = None, *, required: Values = REQUIRED) -> str:
        return self.helm.done(
            "install",
            RELEASE,
            CHART,
            "--namespace",
            NAMESPACE,
            "--values",
            self.helm.values_file(values or {}, required=required),
        )

    def upgrade(self, *options: str) -> str:
        return self.helm.done("upgrade", RELEASE, CHART, "--namespace", NAMESPACE, "--reuse-values", *options)

    def uninstall(self) -> str:
        return self.helm.done("uninstall", RELEASE, "--namespace", NAMESPACE)

    def clean(self) -> None:
        self.helm.call("uninstall", RELEASE, "--namespace", NAMESPACE)
        self.plane.kubectl("delete", "crd", "--all", "--wait")
        self.plane.kubectl("delete", "secrets", "--all", "--all-namespaces")

    def accept(self, *objects: Object) -> None:
        """A server-side dry run: schema, admission and all, but nothing is stored. Raises CommandFailed."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.plane.kubectl(
            "apply", "--server-side", "--dry-run=server", "--validate=strict", "--field-manager=test", "--force-conflicts",
            "--filename=-", stdin=json.dumps(listed),
        )  # fmt: skip

    def granted(self, namespace: str, user: str = OPERATOR) -> set[Grant]:
        """All that RBAC grants a user in a namespace beyond what it grants everyone."""
        return self._rules(namespace, user) - self._rules(namespace, NOBODY)

    def _rules(self, namespace: str, user: str) -> set[Grant]:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        said = self.plane.kubectl(
            "create", "--validate=false", "--as", user, "--filename=-", "--output=json", stdin=json.dumps(review)
        )
        return {
            (group, "=".join((resource, *rule.get("resourceNames", []))), verb)
            for rule in json.loads(said)["status"]["resourceRules"]
            for group in rule.get("apiGroups", [])
            for resource in rule.get("resources", [])
            for verb in rule["verbs"]
        }

    def may(self, verb: str, what: str, namespace: str = "", name: str = "", user: str = OPERATOR) -> bool:
        """`kubectl auth can-i`; `what` is `resource.group/subresource`."""
        resource, _, subresource = what.partition("/")
        plural, _, group = resource.partition(".")
        asked = {
            "verb": verb,
            "group": group,
            "resource": plural,
            "subresource": subresource,
            "namespace": namespace,
            "name": name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": asked},
        }
        said = self.plane.kubectl("create", "--filename=-", "--output=json", stdin=json.dumps(review))
        return bool(json.loads(said)["status"]["allowed"])
