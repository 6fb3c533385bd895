"""A series of replays: which players, which landscapes, and results that are taken up again after a cut."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from bench.search import packages
from bench.search.convert import from_h200
from bench.search.landscape import Landscape, load
from bench.search.noise import PILOT_BUILDS
from bench.search.ours import Ours
from bench.search.players import Random, Trtexec
from bench.search.score import Result
from bench.search.simulate import Builder, Played, Player, play
from bench.search.synthetic import RECIPES, synthetic
from tuner_job.api.base import InputError
from tuner_job.api.measurement import BASELINE
from tuner_job.api.outcome import Outcome
from tuner_job.search.strategy import strategy

HERE = Path(__file__).parent
SEARCH = HERE.parents[1] / "tuner_job" / "search"
H200 = HERE.parent / "results" / "h200"
CPU = HERE.parent / "results" / "cpu"
FRACTIONS = (0.25, 0.5, 1.0, 2.0)
"""Budgets in O, the builds of one-at-a-time."""
PRODUCT_FRACTIONS = (0.05, 0.1, 0.2)
"""Budgets in configurations of a full product."""
NOISY_SD = 0.02
"""Where sessions differ less, stopping them early saves nothing beside a build: a pruner does not apply."""
LEAST_BUDGET = PILOT_BUILDS + 4

Make = Callable[[Landscape, int, int, int], Player]
"""Landscape, seed, budget, workers → player."""


@dataclass(frozen=True)
class Kind:
    """A player by name."""

    make: Make
    anytime: bool
    pilot: int = 1
    """Default builds before the first trial."""
    packaged: bool = False
    """Whether it needs requirements/bench.txt."""
    noisy: bool = False
    """Whether it is played only where sessions differ by NOISY_SD."""


def _ours(name: str, anytime: bool) -> Kind:
    def make(where: Landscape, seed: int, budget: int, workers: int) -> Player:  # noqa: ARG001  it sees what is left of it
        return Ours(strategy(name), where.space, seed, where.noise.told_sd, where.noise.build_sd, workers, anytime)

    return Kind(make, anytime, PILOT_BUILDS)


KINDS: dict[str, Kind] = {
    "Adaptive": _ours("Adaptive", False),
    "OneAtATime": _ours("OneAtATime", True),
    "Mixed": _ours("Mixed", True),
    "trtexec-fast": Kind(lambda where, seed, budget, workers: Trtexec(where.space, mixed=False), True),  # noqa: ARG005
    "trtexec-mixed": Kind(lambda where, seed, budget, workers: Trtexec(where.space, mixed=True), True),  # noqa: ARG005
    "random": Kind(lambda where, seed, budget, workers: Random(where.space, seed), True),  # noqa: ARG005
    "optuna-tpe": Kind(lambda where, seed, budget, workers: packages.Optuna(where.space, seed), True, packaged=True),  # noqa: ARG005
    "optuna-wilcoxon": Kind(
        lambda where, seed, budget, workers: packages.Optuna(where.space, seed, prune=True),  # noqa: ARG005
        True,
        packaged=True,
        noisy=True,
    ),
    "nevergrad": Kind(
        lambda where, seed, budget, workers: packages.Nevergrad(where.space, seed, budget, workers), False, packaged=True
    ),
}


def kind(name: str) -> Kind:
    """A player; any other name is a `tuner_job.search` strategy, plug-ins included. Raises InputError."""
    if name in KINDS:
        return KINDS[name]
    strategy(name)
    return _ours(name, False)


def landscapes() -> list[str]:
    """Names of those that are in the repository."""
    return [*_recordings(), *RECIPES]


def _recordings() -> dict[str, Path]:
    """Recorded ones, `h200-<model>` and `cpu-<model>`."""
    return {
        f"{place}-{path.name.removeprefix('landscape-').removesuffix('.json.gz')}": path
        for place, folder in (("h200", H200), ("cpu", CPU))
        for path in sorted(folder.glob("landscape-*.json.gz"))
    }


@cache
def _recorded(name: str) -> Landscape:
    if path := _recordings().get(name):
        return from_h200(path) if path.parent == H200 else load(path)
    if not name.endswith(".json.gz"):
        raise InputError(f"no landscape {name!a}; there are {', '.join(landscapes())}, or the path of a .json.gz file")
    return load(Path(name))


def landscape(name: str, seed: int) -> Landscape:
    """By name or path. A synthetic one is another for each seed; a recorded one is the same. Raises InputError."""
    return synthetic(name, seed) if name in RECIPES else _recorded(name)


def budgets(where: Landscape, fractions: Sequence[float] = FRACTIONS) -> dict[float, int]:
    """Fraction → builds. Negative fractions are of a full product's configurations."""
    found = {fraction: round(fraction * where.one_at_a_time) for fraction in fractions}
    if where.product is not None:
        found |= {-fraction: round(fraction * where.product) for fraction in PRODUCT_FRACTIONS}
    return {f: b for f, b in found.items() if b >= LEAST_BUDGET and (where.product is None or b <= where.product)}


@dataclass(frozen=True)
class Task:
    """One search, or one for each budget."""

    landscape: str
    strategy: str
    seed: int
    fractions: tuple[float, ...]
    """Still to be played."""
    workers: int = 1
    late: float = 0.0


