"""A run's records as one RunView. What never changes is read once and kept while the run is active; nothing here writes.

Whoever may write to the store can write a record. So every read is bounded, every record is checked against its key, and what a
worker says of itself is cut to what can be true: a lie marks its own run and nothing else.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from pydantic import ValidationError

from tuner_job.api.base import InputError, first_problem
from tuner_job.api.effective import inputs_digest, run_id
from tuner_job.api.measurement import Device
from tuner_job.api.messages import (
    DISCOVER,
    FINAL,
    BeatRecord,
    BeatState,
    DiscoveryRecord,
    PlanRecord,
    ResultRecord,
    RunRecord,
    VerdictRecord,
)
from tuner_job.api.outcome import Outcome
from tuner_job.api.tuningjob_status import Incumbent
from tuner_job.campaign.reader import READERS
from tuner_job.campaign.rounds import MOST_ROUNDS, reserved_seconds
from tuner_job.campaign.start import seed_of
from tuner_job.store import layout
from tuner_job.store.objects import Info, ObjectStore
from tuner_job.store.records import read_record
from tuning_operator.records.stores import problem_of
from tuning_operator.snapshot import Problem, RunView, Stage, VerdictView, WorkerCounts

ACTIVE_RUNS = 4096
"""Runs whose immutable records are remembered; for the least recently read ones they are read again."""

MOST_BEATS = 16_384
MOST_ATTEMPT = 9_999
BEAT_BYTES = 64 << 10
"""Of a beat; an honest one has one thousandth of BeatRecord.MAX_BYTES."""
ALL_BEATS_BYTES = 32 << 20
"""Of a run's beats together, as the store lists them: reading more would keep the store's threads from other runs."""

DEVICE_BYTES = 4 << 10
MOST_TRIALS = 1_000_000
MOST_SECONDS = 1e9
"""More than this no worker can have done or used."""

CONVICTED = "StageConvicted"
"""What a worker says that meets such a conviction (campaign.stages, which the operator does not import)."""

_ROUTE_LENGTH = 384
_TEXT_LENGTH = 500
_ID_LENGTH = 160

_BEAT = re.compile(r"([1-9][0-9]{0,8})-(?:0|[1-9][0-9]{0,8})\.json", re.ASCII)
_STOP = re.compile(r"([1-9][0-9]{0,8})\.json", re.ASCII)
_WORD = re.compile(r"[A-Za-z]{1,32}", re.ASCII)
_OUTCOMES = frozenset(Outcome)


@dataclass(frozen=True)
class _Known:
    """What no later look at the run can change."""

    record: RunRecord
    discovered: bool = False
    device: Device | None = None
    trial_seconds: float = 0.0
    reserved_seconds: float = 0.0
    round: int = 0
    planned: int = 0
    final: bool = False
    """The last plan is the final's."""
    incumbent: Incumbent | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Of the trials of all sealed rounds; what the last plan counted."""
    cached: int = 0
    verdict: VerdictView | None = None
    ended: Mapping[str, _Ended] = field(default_factory=dict)
    """Worker → its last beat, if that said how the worker ended."""

    @property
    def stage(self) -> Stage | None:
        if self.verdict is not None:
            return None
        if not self.discovered or self.round == 0:
            return "discover"
        return "final" if self.final else "explore"


@dataclass(frozen=True)
class _Ended:
    """A beat that only a successor of the same name overwrites, and how the store lists it."""

    size: int
    modified: datetime
    beat: BeatRecord


class Mirror:
    """Reads runs, for threads. One reader of a run at a time is enough, but more do no harm."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, _Known]] = OrderedDict()
        """Run → URL of its store, and what is known."""
        self._lock = threading.Lock()

    def read(self, store: ObjectStore, run: str) -> RunView | Problem | None:
        """The run as it is now; None when it was never started, a Problem when its records cannot be relied on.

        Raises what the store raises while it cannot be read (StoreUnavailable).
        """
        try:
            return self._read(store, run)
        except InputError as error:
            return problem_of(error)

    def forget(self, run: str) -> None:
        """The run is over."""
        with self._lock:
            self._known.pop(run, None)

    def _read(self, store: ObjectStore, run: str) -> RunView | None:
        with self._lock:
            url, known = self._known.get(run, ("", None))
        if known is None or url != store.url:
            record = genuine_run(store, run)
            if record is None:
                return None
            free_text = {"trigger": _line(record.trigger), "created_at": record.created_at[:_ID_LENGTH]}  # all else is in its id
            known = _Known(record.model_copy(update=free_text))
        # Signs of life first: a worker whose record is not there yet when it is looked for is still seen at work.
        ended, beats = _beats(store, run, known.ended)
        known = _verdict(store, _plans(store, _discovery(store, replace(known, ended=ended))))
        with self._lock:
            self._known[run] = (store.url, known)
            self._known.move_to_end(run)
            while len(self._known) > ACTIVE_RUNS:
                self._known.popitem(last=False)
        return RunView(
            record=known.record,
            stage=known.stage,
            round=known.round,
            planned=known.planned,
            device=known.device,
            trial_seconds=known.trial_seconds,
            reserved_seconds=known.reserved_seconds,
            incumbent=known.incumbent,
            beats=beats,
            stopped=_stopped(store, run),
            counts=_counts(known, beats.values()),
            convicted=_conviction(store, known),
            verdict=known.verdict,
        )


