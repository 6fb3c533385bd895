from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from operator_jobs import CLAIMS, CONFIG, CPU, GPU, L40S, MIG, UID, container_of, create, pod_of, rendered, tuning_job, wanted

from tuner_job.api.base import InputError, canonical_json, digest_of
from tuner_job.campaign.exits import WorkerExit
from tuning_operator.config import WorkerDefaults
from tuning_operator.jobs.names import SPEC_HASH
from tuning_operator.jobs.render import render
from tuning_operator.snapshot import StoreView

KUEUE = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/priority-class": "night"}


def action_for(job: dict[str, Any], code: int) -> str:
    """What the job controller does about an exit code: the first rule that matches."""
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        if (found := rule.get("onExitCodes")) and ((code in found["values"]) == (found["operator"] == "In")):
            action: str = rule["action"]
            return action
    raise AssertionError(code)


def variables(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in container_of(job)["env"]}


def argument(job: dict[str, Any], name: str) -> str:
    given = container_of(job)["args"]
    value: str = given[given.index(f"--{name}") + 1]
    return value


def test_the_same_question_gives_the_same_bytes_and_the_hash_covers_them_all() -> None:
    job = tuning_job(template={"labels": {"b": "1", "a": "2"}})
    one, two = rendered(job), rendered(copy.deepcopy(job))
    assert canonical_json(one) == canonical_json(two)
    claimed = one["metadata"]["annotations"].pop(SPEC_HASH)
    assert claimed == digest_of(one)
    assert rendered(job, config=CONFIG.model_copy(update={"workers": WorkerDefaults(scratch_size="30Gi")})) != two


def test_every_exit_code_of_a_worker_has_its_meaning() -> None:
    job = rendered(tuning_job())
    assert {code: action_for(job, code) for code in WorkerExit if code} == {
        WorkerExit.BAD_INPUT: "FailJob",
        WorkerExit.WRONG_DEVICE: "FailIndex",
        WorkerExit.STORE_UNUSABLE: "Count",
        WorkerExit.STOPPED: "FailIndex",
        WorkerExit.INTERNAL: "Count",
        WorkerExit.INTERRUPTED: "Ignore",
    }
    assert action_for(job, 137) == "Count"
    assert job["spec"]["podFailurePolicy"]["rules"][0] == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }


