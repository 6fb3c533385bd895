"""What must stay true of the repository itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True, text=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


@pytest.fixture(autouse=True)
def in_a_checkout() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the tracked files are not known")


def test_operator_is_no_package_since_the_name_is_pythons_own() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()


@pytest.mark.parametrize("lock", ["bootstrap", "run", "dev", "examples", "rtx", "bench"])
def test_every_dependency_is_locked_by_version_and_hash(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert pins
    for line in pins:
        assert re.match(r"^[A-Za-z0-9_.-]+==[^ ]+", line), line
    assert text.count("--hash=sha256:") >= len(pins)


def test_no_lock_names_an_address() -> None:
    for path in tracked("requirements", "*.lock"):
        assert "://" not in path.read_text(), path


def test_every_package_says_what_it_is_for() -> None:
    for path in tracked("tuner_job/*.py", "tuner_job/**/*.py"):
        assert path.read_text().lstrip().startswith('"""'), f"{path.relative_to(ROOT)} has no docstring"


def test_modules_stay_readable() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in tracked("tuner_job")
        if p.suffix == ".py" and (n := len(p.read_text().splitlines())) > 600
    }
    assert not long, "split them by noun"
