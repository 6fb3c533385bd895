from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from store_publish_helpers import NAME, World, finished, fresh_store, write

from tuner_job.api.base import InputError
from tuner_job.store import layout, pointers
from tuner_job.store.blobs import put_blob
from tuner_job.store.gc import MIN_GRACE_SECONDS, CannotCollect, Report, collect
from tuner_job.store.keys import Signer, TrustRoot
from tuner_job.store.ledger import Ledger
from tuner_job.store.objects import ObjectStore
from tuner_job.store.publish import Published, publish
from tuner_job.store.verify import verify

SIGNER = Signer.generate()
TRUST = TrustRoot([SIGNER.public])
DAY = 86400.0


@pytest.fixture
def world() -> World:
    return World(fresh_store())


def put_out(world: World, token: str, promotion: str = "Automatic") -> Published:
    done = write(world.view(), finished(token))
    return publish(
        world.view(),
        done.run,
        done.verdict,
        SIGNER,
        current_inputs_digest=done.run.inputs_digest,
        promotion=promotion,  # type: ignore[arg-type]
    )


def sweep(world: World, keep: int = 1, **options: object) -> Report:
    return collect(world.view(), keep=keep, now=world.now, grace_seconds=DAY, **options)  # type: ignore[arg-type]


def keys(world: World) -> set[str]:
    return {info.key for info in world.inner.list("")}


def retire_runs(world: World, keep: int = 1) -> None:
    """The first of the two steps in which runs that no pointer names are collected, and the wait for the second."""
    sweep(world, keep, run_retention_seconds=DAY)
    world.pass_time(3)


def test_garbage_older_than_the_grace_period_is_deleted_and_younger_is_not(world: World) -> None:
    old = put_blob(world.view(), b"old")
    world.pass_time(2)
    young = put_blob(world.view(), b"young")
    report = sweep(world)
    assert report.deleted["blobs"] == 1
    assert report.freed_bytes == 3
    assert keys(world) == {layout.blob(young)}
    assert old != young


def test_a_blob_that_is_written_again_is_young_again(world: World) -> None:
    digest = put_blob(world.view(), b"engine")
    world.pass_time(2)
    put_blob(world.view(), b"engine")
    assert sweep(world).deleted["blobs"] == 0
    assert keys(world) == {layout.blob(digest)}


def test_what_a_pointer_serves_and_the_newest_of_its_history_stay_for_ever(world: World) -> None:
    all_published = [put_out(world, str(number)) for number in range(4)]
    world.pass_time(400)
    retire_runs(world)
    report = sweep(world, run_retention_seconds=DAY)
    world.pass_time(3)
    sweep(world, run_retention_seconds=DAY)
    assert report.deleted["manifests"] == 2
    assert report.deleted["attestations"] == 2
    kept = {layout.manifest(published.digest) for published in all_published[2:]}
    assert {key for key in keys(world) if key.startswith(layout.MANIFESTS)} == kept
    assert verify(world.inner, NAME, TRUST).digest == all_published[3].digest
    pointers.rollback(world.inner, NAME)
    assert verify(world.inner, NAME, TRUST).digest == all_published[2].digest


def test_a_pinned_manifest_stays_whatever_came_after_it(world: World) -> None:
    first = put_out(world, "1")
    pointers.pin(world.view(), NAME)
    for number in range(3):
        put_out(world, f"later {number}")
    world.pass_time(30)
    retire_runs(world, keep=0)
    sweep(world, keep=0)
    assert verify(world.inner, NAME, TRUST).digest == first.digest
    assert len([key for key in keys(world) if key.startswith(layout.MANIFESTS)]) == 1


def test_history_beyond_keep_is_forgotten_so_that_nobody_rolls_back_to_it(world: World) -> None:
    first = put_out(world, "1")
    put_out(world, "2")
    put_out(world, "3")
    assert sweep(world, keep=1).trimmed == [NAME.key]
    with pytest.raises(pointers.PointerRefused):
        pointers.rollback(world.inner, NAME, first.digest)
    assert sweep(world, keep=1).trimmed == []


