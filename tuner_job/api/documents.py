"""Resources as people write them: a YAML file of several documents, each mistake answered by one line."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tuner_job.api.artifactstore import ArtifactStore
from tuner_job.api.base import InputError
from tuner_job.api.crd import KINDS, Schema, kind_of, structural
from tuner_job.api.plainyaml import Path, PlainDocument, parse
from tuner_job.api.resource import API_VERSION, Resource
from tuner_job.api.runtime import TunerChannel, TunerRuntime
from tuner_job.api.tuningjob import Target, TuningJob

_MODELS = {kind_of(model): model for model in KINDS}

R = TypeVar("R", bound=Resource)


class InvalidDocuments(InputError):
    """Mistakes in resources. `str()` is the first of `problems`, with a count of the others."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(" ".join(problem.split()) for problem in problems)
        rest = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(self.problems[0] + rest)


@dataclass(frozen=True)
class Documents:
    """The resources of a file, in its order."""

    jobs: tuple[TuningJob, ...] = ()
    runtimes: tuple[TunerRuntime, ...] = ()
    stores: tuple[ArtifactStore, ...] = ()
    channels: tuple[TunerChannel, ...] = ()

    def job(self, name: str) -> TuningJob:
        """Raises InputError naming the nearest job."""
        return _named(self.jobs, "TuningJob", name)

    def runtime(self, name: str) -> TunerRuntime:
        """Raises InputError naming the nearest runtime."""
        return _named(self.runtimes, "TunerRuntime", name)

    def store(self, name: str) -> ArtifactStore:
        """Raises InputError naming the nearest store."""
        return _named(self.stores, "ArtifactStore", name)

    def channel(self, name: str) -> TunerChannel:
        """Raises InputError naming the nearest channel."""
        return _named(self.channels, "TunerChannel", name)

    def runtime_of(self, job: TuningJob, target: Target) -> TunerRuntime:
        """What the target's runtimeRef names or its channelRef points to. Raises InputError naming the field."""
        where = f"TuningJob {job.name}: spec.targets[{target.name}]"
        try:
            if target.runtime_ref is not None:
                where += ".runtimeRef"
                return self.runtime(target.runtime_ref.name)
            assert target.channel_ref is not None  # a rule of Target
            where += ".channelRef"
            return self.runtime(self.channel(target.channel_ref.name).spec.runtime_ref.name)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def store_of(self, job: TuningJob) -> ArtifactStore:
        """What the job's storeRef names. Raises InputError naming the field."""
        try:
            return self.store(job.spec.store_ref.name)
        except InputError as error:
            raise InputError(f"TuningJob {job.name}: spec.storeRef: {error}") from None


def load_documents(text: str, where: str) -> Documents:
    """Parse and validate every document of `text`; `where` (a file name) begins each line.

    Raises InvalidDocuments with a line for each mistake: document, field path, what is wrong, what to do.
    """
    problems: list[str] = []
    resources: list[Resource] = []
    for document in parse(text, where):
        source = _Source(where, document)
        problems += [source.problem(each.path, each.message, each.line) for each in document.mistakes]
        if document.mistakes:
            continue
        try:
            resources.append(_resource(source))
        except InvalidDocuments as error:
            problems += error.problems
    seen: set[tuple[str, str]] = set()
    for resource in resources:
        identity = (kind_of(type(resource)), resource.name)
        if identity in seen:
            problems.append(f"{where}: two documents are {' '.join(identity)}; remove or rename one")
        seen.add(identity)
    if problems:
        raise InvalidDocuments(problems)
    if not resources:
        raise InputError(f"{where}: holds no document; write a TuningJob")
    return Documents(
        jobs=tuple(each for each in resources if isinstance(each, TuningJob)),
        runtimes=tuple(each for each in resources if isinstance(each, TunerRuntime)),
        stores=tuple(each for each in resources if isinstance(each, ArtifactStore)),
        channels=tuple(each for each in resources if isinstance(each, TunerChannel)),
    )


def parse_resource(raw: Mapping[str, object], where: str) -> Resource:
    """Validate one resource as plain data (what an API server returns). Raises InvalidDocuments."""
    return _resource(_Source(where, PlainDocument(dict(raw))))


@dataclass(frozen=True)
class _Source:
    """Where a resource came from, to begin its lines with."""

    where: str
    document: PlainDocument

    def problem(self, path: Path, message: str, line: int | None = None) -> str:
        lines = self.document.lines
        at = line or next((lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines), None)
        parts = [
            self.where if at is None else f"{self.where}:{at}",
            _title(self.document.data),
            _dotted(path, self.document.data),
        ]
        return ": ".join([*(part for part in parts if part), message])


def _resource(source: _Source) -> Resource:
    data = source.document.data
    if not isinstance(data, dict):
        raise InvalidDocuments([source.problem((), "not a resource; it must begin with apiVersion and kind")])
    kind, version = data.get("kind"), data.get("apiVersion")
    model = _MODELS.get(kind) if isinstance(kind, str) else None
    if model is None:
        wrong = "kind is missing" if kind is None else f"kind {kind} is unknown"
        raise InvalidDocuments([source.problem(("kind",), f"{wrong}; {_advice(str(kind), _MODELS)}")])
    if version != API_VERSION:
        wrong = "apiVersion is missing" if version is None else f"apiVersion {version} is unknown"
        raise InvalidDocuments([source.problem(("apiVersion",), f"{wrong}; write {API_VERSION}")])
    nulls = [source.problem(path, "empty; give a value or leave the field out") for path in _nulls(data, ())]
    if nulls:
        raise InvalidDocuments(nulls)
    try:
        resource = model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        schema = _schema(model)
        found = [_explain(source, each, schema) for each in error.errors(include_url=False) if not _follows(each)]
        raise InvalidDocuments(list(dict.fromkeys(found))) from None
    except ValueError as error:
        raise InvalidDocuments([source.problem((), str(error))]) from None
    if model.naming.scope == "Cluster" and resource.metadata.namespace is not None:
        raise InvalidDocuments(
            [source.problem(("metadata", "namespace"), f"a {kind} belongs to the whole cluster; leave it out")]
        )
    return resource


