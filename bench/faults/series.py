"""The series: one by one the drills that break what all rely on, then the others beside each other."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from rig.kube.cluster import NAMESPACE
from rig.kube.images import SOURCE
from rig.kube.machine import CommandFailed

from bench.faults import clock_drills, cluster_drills, operator_drills, spec_drills, worker_drills
from bench.faults.drill import Drill, Notes
from bench.faults.rights import quiet, rights
from bench.faults.summary import Played, Summary
from bench.faults.world import World, new_world

MODULES = (worker_drills, spec_drills, cluster_drills, operator_drills, clock_drills)


def play_all(
    drills: Sequence[Drill], *, every: Sequence[Drill], folder: Path, summary: Summary | None, at_once: int, quiet_seconds: float
) -> int:
    """0 when every drill ended as expected. The summary is written after each drill, so that a series cut short leaves one.

    `every`: all drills that there are, of which `drills` are played.
    """
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    ended: list[bool] = []
    lock = threading.Lock()
    commit = _commit()
    with new_world(folder) as world:
        _say(f"the cluster is up after {time.monotonic() - began:.0f} s")

        def one(drill: Drill) -> None:
            played = _play(world, drill, commit)
            with lock:
                ended.append(played.ok)
                if summary is not None:
                    summary.add(every, played={drill.name: played})

        for drill in drills:
            if drill.alone:
                one(drill)
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, [drill for drill in drills if not drill.alone]))
        stillness = None
        if quiet_seconds:
            _say(f"watching finished TuningJobs for {quiet_seconds:.0f} s")
            stillness = quiet(world, quiet_seconds)
            _say(f"{stillness}")
        asked = rights(world)
        _say(f"{asked}")
        if summary is not None:
            summary.add(every, stillness=stillness, asked=asked)
    still = stillness is None or not stillness.other_writes
    return 0 if all(ended) and still and not asked.not_granted and not asked.refused else 1


def _commit() -> str:
    def git(*words: str) -> str:
        said = subprocess.run(["git", *words], cwd=SOURCE, capture_output=True, text=True, check=False)
        return said.stdout.strip()

    changed = git("status", "--porcelain", "--", "tuner_job", "operator", "charts")
    return f"{git('rev-parse', '--short', 'HEAD')}{'+' if changed else ''}"


def _play(world: World, drill: Drill, commit: str) -> Played:
    _say(f"{drill.name}: {drill.fault}; {drill.when}")
    began = time.monotonic()
    try:
        notes: Notes = drill.play(world)
        ok, seen = True, "; ".join(notes)
    except Exception as error:  # whatever it is, the other drills go on
        ok, seen = False, f"{type(error).__name__}: {error}"
        _keep(world, drill, traceback.format_exc())
    seconds = time.monotonic() - began
    _say(f"{drill.name}: {'ok' if ok else 'FAILED'} after {seconds:.0f} s: {seen}")
    return Played(ok, seen, seconds, time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()), commit)


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
