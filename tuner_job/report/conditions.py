"""The state of the device while the run was measured: clocks, power, throttling, by stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tuner_job.api.measurement import DeviceState, Session
from tuner_job.api.messages import DiscoveryRecord, ResultRecord, VerdictRecord


@dataclass(frozen=True)
class Conditions:
    """A table: rows of one quantity over the stages."""

    stages: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Label, and a text a stage; empty where the device does not say."""


@dataclass(frozen=True)
class _Stage:
    name: str
    states: Sequence[DeviceState]
    sessions: Sequence[Session]


def conditions_of(discovery: DiscoveryRecord, results: Sequence[ResultRecord], verdict: VerdictRecord | None) -> Conditions:
    """Of stages that have either a state of the device or a session that ran at a limit. Results from the ledger are left out:
    another run measured them."""
    own = [result for result in results if not result.cached]
    stages = [
        _Stage(
            "pilot",
            [state for state in (discovery.state, *(build.state for build in discovery.pilot)) if state],
            [session for build in discovery.pilot for timing in build.timing for session in timing.sessions],
        ),
        _Stage(
            "explore",
            [state for r in own for state in (r.state, *(c.state for c in r.controls)) if state],
            [s for r in own for t in (*r.timing, *(t for c in r.controls for t in c.timing)) for s in t.sessions],
        ),
        _Stage(
            "final",
            verdict.states if verdict else (),
            [session for build in (verdict.builds if verdict else ()) for case in build.sessions for session in case],
        ),
    ]
    stages = [stage for stage in stages if stage.states or any(s.power_capped or s.throttled for s in stage.sessions)]
    rows = [(label, tuple(tell(stage) for stage in stages)) for label, tell in _ROWS]
    return Conditions(tuple(stage.name for stage in stages), tuple((label, texts) for label, texts in rows if any(texts)))


def _span(unit: str, values: Iterable[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    low, high = (f"{value:,.1f}".removesuffix(".0") for value in (known[0], known[-1]))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _flag(values: Iterable[bool | None]) -> str:
    known = {value for value in values if value is not None}
    return "" if not known else "on" if known == {True} else "off" if known == {False} else "on and off"


def _texts(values: Iterable[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _reasons(stage: _Stage) -> str:
    if not stage.states:
        return ""
    counts = Counter(reason for state in stage.states for reason in state.throttle_reasons)
    if not counts:
        return "none"
    return ", ".join(f"{name} ({count} of {len(stage.states)})" for name, count in counts.most_common())


def _share(sessions: Sequence[Session], flag: Callable[[Session], bool]) -> str:
    return f"{sum(flag(session) for session in sessions) / len(sessions):.0%} of {len(sessions)}" if sessions else ""


def _others(stage: _Stage) -> str:
    most = max((len(state.processes) for state in stage.states), default=0)
    return "" if not stage.states else str(most) if most else "none"


_ROWS: tuple[tuple[str, Callable[[_Stage], str]], ...] = (
    ("device", lambda stage: _texts(state.uuid for state in stage.states)),
    ("VBIOS", lambda stage: _texts(state.vbios for state in stage.states)),
    ("SM clock at the start", lambda stage: _span("MHz", (state.sm_clock_mhz for state in stage.states))),
    ("SM clock, highest allowed", lambda stage: _span("MHz", (state.max_sm_clock_mhz for state in stage.states))),
    ("memory clock at the start", lambda stage: _span("MHz", (state.memory_clock_mhz for state in stage.states))),
    ("memory clock, highest allowed", lambda stage: _span("MHz", (state.max_memory_clock_mhz for state in stage.states))),
    ("temperature at the start", lambda stage: _span("°C", (state.temperature_celsius for state in stage.states))),
    ("power at the start", lambda stage: _span("W", (state.power_watts for state in stage.states))),
    ("power limit", lambda stage: _span("W", (state.power_limit_watts for state in stage.states))),
    ("power limit, by default", lambda stage: _span("W", (state.default_power_limit_watts for state in stage.states))),
    ("ECC", lambda stage: _flag(state.ecc for state in stage.states)),
    ("persistence mode", lambda stage: _flag(state.persistence for state in stage.states)),
    ("clock limits in force", _reasons),
    ("other processes, at most", _others),
    ("sessions at the power cap", lambda stage: _share(stage.sessions, lambda session: session.power_capped)),
    ("sessions throttled, not used", lambda stage: _share(stage.sessions, lambda session: session.throttled)),
)
