"""The final: fresh builds of one candidate against twice as many fresh default builds, timed in turn, decided at build level."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from tuner_job.accuracy.gate import judge
from tuner_job.api.child import ENGINE_FILE, TIMING_CACHE_FILE, ChildReport
from tuner_job.api.inputs import RunInputs
from tuner_job.api.measurement import BASELINE, Candidate, DeviceState, EngineFile, Losses, Session
from tuner_job.api.messages import DiscoveryRecord, FinalBuild, PlanRecord, VerdictRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.baseline import BaselineFailed
from tuner_job.campaign.explain import layers, shown
from tuner_job.campaign.patience import Wait, patiently
from tuner_job.campaign.rounds import FINAL_BUILDS, Fold, device_seconds
from tuner_job.campaign.workspace import Workspace, unusable
from tuner_job.measure.constraints import P99
from tuner_job.measure.decision import Decision, decide
from tuner_job.measure.final import FinalDesign, design
from tuner_job.measure.samples import unpack
from tuner_job.measure.variance import pilot_components
from tuner_job.store.blobs import put_blob, put_blob_file
from tuner_job.store.records import timestamp

PASSES = 2
"""Timing processes: each loads the engines anew, so that no verdict rests on one process's memory layout."""

ENGINE_MEMORY = 4
"""Resident bytes of a loaded engine are taken as so many times its file, …"""

ENGINE_FLOOR = 96 << 20
"""… and at least so many."""


@dataclass(frozen=True)
class _Build:
    name: str
    path: Path
    engine: EngineFile
    losses: Losses


