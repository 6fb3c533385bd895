import json
import math

import pytest
from report_runs import BASE, RUN, Run, explored, knob, losses, proven, timing

from tuner_job.api.base import InputError
from tuner_job.api.beliefs import Beliefs, Start
from tuner_job.api.messages import trial_id
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.reader import RunReader
from tuner_job.report.data import as_json, page_of


def test_a_run_that_is_not_there_is_one_clear_error():
    with pytest.raises(InputError, match="no run ffff"):
        page_of(RunReader(Run().store, "f" * 20))


def test_a_run_that_was_only_started_says_that_it_is_discovering():
    page = page_of(Run().reader)
    assert page.story.state == "running"
    assert page.story.headline == "Discovering"
    assert (page.trials, page.leaders, page.effects, page.noise) == ((), (), (), None)


def test_leaders_are_feasible_candidates_with_the_fastest_first():
    page = page_of(explored().reader)
    assert page.leaders[0].candidate == "-knob0=on"
    assert page.leaders[-1].candidate == "-knob1=on"
    assert len(page.leaders) == 5
    best = page.leaders[0].pooled
    assert best.gain == pytest.approx(0.2, abs=0.02)
    assert best.seconds == pytest.approx(0.8 * BASE, rel=0.02)
    assert best.gain_low < best.gain < best.gain_high
    assert best.seconds_low < best.seconds < best.seconds_high


def test_builds_of_one_candidate_are_pooled_into_a_narrower_interval():
    run = Run().discover().plan(1, [knob(0), knob(0), knob(0), knob(0)])
    for k in range(4):
        run.result(trial_id(1, k), knob(0), -0.1)
    (row,) = page_of(run.reader).leaders
    assert len(row.builds) == 4
    width = row.pooled.gain_high - row.pooled.gain_low
    assert width < 0.6 * (row.builds[0].gain_high - row.builds[0].gain_low)


def test_every_finished_trial_but_the_picks_is_listed_once_among_those_that_lost():
    page = page_of(proven().reader)
    listed = [trial for row in page.lost for trial in row.trials]
    assert sorted(listed) == [trial_id(1, k) for k in range(1, 8)]
    assert {(row.outcome, len(row.trials)) for row in page.lost} == {
        ("feasible", 3), ("feasible", 1), ("refused", 2), ("infeasible", 1),
    }  # fmt: skip


def test_reasons_that_differ_in_numbers_alone_are_one_with_the_first_ones_log():
    (refused,) = [row for row in page_of(explored().reader).lost if row.outcome == Outcome.REFUSED]
    assert refused.reason == "builder said no to layer 17"
    assert refused.log == "log 5"


def test_a_feasible_trial_over_the_final_threshold_is_told_apart():
    run = Run().discover().plan(1, [knob(0)]).result(trial_id(1, 0), knob(0), -0.2, losses=losses(2e-3))
    page = page_of(run.reader)
    assert page.trials[0].passes_final is False
    assert page.leaders[0].passes_final is False
    assert page.lost[0].reason == "passes the screening threshold but not the final one"


def test_planned_trials_are_shown_before_they_finish():
    run = Run().discover().plan(1, [knob(0), knob(1)]).result(trial_id(1, 1), knob(1), 0.0)
    page = page_of(run.reader)
    assert [(row.outcome, row.order) for row in page.trials] == [("planned", None), ("feasible", 1)]
    assert page.finished == 1
    assert "Exploring: 1 trial finished" in page.story.headline


def test_a_trial_that_is_carried_over_is_one_trial():
    run = Run().discover().plan(1, [knob(0), knob(1)]).result(trial_id(1, 0), knob(0), 0.0)
    run.seal(1, [trial_id(1, 0)], carried=(trial_id(1, 1),))
    assert len(page_of(run.reader).trials) == 2
    assert page_of(run.reader).rounds[0].carried_over == 1


def test_a_pilot_without_a_usable_session_is_a_problem_on_the_page_not_an_error():
    run = Run().discover(throttled=True).plan(1, [knob(0)]).result(trial_id(1, 0), knob(0), outcome=Outcome.CRASHED, losses=None)
    page = page_of(run.reader)
    assert page.baseline_seconds is None
    assert "throttled" in page.problems[0]
    assert page.trials[0].outcome == "crashed"


def test_a_percentile_with_too_few_samples_is_a_problem_on_the_page_not_an_error():
    page = page_of(explored(metric="LatencyP99").reader)
    assert any("LatencyP99" in problem for problem in page.problems)
    assert len(page.trials) == 8


