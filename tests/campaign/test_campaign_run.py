"""Whole runs by real workers and children over a real model; only the sessions are short."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tuner_job.api.inputs import Owner, RunInputs
from tuner_job.api.messages import RunRecord, VerdictRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.local import LocalExecutor, RunBusy
from tuner_job.campaign.progress import progress
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.start import start_run
from tuner_job.measure.decision import recompute
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore
from tuner_job.store.vet import vet

QUICK = ("--beat-seconds", "0.5", "--poll-seconds", "0.1")

pytestmark = pytest.mark.timeout(600)


def begin(store: ObjectStore, inputs: RunInputs, *, workers: int = 1, rerun: str = "") -> RunRecord:
    return start_run(store, Owner(name="tiny"), "cpu", inputs, shards=workers, rerun_token=rerun)


def complete(store: ObjectStore, run: RunRecord, folder: Path, *, workers: int = 1) -> VerdictRecord:
    executor = LocalExecutor(store, {}, run.run, workers=workers, folder=folder, worker_options=QUICK, tick_seconds=0.05)
    return executor.complete()


def folder_store(path: Path) -> ObjectStore:
    return ObjectStore.open(path.as_uri())


@pytest.mark.slow
def test_a_run_ends_with_a_verdict_that_its_record_alone_repeats(tiny_inputs: RunInputs, tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    run = begin(store, tiny_inputs, workers=2)
    verdict = complete(store, run, tmp_path / "out", workers=2)

    reader = RunReader(store, run.run)
    fold = reader.fold()
    assert sorted(r.candidate.route for r in fold.folded) == sorted(
        {
            "-session:memory_pattern=on -session:cpu_arena=on",
            "-session:memory_pattern=on -session:cpu_arena=off",
            "-session:memory_pattern=off -session:cpu_arena=on",
            "-session:memory_pattern=off -session:cpu_arena=off",
        }
    )
    assert {r.outcome for r in fold.folded} == {Outcome.FEASIBLE}
    assert all(r.tries == 1 for r in fold.folded)
    assert {r.worker.partition("-")[2] for r in fold.folded} <= {"0", "1"}
    assert any(r.controls for r in fold.folded), "workers time their own baseline"
    again = recompute(verdict)
    assert (again.significant, again.p_value, again.published) == (
        verdict.significant,
        verdict.p_value,
        next(b.name for b in verdict.builds if b.engine.digest == verdict.engine.digest and b.name == again.published),
    )
    assert store.exists(layout.blob(verdict.engine.digest))
    assert vet(store, run, verdict).run == run.run
    seen = progress(reader)
    assert seen.finished == seen.planned == 4
    assert not list((tmp_path / "out" / "scratch").rglob("*")), "no scratch file is left"
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]


@pytest.mark.slow
def test_a_second_run_under_other_thresholds_takes_its_results_from_the_ledger(tiny_inputs: RunInputs, tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    complete(store, begin(store, tiny_inputs), tmp_path / "out")
    tighter = tiny_inputs.accuracy.model_copy(update={"threshold": 1e-12, "screening_threshold": 1e-12})
    other = tiny_inputs.model_copy(update={"min_improvement": 0.02})

    run = begin(store, other)
    complete(store, run, tmp_path / "out")
    assert all(r.cached for r in RunReader(store, run.run).fold().folded)

    rerun = begin(store, other, rerun="again")
    complete(store, rerun, tmp_path / "out")
    assert not any(r.cached for r in RunReader(store, rerun.run).fold().folded), "a rerun measures anew"
    assert tighter.threshold < tiny_inputs.accuracy.threshold


@pytest.mark.slow
def test_a_finished_run_starts_no_worker(tiny_inputs: RunInputs, tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    run = begin(store, tiny_inputs)
    verdict = complete(store, run, tmp_path / "out")
    before = sorted(info.key for info in store.list(layout.run_prefix(run.run)))
    assert complete(store, run, tmp_path / "out") == verdict
    assert sorted(info.key for info in store.list(layout.run_prefix(run.run))) == before


def test_two_executors_of_one_run_do_not_meet(tiny_inputs: RunInputs, tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    run = begin(store, tiny_inputs)

    def second(_stage: object) -> None:
        with pytest.raises(RunBusy, match=run.run):
            complete(store, run, tmp_path / "other")
        raise KeyboardInterrupt

    first = LocalExecutor(store, {}, run.run, workers=1, folder=tmp_path / "out", on_tick=second)
    with pytest.raises(Exception, match="nothing is lost"):
        first.complete()


def test_a_store_that_is_named_by_another_path_is_the_same_store(tiny_inputs: RunInputs, tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    run = begin(store, tiny_inputs)
    (tmp_path / "link").symlink_to(tmp_path / "store")

    def second(_stage: object) -> None:
        for path in ("link", "store/../store/", "%73tore"):
            with pytest.raises(RunBusy, match=run.run):
                complete(ObjectStore.open(f"file://{tmp_path}/{path}"), run, tmp_path / "other")
        raise KeyboardInterrupt

    first = LocalExecutor(store, {}, run.run, workers=1, folder=tmp_path / "out", on_tick=second)
    with pytest.raises(Exception, match="nothing is lost"):
        first.complete()


def test_starting_the_same_run_again_keeps_the_first_record(tiny_inputs: RunInputs, tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    first = begin(store, tiny_inputs, workers=1)
    again = begin(store, tiny_inputs, workers=8)
    assert again == first
    record = json.loads((tmp_path / "store" / layout.run(first.run)).read_bytes())
    assert record["shards"] == 1
