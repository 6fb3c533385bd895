"""The stage of a run that is due: its Job is created, watched, judged. Pure."""

from __future__ import annotations

from tuner_job.api.conditions import ConditionType, Reason
from tuner_job.api.tuningjob_status import Phase
from tuning_operator.actions import Action, CreateJob, DeleteJob, StartRun, StopAttempt
from tuning_operator.reconcile.attempts import Again, Fail, Stuck, judge
from tuning_operator.reconcile.case import Case, TargetDecision
from tuning_operator.reconcile.standing import Mark, Mood, Standing, not_yet
from tuning_operator.reconcile.waiting import held_back, waiting
from tuning_operator.reconcile.words import count, parsed, percent, seconds_since
from tuning_operator.snapshot import JobView, Problem, RunView, Stage

STAGES: dict[Stage, tuple[Phase, Reason]] = {
    "discover": ("Discovering", Reason.DISCOVERING),
    "explore": ("Exploring", Reason.EXPLORING),
    "final": ("Proving", Reason.PROVING),
}


def stage(case: Case, run: RunView) -> TargetDecision | None:
    """None when no stage is due."""
    due = run.stage
    if due is None:
        return None
    live = sorted((job for job in case.own if job.end is None), key=lambda job: (job.attempt, job.name))
    if due == "discover" and deadline_left(case, run) == 0:
        return _discovered_too_late(case, tuple(live))
    if not live:
        return _next_attempt(case, run, due)
    job, others = live[-1], live[:-1]
    actions: list[StopAttempt | DeleteJob] = [*tidy(case, keep_failed=True)]
    actions += [DeleteJob(each.name, each.uid, "a newer attempt is live") for each in others if not each.deleting]
    if job.deleting:
        return _moving(case, due, f"Job {job.name} is being deleted; then another attempt starts", *actions, again=case.soon)
    spent = explored_enough(case, run) if due == "explore" else None
    if job.stage != due:
        actions += case.drain((job,), Reason.STOPPING, why="its stage is over", marked=False)
        message = f"workers of {job.stage} finish the trial in hand; then {due} starts"
        return _moving(case, due, message, *actions, again=case.soon, draining=True)
    if job.attempt in run.stopped and not spent:
        actions += case.drain((job,), Reason.STOPPING, why="its attempt was stopped")
        message = f"workers of attempt {job.attempt} were told to stop; then another attempt starts"
        return _moving(case, due, message, *actions, again=case.soon, draining=True)
    if spent and job.attempt not in run.stopped and case.seen.wanted is not None:
        actions.append(StopAttempt(job.run, case.seen.wanted.store, job.attempt, spent))
    cause = waiting(job, case.seen)
    if cause is not None:
        standing = under_way(case, "Pending", cause.reason, cause.message)
        return case.outcome(standing, *actions, again=case.poll)
    return _moving(case, due, _at_work(case, run, due, job, spent), *actions, again=case.poll)


def _next_attempt(case: Case, run: RunView, due: Stage) -> TargetDecision:
    """No Job lives: what did the last one of this stage come to?"""
    wanted = case.seen.wanted
    assert wanted is not None  # a run is known by its inputs
    last = max((job for job in case.own if job.stage == due), key=lambda job: job.attempt, default=None)
    failures = 0
    if last is not None:
        verdict = judge(last, case.seen, run)
        match verdict:
            case Fail(reason, message):
                return failed(case, reason, message)
            case Stuck(problem):
                standing = under_way(case, "Stalled", problem.reason, problem.message, mood="stalled")
                return case.outcome(standing, *tidy(case, keep_failed=True))
            case Again(failures):
                pass
            case _:
                return _moving(case, due, f"the end of Job {last.name} is being noted", again=case.soon)
    attempt = 1 + max((run.last_attempt, *(job.attempt for job in case.own)))
    workers = (case.spec.parallelism or 1) if due == "explore" else 1
    left = deadline_left(case, run) if due != "final" else None
    create = CreateJob(case.spec.name, wanted, due, attempt, workers, failures, 0.0 if left is None else max(1.0, left))
    if case.seen.refused is not None:
        return refused(case, case.seen.refused, create)
    after = f" after {count(failures, 'failed attempt')}" if failures else ""
    message = f"{due} starts with {count(workers, 'worker')}{after}: attempt {attempt} of the run"
    return case.outcome(under_way(case, "Pending", Reason.STARTING, message), create, again=case.poll)


def _discovered_too_late(case: Case, live: tuple[JobView, ...]) -> TargetDecision:
    limit = case.snapshot.job.spec.budget.active_deadline_seconds if case.snapshot.job.spec.budget else None
    message = f"discover did not end within budget.activeDeadlineSeconds ({limit}); raise it, or set spec.rerun.token"
    if not live:
        return failed(case, Reason.DEADLINE_EXCEEDED, message)
    actions = case.drain(live, Reason.DEADLINE_EXCEEDED, why="the run's deadline has passed")
    standing = under_way(case, "Discovering", Reason.STOPPING, message)
    return case.outcome(standing, *actions, again=case.soon, draining=True)


