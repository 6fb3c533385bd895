import math

import numpy as np
import pytest

from tuner_job.api.child import ShapeCase
from tuner_job.api.measurement import Candidate, Device, EngineFile, Losses, Session, Timing
from tuner_job.api.messages import Control, DiscoveryRecord, PilotBuild, ResultRecord
from tuner_job.api.outcome import Outcome
from tuner_job.measure.controls import drifted, scores
from tuner_job.measure.samples import session
from tuner_job.measure.summary import TooFewSamples

BASE = 1e-3
BUILD_SD, SESSION_SD = 0.003, 0.01


def digest(number: int) -> str:
    return f"{number:064x}"


def timing(log: float, rng: np.random.Generator | None = None, sessions: int = 5, throttled: bool = False) -> Timing:
    values = [BASE * math.exp(log + (rng.normal(0, SESSION_SD) if rng else 0.0)) for _ in range(sessions)]
    return Timing(
        clock="host",
        sessions=tuple(Session(at=k, median=v, mean=v, count=1, samples="", throttled=throttled) for k, v in enumerate(values)),
    )


def discovery(pilot: list[Timing], build_sd: float = BUILD_SD, session_sd: float = SESSION_SD) -> DiscoveryRecord:
    engine = EngineFile(digest=digest(0), size=1)
    return DiscoveryRecord(
        run="0" * 20,
        device=Device(type="CPU", product="test"),
        versions={},
        knobs="{}",
        knobs_digest=digest(0),
        identity=digest(0),
        variants=(),
        cases=(ShapeCase(name="only"),),
        references_digest=digest(0),
        references_blob=digest(0),
        baseline_losses=Losses(references_digest=digest(0), samples=1, atol=0, rtol=0),
        pilot=tuple(PilotBuild(engine=engine, timing=(one,), seconds=1) for one in pilot),
        build_sd=build_sd,
        session_sd=session_sd,
        trial_seconds=1,
    )


def result(
    trial: str, worker: int, measured: Timing | None, controls: list[Timing] | None = None, cached: bool = False
) -> ResultRecord:
    return ResultRecord(
        run="0" * 20,
        trial=trial,
        candidate=Candidate(route=trial),
        outcome=Outcome.FEASIBLE if measured else Outcome.REFUSED,
        tries=1,
        cached=cached,
        worker=f"1-{worker}",
        worker_id=f"process-{worker}",
        timing=(measured,) if measured else (),
        controls=tuple(Control(engine=digest(worker), timing=(one,)) for one in controls or []),
        finished_at="",
    )


def fleet(
    seed: int, offsets: list[float], controls: int = 12, truth: float = -0.02
) -> tuple[list[ResultRecord], DiscoveryRecord]:
    """Each worker has its offset, its own baseline build, and one trial of the same candidate."""
    rng = np.random.default_rng(seed)
    results = []
    for worker, offset in enumerate(offsets):
        own = offset + rng.normal(0, BUILD_SD)
        beside = [timing(own, rng) for _ in range(controls)]
        results.append(result(f"001-{worker:05d}", worker, timing(offset + truth + rng.normal(0, BUILD_SD), rng), beside))
    return results, discovery([timing(rng.normal(0, BUILD_SD), rng) for _ in range(4)])


def test_differences_between_workers_are_taken_out_of_their_trials() -> None:
    results, found = fleet(0, [0.1, -0.1, 0.05, -0.05, 0.0])
    ratios = [one.log_ratio for one in scores(results, found, "LatencyP50").values()]
    assert np.std(ratios) < 0.015
    raw = [math.log(one.timing[0].sessions[0].median / BASE) for one in results]
    assert np.std(raw) > 0.06


def test_equal_workers_are_hardly_corrected() -> None:
    """Dividing by the worker's own baseline would add that build's luck; shrinking does not."""
    shrunken, divided = [], []
    for seed in range(40):
        results, found = fleet(seed, [0.0] * 6, controls=3)
        shrunken += [one.log_ratio + 0.02 for one in scores(results, found, "LatencyP50").values()]
        for one in results:
            nearest = one.controls[-1].timing[0]
            divided.append(
                0.02
                + np.median([math.log(s.median) for s in one.timing[0].sessions])
                - np.median([math.log(s.median) for s in nearest.sessions])
            )
    assert np.std(shrunken) < 0.85 * np.std(divided)


@pytest.mark.parametrize("offsets", [[0.0] * 6, [0.03, -0.03, 0.01, -0.01, 0.02, -0.02]])
def test_the_stated_sd_is_the_error_that_is_made(offsets: list[float]) -> None:
    standardised = []
    for seed in range(40):
        results, found = fleet(1000 + seed, offsets)
        standardised += [(one.log_ratio + 0.02) / one.sd for one in scores(results, found, "LatencyP50").values()]
    assert 0.75 < np.std(standardised) < 1.25


