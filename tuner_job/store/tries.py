"""Who runs a trial: claims, takeovers and convictions, agreed through the store alone.

Creating `try-<k>.json` is the claim. `try-<k+1>` may follow only when try k has ended without a result: its worker said so,
someone who knows noted its death, or it gave no sign of life for 120 s of successful reads by one observer's monotonic clock.
Each try says how its predecessor ended; two `outOfMemory` or three `unexplained` ends convict the trial, and its result is then
written for it. Results are create-only, so a worker that was only slow does no harm: the first result stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import BeatRecord, PreviousEnd, ResultRecord, TryRecord
from tuner_job.api.outcome import Outcome
from tuner_job.store import layout
from tuner_job.store.beats import Heart, Watch, end_of, mark_dead
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record, read_record, timestamp

__all__ = ["STALE_SECONDS", "Busy", "Claim", "Claims", "Done", "Heart", "convicts", "mark_dead"]

STALE_SECONDS = 120.0
"""Eight beats."""
OUT_OF_MEMORY_ENDS = 2
UNEXPLAINED_ENDS = 3


@dataclass(frozen=True)
class Claim:
    """The right, and the duty, to run a trial and write its result."""

    trial: str
    candidate: Candidate
    number: int
    """Which try this is, from 1."""
    worker: str
    worker_id: str
    _claims: Claims = field(repr=False, compare=False)

    def again(self, previous: PreviousEnd) -> Claim | None:
        """The next try of the same trial by the same worker. None: another took the trial over meanwhile."""
        return self._claims._next_try(self.trial, self.candidate, previous)


@dataclass(frozen=True)
class Busy:
    """In another worker's hands, as far as can be seen."""

    worker: str


@dataclass(frozen=True)
class Done:
    """The trial has its result."""


class Claims:
    """One worker's claims on the trials of a run.

    A worker holds one claim at a time. A claim that raised may still have been made: claim the same trial again (it is
    returned), or leave it, and others take it over as if the worker had died but without counting against the trial.
    """

    def __init__(
        self,
        store: ObjectStore,
        run: str,
        heart: Heart,
        *,
        stale_seconds: float = STALE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is monotonic seconds."""
        self._store = store
        self._run = run
        self._heart = heart
        self._stale_seconds = stale_seconds
        self._clock = clock
        self._tries: dict[str, list[TryRecord]] = {}
        self._watches: dict[tuple[str, int], Watch] = {}
        self._done: set[str] = set()

    def claim(self, trial: str, candidate: Candidate) -> Claim | Busy | Done:
        """Try to get a trial to run. Raises what the store raises; nothing then looks stale before it is watched anew."""
        try:
            return self._claim(trial, candidate)
        except TrtfleetError:
            self._watches.clear()
            raise

    def _claim(self, trial: str, candidate: Candidate) -> Claim | Busy | Done:
        if self._has_result(trial):
            return Done()
        tries = self._read_tries(trial)
        end: PreviousEnd | None = None
        if tries:
            last = tries[-1]
            if last.worker_id == self._heart.worker_id:
                return self._take(last, candidate)  # made by a call whose answer was lost
            end = self._end(last)
            if end is None:
                return Busy(last.worker)
            if outcome := self._convicted(tries, end):
                self._convict(trial, candidate, outcome, tries, end)
                return Done()
        claim = self._next_try(trial, candidate, end)
        if claim is None:
            return Busy(self._read_tries(trial)[-1].worker)
        if end is not None and self._has_result(trial):
            return Done()  # its worker was slow, not dead
        return claim

    def _next_try(self, trial: str, candidate: Candidate, previous: PreviousEnd | None) -> Claim | None:
        tries = self._tries.setdefault(trial, [])
        record = TryRecord(
            trial=trial,
            number=len(tries) + 1,
            worker=self._heart.worker,
            worker_id=self._heart.worker_id,
            started_at=timestamp(),
            previous=previous,
        )
        if not create_record(self._store, layout.claim(self._run, trial, record.number), record):
            return None
        tries.append(record)
        return self._take(record, candidate)

    def _take(self, record: TryRecord, candidate: Candidate) -> Claim:
        self._heart.begin(record.trial)
        return Claim(record.trial, candidate, record.number, record.worker, record.worker_id, self)

    def _has_result(self, trial: str) -> bool:
        if trial not in self._done and self._store.exists(layout.result(self._run, trial)):
            self._done.add(trial)
        return trial in self._done

    def _read_tries(self, trial: str) -> list[TryRecord]:
        tries = self._tries.setdefault(trial, [])
        while True:
            number = len(tries) + 1
            key = layout.claim(self._run, trial, number)
            record = read_record(self._store, key, TryRecord)
            if record is None:
                return tries
            if (record.trial, record.number) != (trial, number):
                raise InputError(f"{key}: it is of another trial or try; something else wrote it", reason="PoisonedRecord")
            tries.append(record)

    def _end(self, last: TryRecord) -> PreviousEnd | None:
        noted = end_of(self._store, self._run, last.worker_id)
        if noted is not None:
            return noted
        beat = read_record(self._store, layout.beat(self._run, last.worker), BeatRecord)
        watch = self._watches.setdefault((last.trial, last.number), Watch(self._stale_seconds))
        return watch.saw(last, beat, self._clock())

    def _convicted(self, tries: Sequence[TryRecord], end: PreviousEnd) -> Outcome | None:
        ends = [tried.previous for tried in tries if tried.previous is not None] + [end]
        if convicts(ends) is None:
            return None
        # whoever can explain a death may have been slower than those who took the trial over
        explained = [
            (end_of(self._store, self._run, tried.worker_id) or known) if known.cause == "unexplained" else known
            for tried, known in zip(tries, ends, strict=True)
        ]
        return convicts(explained)

    def _convict(self, trial: str, candidate: Candidate, outcome: Outcome, tries: Sequence[TryRecord], end: PreviousEnd) -> None:
        workers = ", ".join(dict.fromkeys(tried.worker for tried in tries))
        how = "ran out of memory" if outcome is Outcome.OUT_OF_MEMORY else "died"
        result = ResultRecord(
            run=self._run,
            trial=trial,
            candidate=candidate,
            outcome=outcome,
            reason=f"its workers ({workers}) {how} in each of several tries; last: {end.detail or end.cause}"[:2000],
            tries=len(tries),
            convicted=True,
            worker=self._heart.worker,
            worker_id=self._heart.worker_id,
            finished_at=timestamp(),
        )
        if create_record(self._store, layout.result(self._run, trial), result):
            self._heart.finished(outcome)


def convicts(ends: Sequence[PreviousEnd]) -> Outcome | None:
    """The outcome of a trial whose tries ended so, if it is guilty; None if it deserves another try."""
    causes = [end.cause for end in ends]
    if causes.count("outOfMemory") >= OUT_OF_MEMORY_ENDS:
        return Outcome.OUT_OF_MEMORY
    if causes.count("unexplained") >= UNEXPLAINED_ENDS:
        return Outcome.CRASHED
    return None
