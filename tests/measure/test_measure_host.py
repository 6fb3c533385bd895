"""The host's clock as a guard: what wins on the device and loses end to end is no winner."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner_job.api.measurement import BASELINE, Device, EngineFile, Losses, Session
from tuner_job.api.messages import FinalBuild, VerdictRecord
from tuner_job.measure.decision import Decision, decide, recompute
from tuner_job.measure.host import HOST_ALPHA, end_to_end

Builds = dict[str, list[list[Session]]]


def builds_of(
    seed: int, host_gain: float, *, device_gain: float = 0.1, candidates: int = 5, baselines: int = 10, cases: int = 1
) -> Builds:
    """Builds differ by 0.3 %, sessions by 1 % on the device and by 3 % on the host."""
    rng = np.random.default_rng(seed)
    made: Builds = {}
    names = [f"candidate-{k}" for k in range(candidates)] + [f"baseline-{k}" for k in range(baselines)]
    for place, name in enumerate(names):
        ours = name.startswith("candidate")
        build = rng.normal(0, 0.003)
        made[name] = [
            [
                Session(
                    at=turn * len(names) + place,
                    median=1e-3 * (1 - device_gain * ours) * np.exp(build + rng.normal(0, 0.01)),
                    mean=1e-3,
                    count=1,
                    samples="",
                    host_median=2e-3 * (1 - host_gain * ours) * np.exp(build + rng.normal(0, 0.03)),
                )
                for turn in range(12)
            ]
            for _ in range(cases)
        ]
    return made


def judged(builds: Builds, min_improvement: float = 0.01, **more: object) -> Decision:
    sides = [[name for name in builds if name.startswith(side)] for side in ("candidate", "baseline")]
    weights = [1.0] * len(next(iter(builds.values())))
    return decide(builds, *sides, weights=weights, metric="LatencyP50", min_improvement=min_improvement, seed=0, **more)  # type: ignore[arg-type]


def blind(builds: Builds, only: str = "") -> Builds:
    """The same sessions without the host's clock, of the builds whose names begin so."""
    return {
        name: [
            [one.model_copy(update={"host_median": None}) if name.startswith(only) else one for one in case] for case in sessions
        ]
        for name, sessions in builds.items()
    }


def test_a_device_winner_that_is_slower_end_to_end_is_no_winner() -> None:
    found = judged(builds_of(0, host_gain=-0.2))
    assert found.p_value is not None
    assert found.p_value <= 0.025
    assert found.host_slower
    assert not found.significant
    assert found.published.startswith("baseline")
    assert found.end_to_end is not None
    assert found.end_to_end.gain.low < -0.2 < found.end_to_end.gain.high < 0
    assert "by the host's clock" in found.message
    assert "-20" in found.message or "-19" in found.message


@pytest.mark.parametrize("host_gain", [0.1, 0.0])
def test_a_winner_that_is_faster_or_no_slower_end_to_end_wins(host_gain: float) -> None:
    found = judged(builds_of(1, host_gain))
    assert found.significant
    assert not found.host_slower
    assert found.published.startswith("candidate")
    assert "host" not in found.message


def test_a_loss_within_the_margin_is_let_pass() -> None:
    builds = builds_of(2, host_gain=-0.04)
    assert judged(builds, min_improvement=0.01).host_slower
    assert judged(builds, min_improvement=0.07).significant


def test_without_the_hosts_clock_there_is_no_guard() -> None:
    builds = builds_of(3, host_gain=-0.5)
    for partly in (blind(builds), blind(builds, "baseline-3")):
        found = judged(partly)
        assert found.significant
        assert found.end_to_end is None


def test_what_is_not_proven_is_not_blamed_on_the_host() -> None:
    found = judged(builds_of(4, host_gain=-0.5, device_gain=0.0))
    assert not found.significant
    assert not found.host_slower
    assert "not proven" in found.message
    assert judged(builds_of(4, host_gain=-0.5, candidates=0)).end_to_end is None


def test_throttled_sessions_do_not_count_on_the_hosts_clock_either() -> None:
    builds = builds_of(5, host_gain=0.1)
    for name, [sessions] in builds.items():
        if name.startswith("candidate"):
            sessions[:7] = [one.model_copy(update={"throttled": True, "host_median": 1.0}) for one in sessions[:7]]
    assert judged(builds).significant


def test_every_case_counts_by_its_weight() -> None:
    builds = builds_of(6, host_gain=0.1, cases=2)
    for name, sessions in builds.items():
        if name.startswith("candidate"):
            sessions[1] = [one.model_copy(update={"host_median": 1.5 * (one.host_median or 0)}) for one in sessions[1]]
    sides = [[name for name in builds if name.startswith(side)] for side in ("candidate", "baseline")]
    for weights, slower in (([1.0, 0.0], False), ([0.5, 0.5], True), ([0.9, 0.1], False)):
        found = end_to_end(builds, *sides, np.array(weights), 0.01)
        assert found is not None
        assert found.slower is slower


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(-0.3, 0.3), st.floats(0.0, 0.1))
def test_a_slower_end_to_end_lies_in_its_interval(seed: int, host_gain: float, margin: float) -> None:
    builds = builds_of(seed, host_gain)
    sides = [[name for name in builds if name.startswith(side)] for side in ("candidate", "baseline")]
    found = end_to_end(builds, *sides, np.array([1.0]), margin)
    assert found is not None
    assert found.gain.confidence == 1 - 2 * HOST_ALPHA
    if abs(found.gain.high + margin) > 1e-9:
        assert found.slower == (found.gain.high < -margin)


def test_a_record_tells_the_same_decision_again() -> None:
    builds = builds_of(7, host_gain=-0.2)
    found = judged(builds)
    losses = Losses(references_digest="0" * 64, samples=1, atol=0.0, rtol=0.0)
    engine = EngineFile(digest="0" * 64, size=1)
    verdict = VerdictRecord(
        run="0" * 20,
        inputs_digest="0" * 64,
        identity="0" * 64,
        device=Device(type="GPU", product="x"),
        candidate=BASELINE,
        significant=found.significant,
        reason="HostSlower",
        message=found.message,
        p_value=found.p_value,
        route_gain=found.route_gain,
        published=BASELINE,
        engine=engine,
        engine_gain=found.engine_gain,
        engine_percentile=found.engine_percentile,
        losses=losses,
        latency_seconds=found.latency_seconds,
        baseline_seconds=found.baseline_seconds,
        builds=tuple(
            FinalBuild(name=name, engine=engine, losses=losses, sessions=tuple(tuple(case) for case in sessions))
            for name, sessions in builds.items()
        ),
        method=found.method,
        seconds=1.0,
        finished_at="2026-11-30T00:00:00Z",
    )
    assert recompute(VerdictRecord.from_json(verdict.to_json())) == found
