import json
from dataclasses import asdict, replace

import pytest
from scipy import stats

from bench import aa, verdict


@pytest.mark.parametrize(("hits", "count"), [(0, 20), (4, 200), (19, 20), (20, 20)])
def test_a_rate_has_clopper_and_pearsons_bounds(hits: int, count: int) -> None:
    found = verdict.rate(k < hits for k in range(count))
    low = stats.beta.ppf(0.025, hits, count - hits + 1) if hits else 0.0
    high = stats.beta.ppf(0.975, hits + 1, count - hits) if hits < count else 1.0
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high))


def test_nothing_is_claimed_of_no_cases() -> None:
    assert (verdict.rate([]).low, verdict.rate([]).high) == (0, 1)


def test_a_final_of_a_given_size_has_that_size_and_counts_its_regret() -> None:
    graph = aa.recorded()[0]
    final = aa.simulate(graph, 0.05, 0.01, seed=3, size=(6, 12))
    assert final.logs.shape == (18, 12)
    assert final.decision.significant
    assert final.decision.published.startswith("candidate")
    assert 0 <= final.regret < 0.02
    missed = aa.simulate(graph, 0.05, 0.5, seed=3, size=(6, 12))
    assert missed.decision.published.startswith("baseline")
    assert missed.regret > 0.04, "a default engine was published though the candidate's were 5 % faster"


def test_a_cell_that_misses_its_promises_is_named_and_one_that_keeps_them_is_not() -> None:
    graph = aa.recorded()[0]
    cell = verdict.cell(graph, 0.01, 0.05, finals=5, size=(5, 12))
    assert cell.proven.hits == 5
    kept = replace(cell, route_covered=verdict.rate([True] * 99), bytes_covered=verdict.rate([True] * 99), bytes_bias_proven=0.0)
    assert verdict.losing([kept]) == []
    bad = replace(
        kept,
        true_gain=0.0,
        proven=verdict.rate([True] * 5 + [False] * 195),
        bytes_covered=verdict.rate([False] * 99),
        regret=0.02,
    )
    [false, uncovered, regret] = verdict.losing([bad])
    assert "5 of 200 are false winners" in false
    assert "interval of the bytes covers 0.0%" in uncovered
    assert "regret 2.00%" in regret


def test_trtexecs_rule_finds_a_huge_gain_and_a_winner_where_all_are_equal() -> None:
    graph = aa.recorded()[0]
    huge = verdict.trtexec(graph, 0.5, 20)
    assert huge.right.hits == 20
    equal = verdict.trtexec(graph, 0.0, 20)
    assert equal.winners.share > 0.9
    assert equal.right.hits == 0
    assert equal.bias > 0.005


def test_a_document_gives_back_the_cells_that_it_was_made_from() -> None:
    graph = aa.recorded()[0]
    for size in ((5, 12), None):
        cell = verdict.cell(graph, 0.01, 0.03, finals=3, size=size)
        assert verdict._cell(json.loads(json.dumps(asdict(cell)))) == cell
