"""A run as its records tell it. Immutable records are read once and kept; nothing here writes.

Whoever may write to the store can write a record, so each one is checked against the key that it lies under and against what it
follows from: a result that belongs elsewhere would otherwise be scored as another trial's.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from tuner_job.api.base import InputError, first_problem
from tuner_job.api.layers import LayerProfile
from tuner_job.api.messages import BeatRecord, DiscoveryRecord, PlanRecord, ResultRecord, RunRecord, SealRecord, VerdictRecord
from tuner_job.campaign.rounds import Fold
from tuner_job.measure.constraints import P99
from tuner_job.measure.samples import without_samples
from tuner_job.store import layout
from tuner_job.store.blobs import get_blob
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import find_record, read_record

_BEAT = re.compile(r"([0-9]{1,9})-([0-9]{1,9})\.json", re.ASCII)

READERS = 16
"""Requests at a time."""

LAYERS_BYTES = 8 << 20
LAYERS_TEXT_BYTES = 64 << 20
"""Of the layers blob, as it is stored and inflated."""

_LAYERS = TypeAdapter(dict[Literal["candidate", "baseline"], LayerProfile])


class RunReader:
    """Reads one run. Completeness is judged by keys that the plan knows, never by listing."""

    def __init__(self, store: ObjectStore, run: str) -> None:
        self._store = store
        self._id = run
        self._run: RunRecord | None = None
        self._discovery: DiscoveryRecord | None = None
        self._plans: list[PlanRecord] = []
        self._seals: list[SealRecord] = []
        self._results: dict[str, ResultRecord] = {}
        self._digests: dict[str, str] = {}
        self._verdict: VerdictRecord | None = None

    @property
    def run(self) -> RunRecord:
        """Raises InputError when the store has no such run."""
        if self._run is None:
            key = layout.run(self._id)
            run = read_record(self._store, key, RunRecord)
            if run is None:
                raise InputError(f"no run {self._id} in {self._store.url}", reason="NoSuchRun")
            _require(key, run.run == self._id, "it is of another run")
            self._run = run
        return self._run

    def discovery(self) -> DiscoveryRecord | None:
        if self._discovery is None:
            key = layout.discovery(self._id)
            discovery = read_record(self._store, key, DiscoveryRecord)
            _require(key, discovery is None or discovery.run == self._id, "it is of another run")
            self._discovery = discovery
        return self._discovery

    def plans(self) -> Sequence[PlanRecord]:
        """Every plan written so far, round 1 first."""
        while not self._plans or self._plans[-1].stage != "final":
            key = layout.plan(self._id, len(self._plans) + 1)
            plan = read_record(self._store, key, PlanRecord)
            if plan is None:
                break
            _require(key, (plan.run, plan.round) == (self._id, len(self._plans) + 1), "it is of another run or round")
            self._plans.append(plan)
        return self._plans

    def seals(self) -> Sequence[SealRecord]:
        """Every seal written so far, round 1 first."""
        while True:
            number = len(self._seals) + 1
            key = layout.seal(self._id, number)
            seal = read_record(self._store, key, SealRecord)
            if seal is None:
                return self._seals
            _require(key, (seal.run, seal.round) == (self._id, number), "it is of another run or round")
            planned = {trial.trial for trial in self.plans()[number - 1].trials} if len(self.plans()) >= number else set()
            told = [*(item.trial for item in seal.folded), *seal.carried_over]
            _require(key, len(told) == len(planned) and set(told) == planned, "it does not name each trial of its plan once")
            self._seals.append(seal)

    def result(self, trial: str) -> ResultRecord | None:
        """The result of a trial, without samples unless the run's metric or a constraint is computed from them."""
        if trial not in self._results:
            key = layout.result(self._id, trial)
            found = find_record(self._store, key, ResultRecord)
            if found is None:
                return None
            _require(key, (found.record.run, found.record.trial) == (self._id, trial), "it is of another run or trial")
            self._results[trial], self._digests[trial] = self._lean(found.record), found.digest
        return self._results[trial]

    def digests(self, plan: PlanRecord) -> dict[str, str]:
        """Trial → digest of its result's bytes, for every trial of the plan that has one."""
        self.read_results(trial.trial for trial in plan.trials)
        return {trial.trial: self._digests[trial.trial] for trial in plan.trials if self.result(trial.trial) is not None}

    def _lean(self, result: ResultRecord) -> ResultRecord:
        """Less its samples, where nothing is computed from them: those of thousands of trials would fill the memory."""
        if P99 in (self.run.inputs.measure.metric, *self.run.inputs.constraints):
            return result
        controls = tuple(one.model_copy(update={"timing": without_samples(one.timing)}) for one in result.controls)
        return result.model_copy(update={"timing": without_samples(result.timing), "controls": controls})

    def read_results(self, trials: Iterable[str]) -> None:
        """Read many results at once: a store answers many requests in the time of one."""
        unread = [trial for trial in trials if trial not in self._results]
        if len(unread) > 1:
            with ThreadPoolExecutor(min(READERS, len(unread))) as pool:
                list(pool.map(self.result, unread))

    def verdict(self) -> VerdictRecord | None:
        if self._verdict is None:
            key = layout.verdict(self._id)
            verdict = read_record(self._store, key, VerdictRecord)
            _require(key, verdict is None or verdict.run == self._id, "it is of another run")
            self._verdict = verdict
        return self._verdict

    def layers(self) -> Mapping[str, LayerProfile]:
        """`candidate` and `baseline` → layers of one build of that side of the final; empty where none are on record.

        Raises InputError or StoreCorrupt for a blob that is gone, damaged or too long.
        """
        verdict = self.verdict()
        if verdict is None or verdict.layers_blob is None:
            return {}
        key = layout.blob(verdict.layers_blob)
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            text = inflater.decompress(get_blob(self._store, verdict.layers_blob, LAYERS_BYTES), LAYERS_TEXT_BYTES)
        except zlib.error as error:
            raise InputError(f"{key}: not gzip: {error}", reason="PoisonedRecord") from None
        _require(key, inflater.eof, f"it is cut off, or inflates to more than {LAYERS_TEXT_BYTES} bytes")
        try:
            return {str(side): profile for side, profile in _LAYERS.validate_json(text).items()}
        except ValidationError as error:
            raise InputError(f"{key}: not the layers of a final: {first_problem(error)}", reason="PoisonedRecord") from None

    def beat(self, worker: str) -> BeatRecord | None:
        return read_record(self._store, layout.beat(self._id, worker), BeatRecord)

    def workers(self) -> list[str]:
        """Names of all workers that ever beat, latest attempt last. By listing: for display and local bookkeeping only."""
        found = (_BEAT.fullmatch(info.key.rpartition("/")[2]) for info in self._store.list(layout.beats(self._id)))
        return [f"{attempt}-{index}" for attempt, index in sorted((int(one[1]), int(one[2])) for one in found if one)]

    def newest_beat(self) -> BeatRecord | None:
        """The beat of a worker of the latest attempt."""
        names = self.workers()
        return self.beat(names[-1]) if names else None

    def fold(self) -> Fold:
        """All sealed rounds with their results. Needs discovery."""
        discovery = self.discovery()
        if discovery is None:
            raise InputError(f"run {self._id} has not been discovered yet", reason="NotDiscovered")
        seals = tuple(self.seals())
        plans = tuple(self.plans()[: len(seals)])
        self.read_results(item.trial for seal in seals for item in seal.folded)
        candidates = {trial.trial: trial.candidate for plan in plans for trial in plan.trials}
        results = {}
        for seal in seals:
            for item in seal.folded:
                key = layout.result(self._id, item.trial)
                result = self.result(item.trial)
                if result is None:
                    raise InputError(
                        f"{layout.seal(self._id, seal.round)} folds {item.trial}, whose result is gone from {self._store.url}",
                        reason="PoisonedRecord",
                    )
                _require(key, self._digests[item.trial] == item.digest, f"it is not what round {seal.round} folded")
                _require(key, result.candidate == candidates[item.trial], "it is of another candidate than was planned")
                counts = {len(result.timing), *(len(control.timing) for control in result.controls)} - {0}
                _require(key, counts <= {len(discovery.cases)}, f"it is not timed under {len(discovery.cases)} shape cases")
                results[item.trial] = result
        return Fold(self.run, discovery, plans, seals, results)


def _require(key: str, holds: bool, otherwise: str) -> None:
    if not holds:
        raise InputError(
            f"{key}: {otherwise}; something else wrote it. Start a new run with `rerun.token`", reason="PoisonedRecord"
        )
