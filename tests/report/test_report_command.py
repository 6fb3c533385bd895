import json
from pathlib import Path

import onnx
from click.testing import CliRunner
from onnx import TensorProto, helper
from report_runs import RUN, Run, explored, knob

from tuner_job.api.base import InputError
from tuner_job.campaign.start import start_run
from tuner_job.cli.jobfile import JobFile
from tuner_job.cli.report import report_command
from tuner_job.store.objects import ObjectStore


def copied(run: Run, folder: Path) -> str:
    """The run's records in a folder."""
    store = ObjectStore.open(folder.as_uri())
    for info in run.store.list(""):
        found = run.store.get(info.key, 64 << 20)
        assert found is not None
        store.create(info.key, found.data)
    return folder.as_uri()


def test_a_run_is_reported_by_its_id(tmp_path: Path):
    url = copied(explored(), tmp_path / "store")
    page = tmp_path / "page.html"
    answer = CliRunner().invoke(report_command, [RUN, "--store", url, "-o", str(page)], catch_exceptions=False)
    assert answer.exit_code == 0
    assert "Exploring: 8 trials finished" in answer.stdout
    assert page.read_text().startswith("<!DOCTYPE html>")


def job(folder: Path) -> Path:
    """A job file beside its model."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    onnx.save(helper.make_model(graph), folder / "model.onnx")
    path = folder / "job.yaml"
    path.write_text(
        """
apiVersion: trtfleet.dev/v1alpha1
kind: TuningJob
metadata: {name: demo}
spec:
  model: {uri: model.onnx}
  storeRef: {name: local}
  targets: [{name: cpu, runtimeRef: {name: onnxruntime}, device: {type: CPU}}]
"""
    )
    return path


def test_a_job_file_names_the_run_of_its_present_inputs(tmp_path: Path):
    path, out = job(tmp_path), tmp_path / "out"
    jobfile = JobFile.load(path)
    inputs = jobfile.inputs(jobfile.target(None))
    run = start_run(jobfile.place(None, out).store, jobfile.owner, "cpu", inputs, shards=1)
    answer = CliRunner().invoke(report_command, [str(path), "--folder", str(out)], catch_exceptions=False)
    assert answer.stdout.splitlines()[-1] == str(out / "reports" / f"{run.run}.html")
    assert "Discovering" in answer.stdout


def test_a_job_file_that_was_never_run_says_what_to_do(tmp_path: Path):
    answer = CliRunner().invoke(report_command, [str(job(tmp_path)), "--folder", str(tmp_path / "out")])
    assert isinstance(answer.exception, InputError)
    assert "its present inputs have no run" in str(answer.exception)
    assert answer.exception.reason == "NoSuchRun"
    assert not (tmp_path / "out" / "reports").exists()


def test_json_answers_with_the_pages_data(tmp_path: Path):
    copied(Run().discover().plan(1, [knob(0), knob(1)]), tmp_path / "out" / "store")
    answer = CliRunner().invoke(report_command, [RUN, "--folder", str(tmp_path / "out"), "--json"], catch_exceptions=False)
    found = json.loads(answer.stdout)
    assert found["run"] == RUN
    assert len(found["page"]["trials"]) == 2
    assert found["report"] == str(tmp_path / "out" / "reports" / f"{RUN}.html")
    assert Path(found["report"]).exists()


def test_what_is_neither_a_file_nor_a_run_is_one_clear_error():
    answer = CliRunner().invoke(report_command, ["0123"])
    assert isinstance(answer.exception, InputError)
    assert str(answer.exception) == "0123: neither a job file nor the id of a run (20 hex digits)"


def test_a_run_that_the_store_does_not_have_leaves_no_page(tmp_path: Path):
    answer = CliRunner().invoke(
        report_command, ["f" * 20, "--store", (tmp_path / "store").as_uri(), "-o", str(tmp_path / "p.html")]
    )
    assert isinstance(answer.exception, InputError)
    assert not (tmp_path / "p.html").exists()
