"""The report: one HTML file that needs nothing else. Names, reasons and logs in it are foreign text, so everything is escaped,
and a content security policy lets nothing load and no script run but the page's own."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from tuner_job import __version__
from tuner_job.api.base import InputError
from tuner_job.campaign.reader import RunReader
from tuner_job.report.data import Page, page_of
from tuner_job.report.words import interval_text, latency_text, plain_text, seconds_text

TEMPLATE = "page.html.j2"
SCRIPT = "page.js"
STYLE = "page.css"


def write_report(reader: RunReader, path: Path) -> Path:
    """Write the page of a run, at whatever stage it is, and return where it is. An older page is replaced at once or not at all.

    Raises InputError when there is no such run, a record is poisoned, or `path` cannot be written.
    """
    return write_page(page_of(reader), path)


def write_page(page: Page, path: Path) -> Path:
    """As write_report, for a page that was read before."""
    data = render(page).encode("utf-8", errors="replace")
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(data)
        aside.replace(path)
    except OSError as error:
        raise InputError(f"{path}: the report cannot be written: {error.strerror}; choose another place with -o") from None
    finally:
        _discard(aside)
    return path


def render(page: Page) -> str:
    """The whole page."""
    # Both libraries belong to the extra `cli`: workers, which import this package's neighbours, do without them.
    from jinja2 import Environment, StrictUndefined

    from tuner_job.report.plots import all_plots

    here = files("tuner_job.report")
    script = here.joinpath(SCRIPT).read_text("utf-8")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain_text(value) if type(value) is str else value,
    )
    environment.filters |= {
        "percent": _percent,
        "latency": _optional(lambda value: latency_text(value, page.baseline_seconds)),
        "layer": _optional(_layer_text),
        "duration": _optional(seconds_text),
        "interval": interval_text,
        "loss": _optional(lambda value: f"{value:.3g}"),
    }
    template = environment.from_string(here.joinpath(TEMPLATE).read_text("utf-8"))
    return template.render(
        page=page,
        story=page.story,
        plots=all_plots(page),
        script=script,
        style=here.joinpath(STYLE).read_text("utf-8"),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
    )


def _percent(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{round(value, digits + 2) + 0.0:+.{digits}%}"


def _layer_text(seconds: float) -> str:
    """In microseconds, as layers are."""
    return f"{seconds * 1e6:,.1f} µs"


def _optional(show: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "" if value is None else show(value)


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # its folder is no folder, or not ours: nothing was written there
        return
