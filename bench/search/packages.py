"""Players from packages: Optuna and nevergrad. requirements/bench.txt locks them; they are installed beside .venv, never into it.

Why these: Optuna is what most people would take, and has TPE and a pruner for noisy objectives. nevergrad is the strong discrete
optimiser: MIT licensed, maintained, in a few wheels, made for hundreds of discrete variables under noise, asked and told in
parallel, and plans in milliseconds. SMAC3 (random forests) would be the other choice; it refits a forest of all results for every
proposal and needs a dask cluster's packages, which 100 seeds on every landscape do not allow.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.search.players import Fastest
from bench.search.simulate import Built
from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.search.space import Flip, Space

LOCK = Path(__file__).parents[2] / "requirements" / "bench.txt"
NEVERGRAD = "DiscreteLenglerOnePlusOne"
"""What nevergrad's own wizard (NGOpt) takes where all variables are discrete; bench/search/README.md says what else was tried."""
_DEFAULT = ""


def install() -> Path:
    """Makes `optuna` and `nevergrad` importable; fills the folder on the first use (about 300 MB). Raises SystemExit."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtfleet"
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:8]
    target = home / f"bench-{sys.implementation.cache_tag}-{digest}"
    if not target.exists():
        home.mkdir(parents=True, exist_ok=True)
        with (home / "bench.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # who waited for another's download finds it done
            if not target.exists():
                _fill(home, target)
    if str(target) not in sys.path:
        sys.path.append(str(target))  # behind .venv, so that what both have is what the product runs with
    return target


def _fill(home: Path, target: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix="installing-", dir=home))  # on the same file system, so that the rename is one step
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    try:
        if uv is None:
            raise SystemExit("bench.search: no uv here to install the peers with: run make setup first")
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(work / "out")]
        command += ["--no-cache", "--no-deps", "--require-hashes", "-r", str(LOCK)]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(
                f"bench.search: the peers of {LOCK.name} cannot be installed; see above, or leave them out: --strategies"
            )
        (work / "out").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


class Optuna(Fastest):
    """Optuna's TPE with its defaults. The default is its first trial; a failed build is a pruned trial without a value.

    With `prune`, sessions are reported one by one to its WilcoxonPruner, and timing a build stops when that says so: it saves
    sessions, never builds. What is returned is the study's best trial.
    """

    def __init__(self, space: Space, seed: int, prune: bool = False) -> None:
        super().__init__()
        import optuna  # type: ignore[import-not-found]  # lies in a folder of its own

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna: Any = optuna
        self._space = space
        self._prune = prune
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it is experimental
            pruner = optuna.pruners.WilcoxonPruner() if prune else optuna.pruners.NopPruner()
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)
        self._study.enqueue_trial(dict.fromkeys(space.dimensions, _DEFAULT))
        self._open: list[tuple[str, Any]] = []
        """Trials that are being built, by candidate."""
        self.saved_sessions = 0

    def ask(self, count: int, left: int, pending: Sequence[Candidate]) -> Sequence[Candidate]:  # noqa: ARG002
        return [self._ask() for _ in range(count)]

    def _ask(self) -> Candidate:
        trial = self._study.ask()
        values = {
            dimension: trial.suggest_categorical(dimension, [_DEFAULT, *(flip.value for flip in flips)])
            for dimension, flips in self._space.dimensions.items()
        }
        candidate = self._space.candidate(Flip(*item) for item in values.items() if item[1] != _DEFAULT)
        self._open.append((candidate.id, trial))
        return candidate

    def tell(self, built: Built) -> None:
        if built.candidate.is_baseline and not self._open:
            self._ask()  # the pilot's build is the trial that was enqueued
        place = next(i for i, (name, _) in enumerate(self._open) if name == built.candidate.id)
        _, trial = self._open.pop(place)
        state = self._optuna.trial.TrialState
        if built.outcome is not Outcome.FEASIBLE or built.medians is None:
            self._study.tell(trial, state=state.PRUNED)
            return
        if self._prune:
            for step, value in enumerate(built.medians.tolist()):
                trial.report(value, step)
                if trial.should_prune() and step + 1 < built.medians.size:
                    self.saved_sessions += built.medians.size - step - 1
                    self._study.tell(trial, state=state.PRUNED)
                    return
        super().tell(built)
        self._study.tell(trial, built.log_ratio)


class Nevergrad(Fastest):
    """A discrete optimiser of nevergrad. It begins at the default; a failed build counts as much slower than anything.

    What is returned is its own recommendation, unless that is the default or was never built feasibly.
    """

    anytime = False

    def __init__(self, space: Space, seed: int, budget: int, workers: int, optimizer: str = NEVERGRAD) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import nevergrad  # type: ignore[import-not-found]

            logging.getLogger("nevergrad").setLevel(logging.ERROR)
            # Dimensions of one size share a parameter: a parameter of its own for each of 200 takes seconds, not milliseconds.
            self._groups: dict[str, list[str]] = {}
            for dimension, flips in space.dimensions.items():
                self._groups.setdefault(str(len(flips)), []).append(dimension)
            parameters = {
                size: nevergrad.p.TransitionChoice(range(int(size) + 1), repetitions=len(group))
                for size, group in self._groups.items()
            }
            instrumentation = nevergrad.p.Dict(**parameters)
            instrumentation.random_state.seed(seed % 2**32)
            self._optimizer = nevergrad.optimizers.registry[optimizer](instrumentation, budget=budget, num_workers=workers)
            self._optimizer.suggest({size: (0,) * len(group) for size, group in self._groups.items()})
        self._space = space
        self._open: list[tuple[str, Any]] = []

    def ask(self, count: int, left: int, pending: Sequence[Candidate]) -> Sequence[Candidate]:  # noqa: ARG002
        return [self._ask() for _ in range(count)]

    def _ask(self) -> Candidate:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asked = self._optimizer.ask()
        candidate = self._candidate(asked.value)
        self._open.append((candidate.id, asked))
        return candidate

    def _candidate(self, values: dict[str, tuple[int, ...]]) -> Candidate:
        """From each dimension's place: 0 is its default."""
        places = {d: place for size, group in self._groups.items() for d, place in zip(group, values[size], strict=True)}
        return self._space.candidate(flips[places[d] - 1] for d, flips in self._space.dimensions.items() if places[d])

    def tell(self, built: Built) -> None:
        if built.candidate.is_baseline and not self._open:
            self._ask()  # the pilot's build is what was suggested
        place = next(i for i, (name, _) in enumerate(self._open) if name == built.candidate.id)
        _, asked = self._open.pop(place)
        super().tell(built)
        feasible = built.outcome is Outcome.FEASIBLE and built.log_ratio is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._optimizer.tell(asked, built.log_ratio if feasible else _FAILED)

    def choice(self) -> Candidate | None:
        with warnings.catch_warnings(), contextlib.suppress(Exception):  # an optimiser that was told too little has none
            warnings.simplefilter("ignore")
            named = self._candidate(self._optimizer.provide_recommendation().value)
            if any(one.candidate.id == named.id and one.outcome is Outcome.FEASIBLE for one in self.built):
                return named if named != BASELINE else None
        return super().choice()


_FAILED = 1.0
"""Log ratio: 2.7 times as slow as the default."""
