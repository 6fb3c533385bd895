"""The worker loop of explore: claim, run, record, repeat; whoever finds a round complete folds it and plans the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tuner_job.api.messages import PlannedTrial, PlanRecord, SealRecord, own_first
from tuner_job.campaign import rounds
from tuner_job.campaign.baseline import Baseline
from tuner_job.campaign.kin import leave_findings
from tuner_job.campaign.patience import Wait, created
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.stop import StopReason
from tuner_job.campaign.trials import TrialRunner
from tuner_job.store import layout
from tuner_job.store.beats import Heart
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record, read_record
from tuner_job.store.tries import Claim, Claims, Done

OUT_OF_TIME = "the deadline for exploring has passed"
OUT_OF_BUDGET = "the budget of device time is used up"

EXPLORED_ENOUGH = {StopReason.DEADLINE_EXCEEDED: OUT_OF_TIME, StopReason.BUDGET_EXHAUSTED: OUT_OF_BUDGET}
"""Reasons of a stop marker that end exploring alone, and what the plan of the final says then."""


class Planner(Protocol):
    """`rounds.next_plan`."""

    def __call__(self, fold: rounds.Fold, *, over: str = "") -> PlanRecord: ...


class Explorer:
    """One worker's part in the explore rounds of a run."""

    def __init__(
        self,
        store: ObjectStore,
        reader: RunReader,
        claims: Claims,
        runner: TrialRunner,
        baseline: Baseline,
        heart: Heart,
        *,
        index: int,
        check_stop: Callable[[], str],
        wait: Wait,
        deadline_seconds: float = 0.0,
        poll_seconds: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        planner: Planner = rounds.next_plan,
    ) -> None:
        self._store = store
        self._reader = reader
        self._claims = claims
        self._runner = runner
        self._baseline = baseline
        self._heart = heart
        self._index = index
        self._check_stop = check_stop
        self._wait = wait
        self._poll = poll_seconds
        self._clock = clock
        self._planner = planner
        self._deadline = clock() + deadline_seconds if deadline_seconds > 0 else None
        self._first_seen: dict[int, float] = {}

    def run(self) -> None:
        """Until a plan for the final exists. Raises Stopped from `check_stop` or a trial."""
        while True:
            told = self._check_stop()
            plan = self._reader.plans()[-1]
            if plan.stage == "final":
                return
            self._first_seen.setdefault(plan.round, self._clock())
            over = told or (OUT_OF_TIME if self._out_of_time() else "")
            late = self._clock() - self._first_seen[plan.round] >= self._round_limit()
            if over or late:
                self._fold(plan, over)
                continue
            elsewhere = self._run_one(plan)
            if elsewhere is None:
                continue
            if elsewhere == 0 or rounds.overlaps(self._reader.run, plan, elsewhere):
                self._fold(plan)
            else:
                since = self._clock()
                self._wait(self._poll)
                self._runner.waited(self._clock() - since)

    def _out_of_time(self) -> bool:
        return self._deadline is not None and self._clock() >= self._deadline

    def _round_limit(self) -> float:
        search = self._reader.run.inputs.search
        return search.round_deadline_seconds or 4 * search.trial_seconds

    def _run_one(self, plan: PlanRecord) -> int | None:
        """Claim and run the first free trial: None. If none is free: how many are in other hands."""
        elsewhere = 0
        for planned in own_first(plan.trials, self._index, self._reader.run.shards):
            claim = self._claims.claim(planned.trial, planned.candidate)
            if isinstance(claim, Claim):
                self._record(planned, claim)
                return None
            elsewhere += not isinstance(claim, Done)
        return elsewhere

    def _record(self, planned: PlannedTrial, claim: Claim) -> None:
        """Run the trial and store its result before anything else is begun. A result that came first stands."""
        result = self._runner.run(planned, claim, self._baseline)
        own = created(self._store, layout.result(result.run, result.trial), result, self._wait)
        self._heart.finished(
            result.outcome if own else None,
            cached=result.cached,
            device_seconds=result.seconds.get("total", 0.0) + result.seconds.get("controls", 0.0),
        )

    def _fold(self, plan: PlanRecord, over: str = "") -> None:
        """Seal the round and write the next plan. Losing either race is harmless: the winner's record is read back."""
        run = self._reader.run
        key = layout.seal(run.run, plan.round)
        create_record(self._store, key, rounds.seal(run, plan, self._reader.digests(plan)))
        if read_record(self._store, key, SealRecord) is None:
            return
        fold = self._reader.fold()
        following = self._planner(fold, over=over)
        if following.stage == "final":
            leave_findings(self._store, fold)
        create_record(self._store, layout.plan(run.run, following.round), following)
