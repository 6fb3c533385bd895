"""Worker overhead out of records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import overhead
from tuner_job.api.base import InputError

TRIAL = {"total": 4.0, "start": 0.5, "build": 1.0, "load": 0.5, "check": 0.5, "measure": 1.0}


def store(folder: Path, *results: tuple[str, dict[str, float]], cached: bool = False) -> Path:
    for number, (worker, seconds) in enumerate(results):
        path = folder / "runs" / "r" / "trials" / f"001-{number:05d}" / "result.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"workerId": worker, "worker": f"name-{worker}", "seconds": seconds, "cached": cached}))
    return folder


def test_a_workers_seconds_add_up_and_waiting_is_told_apart(tmp_path: Path) -> None:
    first = TRIAL | {"controls": 2.0, "prepared": 1.5, "between": 0.0, "waited": 0.0}
    second = TRIAL | {"controls": 0.0, "prepared": 0.0, "between": 0.25, "waited": 6.0}
    (one, other) = overhead.shards(store(tmp_path, ("a", first), ("b", first), ("a", second)))
    assert (one.worker, one.trials, other.trials) == ("name-a", 2, 1)
    assert one.wall == one.work + one.start + one.prepared + one.store + one.rest + one.waiting == 17.75
    assert (one.work, one.start, one.prepared, one.store, one.rest, one.waiting) == (8.0, 1.0, 1.5, 0.25, 1.0, 6.0)
    assert one.overhead == pytest.approx(9.75 / 17.75)
    assert one.of_long_trials == pytest.approx(3.75 / 30)
    assert "waiting 23.8%" in overhead.table([one, other])


def test_a_result_that_tells_nothing_between_trials_is_named_unless_nothing_ran(tmp_path: Path) -> None:
    assert list(overhead.shards(store(tmp_path / "1", ("a", {"total": 0.0}), cached=True))) == []
    with pytest.raises(InputError, match=r"001-00000/result\.json: does not tell"):
        list(overhead.shards(store(tmp_path / "2", ("a", TRIAL))))
