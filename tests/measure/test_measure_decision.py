import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner_job.api.base import InputError
from tuner_job.api.measurement import BASELINE, Device, EngineFile, Losses, Session
from tuner_job.api.messages import FinalBuild, VerdictRecord
from tuner_job.measure.decision import Decision, decide, recompute
from tuner_job.measure.final import ALPHA
from tuner_job.measure.samples import pack, unpack
from tuner_job.measure.samples import session as make_session
from tuner_job.measure.summary import NoUsableSession, TooFewSamples

Builds = dict[str, list[list[Session]]]


def one(at: float, seconds: float, throttled: bool = False) -> Session:
    return Session(at=at, median=seconds, mean=seconds, count=1, samples="", throttled=throttled)


def simulated(
    seed: int,
    gain: float = 0.0,
    candidates: int = 5,
    baselines: int = 10,
    sessions: int = 12,
    build_sd: float = 0.005,
    session_sd: float = 0.01,
    drift_sd: float = 0.0,
    cases: int = 1,
) -> tuple[Builds, np.ndarray]:
    """Nested noise, interleaved; also the true logs of the builds."""
    rng = np.random.default_rng(seed)
    count = candidates + baselines
    effects = rng.normal(0, build_sd, count)
    effects[:candidates] += math.log1p(-gain)
    names = [f"candidate-{k}" for k in range(candidates)] + [f"baseline-{k}" for k in range(baselines)]
    builds: Builds = {name: [[] for _ in range(cases)] for name in names}
    for turn in range(sessions):
        drift = rng.normal(0, drift_sd)
        for place, which in enumerate(rng.permutation(count)):
            for case in range(cases):
                value = 1e-3 * (case + 1) * math.exp(effects[which] + drift + rng.normal(0, session_sd))
                builds[names[which]][case].append(one(turn * count + place, value))
    return builds, effects


def judge(builds: Builds, **changes: object) -> Decision:
    arguments: dict[str, object] = {
        "weights": [1.0] * len(next(iter(builds.values()))),
        "metric": "LatencyP50",
        "min_improvement": 0.0,
        "seed": 0,
    } | changes
    return decide(
        builds,
        [name for name in builds if name.startswith("c")],
        [name for name in builds if name.startswith("b")],
        **arguments,  # type: ignore[arg-type]
    )


def changed(builds: Builds, change: Callable[[str, Session], Session]) -> Builds:
    return {name: [[change(name, s) for s in case] for case in sessions] for name, sessions in builds.items()}


def scaled(builds: Builds, factor: float, only: str = "") -> Builds:
    return changed(
        builds,
        lambda name, s: (
            s.model_copy(update={"median": s.median * factor, "mean": s.mean * factor}) if name.startswith(only) else s
        ),
    )


def test_a_faster_route_is_proven_and_one_of_its_builds_published() -> None:
    builds, _ = simulated(0, gain=0.05)
    found = judge(builds, min_improvement=0.01)
    assert found.significant
    assert found.published.startswith("candidate")
    assert found.route_gain is not None
    assert 0.01 < found.route_gain.low <= 0.05 <= found.route_gain.high
    assert found.engine_percentile == 1.0
    assert found.engine_gain.estimate == pytest.approx(1 - found.latency_seconds / found.baseline_seconds)


def test_an_equal_route_is_not_proven_and_a_default_build_published() -> None:
    found = judge(simulated(1)[0], min_improvement=0.01)
    assert not found.significant
    assert found.published.startswith("baseline")
    assert "not proven" in found.message


def test_a_real_gain_below_the_margin_is_not_enough() -> None:
    found = judge(simulated(2, gain=0.02)[0], min_improvement=0.05)
    assert not found.significant
    assert found.route_gain is not None
    assert 0 < found.route_gain.low < found.route_gain.high < 0.05


