import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner_job.api.child import ShapeCase
from tuner_job.api.measurement import Timing
from tuner_job.measure.drift import without_drift
from tuner_job.measure.samples import session
from tuner_job.measure.variance import components, effective_samples, median_variance, session_logs

logs = st.lists(st.floats(-10, 0), min_size=1, max_size=8)


def timing(sessions: np.ndarray) -> Timing:
    return Timing(clock="host", sessions=tuple(session(float(k), one) for k, one in enumerate(sessions)))


@given(st.lists(logs, min_size=1, max_size=6))
def test_components_are_never_negative_and_ignore_the_order_of_builds(builds: list[list[float]]) -> None:
    found = components(builds)
    assert min(found.build_sd, found.session_sd, found.step_sd) >= 0
    assert found.step_sd <= found.session_sd
    back = components(builds[::-1])
    assert (back.build_sd, back.session_sd, back.step_sd) == pytest.approx((found.build_sd, found.session_sd, found.step_sd))


def test_nested_components_are_recovered() -> None:
    rng = np.random.default_rng(0)
    found = [components(list(rng.normal(0, 0.02, (8, 1)) + rng.normal(0, 0.01, (8, 20)))) for _ in range(300)]
    assert np.sqrt(np.mean([one.build_sd**2 for one in found])) == pytest.approx(0.02, rel=0.07)
    assert np.mean([one.session_sd for one in found]) == pytest.approx(0.01, rel=0.05)
    assert np.mean([one.step_sd for one in found]) == pytest.approx(0.01, rel=0.07)


def test_equal_builds_show_next_to_no_variance_between_builds() -> None:
    rng = np.random.default_rng(1)
    found = [components(list(rng.normal(0, 0.01, (4, 10)))).build_sd for _ in range(200)]
    assert np.median(found) < 0.003


def test_slow_drift_is_in_the_sessions_but_not_in_the_steps() -> None:
    rng = np.random.default_rng(2)
    drift = np.cumsum(rng.normal(0, 0.01, (6, 60)), axis=1)
    found = components(list(drift + rng.normal(0, 0.005, (6, 60))))
    assert found.session_sd > 0.02
    assert found.step_sd < 0.012


def test_one_slow_session_does_not_inflate_the_plan() -> None:
    rng = np.random.default_rng(3)
    builds = rng.normal(0, 0.01, (4, 10))
    builds[0, 3] += 2.0
    assert components(list(builds)).session_sd < 0.015


def test_identical_numbers_have_no_variance() -> None:
    found = components([[1.0, 1.0], [1.0, 1.0]])
    assert (found.build_sd, found.session_sd, found.step_sd) == (0, 0, 0)


def test_a_single_build_lets_sessions_stand_in_for_builds() -> None:
    found = components([[0.0, 0.1, 0.2, 0.1]])
    assert found.build_sd == found.session_sd > 0


def test_a_build_without_sessions_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="every build needs a session"):
        components([[1.0], []])


def test_the_variance_of_a_median_is_what_simulation_finds() -> None:
    rng = np.random.default_rng(4)
    for count in (1, 2, 12, 40):
        seen = np.var(np.median(rng.normal(0, 0.1, (20_000, count)), axis=1))
        assert median_variance(0.1, count) == pytest.approx(seen, rel=0.12)


def test_session_logs_weigh_the_cases_of_the_same_session() -> None:
    a, b = timing(np.array([[1.0], [2.0]])), timing(np.array([[4.0], [8.0], [9.0]]))
    cases = [ShapeCase(name="a", weight=1), ShapeCase(name="b", weight=3)]
    assert session_logs([a, b], cases, "LatencyP50") == pytest.approx([0.75 * np.log(4), 0.25 * np.log(2) + 0.75 * np.log(8)])


def test_effective_samples_lie_between_sessions_and_samples() -> None:
    rng = np.random.default_rng(5)
    own, shared = rng.normal(0, 0.05, (20, 40)), rng.normal(0, 0.05, (20, 1))
    assert effective_samples(timing(np.exp(own))) > 500
    assert effective_samples(timing(np.exp(np.repeat(shared, 40, axis=1)))) == pytest.approx(20, rel=0.01)
    assert 30 < effective_samples(timing(np.exp(own + shared))) < 50  # ρ = 1/2: 800 / (1 + 39/2)
    assert effective_samples(timing(np.exp(own[:1]))) == 1
    assert effective_samples(timing(np.exp(own[:, :1]))) == 20


@given(st.integers(0, 10_000), st.lists(st.floats(-1, 1), min_size=3, max_size=3))
def test_removing_drift_keeps_what_is_constant_about_a_build(seed: int, added: list[float]) -> None:
    rng = np.random.default_rng(seed)
    at = [np.sort(rng.uniform(0, 9, n)) for n in (7, 9, 8)]
    values = [rng.normal(size=one.size) for one in at]
    plain = without_drift(at, values)
    moved = without_drift(at, [one + d for one, d in zip(values, added, strict=True)])
    for one, other, d in zip(plain, moved, added, strict=True):
        assert other == pytest.approx(one + d, abs=1e-9)


def test_removing_drift_does_not_see_which_build_is_which() -> None:
    rng = np.random.default_rng(6)
    at = [rng.permutation(20).astype(np.float64) for _ in range(6)]
    values = [rng.normal(size=20) for _ in range(6)]
    plain = without_drift(at, values)
    order = [3, 0, 5, 1, 4, 2]
    for place, which in enumerate(order):
        assert without_drift([at[k] for k in order], [values[k] for k in order])[place].tolist() == plain[which].tolist()


def test_drift_that_all_builds_share_is_removed() -> None:
    rng = np.random.default_rng(7)
    at = np.array([turn * 10 + rng.permutation(10) for turn in range(40)], dtype=float).T
    drift = 0.3 * np.sin(at / 40)
    own = rng.normal(0, 0.01, at.shape)
    left = np.array(without_drift(list(at), list(own + drift)))
    assert np.std(left) < 0.03
    assert np.std(own + drift) > 0.2


def test_a_percentile_is_planned_by_its_own_spread_not_by_that_of_means() -> None:
    rng = np.random.default_rng(3)
    sessions = tuple(session(float(k), 1e-3 * rng.lognormal(0, 0.3, 1000)) for k in range(40))
    timing = Timing(clock="host", sessions=sessions)
    cases = [ShapeCase(name="only")]
    spread = {metric: components([session_logs([timing], cases, metric)]).session_sd for metric in ("LatencyMean", "LatencyP99")}
    assert spread["LatencyP99"] > 2 * spread["LatencyMean"]
