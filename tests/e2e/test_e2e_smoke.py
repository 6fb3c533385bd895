"""A TuningJob on a real cluster: helm installs the operator, pods tune a real model, the engine is published and verified."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from e2e_jobs import SWITCHES, magika_job, upload_magika
from rig.kube.cluster import NAME, Cluster, Tenant, onnxruntime_version
from rig.kube.control_plane import Object
from rig.waiting import wait_for

from tuner_job.api.messages import ResultRecord, TryRecord
from tuner_job.campaign.reader import RunReader
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import read_record

TUNING_SECONDS = 900
"""On two busy cores; alone it takes two or three minutes."""

JOB = "magika"
WORKERS = 3


@pytest.fixture(scope="module")
def tenant(cluster: Cluster) -> Tenant:
    return cluster.new_tenant()


@pytest.fixture(scope="module")
def tuned(cluster: Cluster, tenant: Tenant) -> Object:
    """The TuningJob once it is ready."""
    cluster.plane.apply(magika_job(JOB, tenant, upload_magika(cluster, tenant), parallelism=WORKERS))
    cluster.plane.kubectl(
        *("wait", f"tuningjob/{JOB}", "--namespace", tenant.namespace, "--for=condition=Ready", f"--timeout={TUNING_SECONDS}s"),
        seconds=TUNING_SECONDS + 60,
    )
    return cluster.plane.get("tuningjob", JOB, "--namespace", tenant.namespace)


def test_a_tuning_job_becomes_ready_with_numbers(tuned: Object) -> None:
    conditions = {each["type"]: each["status"] for each in tuned["status"]["conditions"]}
    (target,) = tuned["status"]["targets"]

    assert conditions["Ready"] == "True"
    assert conditions["Tuned"] == "True"
    assert conditions["Published"] == "True"
    assert tuned["status"]["observedGeneration"] == tuned["metadata"]["generation"]
    assert target["progress"] == f"{len(SWITCHES)}/{len(SWITCHES)}"
    assert target["trials"]["feasible"] == len(SWITCHES)
    assert target["published"]["digest"].startswith("sha256:")
    assert target["gpuSeconds"] > 0


def test_several_pods_explored_their_shards_at_the_same_time(tenant: Tenant, tuned: Object) -> None:
    store = tenant.address.open()
    run = tuned["status"]["targets"][0]["recentRuns"][0]["id"]
    spans = {}
    for trial in explored(store, run):
        result = read_record(store, layout.result(run, trial), ResultRecord)
        claim = read_record(store, layout.claim(run, trial, 1), TryRecord)
        assert result is not None
        assert claim is not None
        spans.setdefault(result.worker_id, []).append((claim.started_at, result.finished_at))

    assert sum(map(len, spans.values())) == len(SWITCHES), "each trial ran once"
    assert len(spans) > 1, "one pod explored everything"
    lives = sorted((min(start for start, _ in each), max(end for _, end in each)) for each in spans.values())
    assert any(first[1] > second[0] for first, second in pairwise(lives)), "no two pods worked at the same time"


def test_the_engine_verifies_under_the_operators_key(cluster: Cluster, tenant: Tenant, tuned: Object, tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    said = subprocess.run(
        cluster.plane.machine.command(
            *(sys.executable, "-m", "tuner_job.cli.main", "verify"),
            f"{NAME}/{tenant.namespace}/{JOB}/cpu/{onnxruntime_version()}",
            *("--store", tenant.address.url, "--trust", cluster.public_key, "--output-file", engine, "--json"),
        ),
        env={
            **os.environ,
            "AWS_ACCESS_KEY_ID": cluster.s3.access_key,
            "AWS_SECRET_ACCESS_KEY": cluster.s3.secret_key,
            "AWS_ENDPOINT_URL_S3": cluster.s3.inner_endpoint,
            "AWS_REGION": cluster.s3.options["region"],
        },
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    verified = json.loads(said.stdout)

    published = tuned["status"]["targets"][0]["published"]
    assert published["digest"] == f"sha256:{verified['engine']['digest']}"
    assert published["manifest"] == f"sha256:{verified['manifest']}"
    assert engine.stat().st_size == verified["engine"]["size"]


def test_prometheus_counts_the_trials(cluster: Cluster, tuned: Object) -> None:
    told = tuned["status"]["targets"][0]["trials"]["feasible"]

    def scraped() -> bool:
        return cluster.prometheus.value('sum(tuning_operator_trials_total{outcome="feasible"})') == told

    wait_for(f"Prometheus has scraped that {told} trials were feasible", scraped, seconds=60)


def test_the_finished_job_leaves_no_pods_behind(cluster: Cluster, tenant: Tenant, tuned: Object) -> None:
    def gone() -> bool:
        return not cluster.plane.get("pods", "--namespace", tenant.namespace)["items"]

    assert tuned
    wait_for("the workers' pods are gone", gone, seconds=120)


def explored(store: ObjectStore, run: str) -> list[str]:
    """Trials of the explore rounds."""
    plans = RunReader(store, run).plans()
    return [trial.trial for plan in plans if plan.stage != "final" for trial in plan.trials]