@dataclass(frozen=True)
class _Lost:
    """Why the candidate is out before any timing."""

    reason: str
    message: str


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def batch_room(sizes: Sequence[int], free: int, state: DeviceState | None) -> int:
    """How many engines, of so many bytes each, may be loaded at once: as many as fit in half of the `free` bytes of the host, and
    of a GPU as its `state` says; at least three, so that both sides are in each batch."""
    if state is not None and state.memory_total_bytes is not None:
        free = min(free, state.memory_total_bytes - (state.memory_used_bytes or 0))
    largest = max(max(ENGINE_FLOOR, ENGINE_MEMORY * size) for size in sizes)
    return max(3, int(free / 2 // largest))


class TimingFailed(BaselineFailed):
    """Engines that passed their checks could not be timed together."""


def final_design(inputs: RunInputs, discovery: DiscoveryRecord, explored_seconds: float) -> FinalDesign:
    """How large the final is: as much as a budget keeps back, or as explore used, unless the least size takes more."""
    least = FINAL_BUILDS * discovery.trial_seconds
    return design(
        pilot_components(discovery, inputs.measure.metric),
        inputs.measure,
        inputs.min_improvement,
        build_seconds=discovery.trial_seconds,
        budget_seconds=least if inputs.search.device_seconds > 0 else max(2 * least, explored_seconds),
        percentile=P99 in inputs.constraints,
        cases=len(discovery.cases),
    )


class Final:
    """Proves or refutes the pick of an explore stage."""

    def __init__(
        self,
        space: Workspace,
        discovery: DiscoveryRecord,
        fold: Fold,
        plan: PlanRecord,
        step: Callable[[str], None],
        wait: Wait = _sleep,
    ) -> None:
        self._space = space
        self._inputs = space.run.inputs
        self._discovery = discovery
        self._pick = plan.pick
        self._explored_seconds = device_seconds(fold.folded, discovery)
        self._step = step
        self._wait = wait
        self._rng = np.random.default_rng([space.run.seed, plan.round])
        self._states: list[DeviceState] = []
        self._before_build: DeviceState | None = None
        self._most = sys.maxsize
        """Engines that were seen to be too many at once, halved."""

    def verdict(self) -> VerdictRecord:
        """Build, check, time, decide, and store the blobs that the verdict names. Raises Stopped, BaselineFailed."""
        started = time.monotonic()
        plan = final_design(self._inputs, self._discovery, self._explored_seconds)
        builds, lost = self._builds(plan)
        try:
            sessions = self._time(plan, builds)
        except TimingFailed as error:
            # It passed its check but breaks while it is timed. If the default builds alone can be timed, it was the candidate.
            defaults = _side(builds, "baseline-")
            if len(defaults) == len(builds):
                raise
            builds, lost = defaults, _Lost("TimingFailedInFinal", str(error))
            sessions = self._time(plan, builds)
        decision = decide(
            sessions,
            [b.name for b in _side(builds, "candidate-")],
            [b.name for b in _side(builds, "baseline-")],
            weights=[case.weight for case in self._discovery.cases],
            metric=self._inputs.measure.metric,
            min_improvement=self._inputs.min_improvement,
            seed=self._space.run.seed,
            constraints=self._inputs.constraints,
            sizes={build.name: build.engine.size for build in builds},
            streams=self._inputs.measure.streams,
        )
        told = self._layers(builds, sessions)
        return self._record(plan, builds, lost, sessions, decision, told, time.monotonic() - started)

    def _layers(self, builds: Sequence[_Build], sessions: Mapping[str, Sequence[Sequence[Session]]]) -> bytes | None:
        """Of one build of each side, for people. After the timing, which it would disturb."""
        self._step("layers")
        paths = {build.name: build.path for build in builds}
        candidates, baselines = ([build.name for build in _side(builds, prefix)] for prefix in ("candidate-", "baseline-"))
        chosen = shown(sessions, candidates, baselines, self._discovery, self._inputs.measure.metric)
        return layers(self._space, self._discovery, {side: paths[name] for side, name in chosen.items()})

    def _builds(self, plan: FinalDesign) -> tuple[list[_Build], _Lost | None]:
        """All builds in a shuffled order, so that a machine that warms up or cools down favours neither side."""
        names = [f"baseline-{k}" for k in range(1, plan.baseline_repeats + 1)]
        if self._pick is not None:
            names += [f"candidate-{k}" for k in range(1, plan.repeats + 1)]
        done: list[_Build] = []
        lost: _Lost | None = None
        for position, index in enumerate(self._rng.permutation(len(names))):
            name = names[index]
            is_candidate = name.startswith("candidate-")
            if is_candidate and lost:
                continue
            self._step(f"build {position + 1}/{len(names)}")
            built = self._build(name, self._pick if is_candidate and self._pick else BASELINE)
            if isinstance(built, _Lost):
                if not is_candidate:
                    raise BaselineFailed(f"the final's {name}: {built.message}")
                lost = built
                continue
            done.append(built)
        return (_side(done, "baseline-") if lost else done), lost

    def _build(self, name: str, candidate: Candidate) -> _Build | _Lost:
        output = self._space.root / "final" / name
        request = self._space.request(
            "build",
            output,
            cases=self._discovery.cases,
            candidate=candidate,
            references_digest=self._discovery.references_digest,
            seed=self._space.run.seed,
        )
        end = self._space.insist(request)
        report = end.report
        if end.outcome is not Outcome.FEASIBLE or report is None or report.engine is None or report.losses is None:
            if end.outcome is Outcome.INFRASTRUCTURE:
                raise BaselineFailed(
                    f"the final's {name} ended in {end.phase} by a failure of the machine: {end.reason}", reason=unusable(end)
                )
            reason = "AccuracyFailedInFinal" if end.outcome is Outcome.INVALID_OUTPUT else "BuildFailedInFinal"
            return _Lost(reason, f"build {name} ended {end.outcome} in {end.phase}: {end.reason}")
        self._before_build = report.state
        accuracy = self._inputs.accuracy
        passed, why = judge(report.losses, accuracy.metric, accuracy.threshold)
        if not passed:
            return _Lost("AccuracyFailedInFinal", f"build {name}: {why}")
        (output / TIMING_CACHE_FILE).unlink(missing_ok=True)  # each build's own; dozens of them would fill the folder
        return _Build(name, output / ENGINE_FILE, report.engine, report.losses)

    def _time(self, plan: FinalDesign, builds: Sequence[_Build]) -> dict[str, list[list[Session]]]:
        """Sessions per build and case, on one clock. Every pass times shuffled batches of what fits in memory."""
        found: dict[str, list[list[Session]]] = {b.name: [[] for _ in self._discovery.cases] for b in builds}
        per_pass = -(-plan.sessions // PASSES)
        clock_zero = time.monotonic()
        for number in range(PASSES):
            for batch in self._batches(builds):
                self._step(f"timing pass {number + 1}/{PASSES}")
                for offset, report in self._timed(plan, batch, per_pass, clock_zero):
                    self._states += [report.state] if report.state is not None else []
                    for name, timings in report.timings.items():
                        for case, timing in enumerate(timings):
                            found[name][case] += [s.model_copy(update={"at": s.at + offset}) for s in timing.sessions]
        return found

    def _timed(
        self, plan: FinalDesign, batch: Sequence[_Build], sessions: int, clock_zero: float
    ) -> Iterator[tuple[float, ChildReport]]:
        """Start on the final's clock and report: of the whole batch, or of its halves where it does not fit after all."""
        offset = time.monotonic() - clock_zero
        request = self._space.request(
            "time",
            None,
            references_digest=self._discovery.references_digest,
            cases=self._discovery.cases,
            engines={build.name: build.path for build in batch},
            measure=plan.settings(self._inputs.measure).model_copy(update={"sessions": sessions}),
            seed=int(self._rng.integers(1 << 31)),
        )
        work = (
            len(batch) * sessions * plan.session_seconds / (self._inputs.measure.sessions * self._inputs.measure.session_seconds)
        )
        end = self._space.insist(request, self._space.limits_times(len(batch) + work))
        if end.outcome is Outcome.OUT_OF_MEMORY and len(batch) > 1:
            self._most = -(-len(batch) // 2)
            for half in (batch[::2], batch[1::2]):  # of sides that lie one after the other, so that both are in each
                yield from self._timed(plan, half, sessions, clock_zero)
            return
        if end.outcome is not Outcome.FEASIBLE or end.report is None:
            failed = BaselineFailed if end.outcome is Outcome.INFRASTRUCTURE else TimingFailed
            raise failed(f"timing the final's engines ended {end.outcome} in {end.phase}: {end.reason}", reason=unusable(end))
        yield offset, end.report

    def _batches(self, builds: Sequence[_Build]) -> list[list[_Build]]:
        """Shuffled batches that should fit in the free memory, candidate and default builds mixed alike.

        How much a loaded engine takes beside its file, for its activations above all, is not known: `_timed` finds out.
        """
        free = min(psutil.virtual_memory().available, self._space.limits.memory_bytes or sys.maxsize)  # a container has less
        room = min(self._most, batch_room([b.engine.size for b in builds], free, self._before_build))
        count = -(-len(builds) // room)
        batches: list[list[_Build]] = [[] for _ in range(count)]
        for side in ("candidate-", "baseline-"):
            own = _side(builds, side)
            for position, index in enumerate(self._rng.permutation(len(own))):
                batches[position % count].append(own[index])
        return [batch for batch in batches if batch]

    def _record(
        self,
        plan: FinalDesign,
        builds: Sequence[_Build],
        lost: _Lost | None,
        sessions: Mapping[str, Sequence[Sequence[Session]]],
        decision: Decision,
        told: bytes | None,
        seconds: float,
    ) -> VerdictRecord:
        by_name = {build.name: build for build in builds}
        chosen = by_name[decision.published]
        store, packed = self._space.store, _packed_samples(sessions)
        patiently(lambda: put_blob_file(store, chosen.path, chosen.engine.digest), self._wait)
        samples = patiently(lambda: put_blob(store, packed), self._wait)
        layers_blob = None if told is None else patiently(lambda: put_blob(store, told), self._wait)
        if decision.significant:
            reason, message = "Proven", decision.message
        elif decision.broken:
            reason, message = "ConstraintBroken", decision.message
        elif decision.host_slower:
            reason, message = "HostSlower", decision.message
        elif lost is not None:
            reason, message = lost.reason, lost.message
        elif self._pick is None:
            reason, message = "NoCandidate", "no candidate that may win was faster than the default beyond the noise of exploring"
        else:
            reason, message = "NoSignificantWin", decision.message
        return VerdictRecord(
            run=self._space.run.run,
            inputs_digest=self._space.run.inputs_digest,
            identity=self._discovery.identity,
            device=self._discovery.device,
            candidate=self._pick or BASELINE,
            significant=decision.significant,
            reason=reason,
            message=message,
            p_value=decision.p_value,
            route_gain=decision.route_gain,
            published=self._pick if decision.significant and self._pick else BASELINE,
            engine=chosen.engine,
            engine_gain=decision.engine_gain,
            engine_percentile=decision.engine_percentile,
            losses=chosen.losses,
            latency_seconds=decision.latency_seconds,
            baseline_seconds=decision.baseline_seconds,
            builds=tuple(
                FinalBuild(
                    name=build.name,
                    engine=build.engine,
                    losses=build.losses,
                    sessions=tuple(tuple(s.model_copy(update={"samples": ""}) for s in case) for case in sessions[build.name]),
                )
                for build in sorted(builds, key=lambda b: b.name)
            ),
            samples_blob=samples,
            layers_blob=layers_blob,
            states=tuple(self._states),
            method={**decision.method, "power": plan.statement, "passes": str(PASSES)},
            seconds=seconds,
            finished_at=timestamp(),
        )

    def close(self) -> None:
        """Remove the builds."""
        shutil.rmtree(self._space.root / "final", ignore_errors=True)


def _side(builds: Sequence[_Build], prefix: str) -> list[_Build]:
    return [build for build in builds if build.name.startswith(prefix)]


def _packed_samples(sessions: Mapping[str, Sequence[Sequence[Session]]]) -> bytes:
    """Every sample: {build: [case: [session: [seconds]]]}, gzip JSON, the same bytes for the same samples."""
    plain = {
        name: [[[float(f"{value:.9g}") for value in unpack(session.samples)] for session in case] for case in cases]
        for name, cases in sessions.items()
    }
    return gzip.compress(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode(), mtime=0)
