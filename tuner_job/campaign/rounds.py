"""From sealed results to the next plan: a pure, seeded function, so that any two planners write the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner_job.accuracy.gate import judge
from tuner_job.api.base import InputError
from tuner_job.api.inputs import AccuracyInput, RunInputs
from tuner_job.api.measurement import BASELINE, BuilderSetting, Candidate
from tuner_job.api.messages import (
    DISCOVER,
    DiscoveryRecord,
    PlanLeader,
    PlannedTrial,
    PlanRecord,
    ResultRecord,
    RunRecord,
    SealRecord,
    trial_id,
)
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.beliefs import origins_of, prior_of
from tuner_job.campaign.leaders import leaders
from tuner_job.measure.constraints import broken_by
from tuner_job.measure.controls import Score, scores
from tuner_job.measure.summary import NoUsableSession, TooFewSamples
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.routes.route import parse_route
from tuner_job.routes.select import select
from tuner_job.routes.settings import select_settings
from tuner_job.search.pick import pick
from tuner_job.search.rounds import Budget, Done, Observation, Proposal, Strategy
from tuner_job.search.space import Space
from tuner_job.search.strategy import strategy

FINAL_BUILDS = 15
"""Builds that a device-time budget keeps back for the final (5 of the candidate, 10 of the default)."""

LARGEST_ROUND = 256

OVERLAP = 0.25
"""Most of a round that may be unknown when the next one is planned; one trial always may. More of it keeps workers busier, and
plans on less."""

MOST_ROUNDS = 999
"""Names of trials have three digits for it."""


@dataclass(frozen=True)
class Fold:
    """Everything that explore knows at one moment: the sealed rounds and what their trials found."""

    run: RunRecord
    discovery: DiscoveryRecord
    plans: tuple[PlanRecord, ...]
    """Explore rounds 1 to n, in order."""
    seals: tuple[SealRecord, ...]
    """Of the same rounds."""
    results: Mapping[str, ResultRecord]
    """Trial → result, for every folded trial."""

    @property
    def folded(self) -> tuple[ResultRecord, ...]:
        return tuple(self.results[item.trial] for seal in self.seals for item in seal.folded)


def space_of(inputs: RunInputs, knob_text: str, offered: Sequence[BuilderSetting] | None = None) -> Space:
    """The knobs, settings and variants to search. Raises InputError for an unknown name or value, with the nearest ones.

    `offered`: the backend's builder settings; None where nobody has asked it yet, and the job is taken at its word.
    """
    knobs = parse_knob_list(knob_text)
    search = inputs.search
    settings = search.settings if offered is None else select_settings(search.settings, offered)
    return Space(
        knobs=knobs,
        choices=select(knobs, search.include, search.exclude, search.values),
        settings=settings,
        variants=tuple(variant.name for variant in inputs.variants),
    )


def first_plan(run: RunRecord, discovery: DiscoveryRecord) -> PlanRecord:
    """Round 1."""
    return next_plan(Fold(run, discovery, (), (), {}))


def seal(run: RunRecord, plan: PlanRecord, digests: Mapping[str, str]) -> SealRecord:
    """Close a round over the results that exist; `digests` maps trial → digest of its result record."""
    return SealRecord.model_validate(
        {
            "run": run.run,
            "round": plan.round,
            "folded": [{"trial": t.trial, "digest": digests[t.trial]} for t in plan.trials if t.trial in digests],
            "carried_over": [t.trial for t in plan.trials if t.trial not in digests],
        }
    )


def overlaps(run: RunRecord, plan: PlanRecord, elsewhere: int) -> bool:
    """Whether the round may be sealed and the next one planned while `elsewhere` of its trials are in other hands, none free.

    They are carried over, so that nobody waits at the end of a round for its slowest trial. Not before most of it is known, and
    not in a round of fewer trials than workers: its answers are wanted first, or there is nothing left to add.
    """
    eager = getattr(strategy_of(run.inputs), "overlaps", False)  # a plug-in need not say
    return bool(eager) and len(plan.trials) >= run.shards and elsewhere <= max(1, OVERLAP * len(plan.trials))


def next_plan(fold: Fold, *, over: str = "") -> PlanRecord:
    """The plan of the round after the last sealed one: more trials, or the pick for the final.

    `over` says why exploring ends now, whatever the strategy has in mind; empty: it does not.
    Trials that were carried over come first, under their old names. Raises InputError for a `startWith` that is no route, and for
    a budget that ends before the first trial.
    """
    number = len(fold.plans) + 1
    space = space_of(fold.run.inputs, fold.discovery.knobs, fold.discovery.settings)
    space = replace(space, prior=prior_of(fold.discovery.beliefs, space))
    origins = origins_of(fold.discovery.beliefs, space)
    leader = _leader(fold)
    outcomes = dict(sorted(Counter(result.outcome.value for result in fold.folded).items()))
    cached = sum(result.cached for result in fold.folded)
    carried = _carried(fold)
    answer = Done(over) if over else _proposals(fold, space, carried)
    proposals = () if isinstance(answer, Done) else answer
    if proposals or (carried and not over):
        fresh = tuple(
            PlannedTrial(
                trial=trial_id(number, index),
                candidate=proposal.candidate,
                shard=index % fold.run.shards,
                reason=_with_origin(proposal, origins),
                repeat=proposal.repeat,
            )
            for index, proposal in enumerate(proposals)
        )
        reason = f"{len(fresh)} new trials" + (f", {len(carried)} carried over" if carried else "")
        return PlanRecord(
            run=fold.run.run,
            round=number,
            stage="explore",
            trials=carried + fresh,
            leader=leader,
            outcomes=outcomes,
            cached=cached,
            reason=reason,
        )
    chosen = pick(observations(fold, final_gate=True), space, fold.discovery.build_sd)
    return PlanRecord(
        run=fold.run.run,
        round=number,
        stage="final",
        pick=chosen.candidate if chosen else None,
        pick_gain=chosen.gain if chosen else None,
        leader=leader,
        outcomes=outcomes,
        cached=cached,
        reason=answer.reason if isinstance(answer, Done) else "",
    )


def _with_origin(proposal: Proposal, origins: Mapping[str, str]) -> str:
    origin = origins.get(proposal.candidate.id)
    return f"{proposal.reason}; from the best of {origin}" if origin else proposal.reason


def _leader(fold: Fold) -> PlanLeader | None:
    try:
        best = leaders(fold.folded, fold.discovery, fold.run.inputs.measure.metric)[:1]
    except NoUsableSession:  # nothing to compare with yet; the search says so where it needs it
        return None
    return PlanLeader(candidate=best[0].candidate, gain=best[0].gain) if best else None


def _proposals(fold: Fold, space: Space, carried: Sequence[PlannedTrial]) -> tuple[Proposal, ...] | Done:
    budget = _budget(fold)
    if budget.left == 0 and not fold.plans:
        seconds = fold.discovery.trial_seconds
        raise InputError(
            f"budget.gpuSeconds: {fold.run.inputs.search.device_seconds:g} leaves nothing to explore with: a trial takes about "
            f"{seconds:.3g} s, discover has used {device_seconds((), fold.discovery):.3g} s and the final needs "
            f"{reserved_seconds(fold.run.inputs, fold.discovery):.3g} s",
            reason="BudgetExhausted",
        )
    if budget.left == 0:
        return Done(f"the budget of {budget.trials} trials is used up")
    if len(fold.plans) >= MOST_ROUNDS:
        return Done(f"{MOST_ROUNDS} rounds are the most")
    planned = {trial.candidate.id for plan in fold.plans for trial in plan.trials}
    if wished := [one for one in start_with(fold.run.inputs, space) if one.candidate.id not in planned]:
        return tuple(wished[: budget.next_round])
    pending = [trial.candidate for trial in carried]
    answer = strategy_of(fold.run.inputs).next_round(space, observations(fold), budget, fold.run.seed, pending)
    # A plug-in may ignore the budget, or answer with nothing at all.
    return answer[: budget.next_round] or Done("the strategy proposed nothing") if isinstance(answer, tuple) else answer


def start_with(inputs: RunInputs, space: Space) -> tuple[Proposal, ...]:
    """The routes that the user wants to see before any other. Raises InputError naming the one that is no route."""
    routes = (parse_route(text, space.knobs, f"search.startWith[{k}]") for k, text in enumerate(inputs.search.start_with))
    distinct = dict.fromkeys(str(route) for route in routes if str(route))
    return tuple(Proposal(Candidate(variant=space.base, route=text), "asked for by search.startWith") for text in distinct)


def observations(fold: Fold, *, final_gate: bool = False) -> tuple[Observation, ...]:
    """The search's view of the pilot's default builds and of the folded results, in fold order.

    The default is 0 by definition; its fingerprints tell which routes only rebuild its engine. Fingerprints that discover could
    not confirm are left out, so that nothing is pooled by them. With `final_gate`, whatever could
    not win counts as infeasible: what fails the final threshold, which screening is looser than, and what breaks a constraint.
    """
    folded = fold.folded
    pools = fold.discovery.fingerprints_hold
    by_trial: Mapping[str, Score] = scores(folded, fold.discovery, fold.run.inputs.measure.metric)
    views = [
        Observation(DISCOVER, BASELINE, Outcome.FEASIBLE, 0.0, fold.discovery.build_sd, fingerprint)
        for fingerprint in sorted(default_fingerprints(fold.discovery))
    ]
    for result in folded:
        score = by_trial.get(result.trial)
        view = Observation(
            trial=result.trial,
            candidate=result.candidate,
            outcome=result.outcome,
            log_ratio=score.log_ratio if score else None,
            sd=score.sd if score else None,
            fingerprint=result.engine.fingerprint if result.engine and pools else "",
            seconds=result.seconds.get("total", 0.0),
        )
        if final_gate and result.outcome is Outcome.FEASIBLE and not _could_win(result, fold):
            view = replace(view, outcome=Outcome.INFEASIBLE)
        views.append(view)
    return tuple(views)


def default_fingerprints(discovery: DiscoveryRecord) -> frozenset[str]:
    """Of the engines that are the default's; none where equal fingerprints do not mean equal engines."""
    if not discovery.fingerprints_hold:
        return frozenset()
    return frozenset({build.engine.fingerprint for build in discovery.pilot} - {""})


