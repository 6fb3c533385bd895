"""Records of a run without a device: a knob list of eight switches and latencies that the test chooses."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.effective import inputs_digest, run_id
from tuner_job.api.inputs import AccuracyInput, Owner, RunInputs, RuntimeIdentity, SearchInput, VariantInput
from tuner_job.api.measurement import Candidate, Device, EngineFile, Losses, OutputLoss, Timing
from tuner_job.api.messages import DiscoveryRecord, PilotBuild, PlannedTrial, ResultRecord, RunRecord
from tuner_job.api.outcome import Outcome
from tuner_job.measure.samples import session

DIGEST = "ab" * 32
DEVICE = Device(type="CPU", product="Test CPU")
KNOBS = json.dumps(
    {
        "tuner_version": "1",
        "tuner_options": [
            {"option": f"-k{i}", "allowed_values": f"-k{i}=[on|off]", "default_value": "on", "help": ""} for i in range(8)
        ],
    }
)


def timing(seconds: float, spread: float = 0.002, seed: int = 0) -> Timing:
    """Five sessions of 20 samples about `seconds`."""
    rng = np.random.default_rng(seed)
    sessions = tuple(session(float(k), seconds * np.exp(rng.normal(0, spread, 20)), False) for k in range(5))
    return Timing(clock="host", sessions=sessions)


def losses(value: float = 0.0) -> Losses:
    return Losses(
        references_digest=DIGEST,
        samples=4,
        atol=1e-5,
        rtol=1e-5,
        outputs=(OutputLoss(output="y", worst_sample="default/0", l0=value, l1=value, l2=value, l_inf=value, cosine=value),),
    )


def run_record(strategy: str = "OneAtATime", *, shards: int = 2, threshold: float = 0.01, **search: object) -> RunRecord:
    inputs = RunInputs(
        runtime=RuntimeIdentity(family="ONNXRuntime", version="1"),
        variants=(VariantInput(uri="model.onnx", digest=DIGEST),),
        min_improvement=0.01,
        measure=MeasureSettings(),
        accuracy=AccuracyInput(source="Generated", metric="l1", threshold=threshold, screening_threshold=4 * threshold),
        search=SearchInput.model_validate({"strategy": strategy, "max_trials": 20, **search}),
    )
    digest = inputs_digest(inputs)
    owner = Owner(name="job")
    run = run_id(owner, "cpu", digest)
    return RunRecord(
        run=run, owner=owner, target="cpu", inputs=inputs, inputs_digest=digest, seed=7, shards=shards, created_at="now"
    )


def discovery_record(run: RunRecord) -> DiscoveryRecord:
    engine = EngineFile(digest=DIGEST, size=10, fingerprint="base")
    pilot = tuple(PilotBuild(engine=engine, timing=(timing(1e-3, seed=k),), seconds=2.0) for k in range(4))
    return DiscoveryRecord(
        run=run.run,
        device=DEVICE,
        versions={"onnxruntime": "1"},
        knobs=KNOBS,
        knobs_digest=DIGEST,
        identity=DIGEST,
        variants=run.inputs.variants,
        cases=(ShapeCase(name="default"),),
        references_digest=DIGEST,
        references_blob=DIGEST,
        baseline_losses=losses(),
        pilot=pilot,
        build_sd=0.002,
        session_sd=0.003,
        trial_seconds=2.0,
    )


def result_record(
    run: RunRecord,
    planned: PlannedTrial,
    effects: Mapping[str, float] | None = None,
    *,
    outcome: Outcome = Outcome.FEASIBLE,
    loss: float = 0.0,
    seconds: float = 2.0,
) -> ResultRecord:
    """A result whose latency is 1 ms times the product of `effects` (token → factor) of the route's tokens."""
    factor = float(np.prod([(effects or {}).get(token, 1.0) for token in planned.candidate.route.split()]))
    measured = outcome in (Outcome.FEASIBLE, Outcome.INFEASIBLE)
    return ResultRecord(
        run=run.run,
        trial=planned.trial,
        candidate=planned.candidate,
        outcome=outcome,
        tries=1,
        worker="1-0",
        worker_id="w",
        seconds={"total": seconds},
        engine=EngineFile(digest=DIGEST, size=10, fingerprint=planned.candidate.id) if measured else None,
        losses=losses(loss) if measured else None,
        timing=(timing(1e-3 * factor, seed=int(planned.candidate.id[:6], 16)),) if measured else (),
        finished_at="now",
    )


def route(*tokens: str) -> Candidate:
    return Candidate(route=" ".join(tokens))
