"""The local executor: starts a run's workers as processes of this machine, stage by stage, over the same records as a cluster."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.messages import BeatState, VerdictRecord
from tuner_job.campaign import gpus
from tuner_job.campaign.exits import WorkerExit
from tuner_job.campaign.processes import id_of, is_gone
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.stages import StageConvicted, WrongDevice
from tuner_job.campaign.worker import MEMORY_SHARE, Stage
from tuner_job.store.connect import STORE_OPTIONS
from tuner_job.store.objects import ObjectStore, StoreUnavailable
from tuner_job.store.tries import mark_dead

STOP_PATIENCE = 30.0
"""Seconds that workers get to say in their beat that they stop, before they are killed."""

DYING_SECONDS = 10.0

DEATHS_WITHOUT_PROGRESS = 6
"""Workers killed in a row with no new result after which the run is given up: twice what convicts a trial."""

ERRORS_WITHOUT_PROGRESS = 3
"""The same for workers that ended by themselves and said why."""


class RunBusy(TrtfleetError):
    """Another `trtfleet run` of this machine works on the run."""

    reason = "RunBusy"


class RunStopped(TrtfleetError):
    """The user stopped the run; nothing is lost."""

    reason = "Stopped"


class RunFailed(TrtfleetError):
    """A worker ended in a way that no further start would mend."""

    reason = "RunFailed"


@dataclass
class _Process:
    name: str
    stage: Stage
    index: int
    popen: subprocess.Popen[bytes]
    worker_id: str
    """So that a death is noted for this process, not for another machine's worker of the same name."""
    end_message: Path


class LocalExecutor:
    """Drives one run to its verdict with `workers` processes. Killed at any point, the next one resumes from the store."""

    def __init__(
        self,
        store: ObjectStore,
        options: Mapping[str, str],
        run: str,
        *,
        workers: int,
        folder: Path,
        on_tick: Callable[[Stage], None] = lambda _stage: None,
        deadline_seconds: float = 0.0,
        tick_seconds: float = 0.25,
        worker_options: tuple[str, ...] = (),
    ) -> None:
        self._store = store
        self._options = dict(options)
        self._run = run
        self._workers = workers
        self._folder = folder
        self._on_tick = on_tick
        self._deadline = time.monotonic() + deadline_seconds if deadline_seconds > 0 else None
        self._tick = tick_seconds
        self._worker_options = worker_options
        self._reader = RunReader(store, run)
        self._gpus: tuple[str, ...] = ()
        self._attempt = 0
        self._deaths = 0
        self._finished = 0

    def complete(self) -> VerdictRecord:
        """Run what is left of the run. Raises RunBusy, RunStopped (Ctrl-C), RunFailed, or the workers' InputError.

        Explore workers on GPUs get one each; InputError where there are fewer.
        """
        self._gpus = gpus.deal(self._reader.run.inputs, self._workers, gpus.visible(os.environ))
        with _only_one(self._store.url, self._run):
            self._bury_predecessors()
            while (verdict := self._reader.verdict()) is None:
                self._run_stage(self._stage())
            return verdict

    def _stage(self) -> Stage:
        if self._reader.discovery() is None or not self._reader.plans():
            return "discover"
        return "final" if self._reader.plans()[-1].stage == "final" else "explore"

    def _run_stage(self, stage: Stage) -> None:
        count = self._workers if stage == "explore" else 1
        running = [self._start(stage, index) for index in range(count)]
        try:
            while running:
                self._on_tick(stage)
                self._sleep(running)
                for process in [p for p in running if p.popen.poll() is not None]:
                    running.remove(process)
                    if (successor := self._ended(process)) is not None:
                        running.append(successor)
        except KeyboardInterrupt:
            self._stop(running)
            raise RunStopped(f"stopped; nothing is lost: the same command goes on with run {self._run}") from None
        except BaseException:
            for process in running:
                process.popen.kill()
            for process in running:
                process.popen.wait()
            raise
        self._on_tick(stage)

    def _sleep(self, running: list[_Process]) -> None:
        """Until the first worker ends, but no longer than a tick."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            running[0].popen.wait(self._tick)

    def _start(self, stage: Stage, index: int) -> _Process:
        self._attempt += 1
        name = f"{self._attempt}-{index}"
        logs = self._folder / "logs" / self._run
        logs.mkdir(parents=True, exist_ok=True)
        end_message = logs / f"{name}.end.json"
        end_message.unlink(missing_ok=True)
        left = 0.0 if self._deadline is None else max(0.001, self._deadline - time.monotonic())
        command = [
            sys.executable, "-m", "tuner_job.campaign.worker",
            "--store", self._store.url, "--run", self._run, "--stage", stage,
            "--attempt", str(self._attempt), "--index", str(index),
            "--scratch", str(self._folder / "scratch"), "--end-message", str(end_message),
            "--parent", str(os.getpid()), "--deadline-seconds", f"{left:.3f}",
            "--memory-share", f"{MEMORY_SHARE / (self._workers if stage == 'explore' else 1):.4f}", *self._worker_options,
        ]  # fmt: skip
        with (logs / f"{name}.log").open("ab") as log:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the executor alone, which stops its workers in order
                env={**os.environ, **self._own_gpu(stage, index), STORE_OPTIONS: json.dumps(self._options)},
            )
        return _Process(name, stage, index, popen, id_of(popen.pid), end_message)

    def _own_gpu(self, stage: Stage, index: int) -> dict[str, str]:
        return {gpus.VISIBLE: self._gpus[index]} if stage == "explore" and self._gpus else {}

    def _ended(self, process: _Process) -> _Process | None:
        """Judge a worker's end; returns its successor if one must be started."""
        code = process.popen.returncode
        if code in (WorkerExit.NOTHING_LEFT, WorkerExit.STOPPED, WorkerExit.INTERRUPTED):
            return None
        if code in (WorkerExit.BAD_INPUT, WorkerExit.WRONG_DEVICE, WorkerExit.STORE_UNUSABLE):
            raise _reported(process)
        signalled = code < 0
        mark_dead(
            self._store,
            self._run,
            process.name,
            cause="unexplained",
            detail=f"killed by signal {-code}" if signalled else f"exit code {code}",
            worker_id=process.worker_id,
        )
        self._count_death()
        if self._deaths >= (DEATHS_WITHOUT_PROGRESS if signalled else ERRORS_WITHOUT_PROGRESS):
            if signalled:
                raise RunFailed(
                    f"workers of stage {process.stage} were killed {self._deaths} times without a new result "
                    f"(last by signal {-code}); see {process.end_message.parent}"
                )
            raise _reported(process)
        return self._start(process.stage, process.index)

    def _count_death(self) -> None:
        planned = {t.trial for plan in self._reader.plans() for t in plan.trials}  # one carried over is planned twice
        finished = sum(self._reader.result(trial) is not None for trial in planned)
        self._deaths = 1 if finished > self._finished else self._deaths + 1
        self._finished = finished

    def _stop(self, running: list[_Process]) -> None:
        """Tell workers to stop; a second Ctrl-C or the patience's end kills them."""
        for process in running:
            process.popen.terminate()
        deadline = time.monotonic() + STOP_PATIENCE
        try:
            for process in running:
                process.popen.wait(max(0.0, deadline - time.monotonic()))
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            for process in running:
                process.popen.kill()
                process.popen.wait()

    def _bury_predecessors(self) -> None:
        """Workers that died with an earlier executor: explained deaths, so that nobody waits and nothing is convicted.

        The lock keeps other executors away; a beat that the listing misses costs a wait, nothing else.
        """
        for name in self._reader.workers():
            self._attempt = max(self._attempt, int(name.partition("-")[0]))
            beat = self._reader.beat(name)
            if beat is not None and beat.state is BeatState.RUNNING and _is_dying(beat.worker_id):
                mark_dead(self._store, self._run, name, cause="explained", detail="its trtfleet run ended")


