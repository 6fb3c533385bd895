from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from campaign_records import run_record

from tuner_job.campaign.processes import own_id
from tuner_job.campaign.worker import END_BYTES, _childs_memory, end_text, limits, parse
from tuner_job.trial.cgroup import memory_limit


@pytest.mark.parametrize("message", ["short", "x" * 10_000, "é" * 10_000, '"' * 10_000, "\x00\U0001f4a5" * 5_000])
def test_a_reason_fits_a_pods_termination_message_and_stays_json(message: str) -> None:
    text = end_text("Reason", message)
    assert len(text.encode()) <= END_BYTES
    told = json.loads(text)
    assert told["reason"] == "Reason"
    assert message.startswith(told["message"])
    assert len(told["message"]) >= min(len(message), 250)


def test_a_child_may_fill_half_of_the_scratch_space() -> None:
    assert limits(run_record().inputs, 1000).disk_bytes == 500


@pytest.mark.parametrize(
    ("container", "share", "child"),
    [
        (64 << 30, 0.9, 0.9 * (64 << 30)),
        (64 << 30, 0.225, 0.225 * (64 << 30)),
        (2 << 30, 0.9, 1536 << 20),
        (512 << 20, 1.0, 256 << 20),
    ],
)
def test_a_child_leaves_its_worker_room_in_their_container(container: int, share: float, child: float) -> None:
    assert _childs_memory(container, share) == int(child)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"memory.max": "max\n"}, None),
        ({"memory.max": "garbage"}, None),
        ({"memory.max": "1048576\n"}, 1 << 20),
        ({"memory.max": f"{1 << 62}\n"}, None),
        ({"memory/memory.limit_in_bytes": "2097152\n"}, 2 << 20),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
    ids=["no container", "2: no limit", "2: garbage", "2: limit", "2: over the machine", "1: limit", "1: no limit"],
)
def test_a_containers_memory_is_what_a_worker_has(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_limit(tmp_path) == (limit or psutil.virtual_memory().total)


_READ_PARENT = """
import os
try:
    print(b"do-not-tell" in open(f"/proc/{os.getppid()}/environ", "rb").read())
except PermissionError:
    print("refused")
"""

_PARENT = """
import subprocess, sys
from tuner_job.campaign.processes import close_to_others
if sys.argv[1] == "closed":
    close_to_others()
sys.stdout.write(subprocess.check_output([sys.executable, "-c", sys.argv[2]], env={}, text=True))
"""


@pytest.mark.parametrize(("how", "answer"), [("open", "True"), ("closed", "refused")])
def test_a_child_cannot_read_the_workers_first_environment(how: str, answer: str) -> None:
    def lose_the_right_to_trace() -> None:  # which root has; a container's root has not
        for capability in (19, 21, 38):  # CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP

    said = subprocess.run(
        [sys.executable, "-c", _PARENT, how, _READ_PARENT],
        env={**os.environ, "AWS_SECRET_ACCESS_KEY": "do-not-tell"},
        preexec_fn=lose_the_right_to_trace,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert said.stdout.strip() == answer


def test_a_pod_names_its_worker_and_a_process_without_a_name_is_told_apart() -> None:
    told = ["--store", "s", "--run", "r", "--stage", "final", "--attempt", "3", "--scratch", "/scratch"]
    assert parse([*told, "--worker-id", "uid"]).worker_id == "uid"
    assert parse(told).worker_id == parse([*told, "--worker-id", ""]).worker_id == own_id()
