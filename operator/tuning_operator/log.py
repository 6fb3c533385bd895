"""Log lines: one JSON object each on stderr, saying which TuningJob and which reconcile they are about.

Other libraries' loggers stay at WARNING whatever the configured level: on DEBUG the Kubernetes client writes bodies and
authorization headers, and kopf a line for each event.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

TAMED = ("kopf", "kubernetes", "aiohttp", "asyncio", "urllib3")

_about: ContextVar[dict[str, str | int] | None] = ContextVar("about", default=None)


@contextmanager
def about(**fields: str | int) -> Iterator[None]:
    """Fields of every line that is logged meanwhile by this task, and by the threads that it waits for."""
    token = _about.set({**(_about.get() or {}), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def also_about(**fields: str | int) -> None:
    """More fields for the innermost `about`, known only now."""
    known = _about.get()
    if known is not None:
        known.update(fields)


class JsonLines(logging.Formatter):
    """`{"time", "level", "logger", "message", …about, "traceback"?}`; never more than one line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, str | int] = {"time": at, "level": record.levelname.lower(), "logger": record.name}
        line["message"] = record.getMessage()
        line |= _about.get() or {}
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up(level: str) -> None:
    """Send every logger of the process to stderr as JSON. `level` is DEBUG, INFO, WARNING or ERROR."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in TAMED:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)