def run(task: Task) -> list[Result]:
    """Plays it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    where = landscape(task.landscape, task.seed)
    chosen = kind(task.strategy)
    if chosen.packaged:
        packages.install()
    wanted = budgets(where, tuple(f for f in task.fractions if f > 0))
    wanted = {fraction: budget for fraction, budget in wanted.items() if fraction in task.fractions}
    builds = sorted(set(wanted.values()))
    played: dict[int, Played] = {}
    for group in [builds] if chosen.anytime else [[b] for b in builds]:
        player = chosen.make(where, task.seed, group[-1], task.workers)
        ends = play(player, where, group, task.seed, pilot=chosen.pilot, workers=task.workers, late=task.late)
        played |= {end.budget: end for end in ends}
    found = []
    for fraction, budget in wanted.items():
        end = played[budget]
        flips = where.space.flips_of(end.choice) if end.choice else None
        truth = where.truth(flips) if flips is not None else None
        usable = truth is not None and truth.outcome is Outcome.FEASIBLE and truth.log_ratio is not None
        found.append(
            Result(
                landscape=where.name,
                strategy=task.strategy,
                seed=task.seed,
                budget=budget,
                fraction=fraction,
                share=round(where.share(flips), 5),
                gain=round(-(truth.log_ratio or 0.0), 6) if truth is not None and usable else 0.0,
                single=round(where.single_share, 5),
                easy=where.easy,
                imputed=truth is not None and truth.imputed,
                builds=end.builds,
                failures=end.failures,
                sessions=end.sessions,
                planning_seconds=round(end.planning_seconds, 3),
                slowest_plan=round(end.slowest_plan, 3),
                hours=round(end.hours, 3),
                memory_mb=round(end.memory_mb, 1),
                code=code(task.strategy, task.workers, task.late),
            )
        )
    return found


@cache
def code(name: str, workers: int = 1, late: float = 0.0) -> str:
    """Digest of all that a result of this player depends on, other than recordings."""
    parts = ["landscape", "noise", "planted", "synthetic", "convert", "simulate", "players"]
    files = [HERE / f"{part}.py" for part in parts] + [SEARCH / "flips.py", SEARCH / "space.py"]
    if kind(name).packaged:
        files += [HERE / "packages.py", packages.LOCK]
    elif name not in KINDS or kind(name).pilot == PILOT_BUILDS:
        files += [HERE / "ours.py", *sorted(SEARCH.glob("*.py"))]
    digest = hashlib.sha256(f"{workers} {late}".encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Log:
    """Results on disk: a line each while a series runs, compressed when it has ended."""

    def __init__(self, folder: Path) -> None:
        self._open = folder / "runs.jsonl"
        self._closed = folder / "runs.jsonl.gz"

    def read(self) -> list[Result]:
        """All results of present code, the last of equals. A line that was cut off is left out."""
        text = gzip.decompress(self._closed.read_bytes()).decode() if self._closed.exists() else ""
        text += self._open.read_text() if self._open.exists() else ""
        found = {}
        for line in text.splitlines():
            try:
                one = Result(**json.loads(line))
            except (ValueError, TypeError):
                continue
            found[one.landscape, one.strategy, one.seed, one.fraction, one.code] = one
        return [found[key] for key in sorted(found)]

    def append(self, results: Iterable[Result]) -> None:
        self._open.parent.mkdir(parents=True, exist_ok=True)
        cut = self._open.exists() and self._open.read_bytes()[-1:] not in (b"", b"\n")
        with self._open.open("a") as file:
            file.write("\n" * cut + "".join(json.dumps(asdict(one), separators=(",", ":")) + "\n" for one in results))

    def close(self, results: Iterable[Result]) -> None:
        """Keep these, compressed."""
        self._closed.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(asdict(one), separators=(",", ":")) + "\n" for one in results)
        aside = self._closed.with_name(f"{self._closed.name}.part")
        aside.write_bytes(gzip.compress(text.encode(), mtime=0))
        aside.replace(self._closed)
        self._open.unlink(missing_ok=True)


def tasks(
    names: Sequence[str],
    strategies: Sequence[str],
    seeds: Sequence[int],
    done: Iterable[Result],
    fractions: Sequence[float] = FRACTIONS,
    workers: int = 1,
    late: float = 0.0,
) -> Iterator[Task]:
    """What is still to be played, seed by seed, so that a series that is cut has whole seeds."""
    have = {(one.landscape, one.strategy, one.seed, one.fraction, one.code) for one in done}
    for seed in seeds:
        for name in names:
            where = landscape(name, seed)
            for player in strategies:
                if kind(player).noisy and where.noise.session_sd < NOISY_SD:
                    continue
                key = code(player, workers, late)
                left = [f for f in budgets(where, fractions) if (where.name, player, seed, f, key) not in have]
                if left:
                    yield Task(name, player, seed, tuple(left), workers, late)


def play_all(queue: Iterator[Task], jobs: int) -> Iterator[list[Result]]:
    """Results as they come, on `jobs` processes."""
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        running: set[Future[list[Result]]] = set()
        for task in queue:
            running.add(pool.submit(run, task))
            if len(running) >= 2 * jobs:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in ended)
        yield from (future.result() for future in running)


def plan_large(count: int) -> tuple[float, float]:
    """Seconds and megabytes (of a process of its own, all in all) of one plan of Adaptive after `count` results."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_plan_large, count).result()


def _plan_large(count: int) -> tuple[float, float]:
    where = landscape("synthetic-dense", 0)
    builder, routes = Builder(where, 0), Random(where.space, 0)
    player = Ours(strategy("Adaptive"), where.space, 0, where.noise.told_sd, where.noise.build_sd, 64, False)
    for candidate in [BASELINE] * PILOT_BUILDS + list(routes.ask(count, count, ())):
        player.tell(builder.build(candidate))
    player.planned = count
    began = time.perf_counter()
    player.ask(64, count, ())
    seconds = time.perf_counter() - began
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
