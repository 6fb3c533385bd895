"""The examination of the scripted TensorRT: what each fault of a library, a device or a build leaves unconfirmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doctor_runs import QUICK, Examined, doctor
from stand_in.build import NoCompiler
from stand_in.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def examined(folder: Path, script: dict[str, Any] | None = None, device: tuple[str, ...] = (), *arguments: str) -> Examined:
    try:
        stage = Stage.make(folder / "stage", script, device)
    except NoCompiler as error:
        pytest.skip(str(error))
    return doctor(folder / "run", *QUICK, *arguments, environment=stage.environment)


def test_a_library_that_works_is_confirmed_throughout(tmp_path: Path) -> None:
    done = examined(tmp_path)
    assert done.code == 0, done.out
    assert done.with_status("failed") == done.with_status("untried") == done.with_status("absent") == []
    record = done.record
    assert record.knobs is not None
    assert (record.knobs.count, record.knobs.known) == (211, "TensorRT 11.2.1.2 on Linux")
    assert record.versions["tensorrt"] == "11.2.1.2"
    assert record.state is not None
    assert record.spread is not None
    assert (record.spread.clock, record.spread.launch) == ("device", "cudaGraph")
    assert [one.candidate.settings for one in record.tried if one.candidate.settings] == [{"optimizationLevel": "2"}]
    assert "LD_LIBRARY_PATH" in record.environment, "whoever reads the file sees where the library came from"


def test_a_library_without_a_tuner_is_said_and_is_no_failure(tmp_path: Path) -> None:
    done = examined(tmp_path, {"version": "10.9.0", "knobs": "absent"})
    assert done.code == 0, done.out
    assert "has no tuner, which came with TensorRT 11.1" in done.check("knob list").detail
    assert done.check("routes").status == "absent"
    assert done.check("builder setting").status == "confirmed"


def test_a_builder_that_says_no_ends_the_examination_with_its_own_words(tmp_path: Path) -> None:
    done = examined(tmp_path, {"when": {"always": "refuse"}})
    assert done.code == 5
    assert done.check("default build").status == "failed"
    assert "refused in build" in done.check("default build").detail
    assert done.with_status("untried") == [
        "accuracy", "default against default", "routes", "builder setting", "timing cache", "layers",
    ]  # fmt: skip
    assert "not confirmed: default build, accuracy" in done.out


def test_an_engine_that_computes_something_else_is_not_accurate(tmp_path: Path) -> None:
    done = examined(tmp_path, {"when": {"always": "wrong"}})
    assert done.code == 5
    assert (done.check("default build").status, done.check("accuracy").status) == ("confirmed", "failed")


def test_candidates_that_fail_are_results_as_long_as_one_works(tmp_path: Path) -> None:
    from tuner_job.doctor.choice import chosen_knobs
    from tuner_job.routes.knobs import parse_knob_list

    listed = parse_knob_list((Path(__file__).parents[1] / "data" / "all_build_routes-11.2.1.2.json").read_text())
    first, second = (f"{knob.name}={value}" for knob, value in chosen_knobs(listed, 4)[:2])
    done = examined(tmp_path, {"when": {first: "segfault", second: "refuse"}})
    assert done.code == 0, done.out
    assert done.check("routes").detail.startswith("1 crashed, 1 refused, 2 feasible")


def test_a_gpu_that_others_use_is_named_and_not_measured(tmp_path: Path) -> None:
    done = examined(tmp_path, None, ("process = 4321 1073741824",))
    assert done.code == 5
    assert done.check("device").status == "confirmed"
    assert done.check("idle device").status == "failed"
    assert "4321" in done.check("idle device").detail
    assert done.check("default build").detail == "needs idle device"
    assert done.record.state is None or done.record.state.processes == ()


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("process = 4321 1073741824", ": 1 other process uses it"),
        ("memory_used = 1073741824", ": processes that cannot be seen from here use it"),
    ],
)
def test_a_shared_gpu_is_measured_only_when_that_is_allowed(tmp_path: Path, device: str, told: str) -> None:
    done = examined(tmp_path, None, (device,), "--allow-shared", "--routes", "1")
    assert done.code == 0, done.out
    assert done.check("idle device").detail == f"shared, as allowed{told}"


def test_a_builder_that_cannot_be_made_is_the_librarys_fault_where_there_is_a_gpu(tmp_path: Path) -> None:
    done = examined(tmp_path, None, ("fail = cuInit 100",))
    assert done.code == 5
    assert done.with_status("confirmed") == []
    assert done.check("layers").status == "untried"
