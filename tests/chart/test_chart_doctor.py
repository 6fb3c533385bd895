"""examples/cluster/doctor.yaml: the examination as one pod."""

from __future__ import annotations

import pytest
import yaml
from chart_helm import ROOT
from rig.kube.control_plane import ControlPlane
from rig.kube.fixtures import BUILD_TIMEOUT

from tuner_job.doctor.command import parser

PATH = ROOT / "examples" / "cluster" / "doctor.yaml"
POD = yaml.safe_load(PATH.read_text())
(CONTAINER,) = POD["spec"]["containers"]


def test_it_calls_the_doctor_with_options_that_exist() -> None:
    assert CONTAINER["command"] == ["python", "-m", "tuner_job.doctor"]
    options = parser().parse_args(CONTAINER["args"])
    assert (options.runtime, options.json) == ("TensorRT", True), "the result is the last line of the log"
    mounts = [mount["mountPath"] for mount in CONTAINER["volumeMounts"]]
    assert mounts == ["/tmp"]
    assert str(options.output.parent) in mounts, "all else is read-only"


def test_it_has_one_gpu_and_a_pinned_image() -> None:
    assert CONTAINER["resources"]["limits"]["nvidia.com/gpu"] == 1
    runtimes = list(yaml.safe_load_all((ROOT / "examples" / "cluster" / "runtime.yaml").read_text()))
    assert CONTAINER["image"] == runtimes[0]["spec"]["image"]
    assert POD["spec"]["restartPolicy"] == "Never"


def test_it_runs_as_the_images_own_user_and_may_do_nothing() -> None:
    whole, own = POD["spec"]["securityContext"], CONTAINER["securityContext"]
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"USER {whole['runAsUser']}:{whole['runAsGroup']}" in dockerfile
    assert whole["runAsNonRoot"] is True
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    assert POD["spec"]["automountServiceAccountToken"] is False
    assert [volume.keys() - {"name"} for volume in POD["spec"]["volumes"]] == [{"emptyDir"}]


@pytest.mark.slow
@pytest.mark.timeout(BUILD_TIMEOUT)
def test_the_api_server_takes_it_under_the_restricted_standard(plane: ControlPlane) -> None:
    plane.kubectl("create", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "--filename", PATH)
