"""What is counted, and that the page on metrics says the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics import MetricWrapperBase

from tuner_job.api.conditions import Condition
from tuner_job.api.tuningjob_status import PastRun, PublishedEngine, TargetStatus, TrialCounts, TuningJobStatus
from tuning_operator.metrics import PREFIX, JobState, Metrics, gpu_class, known_reason

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
AT = "2026-11-30T10:00:00Z"
RUN, NEXT_RUN = "0123456789abcdef0123", "ffffffffffffffffffff"
OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(PREFIX + name, labels) or 0.0


def target(
    *, run: str | None = RUN, past: tuple[str, ...] = (), serves: str = "", reason: str = "Proven", **fields: Any
) -> TargetStatus:
    runs = tuple(PastRun(id=each, trigger="Created", reason=reason, finished_time=AT) for each in past)
    published = PublishedEngine(uri="s3://x", digest=serves, manifest=serves, runtime="trt") if serves else None
    return TargetStatus(name="t", active_run=run, recent_runs=runs, published=published, **fields)


def status(*targets: TargetStatus) -> TuningJobStatus:
    return TuningJobStatus(targets=targets)


def test_trials_grow_by_what_a_status_adds_to_the_stored_one() -> None:
    metrics = Metrics()
    before = status(target(trials=TrialCounts(feasible=3, failed=1, cache_hits=1)))
    after = status(target(trials=TrialCounts(feasible=5, failed=1, infeasible=2, cache_hits=2)))
    metrics.accrue(before, after, {})
    assert value(metrics, "trials_total", outcome="feasible") == 2
    assert value(metrics, "trials_total", outcome="infeasible") == 2
    assert value(metrics, "trials_total", outcome="failed") == 0
    assert value(metrics, "cache_hits_total") == 1


def test_a_restarted_operator_counts_nothing_twice() -> None:
    counted = Metrics()
    told = status(target(trials=TrialCounts(feasible=5), gpu_seconds=70))
    counted.accrue(told, told, {"t": "H100"})
    assert value(counted, "trials_total", outcome="feasible") == 0
    assert value(counted, "gpu_seconds_total", gpu_class="H100") == 0


def test_a_new_run_counts_from_nothing() -> None:
    metrics = Metrics()
    before = status(target(run=None, past=(RUN,), trials=TrialCounts(feasible=9), gpu_seconds=100))
    after = status(target(run=NEXT_RUN, past=(RUN,), trials=TrialCounts(feasible=2), gpu_seconds=30))
    metrics.accrue(before, after, {"t": "H100"})
    assert value(metrics, "trials_total", outcome="feasible") == 2
    assert value(metrics, "gpu_seconds_total", gpu_class="H100") == 30


def test_the_end_of_a_run_does_not_count_its_trials_again() -> None:
    metrics = Metrics()
    before = status(target(run=RUN, trials=TrialCounts(feasible=9)))
    after = status(target(run=None, past=(RUN,), trials=TrialCounts(feasible=10)))
    metrics.accrue(before, after, {})
    assert value(metrics, "trials_total", outcome="feasible") == 1


def test_the_first_status_counts_as_a_whole() -> None:
    metrics = Metrics()
    metrics.accrue(None, status(target(trials=TrialCounts(unsupported=4))), {})
    assert value(metrics, "trials_total", outcome="unsupported") == 4


def test_a_run_that_comes_back_or_whose_status_was_wiped_is_not_counted_again() -> None:
    metrics = Metrics()
    first = status(target(run=RUN, trials=TrialCounts(feasible=5, cache_hits=2), gpu_seconds=100))
    other = status(target(run=NEXT_RUN, trials=TrialCounts(feasible=1), gpu_seconds=10))
    more = status(target(run=RUN, trials=TrialCounts(feasible=6, cache_hits=2), gpu_seconds=120))
    for before, after in ((None, first), (first, other), (other, first), (None, first), (first, more)):
        metrics.accrue(before, after, {"t": "H100"})
    assert value(metrics, "trials_total", outcome="feasible") == 7
    assert value(metrics, "cache_hits_total") == 2
    assert value(metrics, "gpu_seconds_total", gpu_class="H100") == 130


def test_what_is_known_of_counted_runs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuning_operator.metrics.COUNTED_RUNS", 2)
    metrics = Metrics()
    for number in range(5):
        metrics.accrue(None, status(target(run=f"{number:020x}", trials=TrialCounts(feasible=1))), {})
    assert len(metrics._counted._most) == 2
    assert value(metrics, "trials_total", outcome="feasible") == 5


def test_an_engine_counts_when_it_comes_to_be_served_by_the_end_of_its_run() -> None:
    metrics = Metrics()
    before = status(target(run=RUN, serves=OLD))
    after = status(target(run=None, past=(RUN,), serves=NEW, reason="NoSignificantWin"))
    metrics.accrue(before, after, {})
    metrics.accrue(after, after, {})
    assert value(metrics, "published_total", reason="NoSignificantWin") == 1


def test_an_engine_that_a_person_chose_counts_as_promoted() -> None:
    metrics = Metrics()
    before = status(target(run=None, past=(RUN,), serves=OLD))
    metrics.accrue(before, status(target(run=None, past=(RUN,), serves=NEW)), {})
    assert value(metrics, "published_total", reason="Promoted") == 1


@pytest.mark.parametrize(
    ("kind", "product", "expected"),
    [
        ("GPU", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "H100"),
        ("GPU", "NVIDIA L40S", "L40S"),
        ("GPU", "Tesla-T4", "T4"),
        ("GPU", "NVIDIA RTX 6000 Ada Generation", "RTX"),
        ("GPU", "made up by a worker 17", "other"),
        ("GPU", "", "unknown"),
        ("CPU", "AMD EPYC 9654", "CPU"),
    ],
)
def test_products_fall_into_a_bounded_set_of_classes(kind: str, product: str, expected: str) -> None:
    assert gpu_class(kind, product) == expected


def test_a_reason_that_a_worker_made_up_is_other() -> None:
    assert known_reason("Anything") == "Other"
    assert known_reason("StoreUnavailable") == "StoreUnavailable"
    assert known_reason("Forbidden") == "Forbidden"


def test_jobs_are_counted_as_they_are_when_asked() -> None:
    metrics = Metrics()
    states: list[JobState] = []
    metrics.count_jobs(lambda: states)
    assert value(metrics, "jobs", phase="Exploring") == 0
    stalled = Condition(
        type="Stalled", status="True", reason="InvalidSpec", message="", last_transition_time=AT, observed_generation=1
    )
    states += [
        JobState.of(TuningJobStatus(phase="Exploring")),
        JobState.of(TuningJobStatus(phase="Stalled", conditions=(stalled,))),
        JobState.of(TuningJobStatus()),
    ]
    assert value(metrics, "jobs", phase="Exploring") == 1
    assert value(metrics, "jobs", phase="Pending") == 1
    assert value(metrics, "job_conditions", type="Stalled", status="True", reason="InvalidSpec") == 1
    states.clear()
    assert value(metrics, "jobs", phase="Exploring") == 0


def test_requests_without_an_answer_have_a_code_of_their_own() -> None:
    metrics = Metrics()
    metrics.request("get", "tuningjobs", 0, 10.0)
    metrics.request("get", "tuningjobs", 200, 0.01)
    assert value(metrics, "api_requests_total", verb="get", resource="tuningjobs", code="none") == 1
    assert value(metrics, "api_requests_total", verb="get", resource="tuningjobs", code="200") == 1


def test_the_page_lists_every_metric_with_its_type_and_labels() -> None:
    metrics = Metrics()
    metrics.count_jobs(list)
    assert _documented(PAGE.read_text()) == _registered(metrics)


def _documented(page: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    rows = re.findall(r"^\| `(tuning_operator_\w+)` \| (\w+) \|([^|]*)\|", page, re.MULTILINE)
    return {name: (kind, tuple(sorted(re.findall(r"`(\w+)`", labels)))) for name, kind, labels in rows}


def _registered(metrics: Metrics) -> dict[str, tuple[str, tuple[str, ...]]]:
    found = {}
    for collector in metrics.registry._collector_to_names:
        labels = tuple(sorted(collector._labelnames)) if isinstance(collector, MetricWrapperBase) else None
        for family in collector.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            found[name] = (family.type, labels if labels is not None else tuple(sorted(_OF_JOBS[name])))
    return found


_OF_JOBS = {PREFIX + "jobs": ("phase",), PREFIX + "job_conditions": ("type", "status", "reason")}
"""Labels of what is counted anew each time."""
