import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner_job.api.base import InputError
from tuner_job.api.outcome import Outcome
from tuner_job.routes.knobs import BadValue, KnobList, UnknownKnob
from tuner_job.routes.route import parse_route
from tuner_job.routes.tuning_cache import (
    BadTuningCache,
    CacheHeader,
    CacheRow,
    default_build_route,
    read_tuning_cache,
    write_tuning_cache,
)

HEADER = CacheHeader(
    tuner_version="2.20.51", searching_algorithm="mixed", tuning_expr="-reshape_ppg=[on|off]", argv=("--onnx=m",)
)


def row(
    knobs: KnobList, iteration: int, route: str, time: float | None, *, phase: int = 1, crash: bool = False, error: str = ""
) -> CacheRow:
    return CacheRow(iteration, phase, parse_route(route, knobs), crash, error, None if crash else {"y": 0.0}, time)


def rows_of(knobs: KnobList) -> tuple[CacheRow, ...]:
    return (
        row(knobs, 0, "-reshape_ppg=on -transpose_ppg=on", 1.0),
        row(knobs, 1, "-transpose_ppg=off", 0.5, error="child exited with status 1"),
        row(knobs, 2, "-reshape_ppg=off", None, crash=True, error="killed by signal 11 (SIGSEGV)"),
        row(knobs, 3, "-kgen:tiling=2", 0.8),
        row(knobs, 0, "-kgen:tiling=0", 0.0, phase=2),
        row(knobs, 1, "-kgen:tiling=2", 0.8, phase=2),
    )


def test_written_files_read_back_and_keep_trtexecs_keys(real_knobs: KnobList) -> None:
    text = write_tuning_cache(HEADER, rows_of(real_knobs))
    cache = read_tuning_cache(text, real_knobs)
    assert (cache.header, cache.rows, cache.torn) == (HEADER, rows_of(real_knobs), False)
    first, second = (json.loads(line) for line in text.splitlines()[:2])
    assert list(first) == [
        "tuner_version", "accuracy_algorithm", "accuracy_parameter", "searching_algorithm", "command_line",
        "default_build_route", "tuning_expr", "files", "argv",
    ]  # fmt: skip
    assert list(second) == ["iter", "build_route", "crash", "error_message", "accuracy_loss", "gpu_time"]


def test_the_winner_is_the_fastest_that_is_right_the_earliest_of_equals(real_knobs: KnobList) -> None:
    cache = read_tuning_cache(write_tuning_cache(HEADER, rows_of(real_knobs)), real_knobs)
    assert cache.winner is not None
    assert (cache.winner.phase, cache.winner.iteration) == (1, 3)
    assert [r.outcome for r in cache.rows] == [
        Outcome.FEASIBLE,
        Outcome.INFEASIBLE,
        Outcome.CRASHED,
        Outcome.FEASIBLE,
        Outcome.INVALID_OUTPUT,
        Outcome.FEASIBLE,
    ]


@given(st.data())
def test_cut_anywhere_after_the_header_it_keeps_every_whole_row(data) -> None:
    from test_routes_route import KNOBS

    rows = rows_of(KNOBS)
    text = write_tuning_cache(HEADER, rows)
    header_end = text.index("\n")
    cut = data.draw(st.integers(header_end, len(text)))
    cache = read_tuning_cache(text[:cut], KNOBS)
    whole = sum(1 for i in range(len(rows)) if cut >= len("\n".join(text.split("\n")[: i + 2])))
    assert cache.rows == rows[:whole]
    # trtexec --continue appends to the torn row
    resumed = read_tuning_cache(
        text[:cut] + json.dumps({"iter": 9, "build_route": "", "crash": False, "gpu_time": 0.1}) + "\n", KNOBS
    )
    assert resumed.rows[-1].iteration == 9
    assert resumed.winner == resumed.rows[-1]


def test_a_restarted_count_is_phase_two_only_in_a_mixed_search(real_knobs: KnobList) -> None:
    rows = [row(real_knobs, 0, "", 1.0), row(real_knobs, 0, "", 1.0)]
    for algorithm, phases in (("mixed", [1, 2]), ("fast", [1, 1])):
        text = write_tuning_cache(CacheHeader(searching_algorithm=algorithm), rows)
        assert [r.phase for r in read_tuning_cache(text, real_knobs).rows] == phases


