"""The documentation's commands are run as they are written, and its tables say what the code does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tuner_job.cli.exits import Exit
from tuner_job.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

EXAMPLE = "examples/magika.yaml"

MAKE = {
    "make run": f".venv/bin/trtfleet run {EXAMPLE}",
    "make test": "scripts/test",
    "make bench-aa": ".venv/bin/python -m bench.aa simulate",
    "make bench-operator": ".venv/bin/python -m bench.operator.settle",
    "make bench-tensorrt": ".venv/bin/python -m bench.tensorrt_scripted",
    "make bench-rtx": ".venv/bin/python -m bench.rtx_builds",
    "make e2e": ".venv/bin/python -m pytest -q tests/e2e",
    "make e2e-faults": ".venv/bin/python -m bench.faults",
}
"""Targets that pages name, with what they must call: each is run elsewhere (here, by CI, or by hand for hours)."""

BY_HAND = "docs/publishing.md"
"""Its OpenSSL script is run by tests/store."""


def blocks(page: Path, *languages: str) -> list[list[str]]:
    """The commands of a page's code blocks, less comments; a line that ends in a backslash goes on."""
    found = re.findall(rf"^```({'|'.join(languages)})\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [
        [shlex.join(parts) for line in text.replace("\\\n", " ").splitlines() if (parts := shlex.split(line, comments=True))]
        for _, text in found
    ]


COMMANDS = sorted({command for page in PAGES for block in blocks(page, "console", "sh") for command in block})
TRTFLEET = [command for command in COMMANDS if ".venv/bin/trtfleet" in command]


def test_every_command_of_a_page_is_of_a_kind_that_is_tested() -> None:
    assert TRTFLEET
    assert not [command for command in COMMANDS if command not in TRTFLEET and command not in MAKE]
    assert [page for page in PAGES if "```bash" in page.read_text()] == [ROOT / BY_HAND]


@pytest.mark.parametrize("target", sorted({command for command in COMMANDS if command.startswith("make ")} | MAKE.keys()))
def test_a_make_target_calls_what_it_is_for(target: str) -> None:
    shown = subprocess.run([*target.split(), "-n"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert MAKE[target] in shown.stdout.splitlines()


def test_targets_that_pages_mention_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z0-9-]+)", page.read_text())}
    known = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named <= known


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_readmes_commands_work_in_their_order(tmp_path: Path) -> None:
    """One real run of the example, then everything that the pages do with it."""
    env = os.environ | {"TRTFLEET_CONFIG": str(tmp_path / "config"), "XDG_STATE_HOME": str(tmp_path / "state")}

    def call(command: str) -> str:
        parts = shlex.split(command)
        parts[0] = str(ROOT / parts[0])
        done = subprocess.run([*parts, "--folder", str(tmp_path / "out")], cwd=ROOT, env=env, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (Exit.OK, ""), command
        return done.stdout

    said = call(MAKE["make run"])
    assert "published and verified" in said
    assert "Proven: " in said or ": the default engine is published" in said
    (report,) = (tmp_path / "out" / "reports").iterdir()
    assert report.read_text().startswith("<!DOCTYPE html>")
    answers = {command: call(command) for command in TRTFLEET}
    assert "verified: manifest" in answers[f".venv/bin/trtfleet verify {EXAMPLE}"]
    assert "magika" in answers[f".venv/bin/trtfleet history {EXAMPLE}"]
    assert "-session:intra_op_threads" in answers[f".venv/bin/trtfleet knobs {EXAMPLE}"]
    assert "at most 14 trials" in answers[f".venv/bin/trtfleet plan {EXAMPLE}"]
    assert list((tmp_path / "out" / "scratch").iterdir()) == []


def test_the_page_has_every_command_and_no_other() -> None:
    table = (ROOT / "docs" / "cli.md").read_text().split("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`([a-z]+) ", row)}
    assert named == set(cli.list_commands(None))  # type: ignore[arg-type]


def test_options_that_the_page_names_exist() -> None:
    table = (ROOT / "docs" / "cli.md").read_text().split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|[^|]*\| ([^|]+) \|$", table, re.MULTILINE)
    assert len(rows) > 8
    for names, worth in rows:
        commands = [cli.get_command(None, name) for name in re.findall(r"`([a-z]+) ", names)]  # type: ignore[arg-type]
        known = {option for command in commands if command for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"`(--?[a-z]+[a-z-]*)(?=[ `])", worth)) <= known, names


def test_the_page_has_every_exit_code() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (\S.*) \|$", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    assert [(int(code), name) for code, name, _ in rows] == [(int(each), each.name) for each in Exit]


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
