"""What files tell of a machine."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tuner_job.doctor.machine import machine, missing_gpu
from tuner_job.doctor.model import CASE, write_model
from tuner_job.model.inspect import inspect
from tuner_job.model.shapes import resolve_cases

DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder)\nGCC version:  gcc"


def root(folder: Path, *, driver: bool, devices: int) -> Path:
    (folder / "dev").mkdir()
    for number in range(devices):
        (folder / "dev" / f"nvidia{number}").touch()
    (folder / "dev" / "nvidiactl").touch()
    (folder / "proc/driver/nvidia").mkdir(parents=True)
    if driver:
        (folder / "proc/driver/nvidia/version").write_text(DRIVER)
    return folder


def test_driver_and_devices_are_seen_without_a_library(tmp_path: Path) -> None:
    facts = machine(root(tmp_path, driver=True, devices=2))
    assert (facts["nvidiaDriver"], facts["nvidiaDevices"]) == ("580.65.06", "2")
    assert missing_gpu(facts) == ""


@pytest.mark.parametrize(
    ("driver", "says"), [(False, "no NVIDIA driver is loaded"), (True, "580.65.06 is loaded, but no device")]
)
def test_what_is_missing_is_said(tmp_path: Path, driver: bool, says: str) -> None:
    assert says in missing_gpu(machine(root(tmp_path, driver=driver, devices=0)))


def test_the_model_is_valid_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        write_model(tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    onnx.checker.check_model(onnx.load(tmp_path / "a.onnx"), full_check=True)
    (case,) = resolve_cases(inspect(tmp_path / "a.onnx"), (CASE,))
    assert case == CASE, "the range is dynamic"
