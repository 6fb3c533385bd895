"""SIGKILL for any process of a run, at points spread over all of its stages, and the same command again."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash_rig import Killer, Observed, Point, Victim, job
from rig.s3 import S3Server

from tuner_job.api.messages import ResultRecord
from tuner_job.api.outcome import Outcome
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore

ROUND = 8
"""Trials of a round …"""
FINAL_BUILDS = 15
"""… and builds after which the final begins to time, …"""
DEFAULT_BUILDS = 10
"""… of which so many are of the default: all, where exploring was too noisy to pick a candidate."""


Seen = Callable[[Observed], bool]


@pytest.fixture
def rng() -> random.Random:
    """CRASH_SEED repeats a run's points, victims and delays; what the processes are at then differs a little all the same."""
    seed = int(os.environ.get("CRASH_SEED") or secrets.randbelow(1 << 32))
    print(f"CRASH_SEED={seed}")
    return random.Random(seed)


def discovering(rng: random.Random) -> Iterator[Point]:
    first, second, third = rng.sample(("cli", "worker", "child"), 3)
    yield Point("as discover is claimed", first, lambda o: o.has(lambda run: layout.claim(run, "discover", 1)), rng.uniform(0, 2))
    yield Point("after a pilot build", second, lambda o: o.built("pilot-*") >= 1, rng.uniform(0, 0.5), over=discovered)
    yield Point("after two pilot builds", third, lambda o: o.built("pilot-*") >= 2, rng.uniform(0, 0.5), over=discovered)
    yield Point("between discovery and plan", "worker", lambda o: o.has(layout.discovery), before=planned(1))


def discovered(o: Observed) -> bool:
    return o.has(layout.discovery)


def exploring(rng: random.Random, killer: Killer) -> Iterator[Point]:
    """Between seals, so that these are met as well."""
    inside = [n for n in range(1, 4 * ROUND) if n % ROUND not in (0, ROUND - 1)]
    victims: list[Victim] = ["worker"] * 4 + ["child"] * 3 + ["cli"] * 2 + ["spare"] * 2
    rng.shuffle(victims)
    between: list[Victim] = ["worker", "cli", "worker"]
    rng.shuffle(between)
    points = [
        (n, Point(f"after {n} results", victim, killer.progressed(n), rng.uniform(0, 1.0)))
        for n, victim in zip(sorted(rng.sample(inside, len(victims))), victims, strict=True)
    ] + [
        (n * ROUND, Point(f"between seal {n} and the next plan", victim, sealed(n), before=planned(n + 1)))
        for n, victim in enumerate(between, start=1)
    ]
    yield from (point for _, point in sorted(points, key=lambda item: item[0]))


def sealed(number: int) -> Seen:
    return lambda o: o.has(lambda run: layout.seal(run, number))


def planned(number: int) -> Seen:
    return lambda o: o.has(lambda run: layout.plan(run, number))


def proving(rng: random.Random) -> Iterator[Point]:
    """No more than two workers: three unexplained deaths would convict the final, and rightly so."""
    victims: list[Victim] = ["child", "worker", "cli", "worker"]
    rng.shuffle(victims)
    for count, victim in zip((1, 2, 3), victims, strict=False):
        yield Point(f"after {count} builds of the final", victim, built(count), rng.uniform(0, 0.7), over=proven)
    yield Point("after all builds of the final", victims[-1], all_built, rng.uniform(0, 0.7), over=proven)


def proven(o: Observed) -> bool:
    return o.has(layout.verdict)


def built(count: int) -> Seen:
    return lambda o: o.built("final/*") >= count


def all_built(o: Observed) -> bool:
    picked = o.reader is not None and o.reader.plans()[-1].pick is not None
    return o.built("final/*") >= (FINAL_BUILDS if picked else DEFAULT_BUILDS)


def publishing(rng: random.Random) -> Iterator[Point]:
    yield Point("after the verdict", "cli", lambda o: o.has(layout.verdict), rng.uniform(0, 2))
    yield Point("after the manifest", "cli", published(layout.MANIFESTS), before=published(layout.POINTERS))
    yield Point("after the pointer", "cli", published(layout.POINTERS), rng.uniform(0, 0.1))


