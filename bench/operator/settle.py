"""A restart over many finished TuningJobs: how long until each was looked at, how much memory that takes, what is written after.

    python -m bench.operator.settle --jobs 1000 --quiet-seconds 600

Real etcd and API server in a machine of their own (tests/rig/kube) and the real operator process, all on the same cores. The
TuningJobs are real objects, each with the status that `decide` writes at the end of a run, so the operator finds nothing to do.
Nobody listens where their store should be: a finished TuningJob must not touch it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "tests" / "operator")]

from operator_process import OperatorProcess  # noqa: E402
from rig.kube.control_plane import ControlPlane, new_control_plane  # noqa: E402
from rig.waiting import wait_for  # noqa: E402

from tuner_job.api.measurement import Device  # noqa: E402
from tuner_job.api.messages import RunRecord  # noqa: E402
from tuner_job.api.tuningjob_status import GainInterval, Incumbent, PublishedEngine  # noqa: E402
from tuner_job.campaign.start import seed_of  # noqa: E402
from tuning_operator.catalog import Catalog  # noqa: E402
from tuning_operator.config import OperatorConfig  # noqa: E402
from tuning_operator.kube.api import (  # noqa: E402
    ARTIFACT_STORES,
    TUNER_RUNTIMES,
    TUNING_JOBS,
    AlreadyExists,
    KubeApi,
    Object,
)
from tuning_operator.kube.client import open_client  # noqa: E402
from tuning_operator.reconcile.decide import decide  # noqa: E402
from tuning_operator.reconcile.wanted import owner_of, parse_job, store_of, wanted_of  # noqa: E402
from tuning_operator.snapshot import (  # noqa: E402
    Problem,
    Publication,
    RunView,
    Snapshot,
    TargetSnapshot,
    VerdictView,
    WorkerCounts,
)

USER = "bench-operator"
NAMESPACE = "bench"
IMAGE = f"registry.example/worker@sha256:{'0' * 64}"
DEVICE = Device(type="GPU", product="NVIDIA-L40S", compute_capability="8.9", driver="580.95")
AT_ONCE = 16
LIMIT_SECONDS, LIMIT_BYTES = 60.0, 256 << 20
"""What it must reach."""
PATIENCE_SECONDS = 600.0
CONFIG = OperatorConfig(cluster="bench", operator_namespace=NAMESPACE)

RESULTS = REPOSITORY / "bench" / "results"


@dataclass(frozen=True)
class Figures:
    """What was measured."""

    jobs: int
    load: float
    """Processes that wanted a processor when the operator was started (average over a minute): others' work beside the bench."""
    leading_seconds: float
    """From the start of the process until it held the Lease."""
    settled_seconds: float
    """From there until it had looked at each TuningJob."""
    looks: int
    """In that time."""
    peak_bytes: int
    """VmHWM once settled."""
    peak_bytes_later: int
    """VmHWM at the end of the quiet time."""
    cpu_seconds: float
    """Of the operator, until settled."""
    writes_while_settling: dict[str, int]
    """Verb and resource → requests."""
    quiet_seconds: float
    writes_while_quiet: dict[str, int]
    resyncs_while_quiet: int
    status_bytes: int
    """Mean size of a TuningJob's status, as JSON."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--quiet-seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "operator-settle", help="less its suffixes")
    arguments = parser.parse_args()
    with bench_plane() as plane, tempfile.TemporaryDirectory() as folder:
        print(f"creating {arguments.jobs} finished TuningJobs", flush=True)
        size = asyncio.run(create_finished(plane.kubeconfig, arguments.jobs))
        figures = measure(plane, Path(folder), arguments.jobs, arguments.quiet_seconds, size)
    write(figures, arguments.out)
    print(arguments.out.with_suffix(".md").read_text())
    missed = figures.settled_seconds > LIMIT_SECONDS or figures.peak_bytes_later > LIMIT_BYTES or figures.writes_while_quiet
    sys.exit(1 if missed else 0)


@contextmanager
def bench_plane() -> Iterator[ControlPlane]:
    with new_control_plane(lose_nodes=False) as plane:
        plane.kubectl("apply", "--server-side", "--filename", REPOSITORY / "crds")
        plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "--filename", REPOSITORY / "crds")
        plane.kubectl("create", "namespace", NAMESPACE)
        yield plane


def measure(plane: ControlPlane, folder: Path, jobs: int, quiet_seconds: float, status_bytes: int) -> Figures:
    """Start the operator's process and watch it from outside."""
    user = plane.authority.kubeconfig(plane.server, USER, "system:masters")
    settings = {"cluster": CONFIG.cluster, "operatorNamespace": NAMESPACE, "storesFolder": str(folder)}
    before, load = plane.audit_log.stat().st_size, os.getloadavg()[0]
    began = time.monotonic()
    with OperatorProcess(folder / "operator", user, settings) as operator:
        wait_for("the operator leads", lambda: operator.metric("leader") == 1, PATIENCE_SECONDS, every=0.05)
        leading = time.monotonic()
        wait_for("all were looked at", lambda: operator.metric("jobs", phase="Done") == jobs, PATIENCE_SECONDS, every=0.25)
        settled = time.monotonic()
        looks = int(operator.metric("reconcile_total", result="ok"))
        peak, cpu = peak_bytes(operator.process.pid), cpu_seconds(operator.process.pid)
        wait_for("the queue is empty", lambda: operator.metric("workqueue_depth") == 0, PATIENCE_SECONDS)
        quiet_from, offset = time.monotonic(), plane.audit_log.stat().st_size
        resyncs = _resyncs(operator)
        while (left := quiet_from + quiet_seconds - time.monotonic()) > 0:
            time.sleep(min(left, 10.0))
            assert operator.process.poll() is None, operator.tail()
        figures = Figures(
            jobs=jobs,
            load=load,
            leading_seconds=leading - began,
            settled_seconds=settled - leading,
            looks=looks,
            peak_bytes=peak,
            peak_bytes_later=peak_bytes(operator.process.pid),
            cpu_seconds=cpu,
            writes_while_settling=_writes(plane, before, offset),
            quiet_seconds=quiet_seconds,
            writes_while_quiet=_writes(plane, offset, None),
            resyncs_while_quiet=_resyncs(operator) - resyncs,
            status_bytes=status_bytes,
        )
        assert operator.metric("reconcile_total", result="error") == 0, operator.tail()
        assert operator.stop() == 0, operator.tail()
    return figures


