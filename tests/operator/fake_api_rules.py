"""What the fake API server refuses, and how it selects: the rules of the real one that the operator could run into."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tuning_operator.kube.api import EVENTS, JOBS, NODES, PODS, Invalid, Object, Resource

CRDS = Path(__file__).parents[2] / "crds"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_MUTABLE_JOB_FIELDS = {"suspend", "parallelism", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "backoffLimit"}
_POD_SUFFIX = 6
"""`-xxxxx` of a pod's name after its Job's name and index."""

_SELECTABLE = {
    EVENTS: {"reason", "type", "reportingController", *(f"regarding.{part}" for part in ("kind", "namespace", "name", "uid"))},
    PODS: {"spec.nodeName", "spec.serviceAccountName", "status.phase"},
    JOBS: {"status.successful"},
    NODES: {"spec.unschedulable"},
}


@cache
def schema_of(resource: Resource) -> dict[str, Any] | None:
    """The structural schema of a kind of ours; None for a built-in one."""
    version = _crd_version(resource)
    return version and version["schema"]["openAPIV3Schema"]


@cache
def _crd_version(resource: Resource) -> dict[str, Any] | None:
    path = CRDS / f"{resource.group}_{resource.plural}.yaml"
    return yaml.safe_load(path.read_text())["spec"]["versions"][0] if path.exists() else None


def check(resource: Resource, body: Object, what: str) -> Object:
    """The object as the server would store it (unknown fields of our kinds pruned). Raises Invalid."""
    if (body.get("apiVersion"), body.get("kind")) != (resource.api_version, resource.kind):
        raise Invalid(f"{what}: it says {body.get('apiVersion')} {body.get('kind')}", code=400)
    _check_metadata(resource, body, what)
    if resource == JOBS:
        _check_job(body, what)
    if resource == EVENTS:
        _check_event(body, what)
    schema = schema_of(resource)
    if schema is None:
        return body
    body = {"metadata": body["metadata"], **pruned(body, schema), "apiVersion": body["apiVersion"], "kind": body["kind"]}
    error = jsonschema.exceptions.best_match(jsonschema.Draft4Validator(schema).iter_errors(body))
    if error is not None:
        raise Invalid(f"{what}: {error.json_path}: {error.message}", code=422)
    for problem in _repeats(body, schema, "$"):
        raise Invalid(f"{what}: {problem}", code=422)
    return body


def check_change(resource: Resource, before: Object, after: Object, what: str) -> None:
    """Raises Invalid for a change of what never changes."""
    if resource == JOBS:
        fixed = [{k: v for k, v in each.get("spec", {}).items() if k not in _MUTABLE_JOB_FIELDS} for each in (before, after)]
        if fixed[0] != fixed[1]:
            raise Invalid(f"{what}: spec: field is immutable", code=422)


def pruned(value: Any, schema: Mapping[str, Any]) -> Any:
    """Without the fields that a structural schema does not know."""
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        keep = value if schema.get("x-kubernetes-preserve-unknown-fields") else [key for key in value if key in known]
        return {key: pruned(value[key], known.get(key, {})) if key != "metadata" else value[key] for key in keep}
    if isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        return {key: pruned(inner, schema["additionalProperties"]) for key, inner in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [pruned(inner, schema["items"]) for inner in value]
    return value


def matches_labels(selector: str, labels: Mapping[str, str]) -> bool:
    """`a=b,c!=d,e,!f,g in (h,i)`. Raises Invalid."""
    terms = [term.strip() for term in re.split(r",(?![^(]*\))", selector)]
    met = [_requirement(term, labels) for term in terms if term]
    return all(met)


def matches_fields(resource: Resource, selector: str, body: Object) -> bool:
    """Raises Invalid for a field that the server cannot select by."""
    version = _crd_version(resource)
    ours = {each["jsonPath"].lstrip(".") for each in version.get("selectableFields", ())} if version else set()
    holds = True
    for term in filter(None, selector.split(",")):
        field, operator, wanted = re.fullmatch(r"([^=!]+)(!=|==|=)(.*)", term).groups()  # type: ignore[union-attr]
        if field not in {"metadata.name", "metadata.namespace"} | ours | _SELECTABLE.get(resource, set()):
            raise Invalid(f"field label not supported: {field}", code=400)
        value: Any = body
        for part in field.split("."):
            value = value.get(part, "") if isinstance(value, dict) else ""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        holds = holds and (text == wanted) == (operator != "!=")
    return holds


def _requirement(term: str, labels: Mapping[str, str]) -> bool:
    if found := re.fullmatch(r"(\S+)\s+(in|notin)\s+\((.*)\)", term):
        among = labels.get(found[1]) in [value.strip() for value in found[3].split(",")]
        return among if found[2] == "in" else not among
    if found := re.fullmatch(r"([^=!\s]+)\s*(!=|==|=)\s*(\S*)", term):
        if not _VALUE.fullmatch(found[3]) or len(found[3]) > 63:
            raise Invalid(f"unable to parse requirement: invalid label value {found[3]!r}", code=400)
        return (labels.get(found[1]) == found[3]) == (found[2] != "!=")
    if not _KEY.fullmatch(term.removeprefix("!")):
        raise Invalid(f"unable to parse requirement: {term!r}", code=400)
    return term[1:] not in labels if term.startswith("!") else term in labels


def _check_metadata(resource: Resource, body: Object, what: str) -> None:
    metadata = body["metadata"]
    name = metadata.get("name", "")
    if len(name) > 253 or not name or not all(_LABEL.fullmatch(part) for part in name.split(".")):
        raise Invalid(f"{what}: metadata.name: {name!r} is no DNS subdomain", code=422)
    for field in ("labels", "annotations"):
        for key, value in (metadata.get(field) or {}).items():
            named = key.rpartition("/")[2]
            if not isinstance(value, str):
                raise Invalid(f"{what}: metadata.{field}: {key} is no string", code=400)
            if not _KEY.fullmatch(key) or len(named) > 63:
                raise Invalid(f"{what}: metadata.{field}: {key!r} is no qualified name", code=422)
            if field == "labels" and (len(value) > 63 or not _VALUE.fullmatch(value)):
                raise Invalid(f"{what}: metadata.labels: {key}: {value!r} is no label value", code=422)
    for owner in metadata.get("ownerReferences", ()):
        if not all(owner.get(key) for key in ("apiVersion", "kind", "name", "uid")):
            raise Invalid(f"{what}: metadata.ownerReferences: must name apiVersion, kind, name and uid", code=422)
    if sum(bool(owner.get("controller")) for owner in metadata.get("ownerReferences", ())) > 1:
        raise Invalid(f"{what}: metadata.ownerReferences: only one controller", code=422)


def _check_job(body: Object, what: str) -> None:
    spec, name = body.get("spec", {}), body["metadata"]["name"]
    if spec.get("completionMode") == "Indexed":
        last = len(str(max(spec.get("completions", 1) - 1, 0)))
        if len(name) + 1 + last + _POD_SUFFIX > 63:
            raise Invalid(f"{what}: metadata.name: will not able to create pod with invalid DNS label", code=422)
    template = spec.get("template", {})
    if template.get("spec", {}).get("restartPolicy") not in ("Never", "OnFailure"):
        raise Invalid(f"{what}: spec.template.spec.restartPolicy: must be Never or OnFailure", code=422)
    labels = {"metadata": {"name": "x", "labels": template.get("metadata", {}).get("labels", {})}}
    _check_metadata(JOBS, labels, f"{what}: spec.template")


def _check_event(body: Object, what: str) -> None:
    if len(body.get("note", "").encode()) > 1024:
        raise Invalid(f"{what}: note: can have at most 1024 bytes", code=422)
    for field, most in (("reason", 128), ("action", 128), ("reportingController", 128), ("reportingInstance", 128)):
        if not 0 < len(body.get(field, "")) <= most:
            raise Invalid(f"{what}: {field}: must have 1 to {most} characters", code=422)
    if body.get("type") not in ("Normal", "Warning"):
        raise Invalid(f"{what}: type: must be Normal or Warning", code=422)
    if "eventTime" not in body:
        raise Invalid(f"{what}: eventTime: required", code=422)
    if "series" in body and (body["series"].get("count", 0) < 2 or not body["series"].get("lastObservedTime")):
        raise Invalid(f"{what}: series: count should be at least 2, with lastObservedTime", code=422)


def _repeats(value: Any, schema: Mapping[str, Any], at: str) -> Iterator[str]:
    """Lists that are maps or sets and hold a key twice."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _repeats(inner, schema.get("properties", {}).get(key, {}), f"{at}.{key}")
    if isinstance(value, list):
        kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys", ())
        seen = [tuple(each.get(key) for key in keys) if kind == "map" else each for each in value]
        if kind in ("map", "set") and any(each in seen[:index] for index, each in enumerate(seen)):
            yield f"{at}: duplicate entries"
        for index, inner in enumerate(value):
            yield from _repeats(inner, schema.get("items", {}), f"{at}[{index}]")
