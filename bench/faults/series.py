"""The series: drills that may run beside each other first, then one by one those that break what all rely on."""

from __future__ import annotations

import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rig.kube.machine import CommandFailed

from bench.faults import clock_drills, cluster_drills, operator_drills, spec_drills, worker_drills
from bench.faults.drill import Drill, Notes
from bench.faults.rights import Quiet, Rights, quiet, rights
from bench.faults.summary import write_summary
from bench.faults.world import NAMESPACE, World, new_world

MODULES = (worker_drills, spec_drills, cluster_drills, operator_drills, clock_drills)


@dataclass(frozen=True)
class Played:
    drill: Drill
    ok: bool
    seen: str
    """What was seen, or what was wrong."""
    seconds: float


def play_all(drills: Sequence[Drill], *, folder: Path, summary: Path | None, at_once: int, quiet_seconds: float) -> int:
    """0 when every drill ended as expected. The summary is written after each drill, so that a series cut short leaves one."""
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    played: list[Played] = []
    lock = threading.Lock()
    with new_world(folder) as world:
        _say(f"the cluster is up after {time.monotonic() - began:.0f} s")

        def tell(stillness: Quiet | None = None, asked: Rights | None = None) -> None:
            if summary is not None:
                write_summary(summary, drills, played, stillness, asked, time.monotonic() - began)

        def one(drill: Drill) -> None:
            done = _play(world, drill)
            with lock:
                played.append(done)
                tell()

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, [drill for drill in drills if not drill.alone]))
        for drill in drills:
            if drill.alone:
                one(drill)
        stillness = None
        if quiet_seconds:
            _say(f"watching finished TuningJobs for {quiet_seconds:.0f} s")
            stillness = quiet(world, quiet_seconds)
            _say(f"{stillness}")
        asked = rights(world)
        _say(f"{asked}")
        tell(stillness, asked)
    still = stillness is None or not stillness.other_writes
    return 0 if all(each.ok for each in played) and still and not asked.not_granted and not asked.refused else 1


def _play(world: World, drill: Drill) -> Played:
    _say(f"{drill.name}: {drill.fault}; {drill.when}")
    began = time.monotonic()
    try:
        notes: Notes = drill.play(world)
        ok, seen = True, "; ".join(notes)
    except Exception as error:  # whatever it is, the other drills go on
        ok, seen = False, f"{type(error).__name__}: {error}"
        _keep(world, drill, traceback.format_exc())
    done = Played(drill, ok, seen, time.monotonic() - began)
    _say(f"{drill.name}: {'ok' if ok else 'FAILED'} after {done.seconds:.0f} s: {seen}")
    return done


def _keep(world: World, drill: Drill, trace: str) -> None:
    """For whoever looks for the cause."""
    plane = world.cluster.plane
    folder = world.folder / drill.name
    folder.mkdir(parents=True, exist_ok=True)
    looks: dict[str, Callable[[], str]] = {
        "trace.txt": lambda: trace,
        "operator.log": world.operator_logs,
        "objects.yaml": lambda: plane.kubectl("get", "tuningjobs,jobs,pods", "--all-namespaces", "--output=yaml"),
        "events.txt": lambda: plane.kubectl("get", "events", "--all-namespaces"),
        "system.txt": lambda: plane.kubectl("describe", "pods", "--namespace", NAMESPACE),
    }
    for name, look in looks.items():
        with suppress(CommandFailed, OSError):
            (folder / name).write_text(look())


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
