"""TuningJobs for the cluster tests: a real model in the cluster's store, a search that takes a minute or two."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rig.kube.cluster import RUNTIME, Cluster, Tenant
from rig.kube.control_plane import Object
from rig.kube.object_store import BUCKET
from rig.tiny import write_tiny_model

from tuner_job.store.objects import ObjectStore

SWITCHES = (
    "-session:memory_pattern",
    "-session:cpu_arena",
    "-session:memory_reuse",
    "-session:prepacking:disable",
    "-graph:qdq:disable",
    "-session:intra_op_spinning",
    "-graph:disable:MatMulAddFusion",
    "-graph:disable:NchwcTransformer",
)
"""Knobs with two values each: one at a time gives as many trials."""


def upload_magika(cluster: Cluster, tenant: Tenant) -> str:
    """URI of magika's network (3 MB), as it lies in its Python package."""
    package = find_spec("magika")  # found, not imported, as the product does
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0]) / "models" / "standard_v3_3" / "model.onnx"
    return upload(cluster, tenant, path, "magika.onnx")


def upload_tiny(cluster: Cluster, tenant: Tenant, folder: Path) -> str:
    """URI of a network of three nodes, whose trials take little more than their processes' start."""
    return upload(cluster, tenant, write_tiny_model(folder / "tiny.onnx"), "tiny.onnx")


def upload(cluster: Cluster, tenant: Tenant, path: Path, name: str) -> str:
    key = f"models/{tenant.namespace}/{name}"
    ObjectStore.open(f"s3://{BUCKET}", cluster.s3.options).put_file(key, path)
    return f"s3://{BUCKET}/{key}"


def tuning_job(name: str, tenant: Tenant, model: Object, *, parallelism: int = 3, knobs: int = len(SWITCHES)) -> Object:
    """One CPU target. `model` is the spec's field of that name."""
    return {
        "apiVersion": "trtfleet.dev/v1alpha1",
        "kind": "TuningJob",
        "metadata": {"name": name, "namespace": tenant.namespace},
        "spec": {
            "model": model,
            "targets": [{"name": "cpu", "runtimeRef": {"name": RUNTIME}, "device": {"type": "CPU"}, "parallelism": parallelism}],
            "accuracy": {
                "source": "Generated",
                "generated": {"samples": 2},
                "metric": "cosine",
                "threshold": "0.001",
            },
            "measurement": {
                "sessions": 2,
                "sessionMilliseconds": 20,
                "warmupMilliseconds": 20,
                "warmupLimitMilliseconds": 200,
            },
            "search": {"strategy": "OneAtATime", "knobs": {"include": list(SWITCHES[:knobs])}},
            # A budget of device time keeps the final at its least size.
            "budget": {"maxTrials": knobs, "trialTimeoutSeconds": 120, "gpuSeconds": 3600},
            "storeRef": {"name": tenant.store},
        },
    }


def magika_job(name: str, tenant: Tenant, uri: str, **rest: int) -> Object:
    """The model of examples/magika.yaml, for one file at a time."""
    shapes = [{"name": "one-file", "tensors": {"bytes": {"opt": [1, 2048]}}}]
    return tuning_job(name, tenant, {"uri": uri, "shapes": shapes}, **rest)
