"""The worker process: one stage of one run. Started by the local executor or as a pod; alike in both."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.child import Limits, Phase
from tuner_job.api.inputs import RunInputs
from tuner_job.api.messages import BeatState
from tuner_job.campaign.exits import WorkerExit
from tuner_job.campaign.explore import EXPLORED_ENOUGH
from tuner_job.campaign.processes import close_to_others, die_with_parent, own_id
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.stages import Post, StageConvicted, WrongDevice, run_stage
from tuner_job.campaign.stop import StopReason, stop_reason
from tuner_job.campaign.workspace import ScratchFull, Stopped, Workspace
from tuner_job.store.connect import STORE_OPTIONS
from tuner_job.store.models import RemoteModels
from tuner_job.store.objects import ObjectStore, StoreFull, StoreNotConditional, StoreReadOnly, StoreUnavailable
from tuner_job.store.tries import Claims, Heart
from tuner_job.trial.cgroup import memory_limit
from tuner_job.trial.scratch import Scratch
from tuner_job.trial.supervisor import Supervisor

MEMORY_SHARE = 0.9
MEMORY_RESERVE = 512 << 20
"""Bytes for the worker itself and its spare child: at a container's limit the kernel ends all of it, not the child alone."""
DISK_SHARE = 0.5

END_BYTES = 4096
"""Of a pod's termination message."""

_WORK_PHASES = (Phase.BUILD, Phase.LOAD, Phase.CHECK, Phase.MEASURE)

log = logging.getLogger("trtfleet.worker")


Stage = Literal["discover", "explore", "final"]


@dataclass(frozen=True)
class WorkerArguments:
    """What a worker is told; everything else it reads from the store."""

    store: str
    run: str
    stage: Stage
    attempt: int
    index: int
    scratch: Path
    end_message: Path
    worker_id: str
    parent: int
    deadline_seconds: float
    memory_share: float
    poll_seconds: float
    beat_seconds: float
    stale_seconds: float

    @property
    def name(self) -> str:
        return f"{self.attempt}-{self.index}"


