"""Fingerprints that hold are believed nearly always, those that lie seldom, and those of which nothing is seen never."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tuner_job.measure.fingerprints import ALPHA, fingerprints_hold

PILOTS = 2_000
BUILDS, SESSIONS = 4, 5

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(0, 0.01, shape)


def spells(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """One session in ten is slow."""
    return rng.normal(0, 0.005, shape) + 0.05 * (rng.random(shape) < 0.1)


def doubted(noise: Noise, *, process_sd: float = 0.0, engine_sd: float = 0.0, seed: int = 0) -> float:
    """Share of pilots whose fingerprints are not believed: all builds have one, and differ by the engine and by the process."""
    rng = np.random.default_rng(seed)
    found = 0
    for _ in range(PILOTS):
        own = rng.normal(0, process_sd, BUILDS) + rng.normal(0, engine_sd, BUILDS)
        logs = own[:, None] + noise(rng, (BUILDS, SESSIONS))
        found += not fingerprints_hold(("same", list(one)) for one in logs)
    return found / PILOTS


@pytest.mark.parametrize("noise", [normal, spells])
@pytest.mark.parametrize("process_sd", [0.0, 0.002])
def test_fingerprints_that_hold_are_doubted_about_once_in_a_hundred(noise: Noise, process_sd: float) -> None:
    assert doubted(noise, process_sd=process_sd) <= 2 * ALPHA


def test_what_processes_of_one_engine_differ_by_is_no_doubt_however_quiet_the_sessions() -> None:
    assert doubted(lambda rng, shape: rng.normal(0, 0.0002, shape), process_sd=0.002) <= 2 * ALPHA


def test_fingerprints_that_lie_are_found_out_once_engines_differ_by_more_than_sessions_do() -> None:
    assert doubted(normal, engine_sd=0.05) > 0.9
    assert doubted(normal, engine_sd=0.02) > 0.6


def test_builds_of_different_fingerprints_are_never_compared() -> None:
    rng = np.random.default_rng(0)
    engines = {"fast": 0.0, "slow": 0.5}
    builds = [(name, list(level + rng.normal(0, 0.01, SESSIONS))) for name, level in engines.items() for _ in range(2)]
    assert fingerprints_hold(builds)
    assert not fingerprints_hold([("same", logs) for _, logs in builds])


@pytest.mark.parametrize("names", [["a", "b", "c", "d"], ["", "", "", ""], ["a"]])
def test_without_two_builds_of_one_fingerprint_nothing_is_proven(names: list[str]) -> None:
    assert not fingerprints_hold((name, [0.0, 0.001, -0.001]) for name in names)


def test_single_sessions_are_held_against_the_tolerance_alone() -> None:
    assert fingerprints_hold([("a", [0.0]), ("a", [0.001])])
    assert not fingerprints_hold([("a", [0.0]), ("a", [0.01])])


def test_a_clock_too_coarse_to_tell_sessions_apart_is_no_reason_for_doubt() -> None:
    assert fingerprints_hold([("a", [-7.0] * 3), ("a", [-7.0] * 3)])
