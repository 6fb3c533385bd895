"""What the library says while it works, kept for the reason of a failure.

No error recorder is set: without one every error goes to the logger as well as to the caller, and one place is enough.
"""

from __future__ import annotations

import re
import sys
from typing import Any

_MOST = 400
"""Characters of one message."""
_FIRST, _LAST = 6, 3
"""Messages that are kept from either end: the first names the cause, the last what came of it."""

_WHERE = re.compile(
    r"^\[[\w.]+::[\w()]+::\d+\] |^\w+\.(?:cpp|hpp|h):\d+: |"  # [file.cpp::function::12] and file.cpp:12: at the start
    r" ?\bIn [\w()]+ at /\S+:\d+(?= |\)|$)"  # In function at /path/file.cpp:12
)
_NOISE = re.compile(r"\[checkMacros\.cpp::catchCudaError::\d+\] Error Code 1: Cuda Runtime \(In .*?\(cudaError \d+: [^)]*\)\)")
"""Follows every error where there is no GPU, and is never the cause."""
_OUT_OF_MEMORY = re.compile(r"out ?of ?memory|could not be allocated|failed to allocate|FAILED_ALLOCATION", re.IGNORECASE)


class Log:
    """Errors and warnings since `clear`, each once; they go to standard error too."""

    def __init__(self, module: Any) -> None:
        self._errors = _Kept()
        self._warnings = _Kept()
        log = self

        class Logger(module.ILogger):  # type: ignore[misc]  # the module has no types
            def __init__(self) -> None:
                module.ILogger.__init__(self)

            def log(self, severity: Any, message: str) -> None:
                log.add(severity.name, message)

        self.logger: Any = Logger()
        """For the library. Called from any of its threads."""

    def add(self, severity: str, message: str) -> None:
        """`severity` as the library names it."""
        kept = {"INTERNAL_ERROR": self._errors, "ERROR": self._errors, "WARNING": self._warnings}.get(severity)
        if kept is None:
            return
        line = one_line(message)
        (self._warnings if _NOISE.fullmatch(" ".join(message.split())) else kept).add(line)
        sys.stderr.write(f"[{severity.lower().replace('_', ' ')}] {line}\n")

    def clear(self) -> None:
        self._errors.clear()
        self._warnings.clear()

    def errors(self) -> list[str]:
        return self._errors.lines()

    def text(self) -> str:
        """One line: the errors, or the warnings where there are none; "" when all was quiet."""
        return self._errors.text() or self._warnings.text()

    @property
    def short_of_memory(self) -> bool:
        """Whether an error says that memory, of host or device, ran out."""
        return any(_OUT_OF_MEMORY.search(line) for line in self._errors.lines())


class _Kept:
    def __init__(self) -> None:
        self._first: list[str] = []
        self._last: list[str] = []
        self._left_out = 0

    def add(self, line: str) -> None:
        if line in self._first or line in self._last:
            return
        if len(self._first) < _FIRST:
            self._first.append(line)
            return
        self._last.append(line)
        if len(self._last) > _LAST:
            self._last.pop(0)
            self._left_out += 1

    def clear(self) -> None:
        self._first, self._last, self._left_out = [], [], 0

    def lines(self) -> list[str]:
        return [*self._first, *self._last]

    def text(self) -> str:
        more = [f"… ({self._left_out} more)"] if self._left_out else []
        return "; ".join([*self._first, *more, *self._last])


def one_line(message: str) -> str:
    """A message without line breaks and source locations, at most 400 characters."""
    whole = " ".join(message.split())
    text = _WHERE.sub("", _NOISE.sub("", whole).strip() or whole).replace("( (", "(").strip()
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"
