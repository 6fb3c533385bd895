from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_jobs import A100_MIG, CLAIMS, CONFIG, CPU, GPU, L40S, XEON, tuning_job

from tuner_job.api.base import InputError
from tuner_job.api.measurement import Device
from tuning_operator.jobs.nodes import ANYWHERE, device_terms, label_text, matching
from tuning_operator.jobs.quantity import amount
from tuning_operator.jobs.template import placement

ROOM = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110"}


def gfd(product: str, driver: str = "570.86.10", resource: str = "nvidia.com/gpu", **more: str) -> dict[str, str]:
    """Labels of a node with whole GPUs, or with `resource`, as a present GFD writes them."""
    major, minor, revision = (*driver.split("."), "")[:3]
    return {
        f"{resource}.product": product,
        f"{resource}.sharing-strategy": "none",
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": "9" if "L40S" in product else "0",
        "nvidia.com/cuda.driver-version.full": driver,
        "nvidia.com/cuda.driver.major": major,
        "nvidia.com/cuda.driver.minor": minor,
        "nvidia.com/cuda.driver.rev": revision,
        **more,
    }


def node(
    labels: dict[str, str], *, ready: str = "True", allocatable: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    gpus = {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.5gb": "7"}
    return {
        "metadata": {"name": "n", "labels": labels},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": ROOM | gpus | (allocatable or {})},
    }


def fits(labels: dict[str, str], device: dict[str, Any] = GPU, frozen: Device | None = None, **more: Any) -> bool:
    job = tuning_job(device)
    return matching([node(labels, **more)], placement(job, job.spec.targets[0], frozen, CONFIG)) == 1


def test_a_product_reads_as_its_label() -> None:
    assert label_text("NVIDIA L40S") == "NVIDIA-L40S"
    assert label_text("NVIDIA  A100-SXM4-40GB") == "NVIDIA-A100-SXM4-40GB"
    assert label_text("NVIDIA GeForce RTX 4090 (Laptop)") == "NVIDIA-GeForce-RTX-4090-Laptop"


def test_a_target_names_its_product_and_no_shared_gpu_will_do() -> None:
    wish = {"type": "GPU", "gpu": {"product": "NVIDIA-L40S"}}
    assert fits(gfd("NVIDIA-L40S"), wish)
    assert fits({"nvidia.com/gpu.product": "NVIDIA-L40S"}, wish), "a GFD that says nothing of sharing"
    assert not fits(gfd("NVIDIA-A10G"), wish)
    assert not fits(gfd("NVIDIA-L40S-SHARED"), wish)
    for strategy in ("time-slicing", "mps"):
        shared = gfd("NVIDIA-L40S") | {"nvidia.com/gpu.sharing-strategy": strategy}
        assert not fits(shared, wish)
        assert not fits(shared, GPU), "also where any product will do"
    assert fits(gfd("NVIDIA-L40S"), GPU)


def test_shared_gpus_are_taken_only_when_that_is_said() -> None:
    shared = gfd("NVIDIA-L40S-SHARED") | {"nvidia.com/gpu.sharing-strategy": "time-slicing"}
    wish = {"type": "GPU", "gpu": {"product": "NVIDIA-L40S", "allowShared": True}}
    assert fits(shared, wish)
    assert fits(gfd("NVIDIA-L40S"), wish)
    assert fits(shared, {"type": "GPU", "gpu": {"allowShared": True}}, frozen=L40S)
    assert not fits(shared, GPU, frozen=L40S)
    with pytest.raises(InputError, match=r"spec\.targets\[edge\]\.device\.gpu\.product.*allowShared") as refused:
        fits(shared, {"type": "GPU", "gpu": {"product": "NVIDIA-L40S-SHARED"}})
    assert refused.value.reason == "SharedGpu"


def test_the_frozen_class_is_product_compute_capability_and_driver() -> None:
    assert fits(gfd("NVIDIA-L40S"), frozen=L40S)
    assert not fits(gfd("NVIDIA-L40S", "575.57.08"), frozen=L40S), "mixed drivers never mix in one run"
    assert not fits(gfd("NVIDIA-A10G"), frozen=L40S)
    assert not fits(gfd("NVIDIA-L40S") | {"nvidia.com/gpu.compute.minor": "6"}, frozen=L40S)


def test_a_gfd_without_the_whole_driver_version_is_read_in_parts() -> None:
    def old(driver: str) -> dict[str, str]:
        labels = gfd("NVIDIA-L40S", driver)
        del labels["nvidia.com/cuda.driver-version.full"]
        return labels

    assert fits(old("570.86.10"), frozen=L40S)
    assert not fits(old("570.86.15"), frozen=L40S)
    short = L40S.model_copy(update={"driver": "595.45"})
    assert fits(old("595.45"), frozen=short)
    assert not fits(old("595.45.04"), frozen=short)
    assert fits(gfd("NVIDIA-L40S", "595.45"), frozen=short)


def test_mig_under_strategy_mixed_is_its_own_resource_with_its_own_labels() -> None:
    wish = {"type": "GPU", "gpu": {"product": "NVIDIA-A100-SXM4-40GB", "migProfile": "1g.5gb"}}
    slices = gfd("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", resource="nvidia.com/mig-1g.5gb")
    for frozen in (None, A100_MIG):
        assert fits(slices, wish, frozen=frozen)
        assert not fits(gfd("NVIDIA-A100-SXM4-80GB-MIG-1g.5gb", resource="nvidia.com/mig-1g.5gb"), wish, frozen=frozen)
        assert not fits(slices, wish, frozen=frozen, allocatable={"nvidia.com/mig-1g.5gb": "0"})
        assert not fits(slices | {"nvidia.com/mig-1g.5gb.sharing-strategy": "time-slicing"}, wish, frozen=frozen)
    assert fits(slices, {"type": "GPU", "gpu": {"migProfile": "1g.5gb"}}, frozen=A100_MIG)


def test_a_profile_with_media_extensions_has_a_dot_where_nvml_has_a_plus() -> None:
    media = gfd("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me", resource="nvidia.com/mig-1g.5gb.me")
    wish = {"type": "GPU", "gpu": {"product": "NVIDIA-A100-SXM4-40GB", "migProfile": "1g.5gb+me"}}
    frozen = A100_MIG.model_copy(update={"mig_profile": "1g.5gb+me"})
    assert fits(media, wish, frozen=frozen, allocatable={"nvidia.com/mig-1g.5gb.me": "1"})
    assert not fits(media, wish, frozen=frozen)


def test_mig_under_strategy_single_is_a_gpu_of_a_longer_product() -> None:
    slices = gfd("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")
    whole = gfd("NVIDIA-A100-SXM4-40GB")
    assert fits(slices, GPU, frozen=A100_MIG)
    assert not fits(whole, GPU, frozen=A100_MIG)
    named = {"type": "GPU", "gpu": {"product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}}
    for frozen in (None, A100_MIG):
        assert fits(slices, named, frozen=frozen)
        assert not fits(whole, named, frozen=frozen)
    assert not fits(slices, GPU, frozen=A100_MIG.model_copy(update={"mig_profile": ""}))


def test_cpus_are_steered_by_architecture_and_claims_by_nothing() -> None:
    assert fits({"kubernetes.io/arch": "arm64"}, CPU)
    assert fits({"kubernetes.io/arch": "amd64"}, CPU, frozen=XEON)
    assert not fits({"kubernetes.io/arch": "arm64"}, CPU, frozen=XEON)
    graviton = XEON.model_copy(update={"compute_capability": "asimd,asimddp,sve"})
    assert fits({"kubernetes.io/arch": "arm64"}, CPU, frozen=graviton)
    assert not fits({"kubernetes.io/arch": "amd64"}, CPU, frozen=graviton)
    assert device_terms(tuning_job(CLAIMS).spec.targets[0], L40S, gfd=True) == ANYWHERE


def test_a_cluster_without_device_labels_is_not_steered_by_them() -> None:
    target = tuning_job({"type": "GPU", "gpu": {"product": "NVIDIA-L40S"}}).spec.targets[0]
    assert device_terms(target, L40S, gfd=False) == ANYWHERE


def test_nodes_that_cannot_take_the_pod_do_not_count() -> None:
    labels = gfd("NVIDIA-L40S")
    gpu_taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    assert fits(labels, taints=[gpu_taint]), "GPU workers tolerate the GPU taint"
    assert fits(labels, taints=[{"key": "spot", "effect": "PreferNoSchedule"}])
    assert not fits(labels, taints=[{"key": "spot", "effect": "NoSchedule"}])
    assert not fits(labels, CPU, taints=[gpu_taint])
    assert not fits(labels, unschedulable=True)
    assert not fits(labels, ready="False")
    assert not fits(labels, allocatable={"nvidia.com/gpu": "0"})
    assert not fits(labels, allocatable={"memory": "1Gi"})
    assert not fits(labels, {"type": "GPU", "gpu": {"count": 16}})


def test_the_node_selector_and_tolerations_of_the_job_count_too() -> None:
    job = tuning_job(CPU, target={"nodeSelector": {"pool": "tune"}}, template={"tolerations": [{"key": "spot", "value": "yes"}]})
    wish = placement(job, job.spec.targets[0], None, CONFIG)
    spot = {"key": "spot", "value": "yes", "effect": "NoSchedule"}
    nodes = [
        node({"pool": "tune"}, taints=[spot]),
        node({"pool": "serve"}),
        node({"pool": "tune"}, taints=[spot | {"value": "no"}]),
    ]
    assert matching(nodes, wish) == 1


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)))
def test_a_node_that_makes_no_sense_is_not_counted(nonsense: object) -> None:
    job = tuning_job(CPU)
    wish = placement(job, job.spec.targets[0], None, CONFIG)
    for path in (("metadata", "labels"), ("status", "conditions"), ("status", "allocatable"), ("spec", "taints")):
        broken = node({"pool": "tune"})
        broken[path[0]][path[1]] = nonsense
        assert matching([broken], wish) in (0, 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", "0.5"),
        ("2Gi", "2147483648"),
        (4, "4"),
        ("1e3", "1000"),
        ("1E", "1000000000000000000"),
        ("1.5k", "1500"),
        ("0", "0"),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: object, value: str) -> None:
    assert str(amount(text).quantize(amount(value))) == value


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1Kii", "nan", None, [1]])
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        amount(text)
