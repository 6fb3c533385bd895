"""The parts of the supervisor by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner_job.api.child import EXIT_NO_SPACE, ChildReport, Limits, Phase
from tuner_job.api.measurement import Losses
from tuner_job.api.outcome import Outcome
from tuner_job.trial import cgroup, processes
from tuner_job.trial.capture import Capture
from tuner_job.trial.ending import Cause, Evidence, judge
from tuner_job.trial.environment import SCRATCH_VARIABLE, child_environment, steering
from tuner_job.trial.leavings import read_report
from tuner_job.trial.scratch import Scratch, sweep

BASE = {
    "PATH": "/bin",
    "LANG": "C.UTF-8",
    "LD_LIBRARY_PATH": "/usr/lib/cuda",
    "LD_PRELOAD": "/tmp/evil.so",
    "CUDA_VISIBLE_DEVICES": "1",
    "CUDA_MODULE_LOADING": "EAGER",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_TF32_OVERRIDE": "0",
    "TRT_BUILD": "1",
    "__LUNOWUD": "-x",
    "ORT_DISABLE": "1",
    "OMP_NUM_THREADS": "3",
    "PYTHONMALLOC": "debug",
    "PYTHONSTARTUP": "x.py",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "HOME": "/root",
}


def test_only_allowed_variables_reach_a_child():
    kept = child_environment(BASE, Path("/scratch/t"), {"OMP_NUM_THREADS": "2"})
    assert kept == {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "LD_LIBRARY_PATH": "/usr/lib/cuda",
        "CUDA_VISIBLE_DEVICES": "1",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_TF32_OVERRIDE": "0",
        "OMP_NUM_THREADS": "2",
        "HOME": "/scratch/t",
        "TMPDIR": "/scratch/t",
        SCRATCH_VARIABLE: "/scratch/t",
    }


def test_steering_names_what_changes_engines_but_not_which_device_is_seen():
    assert steering(BASE, {"OMP_NUM_THREADS": "2"}) == {
        "LD_LIBRARY_PATH": "/usr/lib/cuda",
        "NVIDIA_TF32_OVERRIDE": "0",
        "OMP_NUM_THREADS": "2",
    }


@given(st.lists(st.binary(max_size=200), max_size=30), st.integers(2, 300))
def test_captured_output_is_whole_or_its_two_ends(chunks, limit):
    capture = Capture(limit)
    for chunk in chunks:
        capture.feed(chunk.replace(b"\n", b".").replace(b"[", b"."))
    whole = b"".join(chunks).replace(b"\n", b".").replace(b"[", b".")
    half = limit // 2
    if len(whole) <= 2 * half:
        assert capture.text() == whole.decode(errors="replace")
    else:
        gap = f"\n[… {len(whole) - 2 * half} bytes left out …]\n".encode()
        assert capture.text() == (whole[:half] + gap + whole[-half:]).decode(errors="replace")


def evidence(**changes: object) -> Evidence:
    return Evidence(**{"phase": Phase.BUILD, "exit_code": 0, "report": None, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"report": ChildReport(status="ok")}, Outcome.FEASIBLE),
        ({"report": ChildReport(status="ok"), "scratch_full": True}, Outcome.FEASIBLE),
        ({"report": ChildReport(status="failed"), "scratch_full": True}, Outcome.INFRASTRUCTURE),
        ({"report": ChildReport(status="refused"), "scratch_full": True}, Outcome.INFRASTRUCTURE),
        ({"report": ChildReport(status="unsupported"), "scratch_full": True}, Outcome.UNSUPPORTED),
        ({"exit_code": -11, "scratch_full": True}, Outcome.INFRASTRUCTURE),
        ({"exit_code": EXIT_NO_SPACE}, Outcome.INFRASTRUCTURE),
        ({"exit_code": -9}, Outcome.INFRASTRUCTURE),
        ({"exit_code": -9, "oom_kills": 1}, Outcome.OUT_OF_MEMORY),
        ({"exit_code": 1, "oom_kills": 1}, Outcome.OUT_OF_MEMORY),
        *(({"exit_code": -number}, Outcome.CRASHED) for number in (4, 6, 7, 8, 11, 25)),
        ({"exit_code": -15}, Outcome.INFRASTRUCTURE),
        ({"exit_code": -64}, Outcome.CRASHED),
        ({"exit_code": None}, Outcome.INFRASTRUCTURE),
        *(({"exit_code": -9, "cause": cause, "oom_kills": 1}, cause.value[0]) for cause in Cause),
    ],
)
def test_evidence_becomes_an_outcome(changes, outcome):
    verdict = judge(evidence(**changes))
    assert verdict.outcome is outcome


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "cannot be used"),
        (b"\xff\xfe", "cannot be used"),
        (b'{"status":"ok","losses":{"sam', "cannot be used"),
        (b'{"status":"ok","seconds":{"build":NaN}}', "seconds.build: Input should be a finite number"),
        (b'{"status":"ok","seconds":{"build":1e999}}', "seconds.build: Input should be a finite number"),
        (b'{"status":"splendid"}', "status: Input should be 'ok'"),
        (b'{"status":"ok","extra":1}', "extra: Extra inputs are not permitted"),
        (b"[" * 1_000_000, "cannot be used"),
    ],
)
def test_a_report_that_is_none_is_named(tmp_path, data, problem):
    (tmp_path / "report.json").write_bytes(data)
    report, why = read_report(tmp_path / "report.json")
    assert report is None
    assert problem in why
    assert len(why) <= 500


def test_a_report_that_is_no_file_is_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    assert read_report(tmp_path / "fifo") == (None, "its report is not a regular file")
    assert read_report(tmp_path / "folder") == (None, "its report is not a regular file")
    assert read_report(tmp_path / "link")[1].startswith("its report cannot be opened")
    assert read_report(tmp_path / "absent") == (None, "left no report")


def test_problems_of_the_losses_are_the_reason():
    losses = Losses(references_digest="0" * 64, samples=1, atol=0, rtol=0, problems=("output y: NaN", "more"))
    verdict = judge(evidence(report=ChildReport(status="ok", losses=losses), phase=Phase.CHECK))
    assert (verdict.outcome, verdict.reason) == (Outcome.INVALID_OUTPUT, "output y: NaN")


def test_a_sweep_spares_the_living_and_removes_what_the_dead_left(tmp_path):
    mine = Scratch(tmp_path)
    code = (
        "import sys,os;from pathlib import Path;from tuner_job.trial.scratch import Scratch;"
        "s=Scratch(Path(sys.argv[1]));(s.path/'engine').write_text('x');print(s.path);sys.stdout.flush();os.kill(os.getpid(),9)"
    )
    dead = Path(subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True).stdout.strip())
    assert dead.is_dir()
    (tmp_path / "of-someone-else").mkdir()
    assert sweep(tmp_path) == [dead]
    assert mine.path.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([mine.path.name, "of-someone-else"])
    mine.remove()
    assert sweep(tmp_path) == []


def test_a_sweep_ends_what_still_runs_in_the_name_of_a_dead_supervisor(tmp_path):
    abandoned = tmp_path / "trtfleet-abandoned"
    abandoned.mkdir()
    straggler = subprocess.Popen(["/bin/sleep", "600"], env={SCRATCH_VARIABLE: str(abandoned)}, start_new_session=True)
    assert sweep(tmp_path) == [abandoned]
    assert straggler.wait(timeout=60) == -9


def test_a_root_that_does_not_exist_needs_no_sweep(tmp_path):
    assert sweep(tmp_path / "absent") == []


def test_the_size_of_a_folder_counts_blocks_below_it(tmp_path):
    scratch = Scratch(tmp_path)
    assert scratch.size() < 1 << 16
    (scratch.path / "deep").mkdir()
    (scratch.path / "deep" / "file").write_bytes(bytes(1 << 20))
    (scratch.path / "loop").symlink_to(scratch.path)
    assert 1 << 20 <= scratch.size() < 2 << 20
    scratch.remove()


def test_a_process_is_read_whatever_its_name():
    process = subprocess.Popen(
        [sys.executable, "-c", "open('/proc/self/comm','w').write('a) R 1 (');input()"], stdin=subprocess.PIPE
    )
    try:
        found = processes.read(process.pid)
        assert found is not None
        assert found.parent == os.getpid()
        assert found.session == os.getsid(0)
        assert found.alive
    finally:
        process.communicate(b"\n")
    assert processes.read(process.pid) is None


def test_a_process_that_got_an_old_pid_is_not_signalled():
    process = subprocess.Popen(["/bin/sleep", "600"])
    found = processes.read(process.pid)
    assert found is not None
    stale = processes.Process(**{**found.__dict__, "started": found.started - 1})
    processes.send(stale, 9)
    assert process.poll() is None
    processes.send(found, 9)
    assert process.wait(timeout=60) == -9


def test_children_of_our_own_session_are_never_taken_for_a_trial():
    process = subprocess.Popen(["/bin/sleep", "600"])
    try:
        assert process.pid not in [member.pid for member in processes.family(thorough=True)]
        assert process.pid not in [member.pid for member in processes.family()]
    finally:
        process.kill()
        process.wait()


def test_memory_kills_are_counted_from_the_group(tmp_path):
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 1\n")
    assert cgroup.oom_kills(tmp_path) == 3
    assert cgroup.oom_kills(tmp_path / "absent") == 0
    assert cgroup.oom_kills(None) == 0


def test_a_group_ends_all_of_its_processes_at_once(tmp_path):
    process = subprocess.Popen(["/bin/sleep", "600"])
    group = cgroup.create(f"test-{os.getpid()}", Limits(memory_bytes=1 << 30), process.pid)
    try:
        if group is None:
            pytest.skip("no cgroup 2 that this process may divide")
        assert str(process.pid) in (group / "cgroup.procs").read_text().split()
        if not (group / "cgroup.kill").exists():
            pytest.skip("this kernel has no cgroup.kill")
        cgroup.kill(group)
        assert process.wait(timeout=60) == -9
    finally:
        process.kill()
        process.wait()
        cgroup.remove(f"test-{os.getpid()}")
    assert not group.exists()