def test_the_order_of_results_does_not_matter() -> None:
    results, found = fleet(3, [0.1, 0.0, -0.1])
    assert scores(results, found, "LatencyP50") == scores(results[::-1], found, "LatencyP50")


def test_a_worker_without_controls_is_trusted_less() -> None:
    results, found = fleet(4, [0.1, -0.1, 0.05, 0.0])
    bare = result("001-00099", 99, timing(-0.02))
    with_bare = scores([*results, bare], found, "LatencyP50")
    assert with_bare["001-00099"].sd > 3 * with_bare["001-00000"].sd


def test_the_first_trial_of_a_lone_worker_has_a_score() -> None:
    found = scores([result("001-00000", 0, timing(-0.1))], discovery([timing(0.0), timing(0.0)]), "LatencyP50")["001-00000"]
    assert found.log_ratio == pytest.approx(-0.1)
    assert found.sd >= BUILD_SD


def test_what_was_not_timed_or_only_throttled_has_no_score() -> None:
    results = [
        result("001-00000", 0, None),
        result("001-00001", 0, timing(0.0, throttled=True)),
        result("001-00002", 0, timing(0.0), [timing(0.0, throttled=True)]),
    ]
    assert set(scores(results, discovery([timing(0.0)]), "LatencyP50")) == {"001-00002"}


def test_a_clock_without_any_noise_gives_exact_scores() -> None:
    found = scores([result("001-00000", 0, timing(-0.1), [timing(0.0)] * 3)], discovery([timing(0.0)] * 3, 0, 0), "LatencyP50")
    assert (found["001-00000"].log_ratio, found["001-00000"].sd) == pytest.approx((-0.1, 0), abs=1e-5)


def test_results_of_another_run_are_kept_apart_from_the_same_workers_own() -> None:
    own = result("001-00000", 0, timing(0.5), [timing(0.5)] * 9)
    cached = result("001-00001", 0, timing(0.0), [timing(0.0)] * 9, cached=True)
    found = scores([own, cached], discovery([timing(0.0)] * 4), "LatencyP50")
    assert found["001-00000"].log_ratio == pytest.approx(0, abs=0.03)
    assert found["001-00001"].log_ratio == pytest.approx(0, abs=0.03)


def controls(*logs: float) -> list[Control]:
    return [Control(engine=digest(0), timing=(timing(one),)) for one in logs]


def test_a_control_far_off_the_others_flags_a_drift() -> None:
    found = discovery([timing(0.0)])
    assert drifted(controls(0.0, 0.005, -0.004, 0.1), found, "LatencyP50")
    assert drifted(controls(0.0, 0.005, -0.004, -0.1), found, "LatencyP50")


def test_noise_is_no_drift() -> None:
    rng = np.random.default_rng(0)
    found = discovery([timing(0.0)])
    flagged = [
        drifted([Control(engine=digest(0), timing=(timing(0.0, rng),)) for _ in range(8)], found, "LatencyP50")
        for _ in range(150)
    ]
    assert np.mean(flagged) < 0.03


def test_a_worker_that_always_varies_is_not_flagged_for_it() -> None:
    assert not drifted(controls(0.1, -0.1, 0.12, -0.08, 0.15), discovery([timing(0.0)]), "LatencyP50")


def test_too_few_controls_say_nothing() -> None:
    assert not drifted(controls(0.0, 9.0), discovery([timing(0.0)]), "LatencyP50")
    assert not drifted([], discovery([timing(0.0)]), "LatencyP50")


def test_a_result_too_slow_for_the_samples_of_a_percentile_has_no_score_and_stops_nothing() -> None:
    rng = np.random.default_rng(0)

    def samples(count: int) -> Timing:
        return Timing(clock="host", sessions=tuple(session(k, 1e-3 * rng.lognormal(0, 0.1, count)) for k in range(5)))

    results = [result("001-00000", 0, samples(1000)), result("001-00001", 0, samples(100))]
    assert set(scores(results, discovery([samples(1000)] * 4), "LatencyP99")) == {"001-00000"}
    with pytest.raises(TooFewSamples):
        scores(results, discovery([samples(100)] * 4), "LatencyP99")


@pytest.mark.parametrize("between", [0.0, 0.05])
def test_a_trial_that_was_stopped_early_states_a_larger_sd(between: float) -> None:
    """Also where the controls vary more than sessions do, so that they and not the sessions say how well a trial is timed."""
    rng = np.random.default_rng(0)
    controls = [timing(rng.normal(0, between), rng) for _ in range(8)]
    found = discovery([timing(0.0, rng) for _ in range(4)])
    sds = []
    for sessions in (1, 2, 5):
        results = [result("001-00000", 0, timing(0.1, sessions=sessions), controls)]
        sds.append(scores(results, found, "LatencyP50")["001-00000"].sd)
    assert sds == sorted(sds, reverse=True)
    assert sds[0] > 1.3 * sds[-1]