def test_without_candidates_a_default_build_is_published_without_a_test() -> None:
    found = judge(simulated(3, candidates=0)[0])
    assert (found.significant, found.p_value, found.route_gain) == (False, None, None)
    assert found.published.startswith("baseline")


def test_a_single_default_build_is_published_as_its_own_equal() -> None:
    found = judge(simulated(3, candidates=0, baselines=1)[0])
    assert (found.published, found.engine_percentile, found.engine_gain.estimate) == ("baseline-0", 0.5, 0.0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(-0.02, 0.05), st.sampled_from([0.0, 0.01]), st.sampled_from([(5, 10), (5, 7), (8, 5)]))
def test_the_low_end_of_the_interval_exceeds_the_margin_exactly_when_proven(
    seed: int, gain: float, margin: float, sizes: tuple[int, int]
) -> None:
    found = judge(simulated(seed, gain, *sizes)[0], min_improvement=margin)
    assert found.route_gain is not None
    assert found.significant == (found.route_gain.low > margin)
    assert found.significant == found.published.startswith("candidate")


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_neither_order_nor_names_of_builds_matter(seed: int, shuffle: object) -> None:
    builds, _ = simulated(seed, gain=0.01, cases=2)
    plain = judge(builds)
    names = list(builds)
    shuffle.shuffle(names)  # type: ignore[attr-defined]
    renamed = {name[0] + str(place): builds[name] for place, name in enumerate(names)}
    other = judge(renamed)
    assert renamed[other.published] is builds[plain.published]
    for field in ("significant", "p_value", "route_gain", "engine_gain", "engine_percentile", "latency_seconds", "message"):
        assert getattr(other, field) == getattr(plain, field), field


def test_the_seed_decides_everything_that_is_drawn() -> None:
    builds, _ = simulated(4, gain=0.01, sessions=40)
    assert judge(builds, seed=5) == judge(builds, seed=5)
    assert judge(builds, seed=5).engine_gain != judge(builds, seed=6).engine_gain
    assert judge(builds, seed=5).p_value == judge(builds, seed=6).p_value


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 10))
def test_the_unit_of_time_does_not_matter(seed: int, factor: float) -> None:
    builds, _ = simulated(seed, gain=0.02)
    plain, other = judge(builds), judge(scaled(builds, factor))
    assert (plain.significant, plain.p_value, plain.published) == (other.significant, other.p_value, other.published)
    assert other.route_gain is not None
    assert plain.route_gain is not None
    assert other.route_gain.estimate == pytest.approx(plain.route_gain.estimate, abs=1e-9)
    assert other.latency_seconds == pytest.approx(plain.latency_seconds * factor)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.9, 1.0))
def test_a_faster_candidate_never_does_worse(seed: int, factor: float) -> None:
    builds, _ = simulated(seed, gain=0.005)
    plain, faster = judge(builds), judge(scaled(builds, factor, "c"))
    assert plain.p_value is not None
    assert plain.route_gain is not None
    assert faster.p_value is not None
    assert faster.route_gain is not None
    assert faster.p_value <= plain.p_value
    assert faster.route_gain.estimate >= plain.route_gain.estimate - 1e-12
    assert faster.significant or not plain.significant


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_swapping_the_groups_mirrors_the_gain(seed: int) -> None:
    builds, _ = simulated(seed, gain=0.01, candidates=6, baselines=6)
    swapped = {("b" if name[0] == "c" else "c") + name: sessions for name, sessions in builds.items()}
    plain, other = judge(builds).route_gain, judge(swapped).route_gain
    assert plain is not None
    assert other is not None
    assert 1 / (1 - plain.estimate) == pytest.approx(1 - other.estimate)
    assert 1 / (1 - plain.low) == pytest.approx(1 - other.high)


def test_identical_numbers_prove_nothing_and_break_nothing() -> None:
    flat = changed(simulated(5)[0], lambda _, s: one(s.at, 0.001))
    found = judge(flat)
    assert (found.significant, found.p_value) == (False, 1.0)
    assert found.engine_percentile == 0.5
    assert (found.engine_gain.estimate, found.engine_gain.low, found.engine_gain.high) == (0, 0, 0)


