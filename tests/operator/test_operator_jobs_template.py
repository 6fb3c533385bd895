from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_jobs import CONFIG, CPU, FROZEN, GPU, container_of, pod_of, rendered, tuning_job

from tuner_job.api.base import InputError
from tuner_job.api.workertemplate import PullSecret, Resources, Toleration
from tuning_operator.config import OperatorConfig, WorkerDefaults
from tuning_operator.jobs import template
from tuning_operator.jobs.nodes import Requirement, Terms, device_terms
from tuning_operator.jobs.quantity import amount

GPU_NODES = Toleration(key="nvidia.com/gpu", operator="Exists")


def config(**workers: Any) -> OperatorConfig:
    return CONFIG.model_copy(update={"workers": WorkerDefaults(**workers)})


def resources_of(given_: dict[str, Any] | None, **workers: Any) -> dict[str, Any]:
    job = tuning_job(CPU, template={"resources": given_} if given_ is not None else None)
    found: dict[str, Any] = container_of(rendered(job, config=config(**workers)))["resources"]
    return found


def test_labels_and_annotations_of_the_job_are_added_and_ours_stand() -> None:
    job = tuning_job(
        template={
            "labels": {"team": "vision", "app.kubernetes.io/name": "mine", "app.kubernetes.io/part-of": "robots"},
            "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
        }
    )
    metadata = rendered(job, config=config(labels={"team": "platform", "cost": "research"}))["spec"]["template"]["metadata"]
    assert metadata["labels"]["team"] == "vision"
    assert metadata["labels"]["cost"] == "research"
    assert metadata["labels"]["app.kubernetes.io/part-of"] == "robots"
    assert metadata["labels"]["app.kubernetes.io/name"] == "trtfleet-worker"
    assert metadata["annotations"] == {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}


@pytest.mark.parametrize("field", ["labels", "annotations"])
@pytest.mark.parametrize(
    "key",
    [
        "cdi.k8s.io/gpu",
        "nvidia.cdi.k8s.io/container.worker",
        "io.kubernetes.cri-o.Devices",
        "container.apparmor.security.beta.kubernetes.io/worker",
        "kueue.x-k8s.io/queue-name",
        "batch.kubernetes.io/job-name",
        "job-name",
        "controller-uid",
    ],
)
def test_keys_that_inject_devices_lift_confinement_or_enter_queues_are_refused(field: str, key: str) -> None:
    with pytest.raises(InputError, match=rf"spec\.workerTemplate\.{field}\[{key}\]") as refused:
        rendered(tuning_job(template={field: {key: "x"}}))
    assert refused.value.reason == "NotAllowed"


TOLERATIONS = st.lists(
    st.builds(
        Toleration,
        key=st.sampled_from(["nvidia.com/gpu", "team", "spot"]),
        operator=st.sampled_from([None, "Exists"]),
        effect=st.sampled_from([None, "NoSchedule"]),
    ),
    max_size=4,
)


@given(of_job=TOLERATIONS, of_operator=TOLERATIONS, gpu=st.booleans())
def test_tolerations_are_a_union_in_which_each_stands_once(
    of_job: list[Toleration], of_operator: list[Toleration], gpu: bool
) -> None:
    given_ = template.WorkerTemplate(tolerations=tuple(of_job))
    merged = template.tolerations(given_, WorkerDefaults(tolerations=tuple(of_operator)), gpu=gpu)
    assert len(set(merged)) == len(merged)
    kept = [each for each in of_operator if gpu or each.key != "nvidia.com/gpu"]
    assert set(merged) == {*of_job, *kept}


KEYS = ["zone", "nvidia.com/gpu.product", "nvidia.com/gpu.sharing-strategy", "nvidia.com/cuda.driver-version.full"]
VALUES = ["a", "NVIDIA-L40S", "time-slicing", "none", "570.86.10"]
REQUIREMENTS = st.one_of(
    st.builds(
        Requirement,
        st.sampled_from(KEYS),
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from(VALUES), min_size=1, max_size=2).map(tuple),
    ),
    st.builds(Requirement, st.sampled_from(KEYS), st.sampled_from(["Exists", "DoesNotExist"])),
)
OWN_TERMS = st.lists(st.lists(REQUIREMENTS, min_size=1, max_size=3), max_size=3)
FULL_CLASS = {
    "nvidia.com/gpu.product": "NVIDIA-L40S",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "9",
    "nvidia.com/cuda.driver-version.full": "570.86.10",
}
NODES = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)).map(lambda labels: FULL_CLASS | labels)


def chosen(terms: Terms, labels: dict[str, str]) -> bool:
    return any(all(each.holds(labels) for each in term) for term in terms)


@given(own=OWN_TERMS, labels=NODES)
def test_a_node_is_chosen_exactly_if_both_the_jobs_affinity_and_the_device_choose_it(
    own: list[list[Requirement]], labels: dict[str, str]
) -> None:
    terms = [{"matchExpressions": [each.plain() for each in term]} for term in own]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}} if own else {}
    job = tuning_job(GPU, template={"affinity": {"nodeAffinity": required}})
    target = job.spec.targets[0]
    merged = template.affinity(job, target, FROZEN["GPU"], CONFIG)
    found = merged["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    as_terms = tuple(
        tuple(Requirement(each["key"], each["operator"], tuple(each.get("values", ()))) for each in term["matchExpressions"])
        for term in found
    )
    device = device_terms(target, FROZEN["GPU"], gfd=True)
    assert chosen(as_terms, labels) == ((not own or chosen(tuple(map(tuple, own)), labels)) and chosen(device, labels))
    assert as_terms == template.placement(job, target, FROZEN["GPU"], CONFIG).terms


