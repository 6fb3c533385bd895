"""The landscapes of bench.search: format, what counts as easy, converters, synthetic ones."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from search_landscapes import C2, C3, LOUD, A, B, additive, space, table

from bench.search.convert import from_h200, from_trtexec, impute
from bench.search.landscape import Truth, load, save
from bench.search.synthetic import KNOBS, RECIPES, synthetic
from tuner_job.api.base import InputError
from tuner_job.api.outcome import Outcome
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.routes.route import make_route
from tuner_job.routes.tuning_cache import CacheHeader, CacheRow, write_tuning_cache
from tuner_job.search.space import Flip

OK, REFUSED = Outcome.FEASIBLE, Outcome.REFUSED


def test_a_table_survives_the_file(tmp_path):
    rows = {
        frozenset(): Truth(OK, 0.0, "f", 1.5),
        frozenset({A}): Truth(OK, -0.25, "g", 2.0, imputed=True),
        frozenset({A, C3}): Truth(REFUSED, None, "", 0.5),
    }
    before = table(rows, LOUD)
    save(before, tmp_path / "one.json.gz")
    after = load(tmp_path / "one.json.gz")
    assert after.rows == rows
    assert after.noise == LOUD
    assert after.space.flips == before.space.flips
    assert (after.name, after.kind, after.unrecorded, after.provenance) == (
        "by-heart",
        "recorded",
        "unsupported",
        before.provenance,
    )
    save(after, tmp_path / "two.json.gz")
    assert (tmp_path / "two.json.gz").read_bytes() == (tmp_path / "one.json.gz").read_bytes()


@pytest.mark.parametrize("name", ["synthetic-family", "synthetic-settings", "synthetic-rescued"])
def test_a_rule_survives_the_file(tmp_path, name):
    before = synthetic(name, 3)
    save(before, tmp_path / "one.json.gz")
    after = load(tmp_path / "one.json.gz")
    assert after.best == before.best
    rng = np.random.default_rng(0)
    flips = before.space.flips
    for _ in range(50):
        stack = {flip.dimension: flip for flip in (flips[i] for i in rng.integers(len(flips), size=6))}
        chosen = frozenset(stack.values())
        assert after.truth(chosen) == before.truth(chosen)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", "no landscape can be read"),
        (gzip.compress(b"{}"), "not a trtfleet-landscape file"),
        (gzip.compress(b'{"format":"trtfleet-landscape","version":99}'), "version 99"),
        (gzip.compress(b'{"format":"trtfleet-landscape","version":1}'), "KeyError"),
    ],
)
def test_a_file_that_is_none_is_named_with_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "odd.json.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load(path)
    assert "odd.json.gz" in str(caught.value)


def test_easy_is_where_one_flip_has_95_percent_of_the_gain():
    assert additive({A: -0.095, B: -0.005}).easy
    assert not additive({A: -0.094, B: -0.006}).easy
    assert additive({A: -0.001}).easy, "nothing to find"
    assert additive({A: 0.1}).easy, "nothing is faster"


def test_shares_are_of_true_values_and_nothing_returned_is_nothing():
    where = additive({A: -0.3, B: -0.1, C2: 0.2}, {C3: REFUSED})
    assert where.best == (frozenset({A, B}), pytest.approx(-0.4))
    assert where.share(frozenset({A})) == pytest.approx(0.75)
    assert where.share(frozenset({C2})) == pytest.approx(-0.5), "a slower one counts against its player"
    assert where.share(None) == where.share(frozenset()) == where.share(frozenset({C3})) == 0.0
    assert where.share(frozenset({A, Flip("-b", "off")})) == pytest.approx(0.75), "a default that is written out"


def test_what_is_not_recorded_is_unsupported_and_an_imputed_row_is_never_the_best():
    where = table({frozenset(): Truth(OK, 0.0), frozenset({A}): Truth(OK, -0.1), frozenset({B}): Truth(OK, -0.9, imputed=True)})
    assert where.truth(frozenset({C2})).outcome is Outcome.UNSUPPORTED
    assert where.best == (frozenset({A}), -0.1)
    assert where.product is None


def test_missing_rows_of_a_product_are_imputed_and_marked_where_the_others_predict_them():
    whole = additive({A: -0.3, B: -0.1, C2: 0.2, C3: -0.15})
    gone = frozenset({A, C3})
    rows = {flips: row for flips, row in whole.rows.items() if flips != gone}
    full, how = impute(space(), rows)
    assert "1 rows are imputed" in how
    assert full[gone].imputed
    assert full[gone].log_ratio == pytest.approx(-0.45, abs=0.1)
    assert not any(full[flips].imputed for flips in rows)


def test_nothing_is_imputed_from_rows_that_predict_nothing():
    rng = np.random.default_rng(0)
    rows = {flips: replace(row, log_ratio=float(rng.normal())) for flips, row in additive({}).rows.items()}
    rows.pop(frozenset({A}))
    full, how = impute(space(), rows)
    assert "unsupported" in how
    assert full == rows


def h200_document() -> dict[str, object]:
    """Two parts, in the second of which everything takes twice as long; `-b` does nothing and has the default's engine."""
    rows, timings = [], []
    for part, slow in ((0, 1.0), (1, 2.0)):
        timings.append({"id": "baseline", "batch": 0, "part": part, "at": 0.0, "sessions": [[[100.0 * slow] * 3] * 2]})
        for name, config, print_, us in (
            ("d", {}, "p", 100.0),
            ("a", {"-a": "on"}, "q", 80.0),
            ("b", {"-b": "on"}, "p", 101.0),
            ("ab", {"-a": "on", "-b": "on"}, "q", 80.0),
        ):
            rows.append(
                {
                    "id": name,
                    "config": config,
                    "outcome": "feasible",
                    "fingerprint": print_,
                    "seconds": {"build": 2.0, "load": 1.0},
                }
            )
            timings.append({"id": name, "batch": 0, "part": part, "at": 1.0, "sessions": [[[us * slow] * 3] * 2]})
    return {
        "model": "m",
        "device": {"product": "GPU", "driver": "1"},
        "versions": {},
        "knobs": {"-a": ["off", "on"], "-b": ["off", "on"]},
        "product": 4,
        "rows": rows,
        "timings": timings,
    }


