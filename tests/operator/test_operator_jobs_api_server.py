"""Rendered Jobs before a real API server, job controller and scheduler. These tests play the kubelet."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import pytest
from operator_jobs import A100_MIG, CLAIMS, CONFIG, CPU, FROZEN, GPU, L40S, MIG, rendered, tuning_job
from rig.kube.control_plane import ControlPlane
from rig.waiting import wait_for

from tuner_job.api.measurement import Device
from tuner_job.api.tuningjob import TuningJob
from tuner_job.campaign.exits import WorkerExit
from tuner_job.campaign.worker import end_text
from tuning_operator.jobs.nodes import matching
from tuning_operator.jobs.template import placement
from tuning_operator.jobs.views import create_problem, job_view, pod_view
from tuning_operator.snapshot import JobView, PodView, Stage

SECONDS = 60.0
"""For the controllers to do one thing, on a busy machine."""

LONG_AGO = "2026-01-01T00:00:00Z"
"""When played containers ended: the pause before a replacement counts from there, so none is waited for."""

EVERYTHING = {
    "labels": {"team": "vision"},
    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                    {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["8"]}]},
                ]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
            ],
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "noisy"}}, "topologyKey": "kubernetes.io/hostname"}
            ]
        },
    },
    "imagePullSecrets": [{"name": "registry"}],
    "resources": {"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"memory": "8Gi"}},
    "scratchSize": "40Gi",
}


@dataclass
class Played:
    """A Job in a namespace, and what the tests do to its pods."""

    plane: ControlPlane
    namespace: str
    name: str
    owner_uid: str

    def job(self) -> dict[str, Any]:
        return self.plane.get("job", self.name, "--namespace", self.namespace)

    def view(self) -> JobView:
        view = job_view(self.job(), self.owner_uid)
        assert view is not None
        return view

    def pods(self) -> list[dict[str, Any]]:
        selector = f"--selector=batch.kubernetes.io/job-name={self.name}"
        items: list[dict[str, Any]] = self.plane.get("pods", "--namespace", self.namespace, selector)["items"]
        return items

    def views(self) -> list[PodView]:
        views = [pod_view(pod, self.owner_uid) for pod in self.pods()]
        assert all(views)
        return [view for view in views if view]

    def live(self, count: int) -> dict[int, PodView]:
        """Index → pod, once so many have neither ended nor been told to."""

        def found() -> dict[int, PodView] | None:
            live = {each.index: each for each in self.views() if not each.over and not each.deleting}
            return live if len(live) == count else None

        return wait_for(f"{count} live pods of {self.name}", found, SECONDS)

    def failures(self, pod: PodView) -> str:
        """Counted failures of the pod's index before it."""
        body = self.plane.get("pod", pod.name, "--namespace", self.namespace)
        counted: str = body["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"]
        return counted

    def end(self, pod: PodView, code: int, *, message: str = "", disrupted: bool = False) -> None:
        """As the kubelet reports it."""
        state = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message, "finishedAt": LONG_AGO}
        status: dict[str, Any] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [
                {
                    "name": "worker",
                    "image": "x",
                    "imageID": "x",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": state},
                }
            ],
        }
        if disrupted:
            status["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
        self._patch("pod", pod.name, {"status": status}, "--subresource=status")

    def suspend(self, suspended: bool) -> None:
        """As Kueue does."""
        self._patch("job", self.name, {"spec": {"suspend": suspended}})

    def delete(self, pod: PodView) -> None:
        self.plane.kubectl("delete", "pod", pod.name, "--namespace", self.namespace, "--wait=false")

    def over(self) -> JobView:
        return wait_for(f"{self.name} is over", lambda: view if (view := self.view()).end else None, SECONDS)

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        wait_for(f"{self.name}: {what}", holds, SECONDS)

    def _patch(self, kind: str, name: str, patch: dict[str, Any], *more: str) -> None:
        arguments = ("patch", kind, name, "--namespace", self.namespace, *more, "--type=strategic", "--patch", json.dumps(patch))
        self.plane.kubectl(*arguments)


@pytest.fixture(scope="module")
def restricted(control_plane: ControlPlane) -> str:
    """A namespace that admits no pod below the standard `restricted`, and warns of Jobs whose pods would be."""
    namespace = control_plane.new_namespace()
    levels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
    control_plane.kubectl("label", "namespace", namespace, *levels)
    return namespace


@pytest.fixture(scope="module")
def roomy_node(control_plane: ControlPlane) -> str:
    name = "jobs-roomy"
    control_plane.fake_node(name, {"nvidia.com/gpu": "64"}, {"kubernetes.io/hostname": name, "pool": "played"})
    return name


def stored(plane: ControlPlane, namespace: str, job: TuningJob) -> TuningJob:
    """The TuningJob as the server has it: Jobs of an owner that is not there would be collected at once."""
    body = job.model_dump(mode="json", by_alias=True, exclude_defaults=True) | {"kind": job.kind, "apiVersion": job.api_version}
    body["metadata"] = {"name": job.name, "namespace": namespace, "labels": job.metadata.labels}
    plane.apply(body, namespace=namespace)
    return TuningJob.model_validate(plane.get("tuningjob", job.name, "--namespace", namespace))


def created(plane: ControlPlane, namespace: str, job: TuningJob, stage: Stage = "explore", **more: Any) -> Played:
    owner = stored(plane, namespace, job)
    body = rendered(owner, stage, **more)
    plane.kubectl("create", "--filename=-", stdin=json.dumps(body))
    return Played(plane, namespace, body["metadata"]["name"], owner.metadata.uid)


@pytest.fixture
def played(control_plane: ControlPlane, restricted: str, roomy_node: str, request: pytest.FixtureRequest) -> Played:
    """An explore Job of two workers, whose pods lie on the roomy node."""
    name = f"played-{crc32(request.node.name.encode())}"
    job = tuning_job(CPU, name=name, target={"parallelism": 2, "nodeSelector": {"pool": "played"}})
    device = FROZEN["CPU"].model_copy(update={"compute_capability": ""})
    made = created(control_plane, restricted, job, workers=2, device=device)
    made.until("its pods are bound", lambda: [each.node for each in made.views()] == [roomy_node] * 2)
    return made


@pytest.mark.parametrize("template", [None, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("stage", ["discover", "explore", "final"])
@pytest.mark.parametrize(
    ("device", "frozen"),
    [(CPU, FROZEN["CPU"]), (GPU, L40S), (MIG, A100_MIG), (CLAIMS, L40S)],
    ids=["cpu", "gpu", "mig", "claims"],
)
def test_the_server_takes_every_job_without_a_warning(
    control_plane: ControlPlane,
    restricted: str,
    device: dict[str, Any],
    frozen: Device,
    stage: Stage,
    template: dict[str, Any] | None,
) -> None:
    labels = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/priority-class": "night"}
    job = tuning_job(device, labels=labels, template=template, target={"parallelism": 8, "minParallelism": 2})
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": restricted})})
    body = rendered(job, stage, device=frozen, workers=8 if stage == "explore" else 1)
    said = control_plane.kubectl(
        *("create", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "--output=json", "--filename=-"),
        stdin=json.dumps(body),
    )
    server = json.loads(said)
    assert server["spec"]["podFailurePolicy"] == body["spec"]["podFailurePolicy"]
    for name, value in body["spec"]["template"]["spec"].items():
        if name not in ("containers", "securityContext", "resourceClaims"):
            assert server["spec"]["template"]["spec"][name] == value, "nothing was dropped or changed"


@pytest.mark.parametrize("device", [CPU, GPU, MIG, CLAIMS], ids=["cpu", "gpu", "mig", "claims"])
def test_pods_of_every_device_type_are_admitted_where_only_restricted_ones_are(
    control_plane: ControlPlane, restricted: str, device: dict[str, Any]
) -> None:
    job = tuning_job(device, name=f"admitted-{device['type'].lower()}{len(device)}{len(str(device))}")
    made = created(control_plane, restricted, job, "discover")
    assert made.live(1)[0].job == made.name


def test_the_longest_names_are_taken_up_to_the_last_index(control_plane: ControlPlane, restricted: str) -> None:
    longest = tuning_job(CPU, name="n" * 63, target={"name": "t" * 63, "parallelism": 1024})
    owner = stored(control_plane, restricted, longest)
    body = rendered(owner, workers=1024, attempt=10**6)
    control_plane.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(body))
    made = created(control_plane, restricted, longest, workers=2)
    names = {each.name for each in made.live(2).values()}
    assert {name.rpartition("-")[0] for name in names} == {f"{made.name}-0", f"{made.name}-1"}
    assert len(made.name) + len("-1023-abcde") <= 63


def test_a_job_is_complete_when_every_worker_found_nothing_left(played: Played) -> None:
    for pod in played.live(2).values():
        played.end(pod, WorkerExit.NOTHING_LEFT)
    assert played.over().end == "Complete"


def test_bad_input_fails_the_job_at_once_and_it_is_over_when_its_last_pod_is(played: Played) -> None:
    pods = played.live(2)
    played.end(pods[0], WorkerExit.BAD_INPUT, message=end_text("ModelNotFound", "model.uri: not there"))
    played.until("the other pod is told to end", lambda: played.view().terminating == 1)
    conditions = {each["type"] for each in played.job()["status"]["conditions"]}
    assert "FailureTarget" in conditions
    assert played.view().end is None, "a pod still runs"
    played.end(pods[1], WorkerExit.INTERRUPTED)
    view = played.over()
    assert (view.end, view.end_reason) == ("Failed", "PodFailurePolicy")
    told = {each.index: (each.exit_code, each.reason, each.message) for each in played.views()}
    assert told[0] == (WorkerExit.BAD_INPUT, "ModelNotFound", "model.uri: not there")


@pytest.mark.parametrize("code", [WorkerExit.WRONG_DEVICE, WorkerExit.STOPPED])
def test_an_index_that_is_over_is_not_started_again_while_the_others_go_on(played: Played, code: WorkerExit) -> None:
    pods = played.live(2)
    played.end(pods[0], code)
    played.until("the index failed", lambda: played.job()["status"].get("failedIndexes") == "0")
    assert list(played.live(1)) == [1]
    assert played.view().end is None
    played.end(pods[1], WorkerExit.NOTHING_LEFT)
    view = played.over()
    assert (view.end, view.end_reason) == ("Failed", "FailedIndexes")
    assert len(played.pods()) == 2, "nothing was started again"


@pytest.mark.parametrize("code", [WorkerExit.STORE_UNUSABLE, WorkerExit.INTERNAL, 137])
def test_a_failure_that_may_pass_is_tried_again_three_times(played: Played, code: int) -> None:
    for failures in range(4):
        [again] = [pod for pod in played.live(2).values() if pod.index == 0]
        assert played.failures(again) == str(failures)
        played.end(again, code)
        if failures < 3:
            played.until("a replacement", lambda gone=again.uid: {each.uid for each in played.live(2).values()} - {gone} != set())
    played.until("the index failed", lambda: played.job()["status"].get("failedIndexes") == "0")
    assert list(played.live(1)) == [1]


@pytest.mark.parametrize(("code", "disrupted"), [(WorkerExit.INTERRUPTED, False), (WorkerExit.BAD_INPUT, True), (137, True)])
def test_a_worker_that_was_taken_away_comes_back_uncounted(played: Played, code: int, disrupted: bool) -> None:
    for _ in range(5):
        first = played.live(2)[0]
        played.end(first, code, disrupted=disrupted)
        played.until("a replacement", lambda gone=first.uid: all(each.uid != gone for each in played.live(2).values()))
    assert played.failures(played.live(2)[0]) == "0"
    assert not played.job()["status"].get("failedIndexes")


def test_a_pod_that_is_deleted_by_hand_is_replaced_only_when_it_is_over(played: Played) -> None:
    first = played.live(2)[0]
    played.delete(first)
    played.until("it is terminating", lambda: played.view().terminating == 1)
    assert len(played.pods()) == 2, "two never share a device"
    played.end(first, WorkerExit.INTERRUPTED)
    second = played.live(2)[0]
    assert second.uid != first.uid
    assert played.failures(second) == "0"


@pytest.mark.parametrize("code", [WorkerExit.INTERRUPTED, WorkerExit.STOPPED, 137])
def test_a_job_that_kueue_suspends_fails_nothing_and_resumes(played: Played, code: int) -> None:
    pods = played.live(2)
    played.suspend(True)
    played.until("its pods are told to end", lambda: played.view().terminating == 2)
    for pod in pods.values():
        played.end(pod, code)
    played.until("no pod runs", lambda: played.view().active == played.view().terminating == 0)
    view = played.view()
    assert (view.suspended, view.end) == (True, None)
    played.suspend(False)
    assert {each.uid for each in played.live(2).values()}.isdisjoint({each.uid for each in pods.values()})
    assert not played.job()["status"].get("failedIndexes")


def test_why_pods_cannot_be_created_is_told_until_they_are(control_plane: ControlPlane) -> None:
    namespace = control_plane.new_namespace()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    control_plane.apply(quota, namespace=namespace)
    wait_for(
        "the quota counts",
        lambda: control_plane.get("resourcequota", "none", "--namespace", namespace).get("status", {}).get("hard"),
        SECONDS,
    )
    made = created(control_plane, namespace, tuning_job(CPU), "discover")

    def problem() -> str:
        selector = f"--field-selector=regarding.uid={made.view().uid}"
        return create_problem(control_plane.get("events.v1.events.k8s.io", "--namespace", namespace, selector)["items"])

    assert "exceeded quota: none" in wait_for("the job controller complains", problem, SECONDS)
    control_plane.kubectl("delete", "resourcequota", "none", "--namespace", namespace)
    made.live(1)
    wait_for("no complaint is left", lambda: problem() == "", SECONDS)


NODES: dict[str, tuple[dict[str, str], dict[str, str], list[str]]] = {
    # name: labels, capacity, taints
    "l40s": (
        {
            "nvidia.com/gpu.product": "NVIDIA-L40S",
            "nvidia.com/gpu.sharing-strategy": "none",
            "nvidia.com/gpu.compute.major": "8",
            "nvidia.com/gpu.compute.minor": "9",
            "nvidia.com/cuda.driver-version.full": "570.86.10",
        },
        {"nvidia.com/gpu": "8"},
        ["nvidia.com/gpu=present:NoSchedule"],
    ),
    "older-gfd": (
        {
            "nvidia.com/gpu.product": "NVIDIA-L40S",
            "nvidia.com/gpu.compute.major": "8",
            "nvidia.com/gpu.compute.minor": "9",
            "nvidia.com/cuda.driver.major": "570",
            "nvidia.com/cuda.driver.minor": "86",
            "nvidia.com/cuda.driver.rev": "10",
        },
        {"nvidia.com/gpu": "8"},
        [],
    ),
    "other-driver": (
        {
            "nvidia.com/gpu.product": "NVIDIA-L40S",
            "nvidia.com/gpu.compute.major": "8",
            "nvidia.com/gpu.compute.minor": "9",
            "nvidia.com/cuda.driver-version.full": "575.57.08",
        },
        {"nvidia.com/gpu": "8"},
        [],
    ),
    "shared": (
        {"nvidia.com/gpu.product": "NVIDIA-L40S-SHARED", "nvidia.com/gpu.sharing-strategy": "time-slicing"},
        {"nvidia.com/gpu": "32"},
        [],
    ),
    "small": ({"nvidia.com/gpu.product": "NVIDIA-L40S"}, {"nvidia.com/gpu": "8", "memory": "1Gi"}, []),
    "tainted": ({"nvidia.com/gpu.product": "NVIDIA-L40S"}, {"nvidia.com/gpu": "8"}, ["team=serving:NoExecute"]),
    "plain": ({"kubernetes.io/arch": "amd64"}, {}, []),
}
WISHES: dict[str, tuple[dict[str, Any], Device | None]] = {
    "any-gpu": (GPU, None),
    "l40s-frozen": (GPU, L40S),
    "shared-too": ({"type": "GPU", "gpu": {"product": "NVIDIA-L40S", "allowShared": True}}, None),
    "cpu-frozen": (CPU, FROZEN["CPU"]),
}


def test_the_scheduler_agrees_about_every_node(control_plane: ControlPlane, restricted: str) -> None:
    for name, (labels, capacity, taints) in NODES.items():
        control_plane.fake_node(f"jobs-{name}", capacity, labels | {"only": name})
        if taints:
            control_plane.kubectl("taint", "node", f"jobs-{name}", *taints)
    nodes = {name: control_plane.get("node", f"jobs-{name}") for name in NODES}
    expected: dict[tuple[str, str], bool] = {}
    made: dict[tuple[str, str], Played] = {}
    for wish, (device, frozen) in WISHES.items():
        for name in NODES:
            job = tuning_job(device, name=f"{wish}-{name}", target={"nodeSelector": {"only": name}})
            expected[wish, name] = matching([nodes[name]], placement(job, job.spec.targets[0], frozen, CONFIG)) == 1
            stage: Stage = "explore" if frozen else "discover"
            made[wish, name] = created(control_plane, restricted, job, stage, **({"device": frozen} if frozen else {}))

    def judged(one: Played) -> bool | None:
        """Whether the scheduler placed its pod; None while it has not looked."""
        [pod] = one.views() or [None]
        return None if pod is None or not (pod.node or pod.unschedulable) else bool(pod.node)

    found = {}
    for key, one in made.items():
        wait_for(f"the scheduler's word on {key}", lambda one=one: judged(one) is not None, SECONDS)
        found[key] = judged(one)
    assert found == expected
    assert set(expected.values()) == {True, False}
