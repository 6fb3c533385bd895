"""The emitted CustomResourceDefinitions, and what the transformer refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import yaml
from pydantic import Field

from tuner_job.api.crd import KINDS, NotStructural, definition, file_name, main, render, structural
from tuner_job.api.resource import Naming, Resource, Spec
from tuner_job.api.tuningjob_status import TuningJobStatus

COMMITTED = Path(__file__).parents[2] / "crds"
MIB = 1 << 20


@pytest.mark.parametrize("model", KINDS)
def test_the_committed_file_is_what_the_models_say(model: type[Resource]) -> None:
    assert (COMMITTED / file_name(model)).read_text(encoding="utf-8") == render(model), "run `make crds`"


def test_the_command_writes_one_file_per_kind_and_nothing_else(tmp_path: Path) -> None:
    assert main([str(tmp_path / "crds")]) == 0
    assert sorted(path.name for path in (tmp_path / "crds").iterdir()) == sorted(file_name(model) for model in KINDS)
    assert sorted(path.name for path in COMMITTED.glob("*.yaml")) == sorted(file_name(model) for model in KINDS)
    assert main([]) == 2


@pytest.mark.parametrize("model", KINDS)
def test_the_yaml_reads_back_as_the_definition(model: type[Resource]) -> None:
    assert yaml.safe_load(render(model)) == definition(model)


@pytest.mark.parametrize("model", KINDS)
def test_client_side_apply_has_room_for_it(model: type[Resource]) -> None:
    # kubectl keeps a copy in an annotation; all annotations together may have 262,144 bytes.
    assert len(render(model)) < 200_000


def _nodes(schema: dict[str, Any], at: str = "") -> list[tuple[str, dict[str, Any]]]:
    found = [(at, schema)]
    for name, inner in schema.get("properties", {}).items():
        found += _nodes(inner, f"{at}.{name}")
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            found += _nodes(schema[word], f"{at}[]")
    return found


@pytest.mark.parametrize("model", KINDS)
def test_every_field_is_described_and_bounded_and_has_no_default(model: type[Resource]) -> None:
    for at, node in _nodes(structural(model)):
        if at.endswith(("metadata", "[]")) or at in ("", ".metadata.name"):
            continue
        assert node.get("description"), at
        assert "default" not in node, at
        assert "nullable" not in node, at
        for bound, shown in ((node.get("maxItems"), "items"), (node.get("maxProperties"), "entries")):
            if bound is not None and not at.endswith("triggers"):
                assert str(bound) in node["description"], f"{at}: {shown}"


def _largest(schema: dict[str, Any]) -> int:
    """Bytes of the longest JSON (ASCII) that fits the schema."""
    if "enum" in schema:
        return max(len(word) for word in schema["enum"]) + 2
    kind = schema["type"]
    if kind == "object":
        return 2 + sum(len(name) + 4 + _largest(inner) for name, inner in schema["properties"].items())
    if kind == "array":
        return 2 + int(schema["maxItems"]) * (1 + _largest(schema["items"]))
    return {"integer": 19, "boolean": 5}.get(kind) or schema["maxLength"] + 2


def test_a_full_status_has_at_most_64_kib() -> None:
    status = structural(KINDS[0])["properties"]["status"]
    assert set(status["properties"]) == {"observedGeneration", "conditions", "phase", "progress", "bestSpeedup", "targets"}
    assert _largest(status) <= 64 << 10
    assert TuningJobStatus.model_fields.keys() == {
        "observed_generation",
        "conditions",
        "phase",
        "progress",
        "best_speedup",
        "targets",
    }


def test_jobs_are_namespaced_and_what_admins_own_is_not() -> None:
    scopes = {definition(model)["spec"]["names"]["kind"]: definition(model)["spec"]["scope"] for model in KINDS}
    assert scopes == {"TuningJob": "Namespaced", "TunerRuntime": "Cluster", "TunerChannel": "Cluster", "ArtifactStore": "Cluster"}
    job = definition(KINDS[0])["spec"]
    assert job["names"]["shortNames"] == ["tj"]
    columns = [column["name"] for column in job["versions"][0]["additionalPrinterColumns"] if not column.get("priority")]
    assert columns == ["Ready", "Reason", "Phase", "Progress", "Speedup", "Age"]


class _Loop(Spec):
    again: _Loop | None = None


Text = Annotated[str, Field(max_length=9)]


@pytest.mark.parametrize(
    ("annotation", "default", "message"),
    [
        (str, ..., "string without a bound"),
        (int, ..., "integer without a lower bound"),
        (tuple[Text, ...], ..., "list without a bound"),
        (dict[str, Text], ..., "map without a bound"),
        (float, ..., "decimals are strings"),
        (dict[str, Any], ..., "object of unknown content"),
        (Annotated[dict[Text, Text], Field(max_length=2)], ..., "keys cannot be constrained"),
        (tuple[Text, Text], ..., "one kind of item"),
        (int | bool, ..., "union of 2 arms"),
        (int | str, ..., "string without a bound"),
        (_Loop, ..., "contains itself"),
        (Annotated[int, Field(ge=1)], 5, "default 5"),
        (Text, "a", "default 'a'"),
        (Annotated[int, Field(ge=1, multiple_of=2)], ..., "multipleOf has no place"),
    ],
)
def test_what_has_no_place_in_a_structural_schema_is_refused(annotation: Any, default: Any, message: str) -> None:
    spec = type("S", (Spec,), {"__annotations__": {"field": annotation}, "field": Field(default), "__module__": __name__})
    names = Naming(plural="things", scope="Cluster")
    annotations = {"kind": Literal["Thing"], "spec": spec, "status": spec | None, "naming": ClassVar[Naming]}
    body = {"__annotations__": annotations, "kind": "Thing", "status": None, "naming": names, "__module__": __name__}
    thing = type("Thing", (Resource,), {**body, "__doc__": "A thing."})
    with pytest.raises(NotStructural, match=message):
        structural(thing)