def _resyncs(operator: OperatorProcess) -> int:
    return sum("resync:" in line["message"] for line in operator.lines())


def _writes(plane: ControlPlane, start: int, end: int | None) -> dict[str, int]:
    """Of the operator, less its Lease. Whole lines only lie between two sizes of the log."""
    requests = [each for each in plane.requests(start) if each.user == USER and each.writes and each.resource != "leases"]
    later = 0 if end is None else sum(_writes(plane, end, None).values())
    return dict(Counter(f"{each.verb} {each.what}" for each in requests[: len(requests) - later]))


def peak_bytes(pid: int) -> int:
    """VmHWM."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def cpu_seconds(pid: int) -> float:
    """User and system time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def create_finished(kubeconfig: Path, jobs: int) -> int:
    """Create the TuningJobs with their statuses; the mean size of one in bytes."""
    async with open_client(kubeconfig) as api:
        catalog = Catalog(api)
        await _create_once(api)
        await catalog.resync()
        room = asyncio.Semaphore(AT_ONCE)

        async def create(number: int) -> int:
            async with room:
                body = await api.create(TUNING_JOBS, tuning_job(f"finished-{number:05d}", number), NAMESPACE)
                status = finished_status(body, catalog)
                await api.apply_status(TUNING_JOBS, body["metadata"]["name"], NAMESPACE, status)
                return len(json.dumps(status))

        sizes = await asyncio.gather(*(create(number) for number in range(jobs)))
    return sum(sizes) // max(1, len(sizes))


async def _create_once(api: KubeApi) -> None:
    allowed = [{"name": NAMESPACE, "prefix": NAMESPACE}]
    store = {"url": "s3://bench", "endpoint": "http://127.0.0.1:1", "allowedNamespaces": allowed}
    runtime = {"family": "TensorRT", "version": "11.2.1.2", "image": IMAGE}
    for resource, spec in ((ARTIFACT_STORES, store), (TUNER_RUNTIMES, runtime)):
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "bench"}, "spec": spec}
        try:
            await api.create(resource, body)
        except AlreadyExists:
            continue


def tuning_job(name: str, number: int) -> Object:
    return {
        "apiVersion": TUNING_JOBS.api_version,
        "kind": TUNING_JOBS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "model": {"uri": f"s3://models/{number}/model.onnx"},
            "storeRef": {"name": "bench"},
            "targets": [
                {
                    "name": "l40s",
                    "runtimeRef": {"name": "bench"},
                    "device": {"type": "GPU", "gpu": {"product": DEVICE.product}},
                    "parallelism": 8,
                }
            ],
            "budget": {"gpuSeconds": 36_000, "maxTrials": 200},
        },
    }


