"""When the timing of an explored trial ends early."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner_job.api.child import ChildRequest, MeasureSettings, ShapeCase
from tuner_job.api.measurement import Session, Timing
from tuner_job.measure.racing import ALPHA, LEAST_CONTROLS, bounds, looks, over, quantile, races

BASE = math.log(1e-3)
MEASURE = MeasureSettings(sessions=5)
CASE = ShapeCase(name="only")
logs = st.floats(-0.5, 0.5)


def sessions(values: Any, throttled: int = 0) -> tuple[Session, ...]:
    """Medians BASE + values; the means are twice as long. The first `throttled` ones are of no use."""
    medians = [math.exp(BASE + value) for value in values]
    return tuple(
        Session(at=k, median=one, mean=2 * one, count=1, samples="", throttled=k < throttled) for k, one in enumerate(medians)
    )


def timing(values: Any) -> tuple[Timing, ...]:
    return (Timing(clock="host", sessions=sessions(values)),)


def discovery(pilot: list[Any], *, build: float | None = 0.1, timed: float | None = 0.7, build_sd: float = 0.003) -> Any:
    builds = [SimpleNamespace(timing=timing(one), build_seconds=build, timing_seconds=timed) for one in pilot]
    return SimpleNamespace(pilot=builds, cases=(CASE,), build_sd=build_sd)


def request(race: tuple[float, ...], cases: int = 1, sessions: int = 5, metric: Any = "LatencyP50") -> ChildRequest:
    return ChildRequest(
        operation="trial",
        backend="none",
        output="",
        race=race,
        cases=tuple(ShapeCase(name=str(k), weight=k + 1.0) for k in range(cases)),
        measure=MeasureSettings(sessions=sessions, metric=metric),
    )


def noisy(rng: np.random.Generator, count: int, log: float = 0.0, sd: float = 0.01) -> list[Any]:
    """Timings of five sessions; each timing has its own drift, each session a little of its own."""
    return [log + rng.normal(0, sd) + rng.normal(0, sd / 3, 5) for _ in range(count)]


@pytest.mark.parametrize(
    ("planned", "expected"), [(1, ()), (2, (1,)), (3, (1, 2)), (4, (1, 2)), (5, (1, 2, 4)), (20, (1, 2, 4, 8, 16))]
)
def test_looks_come_ever_later_and_none_after_the_last_session(planned: int, expected: tuple[int, ...]) -> None:
    assert looks(planned) == expected


@pytest.mark.parametrize(
    ("freedom", "alpha", "expected"),
    [(1, 0.05, 6.314), (2, 0.025, 4.303), (3, 0.01, 4.541), (6, 0.01, 3.143), (30, 0.025, 2.042)],
)
def test_quantiles_are_those_of_the_printed_tables(freedom: int, alpha: float, expected: float) -> None:
    assert quantile(alpha, freedom) == pytest.approx(expected, abs=5e-4)


@given(st.lists(logs, min_size=5, max_size=5), st.tuples(logs, logs, logs))
def test_it_stops_where_the_median_so_far_is_over_the_bound_and_nowhere_else(
    values: list[float], race: tuple[float, ...]
) -> None:
    series = sessions(values)
    asked = request(tuple(BASE + bound for bound in race))
    for count in range(1, 6):
        told = over(asked, [series[:count]])
        look = {1: 0, 2: 1, 4: 2}.get(count)
        if look is None:
            assert told is None
        else:
            value = math.log(float(np.median([one.median for one in series[:count]])))
            assert told == (asked.race[look] if value > asked.race[look] else None)


@given(st.lists(logs, min_size=1, max_size=5), st.floats(0, 1))
def test_a_slower_trial_is_stopped_wherever_a_faster_one_is(values: list[float], more: float) -> None:
    asked = request((BASE + 0.1, BASE + 0.05, BASE + 0.02))
    if over(asked, [sessions(values)]) is not None:
        assert over(asked, [sessions(np.array(values) + more + 1e-9)]) is not None


@given(st.lists(logs, min_size=0, max_size=5))
def test_without_bounds_nothing_is_stopped(values: list[float]) -> None:
    assert over(request(()), [sessions(values)]) is None
    assert over(request((BASE - 9,)), [()]) is None


def test_cases_are_weighted_as_the_objective_weights_them() -> None:
    asked = request((BASE + 0.1,), cases=2)  # weights 1 and 2
    assert over(asked, [sessions([0.0]), sessions([0.14])]) is None
    assert over(asked, [sessions([0.0]), sessions([0.16])]) is not None


def test_throttled_sessions_count_for_nothing() -> None:
    asked = request((BASE + 0.1, BASE + 0.1))
    assert over(asked, [sessions([9.0], throttled=1)]) is None
    assert over(asked, [sessions([9.0, 0.0], throttled=1)]) is None
    assert over(asked, [sessions([0.0, 0.2], throttled=1)]) is not None
    assert over(request((BASE,), cases=2), [sessions([9.0]), sessions([9.0], throttled=1)]) is None, "not all cases are as far"


def test_means_are_compared_where_they_are_the_metric() -> None:
    bound = BASE + math.log(2) - 0.01
    assert over(request((bound,)), [sessions([0.0])]) is None
    assert over(request((bound,), metric="Throughput"), [sessions([0.0])]) is not None


@pytest.mark.parametrize(
    ("measure", "constraints", "costs", "why"),
    [
        (MEASURE, {"EngineSize": 1.0}, (0.1, 0.7), "on: building a default engine takes 0.1 s and timing it 0.7 s"),
        (MEASURE, {}, (20.0, 0.7), "off: building a default engine takes 20 s and timing it 0.7 s"),
        (MEASURE, {}, (None, None), "off: discover did not measure"),
        (MeasureSettings(metric="LatencyP99"), {}, (0.1, 0.7), "off: LatencyP99"),
        (MEASURE, {"LatencyP99": 1.0}, (0.1, 0.7), "off: LatencyP99"),
        (MeasureSettings(sessions=1), {}, (0.1, 0.7), "off: one session"),
    ],
)
def test_it_races_only_where_timing_costs_more_than_building_and_says_why(
    measure: MeasureSettings, constraints: dict[str, float], costs: tuple[float | None, float | None], why: str
) -> None:
    found = discovery(noisy(np.random.default_rng(0), 4), build=costs[0], timed=costs[1])
    on, told = races(measure, constraints, found)
    assert told.startswith(why)
    assert on == told.startswith("on")
    controls = [timing(one) for one in noisy(np.random.default_rng(1), 9)]
    assert bool(bounds(controls, found, measure, constraints)) == on


@pytest.mark.parametrize("builds", [0, 1])
def test_nothing_is_raced_where_the_pilot_is_too_short_to_tell_the_costs(builds: int) -> None:
    found = discovery(noisy(np.random.default_rng(0), builds))
    assert races(MEASURE, {}, found) == (False, "off: discover did not measure what building and timing cost")


def test_a_worker_races_once_it_has_controls_enough() -> None:
    found = discovery(noisy(np.random.default_rng(0), 4))
    controls = [timing(one) for one in noisy(np.random.default_rng(1), LEAST_CONTROLS)]
    assert bounds(controls[:-1], found, MEASURE, {}) == ()
    assert len(bounds(controls, found, MEASURE, {})) == len(looks(5))


def test_a_device_that_has_become_slow_is_not_taken_for_a_slow_trial() -> None:
    found = discovery(noisy(np.random.default_rng(0), 4))
    controls = [timing(one) for one in noisy(np.random.default_rng(1), 8)]
    slow = timing(np.full(5, 0.5))
    before = bounds(controls, found, MEASURE, {})
    assert min(bounds([*controls, slow], found, MEASURE, {})) > BASE + 0.5 > max(before)
    assert min(bounds([slow, *controls], found, MEASURE, {})) < BASE + 0.5 + max(before) - BASE


@given(st.integers(0, 1000), st.floats(0.001, 0.1), st.floats(0, 0.05))
def test_bounds_lie_above_the_default_and_the_further_the_noisier_it_is(seed: int, sd: float, build_sd: float) -> None:
    rng = np.random.default_rng(seed)
    pilot, own = noisy(rng, 4, sd=sd), noisy(rng, 6, sd=sd)
    mean = float(np.mean([np.median(one) for one in own]))
    controls = [timing(one) for one in own]
    quiet = bounds(controls, discovery(pilot, build_sd=build_sd), MEASURE, {})
    assert quiet[2] > BASE + mean
    assert all(
        a <= b for a, b in zip(quiet, bounds(controls, discovery(pilot, build_sd=build_sd + 0.5), MEASURE, {}), strict=True)
    )


@pytest.mark.parametrize("build_sd", [0.0, 0.01, 0.05])
def test_few_trials_that_are_as_fast_as_the_default_are_stopped_and_nearly_all_that_are_twice_as_slow(build_sd: float) -> None:
    """Normal noise, whose sds nobody knows but from the pilot and the controls; `bench.racing` has recorded noise."""
    rng = np.random.default_rng(5)
    stopped = {0.0: 0, math.log(2): 0}
    count = 400
    for _ in range(count):
        pilot = [one + rng.normal(0, build_sd) for one in noisy(rng, 4)]
        own = rng.normal(0, build_sd)
        controls = [timing(own + one) for one in noisy(rng, int(rng.integers(LEAST_CONTROLS, 10)))]
        spread = math.sqrt(max(0.0, float(np.var([np.median(one) for one in pilot], ddof=1)) - 0.01**2))
        asked = request(bounds(controls, discovery(pilot, build_sd=spread), MEASURE, {}))
        trial = noisy(rng, 1, log=rng.normal(0, build_sd))[0]
        for truth in stopped:
            series = sessions(truth + trial)
            stopped[truth] += any(over(asked, [series[:look]]) is not None for look in looks(5))
    assert stopped[0.0] <= ALPHA * count
    assert stopped[math.log(2)] > 0.9 * count