def test_a_result_that_awaits_approval_stays_as_long_as_its_run(world: World) -> None:
    waiting = put_out(world, "1", "Manual")
    world.pass_time(100)
    before = keys(world)
    sweep(world)
    assert keys(world) == before
    assert verify(world.inner, waiting.digest, TRUST).digest == waiting.digest


def test_the_blobs_of_a_run_without_a_verdict_stay(world: World) -> None:
    done = write(world.view(), finished())
    world.view().delete(layout.verdict(done.run.run))
    world.pass_time(100)
    sweep(world)
    assert layout.blob(done.discovery.references_blob) in keys(world)


def test_an_idle_run_is_retired_first_and_deleted_a_grace_period_later(world: World) -> None:
    done = write(world.view(), finished())
    world.pass_time(10)
    assert sweep(world, run_retention_seconds=20 * DAY).retired == []
    report = sweep(world, run_retention_seconds=5 * DAY)
    assert report.retired == [done.run.run]
    assert report.deleted.total() == 0
    assert sweep(world, run_retention_seconds=5 * DAY).deleted.total() == 0
    world.pass_time(2)
    report = sweep(world, run_retention_seconds=5 * DAY)
    assert report.deleted["runs"] == 6
    assert keys(world) == set()


def test_a_run_that_somebody_still_writes_to_is_neither_retired_nor_deleted(world: World) -> None:
    done = write(world.view(), finished())
    world.pass_time(10)
    beat = layout.beat(done.run.run, "1-0")
    world.view().put(beat, b"beat")
    assert sweep(world, run_retention_seconds=5 * DAY).retired == []
    world.pass_time(10)
    sweep(world, run_retention_seconds=5 * DAY)
    world.pass_time(2)
    world.view().put(beat, b"beat after all")
    assert sweep(world, run_retention_seconds=5 * DAY).deleted.total() == 0


def test_the_run_behind_a_pointer_is_never_retired(world: World) -> None:
    published = put_out(world, "1")
    world.pass_time(400)
    assert sweep(world, run_retention_seconds=DAY).retired == []
    assert layout.verdict(published.manifest.run) in keys(world)


def test_ledgers_are_kept_unless_a_retention_is_given(world: World) -> None:
    world.view().put("ledger/identity/candidate.json", b"{}")
    world.pass_time(50)
    assert sweep(world).deleted.total() == 0
    assert sweep(world, ledger_retention_seconds=60 * DAY).deleted.total() == 0
    assert sweep(world, ledger_retention_seconds=40 * DAY).deleted["ledger"] == 1


def test_leftovers_of_probes_are_deleted(world: World) -> None:
    world.view().put(f"{layout.PROBE}/1234-race", b"x")
    world.pass_time(2)
    assert sweep(world).deleted["probe"] == 1


def test_orphans_are_deleted_at_every_level(world: World) -> None:
    published = put_out(world, "1", "Manual")
    world.pass_time(10)
    for key in keys(world):
        if key.startswith(layout.RUNS):
            world.inner.delete(key)
    world.inner.delete(layout.manifest(published.digest))
    sweep(world)
    assert keys(world) == set()


def test_a_dry_run_reports_the_same_and_changes_nothing(world: World) -> None:
    for number in range(4):
        put_out(world, str(number))
    put_blob(world.view(), b"garbage")
    world.view().put("ledger/identity/candidate.json", b"{}")
    world.pass_time(10)
    options: dict[str, object] = {"run_retention_seconds": DAY, "ledger_retention_seconds": DAY}
    for _ in range(2):
        before = {key: world.inner.get(key, 1 << 20) for key in keys(world)}
        forecast = sweep(world, dry_run=True, **options)
        assert {key: world.inner.get(key, 1 << 20) for key in keys(world)} == before
        done = sweep(world, **options)
        assert (forecast.deleted, forecast.freed_bytes, forecast.kept) == (done.deleted, done.freed_bytes, done.kept)
        assert (forecast.retired, forecast.trimmed) == (done.retired, done.trimmed)
        world.pass_time(10)