def genuine_run(store: ObjectStore, run: str) -> RunRecord | None:
    """`run.json`, if it is the run of its own inputs, owner and token: its id is a digest of them. Raises InputError."""
    key = layout.run(run)
    record = read_record(store, key, RunRecord)
    if record is None:
        return None
    digest = inputs_digest(record.inputs)
    named = run_id(record.owner, record.target, digest, record.rerun_token)
    _require(key, (record.run, named) == (run, run), "it is of another run")
    _require(key, (record.inputs_digest, record.seed) == (digest, seed_of(run)), "it contradicts its own inputs")
    return record


def gain_text(gain: float) -> str:
    """A relative gain as the API writes it: `0.1234`."""
    return f"{round(min(max(gain, -1e5), 1e5), 4) + 0.0:.4f}"


def _discovery(store: ObjectStore, known: _Known) -> _Known:
    if known.discovered:
        return known
    run = known.record.run
    key = layout.discovery(run)
    discovery = read_record(store, key, DiscoveryRecord)
    if discovery is None:
        return known
    _require(key, discovery.run == run, "it is of another run")
    _require(key, len(discovery.device.to_json()) <= DEVICE_BYTES, f"its device takes more than {DEVICE_BYTES} bytes")
    return replace(
        known,
        discovered=True,
        device=discovery.device,
        trial_seconds=_seconds(discovery.trial_seconds),
        reserved_seconds=_seconds(reserved_seconds(known.record.inputs, discovery)),
    )


def _plans(store: ObjectStore, known: _Known) -> _Known:
    """Follow the plans from the last known one. The carried over are listed again under their old names."""
    run, planned = known.record.run, known.planned
    while not known.final:
        number = known.round + 1
        key = layout.plan(run, number)
        plan = read_record(store, key, PlanRecord)
        if plan is None:
            break
        _require(key, (plan.run, plan.round) == (run, number), "it is of another run or round")
        _require(key, number <= MOST_ROUNDS or plan.stage == "final", f"there are at most {MOST_ROUNDS} rounds")
        planned += sum(trial.trial.startswith(f"{number:03d}-") for trial in plan.trials)
        known = replace(
            known,
            round=number,
            planned=min(planned, MOST_TRIALS),
            final=plan.stage == "final",
            incumbent=_incumbent(key, plan) or known.incumbent,
            outcomes={name: _count(number) for name, number in plan.outcomes.items() if name in _OUTCOMES},
            cached=_count(plan.cached),
        )
    return known


def _incumbent(key: str, plan: PlanRecord) -> Incumbent | None:
    if plan.leader is None:
        return None
    candidate = plan.leader.candidate
    try:
        return Incumbent(variant=candidate.variant, route=candidate.route[:_ROUTE_LENGTH], gain=gain_text(plan.leader.gain))
    except ValidationError as error:
        raise _poisoned(key, f"leader: {first_problem(error)}") from None


def _verdict(store: ObjectStore, known: _Known) -> _Known:
    if not known.final or known.verdict is not None:
        return known
    key = layout.verdict(known.record.run)
    verdict = read_record(store, key, VerdictRecord)
    if verdict is None:
        return known
    _require(key, verdict.run == known.record.run, "it is of another run")
    _require(key, _WORD.fullmatch(verdict.reason) is not None, "its reason is no word")
    gain = verdict.engine_gain if verdict.significant else None
    view = VerdictView(
        significant=verdict.significant,
        reason=verdict.reason,
        gain=gain_text(gain.estimate) if gain else "",
        message=_line(verdict.message),
        engine=f"sha256:{verdict.engine.digest}",
    )
    return replace(known, verdict=view)


def _conviction(store: ObjectStore, known: _Known) -> Problem | None:
    """Discover and final are one trial each. A result of theirs is written only to end them for good."""
    trial = FINAL if known.stage == "final" else DISCOVER
    if known.verdict is not None or (trial == DISCOVER and known.discovered):
        return None
    run = known.record.run
    key = layout.result(run, trial)
    result = read_record(store, key, ResultRecord)
    if result is None:
        return None
    _require(key, (result.run, result.trial) == (run, trial), "it is of another run or trial")
    return Problem(CONVICTED, f"stage {trial}: {_line(result.reason)}; see its pods' logs, then set spec.rerun.token")