def test_throughput_gains_count_more_work_not_less_time():
    page = page_of(explored(metric="Throughput").reader)
    assert page.leaders[0].pooled.gain == pytest.approx(0.25, abs=0.02)
    assert page.higher_is_better


def test_a_throttled_result_is_not_timed():
    run = Run().discover().plan(1, [knob(0)])
    run.result(trial_id(1, 0), knob(0), timing=(timing(0.0, throttled=True),))
    page = page_of(run.reader)
    assert page.trials[0].estimate is None
    assert page.lost[0].reason == "has no usable timing"
    assert page.noise is not None
    assert page.noise.throttled == 5


def test_both_claims_of_a_verdict_are_told_apart_with_their_intervals():
    story = page_of(proven().reader).story
    assert story.state == "proven"
    assert story.headline == "Proven: 20.0% less latency"
    route, engine = story.claims
    assert "That is proven (one-sided p = 0.001)" in route.text
    assert "a build of the winner: 0.8 ms against 1 ms of the median default build" in engine.text
    assert route.interval is not None
    assert engine.interval is not None
    assert "5 candidate and 10 default builds" in story.power


@pytest.mark.parametrize(
    ("reason", "headline"),
    [
        ("NoSignificantWin", "No significant win"),
        ("AccuracyFailedInFinal", "The pick failed its accuracy check"),
        ("BuildFailedInFinal", "The pick could not be built again"),
    ],
)
def test_a_final_without_a_winner_says_why_and_that_a_default_is_published(reason: str, headline: str):
    run = explored().final_plan(2, knob(0)).verdict(knob(0), significant=False, gain=0.002, reason=reason)
    story = page_of(run.reader).story
    assert story.state == "refuted"
    assert story.headline == headline
    assert "A default engine is published" in story.lead


def test_a_run_without_any_candidate_makes_no_claim_about_a_route():
    run = explored().final_plan(2, None).verdict(None, significant=False, gain=0.001, reason="NoCandidate")
    page = page_of(run.reader)
    assert page.story.route == ""
    assert page.story.claims[0].text.startswith("No claim")
    assert page.story.claims[0].interval is None


def test_the_final_is_shown_by_build_with_the_fastest_first():
    noise = page_of(proven().reader).noise
    assert noise is not None
    assert [build.is_candidate for build in noise.final] == [True] * 5 + [False] * 10
    assert noise.final[0].median == pytest.approx(-0.2, abs=0.01)


def test_controls_follow_their_worker_in_the_order_of_the_run():
    noise = page_of(explored().reader).noise
    assert noise is not None
    (worker,) = noise.workers
    assert worker.after == (1, 5)
    assert all(abs(value) < 0.02 for value in worker.values)


def test_warnings_about_references_reach_the_page():
    page = page_of(Run().discover(warnings=("there is only one sample",)).reader)
    assert page.story.warnings == ("there is only one sample",)


def test_whose_results_a_warm_start_read_and_what_was_tried_first_are_on_the_page():
    start = Start(flips={"-knob0": "on", "setting:optimizationLevel": "5"}, origin="this model on NVIDIA L4, run 12")
    beliefs = Beliefs(relatives=("this model on NVIDIA L4, run 12",), starts=(start,))
    sections = dict(page_of(Run().discover(beliefs=beliefs).reader).story.sections)
    assert [fact.value for fact in sections["Warm start"]] == [
        "this model on NVIDIA L4, run 12",
        "-knob0=on optimizationLevel=5 (from the best of this model on NVIDIA L4, run 12)",
    ]
    assert "Warm start" not in dict(page_of(Run().discover().reader).story.sections)


def test_digests_and_seed_that_repeat_the_run_are_on_the_page():
    story = page_of(proven().reader).story
    values = {fact.value for _, facts in story.sections for fact in facts}
    run = proven().run
    assert {run.inputs_digest, RUN, str(run.seed), f"{1:064x}", f"{4:064x}"} <= values
    assert json.loads(story.inputs)["accuracy"]["metric"] == "l1"


def test_a_page_is_json_without_a_number_that_is_none():
    text = json.dumps(as_json(page_of(proven().reader)), allow_nan=False)
    page = json.loads(text)
    assert page["leaders"][0]["pooled"]["gainLow"] < 0.2
    assert page["story"]["claims"][0]["interval"]["confidence"] == 0.95
    assert math.isfinite(page["baselineSeconds"])


def test_a_fast_trial_that_breaks_a_constraint_lost_for_that():
    page = page_of(explored(constraints={"LatencyP50": 1e-6}).final_plan(2, None).reader)
    assert [row.reason for row in page.lost if row.outcome == "feasible"] == ["breaks a constraint"]
