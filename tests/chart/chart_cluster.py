"""A real API server that the chart is installed on, and what it says of rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from chart_helm import CHART, NAMESPACE, RELEASE, Grant, Helm, Object, Values
from rig.kube.control_plane import ControlPlane

OPERATOR = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
NOBODY = f"system:serviceaccount:{NAMESPACE}:nobody"


@dataclass(frozen=True)
class Question:
    """Whether a user may do something."""

    verb: str
    what: str
    """`resource`, `resource.group` or `resource.group/subresource`."""
    namespace: str = ""
    name: str = ""
    user: str = OPERATOR

    @property
    def groups(self) -> list[str]:
        accounts = ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"]
        return ["system:authenticated", *(accounts if self.user.startswith("system:serviceaccount:") else [])]

    @property
    def attributes(self) -> Object:
        resource, _, subresource = self.what.partition("/")
        plural, _, group = resource.partition(".")
        return {
            "verb": self.verb,
            "group": group,
            "resource": plural,
            "subresource": subresource,
            "namespace": self.namespace,
            "name": self.name,
        }


@dataclass
class Cluster:
    helm: Helm
    plane: ControlPlane

    def install(self, values: Values | None = None, *options: str) -> str:
        file = self.helm.values_file(values or {})
        return self.helm.done("install", RELEASE, CHART, "--namespace", NAMESPACE, "--values", file, *options)

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

    def may(self, *questions: Question) -> list[bool]:
        """`kubectl auth can-i`, for many questions at once."""
        reviews = [
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": each.user, "groups": each.groups, "resourceAttributes": each.attributes},
            }
            for each in questions
        ]
        listed = {"apiVersion": "v1", "kind": "List", "items": reviews}
        said = self.plane.kubectl("create", "--filename=-", "--output=json", stdin=json.dumps(listed))
        answers = [bool(each["status"]["allowed"]) for each in _documents(said)]
        assert len(answers) == len(questions)
        return answers


def _documents(text: str) -> Iterator[Object]:
    """kubectl prints one after the other."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        found, end = decoder.raw_decode(text, at)
        yield found
        at = end + len(text[end:]) - len(text[end:].lstrip())
