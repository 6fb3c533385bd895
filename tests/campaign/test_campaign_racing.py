"""Trials that are raced, and trials that are not: real children on a real model."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from scripted_run import run_of, workspace

from tuner_job.api.child import MeasureSettings
from tuner_job.api.inputs import RunInputs, VariantInput
from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import DiscoveryRecord, PlannedTrial, ResultRecord, trial_id
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.baseline import Baseline
from tuner_job.campaign.discover import discover
from tuner_job.campaign.trials import TrialRunner
from tuner_job.campaign.workspace import Workspace
from tuner_job.measure.controls import scores
from tuner_job.measure.racing import LEAST_CONTROLS, bounds, races
from tuner_job.model.digest import digest
from tuner_job.store.beats import Heart
from tuner_job.store.ledger import Ledger
from tuner_job.store.objects import ObjectStore
from tuner_job.store.tries import Claim, Claims

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

SLOWED, SLOW_TO_BUILD = 600, 3_000
"""Nodes of the long way round."""
LONG = MeasureSettings(sessions=4, session_seconds=0.02, session_samples=5, warmup_seconds=0.5, warmup_limit_seconds=0.6)
"""Timing takes longer than building the tiny model."""
SHORT = MeasureSettings(sessions=2, session_seconds=1e-4, session_samples=1, warmup_seconds=0.0, warmup_limit_seconds=1e-4)
"""Timing takes no time beside building the long way round."""
FAST, SLOW = Candidate(route="-session:memory_pattern=off"), Candidate(variant="slow")
SLOW_TOO = Candidate(variant="slow", route=FAST.route)


def long_way_round(model: Path, path: Path, nodes: int) -> Path:
    """The same function; its input is negated so often first that it takes many times as long."""
    found = onnx.load(model)
    names = ["x", *(f"n{k}" for k in range(nodes))]
    detour = [helper.make_node("Neg", [names[k]], [names[k + 1]]) for k in range(nodes)]
    found.graph.node[0].input[0] = names[-1]
    detour += found.graph.node
    del found.graph.node[:]
    found.graph.node.extend(detour)
    onnx.save(found, path)
    return path


class Trials:
    """One worker's trials, a control before each, over a store with a ledger."""

    def __init__(self, folder: Path, wanted: RunInputs) -> None:
        self.store = ObjectStore.open((folder / "store").as_uri())
        self.space: Workspace = workspace(self.store, run_of(self.store, wanted), folder / "space")
        self.discovery: DiscoveryRecord = discover(self.space)
        self._baseline = Baseline(self.space, self.discovery)
        self._runner = TrialRunner(self.space, self.discovery, Ledger(self.store))
        run = self.space.run.run
        self._claims = Claims(self.store, run, Heart(self.store, run, worker="1-0", worker_id="w", stage="explore"))
        self.results: list[ResultRecord] = []

    def run(self, candidate: Candidate, repeat: int = 1) -> ResultRecord:
        planned = PlannedTrial(trial=trial_id(1, len(self.results)), candidate=candidate, shard=0, reason="", repeat=repeat)
        claim = self._claims.claim(planned.trial, candidate)
        assert isinstance(claim, Claim)
        self._baseline.ask_again()
        result = self._runner.run(planned, claim, self._baseline)
        self.results.append(ResultRecord.parse(result.to_json(), "result"))
        return self.results[-1]


def wanted(inputs: RunInputs, measure: MeasureSettings, **variants: Path) -> RunInputs:
    found = tuple(VariantInput(name=name, uri=path.as_uri(), digest=digest(path)) for name, path in variants.items())
    return inputs.model_copy(update={"variants": found, "measure": measure})


def test_a_slow_candidate_is_stopped_early_and_its_record_says_all_about_it(
    tiny_inputs: RunInputs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny = tmp_path / "tiny.onnx"
    inputs = wanted(tiny_inputs, LONG, default=tiny, slow=long_way_round(tiny, tmp_path / "slow.onnx", SLOWED))
    here = Trials(tmp_path, inputs)
    on, why = races(inputs.measure, inputs.constraints, here.discovery)
    assert on, why
    first = here.run(SLOW_TOO)
    assert (len(first.timing[0].sessions), first.stopped_over) == (4, None), "there are not controls enough yet"
    while len(here.results) < LEAST_CONTROLS - 1:
        here.run(FAST)

    stopped = here.run(SLOW, repeat=0)
    assert stopped.outcome is Outcome.FEASIBLE
    assert stopped.losses is not None
    assert stopped.losses.samples == 2, "its outputs were compared"
    assert len(stopped.timing[0].sessions) in (1, 2)
    assert stopped.seconds["measure"] > 0
    controls = [control.timing for result in here.results for control in result.controls]
    assert stopped.stopped_over in bounds(controls, here.discovery, LONG, {}), "the records alone give the bound again"
    assert math.log(np.median([one.median for one in stopped.timing[0].sessions])) > (stopped.stopped_over or 0)
    found = scores(here.results, here.discovery, "LatencyP50")
    assert found[stopped.trial].log_ratio > 1
    assert found[stopped.trial].sd > found[first.trial].sd

    known = Ledger(here.store).lookup(here.discovery.identity, SLOW)
    assert known is not None
    assert known.trial == stopped.trial, "as it came, with the sessions that it has"
    reused = here.run(SLOW, repeat=0)
    assert (reused.cached, reused.stopped_over, reused.timing) == (True, stopped.stopped_over, stopped.timing)
    here.space.run = here.space.run.model_copy(update={"inputs": inputs.model_copy(update={"constraints": {"LatencyP99": 1.0}})})
    with caplog.at_level("INFO"):
        anew = here.run(SLOW, repeat=0)
    assert (anew.cached, anew.stopped_over, len(anew.timing[0].sessions)) == (False, None, 4)
    assert "was stopped early" in caplog.text


def test_where_building_costs_more_than_timing_no_trial_is_raced(tiny_inputs: RunInputs, tmp_path: Path) -> None:
    model = long_way_round(tmp_path / "tiny.onnx", tmp_path / "slow.onnx", SLOW_TO_BUILD)
    inputs = wanted(tiny_inputs, SHORT, default=model)
    here = Trials(tmp_path, inputs)
    on, why = races(inputs.measure, inputs.constraints, here.discovery)
    assert not on, why
    assert why.startswith("off: building a default engine takes ")
    for _ in range(LEAST_CONTROLS):
        result = here.run(FAST)
    assert len(result.timing[0].sessions) == 2
    assert result.stopped_over is None
    assert b"stoppedOver" not in result.to_json(), "records of trials that were not stopped stay as they were"
