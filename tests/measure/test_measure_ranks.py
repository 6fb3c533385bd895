import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tuner_job.measure.ranks import rank_sum_critical, rank_sum_p, shift_interval, smallest_p

values = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=7, unique=True)
coarse = st.lists(st.integers(0, 3), min_size=1, max_size=5)


@given(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=14, unique=True), st.data())
def test_p_value_agrees_with_scipys_exact_mann_whitney(both: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(both) - 1))
    a, b = np.array(both[:cut]), np.array(both[cut:])
    assert rank_sum_p(a, b) == pytest.approx(stats.mannwhitneyu(a, b, alternative="less", method="exact").pvalue)


def test_p_value_agrees_with_scipy_at_the_largest_final() -> None:
    rng = np.random.default_rng(5)
    for shift in (0.0, 0.5, 1.5):
        a, b = rng.normal(-shift, 1, 16), rng.normal(size=32)
        assert rank_sum_p(a, b) == pytest.approx(stats.mannwhitneyu(a, b, alternative="less", method="exact").pvalue, rel=1e-9)


@given(coarse, coarse)
def test_p_value_with_ties_is_the_share_of_all_relabellings(a: list[int], b: list[int]) -> None:
    both = np.array([*a, *b], dtype=float)
    ranks = stats.rankdata(both)
    observed = ranks[: len(a)].sum()
    sums = [sum(one) for one in itertools.combinations(ranks, len(a))]
    assert rank_sum_p(both[: len(a)], both[len(a) :]) == pytest.approx(np.mean(np.array(sums) <= observed))


def test_identical_values_prove_nothing_and_separated_ones_all_they_can() -> None:
    assert rank_sum_p(np.ones(5), np.ones(10)) == 1.0
    assert rank_sum_p(np.zeros(5), np.ones(10)) == pytest.approx(1 / 3003) == smallest_p(5, 10)


@given(values, values, st.sampled_from([0.01, 0.025, 0.05, 0.2]), st.floats(-12, 12))
def test_the_interval_holds_exactly_the_shifts_that_the_test_keeps(
    a: list[float], b: list[float], alpha: float, at: float
) -> None:
    first, second = np.array(a), np.array(b)
    found = shift_interval(first, second, alpha)
    differences = np.subtract.outer(first, second).ravel()
    if rank_sum_critical(first.size, second.size, alpha) < 0 or np.min(np.abs(differences - at)) < 1e-9:
        return
    rejected = rank_sum_p(first - at, second) <= alpha or rank_sum_p(second, first - at) <= alpha
    assert rejected == (not found.low <= at <= found.high)
    assert found.low <= found.estimate <= found.high
    assert found.confidence == 1 - 2 * alpha


def test_groups_too_small_for_the_confidence_state_a_lower_one() -> None:
    found = shift_interval(np.array([1.0, 2.0]), np.array([4.0, 5.0]), 0.025)
    assert (found.low, found.high) == (-4.0, -2.0)
    assert found.confidence == pytest.approx(1 - 2 / 6)


@settings(max_examples=30)
@given(values, values, st.floats(-5, 5))
def test_shifting_one_group_shifts_estimate_and_interval(a: list[float], b: list[float], by: float) -> None:
    plain = shift_interval(np.array(a), np.array(b), 0.05)
    moved = shift_interval(np.array(a) + by, np.array(b), 0.05)
    assert [moved.estimate, moved.low, moved.high] == pytest.approx([x + by for x in (plain.estimate, plain.low, plain.high)])


@pytest.mark.parametrize("draw", ["normal", "standard_cauchy", "exponential"])
def test_type_one_error_and_coverage_hold_for_any_shape(draw: str) -> None:
    rng = np.random.default_rng(1)
    runs, rejected, covered = 1_500, 0, 0
    for _ in range(runs):
        noise = getattr(rng, draw)(size=15)
        a, b = noise[:5] + 0.7, noise[5:]
        rejected += rank_sum_p(a - 0.7, b) <= 0.025
        found = shift_interval(a, b, 0.025)
        covered += found.low <= 0.7 <= found.high
    assert rejected / runs <= 0.025 + 3 * (0.025 * 0.975 / runs) ** 0.5
    assert covered / runs >= 0.95 - 3 * (0.05 * 0.95 / runs) ** 0.5
