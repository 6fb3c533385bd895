"""Plans, seals and the pick: pure functions of the sealed results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from campaign_records import discovery_record, result_record, run_record
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner_job.api.base import InputError, digest_of
from tuner_job.api.measurement import BuilderSetting
from tuner_job.api.messages import PlannedTrial, PlanRecord, ResultRecord, RunRecord, own_first
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.leaders import leaders
from tuner_job.campaign.rounds import (
    Fold,
    default_fingerprints,
    device_seconds,
    first_plan,
    next_plan,
    observations,
    reserved_seconds,
    seal,
    space_of,
)
from tuner_job.search.posterior import Posterior
from tuner_job.search.rounds import History, Proposal
from tuner_job.search.singles import OneAtATime
from tuner_job.search.space import Flip, Space

Answer = Callable[[RunRecord, PlannedTrial], ResultRecord | None]


def play(run: RunRecord, answer: Answer, *, most_rounds: int = 60) -> tuple[Fold, PlanRecord]:
    """Run all explore rounds; a trial whose answer is None is left without a result."""
    discovery = discovery_record(run)
    fold, plan = Fold(run, discovery, (), (), {}), first_plan(run, discovery)
    for _ in range(most_rounds):
        if plan.stage == "final":
            return fold, plan
        results = {t.trial: r for t in plan.trials if (r := answer(run, t)) is not None}
        sealed = seal(run, plan, {trial: digest_of(r.to_json()) for trial, r in results.items()})
        fold = Fold(run, discovery, (*fold.plans, plan), (*fold.seals, sealed), {**fold.results, **results})
        plan = next_plan(fold)
    raise AssertionError("exploring does not end")


def faster(run: RunRecord, planned: PlannedTrial) -> ResultRecord:
    return result_record(run, planned, {"-k2=off": 0.8, "-k5=off": 0.9, "-k1=off": 1.3})


def test_every_round_is_dealt_into_shards_and_steals_the_others_last() -> None:
    run = run_record(shards=3)
    plan = first_plan(run, discovery_record(run))
    assert {trial.shard for trial in plan.trials} == {0, 1, 2}
    order = list(own_first(plan.trials, 1, 3))
    own = [trial for trial in plan.trials if trial.shard == 1]
    assert order[: len(own)] == own
    assert sorted(t.trial for t in order) == sorted(t.trial for t in plan.trials)
    assert order[len(own)].trial == max(t.trial for t in plan.trials if t.shard != 1)


@pytest.mark.parametrize("strategy", ["OneAtATime", "Mixed", "Full", "Adaptive"])
def test_two_planners_write_the_same_bytes(strategy: str) -> None:
    run = run_record(strategy, max_trials=12, options={"sample": "true"} if strategy == "Full" else {})
    if strategy == "Full":
        run = run_record("Expression", expression="-k0=[on|off] -k1=[on|off]")
    fold, final = play(run, faster)
    for count in range(len(fold.seals) + 1):
        part = Fold(run, fold.discovery, fold.plans[:count], fold.seals[:count], fold.results)
        again = Fold(run, discovery_record(run), fold.plans[:count], fold.seals[:count], dict(reversed(fold.results.items())))
        one, other = next_plan(part), next_plan(again)
        assert one.to_json() == other.to_json()
    assert final.stage == "final"


def test_the_fastest_feasible_route_is_picked_for_the_final() -> None:
    _, final = play(run_record("OneAtATime"), faster)
    assert final.pick is not None
    assert final.pick.route == "-k2=off"
    assert final.pick_gain == pytest.approx(0.2, abs=0.02)


def test_nothing_is_picked_when_nothing_is_faster() -> None:
    _, final = play(run_record("OneAtATime"), lambda run, t: result_record(run, t, {f"-k{i}=off": 1.1 for i in range(8)}))
    assert final.pick is None


def test_a_route_that_passes_screening_but_not_the_final_threshold_is_not_picked() -> None:
    def answer(run: RunRecord, planned: PlannedTrial) -> ResultRecord:
        return result_record(
            run, planned, {"-k2=off": 0.8, "-k5=off": 0.9}, loss=0.02 if "-k2" in planned.candidate.route else 0.0
        )

    _, final = play(run_record("OneAtATime", threshold=0.01), answer)
    assert final.pick is not None
    assert final.pick.route == "-k5=off"


def test_all_failed_ends_with_nothing_to_prove() -> None:
    _, final = play(run_record("Adaptive", max_trials=10), lambda run, t: result_record(run, t, outcome=Outcome.CRASHED))
    assert final.stage == "final"
    assert final.pick is None


def test_routes_to_start_with_are_the_first_trials() -> None:
    run = run_record("OneAtATime", start_with=("-k3=off -k4=off", "-k1=off"))
    plan = first_plan(run, discovery_record(run))
    assert [t.candidate.route for t in plan.trials[:2]] == ["-k3=off -k4=off", "-k1=off"]
    fold, _ = play(run, faster)
    routes = [t.candidate.route for p in fold.plans for t in p.trials]
    assert len(routes) == len(set(routes)), "a route that was started with is not tried again"


def test_a_route_to_start_with_that_is_no_route_is_refused() -> None:
    run = run_record("OneAtATime", start_with=("-k33=off",))
    with pytest.raises(InputError, match=r"search\.startWith.*-k33"):
        first_plan(run, discovery_record(run))


def test_trials_without_a_result_at_the_deadline_are_carried_over_under_their_names() -> None:
    run = run_record("Adaptive", max_trials=12)
    discovery = discovery_record(run)
    plan = first_plan(run, discovery)
    late = plan.trials[0]
    results = {t.trial: faster(run, t) for t in plan.trials[1:]}
    sealed = seal(run, plan, {trial: digest_of(r.to_json()) for trial, r in results.items()})
    assert sealed.carried_over == (late.trial,)
    following = next_plan(Fold(run, discovery, (plan,), (sealed,), results))
    assert following.trials[0] == late
    assert late.candidate.id not in {t.candidate.id for t in following.trials[1:] if t.repeat == 0}


def test_out_of_time_goes_to_the_final_with_what_is_known() -> None:
    run = run_record("OneAtATime")
    discovery = discovery_record(run)
    plan = first_plan(run, discovery)
    results = {t.trial: faster(run, t) for t in plan.trials if "-k5" in t.candidate.route}
    sealed = seal(run, plan, {trial: digest_of(r.to_json()) for trial, r in results.items()})
    final = next_plan(Fold(run, discovery, (plan,), (sealed,), results), over="the deadline has passed")
    assert final.stage == "final"
    assert "deadline" in final.reason
    assert final.pick is not None
    assert final.pick.route == "-k5=off"


def test_a_device_time_budget_keeps_the_finals_share_back() -> None:
    # 4 pilot builds and 15 final builds of 2 s each leave 22 s: 11 trials of 2 s
    run = run_record(
        "Expression",
        expression=" ".join(f"-k{i}=[on|off]" for i in range(5)),
        device_seconds=60.0,
        max_trials=32,
        options={"sample": "true"},
    )
    fold, final = play(run, faster)
    assert sum(len(plan.trials) for plan in fold.plans) == 11
    assert "budget" in final.reason


@settings(max_examples=60, deadline=None)
@given(
    strategy=st.sampled_from(["OneAtATime", "Mixed", "Adaptive"]),
    trials=st.integers(1, 24),
    shards=st.integers(1, 5),
    outcomes=st.lists(st.sampled_from([*Outcome, None]), min_size=1, max_size=12),
)
def test_exploring_ends_within_its_budget_and_repeats_nothing_unplanned(
    strategy: str, trials: int, shards: int, outcomes: list[Outcome | None]
) -> None:
    run = run_record(strategy, shards=shards, max_trials=trials)
    asked: dict[str, int] = {}

    def answer(run: RunRecord, planned: PlannedTrial) -> ResultRecord | None:
        asked[planned.trial] = asked.get(planned.trial, 0) + 1
        outcome = outcomes[sum(map(ord, planned.trial)) % len(outcomes)]
        if outcome is None and asked[planned.trial] == 1:
            return None  # not in time for its round; it is carried over
        return result_record(run, planned, {"-k2=off": 0.8}, outcome=outcome or Outcome.FEASIBLE)

    fold, final = play(run, answer)
    planned = {t.trial: t for plan in fold.plans for t in plan.trials}
    assert len(planned) <= trials
    assert final.stage == "final"
    builds = [(t.candidate.id, t.repeat) for t in planned.values()]
    assert len(builds) == len(set(builds))
    assert {item.trial for sealed in fold.seals for item in sealed.folded} == set(planned), "every planned trial ends"


def test_a_misspelt_knob_is_answered_with_the_nearest_name() -> None:
    run = run_record("OneAtATime", include=("-kk7",))
    with pytest.raises(InputError, match=r"-kk7.*did you mean.*-k7|-kk7.*nearest.*-k7"):
        space_of(run.inputs, discovery_record(run).knobs)


def with_constraints(run: RunRecord, **limits: float) -> RunRecord:
    return run.model_copy(update={"inputs": run.inputs.model_copy(update={"constraints": limits})})


def test_a_route_that_breaks_a_constraint_is_not_picked() -> None:
    def answer(run: RunRecord, planned: PlannedTrial) -> ResultRecord:
        found = result_record(run, planned, {"-k2=off": 0.8, "-k5=off": 0.9})
        assert found.engine is not None
        size = 1000 if "-k2" in planned.candidate.route else 10
        return found.model_copy(update={"engine": found.engine.model_copy(update={"size": size})})

    _, final = play(with_constraints(run_record("OneAtATime"), EngineSize=100), answer)
    assert final.pick is not None
    assert final.pick.route == "-k5=off"
    _, final = play(with_constraints(run_record("OneAtATime"), LatencyP50=0.7e-3), answer)
    assert final.pick is None


def test_a_route_that_only_rebuilds_the_default_engine_is_not_picked() -> None:
    def answer(run: RunRecord, planned: PlannedTrial) -> ResultRecord:
        found = result_record(run, planned, {"-k2=off": 0.98})
        assert found.engine is not None
        same = "-k2" in planned.candidate.route
        return found.model_copy(
            update={"engine": found.engine.model_copy(update={"fingerprint": "base"}) if same else found.engine}
        )

    _, final = play(run_record("OneAtATime"), answer)
    assert final.pick is None


def test_more_routes_to_start_with_than_a_round_holds_are_all_tried_first() -> None:
    wished = tuple(f"-k{i}=off -k{j}=off" for i in range(4) for j in range(i + 1, 8))
    run = run_record("Adaptive", max_trials=30, start_with=wished)
    fold, _ = play(run, faster)
    routes = [t.candidate.route for p in fold.plans for t in p.trials]
    assert routes[: len(wished)] == list(wished)


@pytest.mark.parametrize("greed", [0, 50])
def test_a_plug_in_that_ignores_the_budget_cannot_break_it(greed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def next_round(self: object, space: Space, *_: object) -> tuple[Proposal, ...]:
        flips = [Flip(f"-k{k % 8}", "off") for k in range(greed)]
        return tuple(Proposal(space.candidate([flip]), "greed") for flip in flips)

    monkeypatch.setattr(OneAtATime, "next_round", next_round)
    fold, final = play(run_record("OneAtATime", max_trials=20), faster)
    assert sum(len(plan.trials) for plan in fold.plans) <= 20
    assert final.reason


def test_device_time_counts_controls_lost_tries_and_convictions() -> None:
    run = run_record()
    discovery = discovery_record(run)  # 4 pilot builds of 2 s, and 2 s a trial
    planned = first_plan(run, discovery).trials[0]
    whole = result_record(run, planned, seconds=3.0)
    dear = whole.model_copy(update={"seconds": {"total": 3.0, "build": 1.0, "controls": 0.5, "lost": 4.0}})
    convicted = whole.model_copy(update={"seconds": {}, "convicted": True, "tries": 3})
    assert device_seconds([], discovery) == 8.0
    assert device_seconds([whole], discovery) == 11.0
    assert device_seconds([dear], discovery) == 15.5
    assert device_seconds([convicted], discovery) == 14.0


def test_trials_that_are_carried_over_keep_their_share_of_the_device_time() -> None:
    run = run_record("Adaptive", device_seconds=100.0, max_trials=40)
    discovery = discovery_record(run)
    plan = first_plan(run, discovery)
    nothing = seal(run, plan, {})
    following = next_plan(Fold(run, discovery, (plan,), (nothing,), {}))
    # 8 s for the pilot and 30 s for the final leave 62 s: 31 trials of 2 s, planned ones included
    assert len({t.trial for t in (*plan.trials, *following.trials)}) <= 31


def test_a_device_time_budget_that_discover_and_the_final_use_up_is_bad_input() -> None:
    run = run_record("OneAtATime", device_seconds=38.0)  # the pilot took 8 s, the final needs 30 s
    with pytest.raises(InputError, match="gpuSeconds: 38 leaves nothing"):
        first_plan(run, discovery_record(run))


def test_every_plan_after_the_first_names_the_leader_of_what_is_sealed() -> None:
    fold, final = play(run_record("OneAtATime"), faster)
    assert fold.plans[0].leader is None
    for count, plan in enumerate((*fold.plans, final)[1:], 1):
        sealed = [fold.results[item.trial] for one in fold.seals[:count] for item in one.folded]
        best = leaders(sealed, fold.discovery, "LatencyP50")[0]
        assert plan.leader is not None
        assert (plan.leader.candidate, plan.leader.gain) == (best.candidate, best.gain)
    assert final.leader is not None
    assert final.leader.candidate.route == "-k2=off"
    assert final.leader.gain == pytest.approx(0.2, abs=0.02)


def test_every_plan_counts_how_the_trials_of_the_sealed_rounds_ended() -> None:
    fold, final = play(run_record("OneAtATime"), faster)
    assert fold.plans[0].outcomes == {}
    for count, plan in enumerate((*fold.plans, final)[1:], 1):
        sealed = [fold.results[item.trial] for one in fold.seals[:count] for item in one.folded]
        assert sum(plan.outcomes.values()) == len(sealed)
        assert plan.outcomes.get("feasible", 0) == sum(one.outcome is Outcome.FEASIBLE for one in sealed)
        assert plan.cached == sum(one.cached for one in sealed)
    assert sum(final.outcomes.values()) == len(fold.results)


def test_only_what_is_feasible_leads() -> None:
    def answer(run: RunRecord, planned: PlannedTrial) -> ResultRecord:
        found = faster(run, planned)
        wrong = "-k2" in planned.candidate.route
        return found.model_copy(update={"outcome": Outcome.INFEASIBLE}) if wrong else found

    _, final = play(run_record("OneAtATime"), answer)
    assert final.leader is not None
    assert final.leader.candidate.route == "-k5=off"
    _, final = play(run_record("OneAtATime"), lambda run, t: result_record(run, t, outcome=Outcome.CRASHED))
    assert final.leader is None


def test_of_equal_leaders_the_first_trial_leads_in_whatever_order_results_are_read() -> None:
    run = run_record("OneAtATime")
    discovery = discovery_record(run)
    one, other = (result_record(run, trial) for trial in first_plan(run, discovery).trials[:2])
    same = other.model_copy(update={"timing": one.timing})
    assert leaders([one, same], discovery, "LatencyP50") == leaders([same, one], discovery, "LatencyP50")
    assert leaders([same, one], discovery, "LatencyP50")[0].trial == one.trial


def test_the_budget_keeps_back_what_the_final_needs() -> None:
    run = run_record(device_seconds=100.0)
    assert reserved_seconds(run.inputs, discovery_record(run)) == 30.0
    assert reserved_seconds(run_record().inputs, discovery_record(run)) == 0.0


def test_timings_are_pooled_only_by_fingerprints_that_discover_confirmed() -> None:
    """Two routes build one engine: confirmed, both are told their mean; not confirmed, each its own number."""

    def fold_of(*, hold: bool) -> Fold:
        def answer(run: RunRecord, planned: PlannedTrial) -> ResultRecord:
            found = result_record(run, planned, {"-k1=off": 0.9, "-k2=off": 0.7})
            assert found.engine is not None
            name = "one" if planned.candidate.route in ("-k1=off", "-k2=off") else found.engine.fingerprint
            return found.model_copy(update={"engine": found.engine.model_copy(update={"fingerprint": name})})

        fold, _ = play(run_record("OneAtATime"), answer)
        return replace(fold, discovery=fold.discovery.model_copy(update={"fingerprints_hold": hold}))

    def estimates(fold: Fold) -> dict[str, float]:
        space = space_of(fold.run.inputs, fold.discovery.knobs)
        posterior = Posterior(History(space, observations(fold)))
        return {space.candidate(posterior.named(one.stack)).route: one.estimate for one in posterior.tried}

    pooled, apart = estimates(fold_of(hold=True)), estimates(fold_of(hold=False))
    assert pooled["-k1=off"] == pytest.approx(pooled["-k2=off"], abs=0.01)
    assert apart["-k1=off"] - apart["-k2=off"] > 0.15
    assert default_fingerprints(fold_of(hold=True).discovery) == {"base"}
    assert {one.fingerprint for one in observations(fold_of(hold=False))} == {""}


def test_a_settings_default_is_no_candidate_of_a_plan() -> None:
    run = run_record("OneAtATime", settings={"level": ("3", "5")}, include=("-k0",))
    offered = (BuilderSetting(name="level", low=0, high=5, default="3"),)
    plan = first_plan(run, discovery_record(run).model_copy(update={"settings": offered}))
    assert [trial.candidate.settings for trial in plan.trials if trial.candidate.settings] == [{"level": "5"}]
