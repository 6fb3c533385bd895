"""The fixture files as plain data, and a way to change one value in them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "resources"
GONE = object()


def text(name: str) -> str:
    return (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def full(kind: str) -> dict[str, Any]:
    """The object of a kind with every field set."""
    return next(doc for doc in yaml.safe_load_all(text("full")) if doc["kind"] == kind)


def minimal() -> dict[str, Any]:
    """The TuningJob with nothing but what it must have."""
    found: dict[str, Any] = yaml.safe_load(text("minimal"))
    return found


def changed(obj: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with the value at `spec/targets/0/name` set, or removed if it is GONE. Missing parents are made."""
    out = copy.deepcopy(obj)
    here: Any = out
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    for part in parents:
        if isinstance(here, dict) and part not in here:
            here[part] = {}
        here = here[part]
    if value is GONE:
        del here[last]
    elif isinstance(here, list) and isinstance(last, int) and last == len(here):
        here.append(value)
    else:
        here[last] = value
    return out
