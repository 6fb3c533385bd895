"""What the API server does to an object, in small: schema, unknown fields, list keys, then CEL."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
from cel_expr_python import cel

from tuner_job.api.crd import structural
from tuner_job.api.resource import Resource

Path = tuple[str | int, ...]
_ENV = cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN})


@cache
def compiled(rule: str) -> Any:
    return _ENV.compile(rule)


@cache
def _validator(model: type[Resource]) -> tuple[dict[str, Any], jsonschema.Draft7Validator]:
    schema = structural(model)
    return schema, jsonschema.Draft7Validator(_as_json_schema(schema, root=True))


def refusals(model: type[Resource], obj: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    """Why the server would refuse; empty if it would not."""
    schema, validator = _validator(model)
    found = [f"{list(e.absolute_path)}: {e.message}" for e in validator.iter_errors(obj)]
    # Rules run only over what fits the schema, as in the server.
    return found or list(_lists(schema, obj, ())) or list(_rules(schema, obj, old, ()))


def rule_holds(rule: str, value: object, old: object = None) -> bool:
    data = {"self": value} if old is None else {"self": value, "oldSelf": old}
    result = compiled(rule).eval(data=data).plain_value()
    assert isinstance(result, bool), f"{rule}: {result}"
    return result


def _as_json_schema(schema: dict[str, Any], root: bool = False) -> dict[str, Any]:
    out = dict(schema)
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if out.get(exclusive) is True:
            out[exclusive] = out.pop(bound)
    if out.get("pattern", "").endswith("$"):
        out["pattern"] = out["pattern"][:-1] + r"\Z"
    if "properties" in out:
        out["properties"] = {name: _as_json_schema(value) for name, value in out["properties"].items()}
        if root:
            out["properties"]["metadata"] = {**out["properties"]["metadata"], "additionalProperties": True}
        out.setdefault("additionalProperties", False)
    elif isinstance(out.get("additionalProperties"), dict):
        out["additionalProperties"] = _as_json_schema(out["additionalProperties"])
    if "items" in out:
        out["items"] = _as_json_schema(out["items"])
    return out


def _children(schema: dict[str, Any], value: Any, old: Any, path: Path) -> Iterator[tuple[dict[str, Any], Any, Any, Path]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            below = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if isinstance(below, dict):
                yield below, inner, old.get(name) if isinstance(old, dict) else None, (*path, name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield schema["items"], inner, None, (*path, index)


def _lists(schema: dict[str, Any], value: Any, path: Path) -> Iterator[str]:
    kind = schema.get("x-kubernetes-list-type")
    if isinstance(value, list) and kind in ("map", "set"):
        names = schema.get("x-kubernetes-list-map-keys", [])
        keys = [tuple(entry[name] for name in names) if kind == "map" else entry for entry in value]
        if len(set(keys)) != len(keys):
            yield f"{list(path)}: duplicate"
    for below, inner, _, at in _children(schema, value, None, path):
        yield from _lists(below, inner, at)


def _rules(schema: dict[str, Any], value: Any, old: Any, path: Path) -> Iterator[str]:
    for each in schema.get("x-kubernetes-validations", []):
        if "oldSelf" in each["rule"]:
            if old is not None and not rule_holds(each["rule"], value, old):
                yield f"{list(path)}: {each['message']}"
        elif not rule_holds(each["rule"], value):
            yield f"{list(path)}: {each['message']}"
    for below, inner, before, at in _children(schema, value, old, path):
        yield from _rules(below, inner, before, at)
