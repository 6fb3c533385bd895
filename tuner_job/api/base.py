"""The base of every model that crosses a boundary, and the errors that a person reads."""

from __future__ import annotations

import hashlib
import json
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

GROUP = "trtfleet.dev"
VERSION = "v1alpha1"


class TrtfleetError(Exception):
    """A failure that a person caused or can mend. `str()` is one line: what, where, what to do.

    `reason` is a stable CamelCase word (condition reasons and `--json` carry it).
    """

    reason = "Failed"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(" ".join(message.split()))
        if reason is not None:
            self.reason = reason


class InputError(TrtfleetError):
    """Something that the user wrote or supplied is wrong; retrying cannot help."""

    reason = "InvalidInput"


class Model(BaseModel):
    """Immutable, camelCase on the wire, unknown fields refused, non-finite floats refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    def to_json(self) -> bytes:
        """Canonical UTF-8 JSON: sorted keys, no spaces, unset optionals left out. Equal models give equal bytes."""
        return canonical_json(self.model_dump(mode="json", by_alias=True, exclude_none=True))

    @classmethod
    def from_json(cls, data: bytes | str, *, where: str = "") -> Self:
        """Parse and validate; raises InputError naming `where` and the first wrong field."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise InputError(f"{where or cls.__name__}: {first_problem(error)}") from None


def canonical_json(value: object) -> bytes:
    """The one JSON form that digests are taken over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: object) -> str:
    """Lower-case hex SHA-256 of the canonical JSON of plain data, or of bytes as they are."""
    return hashlib.sha256(value if isinstance(value, bytes) else canonical_json(value)).hexdigest()


MOST_PROBLEMS = 1000
"""That are looked at: each costs half a kilobyte, and somebody may have written a million."""


def first_problem(error: ValidationError) -> str:
    """`field.path: message`, with a count of the others."""
    if error.error_count() > MOST_PROBLEMS:
        return f"(whole): {error.error_count()} values are wrong"
    problems = error.errors(include_url=False)
    first = problems[0]
    path = ".".join(str(part) for part in first["loc"]) or "(whole)"
    rest = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{path}: {first['msg']}{rest}"