def deadline_left(case: Case, run: RunView) -> float | None:
    """Seconds until exploring must end; None for no deadline."""
    limit = run.record.inputs.search.deadline_seconds
    if limit <= 0:
        return None
    return max(0.0, limit - seconds_since(parsed(run.record.created_at), case.now))


def over_budget(run: RunView) -> bool:
    """Whether exploring has used all but what the final needs."""
    budget = run.record.inputs.search.device_seconds
    return budget > 0 and run.counts.device_seconds >= budget - run.reserved_seconds


def explored_enough(case: Case, run: RunView) -> Reason | None:
    """Why explorers are to plan the final now. They keep the deadline themselves once they run, but not while they wait for a
    place, nor after Kueue has put them off."""
    if over_budget(run):
        return Reason.BUDGET_EXHAUSTED
    return Reason.DEADLINE_EXCEEDED if deadline_left(case, run) == 0 else None


def tidy(case: Case, *, keep_failed: bool) -> tuple[DeleteJob, ...]:
    """Ended Jobs that have nothing more to tell. A failed one is kept for its logs until there is a newer attempt."""
    due = case.seen.run.stage if case.seen.run else None
    newest = max((job.attempt for job in case.own), default=0)

    def is_spent(job: JobView) -> bool:
        if job.attempt < newest:
            return True
        return job.stage != due if job.end == "Complete" else not keep_failed

    return tuple(
        DeleteJob(job.name, job.uid, "its results are in the store")
        for job in case.own
        if job.end is not None and not job.deleting and is_spent(job)
    )


def failed(case: Case, reason: str, message: str) -> TargetDecision:
    """The run ends without a verdict. Only other inputs or another rerun token start a new one."""
    tuned = Mark(False, reason, message)
    checked = validated(case, reason)
    if checked.holds is None and reason not in (Reason.WORKERS_FAILED, Reason.DEADLINE_EXCEEDED):
        checked = Mark(False, reason, message)
    standing = Standing("Stalled", "stalled", reason, message, checked, tuned, not_yet(ConditionType.PUBLISHED, reason))
    leaving = any(job.end is None for job in case.own)
    return case.outcome(standing, *tidy(case, keep_failed=True), end=reason, again=case.soon if leaving else None)


def refused(case: Case, problem: Problem, action: StartRun | CreateJob) -> TargetDecision:
    """The API server or the store refused it. It is asked for again, for whoever refused may change his mind."""
    if problem.transient:
        standing = under_way(case, "Pending", problem.reason, problem.message)
    else:
        standing = under_way(case, "Stalled", problem.reason, problem.message, mood="stalled")
    return case.outcome(standing, action, again=case.poll)


def under_way(case: Case, phase: Phase, reason: str, message: str, *, mood: Mood = "moving") -> Standing:
    """Of a run that has no verdict."""
    return Standing(
        phase,
        mood,
        reason,
        message,
        validated(case, reason),
        not_yet(ConditionType.TUNED, reason),
        not_yet(ConditionType.PUBLISHED, reason),
    )


def validated(case: Case, reason: str) -> Mark:
    """Whether discover has checked the wanted run's inputs."""
    run = case.seen.run
    if run is not None and run.device is not None:
        return Mark(True, Reason.VALID, f"discover checked the inputs on {run.device.product}")
    return not_yet(ConditionType.VALIDATED, reason)


def progress(case: Case) -> str:
    """`37 of 64 trials`; empty before the first plan."""
    run = case.seen.run
    return f"{min(run.counts.finished, run.planned)} of {count(run.planned, 'trial')}" if run and run.planned else ""


def _moving(case: Case, due: Stage, message: str, *actions: Action, again: float, draining: bool = False) -> TargetDecision:
    phase, reason = STAGES[due]
    return case.outcome(
        under_way(case, phase, Reason.STOPPING if draining else reason, message), *actions, again=again, draining=draining
    )


def _at_work(case: Case, run: RunView, due: Stage, job: JobView, spent: Reason | None) -> str:
    more = held_back(job, case.seen)
    tail = f"; {more}" if more else ""
    match due:
        case "discover":
            return f"checks the inputs, and builds and times the baseline{tail}"
        case "final":
            return f"proves the best candidate over fresh builds of it and of the default{tail}"
        case _:
            best = f"; best so far {percent(run.incumbent.gain)}, not proven" if run.incumbent else ""
            why = "the deadline has passed" if spent is Reason.DEADLINE_EXCEEDED else "the budget is spent"
            over = f"; {why}, the final comes next" if spent else ""
            return f"round {run.round}: {progress(case)} ended{best}{over}{tail}"
