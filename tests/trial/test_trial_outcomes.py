"""Every way in which a real child can end becomes the right outcome, and leaves nothing behind (see conftest.supervisor)."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from trial_helpers import COMMAND, hurried

from tuner_job.api.child import Phase
from tuner_job.api.outcome import Outcome
from tuner_job.trial import processes
from tuner_job.trial.supervisor import Supervisor

MiB = 1 << 20


def test_a_good_trial_is_feasible_and_hands_over_its_engine(supervisor, request_for, limits, tmp_path):
    phases = []
    end = supervisor.run(request_for(output=tmp_path / "out"), limits, on_phase=phases.append)
    assert (end.outcome, end.reason, end.bad_input, end.retriable) == (Outcome.FEASIBLE, "", False, False)
    assert phases == [Phase.BUILD, Phase.LOAD, Phase.CHECK, Phase.MEASURE]
    assert set(end.seconds) == {"start", "build", "load", "check", "measure", "total"}
    assert end.report is not None
    assert end.report.engine is not None
    assert (tmp_path / "out" / "engine").stat().st_size == end.report.engine.size
    assert end.report.losses is not None
    assert end.report.losses.samples == 2
    assert len(end.report.timing) == 1
    assert len(end.report.timing[0].sessions) == 2
    assert end.peak_memory_bytes > 10 * MiB


@pytest.mark.parametrize(
    ("where", "action", "outcome", "phase", "reason"),
    [
        ("build", "segfault", Outcome.CRASHED, Phase.BUILD, "died of SIGSEGV in phase build"),
        ("load", "abort", Outcome.CRASHED, Phase.LOAD, "died of SIGABRT in phase load"),
        ("run", "bus", Outcome.CRASHED, Phase.CHECK, "died of SIGBUS in phase check"),
        ("build", "exit0", Outcome.CRASHED, Phase.BUILD, "exited with 0 but left no report (phase build)"),
        ("sample", "exit3", Outcome.CRASHED, Phase.MEASURE, "exited with 3 in phase measure"),
        ("load", "raise", Outcome.CRASHED, Phase.LOAD, "RuntimeError: context is None"),
        ("build", "refuse", Outcome.REFUSED, Phase.BUILD, "no tactic for this layer"),
        ("build", "emptyEngine", Outcome.REFUSED, Phase.BUILD, "the builder returned without an error but wrote no engine"),
        ("build", "unsupported", Outcome.UNSUPPORTED, Phase.BUILD, "no knob of that name"),
        ("build", "memoryError", Outcome.OUT_OF_MEMORY, Phase.BUILD, "MemoryError: Unable to allocate 1 TiB"),
        ("load", "cudaMemory", Outcome.OUT_OF_MEMORY, Phase.LOAD, "RuntimeError: CUDA failure 2: out of memory"),
        ("build", "noSpace", Outcome.INFRASTRUCTURE, Phase.BUILD, "no space left in the scratch folder in phase build"),
        ("build", "killGroup", Outcome.INFRASTRUCTURE, Phase.BUILD, "killed from outside (SIGKILL) in phase build"),
        ("run", "terminate", Outcome.INFRASTRUCTURE, Phase.CHECK, "killed from outside (SIGTERM) in phase check"),
        ("build", "cancelled", Outcome.INFRASTRUCTURE, Phase.BUILD, "killed from outside (SIGTERM) in phase build"),
        ("run", "nan", Outcome.INVALID_OUTPUT, Phase.CHECK, "NaN"),
        ("run", "inf", Outcome.INVALID_OUTPUT, Phase.CHECK, "Inf"),
        ("run", "shape", Outcome.INVALID_OUTPUT, Phase.CHECK, "shape"),
        ("run", "dtype", Outcome.INVALID_OUTPUT, Phase.CHECK, "float64"),
        ("run", "missing", Outcome.INVALID_OUTPUT, Phase.CHECK, "missing"),
        ("build", "truncatedReport", Outcome.CRASHED, Phase.BUILD, "its report cannot be used"),
        ("build", "emptyOkReport", Outcome.CRASHED, Phase.BUILD, "without all that `trial` promises"),
        ("build", "hugeReport", Outcome.CRASHED, Phase.BUILD, "its report has 1099511627776 bytes"),
        ("sample", "removeFolder", Outcome.CRASHED, Phase.MEASURE, "exited with 1 in phase measure"),
        ("build", "oneLargeFile", Outcome.CRASHED, Phase.BUILD, "File too large"),
    ],
)
def test_a_child_that_ends_by_itself(supervisor, request_for, limits, tmp_path, where, action, outcome, phase, reason):
    disk = 8 * MiB if action == "oneLargeFile" else None
    end = supervisor.run(request_for(output=tmp_path / "out", **{where: action}), limits.model_copy(update={"disk_bytes": disk}))
    assert (end.outcome, end.phase) == (outcome, phase)
    assert reason in end.reason
    assert "\n" not in end.reason
    assert not end.bad_input
    assert end.retriable == (outcome is Outcome.INFRASTRUCTURE)
    assert (tmp_path / "out").exists() == (outcome is Outcome.INVALID_OUTPUT)


@pytest.mark.parametrize("action", ["badModel", "badInput"])
def test_wrong_input_is_told_apart_from_a_wrong_candidate(supervisor, request_for, limits, action):
    end = supervisor.run(request_for(build=action), limits)
    assert end.bad_input
    assert end.phase is Phase.BUILD
    assert not end.retriable


def test_absent_references_and_absent_backends_are_wrong_input(supervisor, request_for, limits, tmp_path):
    request = request_for()
    end = supervisor.run(request.model_copy(update={"references": str(tmp_path / "none")}), limits)
    assert end.bad_input
    assert end.phase is Phase.CHECK
    end = supervisor.run(request.model_copy(update={"references_digest": "0" * 64}), limits)
    assert end.bad_input
    end = supervisor.run(request.model_copy(update={"backend": "absent"}), limits)
    assert end.bad_input
    assert "'absent'" in end.reason


@pytest.mark.parametrize(
    ("where", "action", "phase"),
    [
        ("build", "hang", Phase.BUILD),
        ("build", "hangDeaf", Phase.BUILD),
        ("build", "hangHoldingTheInterpreter", Phase.BUILD),
        ("load", "spin", Phase.LOAD),
        ("sample", "hang", Phase.MEASURE),
    ],
)
def test_a_child_that_never_ends_is_hung_in_its_phase(supervisor, request_for, limits, where, action, phase):
    end = supervisor.run(request_for(**{where: action}), hurried(limits, phase))
    assert (end.outcome, end.phase) == (Outcome.HUNG, phase)
    assert end.reason == f"went over its deadline of 0.3 s in phase {phase}"
    if action != "hangDeaf":
        assert "most recent call first" in end.log, "a hung child says where it stood"


@pytest.mark.parametrize("action", ["memoryBomb", "memoryBombInChildren"])
def test_a_memory_bomb_is_out_of_memory(supervisor, request_for, limits, action):
    end = supervisor.run(request_for(build=action), limits.model_copy(update={"memory_bytes": 300 * MiB}))
    assert (end.outcome, end.phase) == (Outcome.OUT_OF_MEMORY, Phase.BUILD)
    assert not end.retriable


def test_shared_pages_count_once(supervisor, request_for, limits):
    end = supervisor.run(request_for(build="shareMemory"), limits.model_copy(update={"memory_bytes": 400 * MiB}))
    assert end.outcome is Outcome.FEASIBLE, end.reason


@pytest.mark.parametrize("action", ["forkBomb", "threadBomb"])
def test_a_bomb_of_processes_or_threads_crashes_only_itself(supervisor, request_for, limits, action):
    end = supervisor.run(request_for(build=action), limits.model_copy(update={"processes": 50}))
    assert end.outcome is Outcome.CRASHED
    assert "50 processes and threads" in end.reason


def test_a_daemon_that_cut_itself_loose_dies_with_the_trial(supervisor, request_for, limits, notes):
    end = supervisor.run(request_for(build="daemon"), limits)
    assert end.outcome is Outcome.FEASIBLE, end.reason
    daemon = processes.read(int((notes / "daemon").read_text()))
    assert daemon is None or not daemon.alive


def test_a_filled_scratch_folder_ends_the_trial(supervisor, request_for, limits):
    end = supervisor.run(request_for(build="fillScratch"), limits.model_copy(update={"disk_bytes": 8 * MiB}))
    assert end.outcome is Outcome.CRASHED
    assert "scratch folder" in end.reason


def test_folders_that_are_hard_to_remove_are_removed(supervisor, request_for, limits):
    assert supervisor.run(request_for(build="nastyFolders"), limits).outcome is Outcome.FEASIBLE


def test_a_gigabyte_of_output_costs_neither_memory_nor_disk(supervisor, request_for, limits):
    before = processes.read(os.getpid())
    end = supervisor.run(request_for(build="shout"), limits)
    after = processes.read(os.getpid())
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert len(end.log) < 2 * limits.log_bytes
    assert "bytes left out" in end.log
    assert before is not None
    assert after is not None
    assert after.resident - before.resident < 64 * MiB


def test_garbage_on_every_channel_changes_nothing(supervisor, request_for, limits):
    end = supervisor.run(request_for(build="garbage", run="garbage"), limits)
    assert end.outcome is Outcome.FEASIBLE, end.reason


def test_a_kill_from_outside_is_nobodys_fault(supervisor, request_for, limits):
    def kill(phase):
        if phase is Phase.BUILD:
            for process in processes.family():
                os.kill(process.pid, signal.SIGKILL)

    end = supervisor.run(request_for(build="hang"), limits, on_phase=kill)
    assert end.outcome is Outcome.INFRASTRUCTURE
    assert end.retriable


def test_stop_ends_a_trial_without_blaming_it(supervisor, request_for, limits):
    stop = threading.Event()
    end = supervisor.run(request_for(build="hang"), limits, stop=stop, on_phase=lambda _: stop.set())
    assert (end.outcome, end.stopped, end.retriable) == (Outcome.INFRASTRUCTURE, True, False)


def test_a_draining_trial_may_end_well(supervisor, request_for, limits):
    stop = threading.Event()
    end = supervisor.run(request_for(), limits, stop=stop, on_phase=lambda _: stop.set(), drain_seconds=60)
    assert (end.outcome, end.stopped) == (Outcome.FEASIBLE, False)


def test_the_next_trial_after_a_crash_is_clean(supervisor, request_for, limits):
    for action in ("segfault", "hangDeaf"):
        supervisor.run(request_for(build=action), hurried(limits, Phase.BUILD, 1.0))
        assert supervisor.run(request_for(), limits).outcome is Outcome.FEASIBLE


def test_what_the_callback_raises_passes_through_after_the_clean_up(supervisor, request_for, limits, root):
    def fail(phase):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervisor.run(request_for(build="hangDeaf"), limits, on_phase=fail)
    assert list(root.iterdir()) == []
    assert processes.family(thorough=True) == []


def test_a_command_that_cannot_be_started_is_infrastructure(supervisor, request_for, limits, root, tmp_path):
    supervisor._command = (str(tmp_path / "absent"),)
    end = supervisor.run(request_for(), limits)
    assert end.outcome is Outcome.INFRASTRUCTURE
    assert "could not be started" in end.reason
    assert list(Path(root).iterdir()) == []


def test_a_full_file_system_is_not_the_candidates_fault(request_for, limits, tmp_path, notes):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], capture_output=True).returncode != 0:
        pytest.skip("mounting needs privileges")
    try:
        with Supervisor(small / "scratch", command=COMMAND, extra_environment={"NOTES": str(notes)}) as supervisor:
            end = supervisor.run(request_for(build="fillFileSystem"), limits)
            assert (end.outcome, end.retriable) == (Outcome.INFRASTRUCTURE, True)
            assert end.reason == "no space left in the scratch folder in phase build"
            assert supervisor.run(request_for(), limits).outcome is Outcome.FEASIBLE
    finally:
        subprocess.run(["umount", str(small)], check=True)
