"""What the operator asks of the API server: nine verbs on plain dicts, and the errors that they raise.

Dicts, since a typed round trip would drop the fields of a newer server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

Object = dict[str, Any]
"""One Kubernetes object as JSON. Any: its shape is the server's; what is read of it is parsed by own models."""

FIELD_MANAGER = "trtfleet-operator"


@dataclass(frozen=True)
class Resource:
    """A kind as the API server's paths name it."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str = "", namespace: str | None = None, subresource: str = "") -> str:
        """`/apis/batch/v1/namespaces/<namespace>/jobs/<name>`; without a namespace, of all of them."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root, *(["namespaces", namespace] if namespace else []), self.plural, *([name] if name else [])]
        return "/".join([*parts, subresource] if subresource else parts)


TUNING_JOBS = Resource("trtfleet.dev", "v1alpha1", "tuningjobs", "TuningJob")
TUNER_RUNTIMES = Resource("trtfleet.dev", "v1alpha1", "tunerruntimes", "TunerRuntime", namespaced=False)
TUNER_CHANNELS = Resource("trtfleet.dev", "v1alpha1", "tunerchannels", "TunerChannel", namespaced=False)
ARTIFACT_STORES = Resource("trtfleet.dev", "v1alpha1", "artifactstores", "ArtifactStore", namespaced=False)
JOBS = Resource("batch", "v1", "jobs", "Job")
PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")


class KubeError(Exception):
    """A call that did not do what it was asked. `str()` is one line: verb, object, what the server said."""

    reason = "KubeError"
    retriable = True
    """Whether the same call may succeed later with nobody acting."""

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(" ".join(message.split()))
        self.code = code
        """HTTP status; 0 when there was no answer."""


class NotFound(KubeError):
    """404."""

    reason = "NotFound"
    retriable = False


class AlreadyExists(KubeError):
    """409 of a create."""

    reason = "AlreadyExists"


class Conflict(KubeError):
    """409 of a replace or delete: the object is not the one that was read."""

    reason = "Conflict"


class Forbidden(KubeError):
    """403: RBAC, an admission webhook or policy, a quota, or a namespace that is terminating."""

    reason = "Forbidden"


class Invalid(KubeError):
    """400 or 422: the server refuses the object as it is."""

    reason = "Invalid"
    retriable = False


class Throttled(KubeError):
    """429. `retry_after` in seconds, as the server asks."""

    reason = "Throttled"

    def __init__(self, message: str, *, code: int = 429, retry_after: float = 1.0) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class Unavailable(KubeError):
    """No answer in time, no connection, 401 or 5xx."""

    reason = "Unavailable"


class KubeApi(Protocol):
    """Each call has a deadline and raises a KubeError. No call retries: the work queue does."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object: ...

    async def list(self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = "") -> list[Object]:
        """Every object that the selectors match, paged, as of now (never from a stale cache)."""
        ...

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object: ...

    async def replace(self, resource: Resource, body: Object) -> Object:
        """PUT under the body's `metadata.resourceVersion`. Raises Conflict when the object has changed since."""
        ...

    async def merge(self, resource: Resource, name: str, namespace: str | None, patch: Object) -> Object:
        """JSON merge patch."""
        ...

    async def apply_status(self, resource: Resource, name: str, namespace: str | None, status: Object) -> Object:
        """Server-side apply of the whole status as FIELD_MANAGER, forced: fields that are left out are removed."""
        ...

    async def delete(self, resource: Resource, name: str, namespace: str | None, *, uid: str) -> None:
        """In the background, and only the object of this uid. An object that is gone already is no error."""
        ...
