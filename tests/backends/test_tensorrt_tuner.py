"""Knobs and builder settings: what the real setter lets through is checked before any build; libraries without a tuner say so."""

from __future__ import annotations

import json

import pytest
from tensorrt_trials import DEAD, LIVE, Trials, seconds, trials

from tuner_job.api.outcome import Outcome
from tuner_job.routes.knobs import parse_knob_list

__all__ = ["trials"]

ANOTHER = "-transpose_ppg=off"
SETTINGS = {
    "optimizationLevel",
    "tilingOptimizationLevel",
    "l2LimitForTiling",
    "maxAuxStreams",
    "maxNumTactics",
    "avgTimingIterations",
    "workspaceBytes",
    "tacticSharedMemoryBytes",
    "tf32",
    "sparseWeights",
}


def fingerprint(end) -> str:
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert end.report.engine.fingerprint
    return end.report.engine.fingerprint


def test_the_real_list_of_211_knobs_is_described(trials: Trials):
    end = trials.run("describe")
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert end.report is not None
    knobs = parse_knob_list(end.report.knobs or "")
    assert (len(knobs), len(knobs.bounded), knobs.tuner_version) == (211, 197, "2.20.51")
    assert end.report.versions["tensorrt"] == "11.2.1.2"
    assert {one.name for one in end.report.settings} == SETTINGS


@pytest.mark.parametrize(
    ("route", "named"),
    [
        ("-no_such_knob=on", "-no_such_knob"),
        ("-slice_fusion=maybe", "maybe"),
        ("-slice_fusion", "-slice_fusion"),
        ("slice_fusion=off", "slice_fusion"),
        ("-peep:max=many", "many"),
    ],
)
def test_what_the_knob_list_lacks_is_unsupported_before_any_build(trials: Trials, route, named):
    end = trials.run(route=route)
    assert end.outcome is Outcome.UNSUPPORTED, end.reason
    assert named in end.reason
    assert trials.stage.count("build") == 0


def test_a_list_without_knobs_is_no_crash_and_leaves_builder_settings(trials: Trials):
    for script, reason in [
        ({"knobs": "empty"}, "empty"),
        ({"knobs": "malformed"}, "cannot be read"),
        ({"knobs": "absent"}, "has no tuner"),
        ({"version": "11.0.0.114"}, "came with TensorRT 11.1"),
        ({"version": "10.9.0.34"}, "came with TensorRT 11.1"),
    ]:
        trials.script(script)
        end = trials.run("describe")
        assert end.outcome is Outcome.FEASIBLE, end.reason
        assert end.report is not None
        assert json.loads(end.report.knobs or "")["tuner_options"] == []
        knobs = parse_knob_list(end.report.knobs or "")
        assert reason in knobs.missing, script
        end = trials.run(route=LIVE)
        assert end.outcome is Outcome.UNSUPPORTED
        assert knobs.missing in end.reason
        end = trials.run(settings={"optimizationLevel": "0"})
        assert end.outcome is Outcome.FEASIBLE, end.reason
        assert seconds(end) == pytest.approx(0.001 * 1.419, rel=0.05), "the planted truth of level 0"


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizationLevel": "5"},
        {"tilingOptimizationLevel": "FULL", "l2LimitForTiling": "1048576"},
        {"maxAuxStreams": "0"},
        {"maxNumTactics": "8"},
        {"avgTimingIterations": "8"},
        {"workspaceBytes": "1073741824", "tacticSharedMemoryBytes": "49152"},
        {"tf32": "off", "sparseWeights": "on"},
    ],
)
def test_builder_settings_reach_the_builder(trials: Trials, settings):
    trials.script({"when": {f"{name}={value}": "refuse" for name, value in settings.items()}})
    end = trials.run(settings=settings)
    assert end.outcome is Outcome.REFUSED, "the stand-in refuses exactly these values"
    assert trials.run().outcome is Outcome.FEASIBLE


@pytest.mark.parametrize(
    "settings", [{"optimizationLevel": "6"}, {"optimizationLevel": "three"}, {"tf32": "maybe"}, {"fp16": "on"}]
)
def test_builder_settings_that_are_none_are_unsupported_before_any_build(trials: Trials, settings):
    end = trials.run(settings=settings)
    assert end.outcome is Outcome.UNSUPPORTED, end.reason
    assert next(iter(settings)) in end.reason
    assert trials.stage.count("build") == 0


def test_knobs_that_change_nothing_make_an_engine_of_equal_fingerprint(trials: Trials):
    default = fingerprint(trials.run())
    assert fingerprint(trials.run()) == default, "two default builds"
    assert fingerprint(trials.run(route=DEAD)) == default
    assert fingerprint(trials.run(route=f"{DEAD} {ANOTHER}")) == default
    assert fingerprint(trials.run(route=LIVE)) != default


def test_builds_that_differ_each_time_have_fingerprints_of_their_own(trials: Trials):
    trials.script({"when": {"always": "anotherEachTime"}})
    assert fingerprint(trials.run()) != fingerprint(trials.run())


def test_a_timing_cache_is_written_and_makes_the_next_build_choose_alike(trials: Trials, tmp_path):
    trials.script({"luck": 1.0, "seed": 3})
    first = trials.run("compile", output=str(tmp_path / "first"))
    cache = tmp_path / "first" / "timing-cache"
    assert cache.stat().st_size > 0
    luck = {fingerprint(trials.run("compile", output=str(tmp_path / f"without-{n}"))) for n in range(5)}
    assert len(luck) > 1, "without the cache builds differ"
    before = cache.read_bytes()
    fields = [{"timing_cache": str(cache), "output": str(tmp_path / f"with-{n}")} for n in range(5)]
    with_cache = {fingerprint(trials.run("compile", **each)) for each in fields}
    assert with_cache == {fingerprint(first)}
    assert cache.read_bytes() == before


def test_a_timing_cache_that_cannot_be_used_costs_nothing_but_itself(trials: Trials, tmp_path):
    garbage = tmp_path / "cache"
    garbage.write_bytes(b"no cache")
    assert trials.run(timing_cache=str(garbage)).outcome is Outcome.FEASIBLE
    garbage.write_text(json.dumps({"standInTimingCache": "10.0.0.0", "entries": {}}))
    assert trials.run(timing_cache=str(garbage)).outcome is Outcome.FEASIBLE