def test_a_recorded_product_is_read_batch_by_batch_and_equal_engines_are_one(tmp_path):
    path = tmp_path / "landscape-m.json.gz"
    path.write_bytes(gzip.compress(json.dumps(h200_document()).encode()))
    where = from_h200(path)
    assert where.name == "h200-m"
    assert where.product == 4
    assert where.truth(frozenset({A})).log_ratio == pytest.approx(np.log(0.8))
    assert where.truth(frozenset({B})).log_ratio == 0.0, "the default's engine"
    assert where.truth(frozenset({A})).build_seconds == 3.0
    assert where.easy


def test_a_tuning_cache_becomes_a_landscape(tmp_path):
    knobs = parse_knob_list(KNOBS.read_text())
    first, second = knobs.knobs[0], knobs.knobs[1]

    def row(number, changed, milliseconds, crash=False):
        route = make_route({k.name: changed.get(k.name, k.default) for k in (first, second)}, knobs)
        return CacheRow(number, 1, route, crash=crash, gpu_time=milliseconds)

    other = {k.name: next(v for v in k.values or () if v != k.default) for k in (first, second)}
    rows = [
        row(0, {}, 2.0),
        row(1, {second.name: other[second.name]}, None, crash=True),
        row(2, {first.name: other[first.name]}, 1.0),
    ]
    expression = f"{first.name}=[{'|'.join(first.values or ())}]"
    (tmp_path / "best.json").write_text(write_tuning_cache(CacheHeader(tuning_expr=expression), rows))
    where = from_trtexec(tmp_path / "best.json", KNOBS)
    assert where.truth(frozenset({Flip(first.name, other[first.name])})).log_ratio == pytest.approx(np.log(0.5))
    assert where.truth(frozenset({Flip(second.name, other[second.name])})).outcome is Outcome.CRASHED
    assert where.truth(frozenset({Flip(k, v) for k, v in other.items()})).outcome is Outcome.UNSUPPORTED


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_synthetic_landscape_is_drawn_by_its_seed_alone_and_has_something_to_find(name):
    one, again, other = synthetic(name, 1), synthetic(name, 1), synthetic(name, 2)
    assert one.planted is not None
    assert again.planted is not None
    assert one.planted.to_document() == again.planted.to_document()
    assert other.planted is not None
    assert one.planted.to_document() != other.planted.to_document()
    assert one.best[1] < -0.02
    assert one.truth(one.best[0]).outcome is OK
    assert not one.easy
    assert one.one_at_a_time == 1 + len(one.space.flips) >= 208


def test_a_child_sleeps_without_its_parent_and_has_then_the_default_engine():
    where = synthetic("synthetic-family", 0)
    assert where.planted is not None
    assert len(where.planted.woken) >= 8
    for child, parent in where.planted.woken.items():
        assert where.planted.fingerprint(frozenset({child})) == where.planted.fingerprint(frozenset())
        assert where.planted.fingerprint(frozenset({child, parent})) != where.planted.fingerprint(frozenset({parent}))
        assert child.dimension.startswith(f"{parent.dimension}:")


def test_a_rescued_flip_fails_alone_and_not_beside_its_mate_and_is_part_of_the_best():
    where = synthetic("synthetic-rescued", 0)
    assert where.planted is not None
    assert where.planted.rescued
    for flip, mate in where.planted.rescued.items():
        assert where.truth(frozenset({flip})).outcome is not OK
        assert where.truth(frozenset({flip, mate})).outcome is OK
    assert where.best[0] & where.planted.rescued.keys()
