"""A job that ran to its end, once for all tests of the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_jobs import Answer, Job, copied


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Answer]:
    """A finished, published run and what the command said. Not to be changed: copy it."""
    job = Job(tmp_path_factory.mktemp("finished") / "job")
    answer = job.call()
    assert answer.code == 0, answer.err
    return job, answer


@pytest.fixture
def job(finished: tuple[Job, Answer], tmp_path: Path) -> Job:
    """A copy of the finished job, to do with as a test likes."""
    return copied(finished[0], tmp_path / "job")