def published(prefix: str) -> Seen:
    return lambda o: any(True for _ in o.store.list(prefix))


def check(observed: Observed, undisturbed: Observed, killer: Killer) -> None:
    """What must hold after a run, whatever was killed."""
    assert observed.run == undisturbed.run
    assert observed.trials() == undisturbed.trials(), "the same trials as an undisturbed run"
    for trial in observed.trials():
        data = observed.result_bytes(trial)
        assert data is not None, f"{trial} was lost"
        assert data == observed.results.get(trial, data), f"{trial} has another result than before a kill"
        result = ResultRecord.parse(data, trial)
        assert not result.convicted, f"{trial} was convicted: {result.reason}"
        assert result.outcome is Outcome.FEASIBLE, f"{trial}: {result.outcome}: {result.reason}"
    for stage in ("discover", "final"):
        assert observed.result_bytes(stage) is None, f"{stage} was convicted"
    tries = observed.tries()
    assert sum(tries.values()) <= len(tries) + killer.repeats, f"more than one repeated per kill: {tries}"
    assert {trial: undisturbed.tries()[trial] for trial in observed.trials()} == dict.fromkeys(observed.trials(), 1)
    ended = len(observed.trials()) + 2  # discover and the final, which the undisturbed run was stopped in
    assert undisturbed.counted() == ended - 1
    assert ended - killer.repeats <= observed.counted() <= ended, "each end is counted once, or died with its worker"
    verdict = observed.reader.verdict() if observed.reader else None
    assert verdict is not None
    assert observed.verified_engine() == verdict.engine.digest
    assert observed.leftovers() == []
    assert undisturbed.leftovers() == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_that_is_killed_at_25_points_ends_as_if_it_had_not_been(tmp_path: Path, rng: random.Random) -> None:
    undisturbed = Observed(tmp_path / "undisturbed", job(knobs=5))
    undisturbed.explore()

    observed = Observed(tmp_path / "killed", job(knobs=5))
    killer = Killer(observed, rng)
    for point in (*discovering(rng), *exploring(rng, killer), *proving(rng), *publishing(rng)):
        killer.kill(point)
    observed.complete()
    assert killer.kills == 25
    check(observed, undisturbed, killer)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_workers_over_a_bucket_are_killed_as_well(tmp_path: Path, rng: random.Random, s3_server: S3Server) -> None:
    variables = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "testing-secret"}

    def over_s3(name: str) -> Observed:
        address = s3_server.new_store()
        store = f"""
---
apiVersion: trtfleet.dev/v1alpha1
kind: ArtifactStore
metadata: {{name: bucket}}
spec: {{url: "{address.url}", endpoint: "{s3_server.endpoint}", region: us-east-1}}
"""
        opened = ObjectStore.open(address.url, address.options)
        return Observed(tmp_path / name, job(4, "bucket") + store, store=opened, workers=2, variables=variables)

    undisturbed = over_s3("undisturbed")
    undisturbed.explore()
    observed = over_s3("killed")
    killer = Killer(observed, rng)
    explored: list[Victim] = ["worker", "child", "cli"]
    rng.shuffle(explored)
    for point in (
        Point(
            "as discover is claimed", "worker", lambda o: o.has(lambda run: layout.claim(run, "discover", 1)), rng.uniform(0, 2)
        ),
        *(
            Point(f"after {n} results", victim, killer.progressed(n), rng.uniform(0, 1))
            for n, victim in zip((1, 3, 5), explored, strict=True)
        ),
        Point("between seal and plan", rng.choice(("worker", "cli")), sealed(1), before=planned(2)),
        Point("in the final", rng.choice(("worker", "cli")), built(2), rng.uniform(0, 1), over=proven),
        Point("after the manifest", "cli", published(layout.MANIFESTS), before=published(layout.POINTERS)),
    ):
        killer.kill(point)
    observed.complete()
    check(observed, undisturbed, killer)
