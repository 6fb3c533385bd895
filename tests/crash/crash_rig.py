"""`trtfleet run` under observation: what it has done is read from its store, and its processes can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import psutil
from rig.tiny import write_tiny_model

from tuner_job.api.child import REQUEST_FILE
from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import DISCOVER, FINAL, ResultRecord
from tuner_job.campaign.reader import RunReader
from tuner_job.cli.exits import Exit
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore

Victim = Literal["cli", "worker", "child", "spare"]

PATIENCE = 600.0
"""Seconds without reaching a point, or the end, after which the test fails."""
POLL = 0.002

TRTFLEET = (sys.executable, "-m", "tuner_job.cli.main")

JOB = """
apiVersion: trtfleet.dev/v1alpha1
kind: TuningJob
metadata: {name: tiny}
spec:
  model: {uri: tiny.onnx}
  targets:
    - name: cpu
      runtimeRef: {name: onnxruntime}
      device: {type: CPU}
  accuracy: {source: Generated, generated: {samples: 2}, metric: l1, threshold: "0.001"}
  measurement: {sessions: 2, sessionMilliseconds: 5, sessionSamples: 5, warmupMilliseconds: 10, warmupLimitMilliseconds: 100}
  search: {strategy: Expression, expression: "%(expression)s"}
  budget: {gpuSeconds: 100000, maxTrials: %(trials)d}
  storeRef: {name: %(store)s}
