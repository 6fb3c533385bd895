"""A small world for decide to act on: a store, Jobs, pods and workers, as plain data, with every way in which they go wrong.

It follows the real parts where decide relies on them: the order in which gather reads, a Job's failure policy by exit code, what
workers write before they end, actions that change nothing when they are done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import reconcile_cases as cases
from reconcile_cases import CONFIG, GPU, STORE

from tuner_job.api.messages import BeatRecord, BeatState
from tuner_job.api.tuningjob import TuningJob
from tuner_job.api.tuningjob_status import PublishedEngine, TuningJobStatus
from tuning_operator.actions import Action, CreateJob, Decision, DeleteJob, Publish, RecordDeath, StartRun, StopAttempt
from tuning_operator.reconcile.decide import decide
from tuning_operator.snapshot import (
    JobView,
    PodView,
    Problem,
    Publication,
    RunView,
    Snapshot,
    Stage,
    TargetSnapshot,
    VerdictView,
    Wanted,
    WorkerCounts,
)

TRIALS = 3
"""Of a run's only round."""
BACKOFF = 1
"""Failures of an index that its Job puts up with."""
AWAY = Problem("StoreUnavailable", "no answer from s3://bucket/team in 10 s", transient=True)
OUTCOMES = ("feasible", "crashed", "infeasible")


class StoreAway(Exception):
    """What act raises while the store does not answer."""


@dataclass(frozen=True)
class Wish:
    """The part of the spec that people change here."""

    targets: tuple[str, ...] = ("gpu",)
    inputs: int = 0
    token: str = ""
    suspend: bool = False
    manual: bool = False
    approved: bool = False
    budget: bool = False


@dataclass
class Run:
    """What the store holds of one run."""

    wanted: Wanted
    target: str
    trigger: str
    bad_input: bool
    discovered: bool = False
    done: int = 0
    final: bool = False
    verdict: bool = False
    convicted: bool = False
    beats: dict[str, BeatRecord] = field(default_factory=dict)
    stops: dict[int, str] = field(default_factory=dict)
    mysteries: int = 0
    """Unexplained deaths in the stage that is due."""

    @property
    def stage(self) -> Stage | None:
        if self.verdict:
            return None
        if not self.discovered:
            return "discover"
        return "final" if self.final else "explore"


@dataclass
class Job:
    """A batch Job; `end` by the job controller."""

    view: JobView
    workers: int
    end: str = ""


@cache
def job_of(wish: Wish) -> TuningJob:
    """The TuningJob that a person wrote."""
    spec: dict[str, Any] = {"suspend": wish.suspend, "model": {"uri": f"https://models.example/{wish.inputs}.onnx"}}
    if wish.token:
        spec["rerun"] = {"token": wish.token}
    if wish.budget:
        spec["budget"] = {"gpuSeconds": 60}
    if wish.manual:
        approved = [{"name": "gpu", "approvedDigest": cases.ENGINE.manifest}] if wish.approved else []
        spec["publish"] = {"promotion": "Manual", "targets": approved}
    return cases.job(targets=wish.targets, **spec)


@cache
def wanted_of(wish: Wish, target: str) -> Wanted:
    return cases.wanted(job_of(replace(wish, suspend=False, manual=False, approved=False)), target)