def _could_win(result: ResultRecord, fold: Fold) -> bool:
    if not passes_final(result, fold.run.inputs.accuracy):
        return False
    try:
        return not broken_by(result, fold.run.inputs.constraints, fold.discovery.cases)
    except (NoUsableSession, TooFewSamples):
        return False


def passes_final(result: ResultRecord, accuracy: AccuracyInput) -> bool:
    """Whether the losses of an explored engine would pass the final gate."""
    return result.losses is not None and judge(result.losses, accuracy.metric, accuracy.threshold)[0]


def device_seconds(results: Sequence[ResultRecord], discovery: DiscoveryRecord) -> float:
    """Device time that the pilot and these results used, with controls and, as one estimated trial each, tries that were lost."""
    spent = sum(build.seconds for build in discovery.pilot)
    for result in results:
        spent += sum(result.seconds.get(part, 0.0) for part in ("total", "controls", "lost"))
        spent += result.tries * discovery.trial_seconds if result.convicted else 0.0
    return spent


def reserved_seconds(inputs: RunInputs, discovery: DiscoveryRecord) -> float:
    """Device seconds that a budget keeps back for the final; 0 without a budget."""
    return FINAL_BUILDS * _per_trial(discovery) if inputs.search.device_seconds > 0 else 0.0


