from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import pytest

from tuner_job.api.child import MeasureSettings
from tuner_job.api.measurement import MOST_SAMPLES, Session
from tuner_job.measure.samples import Floats, InvalidTiming, unpack
from tuner_job.measure.sampling import Aside, measure, warm_up


class FakeDevice:
    """Time passes only while something runs."""

    def __init__(self) -> None:
        self.now = 100.0
        self.log: list[str] = []

    def clock(self) -> float:
        return self.now


class FakeTimer:
    clock: Literal["device", "host"] = "device"
    launch: Literal["direct", "cudaGraph"] = "cudaGraph"

    def __init__(
        self,
        device: FakeDevice,
        name: str = "engine",
        latency: Callable[[float], float] = lambda _: 0.001,
        hot: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.device, self.name, self.latency, self.hot = device, name, latency, hot
        self.ran = 0
        self.calls = 0
        self.polls = 0

    def sample(self, count: int) -> Floats:
        self.calls += 1
        values = []
        for _ in range(count):
            values.append(self.latency(self.device.now))
            self.device.now += values[-1]
        self.ran += count
        self.device.log.append(self.name)
        return np.array(values)

    def aside(self) -> Aside:
        self.polls += 1
        hot = self.polls % 2 == 0 and self.hot(self.polls // 2)
        return Aside(throttled=hot, power_capped=not hot, host_median=0.002)


SETTINGS = MeasureSettings(
    sessions=4, session_seconds=0.05, session_samples=20, warmup_seconds=0.2, warmup_limit_seconds=5.0, streams=2
)


def test_a_steady_timer_settles_in_the_shortest_warm_up() -> None:
    device = FakeDevice()
    seconds, settled = warm_up(FakeTimer(device), SETTINGS, device.clock)
    assert settled
    assert 0.2 <= seconds < 0.3


def test_warm_up_goes_on_while_a_device_still_speeds_up() -> None:
    device = FakeDevice()
    timer = FakeTimer(device, latency=lambda now: 0.001 * (1 + 20 * 0.5 ** ((now - 100) / 0.2)))
    seconds, settled = warm_up(timer, SETTINGS, device.clock)
    assert settled
    assert seconds > 1.0
    assert timer.latency(device.now) < 0.0015


def test_warm_up_gives_up_at_its_limit_and_says_so() -> None:
    device = FakeDevice()
    seconds, settled = warm_up(FakeTimer(device, latency=lambda now: 0.001 * 2 ** (now - 100)), SETTINGS, device.clock)
    assert not settled
    assert 5.0 <= seconds < 5.5


def test_noise_inside_windows_is_not_taken_for_a_trend() -> None:
    device = FakeDevice()
    rng = np.random.default_rng(0)
    seconds, settled = warm_up(FakeTimer(device, latency=lambda _: 0.001 * rng.lognormal(0, 0.15)), SETTINGS, device.clock)
    assert settled
    assert seconds < 1.0


def test_no_warm_up_still_compares_windows() -> None:
    device = FakeDevice()
    timer = FakeTimer(device)
    assert warm_up(timer, SETTINGS.model_copy(update={"warmup_seconds": 0.0}), device.clock)[1]
    assert timer.ran >= 4


@pytest.mark.parametrize("latency", [0.00001, 0.001, 0.2])
def test_a_session_has_its_seconds_and_its_samples_in_few_calls(latency: float) -> None:
    device = FakeDevice()
    timer = FakeTimer(device, latency=lambda _: latency)
    timing = measure({"x": timer}, SETTINGS, 0, device.clock)["x"]
    for one in timing.sessions:
        samples = unpack(one.samples)
        assert one.count == samples.size >= 20
        assert samples.sum() >= 0.05 * 0.99
        assert samples.size <= max(20, 0.05 / latency + 2)
    assert timer.calls < 60


def test_every_engine_has_one_session_in_every_round_in_changing_order() -> None:
    device = FakeDevice()
    names = ["a", "b", "c", "d"]
    timings = measure({name: FakeTimer(device, name) for name in names}, SETTINGS, 3, device.clock)
    by_time = sorted((one.at, name) for name in names for one in timings[name].sessions)
    rounds = [[name for _, name in by_time[k : k + 4]] for k in range(0, 16, 4)]
    assert all(sorted(one) == names for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert by_time[0][0] == 0.0


def test_the_seed_decides_the_order() -> None:
    def order(seed: int) -> list[str]:
        device = FakeDevice()
        measure({name: FakeTimer(device, name) for name in "abcdef"}, SETTINGS, seed, device.clock)
        return device.log

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_throttled_sessions_are_kept_flagged_and_taken_again() -> None:
    device = FakeDevice()
    timings = measure({"cool": FakeTimer(device), "hot": FakeTimer(device, hot=lambda k: k in (1, 3))}, SETTINGS, 0, device.clock)
    assert [one.throttled for one in timings["hot"].sessions] == [True, False, True, False, False, False]
    assert [one.power_capped for one in timings["hot"].sessions] == [False, True, False, True, True, True]
    assert {one.host_median for one in timings["hot"].sessions} == {0.002}
    assert len(timings["cool"].sessions) == 4


def test_a_device_that_stays_throttled_ends_the_measurement_all_the_same() -> None:
    device = FakeDevice()
    timing = measure({"x": FakeTimer(device, hot=lambda _: True)}, SETTINGS, 0, device.clock)["x"]
    assert len(timing.sessions) == 8
    assert all(one.throttled for one in timing.sessions)


def test_a_timing_says_what_is_inside_the_number() -> None:
    device = FakeDevice()
    timing = measure({"x": FakeTimer(device)}, SETTINGS, 0, device.clock)["x"]
    assert (timing.clock, timing.launch, timing.streams, timing.warmup_settled) == ("device", "cudaGraph", 2, True)
    assert timing.warmup_seconds >= 0.2


def test_a_timer_that_reports_nonsense_is_refused() -> None:
    device = FakeDevice()
    timer = FakeTimer(device, latency=lambda now: 0.001 if now < 100.3 else float("nan"))
    with pytest.raises(InvalidTiming):
        measure({"x": timer}, SETTINGS, 0, device.clock)


def test_a_very_fast_engine_keeps_no_more_samples_than_its_records_hold() -> None:
    device = FakeDevice()
    settings = SETTINGS.model_copy(update={"session_seconds": 0.5, "session_samples": 200})
    timing = measure({"x": FakeTimer(device, latency=lambda _: 1e-5)}, settings, 0, device.clock, cases=1000)["x"]
    assert [one.count for one in timing.sessions] == [200] * 4
    whole = measure({"x": FakeTimer(device, latency=lambda _: 1e-5)}, settings, 0, device.clock)["x"]
    assert sum(one.count for one in whole.sessions) <= MOST_SAMPLES
    assert all(one.count >= 24_000 for one in whole.sessions)


def test_timing_ends_after_a_round_that_is_enough_and_keeps_what_was_taken() -> None:
    device = FakeDevice()
    asked: list[dict[str, int]] = []

    def enough(sessions: Mapping[str, Sequence[Session]]) -> bool:
        asked.append({key: len(series) for key, series in sessions.items()})
        return len(asked) == 2

    timers = {name: FakeTimer(device, name) for name in "ab"}
    found = measure(timers, SETTINGS, 0, device.clock, enough=enough)
    assert asked == [{"a": 1, "b": 1}, {"a": 2, "b": 2}]
    assert {key: len(one.sessions) for key, one in found.items()} == {"a": 2, "b": 2}
