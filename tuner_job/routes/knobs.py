"""The knob list: TensorRT's `all_build_routes` JSON, or the same form from another backend."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tuner_job.api.base import InputError, digest_of

_NAME = re.compile(r"-[!-<>-~]+")  # printable ASCII without space and `=`
_VALUE = re.compile(r"[!-Z^-{}~\\]+")  # printable ASCII without space, brackets and `|`
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_INTEGER_DOMAINS = frozenset({"int", "int32_t", "int64_t"})
_INT32 = range(-(2**31), 2**31)
_SHOWN_VALUES = 12


class UnknownKnob(InputError):
    """A name that the knob list does not have."""

    reason = "UnknownKnob"


class BadValue(InputError):
    """A value that the knob does not allow."""

    reason = "BadValue"


@dataclass(frozen=True, slots=True)
class Knob:
    """One named compiler option."""

    name: str
    """With its leading dash."""
    values: tuple[str, ...] | None
    """Allowed values in listed order; None for an unbounded knob, which is only searched when a user asks for it."""
    default: str
    help: str
    domain: str
    """What the list says after `=`: `[on|off]`, `int`, `[1|2|...]`."""

    def accepts(self, value: str) -> bool:
        """Whether the value may stand in a route.

        Unbounded: a plain decimal 32-bit integer (no `+`, no leading zeros); with `[1|2|...]` at least the first listed value,
        or the default. A domain that is neither an integer type nor such a range (`float`, say) takes any printable token
        but the domain's own name.
        """
        if self.values is not None:
            return value in self.values
        if not _VALUE.fullmatch(value) or value == self.domain:
            return False
        if self.domain in _INTEGER_DOMAINS or not self.domain:
            return _is_int32(value)
        if self.domain.startswith("["):
            first = self.domain.strip("[] ").split("|")[0].strip()
            return value == self.default or (_is_int32(value) and (not _is_int32(first) or int(value) >= int(first)))
        return True

    def check(self, value: str, where: str = "") -> None:
        """Raise BadValue, naming what is allowed, unless the value is accepted."""
        if not self.accepts(value):
            raise BadValue(f"{at(where)}{self.name}: {show(value)} is not allowed; allowed: {self.allowed}")

    @property
    def allowed(self) -> str:
        """What `accepts` accepts, for people."""
        if self.values is not None:
            shown = ", ".join(self.values[:_SHOWN_VALUES])
            return shown if len(self.values) <= _SHOWN_VALUES else f"{shown}, … ({len(self.values)} values)"
        if self.domain.startswith("["):
            return f"a decimal integer of {self.domain}, or {self.default or 'nothing else'}"
        if self.domain in _INTEGER_DOMAINS or not self.domain:
            return "a decimal integer"
        return f"a {self.domain}"


@dataclass(frozen=True)
class KnobList:
    """Every knob of one runtime on one device, in listed order."""

    tuner_version: str
    knobs: tuple[Knob, ...]
    missing: str = ""
    """Why there are no knobs; empty where there are some."""

    @cached_property
    def digest(self) -> str:
        """Names what can be set and to what: hex SHA-256 over version, names, domains and defaults (not help texts)."""
        return digest_of([self.tuner_version, [[k.name, k.domain, k.default] for k in self.knobs]])

    @cached_property
    def _index(self) -> dict[str, int]:
        return {knob.name: i for i, knob in enumerate(self.knobs)}

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(knob.name for knob in self.knobs)

    @property
    def bounded(self) -> tuple[Knob, ...]:
        return tuple(knob for knob in self.knobs if knob.values is not None)

    def __len__(self) -> int:
        return len(self.knobs)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def find(self, name: str, where: str = "") -> Knob:
        """The knob of that name; raises UnknownKnob with the nearest names. `where` opens the message."""
        if name in self._index:
            return self.knobs[self._index[name]]
        raise UnknownKnob(f"{at(where)}unknown knob {show(name)}{self.hint(name)}")

    def hint(self, name: str) -> str:
        """For a name that is not here: what is near, or why nothing is here."""
        return f": {self.missing}" if self.missing else suggest(name, self.names)

    def order(self, name: str) -> int:
        """Position of a known name."""
        return self._index[name]


def no_knobs(reason: str) -> str:
    """The JSON text of a runtime without a tuner: its builder settings and model variants can still be searched."""
    return json.dumps({"tuner_version": "none", "tuner_options": [], "missing": reason})


def parse_knob_list(text: str) -> KnobList:
    """Read the JSON text, as tolerantly as trtexec: fields of a wrong type are ignored, items without a usable name skipped.

    A knob whose listed values cannot be written in a route (spaces, say) counts as unbounded, so that one odd knob of a new
    version does not stop all tuning. Without knobs the text must say why (`no_knobs`). Raises InputError when it does not, is no
    JSON object or names a knob twice.
    """
    try:
        top = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"knob list: not JSON ({error})", reason="BadKnobList") from None
    if not isinstance(top, dict):
        raise InputError("knob list: not a JSON object", reason="BadKnobList")
    items = top.get("tuner_options")
    knobs: dict[str, Knob] = {}
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict):
            continue
        name = _text(item, "option").strip()
        if not _NAME.fullmatch(name):
            continue
        if name in knobs:
            raise InputError(f"knob list: {name} is listed twice", reason="BadKnobList")
        knobs[name] = _knob(name, _text(item, "allowed_values"), _text(item, "default_value").strip(), _text(item, "help"))
    if not knobs and (reason := _text(top, "missing")):
        return KnobList("none", (), reason)
    if not knobs:
        raise InputError("knob list: no knobs in it", reason="BadKnobList")
    return KnobList(_text(top, "tuner_version") or "unknown", tuple(knobs.values()))


def _knob(name: str, allowed: str, default: str, help_text: str) -> Knob:
    domain = allowed.removeprefix(f"{name}=").strip()
    values: tuple[str, ...] | None = None
    if domain.startswith("[") and domain.endswith("]") and "..." not in domain:
        values = tuple(dict.fromkeys(v for part in domain[1:-1].split("|") if (v := part.strip()))) or None
        if values is not None and not all(_VALUE.fullmatch(value) for value in values):
            values = None
    return Knob(name, values, default, " ".join(help_text.split()), domain)


def _text(item: dict[str, object], key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""


def _is_int32(value: str) -> bool:
    return len(value) <= 11 and _INTEGER.fullmatch(value) is not None and int(value) in _INT32


def suggest(name: str, names: Iterable[str]) -> str:
    """`; nearest: -a, -b`, or a hint to list the knobs when nothing is near."""
    near = nearest(name, names)
    return f"; nearest: {', '.join(near)}" if near else "; `trtfleet knobs` lists what there is"


def nearest(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """At most three names that look like `name`, the likest first."""
    folded = {n.casefold().lstrip("-"): n for n in reversed(tuple(names))}
    return tuple(folded[n] for n in difflib.get_close_matches(name.casefold().lstrip("-"), folded, n=3, cutoff=0.6))


def show(text: str) -> str:
    """Foreign text for one line of a message: quoted, ASCII, at most about 80 characters."""
    quoted = ascii(text)
    return quoted if len(quoted) <= 80 else f"{quoted[:76]}...'"


def at(where: str) -> str:
    return f"{where}: " if where else ""
