"""An API server in memory: KubeApi as the real one answers it, with switches for what goes wrong.

Kept true to the real server: one resourceVersion for all, uid, generation (moved by anything but metadata and status), writes
that change nothing leave the resourceVersion alone, `status` is written only by apply_status, 409 on a stale resourceVersion or a
foreign uid, our kinds are pruned and checked by the generated CRDs, finalizers, and garbage collection by owner uid. Not there:
CEL, defaults of built-in kinds, managed fields (a status has one writer here: what is applied is the whole of it).

Verbs of KubeApi are logged in `requests`. Everybody else in the cluster (users, the job controller, the kubelet) acts by `seed`,
`edit`, `remove` and `peek`, which are not logged and meet no fault.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from fake_api_rules import check, check_change, matches_fields, matches_labels

from tuning_operator.kube.api import (
    PODS,
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    Object,
    Resource,
    Unavailable,
)

_WRITES = ("create", "replace", "merge", "apply_status", "delete")
_Key = tuple[Resource, str, str]

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One call of a verb, whether it succeeded or not."""

    verb: str
    kind: str
    namespace: str
    name: str
    """Empty for a list."""
    body: Object = field(default_factory=dict, compare=False)
    """What was sent: object, patch or status."""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.verb, self.kind, "/".join(filter(None, (self.namespace, self.name))))))


@dataclass
class _Fault:
    error: KubeError
    verb: str
    kind: str
    times: int
    after: bool


