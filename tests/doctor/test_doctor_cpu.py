"""A real examination of this machine's CPU, and what is said where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from doctor_runs import Examined, doctor

from tuner_job.doctor.command import parser
from tuner_job.doctor.examine import CHECKS
from tuner_job.doctor.machine import machine, missing_gpu
from tuner_job.doctor.record import read_result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


no_gpu = pytest.mark.skipif(missing_gpu(machine()) == "", reason="this machine has a GPU")


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Examined:
    return doctor(tmp_path_factory.mktemp("doctor") / "cpu", "--runtime", "ONNXRuntime", "--json")


def test_everything_that_onnx_runtime_has_is_confirmed(cpu: Examined) -> None:
    assert cpu.code == 0, cpu.err
    assert cpu.record.confirmed
    assert [check.name for check in cpu.record.checks] == list(CHECKS)
    assert {"library", "device", "knob list", "own checks", "default build", "accuracy", "routes"} <= set(
        cpu.with_status("confirmed")
    )
    assert {"builder setting", "timing cache"} <= set(cpu.with_status("absent"))


def test_the_record_has_what_a_table_needs(cpu: Examined) -> None:
    record = cpu.record
    assert record.device is not None
    assert record.device.type == "CPU"
    assert "onnxruntime" in record.versions
    assert record.knobs is not None
    assert record.knobs.count > 10
    assert record.spread is not None
    assert record.spread.builds == 4
    assert record.spread.latency_seconds > 0
    assert "true gain" in record.spread.design
    assert [one.outcome for one in record.tried] == ["feasible"] * 4
    assert all(one.latency_seconds for one in record.tried)


def test_with_json_the_last_line_of_the_output_is_the_signed_file(cpu: Examined) -> None:
    line = cpu.out.splitlines()[-1]
    assert line.encode() + b"\n" == (cpu.folder / "result.json").read_bytes()
    assert read_result(line.encode(), "the log")[0] == cpu.record
    assert "yes  library" in cpu.err
    assert "confirmed for ONNXRuntime" in cpu.err


@no_gpu
def test_without_a_gpu_and_its_library_each_missing_thing_is_a_line(tmp_path: Path) -> None:
    done = doctor(tmp_path / "none", "--runtime", "TensorRT", environment={"PYTHONPATH": ""})
    assert done.code == 5
    assert done.with_status("confirmed") == []
    assert "no Python module tensorrt" in done.check("library").detail
    assert done.check("device").status == "failed"
    assert done.check("layers").detail == "needs library"
    assert len([line for line in done.out.splitlines() if line.startswith((" NO", "  ?"))]) == len(CHECKS)


@no_gpu
def test_a_library_without_a_device_is_told_from_a_missing_library(tmp_path: Path) -> None:
    done = doctor(tmp_path / "none", "--runtime", "ONNXRuntime", "--device", "GPU", environment={"LD_LIBRARY_PATH": ""})
    assert done.code == 5
    assert done.check("library").status == "untried"
    assert done.check("device").status == "failed"
    assert "libcuda.so.1" in done.check("device").detail
    assert done.check("layers").detail == "needs device"


def test_the_module_needs_no_terminal_library() -> None:
    code = (
        "import sys, tuner_job.doctor.command\n"
        "print({'click', 'rich', 'jinja2', 'matplotlib', 'onnxruntime', 'tensorrt'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--device", "CPU"), "TensorRT builds for GPUs only"),
        (("--runtime", "ONNXRuntime", "--model", "missing.onnx"), "missing.onnx"),
        (("--runtime", "ONNXRuntime", "--shape", "x=1x3"), "--shape: is of an input of --model"),
        (("--runtime", "ONNXRuntime", "--model", "any.onnx", "--shape", "x=ax3"), "write it like --shape images=1x3x224x224"),
        (("--runtime", "ONNXRuntime", "--output", "nowhere/result.json"), "cannot be written there"),
        (("--check", "missing.json"), "give a file that `trtfleet doctor` wrote"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_tried(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tuner_job.doctor", *arguments],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TRTFLEET_CONFIG": str(tmp_path / "config")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("doctor: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
    assert [path.name for path in tmp_path.iterdir()] in ([], ["config"])


@pytest.mark.parametrize("option", ["--builds", "--sessions", "--routes"])
@pytest.mark.parametrize("number", ["0", "1000", "two"])
def test_the_module_has_the_commands_limits(option: str, number: str) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args([option, number])
    assert caught.value.code == 2
