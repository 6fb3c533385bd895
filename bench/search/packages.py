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
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.search.players import Fastest
from bench.search.simulate import Built
from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.search.space import Flip, Space

LOCK = Path(__file__).parents[2] / "requirements" / "bench.txt"
NEVERGRAD = "DiscreteLenglerOnePlusOne"
"""What nevergrad's own wizard (NGOpt) takes where all variables are discrete; bench/search/README.md says what else was tried."""
_DEFAULT = ""
COMPARED = {"optuna": "5.0.0", "nevergrad": "1.0.12"}
"""Versions that were found to propose what is proposed here, by the tests of these players; another has to pass them first."""


def folder() -> Path:
    """Where `install` puts the packages of this lock for this Python."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtfleet"
    return home / f"bench-{sys.implementation.cache_tag}-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:8]}"


def install() -> Path:
    """Makes `optuna` and `nevergrad` importable; fills the folder on the first use (about 300 MB). Raises SystemExit."""
    target = folder()
    home = target.parent
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


@cache
def _optuna() -> tuple[Any, Any]:
    """The package, and its TPESampler with the same proposals in a tenth of the time.

    Optuna reads all parameters of all trials anew for every proposal. Here a trial's choices are noted once. They are not told to
    the study, which would copy all of them with each. Random numbers are drawn and densities are added in Optuna's order, so that
    not even a rounding differs.
    """
    import optuna  # type: ignore[import-not-found]  # lies in a folder of its own
    from optuna.samplers._tpe.sampler import default_gamma, default_weights  # type: ignore[import-not-found]

    check(optuna)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    state = optuna.trial.TrialState

    class Tpe(optuna.samplers.TPESampler):  # type: ignore[misc]
        """For one objective to minimise, and trials that all have the same categorical parameters."""

        def __init__(self, seed: int) -> None:
            super().__init__(seed=seed)
            self._random = np.random.RandomState(seed)
            self._space: dict[str, Any] = {}
            """Of the first trial that ended, thus of all."""
            self._rows: dict[int, Any] = {}
            """Choices of each trial by its number, in the order of the search space."""

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            self._space = self._space or super().infer_relative_search_space(study, trial)
            return self._space

        def sample_relative(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
            trials = [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]
            ended = [one for one in trials if one.state in (state.COMPLETE, state.PRUNED)]
            if not search_space or len(ended) < self._n_startup_trials:
                return {}
            for one in trials:
                if one.number not in self._rows:
                    chosen = [space.to_internal_repr(one.params[name]) for name, space in search_space.items()]
                    self._rows[one.number] = np.array(chosen)
            good = {one.number for one in sorted(ended, key=_merit)[: default_gamma(len(ended))]}
            sizes = np.array([len(space.choices) for space in search_space.values()])
            below = _Parzen(sizes, [self._rows[one.number] for one in trials if one.number in good], default_weights)
            above = _Parzen(sizes, [self._rows[one.number] for one in trials if one.number not in good], default_weights)
            samples = below.sample(self._random, self._n_ei_candidates)
            best = samples[np.argmax(below.log_density(samples) - above.log_density(samples))]
            self._rows[trial.number] = best
            return {name: space.to_external_repr(index) for (name, space), index in zip(search_space.items(), best, strict=True)}

    def _merit(trial: Any) -> tuple[float, ...]:
        """Sorts complete trials by value before pruned ones, of which more steps come first."""
        if trial.state is state.COMPLETE:
            return (0, trial.value)
        if not trial.intermediate_values:
            return (1, 1, 0.0)
        step, value = max(trial.intermediate_values.items())
        return (1, -step, value)

    return optuna, Tpe


class _Parzen:
    """A mixture as Optuna's _ParzenEstimator: a product of categorical densities for each trial (a kernel), and a uniform one.

    A kernel's density in a dimension depends only on its own choice, on how many choices there are and on how many kernels. So
    one small table for each number of choices has all of them.
    """

    def __init__(self, sizes: Any, rows: list[Any], weights: Any) -> None:
        """`sizes`: (dimensions,) numbers of choices. `rows`: (dimensions,) choices of each trial, at least one trial."""
        kernels = len(rows) + 1
        self._weights = np.append(weights(len(rows)), 1.0)
        self._weights /= self._weights.sum()
        # The tables, one under another: a row for each choice of a trial and one for the uniform kernel, a column for each choice
        self._density = np.ones((int(sum(size + 1 for size in set(sizes.tolist()))), int(sizes.max())))
        self._cumulated = np.ones_like(self._density)
        first = np.zeros(int(sizes.max()) + 1, dtype=int)
        start = 0
        for size in sorted(set(sizes.tolist())):
            table = np.full((size + 1, size), 1.0 / kernels)
            table[np.arange(size), np.arange(size)] += 1
            table /= table.sum(axis=1, keepdims=True)
            first[size] = start
            self._density[start : start + size + 1, :size] = table
            self._cumulated[start : start + size + 1, : size - 1] = np.cumsum(table, axis=1)[:, :-1]
            start += size + 1
        self._places = first[sizes] + np.array([*rows, sizes])
        """(kernels, dimensions) rows of the tables."""

    def sample(self, random: Any, count: int) -> Any:
        """(count, dimensions) choices."""
        kernels = random.choice(len(self._weights), p=self._weights, size=count)
        quantiles = random.rand(self._places.shape[1], count).T
        return (self._cumulated[self._places[kernels]] < quantiles[..., np.newaxis]).sum(axis=-1)

    def log_density(self, samples: Any) -> Any:
        """(count,) logarithms of density at (count, dimensions) choices."""
        logs = np.ascontiguousarray(np.log(self._density).T)
        total = np.zeros((len(samples), len(self._weights)))
        for sample, places in zip(samples.T, np.ascontiguousarray(self._places.T), strict=True):
            total += logs.take(places, axis=1).take(sample, axis=0)
        total += np.log(self._weights)
        most = total.max(axis=1)
        return np.log(np.exp(total - most[:, np.newaxis]).sum(axis=1)) + most


@cache
def _nevergrad() -> tuple[Any, Any]:
    """The package, and a TransitionChoice among 0, 1, 2, … whose value is its index: it need not look for it among its choices.

    nevergrad copies, freezes and checks each choice of each parameter with every proposal; here they are one constant.
    """
    import nevergrad  # type: ignore[import-not-found]
    from nevergrad.parametrization import discretization  # type: ignore[import-not-found]
    from scipy.special import ndtr, ndtri

    check(nevergrad)
    logging.getLogger("nevergrad").setLevel(logging.ERROR)

    normal = SimpleNamespace(cdf=ndtr, ppf=ndtri)  # what scipy.stats.norm calls after much care of its argument, here one number
    discretization.scipy = SimpleNamespace(stats=SimpleNamespace(norm=normal))

    class Range(nevergrad.p.Constant):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(self.value)

    class Plain(nevergrad.p.TransitionChoice.__base__):  # type: ignore[misc]
        def _layered_get_value(self) -> tuple[int, ...]:
            return tuple(self.indices.value.tolist())

        def _layered_set_value(self, value: tuple[int, ...]) -> None:
            self._check_frozen()
            self.indices.value = np.array(value, dtype=int)

    class Indices(nevergrad.p.TransitionChoice, Plain):  # type: ignore[misc]  # super() of the first is the second
        def __init__(self, size: int, repetitions: int) -> None:
            super().__init__(range(size), repetitions=repetitions)
            self["choices"] = Range(range(size))

    return nevergrad, Indices


def check(package: Any) -> None:
    """Raises SystemExit if its version is not the one that was compared."""
    if package.__version__ != COMPARED[package.__name__]:
        raise SystemExit(
            f"bench.search: {package.__name__} {package.__version__} was not compared with its faster form here; see COMPARED"
        )


class Optuna(Fastest):
    """Optuna's TPE with its defaults. The default is its first trial; a failed build is a pruned trial without a value.

    Its planning seconds are of the faster form above, not of Optuna by itself.

    With `prune`, sessions are reported one by one to its WilcoxonPruner, and timing a build stops when that says so: it saves
    sessions, never builds. What is returned is the study's best trial.
    """

    def __init__(self, space: Space, seed: int, prune: bool = False) -> None:
        super().__init__()
        optuna, sampler = _optuna()
        self._optuna = optuna
        self._space = space
        self._prune = prune
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it is experimental
            pruner = optuna.pruners.WilcoxonPruner() if prune else optuna.pruners.NopPruner()
        self._study = optuna.create_study(sampler=sampler(seed=seed), pruner=pruner)
        self._study.enqueue_trial(dict.fromkeys(space.dimensions, _DEFAULT))
        self._open: list[tuple[str, Any]] = []
        """Trials that are being built, by candidate."""
        self.saved_sessions = 0

    def ask(self, count: int, left: int, pending: Sequence[Candidate]) -> Sequence[Candidate]:  # noqa: ARG002
        return [self._ask() for _ in range(count)]

    def _ask(self) -> Candidate:
        trial = self._study.ask()
        values = trial.relative_params or {
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
            nevergrad, indices = _nevergrad()
            # Dimensions of one size share a parameter: a parameter of its own for each of 200 takes seconds, not milliseconds.
            self._groups: dict[str, list[str]] = {}
            for dimension, flips in space.dimensions.items():
                self._groups.setdefault(str(len(flips)), []).append(dimension)
            parameters = {size: indices(int(size) + 1, len(group)) for size, group in self._groups.items()}
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