def parse(argv: Sequence[str] | None) -> WorkerArguments:
    parser = argparse.ArgumentParser(prog="trtfleet-worker", description=__doc__)
    parser.add_argument("--store", required=True, help="URL of the artifact store")
    parser.add_argument("--run", required=True, help="run id")
    parser.add_argument("--stage", required=True, choices=["discover", "explore", "final"])
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--index", type=int, default=int(os.environ.get("JOB_COMPLETION_INDEX", "0")))
    parser.add_argument("--scratch", type=Path, required=True, help="folder for scratch files; swept of dead workers' at start")
    parser.add_argument("--end-message", type=Path, default=Path("/dev/termination-log"), help="file for the reason of the end")
    parser.add_argument("--worker-id", default="", help="names this process in beats and claims: a pod's uid; made up if empty")
    parser.add_argument("--parent", type=int, default=0, help="process id to die with; 0 for none")
    parser.add_argument("--deadline-seconds", type=float, default=0.0, help="stop exploring after so long; 0 for never")
    parser.add_argument("--memory-share", type=float, default=MEMORY_SHARE, help="part of the memory that a child may use")
    parser.add_argument("--poll-seconds", type=float, default=2.0, help=argparse.SUPPRESS)
    parser.add_argument("--beat-seconds", type=float, default=15.0, help=argparse.SUPPRESS)
    parser.add_argument("--stale-seconds", type=float, default=120.0, help=argparse.SUPPRESS)
    told = vars(parser.parse_args(argv))
    return WorkerArguments(**{**told, "worker_id": told["worker_id"] or own_id()})


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the stage; returns a WorkerExit and leaves its reason in the end message."""
    arguments = parse(argv)
    close_to_others()
    if arguments.parent:
        die_with_parent(arguments.parent)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        log.info("got %s: stopping", signal.Signals(number).name)
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    try:
        return _work(arguments, stop)
    except Stopped:
        if stop.is_set():
            return _end(arguments, WorkerExit.INTERRUPTED, "Interrupted", "told to end by a signal")
        return _end(arguments, WorkerExit.STOPPED, "Stopped", "told to stop")
    except WrongDevice as error:
        return _end(arguments, WorkerExit.WRONG_DEVICE, error.reason, str(error))
    except (StageConvicted, StoreNotConditional, InputError) as error:
        return _end(arguments, WorkerExit.BAD_INPUT, error.reason, str(error))
    except (StoreUnavailable, StoreReadOnly, StoreFull, ScratchFull) as error:
        return _end(arguments, WorkerExit.STORE_UNUSABLE, error.reason, str(error))
    except TrtfleetError as error:
        return _end(arguments, WorkerExit.INTERNAL, error.reason, str(error))
    except Exception as error:  # the last line of defence: the reason must reach the user, the traceback the log
        log.exception("internal error")
        return _end(arguments, WorkerExit.INTERNAL, "InternalError", f"{type(error).__name__}: {error}")


def _work(arguments: WorkerArguments, stop: threading.Event) -> int:
    options = json.loads(os.environ.pop(STORE_OPTIONS, "{}"))
    store = ObjectStore.open(arguments.store, options)
    reader = RunReader(store, arguments.run)
    run = reader.run

    def check_stop() -> str:
        reason = StopReason.SUSPENDED if stop.is_set() else stop_reason(store, arguments.run, arguments.attempt)
        if reason is not None and reason not in EXPLORED_ENOUGH:
            raise Stopped
        return EXPLORED_ENOUGH[reason] if reason is not None else ""

    supervisor = Supervisor(arguments.scratch, warm=True)  # sweeps what dead workers left
    heart = Heart(
        store,
        arguments.run,
        worker=arguments.name,
        worker_id=arguments.worker_id,
        stage=arguments.stage,
        interval=arguments.beat_seconds,
    )
    with _own_folder(arguments) as root, heart:
        space = Workspace(
            store=store,
            remote=RemoteModels(arguments.store, options),
            run=run,
            root=root,
            supervisor=supervisor,
            limits=limits(run.inputs, shutil.disk_usage(root).free, arguments.memory_share),
            stop=stop,
            on_phase=heart.phase,
        )
        try:
            run_stage(
                arguments.stage,
                Post(
                    space=space,
                    reader=reader,
                    heart=heart,
                    claims=Claims(store, arguments.run, heart, stale_seconds=arguments.stale_seconds),
                    index=arguments.index,
                    check_stop=check_stop,
                    wait=stop.wait,
                    deadline_seconds=arguments.deadline_seconds,
                    poll_seconds=arguments.poll_seconds,
                ),
            )
        except Stopped:
            heart.close(BeatState.STOPPED, detail="told to stop")
            raise
        finally:
            space.close()
    return WorkerExit.NOTHING_LEFT


def _own_folder(arguments: WorkerArguments) -> Scratch:
    try:
        return Scratch(arguments.scratch, f"worker-{arguments.name}")
    except OSError as error:
        raise ScratchFull(
            f"scratch folder {arguments.scratch}: {error.strerror}; free some space, or choose another folder with --folder "
            f"(a worker: --scratch)"
        ) from None


def limits(inputs: RunInputs, free_bytes: int | None = None, memory_share: float = MEMORY_SHARE) -> Limits:
    """A child's limits: one trial's time for any phase, most of the machine's memory so that the kernel need not choose, and half
    of the scratch folder's free bytes, so that one that fills it is to blame and its neighbours are not."""
    seconds = inputs.search.trial_seconds
    return Limits(
        memory_bytes=_childs_memory(memory_limit(), memory_share),
        disk_bytes=None if free_bytes is None else int(DISK_SHARE * free_bytes),
        phase_seconds={Phase.START: max(60.0, min(seconds, 300.0)), **dict.fromkeys(_WORK_PHASES, seconds)},
    )


def _childs_memory(limit: int, share: float) -> int:
    """Bytes: the share, less where that would leave too little for the others, but never less than half of it."""
    return int(max(share * limit / 2, min(share * limit, limit - MEMORY_RESERVE)))


def _end(arguments: WorkerArguments, code: WorkerExit, reason: str, message: str) -> int:
    """Leave the reason where the starter looks for it."""
    log.log(logging.INFO if code in (WorkerExit.STOPPED, WorkerExit.INTERRUPTED) else logging.ERROR, "%s: %s", reason, message)
    text = end_text(reason, message)
    try:
        arguments.end_message.write_text(text)
    except OSError as error:
        log.warning("cannot write %s: %s", arguments.end_message, error)
    return code


def end_text(reason: str, message: str) -> str:
    """JSON of at most END_BYTES, whatever the message's letters take: cut by the container runtime it would be no JSON."""
    while len((text := json.dumps({"reason": reason, "message": message})).encode()) > END_BYTES:
        message = message[: len(message) * 3 // 4]
    return text


if __name__ == "__main__":
    sys.exit(main())