@pytest.mark.parametrize("what", ["pointer", "foreign pointer", "manifest", "verdict", "newer verdict"])
def test_nothing_is_deleted_while_what_is_reached_is_unknown(world: World, what: str) -> None:
    published = put_out(world, "1")
    put_blob(world.view(), b"garbage")
    key, data = {
        "pointer": (NAME.key, b"rubbish"),
        "foreign pointer": (f"{layout.POINTERS}/a/b/c/d/e.json", world.inner.get(NAME.key, 1 << 20).data),  # type: ignore[union-attr]
        "manifest": (layout.manifest(published.digest), b"rubbish"),
        "verdict": (layout.verdict(published.manifest.run), b"rubbish"),
        "newer verdict": (layout.verdict(published.manifest.run), b'{"schemaVersion": 99}'),
    }[what]
    world.view().put(key, data)
    world.pass_time(30)
    before = keys(world)
    with pytest.raises(CannotCollect) as caught:
        sweep(world)
    assert key in str(caught.value)
    assert keys(world) == before


def test_rubbish_among_the_manifests_is_garbage(world: World) -> None:
    world.view().put(layout.manifest("0" * 64), b"rubbish")
    world.pass_time(2)
    assert sweep(world).deleted["manifests"] == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"grace_seconds": MIN_GRACE_SECONDS - 1}, "grace"),
        ({"keep": -1}, "keep"),
        ({"keep": 51}, "keep"),
        ({"now": datetime(2026, 1, 1)}, "time zone"),
    ],
)
def test_settings_that_could_do_harm_are_refused(world: World, options: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        collect(world.view(), **{"keep": 1, "now": datetime.now(UTC), **options})  # type: ignore[arg-type]


def test_files_half_written_are_swept_from_a_folder(tmp_path: Path) -> None:
    store = ObjectStore.open(f"file://{tmp_path}/store")
    store.put("blobs/sha256/" + "0" * 64, b"x")
    aside = tmp_path / "store" / "blobs" / "sha256" / ".aside-dead"
    aside.write_bytes(b"half")
    os.utime(aside, (0, 0))
    assert collect(store, keep=1, now=datetime.now(UTC)).swept == 1
    assert not aside.exists()


def test_a_timing_cache_stays_as_long_as_the_ledger_or_a_run_names_it(world: World) -> None:
    named, of_run, of_nobody = (put_blob(world.view(), name) for name in (b"named", b"of a run", b"of nobody"))
    ledger = Ledger(world.view())
    ledger.name_timing_cache("1" * 64, named)
    world.view().create(layout.timing_cache("2" * 64), b"not a record")
    world.view().create(f"{layout.LEDGER}/README", b"nobody's")
    done = finished()
    discovery = done.discovery.model_copy(update={"timing_cache_blob": of_run})
    write(world.view(), replace(done, discovery=discovery))
    world.pass_time(30)
    assert sweep(world).deleted["blobs"] >= 1
    assert {layout.blob(named), layout.blob(of_run)} <= keys(world)
    assert layout.blob(of_nobody) not in keys(world)

    sweep(world, ledger_retention_seconds=DAY)
    sweep(world)
    assert layout.blob(named) not in keys(world)
    assert layout.blob(of_run) in keys(world)


def test_the_layers_of_a_final_stay_with_its_run(world: World) -> None:
    layers = put_blob(world.view(), b"layers")
    done = finished()
    write(world.view(), replace(done, verdict=done.verdict.model_copy(update={"layers_blob": layers})))
    world.pass_time(30)
    sweep(world)
    assert layout.blob(layers) in keys(world)
