"""What is believed of the errors of timings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tuner_job.search.noise import Array, Left, Mask, Noise
from tuner_job.search.sparse import Shared, fit

SD = 0.01
"""As the campaign states it, in all cases."""


def left(errors: Array, x: Array | None = None) -> Left:
    n = len(errors)
    return Left(errors, np.zeros(n), np.full(n, SD**2), np.zeros((n, 1)) if x is None else x)


def learned(what: Left, timing: Array | None = None, steps: int = 6) -> Noise:
    noise = Noise.start(what.v, 0.005)
    for _ in range(steps):
        noise = noise.updated(what, np.ones(len(what.mean), dtype=bool) if timing is None else timing > 0, True)
    return noise


def two_modes(seed: int, n: int, share: float, shift: float, wide: float = 1.0) -> tuple[Array, Mask]:
    """Errors, and which are of the slow mode. The fast one is of a third of SD."""
    rng = np.random.default_rng(seed)
    slow = rng.random(n) < share
    return rng.normal(0, SD / 3, n) * np.where(slow, wide**0.5, 1.0) + shift * slow, slow


@pytest.mark.parametrize("seed", range(5))
def test_a_mode_that_is_slower_and_wider_is_learned(seed: int) -> None:
    errors, slow = two_modes(seed, 300, 0.3, 0.03, wide=6.0)
    noise = learned(left(errors))
    assert noise.law.share == pytest.approx(0.3, abs=0.08)
    assert noise.law.shift == pytest.approx(0.03, abs=0.004)
    assert 3 < noise.law.wide < 12
    assert noise.law.scale2(np.array([SD**2]))[0] ** 0.5 == pytest.approx(SD / 3, rel=0.25)
    assert noise.own[slow].mean() > 2 * noise.own[~slow].mean(), "a timing of the wide mode is less sure"
    assert noise.precision[slow].mean() < noise.precision[~slow].mean() / 2
    assert np.abs(errors - noise.pull).mean() < np.abs(errors).mean() / 2


def test_where_the_fast_mode_lies_is_found_while_the_shared_error_is_not_known() -> None:
    errors, _ = two_modes(0, 300, 0.3, 0.04)
    law = learned(left(errors + 0.02)).law
    assert law.at == pytest.approx(0.02, abs=0.002)
    assert law.shift == pytest.approx(0.04, abs=0.003)


def test_what_is_far_off_is_an_outlier_and_no_mode() -> None:
    errors, slow = two_modes(0, 300, 0.1, 0.3)
    noise = learned(left(errors))
    assert noise.law.share == 0 or noise.law.shift <= 6 * SD
    assert noise.robust[slow].max() < 0.1
    assert (noise.missed()[slow] > 0.07**2).all()


@pytest.mark.parametrize("width", [0.3, 1.0, 2.0])
def test_one_mode_of_any_width_is_no_two(width: float) -> None:
    seen = [learned(left(np.random.default_rng(seed).normal(0, width * SD, 200))).law.share > 0 for seed in range(10)]
    assert sum(seen) <= 1


def test_a_slow_mode_that_goes_with_a_flip_is_its_effect() -> None:
    errors, slow = two_modes(0, 300, 0.3, 0.03)
    others = (np.random.default_rng(1).random((300, 50)) < 0.3).astype(float)
    assert learned(left(errors, others)).law.share > 0.2
    assert learned(left(errors, np.column_stack([others, slow]))).law.share == 0


def test_rows_that_are_known_are_of_no_mode_and_lower_what_is_missed() -> None:
    rng = np.random.default_rng(0)
    errors, _ = two_modes(0, 300, 0.3, 0.03)
    known = replace(left(np.concatenate([errors + 0.02, np.zeros(50)])), v=np.array([SD**2] * 300 + [1e-8] * 50))
    noise = learned(known, np.array([1.0] * 300 + [0.0] * 50))
    assert noise.law.share > 0.2
    assert not noise.pull[300:].any()
    assert (noise.robust[300:] > 1).all()
    loud = rng.normal(0, 2 * SD, 200)
    alone = learned(left(loud)).law.misfit2
    together = learned(left(np.concatenate([loud, np.zeros(200)])), np.array([1.0] * 200 + [0.0] * 200)).law.misfit2
    assert together < 0.7 * alone


def test_few_timings_say_nothing_of_modes() -> None:
    errors, _ = two_modes(0, 12, 0.4, 0.05)
    assert learned(left(errors)).law.share == 0


def test_no_timings_leave_everything_as_it_was() -> None:
    noise = Noise.start(np.zeros(3) + SD**2, 0.005)
    assert noise.updated(left(np.zeros(3)), np.zeros(3, dtype=bool), True) is noise


@pytest.mark.parametrize("seed", range(4))
def test_a_large_effect_in_a_third_of_the_timings_is_found_among_more_flips_than_timings(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.random((100, 300)) < 0.25).astype(float)
    x[:, 0] = rng.random(100) < 0.33
    found = fit(x, x[:, 0] * 0.35 + rng.normal(0, 0.05, 100), np.full(100, 0.05**2), None, Shared(np.ones(100), 0.02**2))
    assert found.law.share == 0
    assert found.effect[0] > 0.2


def test_how_much_slower_a_bad_candidate_is_teaches_nothing() -> None:
    rng = np.random.default_rng(0)
    x = (rng.random((100, 60)) < 0.2).astype(float)
    x[:, 0] = np.arange(100) < 10
    truth = np.zeros(60)
    truth[[5, 9]] = [-0.02, 0.02]
    y = x @ truth + rng.normal(0, 0.005, 100)
    slow, slower = (fit(x, y + size * x[:, 0], np.full(100, 0.005**2)) for size in (1.0, 30.0))
    assert slow.effect == pytest.approx(slower.effect)
    assert slow.effect[[5, 9]] == pytest.approx([-0.02, 0.02], abs=0.005)