def _is_dying(worker_id: str) -> bool:
    """Whether a predecessor's worker is gone: the kernel frees a killed executor's lock a moment before it ends its workers."""
    give_up = time.monotonic() + DYING_SECONDS
    while (gone := is_gone(worker_id)) is False and time.monotonic() < give_up:
        time.sleep(0.02)
    return gone is True


def _reported(process: _Process) -> TrtfleetError:
    """The error that the worker left in its end message."""
    try:
        end = json.loads(process.end_message.read_text())
        reason, message = str(end["reason"]), str(end["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return RunFailed(f"worker {process.name} ended with exit code {process.popen.returncode} and no reason; see its log")
    code = process.popen.returncode
    if reason == StageConvicted.reason:
        return RunFailed(f"{message} (in {process.end_message.parent})", reason=reason)
    if code == WorkerExit.BAD_INPUT:
        return InputError(message, reason=reason)
    if code == WorkerExit.STORE_UNUSABLE:
        return StoreUnavailable(message, reason=reason)
    if code == WorkerExit.WRONG_DEVICE:
        return WrongDevice(message, reason=reason)
    return RunFailed(message, reason=reason)


@contextlib.contextmanager
def _only_one(url: str, run: str) -> Iterator[None]:
    """Hold this machine's lock on the run; the kernel frees it when the process ends, however it ends."""
    base = Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"))
    path = base / "trtfleet" / "locks" / hashlib.sha256(f"{_place(url)}|{run}".encode()).hexdigest()[:32]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise InputError(f"lock {path}: {error.strerror}; set XDG_STATE_HOME to a folder that can be written") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusy(f"another trtfleet of this machine works on run {run}; wait for it, or stop it") from None
        yield


def _place(url: str) -> str:
    """One name for a store however it is written: a folder can be reached by many paths."""
    parts = urlsplit(url)
    return os.path.realpath(unquote(parts.path)) if parts.scheme == "file" else url.rstrip("/")