class FakeApi:
    """Implements KubeApi. Objects go in and come out as copies."""

    def __init__(self, now: datetime = datetime(2026, 11, 30, 10, tzinfo=UTC)) -> None:
        self.now = now
        """The server's clock; tests move it."""
        self.requests: list[Request] = []
        self.listeners: list[Callable[[str, Resource, Object], None]] = []
        """Told of each change as a watch would be: `ADDED`, `MODIFIED` or `DELETED`, the kind, the object."""
        self.before: Callable[[Request], None] | None = None
        """Called before each request is served: a place for others to act in between."""
        self.down = False
        """Every request ends as Unavailable."""
        self.terminating: set[str] = set()
        """Namespaces that are being deleted: nothing can be created there."""
        self.pods_linger = False
        """Pods that are deleted stay, with a deletionTimestamp, until `remove(…, now=True)`: they drain."""
        self._objects: dict[_Key, Object] = {}
        self._version = 0
        self._serial = 0
        self._faults: list[_Fault] = []

    # -- faults and the log -------------------------------------------------------------------------------------------

    def fail(
        self, error: KubeError, verb: str = "", resource: Resource | None = None, *, times: int = 1, after: bool = False
    ) -> None:
        """The next `times` calls that fit raise `error`: before anything is done, or `after` it (the answer is lost)."""
        self._faults.append(_Fault(error, verb, resource.kind if resource else "", times, after))

    @property
    def writes(self) -> list[Request]:
        return [each for each in self.requests if each.verb in _WRITES]

    # -- what others in the cluster do --------------------------------------------------------------------------------

    def seed(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        """Create an object with its status, checked as by the server; apiVersion and kind may be left out."""
        return self._create(resource, {"apiVersion": resource.api_version, "kind": resource.kind, **body}, namespace, status=True)

    def edit(self, resource: Resource, name: str, namespace: str | None, change: Callable[[Object], None]) -> Object:
        """Change any field of an object; a kind of ours need not be valid after it (one that an older schema let in)."""
        key = self._key(resource, name, namespace)
        body = copy.deepcopy(self._find(key))
        change(body)
        return self._store(key, body)

    def remove(self, resource: Resource, name: str, namespace: str | None = None, *, now: bool = False) -> None:
        """Delete an object in the background. `now`: whatever finalizers or grace would keep it."""
        key = self._key(resource, name, namespace)
        self._find(key)
        if now:
            self._drop(key)
        else:
            self._delete(key)

    def peek(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        found = self._objects.get((resource, namespace or "", name))
        return copy.deepcopy(found)

    def all(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        keys = sorted((key for key in self._objects if key[0] == resource and namespace in (None, key[1])), key=lambda k: k[1:])
        return [copy.deepcopy(self._objects[key]) for key in keys]

    # -- KubeApi ------------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        return self._serve(Request("get", resource.kind, namespace or "", name), lambda: self._get(resource, name, namespace))

    async def list(self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = "") -> list[Object]:
        def answer() -> list[Object]:
            matches_labels(labels, {})  # a wrong selector is refused even where there is nothing to select
            matches_fields(resource, fields, {})
            found = self.all(resource, namespace)
            found = [each for each in found if matches_labels(labels, each["metadata"].get("labels") or {})]
            return [each for each in found if matches_fields(resource, fields, each)]

        return self._serve(Request("list", resource.kind, namespace or "", ""), answer)

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        name = body.get("metadata", {}).get("name", "")
        request = Request("create", resource.kind, namespace or "", name, copy.deepcopy(body))
        return self._serve(request, lambda: self._create(resource, body, namespace, status=False))

    async def replace(self, resource: Resource, body: Object) -> Object:
        metadata = body["metadata"]
        namespace = metadata.get("namespace")
        request = Request("replace", resource.kind, namespace or "", metadata["name"], copy.deepcopy(body))
        return self._serve(request, lambda: self._replace(resource, body, namespace))

    async def merge(self, resource: Resource, name: str, namespace: str | None, patch: Object) -> Object:
        request = Request("merge", resource.kind, namespace or "", name, copy.deepcopy(patch))

        def answer() -> Object:
            key = self._key(resource, name, namespace)
            before = self._find(key)
            version = (patch.get("metadata") or {}).get("resourceVersion")
            if version is not None and version != before["metadata"]["resourceVersion"]:
                raise Conflict(f"{request}: the object has been modified", code=409)
            after = _merged(before, {part: value for part, value in patch.items() if part != "status"})
            return self._update(key, before, after, str(request))

        return self._serve(request, answer)

    async def apply_status(self, resource: Resource, name: str, namespace: str | None, status: Object) -> Object:
        request = Request("apply_status", resource.kind, namespace or "", name, copy.deepcopy(status))

        def answer() -> Object:
            key = self._key(resource, name, namespace)
            body = {**self._find(key), "status": json.loads(json.dumps(status))}
            return self._store(key, check(resource, body, str(request)))

        return self._serve(request, answer)

    async def delete(self, resource: Resource, name: str, namespace: str | None, *, uid: str) -> None:
        request = Request("delete", resource.kind, namespace or "", name)

        def answer() -> None:
            key = self._key(resource, name, namespace)
            found = self._objects.get(key)
            if found is None:
                return
            if found["metadata"]["uid"] != uid:
                raise Conflict(f"{request}: the UID in the precondition ({uid}) does not match the UID in record", code=409)
            self._delete(key)

        self._serve(request, answer)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _serve(self, request: Request, answer: Callable[[], T]) -> T:
        self.requests.append(request)
        if self.before is not None:
            self.before(request)
        if self.down:
            raise Unavailable(f"{request}: down on purpose")
        fault = next((each for each in self._faults if each.verb in ("", request.verb) and each.kind in ("", request.kind)), None)
        if fault is None:
            return answer()
        fault.times -= 1
        if fault.times == 0:
            self._faults.remove(fault)
        if fault.after:
            answer()
        raise fault.error

    def _get(self, resource: Resource, name: str, namespace: str | None) -> Object:
        return copy.deepcopy(self._find(self._key(resource, name, namespace)))

    def _create(self, resource: Resource, body: Object, namespace: str | None, *, status: bool) -> Object:
        body = json.loads(json.dumps(body))  # what travels is JSON: a tuple or a date would not
        metadata = body.setdefault("metadata", {})
        if "name" not in metadata and "generateName" in metadata:
            metadata["name"] = f"{metadata['generateName']}{self._next():05x}"
        namespace = namespace or metadata.get("namespace")
        name = metadata.get("name", "")
        what = f"create {resource.kind} {namespace or ''}/{name}"
        if metadata.get("namespace", namespace) != namespace:
            raise Invalid(f"{what}: the namespace of the object does not match the namespace of the request", code=400)
        if "resourceVersion" in metadata and not status:
            raise Invalid(f"{what}: resourceVersion should not be set on objects to be created", code=400)
        key = self._key(resource, name, namespace)
        if key in self._objects:
            raise AlreadyExists(f'{what}: "{name}" already exists', code=409)
        if namespace in self.terminating and not status:
            raise Forbidden(
                f"{what}: unable to create new content in namespace {namespace} because it is being terminated", code=403
            )
        if not status:
            body.pop("status", None)
        server = {"uid": f"00000000-0000-4000-8000-{self._next():012d}", "creationTimestamp": self._time(), "generation": 1}
        body["metadata"] = {**server, **metadata} if status else {**metadata, **server}
        if resource.namespaced:
            body["metadata"]["namespace"] = namespace
        return self._store(key, check(resource, body, what))

    def _replace(self, resource: Resource, body: Object, namespace: str | None) -> Object:
        body = json.loads(json.dumps(body))
        metadata = body["metadata"]
        what = f"replace {resource.kind} {namespace or ''}/{metadata['name']}"
        key = self._key(resource, metadata["name"], namespace)
        before = self._find(key)
        if "resourceVersion" not in metadata:
            raise Invalid(f"{what}: metadata.resourceVersion: must be specified for an update", code=422)
        if metadata["resourceVersion"] != before["metadata"]["resourceVersion"]:
            raise Conflict(f"{what}: the object has been modified; please apply your changes to the latest version", code=409)
        if metadata.get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]:
            raise Conflict(f"{what}: the UID in the precondition does not match the UID in record", code=409)
        after = {part: value for part, value in body.items() if part != "status"}
        if "status" in before:
            after["status"] = before["status"]
        return self._update(key, before, after, what)

    def _update(self, key: _Key, before: Object, after: Object, what: str) -> Object:
        """What main endpoints do: fields of the server's own are kept."""
        own = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "generation", "resourceVersion")
        kept = {part: value for part, value in before["metadata"].items() if part in own}
        after["metadata"] = {part: value for part, value in after["metadata"].items() if part not in own} | kept
        after = check(key[0], after, what)
        check_change(key[0], before, after, what)
        return self._store(key, after)

    def _store(self, key: _Key, body: Object) -> Object:
        before = self._objects.get(key)
        metadata = body["metadata"]
        if before is not None:
            if _spec(before) != _spec(body):
                metadata["generation"] = before["metadata"]["generation"] + 1
            if before == body:
                return copy.deepcopy(body)
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        self._objects[key] = body
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and not self._lingers(key):
            self._drop(key)
        else:
            self._tell("ADDED" if before is None else "MODIFIED", key, body)
        return copy.deepcopy(body)

    def _delete(self, key: _Key) -> None:
        body = copy.deepcopy(self._objects[key])
        if body["metadata"].get("finalizers") or self._lingers(key):
            body["metadata"].setdefault("deletionTimestamp", self._time())
            self._store(key, body)
        else:
            self._drop(key)

    def _drop(self, key: _Key) -> None:
        body = self._objects.pop(key)
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self._tell("DELETED", key, body)
        self._collect(body["metadata"]["uid"])

    def _collect(self, owner: str) -> None:
        """What the garbage collector does to dependents when their owner is gone: only those with no other owner left."""
        uids = {each["metadata"]["uid"] for each in self._objects.values()}
        for key, body in [*self._objects.items()]:
            owners = [each["uid"] for each in body["metadata"].get("ownerReferences", ())]
            if key in self._objects and owner in owners and not uids & {*owners}:
                self._delete(key)

    def _lingers(self, key: _Key) -> bool:
        return self.pods_linger and key[0] == PODS

    def _tell(self, event: str, key: _Key, body: Object) -> None:
        for listener in [*self.listeners]:
            listener(event, key[0], copy.deepcopy(body))

    def _find(self, key: _Key) -> Object:
        found = self._objects.get(key)
        if found is None:
            raise NotFound(f'{key[0].plural} "{key[2]}" not found', code=404)
        return found

    def _key(self, resource: Resource, name: str, namespace: str | None) -> _Key:
        assert resource.namespaced == bool(namespace), f"{resource.kind} {name}: namespace {namespace}"
        return resource, namespace or "", name

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _time(self) -> str:
        return self.now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _spec(body: Object) -> Object:
    """What moves the generation."""
    return {part: value for part, value in body.items() if part not in ("metadata", "status")}


def _merged(value: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    out = copy.deepcopy(value) if isinstance(value, dict) else {}
    for part, inner in patch.items():
        if inner is None:
            out.pop(part, None)
        else:
            out[part] = _merged(out.get(part), inner)
    return out
