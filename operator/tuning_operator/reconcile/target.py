"""What one target needs next: the first rule that has an answer decides. Pure.

Jobs that nobody wants are drained before anything is started, and a stage has one live Job at most. What a Job did is told by
the run's records, never by the Job: it may be gone at any time, by hand or by its TTL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tuner_job.api.conditions import ConditionType, Reason
from tuner_job.api.tuningjob_status import Phase
from tuning_operator.actions import DeleteJob, Publish, StartRun, StopAttempt
from tuning_operator.reconcile import work
from tuning_operator.reconcile.case import Case, TargetDecision
from tuning_operator.reconcile.deaths import deaths
from tuning_operator.reconcile.standing import Mark, Mood, Standing, decided, ended, not_yet, served_as
from tuning_operator.reconcile.words import parsed, seconds_since
from tuning_operator.snapshot import JobView, Problem, Publication, VerdictView

_PHASES: dict[str | None, Phase] = {
    "discover": "Discovering",
    "explore": "Exploring",
    "final": "Proving",
    None: "Publishing",
}


def decide_target(case: Case) -> TargetDecision:
    """Raises nothing, whatever was seen."""
    for rule in RULES:
        if (decision := rule(case)) is not None:
            buried = deaths(case.seen, case.now)
            return TargetDecision(
                (*buried, *decision.actions), decision.status, decision.standing, decision.again, decision.observed
            )
    raise AssertionError("the last rule decides")


def _superseded(case: Case) -> TargetDecision | None:
    """Jobs of earlier runs: the new run starts when they are gone."""
    others = tuple(job for job in case.seen.jobs if not case.is_own(job))
    if not others or (case.seen.problem is not None and case.seen.problem.transient):
        return None
    actions = case.drain(others, Reason.INPUTS_CHANGED, why="its run is not wanted any more")
    message = "workers of an earlier run finish the trial in hand; then the new run starts"
    return case.outcome(work.under_way(case, "Pending", Reason.STOPPING, message), *actions, again=case.soon, draining=True)


def _unresolved(case: Case) -> TargetDecision | None:
    """What stands before any run. Workers of the run that was wanted last go on meanwhile."""
    problem = case.seen.problem
    if problem is None and case.seen.wanted is None:
        problem = Problem(Reason.QUEUED, "the target has not been looked at yet", transient=True)
    if problem is None or (case.suspend and case.own):
        return None
    if case.wanted_run not in (None, case.stored.active_run) and case.finished is None:  # the conditions tell of another run
        mood: Mood = "moving" if problem.transient else "stalled"
        standing = work.under_way(case, "Pending" if problem.transient else "Stalled", problem.reason, problem.message, mood=mood)
        return case.outcome(standing, again=case.poll if problem.transient else None)
    if problem.transient:
        return case.outcome(Standing("Pending", "moving", problem.reason, problem.message), again=case.poll)
    tuned = case.stored_mark(ConditionType.TUNED, problem.reason)
    validated = None if tuned.holds else Mark(False, problem.reason, problem.message)
    standing = Standing("Stalled", "stalled", problem.reason, problem.message, validated=validated)
    live = tuple(job for job in case.own if job.end is None)
    if problem.reason == Reason.NAMESPACE_NOT_ALLOWED:  # a right that was taken back: nothing can be written there any more
        leaving = case.drain(live, problem.reason, why="its namespace may not use the store any more")
        return case.outcome(standing, *leaving, again=case.soon if live else None, draining=bool(live))
    return case.outcome(standing, *_kept_to_budget(case, live), again=case.poll if live else None)


def _kept_to_budget(case: Case, live: tuple[JobView, ...]) -> Iterator[StopAttempt]:
    """Workers that go on although nobody knows what is wanted keep to what their run may use."""
    run = case.seen.run
    spent = work.explored_enough(case, run) if run is not None and run.stage == "explore" else None
    for job in live:
        store = case.store_of(job)
        if run is not None and spent and store is not None and job.run == run.record.run and job.attempt not in run.stopped:
            yield StopAttempt(job.run, store, job.attempt, spent)


def _finished(case: Case) -> TargetDecision | None:
    """A run that is over asks for nothing, unless the spec has moved: then its engine may have to be served, or not any more."""
    past, verdict = case.finished, case.seen.run.verdict if case.seen.run else None
    if past is None:
        return None
    leaving = tuple(job for job in case.own if job.end is None)
    actions: list[StopAttempt | DeleteJob] = [*case.drain(leaving, past.reason, why="its run is over")]
    tuned = case.stored_mark(ConditionType.TUNED, past.reason)
    actions += work.tidy(case, keep_failed=not tuned.holds)
    again = case.soon if leaving else None
    if case.moved and tuned.holds and case.seen.run_problem is not None:
        return _unreliable(case)
    if not case.moved or verdict is None:
        return case.outcome(_remembered(case, tuned), *actions, again=again, draining=bool(leaving))
    return _publishing(case, verdict, actions, was=_remembered(case, tuned))


def _remembered(case: Case, tuned: Mark) -> Standing:
    """Where the target of an ended run stands, from its stored conditions."""
    published = case.stored_mark(ConditionType.PUBLISHED, tuned.reason)
    validated = case.stored_mark(ConditionType.VALIDATED, tuned.reason)
    if tuned.holds:
        validated = Mark(True, Reason.VALID, validated.message if validated.holds else "the final has decided")
    elif validated.reason not in (Reason.VALID, tuned.reason):  # a problem of its own, which has passed
        validated = not_yet(ConditionType.VALIDATED, tuned.reason)
    return ended(validated, tuned, published, case.stored.published)


def _suspended(case: Case) -> TargetDecision | None:
    if not case.suspend:
        return None
    if case.own:
        actions = case.drain(case.own, Reason.SUSPENDED, why="the TuningJob is suspended")
        message = "suspended: workers finish the trial in hand"
        phase = _PHASES[case.seen.run.stage] if case.seen.run else "Pending"
        return case.outcome(work.under_way(case, phase, Reason.STOPPING, message), *actions, again=case.soon, draining=True)
    progress = work.progress(case)
    message = f"suspended{f' at {progress}' if progress else ''}; nothing is lost: spec.suspend: false goes on"
    standing = work.under_way(case, "Suspended", Reason.SUSPENDED, message, mood="resting")
    verdict = case.seen.run.verdict if case.seen.run else None
    return case.outcome(replace(standing, tuned=decided(verdict)) if verdict else standing)


def _unreliable(case: Case) -> TargetDecision | None:
    """Records that cannot be relied on: another rerun token leaves them behind. A run that had ended is open again: what the spec
    asks for now cannot be served."""
    problem = case.seen.run_problem
    if problem is None:
        return None
    was = case.finished is not None
    if problem.transient:
        standing = Standing("Pending", "moving", problem.reason, problem.message)
        return case.outcome(standing, again=case.poll, observed=not was)
    live = tuple(job for job in case.own if job.end is None)
    actions = case.drain(live, problem.reason, why="the records of its run cannot be relied on")
    again = case.soon if live else None
    return case.outcome(
        work.under_way(case, "Stalled", problem.reason, problem.message, mood="stalled"),
        *actions,
        again=again,
        draining=bool(live),
        reopen=was,
    )


def _unstarted(case: Case) -> TargetDecision | None:
    seen = case.seen
    if seen.run is not None or seen.wanted is None:
        return None
    start = StartRun(case.spec.name, seen.wanted, case.spec.parallelism or 1, case.new_trigger())
    if seen.refused is not None:
        return work.refused(case, seen.refused, start)
    return case.outcome(work.under_way(case, "Pending", Reason.STARTING, "the run is being started"), start, again=0)


def _verdict(case: Case) -> TargetDecision | None:
    """The final has decided: publish. Its worker may take a moment to leave, and its last beat has its device seconds."""
    run = case.seen.run
    if run is None or run.verdict is None:
        return None
    live = tuple(job for job in case.own if job.end is None)
    grace = case.config.workers.stop_grace_seconds
    waited = seconds_since(parsed(case.stored.stopping_since), case.now)
    actions: list[StopAttempt | DeleteJob] = list(work.tidy(case, keep_failed=False))
    if live and waited > grace:
        actions += [DeleteJob(job.name, job.uid, "its run has its verdict") for job in live if not job.deleting]
    return _publishing(case, run.verdict, actions, leaving=bool(live))


def _publishing(
    case: Case,
    verdict: VerdictView,
    actions: list[StopAttempt | DeleteJob],
    *,
    was: Standing | None = None,
    leaving: bool = False,
) -> TargetDecision:
    """`was`: where the target of a run that had ended stands until publishing it anew is through."""
    seen, publication = case.seen, case.seen.publication
    assert seen.wanted is not None
    validated = work.validated(case, Reason.PUBLISHING)
    tuned = decided(verdict)
    publish = Publish(case.spec.name, seen.wanted)
    if isinstance(publication, Publication):
        engine = publication.served or case.stored.published
        standing = ended(validated, tuned, served_as(publication, case.spec.name, verdict), engine)
        if not leaving:
            end = "" if was is not None else verdict.reason
            return case.outcome(standing, *actions, publication=publication, end=end)
        message = "published; the final's worker is leaving"
        standing = Standing("Publishing", "moving", Reason.PUBLISHING, message, validated, tuned, standing.published)
        return case.outcome(standing, *actions, publication=publication, again=case.soon, draining=True)
    problem = publication
    if problem is None:
        message = "the verdict is checked and signed, and the pointer moved"
        standing = was or Standing(
            "Publishing",
            "moving",
            Reason.PUBLISHING,
            message,
            validated,
            tuned,
            not_yet(ConditionType.PUBLISHED, Reason.PUBLISHING),
        )
        return case.outcome(standing, *actions, publish, again=0, draining=leaving, observed=was is None)
    published = not_yet(ConditionType.PUBLISHED, problem.reason) if was is None else None
    if problem.transient:
        standing = Standing("Publishing", "moving", problem.reason, problem.message, validated, tuned, published)
        return case.outcome(standing, *actions, publish, again=case.poll, draining=leaving, observed=was is None)
    published = not_yet(ConditionType.PUBLISHED, problem.reason)
    standing = Standing("Stalled", "stalled", problem.reason, problem.message, validated, tuned, published)
    # Somebody may mend the store, and no event tells of that: a resync asks again, and `act` keeps the pace.
    again = case.soon if leaving else None
    return case.outcome(standing, *actions, publish, again=again, draining=leaving, reopen=was is not None)


def _convicted(case: Case) -> TargetDecision | None:
    """A stage that is one trial kept killing its workers."""
    run = case.seen.run
    if run is None or run.convicted is None:
        return None
    return work.failed(case, run.convicted.reason, run.convicted.message)


def _due(case: Case) -> TargetDecision | None:
    run = case.seen.run
    return work.stage(case, run) if run is not None else None


def _lost(case: Case) -> TargetDecision | None:
    """Nothing is known; the next look knows more."""
    return case.outcome(Standing("Pending", "moving", Reason.QUEUED, "the target has not been looked at yet"), again=case.poll)


RULES: tuple[Callable[[Case], TargetDecision | None], ...] = (
    _superseded,
    _unresolved,
    _finished,
    _suspended,
    _unreliable,
    _unstarted,
    _verdict,
    _convicted,
    _due,
    _lost,
)