"""
KNOBS = ("session:memory_pattern", "session:cpu_arena", "session:memory_reuse", "session:prepacking:disable", "graph:qdq:disable")


def job(knobs: int, store: str = "local") -> str:
    """A job with 2^knobs candidates, which are the same in every run. Its budget leaves the final at its least size."""
    expression = " ".join(f"-{knob}=[on|off]" for knob in KNOBS[:knobs])
    return JOB % {"expression": expression, "trials": 1 << knobs, "store": store}


class Observed:
    """One job in a folder of its own."""

    def __init__(
        self, folder: Path, job: str, *, store: ObjectStore | None = None, workers: int = 1, variables: Mapping[str, str] = {}
    ) -> None:
        folder.mkdir()
        write_tiny_model(folder / "tiny.onnx")
        (folder / "job.yaml").write_text(job)
        (folder / "tmp").mkdir()
        self.folder = folder
        self.out = folder / "out"
        self.store = store or ObjectStore.open((self.out / "store").as_uri())
        self.results: dict[str, bytes] = {}
        """Trial → its result record as it was first seen."""
        self.workers = workers
        self._environment = {
            **os.environ,
            **variables,
            "TRTFLEET_CONFIG": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
            "TMPDIR": str(folder / "tmp"),
        }
        self._reader: RunReader | None = None
        self.cli: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """The command that a user would repeat."""
        command = [*TRTFLEET, "run", "job.yaml", "--folder", str(self.out), "--workers", str(self.workers)]
        with (self.folder / "cli.log").open("ab") as log:
            self.cli = subprocess.Popen(command, cwd=self.folder, env=self._environment, stdout=log, stderr=log)

    def ended_well(self) -> bool:
        """Whether the command has ended by itself; fails the test if that was not a success."""
        assert self.cli is not None
        code = self.cli.poll()
        assert code in (None, 0), f"trtfleet ended with {code}:\n{self.log()}"
        return code is not None

    def complete(self) -> None:
        if self.cli is None or self.cli.poll() is not None:
            self.start()
        assert self.cli is not None
        self.cli.wait(PATIENCE)
        assert self.ended_well()

    def explore(self) -> None:
        """Undisturbed until all is explored, then Ctrl-C: the final has no say in which trials there are."""
        self.start()
        assert self.cli is not None
        give_up = time.monotonic() + PATIENCE
        while not (self.reader and self.reader.plans() and self.reader.plans()[-1].stage == "final"):
            assert time.monotonic() < give_up, self.log()
            assert not self.ended_well()
            time.sleep(0.1)
        self.cli.send_signal(signal.SIGINT)
        assert self.cli.wait(PATIENCE) == Exit.STOPPED, self.log()

    def verified_engine(self) -> str:
        """Digest of the engine that `trtfleet verify` approves of."""
        done = subprocess.run(
            [*TRTFLEET, "verify", "job.yaml", "--folder", str(self.out), "--json"],
            cwd=self.folder, env=self._environment, capture_output=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        return str(json.loads(done.stdout)["engine"]["digest"])

    def log(self) -> str:
        return (self.folder / "cli.log").read_text()[-4000:]

    @property
    def reader(self) -> RunReader | None:
        """None before the command started its first worker."""
        if self._reader is None and (runs := list((self.out / "logs").glob("*"))):
            self._reader = RunReader(self.store, runs[0].name)
        return self._reader

    @property
    def run(self) -> str:
        assert self.reader is not None
        return self.reader.run.run

    # what a run has done so far

    def trials(self) -> dict[str, Candidate]:
        plans = self.reader.plans() if self.reader else ()
        return {trial.trial: trial.candidate for plan in plans for trial in plan.trials}

    def finished(self) -> int:
        """How many trials have a result; every new one is kept as it stands."""
        for trial in self.trials():
            if trial not in self.results and (found := self.result_bytes(trial)) is not None:
                self.results[trial] = found
        return len(self.results)

    def result_bytes(self, trial: str) -> bytes | None:
        found = self.store.get(layout.result(self.run, trial), ResultRecord.MAX_BYTES)
        return found.data if found else None

    def has(self, key: Callable[[str], str]) -> bool:
        return self.reader is not None and self.store.exists(key(self.run))

    def tries(self) -> dict[str, int]:
        """Trial → number of tries; discover and final among them."""
        counts = {}
        for trial in (DISCOVER, *self.trials(), FINAL):
            number = 0
            while self.store.exists(layout.claim(self.run, trial, number + 1)):
                number += 1
            counts[trial] = number
        return counts

    def counted(self) -> int:
        """How many ends of trials the beats of all workers add up to."""
        assert self.reader is not None
        beats = [self.reader.beat(name) for name in self.reader.workers()]
        assert all(beat.done == sum(beat.outcomes.values()) for beat in beats if beat)
        return sum(beat.done for beat in beats if beat)

    def built(self, pattern: str) -> int:
        """How many engines of `pattern` lie in the folders of the workers that live."""
        count = 0
        for words in map(_words, self.processes("worker")):
            options = dict(pairwise(words))
            name = f"{options.get('--attempt')}-{options.get('--index')}"
            count += sum(len(list(own.glob(pattern))) for own in (self.out / "scratch").glob(f"trtfleet-worker-{name}-*"))
        return count

    # its processes

    def processes(self, victim: Victim) -> list[psutil.Process]:
        if self.cli is None or self.cli.poll() is not None:
            return []
        if victim == "cli":
            return [psutil.Process(self.cli.pid)]
        module = "tuner_job.campaign.worker" if victim == "worker" else "tuner_job.backends.child"
        try:
            family = psutil.Process(self.cli.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        found = []
        for process in family:
            words = _words(process)
            if module not in words:
                continue
            if victim in ("child", "spare"):
                begun = (Path(words[words.index(module) + 1]) / REQUEST_FILE).exists()
                if begun != (victim == "child"):
                    continue
            found.append(process)
        return found

    def leftovers(self) -> list[str]:
        """Processes and scratch files that outlived the run."""
        mark = str(self.folder)
        processes = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or [])]
        files = [*(self.out / "scratch").rglob("*"), *(self.folder / "tmp").rglob("*")]
        return [*(" ".join(words) for words in processes), *map(str, files)]


def _words(process: psutil.Process) -> list[str]:
    """Its command line; empty when it is gone or just going."""
    try:
        return [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except psutil.NoSuchProcess:
        return []


@dataclass(frozen=True)
class Point:
    """Kill one such process so many seconds after something was seen."""

    what: str
    victim: Victim
    seen: Callable[[Observed], bool]
    delay: float = 0.0
    before: Callable[[Observed], bool] | None = None
    """What a kill that comes in time forestalls. Some gaps are a few milliseconds wide, so this is told, not demanded."""
    over: Callable[[Observed], bool] | None = None
    """What ends the stage of this point: a fast machine may be past it when the kill before came late."""

    def missed(self) -> Point:
        """Too late for the victim, so the command is killed."""
        return replace(self, what=f"too late for {self.what!r}", victim="cli", over=None)


@dataclass
class Killer:
    """Kills at one point after the other. `repeats` bounds how many trials may have been begun again."""

    observed: Observed
    rng: random.Random
    kills: int = 0
    repeats: int = 0
    _finished_at_kill: int = field(default=-1, repr=False)
    _proving: int = field(default=0, repr=False)
    """Workers that were killed in the final. The third such death would convict it, and rightly so."""

    def progressed(self, count: int) -> Callable[[Observed], bool]:
        """So many results, and at least one since the last kill: no trial is hit twice in a row by design of the test."""
        return lambda observed: (done := observed.finished()) >= count and done > self._finished_at_kill

    def kill(self, point: Point) -> None:
        """Wait for the point and kill; a command that was killed, or ended before the point was reached, is started again."""
        give_up = time.monotonic() + PATIENCE
        victims: list[psutil.Process] = []
        looked = 0.0
        while True:
            now = time.monotonic()
            assert now < give_up, f"never reached: {point}\n{self.observed.log()}"
            if self.observed.cli is None or self.observed.ended_well():
                self.observed.start()
            if now - looked > 0.2:  # ahead of time, since some points are over in milliseconds
                victims, looked = self.observed.processes(point.victim), time.monotonic()
            if point.seen(self.observed):
                break
            if point.over is not None and point.over(self.observed):
                point, victims = point.missed(), []
                break
            time.sleep(POLL)
        time.sleep(point.delay)
        if point.victim == "worker" and self.observed.has(lambda run: layout.claim(run, "final", 1)):
            if self._proving == 2:  # a point of explore was met so late that its worker was the final's
                point, victims = replace(point, victim="cli"), []
            else:
                self._proving += 1
        while not (victims := [victim for victim in victims if victim.is_running()]):
            assert time.monotonic() < give_up, f"never there: {point}\n{self.observed.log()}"
            if self.observed.ended_well():
                self.observed.start()
            if point.over is not None and point.over(self.observed):
                point = point.missed()
            time.sleep(POLL)
            victims = self.observed.processes(point.victim)
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself just now
            self.rng.choice(victims).kill()
        in_time = "" if point.before is None else ", too late" if point.before(self.observed) else ", in time"
        self.kills += 1
        self.repeats += self.observed.workers if point.victim == "cli" else 1
        if point.victim == "cli":
            assert self.observed.cli is not None
            self.observed.cli.wait()
            self.observed.start()
        self._finished_at_kill = self.observed.finished()
        print(
            f"{self.kills}. killed {point.victim} {point.what} + {point.delay:.2f} s, {self._finished_at_kill} results{in_time}"
        )
