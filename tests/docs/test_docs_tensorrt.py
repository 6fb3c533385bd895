"""docs/tensorrt.md says what the code does: its tables are compared, its commands run, its results verified."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from cli_jobs import QUICK, Job
from stand_in.build import NoCompiler
from stand_in.stage import Stage
from tensorrt_run import tensorrt_job

from tuner_job.api.child import ChildRequest, Limits, MeasureSettings, ShapeCase
from tuner_job.api.measurement import BuilderSetting, Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.doctor.record import read_result
from tuner_job.doctor.table import BEGIN, END, NOT_RUN, confirmed_table, main, write_table
from tuner_job.routes.curated import CURATED
from tuner_job.routes.trtexec import trtexec_line
from tuner_job.trial.supervisor import Supervisor

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tensorrt.md"
TEXT = PAGE.read_text()
EXAMPLE = "examples/tensorrt/magika.yaml"
RESULTS = sorted((ROOT / "docs" / "confirmed").glob("*.json"))
BLOCKS = re.findall(r"^```shell\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]


def table(head: str) -> list[list[str]]:
    """The cells of the table whose first header cell is `head`, code marks left out."""
    found = re.search(rf"^\| {re.escape(head)} \|.*\n\|[-| ]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert found is not None, head
    return [[cell.strip().strip("`") for cell in row.strip("|").split(" | ")] for row in found[1].splitlines()]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    try:
        return Stage.make(tmp_path_factory.mktemp("stage") / "stage")
    except NoCompiler as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def offered(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> tuple[BuilderSetting, ...]:
    """What the backend offers under the scripted TensorRT."""
    with Supervisor(tmp_path_factory.mktemp("scratch"), extra_environment=stage.environment) as supervisor:
        request = ChildRequest(operation="describe", backend="tensorrt", device="GPU", output="")
        end = supervisor.run(request, Limits())
    assert end.report is not None, end.reason
    return end.report.settings


def test_the_settings_table_is_what_the_backend_offers(offered: tuple[BuilderSetting, ...]) -> None:
    assert [(name, values) for name, values, _ in table("setting")] == [(one.name, one.allowed) for one in offered]


def test_the_settings_table_names_trtexecs_flags(offered: tuple[BuilderSetting, ...]) -> None:
    flags = {name: flag for name, _, flag in table("setting")}
    for setting in offered:
        value = setting.values[-1] if setting.values else str(setting.low + 1)
        value = {"tf32": "off", "sparseWeights": "on"}.get(setting.name, value)
        line = trtexec_line(
            Candidate(settings={setting.name: value}),
            onnx="m",
            engine="e",
            cases=[ShapeCase(name="a")],
            measure=MeasureSettings(),
        )
        assert flags[setting.name] in {word.partition("=")[0] for word in line.argv}, setting.name


def test_the_table_of_unbounded_knobs_is_the_codes() -> None:
    assert {knob: tuple(values.split(", ")) for knob, values in table("knob")} == {
        knob: one.values for knob, one in CURATED.items()
    }


def test_every_outcome_that_the_page_names_is_one() -> None:
    rows = table("what happens")
    named = {word for _, outcome in rows for word in re.findall(r"`?([a-z][a-zA-Z]+)`?", outcome)}
    missing = {str(outcome) for outcome in Outcome} - named - {"feasible"}
    assert not missing, "each way to fail has a row"


def test_the_table_of_confirmed_devices_is_made_from_the_results() -> None:
    between = TEXT.partition(BEGIN)[2].partition(END)[0].strip()
    assert between == confirmed_table(ROOT / "docs" / "confirmed"), "run scripts/confirmed"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_every_committed_result_is_as_it_was_signed(path: Path) -> None:
    record, _ = read_result(path.read_bytes(), path.name)
    assert record.checks


def test_without_a_result_a_family_is_not_yet_run(tmp_path: Path) -> None:
    assert confirmed_table(tmp_path).count(NOT_RUN) == 2
    (tmp_path / "one.json").write_bytes(RESULTS[0].read_bytes())
    made = confirmed_table(tmp_path)
    assert made.count(NOT_RUN) == 1
    assert "| any | TensorRT |" in made
    assert "(confirmed/one.json)" in made


def test_a_changed_result_makes_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = RESULTS[0].read_bytes()
    (tmp_path / "bad.json").write_bytes(data.replace(b'"payload":"', b'"payload":"e30', 1))
    page = tmp_path / "page.md"
    page.write_text(f"a\n{BEGIN}\nold\n{END}\nb\n")
    assert main([str(tmp_path), str(page)]) == 64
    assert "bad.json" in capsys.readouterr().err
    assert "old" in page.read_text()


def test_writing_the_table_twice_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"a\n{BEGIN}\n{END}\nb\n")
    assert write_table(tmp_path, page)
    assert not write_table(tmp_path, page)
    assert page.read_text().startswith("a\n")
    assert page.read_text().endswith("\nb\n")
    page.write_text("no marks")
    assert main([str(tmp_path), str(page)]) == 64
    assert "has no place for the table" in capsys.readouterr().err


def test_the_script_calls_the_module() -> None:
    done = subprocess.run([ROOT / "scripts" / "confirmed"], capture_output=True, text=True, check=True)
    assert done.stdout == "docs/tensorrt.md: unchanged\n"


def test_commands_of_other_programs_name_what_is_there() -> None:
    others = [shlex.split(command) for command in COMMANDS if not command.startswith("trtfleet ")]
    assert [words[0] for words in others] == ["docker", "kubectl", "kubectl", "kubectl"]
    docker, apply, *_ = others
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"AS {docker[docker.index('--target') + 1]}\n" in dockerfile
    assert f"ARG {docker[docker.index('--build-arg') + 1].partition('=')[0]}=" in dockerfile
    assert (ROOT / apply[apply.index("--filename") + 1]).exists()
    pod = (ROOT / "examples" / "cluster" / "doctor.yaml").read_text()
    for words in others[1:]:
        assert "vision" not in words or "namespace: vision" in pod


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_pages_own_commands_work_in_their_order(stage: Stage, tmp_path: Path) -> None:
    job: Job = tensorrt_job(tmp_path / "job")
    shortened(EXAMPLE, job.folder / EXAMPLE)
    own = [shlex.split(command, comments=True) for command in COMMANDS if command.startswith("trtfleet ")]
    first, bridge = ["plan", "run", "knobs", "plan"], ["trtexec", "export", "knobs", "import"]
    assert [words[1] for words in own] == [*first, *bridge, "doctor", "doctor", "doctor"]
    said = []
    for words in own:
        done = subprocess.run(
            [ROOT / ".venv" / "bin" / words[0], *words[1:]],
            cwd=job.folder,
            env={**os.environ, **job.settings, **stage.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), (words, done.stdout)
        said.append(done.stdout)
    assert "3 builder settings with 5 values" in said[0]
    assert "published and verified" in said[1]
    assert "tilingOptimizationLevel" in said[2]
    assert "3 builder settings with 5 values" in said[3]
    assert "--setBuildRoute=" in said[4]
    assert (job.folder / "cache.json").exists()
    assert "-conv_use_long_w=off" in yaml.safe_load(said[7])["spec"]["search"]["startWith"]
    assert "confirmed for TensorRT 11.2.1.2" in said[8]
    assert "verified: signed by " in said[10]


def shortened(example: str, path: Path) -> None:
    """The example as it is, with a budget and sessions for a test."""
    runtime, job = yaml.safe_load_all((ROOT / example).read_text())
    job["spec"] |= {"measurement": QUICK, "budget": {"maxTrials": 2}}
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump_all([runtime, job]))
