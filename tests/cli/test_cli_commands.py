"""The commands about a run and about what it published, as a person or a program uses them."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import onnx
import pytest
import yaml
from cli_jobs import Answer, Job, copied, tiny_model
from click.testing import CliRunner
from tensorrt_run import tensorrt_job

from tuner_job.cli.exits import Exit
from tuner_job.cli.main import cli
from tuner_job.routes.knobs import no_knobs
from tuner_job.store import layout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def ok(answer: Answer) -> Answer:
    """Success without a word of noise."""
    assert (answer.code, answer.err) == (Exit.OK, "")
    return answer


def refused(answer: Answer, code: Exit, part: str) -> None:
    """One line, nothing on standard output."""
    assert answer.code == code
    assert answer.err.startswith("trtfleet: ")
    assert answer.err.count("\n") == 1
    assert part in answer.err
    assert answer.out == ""


@pytest.fixture(scope="module")
def edited(finished: tuple[Job, Answer], tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, dict, dict]:
    """A job that was run, whose model was edited, and that was run again; with what `verify --json` said of A and of B."""
    job = copied(finished[0], tmp_path_factory.mktemp("edited") / "job")
    first = ok(job.call("--json", command="verify")).json
    job.write_model(tiny_model(seed=1))
    ok(job.call())
    return job, first, ok(job.call("--json", command="verify")).json


@pytest.fixture
def both(edited: tuple[Job, dict, dict], tmp_path: Path) -> tuple[Job, str, str]:
    """A copy of `edited`, to do with as a test likes, and both manifests."""
    job, first, second = edited
    shutil.copytree(job.folder, tmp_path / "job")
    copy = Job(tmp_path / "job")
    copy.write_model(tiny_model(seed=1))
    return copy, first["manifest"], second["manifest"]


def current(job: Job) -> str:
    return ok(job.call("--json", command="history")).json["current"]["manifest"]


def test_a_run_says_what_it_does_and_what_came_of_it(finished: tuple[Job, Answer]) -> None:
    job, answer = finished
    ok(answer)
    assert answer.out.startswith("run ")
    assert "published and verified: manifest " in answer.out
    assert "(served)" in answer.out
    assert "%, 95%)" in answer.out, "an interval"
    report = answer.out.splitlines()[-1].removeprefix("report: ")
    assert (job.folder / report).read_text().startswith("<!DOCTYPE html>")
    assert job.leftovers() == []


def test_a_finished_run_answers_again_without_a_worker(job: Job) -> None:
    before = job.files()
    answer = job.call("--json")
    assert answer.code == Exit.OK
    (run,) = answer.json["runs"]
    assert run["target"] == "cpu"
    assert run["state"] == "served"
    assert run["verdict"]["reason"]
    assert Path(job.folder, run["report"]).exists()
    assert job.files() == before


def test_verify_leaves_the_engine_only_when_all_holds(job: Job) -> None:
    answer = ok(job.call("-o", "engine.bin", "--json", command="verify")).json
    engine = job.folder / "engine.bin"
    assert hashlib.sha256(engine.read_bytes()).hexdigest() == answer["engine"]["digest"]
    assert answer["engine"]["size"] == engine.stat().st_size
    people = ok(job.call(command="verify")).out
    assert answer["manifest"] in people
    assert answer["signers"][0] in people

    pointer = next((job.out / "store" / "pointers").rglob("*.json"))
    name = str(pointer.relative_to(job.out / "store" / "pointers")).removesuffix(".json")
    assert ok(job.call(command="verify", what=name)).out == people

    engine.unlink()
    blob = job.out / "store" / layout.blob(answer["engine"]["digest"])
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    refused(job.call("-o", "engine.bin", command="verify"), Exit.VERIFICATION_FAILED, answer["engine"]["digest"])
    assert not engine.exists()


def test_a_stranger_trusts_nothing_until_given_the_key(job: Job) -> None:
    shutil.copytree(job.folder / "config" / "trust", job.folder / "given")
    shutil.rmtree(job.folder / "config")
    refused(job.call(command="verify"), Exit.VERIFICATION_FAILED, "trust")
    ok(job.call("--trust", "given", command="verify"))


def test_nothing_is_published_yet(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    refused(job.call(command="verify"), Exit.VERIFICATION_FAILED, "tiny")
    refused(job.call(command="history"), Exit.REFUSED, "run the job first")
    refused(job.call(command="export"), Exit.BAD_INPUT, "trtfleet run")
    assert not (job.folder / "best_config.json").exists()
    refused(job.call(command="verify", what="tiny"), Exit.BAD_INPUT, "give a job file")


def test_an_edited_job_serves_its_own_engine_and_its_former_one_when_edited_back(both: tuple[Job, str, str]) -> None:
    job, first, second = both
    assert first != second
    assert current(job) == second
    job.write_model(tiny_model())
    answer = ok(job.call("--no-publish"))
    assert "published and verified" not in answer.out
    assert current(job) == second, "--no-publish moves nothing"
    ok(job.call())
    assert current(job) == first
    job.write_model(tiny_model(seed=1))
    ok(job.call())
    assert current(job) == second


def test_each_engine_is_that_of_its_model(edited: tuple[Job, dict, dict]) -> None:
    _, first, second = edited
    assert first["engine"]["digest"] != second["engine"]["digest"]
    assert first["content"]["run"] != second["content"]["run"]


def test_roll_back_pin_and_unpin(both: tuple[Job, str, str]) -> None:
    job, first, second = both
    assert first[:16] in ok(job.call(command="rollback")).out
    assert current(job) == first
    answer = ok(job.call(command="run"))
    assert "not served: the pointer was moved by " in answer.out, "a person's rollback holds"
    assert current(job) == first

    assert ok(job.call("--to", second[:12], "--json", command="rollback")).json["current"]["manifest"] == second
    pinned = ok(job.call("--to", first, "--json", command="pin")).json
    assert (pinned["pinned"], pinned["current"]["manifest"]) == (first, first)
    assert "held: the pointer is pinned to " in ok(job.call(command="run")).out
    shown = ok(job.call(command="history")).out
    assert "pinned" in shown
    assert first[:16] in shown
    assert second[:16] in shown
    assert "pinned" not in ok(job.call("--json", command="unpin")).json

    refused(job.call("--to", "0000", command="pin"), Exit.BAD_INPUT, "see `trtfleet history`")


def test_there_is_nothing_to_roll_back_to(job: Job) -> None:
    before = current(job)
    refused(job.call(command="rollback"), Exit.REFUSED, "tiny")
    assert current(job) == before


def test_several_targets_wait_for_approval_in_another_store(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    target = {"runtimeRef": {"name": "onnxruntime"}, "device": {"type": "CPU"}}
    job.write({"targets": [{"name": "a", **target}, {"name": "b", **target}], "publish": {"promotion": "Manual"}})
    answer = job.call("--store", "elsewhere", "--json")
    assert answer.code == Exit.OK
    runs = {run["target"]: run for run in answer.json["runs"]}
    assert sorted(runs) == ["a", "b"]
    assert {run["state"] for run in runs.values()} == {"waits for `trtfleet promote`"}
    assert not (job.out / "store").exists()
    assert (job.folder / "elsewhere").is_dir()

    named = ("--store", "elsewhere", "--target", "b")
    refused(job.call(*named, command="verify"), Exit.VERIFICATION_FAILED, "b")
    refused(job.call(runs["b"]["manifest"][:16], *named, command="promote"), Exit.BAD_INPUT, "64 hex digits")
    refused(job.call(runs["a"]["manifest"], *named, command="promote"), Exit.REFUSED, "target a, not of")
    promoted = ok(job.call(runs["b"]["manifest"], *named, "--json", command="promote")).json
    assert promoted["current"]["manifest"] == runs["b"]["manifest"]
    ok(job.call(*named, command="verify"))
    refused(job.call("--store", "elsewhere", command="verify"), Exit.BAD_INPUT, "name one with --target")
    assert job.leftovers() == []


def test_report_knobs_and_plan(job: Job, finished: tuple[Job, Answer]) -> None:
    run = finished[1].out.split()[1]
    ok(job.call("-o", "page.html", command="report"))
    assert run in (job.folder / "page.html").read_text()
    answer = ok(job.call("--json", command="report", what=run)).json
    assert answer["run"] == run

    shown = ok(job.call("--match", "-session:*", command="knobs")).out
    assert "-session:memory_pattern" in shown
    listed = ok(job.call("--json", command="knobs")).json["knobs"]
    assert [knob["name"] for knob in listed if knob["searched"]] == ["-session:memory_pattern"]
    refused(job.call("--match", "-sesion*", command="knobs"), Exit.BAD_INPUT, "matches none")

    plan = ok(job.call("--json", "--workers", "2", command="plan")).json
    assert (plan["knobs"], plan["candidates"], plan["shards"]) == (1, 2, [1, 1])
    assert plan["deviceSeconds"] > 0, "a run measured a trial"
    assert plan["first"][0]["route"] == "-session:memory_pattern=off"
    assert "Full over 1 knob with 1 value besides the default" in ok(job.call(command="plan")).out


def test_knobs_saves_the_librarys_own_list_for_machines_without_it(job: Job, finished: tuple[Job, Answer]) -> None:
    run = finished[1].out.split()[1]
    discovery = json.loads((job.out / "store" / layout.discovery(run)).read_text())
    ok(job.call("-o", "saved.json", "--match", "-graph:*", command="knobs"))
    assert (job.folder / "saved.json").read_text() == discovery["knobs"], "whole, whatever --match shows"
    ok(job.call("--knobs", "saved.json", command="plan"))


def test_whoever_mistyped_a_knob_can_still_list_them(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    job.write({"search": {"knobs": {"include": ["-sesion:*"]}}})
    refused(job.call(command="plan"), Exit.BAD_INPUT, "`trtfleet knobs` lists what there is")
    answer = ok(job.call("--match", "-session:memory*", command="knobs"))
    assert "-session:memory_pattern" in answer.out
    assert "would be refused: search.knobs.include: '-sesion:*' matches no knob" in answer.out


def test_without_a_tuner_plan_and_knobs_say_why_and_what_is_left(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    (job.folder / "knobs.json").write_text(no_knobs("TensorRT 10.9 has no tuner"))
    job.write({"search": {"strategy": "Adaptive", "knobs": None, "builder": {"settings": {"optimizationLevel": ["4", "5"]}}}})
    said = ok(job.call("--knobs", "knobs.json", command="plan")).out.splitlines()
    assert said[0].startswith("Adaptive over 1 builder setting with 2 values: at most ")
    assert said[1] == "no knobs: TensorRT 10.9 has no tuner"
    assert "a run first checks them against the library" in said[2]
    plan = ok(job.call("--knobs", "knobs.json", "--json", command="plan")).json
    assert (plan["missing"], plan["settings"]) == ("TensorRT 10.9 has no tuner", {"optimizationLevel": ["4", "5"]})
    assert {one["settings"].get("optimizationLevel") for one in plan["first"]} <= {"4", "5"}
    assert ok(job.call("--knobs", "knobs.json", command="knobs")).out == "no knobs: TensorRT 10.9 has no tuner\n"
    job.write({"search": {"strategy": "Adaptive", "knobs": None}})
    refused(job.call("--knobs", "knobs.json", command="plan"), Exit.BAD_INPUT, "no tuner: name search.builder.settings or")


def test_an_installed_library_judges_the_settings_of_a_plan(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    job.write({"search": {"builder": {"settings": {"optimizationLevel": ["4"]}}}})
    refused(job.call(command="plan"), Exit.BAD_INPUT, "unknown setting 'optimizationLevel'")


def test_knobs_lists_builder_settings_too(tmp_path: Path) -> None:
    job = tensorrt_job(tmp_path / "job")
    assert "a whole number from 1 to 9" in ok(job.call(command="knobs")).out
    answer = ok(job.call("--match", "avg*", "--json", command="knobs")).json
    assert answer["knobs"] == []
    assert answer["settings"] == [
        {"name": "avgTimingIterations", "allowed": "a whole number from 1 to 9", "default": "1", "searched": [], "help": ""}
    ]


def test_plan_needs_neither_a_run_nor_a_device_when_given_a_knob_list(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    knobs = {"tuner_version": "9", "tuner_options": [{"option": "-a", "allowed_values": "-a=[x|y|z]", "default_value": "x"}]}
    (job.folder / "knobs.json").write_text(json.dumps(knobs))
    job.write({"search": {"knobs": None}})
    plan = ok(job.call("--knobs", "knobs.json", "--trial-seconds", "2", "--json", command="plan")).json
    assert (plan["tuner"], plan["candidates"], plan["deviceSeconds"]) == ("9", 3, 36.0)
    assert not (job.out / "store").exists()
    (job.folder / "knobs.json").write_bytes(b"\xff\xfe")
    refused(job.call("--knobs", "knobs.json", command="plan"), Exit.BAD_INPUT, "knobs.json: knob list: not JSON")


def test_knobs_says_what_an_unbounded_knob_is_searched_over_once_it_is_included(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    listed = [("-kgen:topk_algo", "int", "0"), ("-new:depth", "int", "0")]
    knobs = {
        "tuner_version": "9",
        "tuner_options": [{"option": n, "allowed_values": d, "default_value": v} for n, d, v in listed],
    }
    (job.folder / "knobs.json").write_text(json.dumps(knobs))
    for include, searched in ((["-*"], []), (["-kgen:*"], ["-kgen:topk_algo"])):
        job.write({"search": {"knobs": {"include": include}}})
        answer = ok(job.call("--knobs", "knobs.json", "--json", command="knobs")).json["knobs"]
        assert [knob["name"] for knob in answer if knob["searched"]] == searched
    shown = ok(job.call("--knobs", "knobs.json", command="knobs")).out
    assert "16 32 64" in shown
    assert "(any number)" in shown


def test_an_exported_cache_comes_back_as_a_start(job: Job, finished: tuple[Job, Answer]) -> None:
    run = finished[1].out.split()[1]
    discovery = json.loads((job.out / "store" / layout.discovery(run)).read_text())
    (job.folder / "knobs.json").write_text(discovery["knobs"])
    assert ok(job.call("-o", "cache.json", "--json", command="export")).json == {"rows": 2, "file": "cache.json"}
    answer = ok(job.call("--knobs", "knobs.json", command="import", what="cache.json")).out
    assert yaml.safe_load(answer) == {"spec": {"search": {"startWith": ["-session:memory_pattern=off"]}}}
    as_json = ok(job.call("--knobs", "knobs.json", "--json", command="import", what="cache.json")).json
    assert as_json == {"startWith": ["-session:memory_pattern=off"], "rows": 2, "torn": False}
    refused(job.call(command="import", what="cache.json"), Exit.BAD_INPUT, "--knobs")
    refused(job.call("-o", "nowhere/cache.json", command="export"), Exit.STORE_UNUSABLE, "nowhere")
    assert job.leftovers() == []


def test_a_dry_collection_deletes_nothing(job: Job) -> None:
    before = job.files()
    answer = ok(job.call("--dry-run", "--json", command="gc", what="trtfleet-out/store")).json
    assert answer["dryRun"] is True
    assert answer["deleted"] == {}
    assert answer["kept"]["manifests"] == 1
    ok(job.call("--dry-run", command="gc", what="trtfleet-out/store"))
    assert job.files() == before
    ok(job.call(command="verify"))


@pytest.mark.parametrize("command", ["", *cli.list_commands(None)])
def test_every_command_explains_itself(command: str) -> None:
    answer = CliRunner().invoke(cli, [*([command] if command else []), "--help"])
    assert answer.exit_code == 0
    assert answer.stdout.startswith("Usage: ")
    assert command == "" or "--json" in answer.stdout
    assert all(len(line) <= 80 for line in answer.stdout.splitlines())


def test_the_model_is_never_written(finished: tuple[Job, Answer]) -> None:
    assert (finished[0].folder / "model.onnx").read_bytes() == _bytes(tiny_model())


def _bytes(model: onnx.ModelProto) -> bytes:
    return model.SerializeToString()
