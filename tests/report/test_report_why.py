"""The page's sections on what made the difference, and under which conditions it was measured."""

from __future__ import annotations

import gzip

import pytest
from layer_profiles import ONNXRUNTIME, TENSORRT, layer, profile, stored
from report_runs import Run, digest, explored, knob, timing
from test_report_html import HOSTILE, Parsed

from tuner_job.api.base import digest_of
from tuner_job.api.measurement import DeviceState, EngineFile
from tuner_job.api.messages import Control, FinalBuild, trial_id
from tuner_job.report.data import as_json, page_of
from tuner_job.report.html import render
from tuner_job.report.why import why_of
from tuner_job.store import layout


def text_of(run: Run) -> str:
    return " ".join(" ".join(Parsed(render(page_of(run.reader))).text).split())


def decided(layers: tuple | None = None, **fields: object) -> Run:
    run = explored().final_plan(2, knob(0))
    if layers:
        fields["layers_blob"] = stored(run, *layers)
    return run.verdict(knob(0), **fields)


def same_builds(candidate: str, baseline: str) -> tuple[FinalBuild, ...]:
    run = explored().final_plan(2, knob(0)).verdict(knob(0))
    verdict = run.reader.verdict()
    assert verdict is not None
    prints = {"candidate": candidate, "baseline": baseline}
    return tuple(
        build.model_copy(
            update={"engine": EngineFile(digest=digest(k), size=9, fingerprint=prints[build.name.partition("-")[0]])}
        )
        for k, build in enumerate(verdict.builds)
    )


@pytest.mark.parametrize(
    ("layers", "changed"), [(TENSORRT, "1 × tactic, 1 × fused, 1 × format"), (ONNXRUNTIME, "2 × only in the default")]
)
def test_the_page_says_what_changed_and_where_the_time_went(layers: tuple, changed: str):
    run = decided(layers)
    said = text_of(run)
    assert "Why it won" in said
    assert changed in said
    assert f"The default has {len(layers[0].layers)} layers, the candidate {len(layers[1].layers)}." in said
    assert "slows the whole" in said
    assert "default's layers candidate's layers default's time candidate's time saved" in " ".join(said.split())
    assert "A tactic is the kernel" in said
    assert len(Parsed(render(page_of(run.reader))).all("svg")) == 8


def test_the_chart_tells_who_cannot_see_it_what_changed_most():
    labels = [svg["aria-label"] for svg in Parsed(render(page_of(decided(TENSORRT).reader))).all("svg")]
    assert [label for label in labels if "conv_1, relu_1 (fused): 40 against 24 µs" in label]


def test_the_share_is_of_what_the_layers_show():
    said = text_of(decided(TENSORRT))
    assert "take 100 µs in the default and 70 µs in the candidate: 30.0% less" in said
    assert "The parts that differ account for 100% of that." in said


def test_a_gain_that_no_layer_shows_lies_between_them():
    one = profile(layer("a", "a", tactic="1"), layer("b", "b"))
    other = profile(layer("a", "a", tactic="2"), layer("b", "b"))
    assert "it lies between them" in text_of(decided((one, other)))


def test_no_layers_are_one_line():
    page = page_of(decided().reader)
    assert page.why.missing.startswith("No layers are on record")
    assert not page.why.lines


def test_a_final_without_a_candidate_has_nothing_to_compare():
    run = explored().final_plan(2, None).verdict(None, significant=False, reason="NoCandidate")
    assert page_of(run.reader).why.missing.startswith("The final had no candidate")


def test_untimed_layers_still_show_what_changed():
    untimed = tuple(profile(*(one.model_copy(update={"seconds": None}) for one in side.layers)) for side in TENSORRT)
    page = page_of(decided(untimed).reader)
    assert "not timed one by one" in " ".join(page.why.lines)
    assert len(page.why.changes) == 3
    assert page.why.top == ()
    assert "could not be drawn" not in render(page)


def test_equal_engines_are_called_the_same():
    page = page_of(decided((TENSORRT[0], TENSORRT[0]), builds=same_builds("f", "f")).reader)
    assert page.why.lines[0].startswith("Candidate and default are the same engine")
    assert page.why.changes == ()
    without = page_of(decided(builds=same_builds("f", "f")).reader)
    assert without.why.missing.startswith("Candidate and default are the same engine")


def test_fingerprints_that_did_not_hold_make_no_engines_the_same():
    run = decided(builds=same_builds("f", "f"))
    verdict = run.reader.verdict()
    assert why_of(verdict, dict).missing.startswith("Candidate and default are the same engine")
    assert why_of(verdict, dict, fingerprints_hold=False).missing.startswith("No layers are on record")


