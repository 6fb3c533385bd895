"""The moving part of the terminal during a run: one bar with what is happening, the best so far, and the time left."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tuner_job.api.base import TrtfleetError
from tuner_job.api.messages import RunRecord
from tuner_job.campaign.progress import progress
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.worker import Stage
from tuner_job.report.words import outcomes_text, seconds_text

REFRESH_SECONDS = 1.0
LINE_SECONDS = 10.0
"""Where there is no terminal, a line so often, when something changed."""

_WHAT = {"discover": "discovering", "explore": "exploring", "final": "proving"}


class LiveRun:
    """Call it at every tick of the executor."""

    def __init__(self, console: Console, reader: RunReader, run: RunRecord, workers: int) -> None:
        self._console = console
        self._reader = reader
        self._run = run
        self._workers = workers
        self._looked = 0.0
        self._said = ("", 0.0)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=run.inputs.search.max_trials, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def tick(self, stage: Stage) -> None:
        """Look at the records, at most once a second. What cannot be read now is shown at the next look."""
        now = time.monotonic()
        if now - self._looked < REFRESH_SECONDS:
            return
        self._looked = now
        try:
            self._show(stage, now)
        except TrtfleetError as error:
            self._bar.update(self._task, description=f"{_WHAT[stage]} ({error.reason})")

    def _show(self, stage: Stage, now: float) -> None:
        if self._reader.discovery() is None:
            self._say(_WHAT[stage], _WHAT[stage], now)
            return
        seen = progress(self._reader)
        parts = [_WHAT[stage]]
        if seen.leaders and seen.leaders[0].gain > 0:
            parts.append(f"best {seen.leaders[0].gain:+.1%} ± {1.96 * seen.leaders[0].sd:.1%}")
        left = seen.explore_seconds_left(self._workers)
        if stage == "final" and (beat := self._reader.newest_beat()) is not None and beat.phase:
            parts.append(beat.phase)
        self._bar.update(
            self._task,
            description=" · ".join(parts),
            completed=seen.finished,
            total=max(seen.finished, seen.max_trials if seen.exploring else seen.planned),
            left=f"about {seconds_text(left)} left to explore" if left else "",
        )
        line = f"{' · '.join(parts)} · {seen.finished} trials: {outcomes_text(seen.outcomes)}"
        self._say(line, f"{stage}{seen.finished}{parts[-1]}", now)

    def _say(self, line: str, state: str, now: float) -> None:
        """A plain line for logs and pipes."""
        if self._console.is_terminal or state == self._said[0] or now - self._said[1] < LINE_SECONDS:
            return
        self._said = (state, now)
        self._console.print(line, highlight=False, soft_wrap=True)
