"""What every resource is made of: bounded scalars, keyed lists, rules that hold in Python and in CEL alike.

No field has a default on the server: absent stays absent, and `effective` writes the value that counts into `run.json`. So a
Python default is always the empty value (None, no entries, False), which is the same as leaving the field out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tuner_job.api.base import GROUP, VERSION, Model

API_VERSION = f"{GROUP}/{VERSION}"

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DIGEST = r"^sha256:[0-9a-f]{64}$"
_POSITIVE = r"^([0-9]{0,9}[1-9][0-9]{0,9}(\.[0-9]{1,15})?|[0-9]{1,9}\.[0-9]{0,15}[1-9][0-9]{0,15})(e-?[0-9]{1,2})?$"
_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
_RFC3339 = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"

Name = Annotated[str, Field(min_length=1, max_length=63, pattern=f"^{_LABEL}$")]
"""DNS label, at most 63 characters."""
DottedName = Annotated[str, Field(min_length=1, max_length=63, pattern=rf"^{_LABEL}(\.{_LABEL})*$")]
"""DNS subdomain of at most 63 characters, for names that carry a version (`tensorrt-11.2.1`)."""
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=rf"^{_LABEL}(\.{_LABEL})*$")]
"""Name of a Kubernetes object of another kind."""
Word = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x20]+$")]
"""No spaces or control characters: knob names, knob values, globs, tensor names."""
Uri = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f]+$")]
"""A URI, or a path relative to the file that names it (local runs only)."""
ContentDigest = Annotated[str, Field(max_length=71, pattern=_DIGEST)]
"""`sha256:` and 64 lower-case hex digits."""
PositiveDecimal = Annotated[str, Field(max_length=32, pattern=_POSITIVE)]
"""A decimal above 0 as a string: `"0.001"`, `"1e-5"`."""
Fraction = Annotated[str, Field(max_length=32, pattern=r"^0(\.[0-9]{1,15})?$")]
"""A decimal of at least 0 and below 1 as a string."""
Quantity = Annotated[int, Field(ge=0)] | Annotated[str, Field(max_length=32, pattern=_QUANTITY)]
"""A Kubernetes quantity: `4`, `"500m"`, `"16Gi"`."""
Time = Annotated[str, Field(max_length=20, pattern=_RFC3339, json_schema_extra={"format": "date-time"})]
"""RFC 3339 in UTC, whole seconds."""
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]
Labels = Annotated[dict[str, LabelValue], Field(max_length=32)]


@dataclass(frozen=True)
class Rule:
    """One CEL rule of a model, beside the Python predicate of the same meaning."""

    cel: str
    message: str
    """What is wrong and what to do, one line."""
    field_path: str = ""
    """The field at fault, relative to the model (`.gpu`)."""
    holds: Callable[[Any], bool] | None = None  # Any: the predicate takes the model that declares it
    """None for a transition rule (`oldSelf`), which only a server that knows the old object can judge."""

    def schema(self) -> dict[str, str]:
        """Its entry in `x-kubernetes-validations`."""
        path = {"fieldPath": self.field_path} if self.field_path else {}
        return {"rule": self.cel, "message": self.message, **path}


M = TypeVar("M")


def rule(cel: str, message: str, *, field_path: str = "") -> Callable[[Callable[[M], bool]], Callable[[M], bool]]:
    """Declare a method of a Spec as the Python side of a CEL rule; the method returns whether the rule holds."""

    def mark(predicate: Callable[[M], bool]) -> Callable[[M], bool]:
        predicate.__rule__ = Rule(cel, message, field_path, predicate)  # type: ignore[attr-defined]
        return predicate

    return mark


class Spec(Model):
    """A part of a resource. Its rules reach the CRD as `x-kubernetes-validations` and are enforced here too."""

    transitions: ClassVar[tuple[Rule, ...]] = ()
    """Rules about a change, which no Python predicate can judge."""
    rules: ClassVar[tuple[Rule, ...]] = ()
    """All of them, in order of declaration; collected when the class is made."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        own = [getattr(member, "__rule__", None) for member in vars(cls).values()]
        cls.rules = (*cls.rules, *(each for each in own if isinstance(each, Rule)), *vars(cls).get("transitions", ()))

    @model_validator(mode="after")
    def _obey_rules(self) -> Self:
        for each in self.rules:
            if each.holds is not None and not each.holds(self):
                raise PydanticCustomError("rule", "{message}", {"message": each.message, "field_path": each.field_path})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        reference = handler(core)
        declared = [each.schema() for each in cls.rules]
        if declared:
            handler.resolve_ref_schema(reference)["x-kubernetes-validations"] = declared
        return reference


