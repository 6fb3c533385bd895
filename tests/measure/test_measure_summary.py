import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner_job.api.base import InputError
from tuner_job.api.child import ShapeCase
from tuner_job.api.measurement import Timing
from tuner_job.measure.samples import session
from tuner_job.measure.summary import (
    P99_SAMPLES,
    Metric,
    NoUsableSession,
    TooFewSamples,
    case_weights,
    gain,
    latency,
    margin,
    objective,
)

METRICS: list[Metric] = ["LatencyP50", "LatencyP99", "LatencyMean", "Throughput"]


def timing(*sessions: list[float], throttled: frozenset[int] = frozenset()) -> Timing:
    return Timing(
        clock="host", sessions=tuple(session(float(k), np.array(one), k in throttled) for k, one in enumerate(sessions))
    )


def case(name: str, weight: float) -> ShapeCase:
    return ShapeCase(name=name, weight=weight)


def test_one_slow_session_does_not_move_the_median_latency() -> None:
    assert latency(timing([1, 1, 3], [1, 1, 1], [90, 90, 90]), "LatencyP50") == 1


def test_mean_and_throughput_are_the_median_of_session_means() -> None:
    measured = timing([1, 1, 4], [1, 1, 1], [9, 9, 9])
    assert latency(measured, "LatencyMean") == latency(measured, "Throughput") == 2


def test_throttled_sessions_are_left_out() -> None:
    assert latency(timing([1], [5], [5], throttled=frozenset({1, 2})), "LatencyP50") == 1


@pytest.mark.parametrize("metric", METRICS)
def test_only_throttled_sessions_are_no_measurement(metric: Metric) -> None:
    with pytest.raises(NoUsableSession):
        latency(timing([1], [5], throttled=frozenset({0, 1})), metric)


def test_p99_is_taken_over_all_samples() -> None:
    rng = np.random.default_rng(0)
    parts = rng.lognormal(size=(4, P99_SAMPLES // 4)).astype(np.float32)
    assert latency(timing(*parts.tolist()), "LatencyP99") == pytest.approx(np.percentile(parts, 99))


def test_p99_is_refused_below_the_count_that_supports_it() -> None:
    half = [1.0] * (P99_SAMPLES // 2)
    with pytest.raises(TooFewSamples, match=f"needs {P99_SAMPLES} samples.*got {P99_SAMPLES - 1}") as caught:
        latency(timing(half, half[1:]), "LatencyP99")
    assert caught.value.reason == "TooFewSamples"


def test_p99_that_only_throttling_left_short_of_samples_is_timed_again() -> None:
    half = [1.0] * (P99_SAMPLES // 2)
    with pytest.raises(NoUsableSession):
        latency(timing(half, half, throttled=frozenset({1})), "LatencyP99")
    with pytest.raises(TooFewSamples):
        latency(timing(half, half[1:], throttled=frozenset({1})), "LatencyP99")


def test_the_count_for_p99_follows_from_its_rule() -> None:
    """Order statistics at n p ± 1.96 sqrt(n p (1-p)) stay within P98.5 and P99.5."""
    assert 1.96 * math.sqrt(0.99 * 0.01 / P99_SAMPLES) < 0.005


def test_the_objective_is_a_weighted_mean_of_logs() -> None:
    both = [timing([2.0]), timing([8.0])]
    assert objective(both, [case("a", 3), case("b", 1)], "LatencyP50") == pytest.approx((3 * math.log(2) + math.log(8)) / 4)
    assert objective(both, [case("a", 1), case("b", 0)], "LatencyP50") == pytest.approx(math.log(2))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5), st.floats(0.1, 10))
def test_the_scale_of_weights_does_not_matter(weights: list[float], scale: float) -> None:
    a = case_weights([case("x", w) for w in weights])
    b = case_weights([case("x", w * scale) for w in weights])
    assert a == pytest.approx(b)
    assert a.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("weights", "where"), [([1, -1], r"shapes\[1\].weight"), ([0, 0], "all weights are 0"), ([float("nan")], "weight")]
)
def test_wrong_weights_are_named(weights: list[float], where: str) -> None:
    with pytest.raises(InputError, match=where):
        case_weights([ShapeCase.model_construct(name="x", weight=w) for w in weights])


@given(st.sampled_from(METRICS), st.floats(0, 0.9))
def test_margin_and_gain_are_inverse(metric: Metric, share: float) -> None:
    assert margin(share, metric) <= 0
    assert gain(margin(share, metric), metric) == pytest.approx(share, abs=1e-12)


def test_gain_counts_latency_saved_or_throughput_added() -> None:
    assert gain(math.log(0.5), "LatencyP50") == pytest.approx(0.5)
    assert gain(math.log(0.5), "Throughput") == pytest.approx(1.0)
    assert gain(math.log(2), "LatencyMean") == pytest.approx(-1.0)


@pytest.mark.parametrize(("value", "metric"), [(1.0, "LatencyP50"), (-0.01, "Throughput"), (float("nan"), "LatencyP50")])
def test_an_impossible_margin_is_refused(value: float, metric: Metric) -> None:
    with pytest.raises(InputError, match="minImprovement"):
        margin(value, metric)
    assert margin(2.0, "Throughput") == pytest.approx(-math.log(3))
