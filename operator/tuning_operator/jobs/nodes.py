"""Which nodes a worker may run on: the labels that a device has there, and how many nodes fit.

Labels are those of NVIDIA's GPU feature discovery (GFD); docs/workers.md says which of its sources each one was read in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from tuner_job.api.base import InputError
from tuner_job.api.measurement import Device
from tuner_job.api.tuningjob import Gpu, Target
from tuner_job.api.workertemplate import Toleration
from tuning_operator.jobs.quantity import amount
from tuning_operator.kube.api import Object

GPU = "nvidia.com/gpu"

_DRIVER = "nvidia.com/cuda.driver-version.full"
_DRIVER_PARTS = ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev")
"""Deprecated, but what older GFDs have; a driver of two parts leaves the last one empty."""
_COMPUTE = (f"{GPU}.compute.major", f"{GPU}.compute.minor")
_SHARED = "-SHARED"
_SHARING = ("mps", "time-slicing")

_ARCHITECTURE = "kubernetes.io/arch"
_X86_FEATURES = frozenset({"sse4_2", "avx", "avx2", "avx512f"})
_ARM_FEATURES = frozenset({"asimd"})

_LABEL_VALUE = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")


@dataclass(frozen=True)
class Requirement:
    """A condition on one node label, as in a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def plain(self) -> Object:
        return {"key": self.key, "operator": self.operator} | ({"values": list(self.values)} if self.values else {})

    def holds(self, labels: Mapping[str, str]) -> bool:
        """As the scheduler judges it: NotIn also holds where the label is missing; Gt and Lt compare integers."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                try:
                    here, bound = int(value or ""), int(self.values[0])
                except (ValueError, IndexError):
                    return False
                return here > bound if self.operator == "Gt" else here < bound
        return False


Term = tuple[Requirement, ...]
"""All of them must hold."""
Terms = tuple[Term, ...]
"""One of them must hold."""

ANYWHERE: Terms = ((),)


def both(left: Terms, right: Terms) -> Terms:
    """Terms are alternatives, so what must hold beside them is added to each."""
    return tuple((*one, *other) for one, other in product(left, right))


@dataclass(frozen=True)
class Placement:
    """Where a worker's pod may run."""

    node_selector: Mapping[str, str]
    terms: Terms
    tolerations: tuple[Toleration, ...]
    requests: Mapping[str, object]
    """Resource → quantity."""


def devices(target: Target) -> dict[str, str]:
    """The device plugin's resource and its count; empty for CPUs and for resource claims."""
    if target.device.type != "GPU":
        return {}
    gpu = target.device.gpu or Gpu()
    return {_resource(gpu): str(gpu.count or 1)}


def device_terms(target: Target, frozen: Device | None, *, gfd: bool, where: str = "") -> Terms:
    """Node labels of the target's device, and of the device class once discover froze it.

    Resource claims select their devices themselves. `where` begins error messages. Raises InputError (SharedGpu).
    """
    if target.device.type == "CPU":
        return ANYWHERE if frozen is None else _architecture(frozen)
    if target.device.type == "ResourceClaims":
        return ANYWHERE
    gpu = target.device.gpu or Gpu()
    if gpu.product and gpu.product.endswith(_SHARED) and not gpu.allow_shared:
        raise InputError(
            f"{where}device.gpu.product: {gpu.product} is a GPU that pods share, whose neighbours disturb every timing; "
            f"name another, or accept that with allowShared",
            reason="SharedGpu",
        )
    if not gfd:
        return ANYWHERE
    common = _product(gpu, frozen)
    return (common,) if frozen is None else both((common + _compute(frozen),), _driver(frozen))


def label_text(name: str) -> str:
    """A product as GFD writes it into a label: `NVIDIA L40S` → `NVIDIA-L40S`; other characters are dropped."""
    return "-".join(re.sub(r"[^A-Za-z0-9-_. ]", "", name).split())


