import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner_job.api.measurement import Candidate
from tuner_job.report.effects import SLOWEST, Trial, choices, estimate


def test_choices_are_what_departs_from_the_default():
    candidate = Candidate(variant="fp16", route="-a=1 -b=off", settings={"level": "5"})
    assert choices(candidate) == ("-a=1", "-b=off", "level=5", "variant fp16")
    assert choices(Candidate()) == ()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_intervals_cover_planted_effects(seed: int):
    rng = np.random.default_rng(seed)
    truth = rng.normal(0, 0.05, 12)
    trials = []
    for _ in range(80):
        on = rng.random(12) < 0.3
        names = tuple(f"-k{j}=on" for j in np.flatnonzero(on))
        trials.append(Trial(names, float(truth[on].sum() + rng.normal(0, 0.01)), 0.01))
    found = {effect.choice: effect for effect in estimate(trials)}
    covered = [
        effect.low <= truth[int(name[2:-3])] <= effect.high
        for name, effect in found.items()
        if effect.low is not None and effect.high is not None
    ]
    assert len(covered) == 12
    assert sum(covered) >= 8  # 12 intervals of 95 %: fewer happens once in 50,000


def test_a_knob_that_was_tried_alone_keeps_its_effect():
    trials = [Trial((f"-k{j}=on",), value, 0.003) for j, value in enumerate([-0.2, 0.3, 0.0, 0.001, -0.001])]
    first = estimate(trials)[0]
    assert first.choice == "-k0=on"
    assert first.estimate == pytest.approx(-0.2, abs=0.01)
    assert first.high is not None
    assert first.high < -0.15


def test_knobs_that_were_always_tried_together_share_the_effect():
    trials = [Trial(("-a=1", "-b=1"), -0.2, 0.005)] * 10
    first, second = estimate(trials)
    assert first.estimate == pytest.approx(second.estimate)
    assert first.low is not None
    assert first.high is not None
    assert first.low < -0.2 < first.high


def test_a_choice_that_only_failed_has_a_count_and_no_estimate():
    (effect,) = estimate([Trial(("-a=1",), None), Trial(("-a=1",), None)])
    assert (effect.timed, effect.failed, effect.estimate, effect.saved) == (0, 2, None, None)


def test_failures_are_counted_beside_timings():
    effects = {effect.choice: effect for effect in estimate([Trial(("-a=1", "-b=1"), 0.1, 0.01), Trial(("-a=1",), None)])}
    assert (effects["-a=1"].timed, effects["-a=1"].failed) == (1, 1)
    assert (effects["-b=1"].timed, effects["-b=1"].failed) == (1, 0)


def test_a_candidate_that_is_many_times_slower_does_not_drown_the_others():
    trials = [Trial(("-bad=1",), math.log(43), 0.01), *[Trial((f"-k{j}=1",), -0.05, 0.01) for j in range(6)]]
    effects = {effect.choice: effect for effect in estimate(trials)}
    bad = effects["-bad=1"].estimate
    assert bad is not None
    assert 0.5 < bad <= SLOWEST
    assert effects["-k0=1"].estimate == pytest.approx(-0.05, abs=0.01)


@pytest.mark.parametrize("trials", [[], [Trial((), 0.0, 0.0)], [Trial(("-a=1",), 0.0, 0.0)], [Trial(("-a=1",), 0.0, 0.0)] * 3])
def test_nothing_tried_and_no_variance_at_all_are_fine(trials: list[Trial]):
    for effect in estimate(trials):
        assert effect.estimate == pytest.approx(0.0, abs=1e-6)
