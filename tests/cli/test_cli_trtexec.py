"""Winners and results for NVIDIA's trtexec."""

from __future__ import annotations

import json
from pathlib import Path

from cli_jobs import Answer, Job, ended
from tensorrt_run import KNOBS, ROUTE, tensorrt_job

from tuner_job.cli.exits import Exit
from tuner_job.cli.jobfile import local_name


def call(job: Job, command: str, *arguments: str) -> Answer:
    return ended(job.start(*arguments, command=command))


def test_the_winner_is_a_line_that_a_shell_can_run(tmp_path: Path) -> None:
    job = tensorrt_job(tmp_path / "a job")
    answer = call(job, "trtexec", "-o", "best.plan")
    assert (answer.code, answer.err) == (Exit.OK, "")
    lines = answer.out.splitlines()
    assert f"  --onnx='{job.folder / 'model.onnx'}' \\" in lines
    assert f"  --setBuildRoute='{ROUTE}' \\" in lines
    assert lines[-1] == "  --saveEngine=best.plan"
    assert "  --builderOptimizationLevel=4 \\" in lines
    assert "  --memPoolSize=workspace:1073741824B \\" in lines
    assert "  --shapes=x:1x32 \\" in lines
    assert lines[0].startswith("# proven winner of run ")
    assert "TensorRT 11.2.1.2 on NVIDIA H200, driver 580.65.06" in lines[0]
    assert any(line.startswith("# Accuracy was judged by l1 below 0.001") for line in lines)
    words = json.loads(call(job, "trtexec", "--json").out)
    assert words["argv"][0] == "trtexec"
    assert f"--setBuildRoute={ROUTE}" in words["argv"]


def test_another_trial_can_be_named(tmp_path: Path) -> None:
    job = tensorrt_job(tmp_path / "job", verdict=False)
    said = call(job, "trtexec", "--trial", "001-00000").out
    assert said.startswith("# trial 001-00000 (feasible), explored, not proven")
    assert "--setBuildRoute=-conv_use_long_w=off" in said
    refused = call(job, "trtexec", "--trial", "009-00000")
    assert (refused.code, refused.out) == (Exit.BAD_INPUT, "")
    assert "has no such trial" in refused.err
    early = call(job, "trtexec")
    assert early.code == Exit.BAD_INPUT
    assert "no verdict yet" in early.err


def test_without_a_win_the_line_is_the_defaults_and_says_so(tmp_path: Path) -> None:
    answer = call(tensorrt_job(tmp_path / "job", significant=False), "trtexec")
    assert answer.out.startswith("# the default, since nothing was proven (NoSignificantWin)")
    assert "--setBuildRoute" not in answer.out


def test_winners_of_other_libraries_are_refused(tmp_path: Path) -> None:
    answer = call(Job(tmp_path / "job"), "trtexec")
    assert (answer.code, answer.out) == (Exit.BAD_INPUT, "")
    assert answer.err == "trtfleet: trtexec: target cpu runs ONNXRuntime; trtexec builds TensorRT engines only\n"


def test_an_exported_cache_is_as_trtexec_would_have_written_it(tmp_path: Path) -> None:
    job = tensorrt_job(tmp_path / "job")
    assert call(job, "export", "-o", "cache.json").code == Exit.OK
    header, *rows = (json.loads(line) for line in (job.folder / "cache.json").read_text().splitlines())
    assert header["files"] == {"onnx": str(job.folder / "model.onnx")}
    assert header["accuracy_algorithm"] == "L1"
    assert header["accuracy_parameter"]["epsilon"] == 0.001
    assert header["tuner_version"] == "2.20.51"
    assert len(header["default_build_route"]) == 5823
    assert [row["iter"] for row in rows] == [0, 1, 2, 3], "the winner is left out: its settings are no route"
    assert rows[0] == {
        "iter": 0, "build_route": "", "crash": False, "error_message": "", "accuracy_loss": {"y": 0.00005}, "gpu_time": 1.0
    }  # fmt: skip
    assert rows[2]["error_message"], "it passes screening, but trtexec knows one threshold"
    assert rows[3] == {
        "iter": 3, "build_route": "-kgen:tiling=0", "crash": True, "error_message": "y: NaN", "accuracy_loss": None,
        "gpu_time": None,
    }  # fmt: skip
    (job.folder / "knobs.json").write_text(KNOBS)
    start = ended(job.start("--knobs", "knobs.json", "--json", command="import", what="cache.json"))
    assert json.loads(start.out)["startWith"] == ["-conv_use_long_w=off"]


def test_a_model_inside_a_package_is_named_as_the_file_that_it_is() -> None:
    named = local_name("package://magika/models/standard_v3_3/model.onnx")
    assert Path(named).is_file()
    assert local_name("package://not_there/model.onnx") == "package://not_there/model.onnx"
