"""A run that is told to stop, wherever it is: it leaves nothing behind, and the same command goes on."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from cli_jobs import Job, ended

from tuner_job.cli.exits import Exit
from tuner_job.store import layout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE = 600.0


def records(job: Job, pattern: str) -> int:
    return len(list((job.out / "store").glob(pattern)))


def started_until(job: Job, pattern: str) -> tuple[subprocess.Popen, str]:
    """The command, run until one more record of the pattern lies in the store; and the run's id."""
    before = records(job, pattern)
    process = job.start()
    assert process.stdout is not None
    run = process.stdout.readline().split()[1]
    give_up = time.monotonic() + PATIENCE
    while records(job, pattern) == before:
        if process.poll() is not None or time.monotonic() > give_up:
            process.kill()
            pytest.fail(f"no new {pattern}: {process.communicate()}")
        time.sleep(0.01)
    return process, run


def test_a_stopped_run_leaves_nothing_and_goes_on(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    seen = set()
    for pattern, number in (
        ("runs/*/trials/discover/try-*.json", signal.SIGTERM),
        ("runs/*/discovery.json", signal.SIGINT),
        ("runs/*/trials/001-*/try-*.json", signal.SIGTERM),
        ("runs/*/trials/final/try-*.json", signal.SIGHUP),
    ):
        process, run = started_until(job, pattern)
        seen.add(run)
        process.send_signal(number)
        answer = ended(process)
        assert answer.code == Exit.STOPPED, (pattern, answer)
        assert answer.err == f"trtfleet: stopped; nothing is lost: the same command goes on with run {run}\n"
        assert job.leftovers() == [], pattern
        assert not (job.out / "store" / "pointers").exists()
    assert len(seen) == 1

    process, run = started_until(job, "runs/*/verdict.json")
    process.send_signal(signal.SIGTERM)  # it reports and publishes, or is about to, or was quicker
    answer = ended(process)
    assert answer.code in (Exit.STOPPED, Exit.OK), answer
    assert answer.code == Exit.OK or answer.err.startswith("trtfleet: stopped; nothing is lost")
    assert job.leftovers() == []

    answer = job.call()
    assert (answer.code, answer.err) == (Exit.OK, "")
    assert job.call(command="verify").code == Exit.OK
    tries = (job.out / "store" / layout.run_prefix(run) / "trials").glob("0*/try-*.json")
    assert len(list(tries)) <= 2, "only the trial in hand is repeated"
    assert job.leftovers() == []


def test_a_second_command_for_the_same_run_is_turned_away(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    process, run = started_until(job, "runs/*/run.json")
    answer = job.call("--json")
    assert answer.code == Exit.BUSY
    assert answer.json["error"]["reason"] == "RunBusy"
    assert answer.err.splitlines()[-1] == f"trtfleet: {answer.json['error']['message']}"
    assert run in answer.json["error"]["message"]
    assert "wait for it, or stop it" in answer.json["error"]["message"]
    process.send_signal(signal.SIGTERM)
    assert ended(process).code == Exit.STOPPED
    assert job.leftovers() == []
