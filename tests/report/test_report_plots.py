"""A picture never costs anybody a report (a comparison tool once died in its plot step because the difference was zero)."""

from dataclasses import replace

import numpy as np
import pytest
from report_runs import Run, explored, knob, losses, timing

from tuner_job.api.messages import trial_id
from tuner_job.report import plots
from tuner_job.report.canvas import limits
from tuner_job.report.data import page_of


def identical() -> Run:
    """No variance anywhere, no loss, every trial exactly like the default."""
    run = Run().discover(noise=0.0, loss=0.0).plan(1, [knob(k) for k in range(3)])
    for k in range(3):
        run.result(trial_id(1, k), knob(k), losses=losses(0.0), timing=(timing(0.0, noise=0.0),))
    return run


def test_no_difference_at_all_is_drawn_like_any_other():
    drawn = plots.all_plots(page_of(identical().reader))
    assert all(drawn[name].svg for name in ("leaders", "progress", "effects", "accuracy", "pilot", "workers"))
    assert "no loss at all" in drawn["accuracy"].svg


def test_one_trial_is_enough():
    run = Run().discover().plan(1, [knob(0)]).result(trial_id(1, 0), knob(0), -0.1)
    drawn = plots.all_plots(page_of(run.reader))
    assert [name for name, plot in drawn.items() if plot.missing] == ["final", "layers"]


def test_an_empty_run_says_why_there_is_nothing_to_see():
    drawn = plots.all_plots(page_of(Run().reader))
    assert all(plot.missing.endswith(".") and not plot.svg for plot in drawn.values())
    assert not any("could not be drawn" in plot.missing for plot in drawn.values())


def test_a_plot_that_fails_leaves_a_sentence_and_the_others():
    page = page_of(explored().reader)
    assert page.noise is not None
    broken = replace(page, trials=(), effects=(), leaders=(), noise=replace(page.noise, pilot=(object(),)))  # type: ignore[arg-type]
    drawn = plots.all_plots(broken)
    assert "could not be drawn (AttributeError" in drawn["pilot"].missing
    assert drawn["workers"].svg


def test_dollars_in_a_route_are_no_formula():
    run = Run().discover().plan(1, [knob(0, "$\\frac{1}")]).result(trial_id(1, 0), knob(0, "$\\frac{1}"), -0.1)
    assert "-knob0=$\\frac{1}" in plots.all_plots(page_of(run.reader))["leaders"].svg


def test_a_very_slow_trial_does_not_squeeze_the_others_flat():
    assert limits(np.array([0.8, 1.0, 1.0, 1.01, 43.0])) == (0.8, pytest.approx(1.61))


def test_the_same_records_make_the_same_drawing():
    first, second = (plots.all_plots(page_of(Run().discover().reader))["pilot"] for _ in range(2))
    assert first.svg
    assert first == second