def test_explore_has_as_many_indexes_as_workers_and_no_deadline_of_the_job_controllers() -> None:
    spec = rendered(tuning_job(target={"parallelism": 16}), "explore", workers=16)["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 16, 16)
    assert spec["podReplacementPolicy"] == "Failed"
    assert "activeDeadlineSeconds" not in spec
    assert "suspend" not in spec


def test_a_worker_is_told_what_it_needs_and_nothing_that_a_tenant_wrote() -> None:
    store = StoreView("main", "s3://tuning/team-a", {"region": "eu-west-1", "pathStyle": "true"}, tenant_secret="store")
    job = tuning_job(CPU)
    made = rendered(job, "explore", want=wanted(job, store=store), attempt=7, workers=2, deadline_seconds=0.2)
    assert container_of(made)["command"] == ["python", "-m", "tuner_job.campaign.worker"]
    assert argument(made, "store") == "s3://tuning/team-a"
    assert argument(made, "run") == wanted(job).run
    assert (argument(made, "stage"), argument(made, "attempt")) == ("explore", "7")
    assert argument(made, "worker-id") == "$(POD_UID)"
    assert argument(made, "deadline-seconds") == "1", "0 would mean no deadline at all"
    assert argument(rendered(job), "deadline-seconds") == "0"
    told = variables(made)
    secrets = {
        name: each["valueFrom"]["secretKeyRef"] for name, each in told.items() if "secretKeyRef" in each.get("valueFrom", {})
    }
    assert secrets == {
        "AWS_ACCESS_KEY_ID": {"name": "store", "key": "AWS_ACCESS_KEY_ID"},
        "AWS_SECRET_ACCESS_KEY": {"name": "store", "key": "AWS_SECRET_ACCESS_KEY"},
        "AWS_SESSION_TOKEN": {"name": "store", "key": "AWS_SESSION_TOKEN", "optional": True},
    }
    assert set(told) - set(secrets) == {"POD_UID", "HOME", "TMPDIR", "TRTFLEET_STORE_OPTIONS"}
    assert json.loads(told["TRTFLEET_STORE_OPTIONS"]["value"]) == {"region": "eu-west-1", "pathStyle": "true"}
    assert told["HOME"]["value"] == told["TMPDIR"]["value"] == argument(made, "scratch")
    assert "envFrom" not in container_of(made)


@pytest.mark.parametrize(
    ("url", "secret", "keys"),
    [
        ("az://account/container/team-a", "store", {"AZURE_STORAGE_ACCOUNT_KEY"}),
        ("gs://tuning/team-a", "store", {"GOOGLE_SERVICE_ACCOUNT_KEY"}),
        ("s3://tuning/team-a", "", set()),
    ],
)
def test_credentials_are_those_of_the_stores_scheme_or_none_under_workload_identity(
    url: str, secret: str, keys: set[str]
) -> None:
    job = tuning_job(CPU)
    made = rendered(job, want=wanted(job, store=StoreView("main", url, {}, tenant_secret=secret)))
    assert {name for name, each in variables(made).items() if "secretKeyRef" in each.get("valueFrom", {})} == keys


def test_a_dollar_in_a_url_or_option_names_no_variable() -> None:
    job = tuning_job(CPU)
    store = StoreView("main", "s3://tuning/$(HOME)", {"caPem": "$(HOME)"})
    made = rendered(job, want=wanted(job, store=store))
    assert argument(made, "store") == "s3://tuning/$$(HOME)"
    assert variables(made)["TRTFLEET_STORE_OPTIONS"]["value"] == '{"caPem":"$$(HOME)"}'


@pytest.mark.parametrize(
    ("device", "asked"),
    [
        (GPU, {"nvidia.com/gpu": "1"}),
        ({"type": "GPU", "gpu": {"count": 4}}, {"nvidia.com/gpu": "4"}),
        (MIG, {"nvidia.com/mig-1g.5gb": "2"}),
        ({"type": "GPU", "gpu": {"migProfile": "1g.10gb+me"}}, {"nvidia.com/mig-1g.10gb.me": "1"}),
        (CPU, {}),
        (CLAIMS, {}),
    ],
)
def test_the_device_is_asked_for_by_its_resource(device: dict[str, Any], asked: dict[str, str]) -> None:
    made = rendered(tuning_job(device))
    resources = container_of(made)["resources"]
    for kind in ("requests", "limits"):
        assert {name: count for name, count in resources.get(kind, {}).items() if name.startswith("nvidia.com/")} == asked
    gpu_nodes = {"key": "nvidia.com/gpu", "operator": "Exists"}
    assert (gpu_nodes in pod_of(made).get("tolerations", [])) == (device is not CPU)


def test_resource_claims_are_made_from_their_templates() -> None:
    made = rendered(tuning_job(CLAIMS))
    assert pod_of(made)["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "one-l40s"}]
    assert container_of(made)["resources"]["claims"] == [{"name": "gpu"}]


def test_a_pod_holds_no_token_no_privilege_and_only_bounded_scratch() -> None:
    made = rendered(tuning_job(template={"scratchSize": "7Gi"}))
    pod, container = pod_of(made), container_of(made)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "initContainers"} & set(pod)
    assert [volume["emptyDir"].keys() for volume in pod["volumes"]] == [{"sizeLimit"}, {"sizeLimit"}]
    assert pod["volumes"][0]["emptyDir"]["sizeLimit"] == "7Gi"
    assert container["resources"]["requests"]["ephemeral-storage"] == "7Gi"
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_job_belongs_to_its_tuning_job_and_says_of_which_attempt_it_is() -> None:
    job = tuning_job()
    made = rendered(job, "explore", attempt=3, failures=2)
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("TuningJob", "demo", UID)
    assert (owner["controller"], owner["blockOwnerDeletion"]) == (True, True)
    for labels in (made["metadata"]["labels"], made["spec"]["template"]["metadata"]["labels"]):
        assert {key: value for key, value in labels.items() if key.startswith("trtfleet.dev/")} == {
            "trtfleet.dev/job": "demo",
            "trtfleet.dev/job-uid": UID,
            "trtfleet.dev/target": "edge",
            "trtfleet.dev/run": wanted(job).run,
            "trtfleet.dev/stage": "explore",
            "trtfleet.dev/attempt": "3",
        }
    assert made["metadata"]["annotations"]["trtfleet.dev/failures"] == "2"
    assert made["metadata"]["annotations"]["trtfleet.dev/inputs-digest"] == wanted(job).digest


def test_kueue_gets_queue_and_priority_once_and_a_least_parallelism_for_explore_alone() -> None:
    job = tuning_job(labels={**KUEUE, "team": "vision"}, target={"parallelism": 8, "minParallelism": 2})
    explore = rendered(job, "explore", workers=8)
    for made in (explore, rendered(job), rendered(job, "final")):
        assert {key: value for key, value in made["metadata"]["labels"].items() if "kueue" in key} == KUEUE
        assert "team" not in made["metadata"]["labels"]
        assert "kueue" not in json.dumps(made["spec"])
    assert explore["metadata"]["annotations"]["kueue.x-k8s.io/job-min-parallelism"] == "2"
    assert "kueue" not in json.dumps(rendered(job, "final")["metadata"]["annotations"])
    assert "kueue" not in json.dumps(rendered(job, "explore", workers=2)["metadata"]["annotations"]), "it must be below"


def test_explore_and_final_go_to_the_frozen_class_and_discover_does_not() -> None:
    job = tuning_job()
    assert "NVIDIA-L40S" not in json.dumps(pod_of(rendered(job)))
    for stage in ("explore", "final"):
        assert "NVIDIA-L40S" in json.dumps(pod_of(rendered(job, stage, device=L40S))["affinity"])  # type: ignore[arg-type]


def test_a_runtime_without_an_image_or_a_target_that_is_gone_is_an_input_error() -> None:
    job = tuning_job()
    with pytest.raises(InputError, match="image") as missing:
        rendered(job, want=wanted(job, image=""))
    assert missing.value.reason == "ImageMissing"
    with pytest.raises(InputError, match="no target edge"):
        render(create(job), tuning_job(target={"name": "other"}), None, CONFIG)
