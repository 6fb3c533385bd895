"""Worker processes that are killed, stopped, misled or left without a store. Their children run a scripted backend."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import scripted_backend
from rig.tiny import write_tiny_model

from tuner_job.api.base import InputError
from tuner_job.api.child import MeasureSettings
from tuner_job.api.inputs import AccuracyInput, Owner, RunInputs, RuntimeIdentity, SearchInput, VariantInput
from tuner_job.api.messages import (
    BeatRecord,
    BeatState,
    EndRecord,
    LedgerRecord,
    PlanRecord,
    PreviousEnd,
    ResultRecord,
    RunRecord,
    TryRecord,
)
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.exits import WorkerExit
from tuner_job.campaign.local import LocalExecutor, RunFailed
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.start import start_run
from tuner_job.campaign.stop import StopReason, stop_marker
from tuner_job.model.digest import digest
from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import create_record, read_record
from tuner_job.store.tries import mark_dead
from tuner_job.store.vet import vet

PATIENCE = 240.0
QUICK = ("--beat-seconds", "0.2", "--poll-seconds", "0.05")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Scene:
    """A run, and the scripted backend that its workers' children find."""

    store: ObjectStore
    run: RunRecord
    folder: Path

    @property
    def store_folder(self) -> Path:
        return self.folder / "store"

    @property
    def backend(self) -> Path:
        return self.folder / "backend"

    @property
    def reader(self) -> RunReader:
        """A new one, that has read nothing yet."""
        return RunReader(self.store, self.run.run)

    def start(
        self, stage: str, *options: str, attempt: int = 1, index: int = 0, store: str = "", **environment: str
    ) -> subprocess.Popen[bytes]:
        command = self.command(stage, *options, attempt=attempt, index=index, store=store)
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(self.backend), **environment})

    def command(self, stage: str, *options: str, attempt: int = 1, index: int = 0, store: str = "") -> list[str]:
        return [
            sys.executable, "-m", "tuner_job.campaign.worker",
            "--store", store or self.store.url, "--run", self.run.run, "--stage", stage,
            "--attempt", str(attempt), "--index", str(index), "--parent", str(os.getpid()),
            "--scratch", str(self.folder / "scratch"), "--end-message", str(self._end_message(attempt, index)),
            *QUICK, *options,
        ]  # fmt: skip

    def ended(self, worker: subprocess.Popen[bytes], *, attempt: int = 1, index: int = 0) -> tuple[int, dict[str, str]]:
        """Exit code and end message; a worker leaves one line, and nothing in scratch."""
        code = worker.wait(PATIENCE)
        path = self._end_message(attempt, index)
        message = json.loads(path.read_text()) if path.exists() else {}
        assert "\n" not in message.get("message", "")
        return code, message

    def _end_message(self, attempt: int, index: int) -> Path:
        return self.folder / f"end-{attempt}-{index}.json"

    def holding(self, count: int = 1) -> None:
        """Until so many builds are held."""
        until(lambda: len(list(self.backend.glob("holding-*"))) >= count)

    def go(self) -> None:
        (self.backend / scripted_backend.GO).touch()

    def result(self, trial: str) -> ResultRecord | None:
        return read_record(self.store, layout.result(self.run.run, trial), ResultRecord)

    def tried(self, trial: str, number: int) -> TryRecord | None:
        return read_record(self.store, layout.claim(self.run.run, trial, number), TryRecord)

    def scratch_is_empty(self) -> bool:
        return not list((self.folder / "scratch").rglob("*"))


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def begin(folder: Path, expression: str) -> Scene:
    folder.mkdir(exist_ok=True)
    scripted_backend.install(folder / "backend")
    model = write_tiny_model(folder / "tiny.onnx")
    store = ObjectStore.open((folder / "store").as_uri())
    inputs = RunInputs(
        runtime=RuntimeIdentity(family="ONNXRuntime", version="1.0"),
        variants=(VariantInput(uri=model.as_uri(), digest=digest(model)),),
        min_improvement=0.01,
        measure=MeasureSettings(
            sessions=2, session_seconds=0.005, session_samples=3, warmup_seconds=0.0, warmup_limit_seconds=0.05
        ),
        accuracy=AccuracyInput(source="Generated", samples=1, metric="l1", threshold=1e-3, screening_threshold=4e-3),
        search=SearchInput(strategy="Expression", expression=expression, max_trials=8, device_seconds=1e5),
    )
    return Scene(store, start_run(store, Owner(name="tiny"), "cpu", inputs, shards=2), folder)


