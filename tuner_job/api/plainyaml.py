"""YAML text → plain data, with the line of every value.

Kubernetes reads YAML 1.1, where `on`, `y` or `0x10` are not what they look like. Scalars that another parser would take otherwise
are mistakes here, answered with the advice to quote them, so that a file means the same here and on a cluster.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import yaml

from tuner_job.api.base import InputError

MAX_BYTES = 1 << 18
"""Longest text that is read."""
MAX_VALUES = 50_000
"""Values in one document after its aliases are written out."""
MAX_DEPTH = 32

Path = tuple[str | int, ...]
"""Field names and list indices from the root of a document."""

_TAG = "tag:yaml.org,2002:"
_LETTERS = re.compile(r"^[yYnN]$")
_INTEGER = re.compile(r"^[-+]?(0|[1-9][0-9]{0,17})$")
_NUMBER = re.compile(r"^[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)([eE][-+]?[0-9]+)?$")
_DECIMAL = re.compile(r"^[-+]?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?$")


@dataclass(frozen=True)
class Mistake:
    """Something that cannot be taken as written."""

    path: Path
    line: int
    message: str


@dataclass
class PlainDocument:
    """One document of a file."""

    data: object = None
    """dict, list, str, int, float, bool; never None inside."""
    lines: dict[Path, int] = field(default_factory=dict)
    """Line of each value, from 1."""
    mistakes: list[Mistake] = field(default_factory=list)


def parse(text: str, where: str) -> list[PlainDocument]:
    """The documents that are not empty. Raises InputError, naming `where` and the line, if `text` is too much or no YAML."""
    size = len(text.encode(errors="replace"))
    if size > MAX_BYTES:
        raise InputError(f"{where}: {size} bytes; a file of resources has at most {MAX_BYTES}")
    documents = []
    try:
        _check_depth(text, where)
        for root in yaml.compose_all(text, Loader=yaml.SafeLoader):
            if root.tag != _TAG + "null":
                document = PlainDocument()
                document.data = _Reader(document, where).read(root, ())
                documents.append(document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(f"{where}:{mark.line + 1 if mark else '?'}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not YAML: {error}") from None
    return documents


def _check_depth(text: str, where: str) -> None:
    """The parser of events does not recurse; all that comes after it does."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise InputError(f"{where}:{_line(event)}: nested deeper than {MAX_DEPTH} levels")


def _line(of: yaml.Node | yaml.Event) -> int:
    return of.start_mark.line + 1 if of.start_mark else 0


class _Reader:
    def __init__(self, document: PlainDocument, where: str) -> None:
        self._document = document
        self._where = where
        self._values = 0
        self._open: set[int] = set()

    def read(self, node: yaml.Node, path: Path) -> object:
        self._document.lines.setdefault(path, _line(node))
        self._values += 1
        if self._values > MAX_VALUES:
            raise InputError(f"{self._where}: more than {MAX_VALUES} values in a document once its aliases are written out")
        if id(node) in self._open:
            raise InputError(f"{self._where}:{_line(node)}: an alias inside its own anchor")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
                return [self.read(each, (*path, index)) for index, each in enumerate(node.value)]
            if isinstance(node, yaml.ScalarNode):
                return self._scalar(node, path)
        finally:
            self._open.remove(id(node))
        self._mistake(node, path, f"YAML tag {node.tag} is not supported; write plain values")
        return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key in found:
                self._mistake(key_node, (*path, key), "written twice; remove one")
            elif key is not None:
                self._document.lines[(*path, key)] = _line(key_node)
                found[key] = self.read(value_node, (*path, key))
        return found

    def _key(self, node: yaml.Node, path: Path) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._mistake(node, path, "a field's name must be text")
            return None
        if node.tag == _TAG + "merge":
            self._mistake(node, path, "`<<` is not supported; write the fields out")
            return None
        before = len(self._document.mistakes)
        key = self._scalar(node, path)
        if isinstance(key, str):
            return key
        if len(self._document.mistakes) == before:
            self._mistake(node, path, f'`{node.value}` as a name is not text; write "{node.value}" in quotes')
        return None

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> object:
        text, tag, plain = node.value, node.tag.removeprefix(_TAG), node.style is None
        if tag == "null":
            self._mistake(node, path, "empty; give a value or leave the field out")
            return None
        if tag == "bool" or (plain and _LETTERS.match(text)):
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
            self._mistake(node, path, f'unquoted `{text}` means true or false to Kubernetes; write "{text}" in quotes')
            return None
        if tag == "int" and _INTEGER.match(text):
            return int(text)
        if tag in ("int", "float") or (plain and tag == "str" and _NUMBER.match(text)):
            if _NUMBER.match(text) and _DECIMAL.match(text) and math.isfinite(float(text)):
                return float(text)
            self._mistake(node, path, f'`{text}` is a number that parsers read differently; write "{text}" in quotes')
            return None
        if tag in ("str", "timestamp"):
            return text
        self._mistake(node, path, f"YAML tag {node.tag} is not supported; write plain values")
        return None

    def _mistake(self, node: yaml.Node, path: Path, message: str) -> None:
        self._document.mistakes.append(Mistake(path, _line(node), message))
