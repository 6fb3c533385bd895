"""What a job's workerTemplate and the operator's defaults come to. Each function has one rule; docs/workers.md lists them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tuner_job.api.base import InputError, Model
from tuner_job.api.measurement import Device
from tuner_job.api.tuningjob import Target, TuningJob
from tuner_job.api.workertemplate import Affinity, NodeSelectorTerm, Toleration, WorkerTemplate
from tuning_operator.config import OperatorConfig, WorkerDefaults
from tuning_operator.jobs.nodes import ANYWHERE, Placement, Requirement, Terms, both, device_terms, devices
from tuning_operator.jobs.quantity import amount
from tuning_operator.kube.api import Object

_OWN_RESOURCES = ("cpu", "memory", "ephemeral-storage")

_ADDITIONS = ("app.kubernetes.io", "cluster-autoscaler.kubernetes.io")
"""Of Kubernetes' own domains, the two in which a pod's author says harmless things."""
_RESERVED = re.compile(r"(^|\.)(kubernetes\.io|k8s\.io|x-k8s\.io)$|^io\.kubernetes\.")
_LEGACY = frozenset({"job-name", "controller-uid"})


class NotAllowed(InputError):
    """The workerTemplate asks for something that the operator does not hand out."""

    reason = "NotAllowed"


def template_of(job: TuningJob) -> WorkerTemplate:
    return job.spec.worker_template or WorkerTemplate()


def placement(job: TuningJob, target: Target, device: Device | None, config: OperatorConfig) -> Placement:
    """Where a worker of the target may run: before discover (no device) or on the class that it froze. Raises InputError."""
    template, defaults = template_of(job), config.workers
    return Placement(
        node_selector=target.node_selector,
        terms=both(_own_terms(template.affinity), _device_terms(job, target, device, config)),
        tolerations=tolerations(template, defaults, gpu=target.device.type != "CPU"),
        requests=resources(job, target, defaults)["requests"],
    )


def pod_labels(job: TuningJob, defaults: WorkerDefaults, own: Mapping[str, str]) -> dict[str, str]:
    """The job adds to the defaults and may replace them; ours stand."""
    given = template_of(job).labels
    for key in given:
        _check_key(job, f"labels[{key}]", key)
    return {**defaults.labels, **given, **own}


def pod_annotations(job: TuningJob) -> dict[str, str]:
    given = template_of(job).annotations
    for key in given:
        _check_key(job, f"annotations[{key}]", key)
    return dict(given)


def tolerations(template: WorkerTemplate, defaults: WorkerDefaults, *, gpu: bool) -> tuple[Toleration, ...]:
    """The job's and the defaults', each once. Those that let pods onto GPU nodes are not handed to workers that need no GPU."""
    added = [each for each in defaults.tolerations if gpu or not (each.key or "").startswith("nvidia.com/")]
    return tuple(dict.fromkeys((*template.tolerations, *added)))


def affinity(job: TuningJob, target: Target, device: Device | None, config: OperatorConfig) -> Object:
    """The job's, with the device added to every alternative of its required node affinity; empty for none."""
    given = template_of(job).affinity
    whole = plain(given) if given else {}
    terms = both(_own_terms(given), _device_terms(job, target, device, config))
    if terms != ANYWHERE:
        selector = {"nodeSelectorTerms": [{"matchExpressions": [each.plain() for each in term]} for term in terms]}
        whole.setdefault("nodeAffinity", {})["requiredDuringSchedulingIgnoredDuringExecution"] = selector
    return whole


