from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "operator"))
sys.path.insert(0, str(Path(__file__).parent))

from chart_cluster import Cluster
from chart_helm import ROOT, Helm
from rig.kube.binaries import RigUnavailable, built
from rig.kube.control_plane import ControlPlane, new_control_plane


def unavailable(error: RigUnavailable) -> None:
    """Where the rig cannot be had: a failure under CI=true, else a skip with the reason."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Built on the first use on a machine."""
    try:
        return Helm(built("helm"), tmp_path_factory.mktemp("helm"))
    except RigUnavailable as error:
        unavailable(error)
        raise


@pytest.fixture(scope="module")  # not the session: the cluster tests that follow need the memory
def plane() -> Iterator[ControlPlane]:
    """A control plane that no CRD was applied to, since the chart brings them, with the namespaces of examples/cluster."""
    try:
        with new_control_plane(lose_nodes=False) as made:
            made.kubectl("apply", "--server-side", "--filename", ROOT / "examples" / "cluster" / "namespaces.yaml")
            made.kubectl("create", "namespace", "speech")
            yield made
    except RigUnavailable as error:
        unavailable(error)


@pytest.fixture(scope="module")
def cluster(helm: Helm, plane: ControlPlane) -> Cluster:
    """The control plane as helm's target."""
    return Cluster(helm.at(plane.kubeconfig), plane)