def _stopped(store: ObjectStore, run: str) -> frozenset[int]:
    listed = islice(store.list(layout.stops(run)), MOST_ATTEMPT + 1)
    found = (_STOP.fullmatch(info.key.rpartition("/")[2]) for info in listed)
    return frozenset(_attempt(layout.stop(run, int(one[1])), int(one[1])) for one in found if one)


def _beats(store: ObjectStore, run: str, ended: Mapping[str, _Ended]) -> tuple[dict[str, _Ended], dict[str, BeatRecord]]:
    """The beats that said how their workers ended, and all of them."""
    listed: dict[str, Info] = {}
    for info in islice(store.list(layout.beats(run)), MOST_BEATS + 1):
        name = info.key.rpartition("/")[2]
        if (one := _BEAT.fullmatch(name)) is not None:
            _attempt(info.key, int(one[1]))
            listed[name.removesuffix(".json")] = info
    _require(layout.beats(run), len(listed) <= MOST_BEATS, f"there are more than {MOST_BEATS} workers")
    size = sum(info.size for info in listed.values())
    _require(layout.beats(run), size <= ALL_BEATS_BYTES, f"{size} bytes of beats; {ALL_BEATS_BYTES} are the most")
    known = {
        name: ended[name]
        for name, info in listed.items()
        if name in ended and (ended[name].size, ended[name].modified) == (info.size, info.modified)
    }
    unread = [name for name in listed if name not in known]
    with ThreadPoolExecutor(READERS) as pool:
        read = list(pool.map(lambda name: _beat(store, run, name), unread))
    beats = {name: one.beat for name, one in known.items()} | {
        name: beat for name, beat in zip(unread, read, strict=True) if beat
    }
    for name, beat in zip(unread, read, strict=True):
        if beat is not None and beat.state is not BeatState.RUNNING:
            known[name] = _Ended(listed[name].size, listed[name].modified, beat)
    return known, beats


def _beat(store: ObjectStore, run: str, worker: str) -> BeatRecord | None:
    key = layout.beat(run, worker)
    found = store.get(key, BEAT_BYTES)
    if found is None:
        return None
    beat = BeatRecord.parse(found.data, key)
    _require(key, beat.worker == worker, "it is of another worker")
    _require(key, len(beat.worker_id) <= _ID_LENGTH, f"its worker id is longer than {_ID_LENGTH} letters")
    return beat.model_copy(
        update={
            "outcomes": {name: _count(number) for name, number in beat.outcomes.items() if name in _OUTCOMES},
            "cached": _count(beat.cached),
            "done": _count(beat.done),
            "device_seconds": _seconds(beat.device_seconds),
            "detail": _line(beat.detail),
            "phase": _line(beat.phase),
            "trial": beat.trial[:_ID_LENGTH],
            "at": beat.at[:_ID_LENGTH],
        }
    )


def _counts(known: _Known, beats: Iterable[BeatRecord]) -> WorkerCounts:
    """Beats are ahead of the sealed rounds, but may miss what a worker did in its last second; the sealed rounds miss nothing.

    Discover and the final are no trials of a plan: of their workers only the device seconds count.
    """
    outcomes: Counter[str] = Counter()
    cached, running, seconds = 0, 0, 0.0
    for beat in beats:
        seconds += beat.device_seconds
        if beat.stage == "explore":
            outcomes.update(beat.outcomes)
            cached += beat.cached
            running += beat.state is BeatState.RUNNING and beat.trial != ""
    sealed = Counter(known.outcomes)
    best = sealed if known.final else sealed | outcomes
    return WorkerCounts(
        outcomes={name: min(number, MOST_TRIALS) for name, number in sorted(best.items())},
        cached=min(known.cached if known.final else max(known.cached, cached), MOST_TRIALS),
        running=running,
        device_seconds=_seconds(seconds),
    )


def _attempt(key: str, attempt: int) -> int:
    _require(key, attempt <= MOST_ATTEMPT, f"no run has {attempt} attempts")
    return attempt


def _count(number: int) -> int:
    return min(max(number, 0), MOST_TRIALS)


def _seconds(value: float) -> float:
    return min(max(value, 0.0), MOST_SECONDS)


def _line(text: str) -> str:
    return " ".join(text[: 4 * _TEXT_LENGTH].split())[:_TEXT_LENGTH]


def _require(key: str, holds: bool, otherwise: str) -> None:
    if not holds:
        raise _poisoned(key, otherwise)


def _poisoned(key: str, what: str) -> InputError:
    return InputError(f"{key}: {what}; something else wrote it. Start a new run with spec.rerun.token", reason="PoisonedRecord")