def test_what_the_job_prefers_and_whom_it_avoids_is_kept() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    preferred = [{"weight": 5, "preference": {"matchExpressions": [zone]}}]
    apart = [{"labelSelector": {"matchLabels": {"app": "noisy"}}, "topologyKey": "kubernetes.io/hostname"}]
    job = tuning_job(
        GPU,
        template={
            "affinity": {
                "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart},
            }
        },
    )
    made = pod_of(rendered(job, "explore"))["affinity"]
    assert made["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
    assert made["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == apart
    assert "NVIDIA-L40S" in str(made["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"])


def test_resources_are_taken_per_kind() -> None:
    defaults = Resources(requests={"cpu": "1", "memory": "2Gi"}, limits={"memory": "8Gi"})
    assert resources_of(None, resources=defaults) == {
        "requests": {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "20Gi"},
        "limits": {"memory": "8Gi"},
    }
    assert resources_of({"requests": {"cpu": "4"}}, resources=defaults) == {
        "requests": {"cpu": "4", "ephemeral-storage": "20Gi"},
        "limits": {"memory": "8Gi"},
    }


def test_a_default_gives_way_to_what_the_job_says() -> None:
    lowered = resources_of({"limits": {"cpu": "500m"}}, resources=Resources(requests={"cpu": "1", "memory": "2Gi"}))
    assert lowered["requests"]["cpu"] == "500m"
    raised = resources_of({"requests": {"memory": "16Gi"}}, resources=Resources(limits={"memory": "8Gi"}))
    assert raised["limits"]["memory"] == "16Gi"
    roomy = resources_of(None, scratch_size="40Gi", resources=Resources(limits={"ephemeral-storage": "10Gi"}))
    assert roomy["limits"]["ephemeral-storage"] == "40Gi"


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["500m", "1", 2, "1Gi", "2G"]))


def contradicts(requests: dict[str, Any], limits: dict[str, Any]) -> bool:
    return any(amount(requests[name]) > amount(limits[name]) for name in set(requests) & set(limits))


@given(of_job=st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS}), requests=AMOUNTS, limits=AMOUNTS)
def test_only_who_contradicts_himself_is_refused_and_no_request_is_over_its_limit(
    of_job: dict[str, Any], requests: dict[str, Any], limits: dict[str, Any]
) -> None:
    of_operator = Resources(requests=requests, limits=limits)
    if contradicts(of_job.get("requests", {}), of_job.get("limits", {})):
        with pytest.raises(InputError, match="over its limit"):
            resources_of(of_job, resources=of_operator)
        return
    made = resources_of(of_job, resources=of_operator)
    assert not contradicts(made["requests"], made.get("limits", {}))


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"resources": {"requests": {"hugepages-2Mi": "1Gi"}}}, r"resources\.requests\[hugepages-2Mi\]"),
        ({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}, "cpu asks for 2, which is over its limit of 1"),
        ({"resources": {"limits": {"ephemeral-storage": "1Gi"}}, "scratchSize": "2Gi"}, "scratchSize is what a worker asks for"),
        ({"scratchSize": "0"}, "scratchSize: 0; it must be above 0"),
    ],
)
def test_what_cannot_be_had_is_refused_by_its_field(wish: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        rendered(tuning_job(CPU, template=wish))


def test_a_service_account_must_be_allowed_by_the_operators_config() -> None:
    asked = tuning_job(template={"serviceAccountName": "gpu-user"})
    assert pod_of(rendered(asked, config=config(allowed_service_accounts=("gpu-user",))))["serviceAccountName"] == "gpu-user"
    assert pod_of(rendered(tuning_job(), config=config(service_account_name="workers")))["serviceAccountName"] == "workers"
    with pytest.raises(InputError, match=r"spec\.workerTemplate\.serviceAccountName: gpu-user is not allowed") as refused:
        rendered(asked)
    assert refused.value.reason == "ServiceAccountNotAllowed"


def test_the_jobs_runtime_class_pull_secrets_and_priority_go_before_the_defaults() -> None:
    defaults = config(runtime_class_name="nvidia", image_pull_secrets=(PullSecret(name="mirror"),))
    plain = pod_of(rendered(tuning_job(), config=defaults))
    assert (plain["runtimeClassName"], plain["imagePullSecrets"]) == ("nvidia", [{"name": "mirror"}])
    assert "priorityClassName" not in plain
    wish = {"runtimeClassName": "kata", "imagePullSecrets": [{"name": "own"}], "priorityClassName": "low"}
    made = pod_of(rendered(tuning_job(template=wish), config=defaults))
    assert (made["runtimeClassName"], made["imagePullSecrets"], made["priorityClassName"]) == ("kata", [{"name": "own"}], "low")
