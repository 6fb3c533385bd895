"""Fixtures of the cluster rig. Where it cannot be had: a failure under CI=true, else a skip with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.kube.binaries import RigUnavailable
from rig.kube.cluster import Cluster, new_cluster
from rig.kube.control_plane import ControlPlane, new_control_plane

CRDS = Path(__file__).parents[3] / "crds"

BUILD_TIMEOUT = 3600
"""Seconds for a test whose fixture may have to build Kubernetes first."""

_SLOW_FIXTURES = {"control_plane", "cluster"}


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on a cluster are slow ones. pytest-timeout counts the making of a fixture as time of the first that asks for it."""
    for item in items:
        if _SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(BUILD_TIMEOUT))


def unavailable(reason: RigUnavailable) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"no cluster: {reason}", pytrace=False)
    pytest.skip(f"no cluster: {reason}")


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A control plane without nodes, with the CRDs of crds/ established. Nodes that do not report are left alone."""
    try:
        with new_control_plane(lose_nodes=False) as plane:
            plane.kubectl("apply", "--server-side", "--filename", CRDS)
            plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "--filename", CRDS)
            yield plane
    except RigUnavailable as error:
        unavailable(error)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A whole cluster with the chart installed and the workers' runtime known. Tests take a tenant each."""
    try:
        with new_cluster() as made:
            made.install()
            made.apply_runtime()
            yield made
    except RigUnavailable as error:
        unavailable(error)
