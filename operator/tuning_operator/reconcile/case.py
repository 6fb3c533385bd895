"""One target under decision: what is known of it, and how a decision about it is put together. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tuner_job.api.conditions import ConditionType, Reason
from tuner_job.api.tuningjob import Target
from tuner_job.api.tuningjob_status import PastRun, TargetStatus
from tuning_operator.actions import Action, DeleteJob, StopAttempt
from tuning_operator.config import OperatorConfig
from tuning_operator.reconcile.counts import with_counts
from tuning_operator.reconcile.drain import Patience, drain, leaving_since
from tuning_operator.reconcile.standing import Mark, Standing, mark_in, not_yet, target_conditions
from tuning_operator.reconcile.words import line, parsed, stamp, word
from tuning_operator.snapshot import JobView, Publication, Snapshot, StoreView, TargetSnapshot, Wanted

DRAIN_SECONDS = 2.0
"""Between two looks while workers leave."""

TRIAL_SECONDS = 900.0
"""One trial's time where the run's inputs are not known."""

RECENT = 10
RERUN = "Rerun"
TRIGGER_LENGTH = 24


def in_store(status: TargetStatus, store: StoreView) -> bool:
    """Whether a target's status tells of runs in this store. An older operator did not write down which one."""
    return status.store in (None, store.mark)


def settled_in(status: TargetStatus, wanted: Wanted | None) -> TargetStatus:
    """What is stored of a target, as far as it holds in the store that is named now: the wanted run has the same id in each."""
    if wanted is None or in_store(status, wanted.store):
        return status
    return status.model_copy(
        update={
            "active_run": None,
            "recent_runs": tuple(past for past in status.recent_runs if past.id != wanted.run),
            **dict.fromkeys(("trials", "incumbent", "gpu_seconds", "last_progress_time", "progress", "awaiting_approval")),
        }
    )


@dataclass(frozen=True)
class TargetDecision:
    """What one look at a target came to."""

    actions: tuple[Action, ...]
    status: TargetStatus
    standing: Standing
    again: float | None
    observed: bool = True
    """Whether all that this generation asks of a finished run is done. Until then the job's `observedGeneration` stays."""