def test_numbers_without_variance_but_with_a_gain_are_proven() -> None:
    flat = changed(simulated(5)[0], lambda name, s: one(s.at, 0.0009 if name.startswith("c") else 0.001))
    found = judge(flat, min_improvement=0.05)
    assert found.significant
    assert found.p_value == pytest.approx(1 / 3003)
    assert found.route_gain is not None
    assert found.route_gain.estimate == pytest.approx(0.1)


def test_one_outlying_session_changes_next_to_nothing() -> None:
    builds, _ = simulated(6, gain=0.03)
    spoiled = {name: [list(case) for case in sessions] for name, sessions in builds.items()}
    first = spoiled["candidate-0"][0][3]
    spoiled["candidate-0"][0][3] = one(first.at, first.median * 50)
    plain, other = judge(builds).route_gain, judge(spoiled).route_gain
    assert plain is not None
    assert other is not None
    assert other.estimate == pytest.approx(plain.estimate, abs=0.003)
    assert judge(spoiled).significant


def test_drift_that_all_share_does_not_hide_a_gain() -> None:
    builds, _ = simulated(7, gain=0.03, drift_sd=0.2, sessions=20)
    found = judge(builds, min_improvement=0.005)
    assert found.significant
    assert found.route_gain is not None
    assert found.route_gain.high - found.route_gain.low < 0.03


def test_throttled_sessions_have_no_say() -> None:
    builds, _ = simulated(8, gain=0.02)
    hot = {name: [[*case, one(999.0, 50.0, throttled=True)] for case in sessions] for name, sessions in builds.items()}
    assert judge(hot) == judge(builds)


def test_a_build_that_was_always_throttled_is_timed_again_not_judged() -> None:
    builds, _ = simulated(8)
    hot = changed(builds, lambda name, s: s.model_copy(update={"throttled": True}) if name == "baseline-3" else s)
    with pytest.raises(NoUsableSession, match="baseline-3"):
        judge(hot)


def test_builds_with_unequal_numbers_of_sessions_are_compared() -> None:
    builds, _ = simulated(9, gain=0.03)
    builds["candidate-1"][0] = builds["candidate-1"][0][:7]
    builds["baseline-2"][0] = builds["baseline-2"][0][3:]
    assert judge(builds).significant


def test_too_few_builds_are_said_to_be_too_few() -> None:
    found = judge(simulated(10, gain=0.2, candidates=2, baselines=4)[0])
    assert not found.significant
    assert "so few builds cannot prove anything" in found.message
    assert found.route_gain is not None
    assert found.route_gain.confidence < 0.95


def test_weights_decide_between_shape_cases_that_disagree() -> None:
    builds, _ = simulated(11, cases=2)
    split = {
        name: [
            sessions[0],
            [s.model_copy(update={"median": s.median * (0.9 if name[0] == "c" else 1)}) for s in sessions[1]],
        ]
        for name, sessions in builds.items()
    }
    assert not judge(split, weights=[1, 0], min_improvement=0.01).significant
    assert judge(split, weights=[0, 2], min_improvement=0.01).significant


def test_throughput_gain_is_more_work_not_less_time() -> None:
    found = judge(scaled(simulated(12, build_sd=1e-6, session_sd=1e-6)[0], 0.5, "c"), metric="Throughput", min_improvement=0.9)
    assert found.significant
    assert found.route_gain is not None
    assert found.route_gain.estimate == pytest.approx(1.0, abs=1e-3)
    assert found.engine_gain.estimate == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"weights": []}, "not weights"),
        ({"weights": [-1.0]}, "not weights"),
        ({"weights": [1.0, 1.0]}, "1 shape cases, the objective has 2"),
        ({"min_improvement": 1.0}, "minImprovement"),
    ],
)
def test_wrong_arguments_get_one_clear_line(change: dict[str, object], what: str) -> None:
    with pytest.raises(InputError, match=what):
        judge(simulated(0)[0], **change)


