"""The gate fails closed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner_job.accuracy.gate import METRICS, check_thresholds, judge
from tuner_job.api.base import InputError
from tuner_job.api.measurement import Losses, OutputLoss


def output(name: str = "y", loss: float = 0.0, sample: str = "a/s0") -> OutputLoss:
    return OutputLoss.model_construct(output=name, worst_sample=sample, l0=loss, l1=loss, l2=loss, l_inf=loss, cosine=loss)


def losses(*outputs: OutputLoss, problems: tuple[str, ...] = (), samples: int = 2) -> Losses:
    return Losses.model_construct(
        references_digest="0" * 64, samples=samples, atol=1e-5, rtol=1e-5, outputs=outputs, problems=problems
    )


@pytest.mark.parametrize("metric", METRICS)
@given(loss=st.floats(allow_nan=True, allow_infinity=True), threshold=st.floats(1e-12, 1e6))
def test_only_a_finite_loss_below_the_threshold_passes(metric, loss, threshold):
    passed, reason = judge(losses(output(loss=loss)), metric, threshold)
    assert passed == (math.isfinite(loss) and loss < threshold)
    assert "\n" not in reason


def test_the_threshold_itself_fails_and_the_reason_names_everything():
    passed, reason = judge(losses(output("good", 0.0), output("bad", 0.01, "big/s7")), "lInf", 0.01)
    assert not passed
    assert reason == "output bad: lInf 0.01 is at or over the threshold 0.01, worst in sample big/s7"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_bad_output_among_good_ones_fails(bad):
    for position in range(3):
        outputs = [output(name, 0.0) for name in "abc"]
        outputs[position] = output("bad", bad)
        passed, reason = judge(losses(*outputs), "l1", 0.5)
        assert not passed
        assert "output bad" in reason


def test_zero_difference_passes_with_a_reason():
    assert judge(losses(output()), "cosine", 1e-9) == (
        True,
        "output y: cosine 0 is the worst of 1 outputs over 2 samples, under 1e-09",
    )


def test_problems_nothing_compared_and_no_samples_never_pass():
    assert judge(losses(output(), problems=("output y: NaN", "more")), "l0", 1.0) == (
        False,
        "invalid output: output y: NaN (and 1 more)",
    )
    assert not judge(losses(), "l0", 1.0)[0]
    assert not judge(losses(output(), samples=0), "l0", 1.0)[0]


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan, math.inf])
def test_thresholds_must_be_positive_and_finite(threshold):
    with pytest.raises(InputError, match=r"accuracy\.threshold"):
        judge(losses(output()), "l0", threshold)


def test_a_threshold_needs_its_metric_and_screening_is_never_tighter():
    with pytest.raises(InputError, match=r"accuracy\.metric"):
        check_thresholds(None, 0.1)
    with pytest.raises(InputError, match="'cos'"):
        check_thresholds("cos", 0.1)
    with pytest.raises(InputError, match=r"accuracy\.threshold: not given"):
        check_thresholds("l1", None)
    with pytest.raises(InputError, match="tighter"):
        check_thresholds("l1", 0.1, 0.05)
    with pytest.raises(InputError, match="screeningThreshold"):
        check_thresholds("l1", 0.1, -1.0)
    check_thresholds("l1", 0.1, 0.1)


@pytest.mark.parametrize(("metric", "threshold"), [("l0", 1.1), ("cosine", 2.5)])
def test_a_threshold_that_no_loss_reaches_is_refused(metric, threshold):
    with pytest.raises(InputError, match="passes every engine"):
        check_thresholds(metric, threshold)
    check_thresholds(metric, 0.9, screening=threshold)
