"""A cluster in memory with one TuningJob, and the store where its workers' records lie."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fake_api import FakeApi
from rig.faulty import FaultyStore

from tuner_job.api.base import digest_of
from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.inputs import AccuracyInput, Owner, RunInputs, RuntimeIdentity, SearchInput, VariantInput
from tuner_job.api.measurement import BASELINE, Candidate, Device, EngineFile, Losses, OutputLoss, Session, Timing
from tuner_job.api.messages import (
    BeatRecord,
    DiscoveryRecord,
    FinalBuild,
    PilotBuild,
    PlannedTrial,
    PlanRecord,
    RunRecord,
    VerdictRecord,
    trial_id,
)
from tuner_job.campaign.start import start_run
from tuner_job.measure.decision import decide
from tuner_job.store import layout
from tuner_job.store.blobs import put_blob
from tuner_job.store.keys import Signer
from tuner_job.store.objects import Info, Object, ObjectStore
from tuner_job.store.records import create_record, put_record
from tuning_operator.actions import CreateJob
from tuning_operator.catalog import Catalog
from tuning_operator.config import OperatorConfig
from tuning_operator.jobs import names
from tuning_operator.jobs.render import render
from tuning_operator.kube.api import ARTIFACT_STORES, JOBS, PODS, TUNER_CHANNELS, TUNER_RUNTIMES, TUNING_JOBS
from tuning_operator.kube.api import Object as Body
from tuning_operator.reconcile.act import Actor
from tuning_operator.reconcile.gather import Gatherer
from tuning_operator.reconcile.memory import Memory
from tuning_operator.reconcile.wanted import parse_job, store_of, wanted_of
from tuning_operator.records.mirror import Mirror
from tuning_operator.records.publisher import Publisher
from tuning_operator.records.stores import Stores
from tuning_operator.snapshot import Snapshot, Stage, StoreView, TargetSnapshot, Wanted

IMAGE = f"registry.example/worker@sha256:{'ab' * 32}"
DEVICE = Device(type="CPU", product="EPYC 9654", count=2, compute_capability="avx512f", driver="6.8.0")
AT = "2026-11-30T10:00:00Z"
OWNER = Owner(cluster="lab", namespace="team", name="demo")


class CountingStore(FaultyStore):
    """Notes what is asked of it: (`get`, key) and so on. `gate`, if set, is waited for before each operation."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked: list[tuple[str, str]] = []
        self.gate: threading.Event | None = None
        self.entered = threading.Event()
        self._lock = threading.Lock()

    def _note(self, verb: str, key: str) -> None:
        with self._lock:
            self.asked.append((verb, key))
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(60)

    def times(self, verb: str, key: str) -> int:
        return Counter(self.asked)[verb, key]

    def get(self, key: str, max_bytes: int) -> Object | None:
        self._note("get", key)
        return super().get(key, max_bytes)

    def create(self, key: str, data: bytes) -> bool:
        self._note("create", key)
        return super().create(key, data)

    def put(self, key: str, data: bytes) -> None:
        self._note("put", key)
        super().put(key, data)

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        self._note("swap", key)
        return super().swap(key, data, tag)

    def list(self, prefix: str) -> Iterator[Info]:
        self._note("list", prefix)
        return super().list(prefix)

    def info(self, key: str) -> Info | None:
        self._note("info", key)
        return super().info(key)

    def delete(self, key: str) -> None:
        self._note("delete", key)
        super().delete(key)


def counting_store() -> CountingStore:
    return CountingStore(ObjectStore.open(f"memory://{secrets.token_hex(8)}"))


def tuning_job(name: str = "demo", target: Mapping[str, Any] | None = None, **spec: Any) -> Body:
    one = {"name": "cpu", "runtimeRef": {"name": "ort"}, "device": {"type": "CPU"}, **(target or {})}
    whole = {"model": {"uri": "s3://models/demo.onnx"}, "storeRef": {"name": "main"}, "targets": [one], **spec}
    return {"metadata": {"name": name}, "spec": whole}


