"""The doctor as a worker image runs it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner_job.doctor.record import Check, DoctorRecord, read_result


@dataclass(frozen=True)
class Examined:
    code: int
    record: DoctorRecord
    out: str
    err: str
    folder: Path

    def check(self, name: str) -> Check:
        (found,) = (check for check in self.record.checks if check.name == name)
        return found

    def with_status(self, status: str) -> list[str]:
        return [check.name for check in self.record.checks if check.status == status]


QUICK = ("--builds", "2", "--sessions", "2")


def doctor(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Examined:
    """`python -m tuner_job.doctor` in `folder`; its result must verify."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "tuner_job.doctor", "--folder", "scratch", "--output", "result.json", *arguments],
        cwd=folder,
        env={**os.environ, "TRTFLEET_CONFIG": str(folder / "config"), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (folder / "result.json").exists(), done.stderr
    record, _ = read_result((folder / "result.json").read_bytes(), "result.json")
    assert list((folder / "scratch").iterdir()) == [], "nothing is left"
    return Examined(done.returncode, record, done.stdout, done.stderr, folder)