@pytest.mark.parametrize(("candidates", "baselines"), [(["x"], ["b"]), (["b"], ["b"]), (["c"], []), (["c", "c"], ["b"])])
def test_groups_must_be_different_builds_that_were_timed(candidates: list[str], baselines: list[str]) -> None:
    builds = {name: simulated(0)[0]["baseline-0"] for name in "bc"}
    with pytest.raises(InputError, match="different builds"):
        decide(builds, candidates, baselines, weights=[1], metric="LatencyP50", min_improvement=0, seed=0)


def with_samples(builds: Builds, count: int) -> Builds:
    rng = np.random.default_rng(0)
    return changed(builds, lambda _, s: make_session(s.at, s.median * rng.lognormal(0, 0.1, count)))


def test_p99_is_decided_from_every_sample() -> None:
    builds, _ = simulated(13, gain=0.06, build_sd=0.002, session_sd=0.002, baselines=6, sessions=8)
    found = judge(with_samples(builds, 520), metric="LatencyP99", min_improvement=0.005)
    assert found.significant
    assert found.baseline_seconds == pytest.approx(1e-3 * math.exp(0.1 * 2.326), rel=0.03)


def test_p99_of_too_few_samples_is_refused() -> None:
    with pytest.raises(TooFewSamples, match="LatencyP99"):
        judge(with_samples(simulated(13)[0], 100), metric="LatencyP99")


def test_type_one_error_is_at_most_the_level_under_nested_noise() -> None:
    runs = 200
    false = sum(judge(simulated(seed, drift_sd=0.1, sessions=8)[0]).significant for seed in range(runs))
    assert false / runs <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / runs)


def test_both_intervals_cover_the_truth_under_nested_noise() -> None:
    runs, route, engine = 200, 0, 0
    for seed in range(runs):
        builds, effects = simulated(seed, gain=0.02, drift_sd=0.05)
        found = judge(builds)
        assert found.route_gain is not None
        route += found.route_gain.low <= 0.02 <= found.route_gain.high
        truth = 1 - math.exp(effects[list(builds).index(found.published)] - np.median(effects[5:]))
        engine += found.engine_gain.low <= truth <= found.engine_gain.high
    slack = 3 * math.sqrt(0.95 * 0.05 / runs)
    assert route / runs >= 0.95 - slack
    assert engine / runs >= 0.95 - slack


def test_the_speed_up_of_the_bytes_comes_from_data_that_did_not_choose() -> None:
    """Equal builds under session noise: the chosen one must not look better than it is."""
    gains = [judge(simulated(seed, build_sd=0.0, session_sd=0.05)[0]).engine_gain.estimate for seed in range(120)]
    assert abs(np.mean(gains)) < 3 * np.std(gains) / math.sqrt(len(gains))


def test_bytes_that_are_fast_only_while_they_are_chosen_are_described_by_the_second_half() -> None:
    """A lucky memory layout of the first timing process must not be published as a speed-up."""
    builds, _ = simulated(17, gain=0.05, build_sd=0.0, session_sd=0.001)
    lucky = builds["candidate-2"][0]
    builds["candidate-2"] = [[s.model_copy(update={"median": s.median * (0.9 if k < 6 else 1)}) for k, s in enumerate(lucky)]]
    found = judge(builds)
    assert found.published == "candidate-2"
    assert found.engine_gain.high < 0.06