def artifact_store(**spec: Any) -> Body:
    allowed = [{"name": "team", "prefix": "lab/team"}]
    return {"metadata": {"name": "main"}, "spec": {"url": "s3://tuning", "allowedNamespaces": allowed, **spec}}


def runtime(name: str = "ort", version: str = "1.23.2", image: str | None = IMAGE) -> Body:
    spec = {"family": "ONNXRuntime", "version": version} | ({"image": image} if image else {})
    return {"metadata": {"name": name}, "spec": spec}


@dataclass
class Cluster:
    """What an operator meets, and its parts that look and act. `store` is whatever any URL of an ArtifactStore leads to."""

    folder: Path
    api: FakeApi = field(default_factory=FakeApi)
    store: CountingStore = field(default_factory=counting_store)
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        key = self.folder / "signing-key.pem"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(Signer.generate()._private_pem())
        self.config = OperatorConfig(
            cluster="lab", operator_namespace="trtfleet", signing_key=key, stores_folder=self.folder / "stores", **self.settings
        )
        self.clock = 0.0
        self.catalog = Catalog(self.api)
        self.memory = Memory(lambda: self.clock)
        self.stores = Stores(self.config, opener=lambda _url, _options: self.store, clock=lambda: self.clock)
        self.mirror = Mirror()
        self.publisher = Publisher(key)
        self.gatherer = Gatherer(self.config, self.api, self.catalog, self.stores, self.mirror, self.memory)
        self.actor = Actor(self.config, self.api, self.catalog, self.stores, self.publisher, self.memory)

    async def start(self, job: Body | None = None) -> None:
        """With runtimes, a channel, a store and the job."""
        self.api.seed(TUNER_RUNTIMES, runtime())
        self.api.seed(TUNER_RUNTIMES, runtime("bare", image=None))
        self.api.seed(TUNER_CHANNELS, {"metadata": {"name": "stable"}, "spec": {"runtimeRef": {"name": "ort"}}})
        self.api.seed(ARTIFACT_STORES, artifact_store())
        self.api.seed(TUNING_JOBS, job or tuning_job(), "team")
        await self.catalog.resync()

    async def look(self, name: str = "demo") -> Snapshot:
        """Without what the look asked for in the logs of API and store."""
        self.api.requests.clear()
        self.store.asked.clear()
        snapshot = await self.gatherer.gather("team", name)
        assert isinstance(snapshot, Snapshot)
        return snapshot

    def wanted(self, target: str = "cpu", name: str = "demo") -> Wanted:
        body = self.api.peek(TUNING_JOBS, name, "team")
        assert body is not None
        job = parse_job(body)
        store = store_of(job, self.catalog)
        assert isinstance(store, StoreView)
        own = next(each for each in job.spec.targets if each.name == target)
        wanted = wanted_of(job, own, store, self.catalog, self.config)
        assert isinstance(wanted, Wanted)
        return wanted

    def run(self, target: str = "cpu") -> RunRecord:
        """Its `run.json`, written if need be."""
        wanted = self.wanted(target)
        return start_run(self.store.inner, OWNER, target, wanted.inputs, shards=2, rerun_token=wanted.rerun_token)

    def settle(self, run: str, target: str = "cpu") -> None:
        """Write the status of a job whose run is over."""

        def change(body: Body) -> None:
            past = {"id": run, "trigger": "Created", "reason": "Proven", "finishedTime": AT}
            body["status"] = {
                "observedGeneration": body["metadata"]["generation"],
                "targets": [{"name": target, "recentRuns": [past]}],
            }

        self.api.edit(TUNING_JOBS, "demo", "team", change)

    def seed_pod(self, job: Body, uid: str, index: int = 0, **status: Any) -> Body:
        """A pod as the job controller would make it, of a Job that is (or was) there."""
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        labels = {**job["spec"]["template"]["metadata"]["labels"], "batch.kubernetes.io/job-completion-index": str(index)}
        metadata = {
            "name": f"{job['metadata']['name']}-{index}-{uid[-5:]}",
            "uid": uid,
            "labels": labels,
            "ownerReferences": [owner | {"controller": True}],
        }
        return self.api.seed(PODS, {"metadata": metadata, "spec": {}, "status": {"phase": "Running", **status}}, "team")

    def set_job(self, name: str, **status: Any) -> None:
        self.api.edit(JOBS, name, "team", lambda body: body.update(status=status))


