"""What the supervisor gives a child, how it keeps a spare, and what is left when the supervisor itself is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from trial_helpers import CHILDREN, COMMAND, hurried

from tuner_job.accuracy import references as reference_files
from tuner_job.api.base import InputError
from tuner_job.api.child import Phase
from tuner_job.api.outcome import Outcome
from tuner_job.api.tensors import TensorSpec
from tuner_job.trial import cgroup, processes
from tuner_job.trial.scratch import sweep
from tuner_job.trial.supervisor import Supervisor


def test_a_child_gets_a_clean_environment_session_and_descriptors(supervisor, request_for, limits, notes, root, monkeypatch):
    monkeypatch.setenv("__LUNOWUD", "-steer")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    leaked, other = os.pipe()
    os.set_inheritable(leaked, True)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        supervisor.run(request_for(build="noteSurroundings"), limits.model_copy(update={"cpus": 1.0}))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.close(leaked)
        os.close(other)
    seen = json.loads((notes / "surroundings").read_text())
    environment = seen["environment"]
    assert not {"__LUNOWUD", "OMP_NUM_THREADS"} & set(environment)
    assert environment["HOME"] == environment["TMPDIR"] == seen["cwd"]
    assert Path(seen["cwd"]).parent == root.resolve()
    assert seen["session"] == seen["pid"]
    assert set(seen["fds"]) <= {0, 1, 2, 3, 4}, "4 is the listing itself"
    assert seen["cpus"] == 1
    assert seen["mask"] == []


def test_a_childs_cgroup_goes_with_it(supervisor, request_for, limits):
    groups = []

    def look(phase):
        groups.extend(cgroup.path_of(path.name) for path in supervisor._root.iterdir())
        assert str(processes.family()[0].pid) in (groups[0] / "cgroup.procs").read_text().split()

    if cgroup.own() is None or not os.access(cgroup.own(), os.W_OK):
        pytest.skip("no cgroup 2 that this process may divide")
    supervisor.run(request_for(build="forkBomb"), limits.model_copy(update={"processes": 50}), on_phase=look)
    assert len(groups) == 1
    assert not groups[0].exists()


def test_a_build_is_a_trial_without_timing(supervisor, request_for, limits):
    end = supervisor.run(request_for("build"), limits)
    assert end.outcome is Outcome.FEASIBLE
    assert "measure" not in end.seconds
    assert end.report.losses is not None
    assert end.report.timing == ()


def test_describe_names_the_device_and_the_versions(supervisor, request_for, limits):
    end = supervisor.run(request_for("describe"), limits)
    assert end.outcome is Outcome.FEASIBLE
    assert end.report.device.product == "Scripted"
    assert end.report.versions == {"scripted": "1.0"}
    assert end.report.knobs == "{}"


def test_references_are_generated_and_then_serve_a_trial(supervisor, request_for, limits, tmp_path):
    made = tmp_path / "made"
    request = request_for("reference", output=made).model_copy(
        update={"inputs": (TensorSpec(name="x", dtype="float32", dims=(3,)),), "samples": 2}
    )
    end = supervisor.run(request, limits)
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert end.report.detail["losses.samples"] == "2"
    digest = reference_files.load(made).digest
    assert end.report.detail["referencesDigest"] == digest
    again = request_for().model_copy(update={"references": str(made), "references_digest": digest})
    assert supervisor.run(again, limits).outcome is Outcome.FEASIBLE


def test_engines_are_timed_together_on_one_clock(supervisor, request_for, limits, tmp_path):
    engines = {}
    for name in ("a", "b"):
        supervisor.run(request_for("build", output=tmp_path / name), limits)
        engines[name] = str(tmp_path / name / "engine")
    end = supervisor.run(request_for("time").model_copy(update={"engines": engines}), limits)
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert set(end.report.timings) == {"a", "b"}
    assert all(len(timing) == 1 and len(timing[0].sessions) == 2 for timing in end.report.timings.values())
    assert end.report.timings["a"][0].sessions[0].at != end.report.timings["b"][0].sessions[0].at


def test_paths_may_be_relative_to_the_supervisor(supervisor, request_for, limits, references, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    request = request_for("build").model_copy(update={"references": os.path.relpath(references), "output": "made"})
    assert supervisor.run(request, limits).outcome is Outcome.FEASIBLE
    assert (tmp_path / "made" / "engine").is_file()


def test_an_output_folder_that_holds_something_is_refused(supervisor, request_for, limits, tmp_path):
    (tmp_path / "out").mkdir()
    assert supervisor.run(request_for("build", output=tmp_path / "out"), limits).outcome is Outcome.FEASIBLE
    with pytest.raises(InputError, match="not an empty folder"):
        supervisor.run(request_for("build", output=tmp_path / "out"), limits)


def test_a_root_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"scratch folder .*file/root: Not a directory"):
        Supervisor(tmp_path / "file" / "root")


def test_repeated_announcements_do_not_prolong_a_deadline(supervisor, request_for, limits, tmp_path):
    script = tmp_path / "announcing.py"
    script.write_text(
        "import os, time\nos.read(0, 1)\n"
        'while True:\n    os.write(3, b\'{"phase": "build"}\\n{"phase": "load"}\\n\')\n    time.sleep(0.01)\n'
    )
    supervisor._command = (sys.executable, str(script))
    end = supervisor.run(request_for(), hurried(hurried(limits, Phase.BUILD, 0.2), Phase.LOAD, 0.2))
    assert end.outcome is Outcome.HUNG


@pytest.fixture
def warm(supervisor, root, notes):
    """`supervisor` makes the final check; this one shares its root."""
    with Supervisor(root, command=COMMAND, grace_seconds=0.3, warm=True, extra_environment={"NOTES": str(notes)}) as made:
        yield made


def test_a_spare_child_takes_the_next_trial(warm, request_for, limits):
    first = warm.run(request_for(), limits)
    spare = warm._spare
    assert spare is not None
    assert processes.read(spare.pid).alive
    second = warm.run(request_for(), limits)
    assert [end.outcome for end in (first, second)] == [Outcome.FEASIBLE] * 2
    assert second.child_pid == spare.pid
    warm.close()
    assert processes.family(thorough=True) == []


def test_a_spare_loads_its_libraries_for_the_device_before_it_has_a_request(warm, request_for, limits, notes):
    for device in ("CPU", "CPU", "GPU", "GPU"):
        spare = warm._spare
        end = warm.run(request_for().model_copy(update={"device": device}), limits)
        assert end.outcome is Outcome.FEASIBLE
        assert (notes / f"preloaded-{end.child_pid}").read_text() == device
        assert spare is None or (end.child_pid == spare.pid) == (spare.loaded == ("scripted", device))
    assert len(list(notes.glob("preloaded-*"))) >= 4


def test_a_spare_holds_still_while_the_trial_measures_and_survives_its_end(warm, request_for, limits):
    states = []

    def look(phase):
        if phase is Phase.MEASURE:
            os.waitid(os.P_PID, warm._spare.pid, os.WSTOPPED | os.WNOWAIT)
            states.append(processes.read(warm._spare.pid).state)

    assert warm.run(request_for(build="daemon"), limits, on_phase=look).outcome is Outcome.FEASIBLE
    assert states == ["T"]
    os.waitid(os.P_PID, warm._spare.pid, os.WCONTINUED | os.WNOWAIT)
    assert processes.read(warm._spare.pid).state != "T"


def test_a_dead_spare_is_replaced(warm, request_for, limits):
    warm.run(request_for(), limits)
    os.kill(warm._spare.pid, signal.SIGKILL)
    os.waitid(os.P_PID, warm._spare.pid, os.WEXITED | os.WNOWAIT)
    assert warm.run(request_for(), limits).outcome is Outcome.FEASIBLE


def test_a_spare_of_a_thread_that_ended_is_replaced(warm, request_for, limits):
    thread = threading.Thread(target=warm.run, args=(request_for(), limits))
    thread.start()
    thread.join()
    assert warm.run(request_for(), limits).outcome is Outcome.FEASIBLE


def _supervising(root: Path, references: Path, notes: Path, **settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILDREN / "supervising.py"), str(root), str(references), str(notes), json.dumps(settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("killer", ["child", "outsider"])
def test_a_killed_supervisor_takes_its_child_along_and_the_next_one_sweeps(root, references, notes, killer):
    if killer == "child":
        worker = _supervising(root, references, notes, build="killParent")
    else:
        worker = _supervising(root, references, notes, build="hangDeaf")
        while not (notes / "phase-build").exists():
            assert worker.poll() is None, worker.stderr.read()
            threading.Event().wait(0.01)
        os.kill(worker.pid, signal.SIGKILL)
    assert worker.wait(timeout=60) == -signal.SIGKILL
    worker.communicate()
    while [process for process in processes.marked(f"NOTES={notes}") if process.alive]:
        threading.Event().wait(0.01)  # the kernel ends the child; pytest-timeout ends us if it does not
    assert len(list(root.iterdir())) == 1
    Supervisor(root, command=COMMAND).close()
    assert list(root.iterdir()) == []
    assert sweep(root) == []


def test_a_killed_supervisors_daemon_is_ended_by_the_sweep(root, references, notes):
    worker = _supervising(root, references, notes, build="strayThenHang")
    while not (notes / "daemon").exists():
        assert worker.poll() is None, worker.stderr.read()
        threading.Event().wait(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(timeout=60)
    worker.communicate()
    daemon = processes.read(int((notes / "daemon").read_text()))
    assert daemon is not None
    assert daemon.alive
    assert len(sweep(root)) == 1
    while (now := processes.read(daemon.pid)) is not None and now.alive:
        threading.Event().wait(0.01)
