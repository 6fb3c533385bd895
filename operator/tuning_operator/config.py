"""The operator's settings: one YAML file that the chart renders from its values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from tuner_job.api.base import InputError, Model
from tuner_job.api.resource import Labels, ObjectName
from tuner_job.api.workertemplate import PullSecret, Resources, Toleration


class WorkerDefaults(Model):
    """What workers' pods get where a TuningJob says nothing, and what it may ask for."""

    service_account_name: ObjectName = "default"
    """Service account in the job's namespace. Its token is never mounted."""
    allowed_service_accounts: tuple[ObjectName, ...] = ()
    """Others that `workerTemplate.serviceAccountName` may name."""
    runtime_class_name: ObjectName | None = None
    image_pull_secrets: tuple[PullSecret, ...] = ()
    """Of the job's namespace, when the job names none."""
    tolerations: tuple[Toleration, ...] = (Toleration(key="nvidia.com/gpu", operator="Exists"),)
    """Added to the job's."""
    resources: Resources = Resources(requests={"cpu": "1", "memory": "2Gi"})
    """Per kind (requests, limits), when the job gives none of that kind."""
    scratch_size: str = "20Gi"
    labels: Labels = Field(default_factory=dict)
    ttl_seconds: Annotated[int, Field(ge=600)] = 7 * 24 * 3600
    """Finished Jobs are deleted after harvest; this is for those that nobody harvested."""
    stop_grace_seconds: Annotated[int, Field(ge=5)] = 60
    """Between SIGTERM and SIGKILL."""


class OperatorConfig(Model):
    """All of it."""

    cluster: Annotated[str, Field(min_length=1, max_length=63)]
    """Names this cluster in stores that it shares with others."""
    namespaces: tuple[str, ...] = ()
    """Watched namespaces; empty: all of them."""
    operator_namespace: str
    """Where the Lease lies."""
    lease_name: str = "trtfleet-operator"
    stores_folder: Path = Path("/etc/trtfleet/stores")
    """A folder for each mounted Secret, by its name."""
    signing_key: Path = Path("/etc/trtfleet/signing/signing-key.pem")
    workers: WorkerDefaults = WorkerDefaults()
    read_nodes: bool = True
    """Whether RBAC lets the operator see nodes; without, pods are still steered by device labels."""
    device_labels: Literal["GFD", "None"] = "GFD"
    """Which node labels name the device: those of NVIDIA's GPU feature discovery, or none."""
    reconcilers: Annotated[int, Field(ge=1, le=64)] = 8
    """TuningJobs worked on at once."""
    resync_seconds: Annotated[float, Field(ge=5)] = 300.0
    poll_seconds: Annotated[float, Field(ge=1)] = 15.0
    """How often the records of an active run are read."""
    progress_seconds: Annotated[float, Field(ge=0)] = 30.0
    """Least time between two status writes that only tell progress."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Of /metrics, /healthz and /readyz."""
    bind_address: str = ""
    """Address that they are served on; empty: all of them."""
    lease_seconds: Annotated[float, Field(ge=3)] = 15.0
    stop_seconds: Annotated[float, Field(ge=0)] = 30.0
    """For looks that are under way at SIGTERM. The pod's grace must be 20 s more."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


def load(path: Path) -> OperatorConfig:
    """Raises InputError naming the file and the first wrong field."""
    try:
        text = path.read_text()
        data = yaml.safe_load(text)
    except OSError as error:
        raise InputError(f"config {path}: {error.strerror}; mount it, or name it with --config") from None
    except yaml.YAMLError as error:
        raise InputError(f"config {path}: not YAML: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"config {path}: expected a mapping at the top")
    return OperatorConfig.from_json(json.dumps(data, default=str), where=f"config {path}")