@dataclass(frozen=True)
class Keyed:
    """Marks a list that the API server merges by key: bounded, keys unique."""

    most: int
    least: int = 0
    key: str = "name"

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        bounds = {"maxItems": self.most, **({"minItems": self.least} if self.least else {})}
        schema.update(bounds | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]})
        return schema

    def _check(self, entries: Sequence[object]) -> Sequence[object]:
        return _bounded(entries, self.least, self.most, [getattr(entry, self.key) for entry in entries], self.key)


@dataclass(frozen=True)
class Distinct:
    """Marks a list of scalars that the API server treats as a set: bounded, without repeats."""

    most: int

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        schema.update({"maxItems": self.most, "x-kubernetes-list-type": "set"})
        return schema

    def _check(self, entries: Sequence[object]) -> Sequence[object]:
        return _bounded(entries, 0, self.most, entries, "entry")


def _bounded(entries: Sequence[object], least: int, most: int, keys: Sequence[object], word: str) -> Sequence[object]:
    if not least <= len(entries) <= most:
        raise PydanticCustomError("bounds", "{n} entries; between {least} and {most} are allowed",
                                  {"n": len(entries), "least": least, "most": most})  # fmt: skip
    repeated = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
    if repeated is not None:
        raise PydanticCustomError("repeated", "two entries have the {word} `{key}`", {"word": word, "key": str(repeated)})
    return entries


class Reference(Spec):
    """Names another resource."""

    name: DottedName
    """Its `metadata.name`, at most 63 characters."""


class Metadata(Model):
    """Kubernetes object metadata. Only `name`, `namespace`, `labels` and `annotations` are for people to write."""

    name: DottedName
    """At most 63 characters."""
    namespace: Name | None = None
    """Absent on cluster-scoped kinds; a local run takes `default`."""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    generation: int = 0
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    generate_name: str | None = None
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[dict[str, object], ...] = ()
    managed_fields: tuple[dict[str, object], ...] = ()
    self_link: str | None = None


class JobMetadata(Metadata):
    """Metadata of a TuningJob, whose name becomes part of host names and store keys."""

    name: Name
    """DNS label, at most 63 characters."""


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    type: Literal["string", "integer", "date"] = "string"
    wide: bool = False
    """Shown only by `-o wide`."""
    description: str = ""


@dataclass(frozen=True)
class Naming:
    """How the API server knows a kind."""

    plural: str
    scope: Literal["Namespaced", "Cluster"]
    short_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    selectable: tuple[str, ...] = ()
    """JSON paths that field selectors may use."""
    categories: tuple[str, ...] = field(default=("tuning",))


class Resource(Model):
    """A whole object. Subclasses add `kind`, `spec` and `status`."""

    naming: ClassVar[Naming]

    api_version: Literal["trtfleet.dev/v1alpha1"] = "trtfleet.dev/v1alpha1"
    metadata: Metadata

    @property
    def name(self) -> str:
        return self.metadata.name


READY_COLUMNS = (
    Column("Ready", '.status.conditions[?(@.type=="Ready")].status', description="Whether the object serves its purpose now"),
    Column("Reason", '.status.conditions[?(@.type=="Ready")].reason', description="Why, as one stable word"),
)
AGE_COLUMN = Column("Age", ".metadata.creationTimestamp", "date")