@dataclass(frozen=True)
class Case:
    """A target and all that bears on it."""

    spec: Target
    seen: TargetSnapshot
    stored: TargetStatus
    """As stored; with nothing but its name when there is none."""
    snapshot: Snapshot
    config: OperatorConfig

    @property
    def now(self) -> datetime:
        return self.snapshot.now

    @property
    def suspend(self) -> bool:
        return self.snapshot.job.spec.suspend

    @property
    def moved(self) -> bool:
        """Whether the spec has changed since the status was derived."""
        status = self.snapshot.job.status
        return status is None or status.observed_generation != self.snapshot.job.metadata.generation

    @property
    def poll(self) -> float:
        return self.config.poll_seconds

    @property
    def soon(self) -> float:
        return min(DRAIN_SECONDS, self.config.poll_seconds)

    @property
    def wanted_run(self) -> str | None:
        return self.seen.wanted.run if self.seen.wanted else None

    @property
    def own(self) -> tuple[JobView, ...]:
        """Jobs of the wanted run; of every run while it is not known which one is wanted."""
        return tuple(job for job in self.seen.jobs if self.is_own(job))

    def is_own(self, job: JobView) -> bool:
        wanted = self.seen.wanted
        return wanted is None or (job.run == wanted.run and job.store in ("", wanted.store.url))

    @property
    def finished(self) -> PastRun | None:
        """The wanted run, if it is over and the conditions still tell of it. When another run was begun since, they do not: then
        it is open again, and its records say how it ended."""
        head = next(iter(self.stored.recent_runs), None)
        if head is None or head.id != self.wanted_run or self.stored.active_run is not None:
            return None
        tuned = mark_in(self.stored.conditions, ConditionType.TUNED)
        return head if tuned is not None and (tuned.holds or tuned.reason == head.reason) else None

    @property
    def reopened(self) -> bool:
        """Whether the wanted run had ended, and publishing it anew is not through."""
        head = next(iter(self.stored.recent_runs), None)
        return head is not None and head.id == self.wanted_run == self.stored.active_run

    @property
    def trigger(self) -> str:
        """Why the wanted run was started, or is about to be."""
        if self.seen.run is not None:
            return self.seen.run.record.trigger
        return self.finished.trigger if self.finished else self.new_trigger()

    @property
    def trial_limit(self) -> float:
        """Seconds in which every worker that was told to stop has stopped."""
        seconds = self.seen.wanted.inputs.search.trial_seconds if self.seen.wanted else TRIAL_SECONDS
        return seconds + self.config.workers.stop_grace_seconds

    def new_trigger(self) -> str:
        """Why the wanted run must be started now."""
        stored, wanted, rerun = self.stored, self.seen.wanted, self.snapshot.job.spec.rerun
        if not stored.recent_runs and stored.active_run is None and stored.published is None:
            return "Created"
        if wanted is not None and wanted.rerun_token:
            start = f"{RERUN} {wanted.rerun_token} "[:TRIGGER_LENGTH]
            if not any(f"{run.trigger} ".startswith(start) for run in stored.recent_runs):
                why = f" ({rerun.reason})" if rerun and rerun.reason else ""
                return line(f"{RERUN} {wanted.rerun_token}{why}")
        return self.stale_reason

    @property
    def stale_reason(self) -> str:
        """Why what is served is not of the wanted inputs."""
        stored, wanted = self.stored, self.seen.wanted
        moved = stored.published is not None and wanted is not None and stored.published.runtime != wanted.runtime.name
        return Reason.RUNTIME_CHANGED if moved else Reason.INPUTS_CHANGED

    def stored_mark(self, kind: ConditionType, reason: str) -> Mark:
        return mark_in(self.stored.conditions, kind) or not_yet(kind, reason)

    def drain(
        self, jobs: tuple[JobView, ...], reason: str, *, why: str, marked: bool = True
    ) -> tuple[StopAttempt | DeleteJob, ...]:
        """`marked`: with stop markers. Where none can be written, now or soon, there is nothing to wait for."""
        run, problem = self.seen.run, self.seen.problem

        def marker(job: JobView) -> StopAttempt | None:
            store = self.store_of(job)
            known = run is not None and self.is_own(job) and job.attempt in run.stopped
            usable = marked and not known and (problem is None or not problem.transient)
            if job.store and not self.is_own(job) and self.stored.stopping_since is None:
                return None  # its store may be away for good, which must not keep from the status how long this takes
            return StopAttempt(job.run, store, job.attempt, reason) if usable and store is not None else None

        hopeless = tuple(
            job for job in jobs if marked and self.store_of(job) is None and not (problem is not None and problem.transient)
        )
        patience = Patience(parsed(self.stored.stopping_since), self.trial_limit, self.now)
        beats = run.beats if run is not None and all(self.is_own(job) for job in jobs) else None
        rest = tuple(job for job in jobs if job not in hopeless)
        return (
            *(DeleteJob(job.name, job.uid, why) for job in hopeless if not job.deleting),
            *drain(rest, self.seen.pods, patience, beats=beats, marker=marker, why=why),
        )

    def store_of(self, job: JobView) -> StoreView | None:
        """Where a stop marker for the Job's attempt belongs."""
        wanted = self.seen.wanted
        return wanted.store if wanted is not None and self.is_own(job) else self.snapshot.orphan_stores.get(job.uid)

    def outcome(
        self,
        standing: Standing,
        *actions: Action,
        again: float | None = None,
        draining: bool = False,
        observed: bool = True,
        publication: Publication | None = None,
        end: str = "",
        reopen: bool = False,
    ) -> TargetDecision:
        """`end`: the reason with which the wanted run ends now. `reopen`: its end is taken back: publishing it is not through."""
        finished = self.finished is not None and not reopen
        active = None if end or finished else self.wanted_run if reopen else self._active()
        recent = self._recent(end, ended=finished or reopen or self.reopened)
        shown = active or next((past.id for past in recent), None)
        status = with_counts(self.stored, self.seen.run, shown, self.now)
        served = publication.served if publication and publication.served else status.published
        published = standing.published or mark_in(self.stored.conditions, ConditionType.PUBLISHED)
        awaits = published is not None and published.reason == Reason.AWAITING_APPROVAL
        updates: dict[str, object] = {
            "store": self.seen.wanted.store.mark if self.seen.wanted else status.store,
            "active_run": active,
            "recent_runs": recent,
            "incumbent": status.incumbent if active else None,
            "trials": status.trials and status.trials.model_copy(update={} if active else {"running": 0}),
            "published": served,
            "awaiting_approval": (publication.manifest if publication else status.awaiting_approval) if awaits else None,
            "stopping_since": leaving_since(self.stored.stopping_since, self.now) if draining else None,
        }
        job = self.snapshot.job
        updates["conditions"] = target_conditions(
            standing,
            self.stored.conditions,
            served=served is not None,
            generation=job.metadata.generation if observed else (job.status and job.status.observed_generation) or 0,
            now=self.now,
        )
        return TargetDecision(tuple(actions), status.model_copy(update=updates), standing, again, observed)

    def _active(self) -> str | None:
        """The run under way: the wanted one once it is started; an earlier one while its Jobs last, or while nothing is known."""
        if self.seen.run is not None:
            return self.seen.run.record.run
        stored = self.stored.active_run
        known = {self.wanted_run, *(job.run for job in self.seen.jobs)}
        return stored if self.seen.wanted is None or stored in known else None

    def _recent(self, end: str, *, ended: bool) -> tuple[PastRun, ...]:
        """The wanted run is among them only once it has ended."""
        stored = self.stored.recent_runs
        if self.wanted_run is None or (ended and not end):
            return stored
        others = tuple(run for run in stored if run.id != self.wanted_run)
        if not end:
            return others
        trigger = line(self.trigger)[:TRIGGER_LENGTH].strip()
        past = PastRun(
            id=self.wanted_run, trigger=trigger, reason=word(end, Reason.WORKERS_FAILED), finished_time=stamp(self.now)
        )
        return (past, *others)[:RECENT]
