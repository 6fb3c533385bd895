"""Arguments and options that commands share, and how they answer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console

from tuner_job.cli.jobfile import JobFile

F = TypeVar("F", bound=Callable[..., object])

FOLDER = Path("trtfleet-out")

WIDTH = 160
"""Columns of tables that go into a file or pipe."""


class Output:
    """Text for people on one hand, one JSON document on standard output on the other."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(stderr=as_json, highlight=False)
        if not self.console.is_terminal and "COLUMNS" not in os.environ:
            self.console.width = WIDTH

    def print(self, text: str) -> None:
        """A line for people; silent under --json."""
        if not self.as_json:
            click.echo(text)

    def print_json(self, answer: object) -> None:
        """The answer for programs; silent without --json."""
        if self.as_json:
            click.echo(json.dumps(answer, indent=2, ensure_ascii=False))


def output_option(command: F) -> F:
    """`--json`, as the parameter `output`."""

    def made(_context: click.Context, _parameter: click.Parameter, value: bool) -> Output:
        return Output(value)

    return click.option("--json", "output", is_flag=True, callback=made, help="Answer with one JSON document.")(command)


def job_argument(command: F) -> F:
    """`JOB.yaml` and `--job`, as the parameter `jobfile`."""

    def load(context: click.Context, _parameter: click.Parameter, value: Path) -> JobFile:
        return JobFile.load(value, context.meta.get("job_name"))

    def keep(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        context.meta["job_name"] = value

    argument = click.argument("jobfile", metavar="JOB.yaml", type=click.Path(path_type=Path), callback=load)
    option = click.option(
        "--job", "job_name", metavar="NAME", is_eager=True, expose_value=False, help="Which TuningJob of the file.",
        callback=keep,
    )  # fmt: skip
    return argument(option(command))


target_option = click.option("--target", "target_name", metavar="NAME", help="Which target of the job.")
store_option = click.option("--store", "store_url", metavar="URL", help="Use this store instead of the job's storeRef.")
folder_option = click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), default=FOLDER, show_default=True,
    help="Where reports, logs, scratch files and the store named `local` go.",
)  # fmt: skip
