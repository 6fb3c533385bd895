"""Taking samples: warm-up until windows agree, then sessions in random interleaved order.

Interleaving is what makes engines comparable. On recorded GPU timings nearly all of the noise between sessions is a drift
that every engine on the device feels at the same time (docs/statistics.md): engines that are timed in turn share it, engines
that are timed one after the other do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from tuner_job.api.child import MeasureSettings
from tuner_job.api.measurement import MOST_SAMPLES, Session, Timing
from tuner_job.measure.samples import Floats, latencies, session

Clock = Callable[[], float]
"""Monotonic seconds."""

Key = TypeVar("Key", bound=Hashable)

WINDOWS = 4
"""Warm-up windows that are compared: the latest two against the two before."""
AGREEMENT = 0.02
"""Relative change between them that counts as none."""
RETAKES = 1.0
"""Throttled sessions are taken again, at most this many times the planned number of sessions per engine."""
LARGEST_CALL = 10_000
"""Samples that are asked of a timer at once."""


class Aside(NamedTuple):
    """What went on beside the samples since the last question."""

    throttled: bool = False
    """The device reported thermal or hardware slowdown."""
    power_capped: bool = False
    """The device was at its software power cap."""
    host_median: float | None = None
    """Median host wall time in seconds of an inference, from launch to completion, where `clock` is the device's."""


class Timer(Protocol):
    """What a backend's timer offers (backends.protocol.Timer has the meanings)."""

    clock: Literal["device", "host"]
    launch: Literal["direct", "cudaGraph"]

    def sample(self, count: int) -> Floats: ...

    def aside(self) -> Aside: ...


def warm_up(timer: Timer, settings: MeasureSettings, clock: Clock) -> tuple[float, bool]:
    """Run `timer` until its windows agree; returns (seconds spent, whether they agreed before the limit).

    It takes at least `warmup_seconds` and at least four windows. Windows agree when the medians of the latest two differ
    from those of the two before by no more than 2 %, or by no more than the spread of samples inside a window (samples of a
    window are so correlated that they count as about one: their spread is not divided by their number).
    """
    start = clock()
    window_seconds = settings.warmup_seconds / WINDOWS
    medians: list[float] = []
    spreads: list[float] = []
    while True:
        window = np.log(_run(timer, window_seconds, 3, clock))
        medians.append(float(np.median(window)))
        spreads.append(1.4826 * float(np.median(np.abs(window - medians[-1]))))
        spent = clock() - start
        if spent >= settings.warmup_seconds and len(medians) >= WINDOWS:
            earlier, latest = np.mean(medians[-4:-2]), np.mean(medians[-2:])
            if abs(latest - earlier) <= max(AGREEMENT, float(np.median(spreads[-WINDOWS:]))):
                return spent, True
        if spent >= settings.warmup_limit_seconds:
            return spent, False


@dataclass
class _Series:
    timer: Timer
    warmup_seconds: float
    warmup_settled: bool
    owed: int
    attempts_left: int
    sessions: list[Session] = field(default_factory=list)


def measure(
    timers: Mapping[Key, Timer],
    settings: MeasureSettings,
    seed: int,
    clock: Clock,
    cases: int = 1,
    enough: Callable[[Mapping[Key, Sequence[Session]]], bool] = lambda _: False,
) -> dict[Key, Timing]:
    """Time every timer: warm up each, then rounds in which each one takes a session, in an order shuffled by `seed`.

    `at` of all sessions is on one clock, which starts with the first session of this call. Throttled sessions are kept,
    flagged, and taken again in later rounds, at most as often as sessions were planned. A session lasts at least
    `session_seconds` and has at least `session_samples` samples. An engine has a timer for each of its `cases`; of what it takes
    beyond MOST_SAMPLES in all, evenly spaced samples are kept. After each round `enough` sees all sessions so far; True ends the
    timing. Raises InvalidTiming.
    """
    rng = np.random.default_rng(seed)
    attempts = settings.sessions + math.ceil(RETAKES * settings.sessions)
    series = {key: _Series(timer, *warm_up(timer, settings, clock), settings.sessions, attempts) for key, timer in timers.items()}
    most = max(settings.session_samples, MOST_SAMPLES // (settings.sessions * cases))
    start: float | None = None
    while pending := [one for one in series.values() if one.owed and one.attempts_left]:
        for position in rng.permutation(len(pending)):
            one = pending[position]
            one.timer.sample(1)  # not recorded: the first inference after another engine's finds cold caches and sleeping threads
            one.timer.aside()  # forget what happened before this session
            began = clock()
            start = began if start is None else start
            samples = _run(one.timer, settings.session_seconds, settings.session_samples, clock)
            aside = one.timer.aside()
            taken = session(began - start, _thinned(samples, most), aside.throttled)
            one.sessions.append(taken.model_copy(update={"power_capped": aside.power_capped, "host_median": aside.host_median}))
            one.attempts_left -= 1
            one.owed -= not aside.throttled
        if enough({key: one.sessions for key, one in series.items()}):
            break
    return {
        key: Timing(
            clock=one.timer.clock,
            launch=one.timer.launch,
            streams=settings.streams,
            warmup_seconds=one.warmup_seconds,
            warmup_settled=one.warmup_settled,
            sessions=tuple(one.sessions),
        )
        for key, one in series.items()
    }


def _thinned(samples: Floats, most: int) -> Floats:
    """Neighbours are so correlated that leaving some out loses next to nothing."""
    return samples if samples.size <= most else samples[np.linspace(0, samples.size - 1, most).astype(np.int64)]


def _run(timer: Timer, seconds: float, samples: int, clock: Clock) -> Floats:
    """At least `seconds` long and at least `samples` many; few calls, so that the clock is not what is measured."""
    start = clock()
    parts: list[Floats] = []
    taken = 0
    while True:
        spent = clock() - start
        if taken >= samples and spent >= seconds:
            return np.concatenate(parts)
        by_time = math.ceil((seconds - spent) * taken / spent) if taken and spent > 0 else 1
        count = max(1, min(max(samples - taken, by_time), LARGEST_CALL))
        parts.append(latencies(timer.sample(count)))
        taken += parts[-1].size
