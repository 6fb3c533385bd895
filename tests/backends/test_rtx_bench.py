"""The command in which TensorRT for RTX builds for real: what its page says of made-up builds, and one real model."""

from __future__ import annotations

import pytest

from bench.rtx_builds import BACKEND, DEFAULT_BUILDS, Tried, main, page, tries, values_of
from tuner_job.api.child import ChildReport
from tuner_job.api.measurement import BuilderSetting, EngineFile


def engine(digit: str, size: int = 1000) -> EngineFile:
    return EngineFile(digest=digit * 64, size=size)


def tried(setting: str, value: str, made: EngineFile | None, model: str = "net", reason: str = "") -> Tried:
    return Tried(model, setting, value, "feasible" if made else "refused", 0.5, made, reason)


def described(*settings: BuilderSetting) -> ChildReport:
    return ChildReport(status="ok", versions={BACKEND: "1.7"}, settings=settings, notes=("it has no tuner",))


def row(text: str, start: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_engines_are_compared_with_all_default_builds_of_their_model():
    text = page(
        [
            tried("", "", engine("1")),
            tried("", "", engine("2")),
            tried("tf32", "on", engine("2")),
            tried("tf32", "off", engine("3")),
            tried("maxAuxStreams", "0", engine("4", 999)),
        ],
        described(),
        "now",
    )
    assert row(text, "net")[1:] == ["2 of 2", "0.50", "1,000", "2"]
    assert row(text, "tf32 | on")[-1] == "same bytes as a default build: net"
    assert row(text, "tf32 | off")[-1] == "other bytes, same size: net"
    assert row(text, "maxAuxStreams | 0")[-1] == "another size: net"


def test_another_models_default_is_no_default():
    text = page(
        [tried("", "", engine("1"), "a"), tried("", "", engine("2"), "b"), tried("tf32", "on", engine("2"), "a")],
        described(),
        "now",
    )
    assert row(text, "tf32 | on")[-1] == "other bytes, same size: a"


def test_what_was_refused_is_counted_and_explained():
    text = page(
        [
            tried("", "", engine("1")),
            tried("workspaceBytes", "0", None, reason="no | room"),
            tried("", "", engine("1"), "b"),
            tried("workspaceBytes", "0", engine("1"), "b"),
        ],
        described(),
        "now",
    )
    assert "4 builds in children of the supervisor, 3 built, 1 not" in text
    assert row(text, "workspaceBytes | 0")[2] == "1 of 2"
    assert "| workspaceBytes = 0 | net | refused | no \\| room |" in text
    assert "- it has no tuner" in text


def test_every_setting_that_is_offered_is_tried():
    flag = BuilderSetting(name="tf32", values=("on", "off"))
    number = BuilderSetting(name="maxAuxStreams", low=0, high=9)
    values = values_of(described(flag, number))
    assert values == {"tf32": ("on", "off"), "maxAuxStreams": ("0", "1", "4")}
    assert sorted(set(tries(values))) == sorted([("", ""), *((name, value) for name in values for value in values[name])])
    assert list(tries(values)).count(("", "")) == DEFAULT_BUILDS
    with pytest.raises(SystemExit, match="colours"):
        values_of(described(BuilderSetting(name="colours", low=0, high=9)))


def test_an_example_that_does_not_exist_is_named_with_those_that_do(capsys):
    with pytest.raises(SystemExit):
        main(["--model", "no-such"])
    assert "magika" in capsys.readouterr().err