def verdict(builds: Builds, found: Decision, keep_samples: bool) -> VerdictRecord:
    digest = "0" * 64
    engine = EngineFile(digest=digest, size=1)
    losses = Losses(references_digest=digest, samples=1, atol=0, rtol=0)
    return VerdictRecord(
        run="0" * 20,
        inputs_digest=digest,
        identity=digest,
        device=Device(type="CPU", product="test"),
        candidate=BASELINE,
        significant=found.significant,
        reason="Proven",
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
            FinalBuild(
                name=name,
                engine=engine,
                losses=losses,
                sessions=tuple(
                    tuple(s if keep_samples else s.model_copy(update={"samples": ""}) for s in case) for case in sessions
                ),
            )
            for name, sessions in builds.items()
        ),
        method=found.method,
        seconds=1,
        finished_at="2026-01-01T00:00:00Z",
    )


@pytest.mark.parametrize("metric", ["LatencyP50", "LatencyMean", "Throughput"])
def test_the_stored_verdict_gives_the_same_decision_again(metric: str) -> None:
    builds, _ = simulated(14, gain=0.013, cases=2)
    found = judge(builds, metric=metric, min_improvement=0.004, seed=99, weights=[0.3, 1.7])
    stored = VerdictRecord.parse(verdict(builds, found, keep_samples=False).to_json(), "verdict.json")
    assert recompute(stored) == found


def test_a_p99_verdict_is_recomputed_from_its_samples() -> None:
    builds = with_samples(simulated(15, gain=0.05, baselines=6, sessions=8)[0], 520)
    found = judge(builds, metric="LatencyP99")
    stored = verdict(builds, found, keep_samples=False)
    with pytest.raises(InputError, match="samples blob"):
        recompute(stored)
    blob = {name: [[unpack(s.samples).tolist() for s in case] for case in sessions] for name, sessions in builds.items()}
    assert recompute(stored, blob) == found
    assert pack(np.array(blob["baseline-0"][0][0])) == builds["baseline-0"][0][0].samples


def test_a_verdict_of_another_method_is_not_recomputed_with_this_one() -> None:
    builds, _ = simulated(16)
    record = verdict(builds, judge(builds), keep_samples=False).model_copy(update={"method": {"method": "t-test-0"}})
    with pytest.raises(InputError, match="t-test-0"):
        recompute(record)


def test_a_proven_candidate_that_breaks_a_constraint_does_not_win() -> None:
    builds, _ = simulated(1, gain=0.2)
    sizes = {name: 100 if name.startswith("c") else 50 for name in builds}
    for limits in ({"EngineSize": 99}, {"LatencyP50": 1e-4}, {"LatencyMean": 1e-4}, {"Throughput": 1e5}):
        found = judge(builds, constraints=limits, sizes=sizes)
        assert found.p_value is not None
        assert found.p_value <= ALPHA
        assert not found.significant
        assert found.published.startswith("b")
        assert next(iter(limits)) in found.broken
        assert found.broken in found.message
    kept = judge(builds, constraints={"EngineSize": 100, "LatencyP50": 1e-3, "Throughput": 900}, sizes=sizes)
    assert kept.significant
    assert kept.broken == ""


def test_throughput_is_bounded_over_all_streams() -> None:
    builds, _ = simulated(1, gain=0.2)
    assert judge(builds, constraints={"Throughput": 3000}, streams=4).significant
    assert not judge(builds, constraints={"Throughput": 3000}, streams=2).significant


def test_only_builds_that_are_small_enough_are_published() -> None:
    builds, _ = simulated(1, gain=0.2)
    for kept in (name for name in builds if name.startswith("c")):
        sizes = {name: 10 if name == kept else 1000 for name in builds}
        assert judge(builds, constraints={"EngineSize": 100}, sizes=sizes).published == kept


def test_p99_short_of_samples_for_throttling_is_timed_again_not_refused() -> None:
    builds = with_samples(simulated(1)[0], 400)
    hot = {
        name: [[s.model_copy(update={"throttled": k < 6}) for k, s in enumerate(c)] for c in one] for name, one in builds.items()
    }
    with pytest.raises(NoUsableSession):
        judge(hot, metric="LatencyP99")