def asyncly(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """A test on a cluster of its own."""

    def run(tmp_path: Path) -> None:
        async def main() -> None:
            cluster = Cluster(tmp_path)
            try:
                await test(cluster)
            finally:
                await cluster.stores.close()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def target(snapshot: Snapshot, name: str = "cpu") -> TargetSnapshot:
    return next(each for each in snapshot.targets if each.name == name)


def seed_job(
    cluster: Cluster, stage: Stage = "discover", attempt: int = 1, *, snapshot: Snapshot, name: str = "cpu", run: str = ""
) -> Body:
    """The Job that act would create."""
    seen = target(snapshot, name)
    assert seen.wanted is not None
    body = render(CreateJob(name, seen.wanted, stage, attempt, 1, 0, 0.0), snapshot.job, seen.run, cluster.config)
    if run:
        body["metadata"]["name"] += "x"
        body["metadata"]["labels"][names.RUN] = body["spec"]["template"]["metadata"]["labels"][names.RUN] = run
    return cluster.api.seed(JOBS, body, "team")


COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
FAILED = {"conditions": [{"type": "Failed", "status": "True", "reason": "FailedIndexes", "message": "an index failed"}]}


# What operator and workers leave behind.


def begun(store: ObjectStore, *, device_seconds: float = 0.0) -> RunRecord:
    """A run that was only started. `device_seconds`: its budget; another one is another run."""
    inputs = RunInputs(
        runtime=RuntimeIdentity(family="ONNXRuntime", version="1.23.2"),
        variants=(VariantInput(uri="s3://models/demo.onnx", digest="ab" * 32),),
        min_improvement=0.01,
        measure=MeasureSettings(),
        accuracy=AccuracyInput(source="Generated", threshold=1e-3, screening_threshold=1e-2),
        search=SearchInput(device_seconds=device_seconds),
    )
    return start_run(store, OWNER, "cpu", inputs, shards=2)


def beat(worker: str = "1-0", **more: Any) -> BeatRecord:
    plain = {"worker": worker, "workerId": f"uid-{worker}", "sequence": 1, "stage": "discover", "at": AT, **more}
    return BeatRecord.from_json(json.dumps({"kind": "Beat", **plain}))


def write_beat(store: ObjectStore, run: RunRecord, record: BeatRecord) -> None:
    put_record(store, layout.beat(run.run, record.worker), record)


def engine_of(run: RunRecord) -> bytes:
    return f"engine of {run.run}".encode() * 50


def losses() -> Losses:
    loss = OutputLoss(output="y", worst_sample="only/0", l0=0, l1=0, l2=0, l_inf=0, cosine=0)
    return Losses(references_digest=digest_of(b"references"), samples=8, atol=1e-5, rtol=1e-5, outputs=(loss,))


def write_discovery(store: ObjectStore, run: RunRecord) -> DiscoveryRecord:
    timing = Timing(clock="host", sessions=(Session(at=0, median=0.001, mean=0.001, count=20, samples=""),))
    default = EngineFile(digest=digest_of(b"default"), size=7)
    record = DiscoveryRecord(
        run=run.run,
        device=DEVICE,
        versions={"onnxruntime": "1.23.2"},
        knobs="{}",
        knobs_digest=digest_of(b"{}"),
        identity=digest_of(b"identity"),
        variants=run.inputs.variants,
        cases=(ShapeCase(name="only"),),
        references_digest=digest_of(b"references"),
        references_blob=put_blob(store, b"references"),
        baseline_losses=losses(),
        pilot=(PilotBuild(engine=default, timing=(timing,), seconds=2.0),),
        build_sd=0.01,
        session_sd=0.01,
        trial_seconds=2.0,
    )
    create_record(store, layout.discovery(run.run), record)
    return record


def write_plan(store: ObjectStore, run: RunRecord, number: int, trials: int = 4, **more: Any) -> PlanRecord:
    """An explore round of new trials, or with `stage="final"` the final's."""
    planned = tuple(
        PlannedTrial(trial=trial_id(number, index), candidate=Candidate(route=f"-k={number}{index}"), shard=index % 2, reason="-")
        for index in range(trials if more.get("stage", "explore") == "explore" else 0)
    )
    plan = PlanRecord.model_validate(
        {"run": run.run, "round": number, "stage": "explore", "trials": planned, "reason": "-", **more}
    )
    create_record(store, layout.plan(run.run, number), plan)
    return plan


def write_verdict(store: ObjectStore, run: RunRecord, *, significant: bool = True, **changed: Any) -> VerdictRecord:
    """A consistent one, of five builds of the candidate against ten of the default; its engine is in the store."""
    rng = np.random.default_rng(0)
    names = [f"candidate-{k}" for k in range(1, 6)], [f"baseline-{k}" for k in range(1, 11)]
    sessions: dict[str, tuple[Session, ...]] = {}
    for seconds, group in zip((0.00088 if significant else 0.001, 0.001), names, strict=True):
        for name in group:
            medians = [float(f"{value:.9g}") for value in seconds * np.exp(rng.normal(0, 0.002, 12))]
            sessions[name] = tuple(
                Session(at=float(k), median=value, mean=value, count=20, samples="") for k, value in enumerate(medians)
            )
    inputs = run.inputs
    decision = decide(
        {name: (own,) for name, own in sessions.items()},
        *names,
        weights=[1.0],
        metric=inputs.measure.metric,
        min_improvement=inputs.min_improvement,
        seed=run.seed,
    )
    data = engine_of(run)
    engine = EngineFile(digest=put_blob(store, data), size=len(data))
    pick = Candidate(route="-k=10")
    verdict = VerdictRecord(
        run=run.run,
        inputs_digest=run.inputs_digest,
        identity=digest_of(b"identity"),
        device=DEVICE,
        candidate=pick,
        significant=decision.significant,
        reason="Proven" if decision.significant else "NoSignificantWin",
        message=decision.message,
        p_value=decision.p_value,
        route_gain=decision.route_gain,
        published=pick if decision.significant else BASELINE,
        engine=engine,
        engine_gain=decision.engine_gain,
        engine_percentile=decision.engine_percentile,
        losses=losses(),
        latency_seconds=decision.latency_seconds,
        baseline_seconds=decision.baseline_seconds,
        builds=tuple(
            FinalBuild(
                name=name,
                engine=engine if name == decision.published else EngineFile(digest=digest_of(name.encode()), size=9),
                losses=losses(),
                sessions=(own,),
            )
            for name, own in sessions.items()
        ),
        samples_blob=put_blob(store, b"samples"),
        method=decision.method,
        seconds=60.0,
        finished_at=AT,
    )
    verdict = verdict.model_copy(update=changed)
    create_record(store, layout.verdict(run.run), verdict)
    return verdict


def finish(store: ObjectStore, run: RunRecord, *, significant: bool = True, **changed: Any) -> VerdictRecord:
    """All of a run, from discovery to verdict."""
    write_discovery(store, run)
    write_plan(store, run, 1)
    write_plan(store, run, 2, stage="final", pick={"route": "-k=10"})
    return write_verdict(store, run, significant=significant, **changed)