def matching(nodes: Sequence[Object], placement: Placement) -> int:
    """Nodes that are ready, not cordoned, fit the labels, have no taint in the way and could hold one such pod when empty."""
    return sum(_fits(node, placement) for node in nodes)


def _resource(gpu: Gpu) -> str:
    """`nvidia.com/gpu`, or under MIG strategy `mixed` that of the profile."""
    return f"nvidia.com/mig-{_mig(gpu.mig_profile)}" if gpu.mig_profile else GPU


def _mig(profile: str) -> str:
    """As device plugin and GFD write it: neither resources nor labels have a plus."""
    return profile.replace("+", ".")


def _product(gpu: Gpu, frozen: Device | None) -> Term:
    resource = _resource(gpu)
    term: Term = () if gpu.allow_shared else (Requirement(f"{resource}.sharing-strategy", "NotIn", _SHARING),)
    product_label = gpu.product or (label_text(frozen.product) if frozen else "")
    profile = gpu.mig_profile or (frozen.mig_profile if frozen else "")
    if product_label and profile and "-MIG-" not in product_label:
        product_label = f"{product_label}-MIG-{_mig(profile)}"
    names = [product_label]
    if gpu.allow_shared and not product_label.endswith(_SHARED):
        names.append(product_label + _SHARED)
    labels = tuple(name for name in names if _LABEL_VALUE.match(name))
    return (*term, Requirement(f"{resource}.product", "In", labels)) if product_label and labels else term


def _compute(frozen: Device) -> Term:
    parts = frozen.compute_capability.split(".")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        return ()
    return tuple(Requirement(key, "In", (part,)) for key, part in zip(_COMPUTE, parts, strict=True))


def _driver(frozen: Device) -> Terms:
    """Its whole version in one label, or, where a GFD does not have that one, in three."""
    parts = frozen.driver.split(".")
    if not 2 <= len(parts) <= 3 or not all(part.isdecimal() for part in parts):
        return ANYWHERE
    split = zip(_DRIVER_PARTS, (*parts, "")[:3], strict=True)
    return (
        (Requirement(_DRIVER, "In", (frozen.driver,)),),
        (Requirement(_DRIVER, "DoesNotExist"), *(Requirement(key, "In", (part,)) for key, part in split)),
    )


def _architecture(frozen: Device) -> Terms:
    """No standard label has a CPU's model or a node's kernel release: a worker on another one ends with exit code 65."""
    features = set(frozen.compute_capability.split(","))
    for name, known in (("amd64", _X86_FEATURES), ("arm64", _ARM_FEATURES)):
        if features & known:
            return ((Requirement(_ARCHITECTURE, "In", (name,)),),)
    return ANYWHERE


def _fits(node: Object, placement: Placement) -> bool:
    """A node that cannot be read does not fit."""
    try:
        labels = node["metadata"].get("labels") or {}
        spec, status = node.get("spec") or {}, node["status"]
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
        return (
            ready
            and all(labels.get(key) == value for key, value in placement.node_selector.items())
            and any(all(each.holds(labels) for each in term) for term in placement.terms)
            and all(_tolerated(taint, placement.tolerations) for taint in _taints(spec))
            and _holds(status.get("allocatable") or {}, placement.requests)
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _taints(spec: Object) -> list[Object]:
    """Those that keep pods away. A cordon is judged by the taint that stands for it."""
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    taints = [*(spec.get("taints") or ()), *([cordon] if spec.get("unschedulable") else ())]
    return [taint for taint in taints if taint["effect"] != "PreferNoSchedule"]


def _tolerated(taint: Object, tolerations: Sequence[Toleration]) -> bool:
    return any(
        each.effect in (None, taint["effect"])
        and each.key in (None, taint["key"])
        and (each.operator == "Exists" or (each.value or "") == taint.get("value", ""))
        for each in tolerations
    )


def _holds(allocatable: Mapping[str, object], requests: Mapping[str, object]) -> bool:
    return all(amount(allocatable.get(name, 0)) >= amount(wanted) for name, wanted in requests.items())
