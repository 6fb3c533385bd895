"""What Prometheus is told. Labels are bounded: no names of objects, no ids, no models. docs/metrics.md lists every metric."""

from __future__ import annotations

import re
import time
from collections import Counter as Tally
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tuner_job import __version__
from tuner_job.api.base import TrtfleetError
from tuner_job.api.conditions import Reason
from tuner_job.api.tuningjob_status import Phase, TargetStatus, TrialCounts, TuningJobStatus
from tuner_job.store.objects import StoreCorrupt, StoreFull, StoreReadOnly
from tuning_operator.kube.api import KubeError

PREFIX = "tuning_operator_"

GPU_CLASSES = frozenset(
    {
        "GB300", "GB200", "B300", "B200", "GH200", "H200", "H100", "H800", "H20", "A100", "A800", "A40", "A30", "A16", "A10G",
        "A10", "A2", "L40S", "L40", "L20", "L4", "L2", "T4", "V100", "P100", "RTX", "Orin", "Thor",
    }
)  # fmt: skip
"""Words in product names that are classes of their own; any other product is `other`, so that no worker can invent labels."""

_API_ERRORS: tuple[type[KubeError], ...] = (KubeError, *KubeError.__subclasses__())
_STORE_ERRORS: tuple[type[TrtfleetError], ...] = (StoreReadOnly, StoreFull, StoreCorrupt)
REASONS = frozenset(
    {*Reason, *(each.reason for each in _API_ERRORS), *(each.reason for each in _STORE_ERRORS), "Timeout", "Unexpected"}
)

OUTCOMES = ("feasible", "infeasible", "failed", "unsupported")
"""Of trials, as TrialCounts names them."""

COUNTED_RUNS = 16_384
"""Of which this process knows how much it has counted."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, which nobody reads


@dataclass(frozen=True)
class JobState:
    """What is kept of a TuningJob's status, to be counted."""

    phase: str
    conditions: tuple[tuple[str, str, str], ...] = ()
    """Type, status, reason."""

    @classmethod
    def of(cls, status: TuningJobStatus) -> JobState:
        conditions = ((each.type, each.status, known_reason(each.reason)) for each in status.conditions)
        return cls(status.phase or "Pending", tuple(conditions))


