"""Landscapes that are recorded on this machine's CPU: real children, a tiny model, a product of four."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path

import pytest
from rig.tiny import write_tiny_model

from bench.cpu import __main__ as command
from bench.cpu import products, quiet, record
from bench.cpu.convert import from_cpu
from bench.cpu.products import PRODUCTS, Product, product_of
from bench.h200.recordings import read, write
from bench.search import series
from bench.search.landscape import load
from tuner_job.api.base import InputError
from tuner_job.api.child import MeasureSettings
from tuner_job.api.outcome import Outcome
from tuner_job.backends.onnxruntime.knobs import knob_list, knobs
from tuner_job.search.space import Flip

LEVEL, THREADS = "-graph:level", "-session:intra_op_threads"
TINY = Product({LEVEL: ("disabled",), THREADS: ("1",)}, passes=2)
QUICK = MeasureSettings(session_seconds=0.001, session_samples=3, sessions=3, warmup_seconds=0.004, warmup_limit_seconds=0.01)
LOAD = (0.1, 0.2, 0.3)
JOB = """
apiVersion: trtfleet.dev/v1alpha1
kind: TuningJob
metadata: {name: tiny}
spec:
  model: {uri: tiny.onnx}
  targets:
    - {name: cpu, runtimeRef: {name: onnxruntime}, device: {type: CPU}}
  accuracy: {source: Generated, generated: {samples: 1}, metric: cosine, threshold: "0.001"}
  storeRef: {name: local}
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Its product is TINY, in batches of two."""
    write_tiny_model(tmp_path / "tiny.onnx")
    (tmp_path / "tiny.yaml").write_text(JOB)
    monkeypatch.setitem(products.PRODUCTS, "tiny", TINY)
    monkeypatch.setattr(record, "BATCH", 2)
    monkeypatch.setattr(record, "MEASURE", QUICK)
    monkeypatch.setattr(record, "NOISE_BUILDS", 2)
    monkeypatch.setattr(record, "NOISE", QUICK)
    return tmp_path / "tiny.yaml"


@pytest.mark.slow
def test_a_recording_that_is_cut_goes_on_to_a_whole_landscape_whose_optimum_is_known(job, tmp_path, monkeypatch, capsys):
    output = tmp_path / "cpu"
    recording, landscape = output / "recording-tiny.json.gz", output / "landscape-tiny.json.gz"
    begin = [str(job), "--busy", "--output", str(output)]
    command.main([*begin, "--batches", "1"])
    assert "of 4 batches to record, about" in capsys.readouterr().err
    cut = read(recording)
    assert cut["batches"] == 1
    assert from_cpu(recording) is None
    assert not landscape.exists()

    command.main(begin)
    whole = read(recording)
    for key in ("rows", "timings", "noise", "sittings"):
        assert whole[key][: len(cut[key])] == cut[key], "what was recorded stays"
    assert len(whole["sittings"]) == 2
    assert [check["sitting"] for check in whole["noise"]] == [0, 1, 1, 1], "each sitting begins with one, each pass ends with one"
    timed = [(one["part"], one["id"]) for one in whole["timings"] if one["id"] != "baseline"]
    assert sorted(timed) == sorted({(part, row["id"]) for part in (0, 1) for row in whole["rows"] if row["config"]})
    assert len(timed) == 2 * 3

    before = recording.read_bytes()
    command.main(begin)
    assert recording.read_bytes() == before, "nothing is left to record"

    found = load(landscape)
    assert (found.name, found.kind, found.product) == ("cpu-tiny", "recorded", 4)
    assert {row.outcome for row in found.rows.values()} == {Outcome.FEASIBLE}
    assert found.rows[frozenset()].log_ratio == 0.0
    assert found.best[1] == min(row.log_ratio for row in found.rows.values())
    assert len(found.noise.medians) == 4 * 2 * QUICK.sessions, "builds x sessions of every check"
    assert "2 passes; the machine was" in found.provenance["about"]
    assert "onnxruntime" in found.provenance["versions"]
    assert {"machine", "load", "others", "equal builds", "seconds"} <= found.provenance.keys()

    monkeypatch.setattr(series, "CPU", output)
    assert "cpu-tiny" in series.landscapes()
    assert series.landscape("cpu-tiny", 5).rows == found.rows


@pytest.mark.slow
def test_a_recording_of_something_else_is_not_gone_on_with(job, tmp_path):
    path = tmp_path / "one.json.gz"
    record.record(job, TINY, path, LOAD, busy=True, most=0)
    assert not path.exists(), "nothing was asked for"
    record.record(job, TINY, path, LOAD, busy=True, most=1)
    with pytest.raises(InputError, match="another protocol"):
        record.record(job, Product(TINY.values, passes=3), path, LOAD, busy=True)
    with pytest.raises(InputError, match="another landscape"):
        record.record(job, Product({LEVEL: ("basic",)}), path, LOAD, busy=True)


def test_a_busy_machine_is_refused_by_its_load_before_anything_is_begun(job, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    with pytest.raises(SystemExit, match="load average"):
        command.main([str(job), "--output", str(tmp_path / "cpu")])
    assert not (tmp_path / "cpu").exists()
    assert quiet.quiet_load(busy=True) == (99.0, 99.0, 99.0)


@pytest.mark.parametrize("limit", ["OTHERS", "AA_SPREAD"])
def test_a_machine_that_an_aa_check_finds_busy_is_refused_and_nothing_is_recorded(job, tmp_path, monkeypatch, limit):
    monkeypatch.setattr(record, "OTHERS", 2.0)
    monkeypatch.setattr(record, "AA_SPREAD", 1e9)
    monkeypatch.setattr(record, limit, -1.0)
    path = tmp_path / "one.json.gz"
    with pytest.raises(quiet.Busy, match="goes on in quiet"):
        record.record(job, TINY, path, LOAD)
    assert not path.exists()


def recording(**other) -> dict[str, object]:
    """One batch of a product of two, by heart: the other configuration takes 0.8 of the default's time."""
    rows = [
        {
            "id": name,
            "config": config,
            "outcome": "feasible",
            "fingerprint": name,
            "size": 9,
            "part": 0,
            "seconds": {"build": 2.0},
        }
        for name, config in (("d", {}), ("a", {"-a": "on"}))
    ]
    timings = [
        {"id": name, "part": 0, "batch": 0, "at": 1.0, "sessions": [[[value]] * 3]}
        for name, value in (("baseline", 100.0), ("a", 80.0))
    ]
    times = [[0, 0, 0.0, 100.0, 101.0], [0, 1, 0.1, 102.0, 102.0], [1, 0, 0.2, 102.0, 103.0], [1, 1, 0.3, 104.0, 104.0]]
    check = {"sitting": 0, "spread": 0.004, "build_sd": 0.003, "session_sd": 0.01, "others": 0.01, "rows": times}
    return {
        "model": "m",
        "device": {"product": "C", "count": 2, "driver": "6", "compute_capability": "avx2"},
        "versions": {"onnxruntime": "1"},
        "accuracy": {},
        "protocol": {"batch": 8, "passes": 1},
        "knobs": {"-a": ["off", "on"]},
        "default": {"-a": "off"},
        "product": 2,
        "built": 2,
        "seconds": 60.0,
        "lost": [],
        "rows": rows,
        "timings": timings,
        "batches": 1,
        "others": [0.01],
        "noise": [check, check | {"build_sd": 0.004}],
        "sittings": [{"at": "now", "load": [0.1, 0.1, 0.1]}],
    } | other