@pytest.fixture(scope="module")
def discovered(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A run with its first plan: two builds that hold until they may go (one per shard), and two that do nothing."""
    scene = begin(tmp_path_factory.mktemp("discovered"), "-do=[hold|nothing] -k=[a|b]")
    assert scene.ended(scene.start("discover")) == (WorkerExit.NOTHING_LEFT, {})
    assert [trial.candidate.route for trial in scene.reader.plans()[0].trials][:2] == ["-do=hold -k=a", "-do=hold -k=b"]
    assert scene.scratch_is_empty()
    return scene


@pytest.fixture
def scene(discovered: Scene, tmp_path: Path) -> Scene:
    """A copy of that run, with a backend and a scratch folder of its own."""
    folder = tmp_path / "scene"
    shutil.copytree(discovered.folder, folder)
    return Scene(ObjectStore.open((folder / "store").as_uri()), discovered.run, folder)


def beat_of(scene: Scene, worker: str = "2-0") -> BeatRecord:
    beat = scene.reader.beat(worker)
    assert beat is not None
    return beat


HELD, HELD_TOO, FREE, FREE_TOO = (f"001-{number:05d}" for number in range(4))
EVERY = (HELD, HELD_TOO, FREE, FREE_TOO)


def test_a_trial_that_kills_its_worker_is_tried_three_times_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = begin(tmp_path / "killing", "-do=[killTwice|kill|nothing]")
    monkeypatch.setenv("PYTHONPATH", str(scene.backend))
    executor = LocalExecutor(scene.store, {}, scene.run.run, workers=1, folder=scene.folder, worker_options=QUICK)
    verdict = executor.complete()

    twice, always, never = (scene.result(f"001-{number:05d}") for number in range(3))
    assert twice is not None
    assert always is not None
    assert never is not None
    assert (twice.outcome, twice.tries, twice.convicted) == (Outcome.FEASIBLE, 3, False)
    assert (always.outcome, always.tries, always.convicted) == (Outcome.CRASHED, 3, True)
    assert (never.outcome, never.tries, never.convicted) == (Outcome.FEASIBLE, 1, False)
    assert "signal 9" in always.reason
    ends = [tried.previous for trial in ("001-00000", "001-00001") for n in (2, 3) if (tried := scene.tried(trial, n))]
    assert [end.cause for end in ends if end] == ["unexplained"] * 4
    assert verdict.run == scene.run.run
    assert scene.scratch_is_empty()


def test_a_worker_that_is_told_to_end_lets_go_of_its_trial_at_once(scene: Scene) -> None:
    first = scene.start("explore", attempt=1)
    scene.holding()
    first.send_signal(signal.SIGTERM)
    assert scene.ended(first, attempt=1)[0] == WorkerExit.INTERRUPTED
    beat = scene.reader.beat("1-0")
    assert beat is not None
    assert beat.state is BeatState.STOPPED
    assert scene.result(HELD) is None

    scene.go()
    assert scene.ended(scene.start("explore", "--stale-seconds", "1e9", attempt=2), attempt=2)[0] == WorkerExit.NOTHING_LEFT
    second = scene.tried(HELD, 2)
    assert second is not None
    assert second.previous is not None
    assert second.previous.cause == "stopped"
    assert [found.tries for trial in EVERY if (found := scene.result(trial))] == [2, 1, 1, 1]
    assert scene.scratch_is_empty()


def test_a_stop_marker_lets_the_trial_in_hand_finish(scene: Scene) -> None:
    worker = scene.start("explore", attempt=1)
    scene.holding()
    stop_marker(scene.store, scene.run.run, 1, StopReason.SUSPENDED)
    scene.go()
    assert scene.ended(worker)[0] == WorkerExit.STOPPED
    assert [trial for trial in EVERY if scene.result(trial)] == [HELD]
    assert scene.scratch_is_empty()

    assert scene.ended(scene.start("explore", attempt=2), attempt=2)[0] == WorkerExit.NOTHING_LEFT
    assert [found.tries for trial in EVERY if (found := scene.result(trial))] == [1, 1, 1, 1]


def test_a_worker_whose_deadline_the_operator_tells_plans_the_final_after_the_trial_in_hand(scene: Scene) -> None:
    worker = scene.start("explore", attempt=2)
    scene.holding()
    stop_marker(scene.store, scene.run.run, 2, StopReason.DEADLINE_EXCEEDED)
    scene.go()
    assert scene.ended(worker, attempt=2) == (WorkerExit.NOTHING_LEFT, {})
    assert [trial for trial in EVERY if scene.result(trial)] == [HELD]
    final = scene.reader.plans()[-1]
    assert (final.stage, final.reason) == ("final", "the deadline for exploring has passed")


def test_a_worker_whose_budget_is_used_up_plans_the_final_after_the_trial_in_hand(scene: Scene) -> None:
    worker = scene.start("explore", attempt=2)
    scene.holding()
    stop_marker(scene.store, scene.run.run, 2, StopReason.BUDGET_EXHAUSTED)
    scene.go()
    assert scene.ended(worker, attempt=2) == (WorkerExit.NOTHING_LEFT, {})
    assert [trial for trial in EVERY if scene.result(trial)] == [HELD]
    final = scene.reader.plans()[-1]
    assert (final.stage, final.reason) == ("final", "the budget of device time is used up")
    assert scene.ended(scene.start("final", attempt=3), attempt=3) == (WorkerExit.NOTHING_LEFT, {})
    verdict = scene.reader.verdict()
    assert verdict is not None
    vet(scene.store, scene.run, verdict)
    beats = [scene.reader.beat(name) for name in scene.reader.workers()]
    assert [(beat.stage, beat.outcomes) for beat in beats if beat] == [
        (stage, {"feasible": 1}) for stage in ("discover", "explore", "final")
    ]


def test_a_pod_that_replaces_another_goes_by_its_own_name_and_on_from_its_figures(scene: Scene) -> None:
    first = scene.start("explore", "--worker-id", "first-uid", attempt=2)
    scene.holding()
    until(lambda: beat_of(scene).trial == HELD and beat_of(scene).phase != "")
    until(lambda: beat_of(scene).device_seconds > 0)
    first.kill()
    first.wait(PATIENCE)
    used = beat_of(scene).device_seconds
    assert mark_dead(scene.store, scene.run.run, "2-0", cause="explained", worker_id="first-uid")
    scene.go()
    second = scene.start("explore", "--worker-id", "second-uid", attempt=2)
    assert scene.ended(second, attempt=2) == (WorkerExit.NOTHING_LEFT, {})
    tries = [scene.tried(HELD, number) for number in (1, 2)]
    assert [tried.worker_id for tried in tries if tried] == ["first-uid", "second-uid"]
    beat = beat_of(scene)
    assert (beat.worker_id, beat.state, beat.outcomes) == ("second-uid", BeatState.DONE, {"feasible": 4})
    results = [scene.result(trial) for trial in EVERY]
    own = sum(result.seconds["total"] + result.seconds["controls"] for result in results if result)
    assert beat.device_seconds == pytest.approx(used + own, abs=0.5)


SECRET = "do-not-tell"


def test_credentials_of_the_store_reach_no_child_and_no_record(scene: Scene) -> None:
    scene.go()
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY")
    credentials = dict.fromkeys((*names, "GOOGLE_SERVICE_ACCOUNT_KEY"), SECRET)
    worker = scene.start("explore", TRTFLEET_STORE_OPTIONS="{}", **credentials)
    assert scene.ended(worker) == (WorkerExit.NOTHING_LEFT, {})
    seen = [json.loads(path.read_text()) for path in scene.backend.glob("environment-*")]
    assert len(seen) > len(EVERY)
    for environment in seen:
        assert environment.keys() & {*credentials, "TRTFLEET_STORE_OPTIONS"} == set()
        assert SECRET not in environment.values()
    assert not [path for path in scene.store_folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_a_worker_needs_neither_a_home_nor_a_place_for_its_end_message(scene: Scene) -> None:
    scene.go()
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": str(scene.backend)}
    command = scene.command("explore", "--end-message", "/proc/nowhere/termination-log")
    worker = subprocess.Popen(command, env=bare, cwd="/", stderr=subprocess.PIPE)
    _, said = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == WorkerExit.NOTHING_LEFT
    assert b"Traceback" not in said
    stop_marker(scene.store, scene.run.run, 2, StopReason.SUSPENDED)
    command = scene.command("final", "--end-message", "/proc/nowhere/termination-log", attempt=2)
    assert subprocess.run(command, env=bare, cwd="/", check=False, timeout=PATIENCE).returncode == WorkerExit.STOPPED


def test_two_workers_share_a_run(scene: Scene) -> None:
    workers = [scene.start("explore", index=index) for index in range(2)]
    scene.holding(2)  # both at once, each at the head of its own shard
    scene.go()
    assert [scene.ended(worker, index=index)[0] for index, worker in enumerate(workers)] == [0, 0]
    results = [scene.result(trial) for trial in EVERY]
    assert [found.tries for found in results if found] == [1, 1, 1, 1]
    assert [found.worker for found in results[:2] if found] == ["1-0", "1-1"]
    assert scene.reader.plans()[-1].stage == "final"
    assert scene.scratch_is_empty()


def test_a_worker_on_another_device_class_says_so_and_touches_nothing(scene: Scene) -> None:
    scripted_backend.install(scene.backend, product="Other")
    code, end = scene.ended(scene.start("explore"))
    assert code == WorkerExit.WRONG_DEVICE
    assert end["reason"] == "WrongDevice"
    assert "Other" in end["message"]
    assert "Scripted" in end["message"]
    assert [scene.tried(trial, 1) for trial in EVERY] == [None] * 4


@pytest.mark.parametrize("stage", ["discover", "explore"])
def test_another_version_of_the_runtime_is_refused(scene: Scene, tmp_path: Path, stage: str) -> None:
    if stage == "discover":
        scene = begin(tmp_path / "new", "-do=nothing -k=[a|b]")
    scripted_backend.install(scene.backend, version="2.0")
    code, end = scene.ended(scene.start(stage))
    assert code == WorkerExit.BAD_INPUT
    assert end["reason"] == "RuntimeMismatch"
    assert "the run is for ONNXRuntime 1.0, but this worker has 2.0" in end["message"]


def test_a_store_that_is_not_there_is_worth_another_start(scene: Scene) -> None:
    scene.store_folder.rename(scene.folder / "elsewhere")
    scene.store_folder.write_text("no folder")
    code, end = scene.ended(scene.start("explore"))
    assert code == WorkerExit.STORE_UNUSABLE
    assert end["reason"] == "StoreUnavailable"
    assert scene.store.url in end["message"]


def test_a_result_that_is_found_while_the_store_is_away_is_written_when_it_is_back(scene: Scene) -> None:
    worker = scene.start("explore")
    scene.holding()
    [building] = [path.name for path in scene.backend.glob("holding-*")]
    elsewhere = scene.folder / "elsewhere"
    scene.store_folder.rename(elsewhere)
    scene.store_folder.write_text("no folder")
    scene.go()
    until(lambda: not psutil.pid_exists(int(building.partition("-")[2])))  # the trial is over
    scene.store_folder.unlink()
    elsewhere.rename(scene.store_folder)
    assert scene.ended(worker)[0] == WorkerExit.NOTHING_LEFT
    assert [found.tries for trial in EVERY if (found := scene.result(trial))] == [1, 1, 1, 1]
    assert scene.scratch_is_empty()


def test_a_worker_that_is_told_to_stop_does_not_wait_for_the_store(scene: Scene) -> None:
    worker = scene.start("explore")
    scene.holding()
    [building] = [path.name for path in scene.backend.glob("holding-*")]
    scene.store_folder.rename(scene.folder / "elsewhere")
    scene.store_folder.write_text("no folder")
    scene.go()
    until(lambda: not psutil.pid_exists(int(building.partition("-")[2])))
    worker.terminate()
    assert scene.ended(worker)[0] in (WorkerExit.STORE_UNUSABLE, WorkerExit.INTERRUPTED)
    assert scene.scratch_is_empty()


def test_records_of_the_ledger_that_cannot_be_used_cost_a_measurement_each(scene: Scene) -> None:
    scene.go()
    identity = scene.reader.discovery().identity  # type: ignore[union-attr]
    held, held_too, free, free_too = (trial.candidate for trial in scene.reader.plans()[0].trials)
    honest = ResultRecord(
        run="0" * 20, trial=FREE, candidate=free, outcome=Outcome.REFUSED, tries=1, worker="1-0", worker_id="w", finished_at="now"
    )
    pilot = scene.reader.discovery().pilot[0]  # type: ignore[union-attr]
    timed_twice = honest.model_copy(update={"candidate": held, "outcome": Outcome.FEASIBLE, "timing": pilot.timing * 2})
    newer = {**json.loads(LedgerRecord(identity=identity, result=honest).to_json()), "schemaVersion": 2}
    elsewhere = LedgerRecord(identity="0" * 64, result=honest).to_json()
    for candidate, data in (
        (held, LedgerRecord(identity=identity, result=timed_twice).to_json()),
        (held_too, b"garbage"),
        (free, json.dumps(newer).encode()),
        (free_too, elsewhere),
    ):
        assert scene.store.create(layout.ledger(identity, candidate), data)
    assert scene.ended(scene.start("explore")) == (WorkerExit.NOTHING_LEFT, {})
    results = [scene.result(trial) for trial in EVERY]
    assert [(found.outcome, found.cached) for found in results if found] == [(Outcome.FEASIBLE, False)] * 4


def test_a_worker_without_a_device_blames_its_machine_and_not_the_job(scene: Scene) -> None:
    scripted_backend.lose_device(scene.backend)
    code, end = scene.ended(scene.start("explore"))
    assert (code, end["reason"]) == (WorkerExit.INTERNAL, "NoDevice")
    assert "the driver finds no device" in end["message"]


def test_a_worker_whose_environment_would_steer_its_builds_otherwise_says_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    code, end = scene.ended(scene.start("explore"))
    assert code == WorkerExit.WRONG_DEVICE
    assert end["reason"] == "WrongEnvironment"
    assert "NVIDIA_TF32_OVERRIDE is 0 here, and was absent" in end["message"]
    assert scene.tried(HELD, 1) is None


@pytest.mark.parametrize("stage", ["explore", "final"])
def test_a_stage_that_is_started_before_its_time_is_worth_another_start(scene: Scene, stage: str) -> None:
    if stage == "explore":
        scene.store.delete(layout.plan(scene.run.run, 1))
    code, end = scene.ended(scene.start(stage))
    assert code == WorkerExit.STORE_UNUSABLE
    assert "no plan" in end["message"]
    assert scene.reader.verdict() is None


@pytest.mark.parametrize("trial", ["discover", "final"])
def test_a_stage_that_killed_three_workers_ends_the_run_with_one_line(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, trial: str
) -> None:
    run, store = scene.run.run, scene.store
    if trial == "discover":
        store.delete(layout.discovery(run))
    else:
        store.delete(layout.plan(run, 1))
        create_record(store, layout.plan(run, 1), PlanRecord(run=run, round=1, stage="final", reason="nothing to try"))
    if store.exists(layout.claim(run, trial, 1)):
        store.delete(layout.claim(run, trial, 1))
    for number in (1, 2, 3):
        previous = PreviousEnd(cause="unexplained") if number > 1 else None
        record = TryRecord(trial=trial, number=number, worker="9-0", worker_id=f"w{number}", started_at="now", previous=previous)
        create_record(store, layout.claim(run, trial, number), record)
        create_record(
            store, layout.end(run, f"w{number}"), EndRecord(worker="9-0", worker_id=f"w{number}", cause="unexplained", at="")
        )
    code, end = scene.ended(scene.start(trial))
    assert code == WorkerExit.BAD_INPUT
    assert end["reason"] == "StageConvicted"

    monkeypatch.setenv("PYTHONPATH", str(scene.backend))
    executor = LocalExecutor(store, {}, run, workers=1, folder=scene.folder / "out", worker_options=QUICK)
    with pytest.raises(RunFailed, match=f"stage {trial} of run {run}"):
        executor.complete()


def test_a_pick_that_breaks_while_it_is_timed_loses_to_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = begin(tmp_path / "breaking", "-do=breakTogether")
    monkeypatch.setenv("PYTHONPATH", str(scene.backend))
    executor = LocalExecutor(scene.store, {}, scene.run.run, workers=1, folder=scene.folder, worker_options=QUICK)
    verdict = executor.complete()
    assert verdict.candidate.route == "-do=breakTogether"
    assert verdict.reason == "TimingFailedInFinal"
    assert "SIGABRT" in verdict.message
    assert not verdict.significant
    assert verdict.published.is_baseline
    vet(scene.store, scene.run, verdict)


def test_a_pick_that_wins_on_the_device_and_loses_end_to_end_is_no_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = begin(tmp_path / "calling", "-do=slowToCall")
    scripted_backend.install(scene.backend, gpu=True)
    monkeypatch.setenv("PYTHONPATH", str(scene.backend))
    executor = LocalExecutor(scene.store, {}, scene.run.run, workers=1, folder=scene.folder, worker_options=QUICK)
    verdict = executor.complete()
    assert verdict.candidate.route == "-do=slowToCall"
    assert verdict.reason == "HostSlower"
    assert "by the host's clock" in verdict.message
    assert verdict.route_gain is not None
    assert verdict.route_gain.low > 0.4
    assert not verdict.significant
    assert verdict.published.is_baseline
    vet(scene.store, scene.run, verdict)


def test_a_run_of_another_schema_is_left_alone(scene: Scene) -> None:
    path = scene.store_folder / layout.run(scene.run.run)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schemaVersion": 2, "unheardOf": True}))
    code, end = scene.ended(scene.start("explore"))
    assert code == WorkerExit.BAD_INPUT
    assert end["reason"] == "SchemaMismatch"
    assert "schema version 2 is newer than this trtfleet's (1)" in end["message"]


@pytest.mark.parametrize(
    ("poison", "complaint"),
    [(b"\x00garbage", "not a valid ResultRecord"), (b"{" + b" " * ResultRecord.MAX_BYTES + b"}", "at most")],
    ids=["garbage", "huge"],
)
def test_a_poisoned_result_ends_the_run_with_its_key(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, poison: bytes, complaint: str
) -> None:
    scene.go()
    key = layout.result(scene.run.run, FREE)
    path = scene.store_folder / key
    path.parent.mkdir(parents=True)
    path.write_bytes(poison)
    code, end = scene.ended(scene.start("explore"))
    assert code == WorkerExit.BAD_INPUT
    assert key in end["message"]
    assert complaint in end["message"]

    monkeypatch.setenv("PYTHONPATH", str(scene.backend))
    executor = LocalExecutor(scene.store, {}, scene.run.run, workers=1, folder=scene.folder / "out", worker_options=QUICK)
    with pytest.raises(InputError, match=key):
        executor.complete()
