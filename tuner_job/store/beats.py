"""Signs of life: a worker's beat, the note on how it ended, and what an observer makes of both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.messages import BeatRecord, BeatState, EndRecord, PreviousEnd, TryRecord
from tuner_job.api.outcome import Outcome
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record, find_record, put_record, read_record, timestamp

BEAT_SECONDS = 15.0
_SPACING_SECONDS = 1.0
"""Changes of trial or phase are written no closer together than this."""
_DETAIL_LENGTH = 500

Cause = Literal["stopped", "explained", "outOfMemory", "unexplained"]


class Heart:
    """Overwrites the beat of this worker, every `interval` seconds and when its trial or phase changes, in a thread of its own.

    A store that fails meanwhile is only noted in `problem`: the trial in hand goes on, and the next beat may succeed.

    Its counts go on from the last beat of the same worker name (a pod that replaces another), so that beats add up to what the
    run has used and found. The trial in hand counts device time from its first phase on.

    As a context manager it starts on entry. On exit it ends, unless closed before: DONE; stopped on SystemExit and
    KeyboardInterrupt; explained on a TrtfleetError; unexplained on any other exception, since the trial in hand may be to blame.
    """

    def __init__(
        self,
        store: ObjectStore,
        run: str,
        *,
        worker: str,
        worker_id: str,
        stage: Literal["discover", "explore", "final"],
        interval: float = BEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is monotonic seconds."""
        self.worker = worker
        self.worker_id = worker_id
        self.problem: TrtfleetError | None = None
        """Why the last beat was not written; None if it was."""
        self._store = store
        self._run = run
        self._interval = interval
        self._clock = clock
        self._beat = BeatRecord(worker=worker, worker_id=worker_id, sequence=0, stage=stage, at=timestamp())
        self._settled = 0.0
        """Device seconds without the trial in hand."""
        self._began: float | None = None
        """When the trial in hand first used the device."""
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Write the first beat, then go on in the background. Raises what the store raises: claim nothing without a beat."""
        self._inherit()
        self.beat()
        self._thread = threading.Thread(target=self._loop, name=f"heart-{self.worker}", daemon=True)
        self._thread.start()

    def begin(self, trial: str) -> None:
        """The trial in hand, until the next `begin` or `finished`. Claims calls it."""
        with self._lock:
            if trial != self._beat.trial:  # another try of the same one goes on
                self._settle(self._in_hand())
        self._change(trial=trial, phase="")

    def phase(self, name: str) -> None:
        """What the trial in hand is at."""
        with self._lock:
            if self._began is None and self._beat.trial:
                self._began = self._clock()
        self._change(phase=str(name))

    def finished(self, outcome: Outcome | None, *, cached: bool = False, device_seconds: float | None = None) -> None:
        """The trial in hand is over, or, with none in hand, one that others left was given its result.

        `outcome` is what this worker has written, None when it has written nothing: another result was first, and its writer
        counts it. Without `device_seconds` the time in hand is taken.
        """
        with self._lock:
            self._settle(self._in_hand() if device_seconds is None else device_seconds)
            beat = self._beat
            counts: dict[str, object] = {}
            if outcome is not None:
                outcomes = {**beat.outcomes, outcome.value: beat.outcomes.get(outcome.value, 0) + 1}
                counts = {"done": beat.done + 1, "outcomes": outcomes, "cached": beat.cached + cached}
        self._change(trial="", phase="", **counts)

    def close(self, state: BeatState = BeatState.DONE, *, cause: Cause | None = None, detail: str = "") -> None:
        """Stop the thread and say how this worker ends; `stopped` is the cause of STOPPED. Again: no effect.

        A store that fails now costs others the wait until the last try looks stale, nothing else.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        cause = cause or ("stopped" if state is BeatState.STOPPED else None)
        with self._lock:
            self._settle(self._in_hand())
            self._beat = self._beat.model_copy(
                update={"state": state, "cause": cause or "", "detail": detail[:_DETAIL_LENGTH], "phase": ""}
            )
        try:
            if cause is not None:
                _note(self._store, self._run, self.worker, self.worker_id, cause, detail)
            self.beat()
        except TrtfleetError as error:
            self.problem = error

    def beat(self) -> None:
        """Write the beat now. Raises what the store raises."""
        with self._writing:
            with self._lock:
                # what was told once stands: a result may say less than the time in hand, which its writing went into as well
                used = max(self._beat.device_seconds, self._settled + self._in_hand())
                self._beat = self._beat.model_copy(
                    update={"sequence": self._beat.sequence + 1, "device_seconds": used, "at": timestamp()}
                )
                record = self._beat
            put_record(self._store, layout.beat(self._run, self.worker), record)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        elif isinstance(error, TrtfleetError):
            self.close(BeatState.DEAD, cause="explained", detail=str(error))
        elif isinstance(error, Exception):
            self.close(BeatState.DEAD, cause="unexplained", detail=f"{type(error).__name__}: {error}")
        else:
            self.close(BeatState.STOPPED, detail=type(error).__name__)

    def _inherit(self) -> None:
        """Go on from the last beat of this name. One that cannot be used costs its counts, never the start."""
        try:
            last = read_record(self._store, layout.beat(self._run, self.worker), BeatRecord)
        except InputError:
            return
        if last is not None:
            with self._lock:
                self._settled = last.device_seconds
                kept = {name: getattr(last, name) for name in ("done", "outcomes", "cached", "device_seconds")}
                self._beat = self._beat.model_copy(update=kept)

    def _in_hand(self) -> float:
        return 0.0 if self._began is None else max(0.0, self._clock() - self._began)

    def _settle(self, seconds: float) -> None:
        self._settled, self._began = self._settled + seconds, None

    def _change(self, **fields: object) -> None:
        with self._lock:
            if all(getattr(self._beat, name) == value for name, value in fields.items()):
                return
            self._beat = self._beat.model_copy(update=fields)
        self._wake.set()

    def _loop(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(self._interval)
            self._wake.clear()
            if self._closing.is_set():
                return
            try:
                self.beat()
                self.problem = None
            except TrtfleetError as error:
                self.problem = error
            self._closing.wait(min(_SPACING_SECONDS, self._interval / 2))


def mark_dead(store: ObjectStore, run: str, worker: str, *, cause: Cause, detail: str = "", worker_id: str | None = None) -> bool:
    """Record a death for a worker that cannot; for the CLI and the operator, who must know that the process is gone.

    Without `worker_id` the process of the worker's current beat is meant. False: its end is known already, or it never beat.
    """
    key = layout.beat(run, worker)
    stored = find_record(store, key, BeatRecord)
    worker_id = worker_id or (stored.record.worker_id if stored else None)
    if worker_id is None or (stored is not None and _ended_by_itself(stored.record, worker_id)):
        return False
    noted = _note(store, run, worker, worker_id, cause, detail)
    if stored is None or stored.record.worker_id != worker_id or stored.record.state is not BeatState.RUNNING:
        return noted
    # Only for those who look at beats: the note decides. If it was there already, whoever wrote it was cut off before the beat.
    # Swapped, so that a successor's beat is not overwritten.
    try:
        end = None if noted else end_of(store, run, worker_id)
    except InputError:  # a note that no one can read tells nothing; the workers that come to it end with that
        end = None
    end = end or PreviousEnd(cause=cause, detail=detail)
    beat = stored.record.model_copy(
        update={
            "state": BeatState.STOPPED if end.cause == "stopped" else BeatState.DEAD,
            "cause": end.cause,
            "detail": end.detail[:_DETAIL_LENGTH],
            "sequence": stored.record.sequence + 1,
            "at": timestamp(),
        }
    )
    store.swap(key, beat.to_json(), stored.tag)
    return noted


def end_of(store: ObjectStore, run: str, worker_id: str) -> PreviousEnd | None:
    """How that process ended, if anyone has noted it."""
    note = read_record(store, layout.end(run, worker_id), EndRecord)
    return None if note is None else PreviousEnd(cause=note.cause, detail=note.detail)


@dataclass
class Watch:
    """What one observer has seen of one try. Pure but for the times it is given.

    Only an advancing beat of the very process that made the try, with the try's trial in hand, is a sign of life. A beat of
    another process under the same worker name proves nothing about the first: an index can have two pods for a while.
    """

    stale_seconds: float
    quiet: float = 0.0
    """Seconds, in successful reads, without a sign of life."""
    moved_on: bool = False
    """The process lives, but with another trial in hand."""
    _read_at: float | None = None
    _sequence: int | None = None

    def saw(self, tried: TryRecord, beat: BeatRecord | None, now: float) -> PreviousEnd | None:
        """Take in one successful read at the observer's monotonic time `now`; the end of the try, if it has come."""
        own = beat if beat is not None and beat.worker_id == tried.worker_id else None
        if own is not None and own.state is BeatState.STOPPED:
            return PreviousEnd(cause="stopped", detail=own.detail)
        if own is not None and own.state is BeatState.DONE:
            return PreviousEnd(cause="infrastructure", detail=f"worker {own.worker} left without a result")
        first, since = self._read_at is None, now - (self._read_at or 0.0)
        self._read_at = now
        if first:
            self._sequence = own.sequence if own else None
            return None
        # an observer that was away (in a trial of its own) cannot vouch for what it did not read
        self.quiet += min(since, self.stale_seconds / 4)
        if own is not None and own.sequence != self._sequence:
            self._sequence = own.sequence
            self.moved_on = own.trial != tried.trial
            if not self.moved_on:
                self.quiet = 0.0
        if self.quiet < self.stale_seconds:
            return None
        if self.moved_on:
            return PreviousEnd(cause="infrastructure", detail=f"worker {tried.worker} went on to other trials without a result")
        return PreviousEnd(cause="unexplained", detail=f"worker {tried.worker} fell silent")


def _ended_by_itself(beat: BeatRecord, worker_id: str) -> bool:
    return beat.worker_id == worker_id and beat.state in (BeatState.STOPPED, BeatState.DONE)


def _note(store: ObjectStore, run: str, worker: str, worker_id: str, cause: Cause, detail: str) -> bool:
    note = EndRecord(worker=worker, worker_id=worker_id, cause=cause, detail=detail[:_DETAIL_LENGTH], at=timestamp())
    return create_record(store, layout.end(run, worker_id), note)
