import json
from pathlib import Path

from click.testing import CliRunner
from report_runs import RUN, Run, explored

from tuner_job.api.base import InputError
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


def test_json_answers_with_the_pages_data(tmp_path: Path):
    copied(explored(), tmp_path / "out" / "store")
    answer = CliRunner().invoke(report_command, [RUN, "--folder", str(tmp_path / "out"), "--json"], catch_exceptions=False)
    found = json.loads(answer.stdout)
    assert found["run"] == RUN
    assert len(found["page"]["trials"]) == 8
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