_schema = cache(structural)


def _nulls(value: object, path: Path) -> Iterator[Path]:
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _nulls(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _nulls(inner, (*path, index))


def _explain(source: _Source, error: ErrorDetails, schema: Schema) -> str:
    context, written, kind = error.get("ctx", {}), error["input"], error["type"]
    path = _written_path(error, source.document.data)
    here = _at(schema, path)
    if kind == "extra_forbidden":
        return source.problem(path, f"unknown field; {_field_advice(schema, path)}")
    if kind == "missing":
        names = here.get("enum")
        return source.problem(path, "required field is missing" + (f"; one of {', '.join(names)}" if names else ""))
    if kind == "rule":
        return source.problem((*path, *(part for part in str(context["field_path"]).split(".") if part)), error["msg"])
    if here.get("x-kubernetes-int-or-string"):
        return source.problem(path, f"`{_short(written)}` is no quantity; write 4, 500m or 16Gi")
    if kind == "string_type" and isinstance(written, bool | int | float):
        shown = json.dumps(written)
        word = "true or false" if isinstance(written, bool) else "a number"
        return source.problem(path, f'{shown} is {word}, but text is wanted; write "{shown}" in quotes')
    if kind == "literal_error" and isinstance(written, str):
        allowed = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        return source.problem(path, f"`{_short(written)}` is not allowed; {_advice(written, allowed)}")
    if kind in ("list_type", "tuple_type"):
        return source.problem(path, f"a list is wanted; write [{_short(json.dumps(written))}]")
    if kind == "too_short":
        return source.problem(path, f"{len(written)} entries; at least {context['min_length']} are needed")
    if kind == "too_long":
        return source.problem(path, f"{len(written)} entries; at most {context['max_length']} are allowed")
    if kind == "string_pattern_mismatch":
        if str(here.get("pattern", "")).startswith("^sha256:"):
            return source.problem(path, f"`{_short(written)}` has the wrong form; write sha256: and 64 lower-case hex digits")
        about = str(here.get("description", "")).rstrip(".")
        return source.problem(path, f"`{_short(written)}` has the wrong form" + (f" ({about})" if about else ""))
    shown = "" if isinstance(written, dict | list) else f" (it is {_short(json.dumps(written))})"
    return source.problem(path, error["msg"][:1].lower() + error["msg"][1:] + shown)


def _follows(error: ErrorDetails) -> bool:
    """Whether it only repeats that entries of a list were refused."""
    return error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]


def _written_path(error: ErrorDetails, data: object) -> Path:
    """Pydantic's location without the names of union arms and validators in it."""
    path: Path = ()
    for part in error["loc"]:
        if _has(data, (*path, part)):
            path = (*path, part)
    return (*path, error["loc"][-1]) if error["type"] == "missing" else path


def _field_advice(schema: Schema, path: Path) -> str:
    name, siblings = str(path[-1]), _at(schema, path[:-1]).get("properties", {})
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    spec = schema["properties"]["spec"]
    elsewhere = next((found for found in _paths(spec, "spec") if found.endswith(f".{name}")), None)
    if elsewhere:
        return f"it belongs to {elsewhere}"
    return f"known here: {', '.join(siblings)}" if siblings else "nothing is allowed here"


def _advice(word: str, known: Mapping[str, object] | Sequence[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else f"write one of {', '.join(known)}"


def _at(schema: Schema, path: Path) -> Schema:
    """The schema of a field, or of nothing."""
    for part in path:
        inner = (
            schema.get("items")
            if isinstance(part, int)
            else schema.get("properties", {}).get(part, schema.get("additionalProperties"))
        )
        if not isinstance(inner, dict):
            return {}
        schema = inner
    return schema


def _paths(schema: Schema, at: str) -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        path = f"{at}.{name}"
        yield path
        yield from _paths(inner, path)
    if isinstance(schema.get("items"), dict):
        yield from _paths(schema["items"], f"{at}[]")


def _inner(data: object, part: str | int) -> object:
    """The value under a name or index, or None."""
    if isinstance(data, dict):
        return data.get(part)
    return data[part] if isinstance(data, list) and isinstance(part, int) and part < len(data) else None


def _has(data: object, path: Path) -> bool:
    """Whether there is a value at the path (values are never None)."""
    for part in path:
        data = _inner(data, part)
    return data is not None


def _dotted(path: Path, data: object) -> str:
    """`spec.targets[l40s].device`: entries of keyed lists by name."""
    out = ""
    for part in path:
        data = _inner(data, part)
        if isinstance(part, int):
            name = data.get("name") if isinstance(data, dict) else None
            out += f"[{name if isinstance(name, str) else part}]"
        else:
            out += f".{part}" if out else part
    return out


def _title(data: object) -> str:
    """`TuningJob demo`, or as much of it as is there."""
    if not isinstance(data, dict):
        return ""
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return " ".join(part for part in (data.get("kind"), name) if isinstance(part, str))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _named(resources: Sequence[R], kind: str, name: str) -> R:
    found = next((each for each in resources if each.name == name), None)
    if found is None:
        names = [each.name for each in resources]
        raise InputError(f"no {kind} is named {name}; " + (_advice(name, names) if names else f"there is no {kind} at all"))
    return found