class Metrics:
    """The operator's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = self._counter("reconcile", "Looks at a TuningJob, by how they ended", "result")
        self.reconcile_seconds = self._histogram("reconcile_duration_seconds", "Time of one look at a TuningJob", "result")
        self.errors = self._counter("reconcile_errors", "Looks at a TuningJob that failed, by the error's reason", "reason")
        self.depth = self._gauge("workqueue_depth", "TuningJobs that are due and wait for a reconciler")
        self.latency = self._histogram("workqueue_latency_seconds", "Time that a TuningJob was due before it was looked at")
        self.retries = self._counter("workqueue_retries", "TuningJobs put back after an error, with a growing delay")
        self.last_event = self._gauge("watch_last_event_timestamp_seconds", "When the last watch event came (Unix)", "resource")
        self.untold = self._gauge("watch_untold_changes", "TuningJobs whose change was listed, but not told by the watch in time")
        self.last_resync = self._gauge("resync_last_success_timestamp_seconds", "When the last full listing ended well (Unix)")
        self.leader = self._gauge("leader", "1 while this replica holds the Lease, else 0")
        self.requests = self._counter("api_requests", "Calls to the API server", "verb", "resource", "code")
        self.request_seconds = self._histogram("api_request_duration_seconds", "Time to an answer of the API server", "verb")
        self.trials = self._counter("trials", "Trials that ended, as status told them", "outcome")
        self.cache_hits = self._counter("cache_hits", "Trials whose result came from the ledger; they are among trials_total")
        self.gpu_seconds = self._counter("gpu_seconds", "Device seconds that workers used, as status told them", "gpu_class")
        self.published = self._counter("published", "Engines that came to be served, by why", "reason")
        self.loop_lag = self._gauge("event_loop_lag_seconds", "How late the event loop's last tick was")
        self._counted = _Counted()
        self._gauge("build_info", "1, with the operator's version", "version").labels(__version__).set(1)

    def count_jobs(self, states: Callable[[], Iterable[JobState]]) -> None:
        """Count the TuningJobs of `states` whenever somebody asks."""
        self.registry.register(_Jobs(states))

    def looked(self, result: str, seconds: float, *, reason: str, retried: bool) -> None:
        """One look at a TuningJob ended, with the reason of its error or none, and whether the queue tries again by itself."""
        self.reconciles.labels(result).inc()
        self.reconcile_seconds.labels(result).observe(seconds)
        if reason:
            self.errors.labels(known_reason(reason)).inc()
        if retried:
            self.retries.inc()

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """One answer of the API server. `code` 0: there was none."""
        self.request_seconds.labels(verb).observe(seconds)
        self.requests.labels(verb, resource or "discovery", str(code) if code else "none").inc()

    def event(self, resource: str) -> None:
        """A watch event about a resource (its plural) came."""
        self.last_event.labels(resource).set(time.time())

    def accrue(self, before: TuningJobStatus | None, after: TuningJobStatus, gpu_classes: Mapping[str, str]) -> None:
        """Count what `after` tells beyond `before`, once it has been written over it. `gpu_classes` is by target.

        The stored status is the memory: a restart counts nothing twice, and what was never written is not counted. But a target
        may come back to an earlier run, and a status may be wiped: what this process has counted of a run it counts no more.
        """
        stored = {each.name: each for each in before.targets} if before else {}
        for known in stored.values():
            self._counted.see(known)
        for target in after.targets:
            more = self._counted.see(target)
            for outcome in OUTCOMES:
                self.trials.labels(outcome).inc(more[outcome])
            self.cache_hits.inc(more["cached"])
            if more["seconds"]:
                self.gpu_seconds.labels(gpu_classes.get(target.name, "unknown")).inc(more["seconds"])
            was = stored.get(target.name)
            serves, served = target.published, was.published if was else None
            if serves and (served is None or served.manifest != serves.manifest):
                self.published.labels(_why_served(was, target)).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(PREFIX + name, text, labels, buckets=_SECONDS, registry=self.registry)


class _Counted:
    """The most that was seen of each run, so that nothing is counted twice. The run seen least recently is forgotten first."""

    def __init__(self) -> None:
        self._most: OrderedDict[str, Tally[str]] = OrderedDict()

    def see(self, target: TargetStatus) -> Tally[str]:
        """What the target tells of its run beyond what was known of it: outcomes, `cached`, `seconds`. Each is 0 or more."""
        run, trials = run_of(target), target.trials or TrialCounts()
        if run is None:
            return Tally()
        told = Tally({outcome: getattr(trials, outcome) for outcome in OUTCOMES})
        told.update(cached=trials.cache_hits, seconds=target.gpu_seconds or 0)
        known = self._most.get(run, Tally())
        self._most[run] = known | told
        self._most.move_to_end(run)
        while len(self._most) > COUNTED_RUNS:
            self._most.popitem(last=False)
        return told - known


class _Jobs(Collector):
    """Gauges over what the controller knows now: counted anew each time, they cannot drift."""

    def __init__(self, states: Callable[[], Iterable[JobState]]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        states = list(self._states())
        phases = GaugeMetricFamily(PREFIX + "jobs", "TuningJobs, by phase", labels=["phase"])
        by_phase = Tally(each.phase for each in states)
        for phase in get_args(Phase):
            phases.add_metric([phase], by_phase[phase])
        yield phases
        conditions = GaugeMetricFamily(PREFIX + "job_conditions", "TuningJobs, by condition", labels=["type", "status", "reason"])
        for labels, count in sorted(Tally(condition for each in states for condition in each.conditions).items()):
            conditions.add_metric(labels, count)
        yield conditions


def run_of(target: TargetStatus) -> str | None:
    """The run that a target's counts are of: the active one, or the last."""
    return target.active_run or (target.recent_runs[0].id if target.recent_runs else None)


def known_reason(reason: str) -> str:
    """The reason, if it is one that the operator itself may give; else `Other`: a worker can write any."""
    return reason if reason in REASONS else "Other"


def gpu_class(device_type: str, product: str) -> str:
    """`H100` of `NVIDIA-H100-80GB-HBM3`; `CPU`, `other` or `unknown`."""
    if device_type == "CPU":
        return "CPU"
    words = re.split(r"[^A-Za-z0-9]+", product)
    return next((word for word in words if word in GPU_CLASSES), "other" if product else "unknown")


def _why_served(before: TargetStatus | None, after: TargetStatus) -> str:
    """The end of the run that just ended; `Promoted` when no run did (an approval, a pin, a rollback)."""
    newest = after.recent_runs[0] if after.recent_runs else None
    if newest is None or (before is not None and before.recent_runs and before.recent_runs[0].id == newest.id):
        return "Promoted"
    return known_reason(newest.reason)
