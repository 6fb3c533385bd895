"""`trtfleet doctor` as a person uses it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_jobs import Answer, Job, ended, tiny_model

from tuner_job.cli.exits import Exit
from tuner_job.doctor import command
from tuner_job.doctor.record import read_result
from tuner_job.store.keys import Signer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def call(job: Job, *arguments: str) -> Answer:
    return ended(job.start(*arguments, command="doctor", what=None))


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Answer]:
    """An examination of the user's own model."""
    job = Job(tmp_path_factory.mktemp("doctor") / "job")
    quick = ("--builds", "2", "--sessions", "2", "--routes", "1")
    return job, call(job, "--runtime", "ONNXRuntime", "--model", "model.onnx", "--shape", "x=4x32", *quick)


def test_it_says_what_is_confirmed_and_signs_it(examined: tuple[Job, Answer]) -> None:
    job, answer = examined
    assert (answer.code, answer.err) == (Exit.OK, "")
    assert answer.out.splitlines()[0].startswith("yes  library")
    assert "confirmed for ONNXRuntime" in answer.out
    record, key = read_result((job.folder / "doctor.json").read_bytes(), "doctor.json")
    assert record.model == "model.onnx"
    assert (job.folder / "config" / "trust" / f"{key.key_id}.pem").exists()
    assert len([one for one in record.tried if one.candidate.route]) == 1
    assert job.leftovers() == []


def test_its_own_result_verifies(examined: tuple[Job, Answer]) -> None:
    job, _ = examined
    answer = call(job, "--check", "doctor.json")
    assert (answer.code, answer.err) == (Exit.OK, "")
    assert "verified: signed by " in answer.out
    assert json.loads(call(job, "--check", "doctor.json", "--json").out)["kind"] == "Doctor"


def test_a_result_that_was_changed_or_is_a_strangers_does_not_verify(examined: tuple[Job, Answer], tmp_path: Path) -> None:
    job, _ = examined
    text = (job.folder / "doctor.json").read_text()
    (job.folder / "changed.json").write_text(text.replace('"payload":"', '"payload":"e30', 1))
    answer = call(job, "--check", "changed.json")
    assert (answer.code, answer.out) == (Exit.VERIFICATION_FAILED, "")
    assert answer.err.startswith("trtfleet: changed.json")
    stranger = Job(tmp_path / "stranger")
    shutil.copy(job.folder / "doctor.json", stranger.folder)
    answer = call(stranger, "--check", "doctor.json")
    assert answer.code == Exit.VERIFICATION_FAILED
    assert "unchanged since it was signed by" in answer.err
    given = call(stranger, "--check", "doctor.json", "--trust", str(job.folder / "config" / "trust"))
    assert given.code == Exit.OK
    (tmp_path / "other.pem").write_bytes(Signer.generate().public.pem)
    assert call(stranger, "--check", "doctor.json", "--trust", str(tmp_path / "other.pem")).code == Exit.VERIFICATION_FAILED


def test_an_open_shape_must_be_given(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    job.write_model(tiny_model())
    answer = call(job, "--runtime", "ONNXRuntime", "--model", "model.onnx")
    assert (answer.code, answer.out) == (Exit.BAD_INPUT, "")
    assert "the model's shapes are open" in answer.err
    assert not (job.folder / "doctor.json").exists()


def test_where_nothing_works_the_result_says_so_and_so_does_the_code(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    answer = call(job, "--runtime", "TensorRT", "--json")
    assert answer.code == Exit.NOT_CONFIRMED
    record, _ = read_result(answer.out.encode(), "standard output")
    assert record.checks[0].status == "failed"
    assert " NO  library" in answer.err


def test_the_module_and_the_command_agree_on_codes() -> None:
    assert {name: int(code) for name, code in Exit.__members__.items() if hasattr(command, name)} == {
        name: getattr(command, name) for name in Exit.__members__ if hasattr(command, name)
    }