def resources(job: TuningJob, target: Target, defaults: WorkerDefaults) -> Object:
    """Per kind (requests, limits) the job's or the defaults', then the devices and room for the scratch volume.

    A default contradicts nobody: a default request is lowered to the job's limit, a default limit raised to the request.
    """
    given = template_of(job).resources
    requests, limits = dict(given.requests if given else {}), dict(given.limits if given else {})
    for kind, amounts in (("requests", requests), ("limits", limits)):
        for name in amounts:
            if name not in _OWN_RESOURCES:
                raise NotAllowed(f"{_where(job)}resources.{kind}[{name}]: only {', '.join(_OWN_RESOURCES)} can be asked for")
    if not requests:
        requests = {name: _smaller(value, limits.get(name)) for name, value in defaults.resources.requests.items()}
    requests.setdefault("ephemeral-storage", scratch_size(job, defaults))
    if not limits:
        limits = {name: _larger(value, requests.get(name)) for name, value in defaults.resources.limits.items()}
    for name, limit in limits.items():
        if name in requests and amount(requests[name]) > amount(limit):
            raise InputError(
                f"{_where(job)}resources: {name} asks for {requests[name]}, which is over its limit of {limit}"
                f"{'; scratchSize is what a worker asks for' if name == 'ephemeral-storage' else ''}"
            )
    wanted = devices(target)
    kinds = {"requests": requests | wanted, "limits": limits | wanted}
    claims = [{"name": each.name} for each in target.device.resource_claims]
    return {kind: amounts for kind, amounts in kinds.items() if amounts} | ({"claims": claims} if claims else {})


def scratch_size(job: TuningJob, defaults: WorkerDefaults) -> int | str:
    size = template_of(job).scratch_size
    if size is None:
        return defaults.scratch_size
    if amount(size) <= 0:  # which Kubernetes takes for no bound at all
        raise InputError(f"{_where(job)}scratchSize: {size}; it must be above 0")
    return size


def service_account(job: TuningJob, defaults: WorkerDefaults) -> str:
    name = template_of(job).service_account_name
    if name is None or name == defaults.service_account_name:
        return defaults.service_account_name
    if name not in defaults.allowed_service_accounts:
        raise NotAllowed(
            f"{_where(job)}serviceAccountName: {name} is not allowed here; leave it out, or have an administrator add it to the "
            f"operator's workers.allowedServiceAccounts",
            reason="ServiceAccountNotAllowed",
        )
    return name


def runtime_class(job: TuningJob, defaults: WorkerDefaults) -> str | None:
    return template_of(job).runtime_class_name or defaults.runtime_class_name


def pull_secrets(job: TuningJob, defaults: WorkerDefaults) -> list[Object]:
    """The job's, or the defaults' when it names none."""
    return [{"name": each.name} for each in template_of(job).image_pull_secrets or defaults.image_pull_secrets]


def plain(model: Model) -> dict[str, Any]:  # Any: a part of a Kubernetes object
    """As Kubernetes writes it, less what was left out."""
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _device_terms(job: TuningJob, target: Target, device: Device | None, config: OperatorConfig) -> Terms:
    where = f"TuningJob {job.name}: spec.targets[{target.name}]."
    return device_terms(target, device, gfd=config.device_labels == "GFD", where=where)


def _own_terms(given: Affinity | None) -> Terms:
    nodes = given and given.node_affinity
    required = nodes and nodes.required_during_scheduling_ignored_during_execution
    return tuple(_term(each) for each in required.node_selector_terms) if required else ANYWHERE


def _term(given: NodeSelectorTerm) -> tuple[Requirement, ...]:
    return tuple(Requirement(each.key, each.operator, each.values) for each in given.match_expressions)


def _smaller(value: int | str, limit: int | str | None) -> int | str:
    return value if limit is None or amount(value) <= amount(limit) else limit


def _larger(value: int | str, request: int | str | None) -> int | str:
    return value if request is None or amount(value) >= amount(request) else request


def _check_key(job: TuningJob, field: str, key: str) -> None:
    """Annotations and labels of Kubernetes' own domains can inject devices, lift confinement or enter queues."""
    domain = key.rpartition("/")[0]
    if key in _LEGACY or (_RESERVED.search(domain or key) and domain not in _ADDITIONS):
        raise NotAllowed(
            f"{_where(job)}{field}: this key is not a job's to set; leave it out (queues go on the TuningJob itself)"
        )


def _where(job: TuningJob) -> str:
    return f"TuningJob {job.name}: spec.workerTemplate."
