"""Landscape recordings: going on with one, and several as one."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.h200 import recordings
from bench.h200.landscape import product, shuffled
from tuner_job.api.base import InputError
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.routes.select import select
from tuner_job.search.space import Flip, Space

KNOBS = {
    "tuner_version": "1",
    "tuner_options": [
        {"option": "-a", "allowed_values": "-a=[off|on]", "default_value": "off", "help": ""},
        {"option": "-b", "allowed_values": "-b=[0|1|2]", "default_value": "0", "help": ""},
    ],
}


def recording(rows: dict[str, str], times: dict[str, list[float]], **other: Any) -> recordings.Document:
    """`rows`: id → outcome, `default` being the default; `times`: id → microseconds in batch 0, 1, …"""
    return {
        "model": "m",
        "device": {"product": "P"},
        "versions": {"v": "1"},
        "accuracy": {},
        "knobs": {"-a": ["off", "on"]},
        "default": {"-a": "off"},
        "product": 6,
        "protocol": {"sessions": 4},
        "built": len(rows),
        "built_seconds": 1.0,
        "seconds": 2.0,
        "lost": [],
        "rows": [
            {
                "id": name,
                "config": {} if name == "default" else {"-a": name},
                "variant": "default",
                "route": f"-a={name}",
                "outcome": outcome,
                "size": 0 if outcome == "crashed" else 9,
            }
            for name, outcome in rows.items()
        ],
        "timings": [
            {"id": name, "batch": batch, "sessions": [[[value, value], [value]]]}
            for name, values in times.items()
            for batch, value in enumerate(values)
        ],
    } | other


FIRST = recording(
    {"default": "feasible", "x": "feasible", "y": "crashed", "z": "feasible"}, {"baseline": [100.0], "x": [50.0], "z": [80.0]}
)
SECOND = recording({"default": "feasible", "x": "feasible", "w": "infeasible"}, {"baseline": [200.0], "x": [120.0], "w": [20.0]})


def test_a_merged_recording_takes_ratios_within_a_part() -> None:
    merged = recordings.merge({"1": FIRST, "2": SECOND})
    assert (merged["built"], len(merged["parts"]), len(merged["rows"])) == (5, 2, 7)
    assert recordings.defaults(merged) == {(0, 0): 100.0, (1, 0): 200.0}
    assert recordings.ratios(merged) == pytest.approx({"x": 0.55, "z": 0.8, "w": 0.1})
    assert recordings.repeats(merged) == pytest.approx([math.log(0.6 / 0.5)])


def test_every_row_and_timing_keeps_its_part_and_merging_again_keeps_the_parts_apart() -> None:
    merged = recordings.merge({"1": FIRST, "2": SECOND})
    again = recordings.merge({"all": merged, "3": FIRST})
    assert [row["part"] for row in again["rows"]] == [0] * 4 + [1] * 3 + [2] * 4
    assert [one["part"] for one in again["timings"]] == [0] * 3 + [1] * 3 + [2] * 3
    assert len(again["parts"]) == 3
    assert again["built"] == merged["built"]


def test_only_what_was_feasible_in_every_part_is_ranked() -> None:
    crashed = recording({"x": "crashed"}, {"baseline": [1.0]})
    assert [row[2] for row in recordings.ranking(recordings.merge({"1": FIRST, "2": SECOND}))] == ["-a=x", "-a=z"]
    assert [row[2] for row in recordings.ranking(recordings.merge({"1": FIRST, "2": crashed}))] == ["-a=z"]
    assert "'crashed or feasible': 1" in recordings.summary(recordings.merge({"1": FIRST, "2": crashed}))


@pytest.mark.parametrize("key", recordings.SAME)
def test_recordings_of_two_landscapes_are_not_merged(key: str) -> None:
    with pytest.raises(InputError, match=f"other.json.gz: is of another landscape: its {key} is other"):
        recordings.merge({"one": FIRST, "other.json.gz": SECOND | {key: "other"}})


def test_held_is_what_was_timed_or_can_not_be() -> None:
    untimed = recording({"default": "feasible", "x": "feasible", "y": "crashed"}, {"baseline": [1.0]})
    assert recordings.held(untimed) == {"default", "y"}
    assert recordings.held(FIRST) == {"default", "x", "y", "z"}


def test_going_on_keeps_the_order_and_takes_each_configuration_once() -> None:
    knobs = parse_knob_list(json.dumps(KNOBS))
    space = Space(knobs, select(knobs))
    order = shuffled(space, ())
    assert order[0] == {}
    assert sorted(map(str, order)) == sorted(map(str, product(space)))
    assert len(order) == 6
    known = {space.candidate(Flip(*item) for item in config.items()).id for config in (order[0], order[3])}
    assert shuffled(space, known) == [*order[1:3], *order[4:]]


def test_the_command_writes_the_same_bytes_again_and_refuses_what_is_no_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, document in (("1", FIRST), ("2", SECOND)):
        recordings.write(document, tmp_path / f"{name}.json.gz")
    files = [str(tmp_path / "1.json.gz"), str(tmp_path / "2.json.gz")]
    written = []
    for name in ("a", "b"):
        assert recordings.main([*files, "--output", str(tmp_path / name)]) == 0
        written.append((tmp_path / f"{name}.json.gz").read_bytes())
    assert written[0] == written[1]
    assert "m: 5 of 6 built, 3 timed" in capsys.readouterr().out
    (tmp_path / "2.json.gz").write_bytes(gzip.compress(b"[]"))
    assert recordings.main([*files, "--output", str(tmp_path / "c")]) == 64
    assert f"{files[1]}: " in capsys.readouterr().err
    assert not (tmp_path / "c.json.gz").exists()