def test_equal_layers_under_different_fingerprints_are_not_called_the_same():
    said = text_of(decided((TENSORRT[0], TENSORRT[0]), builds=same_builds("f", "g")))
    assert "No layer differs as far as the library tells." in said
    assert "the same engine" not in said


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"no gzip", "not gzip"),
        (gzip.compress(b"{")[:-4], "cut off"),
        (gzip.compress(b'{"winner": {"layers": []}}'), "not the layers of a final"),
    ],
)
def test_a_damaged_blob_is_said_and_costs_nothing_else(data: bytes, why: str):
    run = explored().final_plan(2, knob(0))
    run.store.put(layout.blob(digest_of(data)), data)
    run.verdict(knob(0), layers_blob=digest_of(data))
    page = page_of(run.reader)
    assert why in page.why.missing
    assert page.leaders


def test_a_blob_that_is_gone_is_said():
    assert "is gone" in page_of(decided(layers_blob=digest(77)).reader).why.missing


def test_names_of_layers_stay_text():
    foreign = profile(layer(HOSTILE, HOSTILE, kind=HOSTILE, tactic=HOSTILE, formats=(HOSTILE,)))
    html = render(page_of(decided((foreign, profile(layer("x", HOSTILE, us=7)))).reader))
    assert html.count("<script>") == 1
    assert "could not be drawn" not in html


def test_the_page_as_data_has_the_comparison():
    answer = as_json(page_of(decided(TENSORRT).reader))
    assert isinstance(answer, dict)
    assert answer["why"]["changes"][0]["what"] == "fused"


STATE = DeviceState(
    uuid="GPU-1",
    sm_clock_mhz=1980,
    max_sm_clock_mhz=1980,
    memory_clock_mhz=10501,
    power_watts=71.25,
    power_limit_watts=700.0,
    ecc=True,
    throttle_reasons=("swPowerCap",),
)


def test_conditions_are_a_table_by_stage():
    run = explored()
    capped = timing(0.0)
    sessions = tuple(s.model_copy(update={"power_capped": k < 2}) for k, s in enumerate(capped.sessions))
    run.plan(2, [knob(8), knob(9)])
    run.result(
        trial_id(2, 0), knob(8), timing=(capped.model_copy(update={"sessions": sessions}),), state=STATE,
        controls=(),
    )  # fmt: skip
    cool = STATE.model_copy(update={"sm_clock_mhz": 1200})
    control = Control(engine=digest(2), timing=(capped,), state=cool)
    run.result(trial_id(2, 1), knob(9), timing=(capped,), controls=(control,))
    run.seal(2, [trial_id(2, 0), trial_id(2, 1)]).final_plan(3, knob(0))
    run.verdict(knob(0), states=(STATE, STATE.model_copy(update={"sm_clock_mhz": 1410, "throttle_reasons": ()})))
    page = page_of(run.reader)
    assert page.conditions.stages == ("explore", "final")
    rows = dict(page.conditions.rows)
    assert rows["SM clock at the start"] == ("1,200 to 1,980 MHz", "1,410 to 1,980 MHz")
    assert rows["power limit"] == ("700 W", "700 W")
    assert rows["memory clock at the start"] == ("10,501 MHz", "10,501 MHz")
    assert rows["power at the start"] == ("71.2 W", "71.2 W")
    assert rows["ECC"] == ("on", "on")
    assert rows["clock limits in force"] == ("swPowerCap (2 of 2)", "swPowerCap (1 of 2)")
    sessions = 5 * (5 + 2 + 3)  # five trials of round 1, the new ones, and three controls
    assert rows["sessions at the power cap"][0] == f"{2 / sessions:.0%} of {sessions}"
    assert "VBIOS" not in rows
    assert "Conditions" in text_of(run)


def test_a_run_on_a_cpu_has_one_line_instead():
    page = page_of(explored().reader)
    assert page.conditions.rows == ()
    assert "Nothing is on record of clocks" in text_of(explored())


def test_trials_that_gave_the_defaults_engine_are_marked():
    run = Run()
    run.discover()
    discovery = run.reader.discovery()
    assert discovery is not None
    pilot = tuple(
        build.model_copy(update={"engine": EngineFile(digest=digest(k), size=9, fingerprint="f")})
        for k, build in enumerate(discovery.pilot)
    )
    again = Run()
    again._write(layout.discovery(run.run.run), discovery.model_copy(update={"pilot": pilot, "notes": ("TensorRT 11.2 here",)}))
    again.plan(1, [knob(0), knob(1), knob(2)])
    for k, fingerprint in enumerate(["f", "g", ""]):
        again.result(trial_id(1, k), knob(k), 0.0, engine=EngineFile(digest=digest(40 + k), size=9, fingerprint=fingerprint))
    assert [row.same_engine for row in page_of(again.reader).trials] == [True, False, False]
    said = text_of(again)
    assert said.count("the same engine as the default") == 1
    assert "TensorRT 11.2 here" in said
