"""Small whole campaigns over the stand-in for TensorRT: the command, workers, children and the backend are real."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from stand_in.stage import Stage

from tuner_job.api.outcome import Outcome
from tuner_job.routes.knobs import parse_knob_list

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import tensorrt_scripted as bench

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEED = 5


def knobs(tokens: list[str]) -> list[str]:
    return sorted({token.partition("=")[0] for token in tokens})


def test_a_campaign_survives_every_failure_and_proves_the_planted_winner(tmp_path):
    truth, failing = bench.planted(SEED)
    live = sorted((token for token in truth.effects if token.startswith("-") and token not in truth.needs), key=truth.effects.get)
    quick = [token for token, action in failing.items() if action != "hang"]
    search = {"strategy": "OneAtATime", "knobs": {"include": knobs([*live[:2], live[-1], *quick])}}
    campaign = bench.run(tmp_path, 16, SEED, search)
    results, verdict = campaign.finished.results, campaign.finished.verdict
    alone = {result.candidate.route: result for result in results}
    for token in quick:
        assert alone[token].outcome is bench.FAILING[failing[token]], f"{failing[token]}: {alone[token].reason}"
    assert all(campaign.as_planted(result) for result in results)
    assert verdict.significant, verdict.message
    assert verdict.published.route == live[0], "the best of the planted changes"
    assert verdict.route_gain is not None
    assert verdict.route_gain.estimate == pytest.approx(-math.expm1(truth.log_ratio([live[0]])), abs=0.01)
    rests_on_the_default = [token for token in quick if failing[token] in ("nan", "wrong", "executeFails", "loadFails")]
    assert Stage(tmp_path / "stage").count("cacheHit") >= len(rests_on_the_default), "explore builds with discover's timing cache"
    assert verdict.layers_blob is not None, "the report can say why it won"
    assert all(result.state is not None and result.state.uuid for result in results if result.timing)


def test_without_a_tuner_variants_and_builder_settings_compete_under_one_accuracy_gate(tmp_path):
    bench.write_model(tmp_path / "model.onnx")
    for name in ("half", "eight"):
        bench.write_model(tmp_path / f"{name}.onnx", name)
    effects = {"model=half": -0.3, "model=eight": -0.7}
    script = {"version": "11.0.0.114", "truth": {"effects": effects}, "when": {"model=eight": "wrong"}, "luck": 0.2, "noise": 0.2}
    search = {"strategy": "OneAtATime", "builder": {"settings": {"optimizationLevel": ["0"], "tf32": ["off"]}}}
    variants = [{"name": name, "uri": f"{name}.onnx"} for name in ("half", "eight")]
    finished = bench.finish(tmp_path, script, bench.job(search, 8, version="11.0.0.114", variants=variants))
    assert "came with TensorRT 11.1" in parse_knob_list(finished.discovery.knobs).missing
    by_variant = {result.candidate.variant: result for result in finished.results if not result.candidate.settings}
    assert by_variant["half"].outcome is Outcome.FEASIBLE
    assert by_variant["eight"].outcome is Outcome.INFEASIBLE, "it is faster still, and wrong"
    settings = [result for result in finished.results if result.candidate.settings]
    assert {tuple(one.candidate.settings.items()) for one in settings} == {(("optimizationLevel", "0"),), (("tf32", "off"),)}
    assert all(result.outcome is Outcome.FEASIBLE for result in settings)
    assert finished.verdict.published.variant == "half", finished.verdict.message