def test_noise_is_that_of_equal_builds_and_their_sessions(tmp_path):
    write(recording(), tmp_path / "recording-m.json.gz")
    found = from_cpu(tmp_path / "recording-m.json.gz")
    assert found is not None
    assert found.truth(frozenset({Flip("-a", "on")})).log_ratio == pytest.approx(math.log(0.8))
    assert found.noise.build_sd == pytest.approx(math.sqrt((0.003**2 + 0.004**2) / 2), abs=1e-5)
    half = math.log(102 / 100) / 2
    assert found.noise.medians[:2] == pytest.approx((-half, half), abs=1e-4), "the first build's sessions, in the order of time"
    assert found.noise.means[0] == pytest.approx(math.log(101 / 100) - half, abs=1e-4)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({}, "idle"),
        ({"sittings": [{"at": "now", "load": [1.9, 0.1, 0.1]}]}, "busy"),
        ({"others": [0.5]}, "busy"),
        ({"noise": [recording()["noise"][0] | {"spread": 0.05}]}, "busy"),
        ({"noise": [recording()["noise"][0] | {"others": 0.4}]}, "busy"),
    ],
)
def test_a_landscape_says_whether_the_machine_was_idle(tmp_path, other, said):
    write(recording(**other), tmp_path / "recording-m.json.gz")
    found = from_cpu(tmp_path / "recording-m.json.gz")
    assert found is not None
    assert f"the machine was {said}" in found.provenance["about"]


def test_what_is_no_recording_is_named(tmp_path):
    (tmp_path / "odd.json.gz").write_bytes(gzip.compress(json.dumps({}).encode()))
    with pytest.raises(InputError, match=r"odd\.json\.gz"):
        from_cpu(tmp_path / "odd.json.gz")


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_every_product_is_of_an_example_and_of_knobs_that_this_backend_has(name):
    job = command.EXAMPLES / f"{name}.yaml"
    assert job.exists()
    chosen = product_of(job)
    space = chosen.space(knob_list(knobs("CPU", 2, None)))
    assert {flip.dimension for flip in space.flips} == chosen.values.keys()
    assert 6 <= len(chosen.values) <= 8
    planned = record.batches(space, chosen.passes)
    size = math.prod(len(values) + 1 for values in chosen.values.values())
    assert sum(len(configs) for _, configs in planned) == chosen.passes * (size - 1)
    assert {} not in [config for _, configs in planned for config in configs]


def test_a_job_without_a_product_is_told_which_have_one():
    with pytest.raises(InputError, match="magika"):
        product_of(Path("other.yaml"))