class World:
    """All that is there, beside the operator, which remembers only `publications`."""

    def __init__(self) -> None:
        self.wish = Wish()
        self.generation = 1
        self.now = 0.0
        self.status: TuningJobStatus | None = None
        self.runs: dict[str, Run] = {}
        self.jobs: dict[str, Job] = {}
        self.pods: dict[str, PodView] = {}
        self.ends: dict[str, str] = {}
        """Pod uid → how it ended, if its worker could not say so itself."""
        self.serial = 0
        self.pointers: dict[str, PublishedEngine] = {}
        self.publications: dict[tuple[int, str], Publication | Problem] = {}
        self.store_away = False
        self.publish_problem: Problem | None = None
        self.bad_inputs: set[int] = set()
        self.deaths: list[tuple[RecordDeath, str]] = []
        self.writes = 0

    # People.

    def edit(self, **changes: object) -> None:
        new = replace(self.wish, **changes)  # type: ignore[arg-type]
        if new != self.wish:
            self.wish = new
            self.generation += 1

    # The operator.

    def look(self, between: Callable[[], None] = lambda: None, *, crash_after: int | None = None) -> Decision:
        """One look: gather, decide, act, write. `between`: what happens between reading records and Jobs. `crash_after`: so many
        actions, after which the operator is killed and its status write lost."""
        snapshot = self.gather(between)
        decision = decide(snapshot, CONFIG)
        assert decide(snapshot, CONFIG) == decision
        for done, action in enumerate(decision.actions):
            if done == crash_after:
                return decision
            try:
                self.act(action)
                before = self.fingerprint()
                self.act(action)
            except StoreAway:
                return decision
            assert self.fingerprint() == before, f"{action} is not idempotent"
        if crash_after is None and decision.status != self.status:
            self.status = TuningJobStatus.from_json(decision.status.to_json())
            self.writes += 1
        return decision

    def restart(self) -> None:
        self.publications.clear()

    def fingerprint(self) -> object:
        runs = {name: (run.stage, dict(run.beats), dict(run.stops), run.mysteries) for name, run in self.runs.items()}
        return runs, {name: job.view.uid for name, job in self.jobs.items()}, dict(self.pods), dict(self.publications)

    def gather(self, between: Callable[[], None]) -> Snapshot:
        job = job_of(self.wish)
        job = job.model_copy(
            update={"status": self.status, "metadata": job.metadata.model_copy(update={"generation": self.generation})}
        )
        asked = {name: wanted_of(self.wish, name) for name in self.wish.targets}
        settled = {name for name in asked if self._is_settled(name, asked[name])}
        views = {} if self.store_away else {name: self._view(asked[name]) for name in asked if name not in settled}
        between()
        jobs = [self._job_view(each) for each in self.jobs.values()]
        for name in asked:
            own = [each for each in jobs if each.target == name]
            view = views.get(name)
            outrun = view is not None and any(
                each.end and each.run == view.record.run and each.stage == view.stage for each in own
            )
            if (outrun or (name in settled and any(each.end is None for each in own))) and not self.store_away:
                views[name] = self._view(asked[name])
        current = {each.run for each in asked.values()}
        return Snapshot(
            job,
            cases.later(self.now),
            tuple(self._seen(name, asked[name], views, jobs, settled) for name in asked),
            orphans=tuple(each for each in jobs if each.target not in asked),
            orphan_stores={each.uid: STORE for each in jobs if each.run not in current},
        )

    def _is_settled(self, name: str, wanted: Wanted) -> bool:
        if self.status is None or self.status.observed_generation != self.generation:
            return False
        own = next((each for each in self.status.targets if each.name == name), None)
        return own is not None and own.active_run is None and [each.id for each in own.recent_runs[:1]] == [wanted.run]

    def _seen(
        self, name: str, wanted: Wanted, views: dict[str, RunView | None], jobs: list[JobView], settled: set[str]
    ) -> TargetSnapshot:
        return TargetSnapshot(
            name,
            problem=AWAY if self.store_away and name not in settled else None,
            wanted=wanted,
            run=views.get(name),
            publication=self.publications.get((self.generation, wanted.run)),
            jobs=tuple(each for each in jobs if each.target == name),
            pods=tuple(self.pods.values()),
        )

    def _view(self, wanted: Wanted) -> RunView | None:
        run = self.runs.get(wanted.run)
        if run is None:
            return None
        outcomes: dict[str, int] = {}
        for beat in run.beats.values():
            for outcome, number in beat.outcomes.items():
                outcomes[outcome] = outcomes.get(outcome, 0) + number
        search = {"device_seconds": 60.0} if self.wish.budget else {}
        return RunView(
            cases.record(wanted, target=run.target, trigger=run.trigger, **search),
            run.stage,
            round=1 if run.discovered else 0,
            planned=TRIALS if run.discovered else 0,
            device=GPU if run.discovered else None,
            trial_seconds=10.0,
            reserved_seconds=40.0 if self.wish.budget else 0.0,
            beats=dict(run.beats),
            stopped=frozenset(run.stops),
            counts=WorkerCounts(
                outcomes,
                running=sum(beat.state is BeatState.RUNNING for beat in run.beats.values()),
                device_seconds=sum(beat.device_seconds for beat in run.beats.values()),
            ),
            convicted=Problem("StageConvicted", "it kept killing its workers") if run.convicted else None,
            verdict=VerdictView(True, "Proven", "0.1", "10% faster") if run.verdict else None,
        )

    def _job_view(self, job: Job) -> JobView:
        pods = [pod for pod in self.pods.values() if pod.job == job.view.name and not pod.over]
        over = job.end if not pods else ""
        return replace(
            job.view,
            active=len(pods),
            ready=sum(pod.phase == "Running" for pod in pods),
            end=over or None,  # type: ignore[arg-type]
            end_reason="PodFailurePolicy" if over and self._refused(job) else "FailedIndexes" if over == "Failed" else "",
        )

    # What the operator does.

    def act(self, action: Action) -> None:
        if self.store_away and not isinstance(action, CreateJob | DeleteJob):
            raise StoreAway
        match action:
            case StartRun(target, wanted, _, trigger):
                bad = self.wish.inputs in self.bad_inputs
                self.runs.setdefault(wanted.run, Run(wanted, target, trigger, bad))
            case CreateJob():
                self._create(action)
            case DeleteJob(name, uid):
                if name in self.jobs and self.jobs[name].view.uid == uid:
                    self._delete(name)
            case StopAttempt(run, _, attempt, reason):
                self.runs[run].stops.setdefault(attempt, reason)
            case RecordDeath(run, _, worker, worker_id, cause):
                self._bury(self.runs[run], action, worker, worker_id, cause)
            case Publish(target, wanted):
                self.publications[self.generation, wanted.run] = self._publish(target, wanted)

    def _create(self, action: CreateJob) -> None:
        name = f"tj-{action.target}-{action.wanted.run[:8]}-{action.stage}-{action.attempt}"
        if name in self.jobs:
            return
        alive = [each.view.name for each in self.jobs.values() if each.view.target == action.target and not each.end]
        assert not alive, f"{name} beside {alive}"
        assert self.runs[action.wanted.run].stage is not None
        self.serial += 1
        view = cases.batch(
            action.wanted,
            action.stage,
            action.attempt,
            name=name,
            target=action.target,
            failures=action.failures,
        )
        self.jobs[name] = Job(replace(view, uid=f"job-{self.serial}"), action.workers)

    def _delete(self, name: str) -> None:
        del self.jobs[name]
        for uid, pod in self.pods.items():
            if pod.job == name:
                self.pods[uid] = replace(pod, deleting=True)
                self.ends.setdefault(uid, "taken")

    def _bury(self, run: Run, action: RecordDeath, worker: str, worker_id: str, cause: str) -> None:
        beat = run.beats.get(worker)
        if beat is None or beat.worker_id != worker_id or beat.state is not BeatState.RUNNING:
            return
        run.beats[worker] = beat.model_copy(update={"state": BeatState.DEAD, "cause": cause})
        self.deaths.append((action, self.ends.get(worker_id, "")))
        run.mysteries += cause == "unexplained"

    def _publish(self, target: str, wanted: Wanted) -> Publication | Problem:
        if self.publish_problem is not None:
            return self.publish_problem
        manifest = f"sha256:{wanted.digest}"
        if self.wish.manual and not self.wish.approved:
            return Publication("AwaitingApproval", manifest, self.pointers.get(target))
        self.pointers[target] = cases.ENGINE.model_copy(update={"manifest": manifest})
        return Publication("Served", manifest, self.pointers[target])

    # The job controller, the scheduler, the kubelet.

    def control(self) -> None:
        """Replace pods, end Jobs, collect pods of Jobs that are gone."""
        for uid, pod in list(self.pods.items()):
            if pod.deleting or pod.job not in self.jobs:
                del self.pods[uid]
        for job in self.jobs.values():
            if not job.end:
                self._control(job)

    def _control(self, job: Job) -> None:
        states = [self._index(job, index) for index in range(job.workers)]
        if self._refused(job):
            job.end = "Failed"
            for uid, pod in self.pods.items():
                if pod.job == job.view.name and not pod.over:
                    self.pods[uid] = replace(pod, deleting=True)
                    self.ends.setdefault(uid, "taken")
        elif "live" not in states:
            job.end = "Failed" if "failed" in states else "Complete"

    def _index(self, job: Job, index: int) -> str:
        """`complete`, `failed` or `live`; a missing pod is created."""
        own = [pod for pod in self.pods.values() if (pod.job, pod.index) == (job.view.name, index)]
        if any(pod.exit_code == 0 for pod in own):
            return "complete"
        if any(pod.exit_code in (65, 67) for pod in own):
            return "failed"
        counted = sum(pod.exit_code not in (None, 143) and not pod.disrupted for pod in own)
        if counted > BACKOFF:
            return "failed"
        if all(pod.over for pod in own):
            self.serial += 1
            uid = f"pod-{self.serial}"
            self.pods[uid] = replace(cases.pod(job.view, index, "Pending", uid=uid), since=cases.later(self.now))
        return "live"

    def _refused(self, job: Job) -> bool:
        return any(pod.exit_code == 64 for pod in self.pods.values() if pod.job == job.view.name)

    def schedule(self) -> None:
        for uid, pod in self.pods.items():
            if pod.phase == "Pending" and not pod.deleting:
                self.pods[uid] = replace(pod, phase="Running")

    def kill(self, uid: str, how: str) -> None:
        """A worker dies without a word."""
        pod = self.pods[uid]
        self.ends[uid] = how
        match how:
            case "killed":
                self.pods[uid] = replace(pod, phase="Failed", exit_code=137)
            case "memory":
                self.pods[uid] = replace(pod, phase="Failed", exit_code=137, oom_killed=True)
            case "evicted":
                self.pods[uid] = replace(pod, phase="Failed", exit_code=137, disrupted="EvictionByEvictionAPI")
            case "taken":
                del self.pods[uid]
            case _:
                code = {"internal": 70, "store": 66, "device": 65}[how]
                self.pods[uid] = replace(pod, phase="Failed", exit_code=code, reason="Broken", message="it broke")

    # Workers.

    def running(self) -> Iterator[tuple[str, PodView, Job | None]]:
        for uid, pod in list(self.pods.items()):
            if pod.phase == "Running":
                yield uid, pod, self.jobs.get(pod.job)

    def work(self, uid: str) -> None:
        """One step of a worker: start, stop as told, or do a trial."""
        pod = self.pods[uid]
        job = self.jobs.get(pod.job)
        if job is None or pod.deleting:  # SIGTERM reached it
            self._leave_signalled(uid, pod)
            return
        run = self.runs[job.view.run]
        name = f"{job.view.attempt}-{pod.index}"
        beat = run.beats.get(name)
        if beat is None or beat.worker_id != uid:
            known = beat.model_dump(include={"done", "outcomes", "device_seconds"}) if beat else {}
            run.beats[name] = cases.beat(name, uid, stage=job.view.stage, trial="t", **known)
            return
        reason = run.stops.get(job.view.attempt)
        if run.convicted or (run.mysteries >= 3 and run.stage in ("discover", "final")):
            run.convicted = True
            self._leave(uid, run, name, 64, "StageConvicted")
        elif reason in ("BudgetExhausted", "DeadlineExceeded") and job.view.stage == "explore":
            run.final = True
            self._leave(uid, run, name, 0)
        elif reason is not None:
            self._leave(uid, run, name, 67)
        elif job.view.stage != run.stage:
            self._leave(uid, run, name, 0)
        elif run.bad_input:
            self._leave(uid, run, name, 64, "UnknownKnob")
        else:
            self._trial(run, name)

    def _trial(self, run: Run, name: str) -> None:
        beat = run.beats[name]
        outcome = OUTCOMES[run.done % 3]
        outcomes = dict(beat.outcomes) | {outcome: beat.outcomes.get(outcome, 0) + 1}
        grown = {"done": beat.done + 1, "outcomes": outcomes, "device_seconds": beat.device_seconds + 10.0}
        run.beats[name] = beat.model_copy(update=grown)
        match run.stage:
            case "discover":
                run.discovered, run.mysteries = True, 0
            case "explore":
                run.done += 1
                run.final = run.done >= TRIALS
                run.mysteries = 0
            case "final":
                run.verdict = True
            case None:
                pass

    def _leave(self, uid: str, run: Run, name: str, code: int, reason: str = "") -> None:
        state = BeatState.STOPPED if code == 67 else BeatState.DONE
        run.beats[name] = run.beats[name].model_copy(update={"state": state, "trial": ""})
        phase = "Failed" if code else "Succeeded"
        message = "the input is wrong" if reason else ""
        self.pods[uid] = replace(
            self.pods[uid],
            phase=phase,  # type: ignore[arg-type]
            exit_code=code,
            reason=reason,
            message=message,
        )

    def _leave_signalled(self, uid: str, pod: PodView) -> None:
        for run in self.runs.values():
            for name, beat in run.beats.items():
                if beat.worker_id == uid and beat.state is BeatState.RUNNING:
                    run.beats[name] = beat.model_copy(update={"state": BeatState.STOPPED, "trial": ""})
        self.pods[uid] = replace(pod, phase="Failed", exit_code=143)
