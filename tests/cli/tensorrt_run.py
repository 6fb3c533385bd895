"""A finished run of a TensorRT job, made of records: what the commands read needs no GPU."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from cli_jobs import Job

from tuner_job.api.base import digest_of
from tuner_job.api.child import ShapeCase
from tuner_job.api.measurement import BASELINE, BuilderSetting, Candidate, Device, EngineFile, Losses, OutputLoss, Session, Timing
from tuner_job.api.messages import DiscoveryRecord, PilotBuild, PlannedTrial, PlanRecord, Record, ResultRecord, VerdictRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.start import start_run
from tuner_job.cli.jobfile import JobFile, open_place
from tuner_job.store import layout
from tuner_job.store.records import create_record

KNOBS = (Path(__file__).parents[1] / "data" / "all_build_routes-11.2.1.2.json").read_text()
ROUTE = "-conv_use_long_w=off -kgen:tiling=2"
WINNER = Candidate(route=ROUTE, settings={"optimizationLevel": "4", "workspaceBytes": "1073741824"})
RUNTIME = {
    "apiVersion": "trtfleet.dev/v1alpha1",
    "kind": "TunerRuntime",
    "metadata": {"name": "trt"},
    "spec": {"family": "TensorRT", "version": "11.2.1.2"},
}
SPEC = {"targets": [{"name": "h200", "runtimeRef": {"name": "trt"}, "device": {"type": "GPU"}}]}
ENGINE = EngineFile(digest="a" * 64, size=9)


def timing(milliseconds: float) -> Timing:
    seconds = milliseconds / 1e3
    return Timing(clock="device", sessions=(Session(at=0, median=seconds, mean=seconds, count=5, samples=""),))


def losses(value: float) -> Losses:
    one = OutputLoss(output="y", worst_sample="0", l0=value, l1=value, l2=value, l_inf=value, cosine=value)
    return Losses(references_digest="b" * 64, samples=2, atol=1e-5, rtol=1e-5, outputs=(one,))


TRIALS = (
    (Candidate(route="-conv_use_long_w=off"), {"outcome": Outcome.FEASIBLE, "timing": (timing(0.8),), "losses": losses(0.0001)}),
    (Candidate(route=ROUTE), {"outcome": Outcome.FEASIBLE, "timing": (timing(0.5),), "losses": losses(0.002)}),
    (Candidate(route="-kgen:tiling=0"), {"outcome": Outcome.INVALID_OUTPUT, "reason": "y: NaN", "losses": losses(0.0)}),
    (WINNER, {"outcome": Outcome.FEASIBLE, "timing": (timing(0.4),), "losses": losses(0.0)}),
)


def tensorrt_job(folder: Path, *, verdict: bool = True, significant: bool = True) -> Job:
    """Its store holds discovery, one round of TRIALS, and a verdict. The second one's loss passes screening alone."""
    job = Job(folder)
    accuracy = {"threshold": "0.001", "screeningThreshold": "0.01"}
    job.write({**SPEC, "accuracy": accuracy, "search": {"strategy": "Adaptive", "knobs": None}}, RUNTIME)
    with mock.patch.dict(os.environ, job.settings):
        file = JobFile.load(job.file)
        target = file.target(None)
        inputs = file.inputs(target)
        store = open_place(str(job.out / "store")).store
        run = start_run(store, file.owner, target.name, inputs, shards=1).run
    device = Device(type="GPU", product="NVIDIA H200", compute_capability="9.0", driver="580.65.06")
    shape = ShapeCase(name="one", tensors={"x": (1, 32)}, minimum={"x": (1, 32)}, maximum={"x": (1, 32)})

    def write(key: str, record: Record) -> None:
        assert create_record(store, key, record)

    write(
        layout.discovery(run),
        DiscoveryRecord(
            run=run, device=device, versions={"tensorrt": "11.2.1.2"}, knobs=KNOBS, knobs_digest=digest_of(KNOBS.encode()),
            settings=(BuilderSetting(name="avgTimingIterations", low=1, high=9, default="1"),),
            identity="c" * 64, variants=inputs.variants, cases=(shape,), references_digest="b" * 64, references_blob="d" * 64,
            baseline_losses=losses(0.00005), pilot=(PilotBuild(engine=ENGINE, timing=(timing(1.0),), seconds=1.0),),
            build_sd=0.001, session_sd=0.01, trial_seconds=1.0,
        ),
    )  # fmt: skip
    trials = tuple(
        PlannedTrial(trial=f"001-{k:05d}", candidate=candidate, shard=0, reason="one at a time")
        for k, (candidate, _) in enumerate(TRIALS)
    )
    write(layout.plan(run, 1), PlanRecord(run=run, round=1, stage="explore", trials=trials, reason="new ones"))
    for planned, (candidate, fields) in zip(trials, TRIALS, strict=True):
        record = ResultRecord(
            run=run, trial=planned.trial, candidate=candidate, tries=1, worker="1-0", worker_id="w", finished_at="now", **fields
        )  # type: ignore[arg-type]
        write(layout.result(run, planned.trial), record)
    if verdict:
        write(
            layout.verdict(run),
            VerdictRecord(
                run=run, inputs_digest="e" * 64, identity="c" * 64, device=device, candidate=WINNER, significant=significant,
                reason="Proven" if significant else "NoSignificantWin", message="found it",
                published=WINNER if significant else BASELINE, engine=ENGINE, losses=losses(0.0), latency_seconds=0.4e-3,
                baseline_seconds=1e-3, builds=(), seconds=9.0, finished_at="now",
            ),
        )  # fmt: skip
    return job