def test_a_loss_that_is_not_finite_never_wins(real_knobs: KnobList) -> None:
    line = {"iter": 0, "build_route": "", "crash": False, "error_message": "", "accuracy_loss": {"y": None}, "gpu_time": 0.1}
    cache = read_tuning_cache(write_tuning_cache(HEADER, []) + json.dumps(line) + "\n", real_knobs)
    assert cache.winner is None
    assert cache.rows[0].outcome is Outcome.INFEASIBLE


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda t: t.replace("-kgen:tiling=2", "-kgen:tillling=2", 1), UnknownKnob, "best.json, line 5: unknown knob"),
        (lambda t: t.replace("-kgen:tiling=2", "-kgen:tiling=7", 1), BadValue, "best.json, line 5: -kgen:tiling"),
        (lambda t: t.replace('"crash": true', '"crash": 1'), BadTuningCache, "best.json, line 4: a row needs"),
        (lambda t: "not json\n" + t, BadTuningCache, "best.json, line 1: not JSON"),
        (lambda t: t.replace('{"iter": 1,', '"iter": 1,', 1), BadTuningCache, "best.json, line 3: not a JSON object"),
        (lambda t: t.split("\n", 1)[1], BadTuningCache, "no header"),
        (lambda t: "", BadTuningCache, "no header"),
        (
            lambda t: t.replace('"default_build_route": ""', '"default_build_route": "-reshape_ppg=off"'),
            BadTuningCache,
            "defaults to 'off' there",
        ),
        (lambda t: t.replace("[on|off]", "[on|maybe]", 1), BadValue, "tuning_expr: -reshape_ppg"),
    ],
)
def test_foreign_or_broken_files_are_refused_with_the_line(
    real_knobs: KnobList, change, error: type[InputError], says: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_tuning_cache(change(write_tuning_cache(HEADER, rows_of(real_knobs))), real_knobs, "best.json")
    assert type(caught.value) is error
    assert says in str(caught.value)


def test_the_header_of_the_real_list_is_accepted(real_knobs: KnobList) -> None:
    route = default_build_route(real_knobs)
    assert len(route) == 5823
    assert read_tuning_cache(write_tuning_cache(CacheHeader(default_build_route=route), []), real_knobs).rows == ()


def test_a_crash_has_neither_losses_nor_a_time(real_knobs: KnobList) -> None:
    crashed = CacheRow(0, 1, parse_route("", real_knobs), crash=True, error_message="SIGSEGV", losses={"y": 0.1}, gpu_time=1.0)
    written = json.loads(write_tuning_cache(HEADER, [crashed]).splitlines()[1])
    assert (written["accuracy_loss"], written["gpu_time"]) == (None, None)


def test_a_loss_at_the_threshold_fails_whoever_wrote_the_row(real_knobs: KnobList) -> None:
    header = CacheHeader(threshold=0.01)
    rows = [
        CacheRow(0, 1, parse_route("", real_knobs), losses={"y": 0.01, "z": 0.0}, gpu_time=0.1),
        CacheRow(1, 1, parse_route("", real_knobs), losses={"y": 0.009}, gpu_time=0.2),
        CacheRow(2, 1, parse_route("", real_knobs), losses={"y": 0.5}, error_message="child exited with status 1", gpu_time=0.1),
    ]
    cache = read_tuning_cache(write_tuning_cache(header, rows), real_knobs)
    assert [row.outcome for row in cache.rows] == [Outcome.INFEASIBLE, Outcome.FEASIBLE, Outcome.INFEASIBLE]
    assert cache.rows[0].error_message == "y: loss 0.01 is at or over the threshold 0.01"
    assert cache.rows[2].error_message == "child exited with status 1"
    without = read_tuning_cache(write_tuning_cache(CacheHeader(), rows[:1]), real_knobs)
    assert without.rows[0].outcome is Outcome.FEASIBLE, "no threshold, no gate"


def test_files_that_were_not_given_are_left_out_as_trtexec_does(real_knobs: KnobList) -> None:
    first = json.loads(write_tuning_cache(CacheHeader(onnx="/m.onnx"), []).splitlines()[0])
    assert first["files"] == {"onnx": "/m.onnx"}
    full = CacheHeader(onnx="/m", save_engine="/e", inputs={"x": "/x"}, ref_outputs={"y": "/y"})
    text = write_tuning_cache(full, [])
    assert list(json.loads(text)["files"]) == ["onnx", "save_engine", "inputs", "ref_outputs"]
    assert read_tuning_cache(text, real_knobs).header == full
