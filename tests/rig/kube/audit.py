"""What the API server was asked, as its audit log tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})

PROMETHEUS = "prometheus"
"""The user that scrapes; left out of the log."""

POLICY = f"""
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  # What the cluster does for itself, but for what it does to our objects and their pods.
  - {{level: None, users: ["system:apiserver", "system:kube-scheduler", "system:kube-controller-manager", {PROMETHEUS}]}}
  - {{level: None, userGroups: ["system:nodes"]}}
  - {{level: None, userGroups: ["system:serviceaccounts:kube-system"], verbs: [get, list, watch]}}
  - {{level: None, nonResourceURLs: ["/healthz*", "/livez*", "/readyz*", "/openapi*", "/version"]}}
  - level: Metadata
"""


@dataclass(frozen=True)
class Request:
    """One answered request."""

    user: str
    verb: str
    group: str
    """API group; empty for the core."""
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    agent: str
    at: str
    """RFC 3339, when it was received."""
    path: str
    why: str = ""
    """What the authorizer said."""

    @property
    def writes(self) -> bool:
        return self.verb in WRITES

    @property
    def what(self) -> str:
        """As in a rule of RBAC: `batch/jobs`, `trtfleet.dev/tuningjobs/status`, `pods`."""
        return "/".join(part for part in (self.group, self.resource, self.subresource) if part)


def read(log: Path, offset: int = 0) -> Iterator[Request]:
    """Every request after the first `offset` bytes. A last line that is not whole yet is left out."""
    with log.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            event = json.loads(line)
            # Of one that goes on for long there are two: when it starts and when it ends.
            if event["stage"] == ("ResponseStarted" if event["verb"] == "watch" else "ResponseComplete"):
                yield _request(event)


def _request(event: dict[str, Any]) -> Request:
    of = event.get("objectRef", {})
    return Request(
        user=event["user"]["username"],
        verb=event["verb"],
        group=of.get("apiGroup", ""),
        resource=of.get("resource", ""),
        subresource=of.get("subresource", ""),
        namespace=of.get("namespace", ""),
        name=of.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
        agent=event.get("userAgent", ""),
        at=event["requestReceivedTimestamp"],
        path=event["requestURI"],
        why=event.get("annotations", {}).get("authorization.k8s.io/reason", ""),
    )
