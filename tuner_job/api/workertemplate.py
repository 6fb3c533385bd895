"""What a TuningJob may say about its workers' pods: an allow-list; no host path, privilege, volume or variable gets through."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner_job.api.resource import Keyed, Labels, LabelValue, ObjectName, Quantity, Spec, rule

LabelKey = Annotated[
    str, Field(min_length=1, max_length=317, pattern=r"^([-a-z0-9.]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
]
Values = Annotated[tuple[LabelValue, ...], Field(max_length=16)]
Weight = Annotated[int, Field(ge=1, le=100)]


class Toleration(Spec):
    """A taint that the pods put up with, as in `pod.spec.tolerations`."""

    key: LabelKey | None = None
    """Taint key; at most 317 characters. Absent with operator Exists means every taint."""
    operator: Literal["Equal", "Exists"] | None = None
    """Absent means Equal."""
    value: LabelValue | None = None
    """Taint value, for Equal; at most 63 characters."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Absent means all effects."""
    toleration_seconds: Annotated[int | None, Field(ge=0, le=604_800)] = None
    """Seconds that a NoExecute taint is tolerated, 0 to 604,800; absent means for ever."""


class NodeRequirement(Spec):
    """A condition on node labels."""

    key: LabelKey
    """Label key; at most 317 characters."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How the label is compared with `values`."""
    values: Values = ()
    """At most 16."""


class NodeSelectorTerm(Spec):
    """Conditions that must all hold."""

    match_expressions: Annotated[tuple[NodeRequirement, ...], Field(min_length=1, max_length=16)]
    """1 to 16."""


class NodeSelector(Spec):
    """Terms of which one must hold."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Field(min_length=1, max_length=8)]
    """1 to 8."""


class PreferredNodes(Spec):
    """A wish about nodes."""

    weight: Weight
    """1 to 100."""
    preference: NodeSelectorTerm
    """What is wished for."""


class NodeAffinity(Spec):
    """Which nodes the pods need or like."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """What a node must have."""
    preferred_during_scheduling_ignored_during_execution: Annotated[tuple[PreferredNodes, ...], Field(max_length=8)] = ()
    """What is preferred; at most 8."""


class LabelRequirement(Spec):
    """A condition on pod labels."""

    key: LabelKey
    """Label key; at most 317 characters."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label is compared with `values`."""
    values: Values = ()
    """At most 16."""


class LabelSelector(Spec):
    """Conditions on pod labels that must all hold."""

    match_labels: Labels = Field(default_factory=dict)
    """Labels with their exact values; at most 32."""
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=16)] = ()
    """At most 16."""


class PodTerm(Spec):
    """Pods of the own namespace to be near to, or far from."""

    label_selector: LabelSelector
    """Which pods."""
    topology_key: LabelKey
    """Node label that says what near means (`kubernetes.io/hostname`); at most 317 characters."""


class PreferredPods(Spec):
    """A wish about neighbours."""

    weight: Weight
    """1 to 100."""
    pod_affinity_term: PodTerm
    """Which neighbours."""


class PodAffinity(Spec):
    """Which neighbours the pods need or like (or avoid, under podAntiAffinity)."""

    required_during_scheduling_ignored_during_execution: Annotated[tuple[PodTerm, ...], Field(max_length=8)] = ()
    """What must hold; at most 8."""
    preferred_during_scheduling_ignored_during_execution: Annotated[tuple[PreferredPods, ...], Field(max_length=8)] = ()
    """What is preferred; at most 8."""


class Affinity(Spec):
    """Where the pods go. The device class that discover froze is added to it."""

    node_affinity: NodeAffinity | None = None
    """Which nodes."""
    pod_affinity: PodAffinity | None = None
    """Which neighbours to have."""
    pod_anti_affinity: PodAffinity | None = None
    """Which neighbours to avoid."""


class PullSecret(Spec):
    """A Secret of the job's own namespace."""

    name: ObjectName
    """At most 253 characters."""


Amounts = Annotated[dict[str, Quantity], Field(max_length=8)]


class Resources(Spec):
    """CPU and memory of a worker."""

    requests: Amounts = Field(default_factory=dict)
    """Reserved amounts (`cpu`, `memory`, `ephemeral-storage`); at most 8."""
    limits: Amounts = Field(default_factory=dict)
    """Upper bounds; at most 8. A trial's children share the worker's."""

    @rule(
        "(!has(self.requests) || self.requests.all(k, !k.startsWith('nvidia.com/')))"
        " && (!has(self.limits) || self.limits.all(k, !k.startsWith('nvidia.com/')))",
        "GPUs are asked for by the target's device, not by resources",
    )
    def _no_gpus(self) -> bool:
        return not any(key.startswith("nvidia.com/") for key in (*self.requests, *self.limits))


def _foreign(labels: dict[str, str]) -> bool:
    return all(len(key) <= 317 and not key.startswith("trtfleet.dev/") for key in labels)


class WorkerTemplate(Spec):
    """What a job may say about its workers' pods."""

    labels: Labels = Field(default_factory=dict)
    """Added to the pods; at most 32, keys of at most 317 characters, none of trtfleet.dev's own."""
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=1024)]], Field(max_length=32)] = Field(default_factory=dict)
    """Added to the pods; at most 32, values of at most 1,024 characters, keys as for labels."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Taints that the pods put up with; at most 16."""
    affinity: Affinity | None = None
    """Where the pods go."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass (`nvidia`); at most 253 characters."""
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Keyed(most=8)] = ()
    """Secrets of this namespace that the image is pulled with; at most 8."""
    service_account_name: ObjectName | None = None
    """Service account of this namespace, where the operator's policy allows it; at most 253 characters."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods; at most 253 characters. The order among jobs is `spec.priority`."""
    resources: Resources | None = None
    """CPU and memory."""
    scratch_size: Quantity | None = None
    """Size of the scratch volume for models, builds and logs (`20Gi`)."""

    @rule(
        "(!has(self.labels) || self.labels.all(k, size(k) <= 317 && !k.startsWith('trtfleet.dev/')))"
        " && (!has(self.annotations) || self.annotations.all(k, size(k) <= 317 && !k.startsWith('trtfleet.dev/')))",
        "keys of labels and annotations have at most 317 characters, and trtfleet.dev/ is trtfleet's own",
    )
    def _foreign_keys(self) -> bool:
        return _foreign(self.labels) and _foreign(self.annotations)