def finished_status(body: Object, catalog: Catalog) -> Object:
    """What `decide` writes when the run has its verdict and the engine is served."""
    job = parse_job(body)
    target = job.spec.targets[0]
    store = store_of(job, catalog)
    assert not isinstance(store, Problem), store
    wanted = wanted_of(job, target, store, catalog, CONFIG)
    assert not isinstance(wanted, Problem), wanted
    record = RunRecord(
        run=wanted.run,
        owner=owner_of(job, CONFIG),
        target=target.name,
        inputs=wanted.inputs,
        inputs_digest=wanted.digest,
        seed=seed_of(wanted.run),
        shards=8,
        created_at="2026-11-30T08:00:00Z",
    )
    run = RunView(
        record=record,
        stage=None,
        round=4,
        planned=200,
        device=DEVICE,
        incumbent=Incumbent(variant="default", route="-mha_fusion=off -tiling_optimization_level=3", gain="0.1310"),
        counts=WorkerCounts(outcomes={"feasible": 161, "refused": 24, "crashed": 9, "infeasible": 6}, device_seconds=18_211.0),
        verdict=VerdictView(significant=True, reason="Proven", gain="0.1234", message="12.3% faster (95%: 10.1 to 14.5)"),
    )
    engine, manifest = f"sha256:{wanted.digest}", f"sha256:{wanted.digest[::-1]}"
    served = PublishedEngine(
        uri=f"{store.url}/blobs/sha256/{wanted.digest}",
        digest=engine,
        manifest=manifest,
        runtime=wanted.runtime.name,
        speedup="0.1234",
        interval=GainInterval(low="0.1010", high="0.1450", confidence="0.95"),
    )
    seen = TargetSnapshot(target.name, wanted=wanted, run=run, publication=Publication("Served", manifest, served))
    decision = decide(Snapshot(job, datetime.now(UTC), (seen,)), CONFIG)
    assert decision.actions == (), decision.actions
    assert decision.status.phase == "Done", decision.status
    status: Object = decision.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return status


def write(figures: Figures, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    out.with_suffix(".json").write_text(json.dumps({"figures": asdict(figures), "on": machine}, indent=1) + "\n")
    out.with_suffix(".md").write_text(page(figures))


def page(figures: Figures) -> str:
    def count(writes: dict[str, int]) -> str:
        return ", ".join(f"{number} × {what}" for what, number in sorted(writes.items())) or "none"

    def mib(count: int) -> str:
        return f"{count / (1 << 20):.0f} MiB"

    time_limit, memory_limit = f"< {LIMIT_SECONDS:.0f} s", f"≤ {mib(LIMIT_BYTES)}"
    later = f"{figures.quiet_seconds:.0f} s more"
    rows = (
        (f"TuningJobs, finished, with statuses of {figures.status_bytes:,} bytes", f"{figures.jobs:,}", "1,000"),
        ("load average over the minute before the start", f"{figures.load:.1f}", ""),
        ("start of the process until it holds the Lease", f"{figures.leading_seconds:.1f} s", ""),
        ("from there until each TuningJob was looked at", f"**{figures.settled_seconds:.1f} s**", time_limit),
        ("looks in that time", f"{figures.looks:,}", ""),
        ("processor time of the operator until then", f"{figures.cpu_seconds:.1f} s", ""),
        ("peak resident memory (VmHWM) until then", f"**{mib(figures.peak_bytes)}**", memory_limit),
        (f"peak resident memory after {later}", f"**{mib(figures.peak_bytes_later)}**", memory_limit),
        (
            "writes until then, less the Lease's",
            count(figures.writes_while_settling),
            "the store's and the runtime's first status",
        ),
        (f"writes in {later}, less the Lease's", f"**{count(figures.writes_while_quiet)}**", "none"),
        ("resyncs in that time", str(figures.resyncs_while_quiet), ""),
    )
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"""# Restart of the operator over finished TuningJobs

`python -m bench.operator.settle --jobs {figures.jobs} --quiet-seconds {figures.quiet_seconds:.0f}`. Real etcd, API server,
controller manager and scheduler and the real operator process, all on the same {os.cpu_count()} cores.

| what | measured | to reach |
|---|---|---|
{table}
"""


if __name__ == "__main__":
    main()
