"""Whatever happens in whatever order: the operator does no harm, and in the end every run is over and nothing is asked for."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from reconcile_world import World, wanted_of

from tuner_job.api.tuningjob_status import TargetStatus, TrialCounts
from tuning_operator.actions import CreateJob, StartRun
from tuning_operator.snapshot import Problem

pytestmark = pytest.mark.timeout(600)  # ten seconds of work, on machines that may do much else

DEATHS = ("killed", "memory", "evicted", "taken", "internal", "store", "device")
UNEXPLAINED = {"killed", "internal"}
SETTLED = {"Done", "Stalled", "Suspended", "AwaitingApproval"}

TARGETS = st.sampled_from([("gpu",), ("gpu", "edge"), ("edge", "gpu")])


class Operator(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.told: dict[tuple[str, str], TrialCounts] = {}

    @initialize(names=TARGETS, budget=st.booleans(), manual=st.booleans(), bad=st.sets(st.integers(0, 2), max_size=1))
    def apply(self, names: tuple[str, ...], budget: bool, manual: bool, bad: set[int]) -> None:
        self.world.edit(targets=names, budget=budget, manual=manual)
        self.world.bad_inputs = bad

    # The operator, and what keeps the cluster going.

    @rule()
    def look(self) -> None:
        self.world.look()

    @rule(steps=st.integers(1, 4))
    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.world.look()
            self._cluster()

    @rule()
    def calm(self) -> None:
        """Long enough for a run to end."""
        self.world.store_away = False
        self.go_on(15)

    @rule(inputs=st.integers(0, 2), steps=st.integers(0, 12))
    def there_and_back(self, inputs: int, steps: int) -> None:
        """An edit that is taken back while its run is somewhere."""
        before = self.world.wish.inputs
        self.world.edit(inputs=inputs)
        self.go_on(steps)
        self.world.look()
        self.world.edit(inputs=before)
        self.world.look()

    @rule(steps=st.integers(1, 3))
    def look_while_things_move(self, steps: int) -> None:
        def between() -> None:
            for _ in range(steps):
                self._cluster()

        self.world.look(between)

    @rule(actions=st.integers(0, 2))
    def killed_while_acting(self, actions: int) -> None:
        self.world.look(crash_after=actions)
        self.world.restart()

    @rule()
    def cluster(self) -> None:
        self._cluster()

    @rule(data=st.data())
    def one_worker(self, data: st.DataObject) -> None:
        if running := [uid for uid, _, _ in self.world.running()]:
            self.world.work(data.draw(st.sampled_from(running)))

    @rule(seconds=st.sampled_from([1.0, 60.0, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    # What goes wrong.

    @rule(deaths=st.lists(st.tuples(st.sampled_from(DEATHS), st.integers(0, 3)), min_size=1, max_size=8), looks=st.integers(1, 3))
    def workers_die(self, deaths: list[tuple[str, int]], looks: int) -> None:
        """One after the other, some with a trial in hand; in between the operator looks."""
        for how, place in deaths:
            for _ in range(looks):
                self.world.look()
                self.world.control()
            self.world.schedule()
            running = [uid for uid, pod, _ in self.world.running() if not pod.deleting]
            if running:
                uid = running[place % len(running)]
                self.world.work(uid)
                if self.world.pods[uid].phase == "Running":
                    self.world.kill(uid, how)
                self.world.control()

    @rule(how=st.sampled_from(DEATHS), times=st.integers(1, 4))
    def all_workers_die(self, how: str, times: int) -> None:
        """Again and again: what ends attempts."""
        for _ in range(times):
            self.world.look()
            self.world.control()
            self.world.schedule()
            for uid, pod, _ in self.world.running():
                if not pod.deleting:
                    self.world.kill(uid, how)
            self.world.control()

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data())
    def job_is_deleted(self, data: st.DataObject) -> None:
        self.world._delete(data.draw(st.sampled_from(sorted(self.world.jobs))))

    @rule()
    def status_is_lost(self) -> None:
        self.world.status = None
        self.world.restart()
        self.told.clear()

    @rule()
    def operator_restarts(self) -> None:
        self.world.restart()

    @rule(away=st.booleans())
    def store(self, away: bool) -> None:
        self.world.store_away = away

    @rule(problem=st.sampled_from([None, Problem("StoreUnavailable", "away", transient=True), Problem("PointerRefused", "no")]))
    def publishing(self, problem: Problem | None) -> None:
        self.world.publish_problem = problem
        self.world.restart()

    # What people do.

    @rule(inputs=st.integers(0, 2))
    def edit(self, inputs: int) -> None:
        self.world.edit(inputs=inputs)

    @rule(token=st.sampled_from(["", "again", "and-again"]))
    def rerun(self, token: str) -> None:
        self.world.edit(token=token)

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self.world.edit(suspend=suspend)

    @rule(approved=st.booleans())
    def approve(self, approved: bool) -> None:
        self.world.edit(approved=approved)

    @rule(names=TARGETS)
    def change_targets(self, names: tuple[str, ...]) -> None:
        self.world.edit(targets=names)

    # What must hold.

    @invariant()
    def at_most_one_live_job_per_target(self) -> None:
        live = [job.view.target for job in self.world.jobs.values() if not job.end]
        assert len(live) == len(set(live))

    @invariant()
    def deaths_are_explained_where_they_can_be(self) -> None:
        for action, how in self.world.deaths:
            if action.cause == "unexplained":
                assert how in UNEXPLAINED, (action, how)
            if action.cause == "outOfMemory":
                assert how == "memory", (action, how)
        self.world.deaths.clear()

    @invariant()
    def counters_never_go_down(self) -> None:
        for target in self.world.status.targets if self.world.status else ():
            run = target.active_run or next((past.id for past in target.recent_runs), "")
            if target.trials is None:
                continue
            before = self.told.get((target.name, run), TrialCounts()).model_dump(exclude={"running"})
            now = target.trials.model_dump(exclude={"running"})
            assert all(now[name] >= before[name] for name in now), (before, now)
            self.told[target.name, run] = target.trials

    def teardown(self) -> None:
        """People leave it alone, and nothing fails any more: every run ends, and then nothing is asked for."""
        world = self.world
        world.store_away, world.publish_problem = False, None
        world.restart()
        world.edit(suspend=False)
        self._settle()
        for job in [each for each in world.jobs.values() if each.end == "Failed"]:  # as the message of WrongDevice says
            with suppress(KeyError):
                world._delete(job.view.name)
        self._settle()
        assert world.status is not None
        for target in world.status.targets:
            assert target.active_run is None, target
            assert target.recent_runs, target
            self._tells_the_truth(target)
        assert world.status.phase in SETTLED
        self._asks_for_nothing()
        world.restart()
        self._asks_for_nothing()
        phase = world.status.phase
        world.status = None
        self._settle()
        assert world.status is not None
        assert phase in (world.status.phase, "Stalled")  # only that a run failed is not found out again: it goes on

    def _tells_the_truth(self, target: TargetStatus) -> None:
        world = self.world
        run = world.runs[wanted_of(world.wish, target.name).run]
        holds = {each.type for each in target.conditions if each.status == "True"}
        assert ("Tuned" in holds) == run.verdict, target
        if run.verdict and not world.wish.manual:
            assert {"Ready", "Published"} <= holds, target
            assert target.published == world.pointers[target.name]
            assert target.published.manifest == f"sha256:{run.wanted.digest}"
        elif run.verdict:
            assert ("Published" in holds) == world.wish.approved, target
            assert (target.awaiting_approval is None) == world.wish.approved, target

    def _settle(self) -> None:
        quiet = 0
        for _ in range(400):
            writes, world = self.world.writes, self.world
            decision = world.look()
            world.now += max(1.0, decision.again_seconds or 0.0)
            idle = not decision.actions and world.writes == writes and decision.again_seconds is None
            quiet = quiet + 1 if idle else 0
            if quiet == 3:
                return
            self._cluster()
        raise AssertionError(f"no rest: {world.status} {world.jobs} {world.runs}")

    def _asks_for_nothing(self) -> None:
        writes = self.world.writes
        decision = self.world.look()
        assert decision.actions == ()
        assert decision.again_seconds is None
        assert self.world.writes == writes
        assert not [each for each in decision.actions if isinstance(each, StartRun | CreateJob)]

    def _cluster(self) -> None:
        self.world.control()
        self.world.schedule()
        for uid, _, _ in self.world.running():
            self.world.work(uid)
        self.world.control()


def _machine(**options: Any) -> Any:
    """The machine as a test, under these settings."""
    case = Operator.TestCase
    case.settings = settings(deadline=None, suppress_health_check=list(HealthCheck), **options)
    return case


TestOperator = _machine(max_examples=100, stateful_step_count=40)
