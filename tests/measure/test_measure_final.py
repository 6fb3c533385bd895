import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner_job.api.base import InputError
from tuner_job.api.child import MeasureSettings
from tuner_job.measure.final import ALPHA, FEWEST_REPEATS, MOST_REPEATS, POWER, SESSIONS, design, power
from tuner_job.measure.ranks import rank_sum_p
from tuner_job.measure.summary import P99_SAMPLES
from tuner_job.measure.variance import Components

QUIET = Components(build_sd=0.002, session_sd=0.01, step_sd=0.005)
WILD = Components(build_sd=0.03, session_sd=0.17, step_sd=0.09)
sds = st.floats(0, 0.3)


def test_a_quiet_device_gets_the_smallest_final() -> None:
    found = design(QUIET, MeasureSettings(), 0.01)
    assert (found.repeats, found.baseline_repeats, found.sessions) == (FEWEST_REPEATS, 2 * FEWEST_REPEATS, SESSIONS[0])
    assert found.power >= POWER
    assert found.detectable == pytest.approx(0.02)


def test_noisy_sessions_are_met_with_sessions_before_builds() -> None:
    found = design(Components(0.002, 0.05, 0.02), MeasureSettings(), 0.01)
    assert found.repeats == FEWEST_REPEATS
    assert found.sessions > SESSIONS[0]


def test_a_build_lottery_is_met_with_builds() -> None:
    found = design(Components(0.006, 0.01, 0.005), MeasureSettings(), 0.01)
    assert found.repeats > FEWEST_REPEATS
    assert found.power >= POWER


def test_a_final_that_cannot_have_the_power_says_what_it_has() -> None:
    found = design(WILD, MeasureSettings(), 0.01)
    assert found.repeats <= MOST_REPEATS
    assert found.power < 0.2
    assert f"{found.power:.0%}" in found.statement


@settings(max_examples=40)
@given(sds, sds, sds, st.floats(0, 0.5), st.sampled_from(["LatencyP50", "Throughput"]))
def test_every_design_is_within_bounds(build: float, one: float, step: float, margin: float, metric: str) -> None:
    found = design(Components(build, one, step), MeasureSettings(metric=metric), margin)
    assert FEWEST_REPEATS <= found.repeats <= MOST_REPEATS
    assert found.baseline_repeats == 2 * found.repeats
    assert found.sessions in SESSIONS
    assert margin < found.detectable
    assert 0 <= found.power <= 1


def test_a_budget_bounds_the_final_but_never_below_the_smallest() -> None:
    free = design(WILD, MeasureSettings(), 0.01, build_seconds=2)
    bounded = design(WILD, MeasureSettings(), 0.01, build_seconds=2, budget_seconds=80)
    assert bounded.seconds(2) <= 80 < free.seconds(2)
    smallest = design(WILD, MeasureSettings(), 0.01, build_seconds=2, budget_seconds=1)
    assert (smallest.repeats, smallest.sessions) == (FEWEST_REPEATS, SESSIONS[0])


def test_p99_gets_enough_samples_for_both_halves() -> None:
    found = design(QUIET, MeasureSettings(metric="LatencyP99"), 0.01)
    used = found.settings(MeasureSettings(metric="LatencyP99"))
    assert used.sessions * used.session_samples / 2 >= P99_SAMPLES
    assert used.metric == "LatencyP99"


def test_power_at_the_margin_itself_is_the_level() -> None:
    assert power(QUIET, 5, 12, 0.0) <= ALPHA + 0.01
    assert power(QUIET, 16, 12, 0.0) <= ALPHA + 0.01


def test_power_grows_with_gain_and_builds_and_falls_with_noise() -> None:
    base = power(WILD, 8, 20, 0.03)
    assert power(WILD, 8, 20, 0.06) > base
    assert power(WILD, 16, 20, 0.03) > base
    assert power(Components(0.06, 0.17, 0.09), 8, 20, 0.03) < base


def test_power_is_what_the_test_does_on_simulated_builds() -> None:
    rng = np.random.default_rng(0)
    pilot = Components(0.01, 0.0, 0.0)
    rejected = [rank_sum_p(rng.normal(-0.015, 0.01, 6), rng.normal(0, 0.01, 12)) <= ALPHA for _ in range(2_000)]
    assert power(pilot, 6, 12, 0.015) == pytest.approx(np.mean(rejected), abs=0.04)


def test_without_any_noise_every_gain_beyond_the_margin_is_found() -> None:
    assert power(Components(0, 0, 0), 5, 12, 1e-9) == 1.0
    assert power(Components(0, 0, 0), 5, 12, 0.0) <= ALPHA + 0.01


@pytest.mark.parametrize("margin", [-0.1, 1.0, float("nan")])
def test_an_impossible_margin_is_refused(margin: float) -> None:
    with pytest.raises(InputError, match="minImprovement"):
        design(QUIET, MeasureSettings(), margin)


def test_a_budget_counts_the_sessions_of_every_shape_case() -> None:
    noisy = Components(build_sd=0.02, session_sd=0.05, step_sd=0.05)
    one = design(noisy, MeasureSettings(), 0.01, build_seconds=1.0, budget_seconds=150)
    many = design(noisy, MeasureSettings(), 0.01, build_seconds=1.0, budget_seconds=150, cases=16)
    assert one.seconds(1.0) <= 150
    assert many.repeats < one.repeats
