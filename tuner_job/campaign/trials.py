"""One planned trial on this worker: the ledger first, else a child; every end becomes a result record."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence

from tuner_job.accuracy.gate import judge
from tuner_job.api.base import TrtfleetError
from tuner_job.api.inputs import AccuracyInput
from tuner_job.api.measurement import Candidate, Losses
from tuner_job.api.messages import Control, DiscoveryRecord, PlannedTrial, PreviousEnd, ResultRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.baseline import Baseline
from tuner_job.campaign.workspace import Workspace, unusable
from tuner_job.measure.racing import bounds, can_race
from tuner_job.store.ledger import Ledger
from tuner_job.store.objects import StoreUnavailable
from tuner_job.store.records import timestamp
from tuner_job.store.tries import Claim
from tuner_job.trial.supervisor import MAX_INFRASTRUCTURE_TRIES, TrialEnd

LOG_CHARACTERS = 4000

log = logging.getLogger("trtfleet.worker")


def screen(losses: Losses, accuracy: AccuracyInput) -> tuple[Outcome, str]:
    """FEASIBLE or INFEASIBLE under the screening threshold, with the reason."""
    passed, reason = judge(losses, accuracy.metric, accuracy.screening_threshold)
    return (Outcome.FEASIBLE, "") if passed else (Outcome.INFEASIBLE, reason)


class TrialRunner:
    """Runs claimed trials of one run, one at a time."""

    def __init__(
        self,
        space: Workspace,
        discovery: DiscoveryRecord,
        ledger: Ledger | None,
        *,
        prepared: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`prepared`: seconds that the worker has spent until now; its first result tells them."""
        self._space = space
        self._discovery = discovery
        self._ledger = ledger
        self._clock = clock
        self._measured = clock()
        self._prepared = prepared
        self._waited = 0.0

    def waited(self, seconds: float) -> None:
        """The worker had nothing to do for so long."""
        self._waited += seconds

    def run(self, planned: PlannedTrial, claim: Claim, baseline: Baseline) -> ResultRecord:
        """The result of the trial; the caller stores it. Raises Stopped, InputError or BaselineFailed."""
        if planned.repeat == 0 and (known := self._known(planned.candidate)) is not None:
            return self._from_ledger(known, planned, claim)
        lost = claim.number - 1
        began = self._clock()
        baseline.before_trial()
        started = self._clock()
        race = self._race(planned, baseline)
        end = self._attempt(planned, race)
        for _ in range(MAX_INFRASTRUCTURE_TRIES - 1):  # by this worker: tries that others lost are not the trial's fault
            if not end.retriable:
                break
            self._space.let_go(end)
            again = claim.again(PreviousEnd(cause="infrastructure", detail=end.reason[:500]))
            if again is None:
                break
            claim = again
            end = self._attempt(planned, race)
        if unusable(end):
            baseline.ask_again()
        ended = self._clock()
        spent = {
            "total": ended - started,
            "controls": started - began,
            "lost": lost * self._discovery.trial_seconds,
            "prepared": self._prepared,
            "between": max(0.0, began - self._measured - self._waited),
            "waited": self._waited,
        }
        self._measured, self._prepared, self._waited = ended, 0.0, 0.0
        result = self._from_child(end, planned, claim, baseline.take(), spent)
        self._share(result)
        return result

    def _race(self, planned: PlannedTrial, baseline: Baseline) -> Sequence[float]:
        """Bounds over which the trial's timing ends early; all that they depend on is, or will be with its result, on record."""
        if planned.candidate.is_baseline:
            return ()
        inputs = self._space.run.inputs
        return bounds([one.timing for one in baseline.recent], self._discovery, inputs.measure, inputs.constraints)

    def _known(self, candidate: Candidate) -> ResultRecord | None:
        """What the ledger has, if it can be used. A record that cannot costs a measurement, never the run."""
        if self._ledger is None:
            return None
        try:
            known = self._ledger.lookup(self._discovery.identity, candidate)
        except StoreUnavailable:
            raise
        except TrtfleetError as error:
            log.warning("measured anew: %s", error)
            return None
        cases = len(self._discovery.cases)
        if known is not None and {len(known.timing), *(len(one.timing) for one in known.controls)} - {0, cases}:
            log.warning("measured anew: the ledger's result of %s is not timed under %d shape cases", candidate.id, cases)
            return None
        inputs = self._space.run.inputs
        if known is not None and known.stopped_over is not None and not can_race(inputs.measure, inputs.constraints):
            log.info("measured anew: the ledger's result of %s was stopped early, and this run needs all sessions", candidate.id)
            return None
        return known

    def _share(self, result: ResultRecord) -> None:
        """Before the run's own record, so that a worker killed in between loses nothing. The ledger is not worth a failure."""
        if self._ledger is not None:
            try:
                self._ledger.add(self._discovery.identity, result)
            except TrtfleetError as error:
                log.warning("not in the ledger: %s", error)

    def _attempt(self, planned: PlannedTrial, race: Sequence[float]) -> TrialEnd:
        output = self._space.root / "trial"
        try:
            return self._space.start(
                self._space.request(
                    "trial",
                    output,
                    cases=self._discovery.cases,
                    candidate=planned.candidate,
                    references_digest=self._discovery.references_digest,
                    seed=self._space.run.seed,
                    timing_cache=self._space.timing_cache,
                    race=race,
                )
            )
        finally:
            shutil.rmtree(output, ignore_errors=True)

    def _from_child(
        self, end: TrialEnd, planned: PlannedTrial, claim: Claim, controls: Sequence[Control], spent: Mapping[str, float]
    ) -> ResultRecord:
        report = end.report
        outcome, reason = end.outcome, end.reason
        if outcome is Outcome.FEASIBLE and report is not None and report.losses is not None:
            outcome, reason = screen(report.losses, self._space.run.inputs.accuracy)
        measured = report is not None and outcome in (Outcome.FEASIBLE, Outcome.INFEASIBLE)
        return ResultRecord(
            run=self._space.run.run,
            trial=planned.trial,
            candidate=planned.candidate,
            outcome=outcome,
            reason=reason,
            phase="" if measured else end.phase,
            log="" if measured else end.log[-LOG_CHARACTERS:],
            tries=claim.number,
            worker=claim.worker,
            worker_id=claim.worker_id,
            seconds={**{str(phase): seconds for phase, seconds in end.seconds.items()}, **spent},
            engine=report.engine if report else None,
            losses=report.losses if report else None,
            timing=report.timing if report and measured else (),
            stopped_over=report.stopped_over if report and measured else None,
            state=report.state if report else None,
            controls=tuple(controls),
            finished_at=timestamp(),
        )

    def _from_ledger(self, known: ResultRecord, planned: PlannedTrial, claim: Claim) -> ResultRecord:
        """The first result under the same identity, judged by this run's thresholds: losses are kept, verdicts are not.

        Who measured it stays, for its controls are that worker's: they correct its trials and no others.
        """
        outcome, reason = known.outcome, known.reason
        if known.losses is not None and known.timing:
            outcome, reason = screen(known.losses, self._space.run.inputs.accuracy)
        return known.model_copy(
            update={
                "run": self._space.run.run,
                "trial": planned.trial,
                "outcome": outcome,
                "reason": reason,
                "tries": claim.number,
                "cached": True,
                "seconds": {"total": 0.0},
                "finished_at": timestamp(),
            }
        )