def _per_trial(discovery: DiscoveryRecord) -> float:
    return max(discovery.trial_seconds, 1e-3)


def strategy_of(inputs: RunInputs) -> Strategy:
    """The run's strategy. Raises InputError for an unknown one or a wrong option."""
    options = dict(inputs.search.options)
    if inputs.search.expression:
        options["expression"] = inputs.search.expression
    return strategy(inputs.search.strategy, options)


def _carried(fold: Fold) -> tuple[PlannedTrial, ...]:
    if not fold.seals:
        return ()
    planned = {trial.trial: trial for plan in fold.plans for trial in plan.trials}
    return tuple(planned[trial] for trial in fold.seals[-1].carried_over)


def _budget(fold: Fold) -> Budget:
    search = fold.run.inputs.search
    planned = len({trial.trial for plan in fold.plans for trial in plan.trials})
    trials = search.max_trials
    if search.device_seconds > 0:
        per_trial = _per_trial(fold.discovery)
        reserved = reserved_seconds(fold.run.inputs, fold.discovery)
        carried = planned - len(fold.folded)
        left = search.device_seconds - reserved - device_seconds(fold.folded, fold.discovery) - carried * per_trial
        trials = min(trials, planned + max(0, int(left / per_trial)))
    limit = min(LARGEST_ROUND, max(4 * fold.run.shards, search.max_trials // 4, 8))
    return Budget(trials=trials, spent=planned, round_limit=limit, workers=fold.run.shards)
