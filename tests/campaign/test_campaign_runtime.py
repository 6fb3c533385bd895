"""What a run makes of what its runtime offers, says and brings along: settings, notes, plugins, timing caches, device, layers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scripted_backend
from rig.s3 import Address
from scripted_run import LEVEL, NO_TUNER, SPEED, inputs, install, run_of, workspace

from tuner_job.api.base import InputError, digest_of
from tuner_job.api.inputs import PluginInput, RunInputs
from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import DiscoveryRecord, PlannedTrial, ResultRecord, VerdictRecord, trial_id
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.baseline import Baseline, BaselineFailed
from tuner_job.campaign.discover import DiscoveryFailed, discover
from tuner_job.campaign.local import LocalExecutor, RunFailed
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.trials import TrialRunner
from tuner_job.campaign.workspace import TIMING_CACHE_BYTES, Workspace
from tuner_job.store import layout
from tuner_job.store.beats import Heart
from tuner_job.store.blobs import get_blob
from tuner_job.store.ledger import Ledger
from tuner_job.store.models import RemoteModels
from tuner_job.store.objects import ObjectStore
from tuner_job.store.tries import Claim, Claims
from tuner_job.store.vet import vet

pytestmark = pytest.mark.timeout(600)

QUICK = ("--beat-seconds", "0.2", "--poll-seconds", "0.05")


class Scene:
    """A store, and the backend that children find."""

    def __init__(self, folder: Path, **facts: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._spaces = 0
        self.wall = 0.0
        """Seconds of the last whole run."""
        self.store = ObjectStore.open((folder / "store").as_uri())
        self.backend = install(folder, **facts)

    def space(self, wanted: RunInputs, token: str = "") -> Workspace:
        run = run_of(self.store, wanted, token)
        self._spaces += 1
        return workspace(self.store, run, self.folder / f"space-{self._spaces}")

    def discover(self, wanted: RunInputs, token: str = "") -> DiscoveryRecord:
        return discover(self.space(wanted, token))

    def complete(self, wanted: RunInputs, token: str = "") -> tuple[RunReader, VerdictRecord]:
        run = run_of(self.store, wanted, token)
        executor = LocalExecutor(self.store, {}, run.run, workers=1, folder=self.folder / "out", worker_options=QUICK)
        began = time.monotonic()
        verdict = executor.complete()
        self.wall = time.monotonic() - began
        return RunReader(self.store, run.run), verdict

    def builds(self) -> list[dict[str, Any]]:
        return scripted_backend.noted(self.backend, "build")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scene]:
    """A scene with a backend of the given facts, which this process's children find."""

    def made(**facts: Any) -> Scene:
        found = Scene(tmp_path, **facts)
        monkeypatch.setenv("PYTHONPATH", str(found.backend))
        return found

    return made


@pytest.mark.parametrize(
    ("search", "names"),
    [
        (
            {"settings": {"optimisationLevel": ("5",)}},
            r"search\.builder\.settings: .*'optimisationLevel'; nearest: optimizationLevel",
        ),
        ({"settings": {"zzz": ("5",)}}, r"'zzz'; there are optimizationLevel, speed"),
        ({"settings": {"optimizationLevel": ("9",)}}, r"settings\.optimizationLevel: '9' .* a whole number from 0 to 5"),
        ({"settings": {"optimizationLevel": ("05",)}}, r"settings\.optimizationLevel: '05' is not allowed"),
        ({"settings": {"speed": ("warp",)}}, r"settings\.speed: 'warp' is not allowed; allowed: slow, fast"),
        ({}, f"no knob, builder setting or model variant is left to try; {NO_TUNER}"),
        ({"settings": {"speed": ("slow",)}}, "is left to try"),
        ({"settings": {"speed": ("fast",)}, "start_with": ("-k=b",)}, rf"search\.startWith\[0\].*{NO_TUNER}"),
        ({"settings": {"speed": ("fast",)}, "include": ("-k",)}, rf"search\.knobs\.include.*{NO_TUNER}"),
    ],
)
def test_what_cannot_be_searched_ends_the_run_by_name_before_anything_is_built(
    scene: Callable[..., Scene], search: dict[str, Any], names: str
) -> None:
    here = scene()
    with pytest.raises(InputError, match=names):
        here.discover(inputs(here.folder, **search))
    assert here.builds() == []


def test_a_runtime_without_settings_says_so(scene: Callable[..., Scene]) -> None:
    here = scene(settings=[])
    with pytest.raises(InputError, match="this runtime has no builder settings"):
        here.discover(inputs(here.folder, settings={"speed": ("fast",)}))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, RunReader, VerdictRecord]:
    """A whole run of a TensorRT without a tuner: settings and variants, one of which the engine refuses; a plugin; a cache."""
    here = Scene(tmp_path_factory.mktemp("told"), cacheBytes=100, fingerprints=True, profile="slow")
    plugin = here.folder / "plugin.so"
    plugin.write_text("code")
    wanted = inputs(
        here.folder,
        variants=("half", "refused"),
        plugins=(plugin,),
        settings={"speed": ("slow", "fast"), "optimizationLevel": ("3", "5")},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(here.backend))
        reader, verdict = here.complete(wanted)
    return here, reader, verdict


Told = tuple[Scene, RunReader, VerdictRecord]


@pytest.mark.slow
def test_settings_and_variants_are_searched_where_there_are_no_knobs(told: Told) -> None:
    _, reader, verdict = told
    tried = {(one.candidate.variant, *one.candidate.settings.items()) for one in reader.fold().folded}
    assert {("half",), ("refused",)} <= tried
    flips = {flip for _, *settings in tried for flip in settings}
    assert flips == {("speed", "fast"), ("optimizationLevel", "5")}, "a setting's default is no choice"
    assert verdict.significant
    assert verdict.published.settings == {"speed": "fast"}
    assert vet(told[0].store, reader.run, verdict).run == reader.run.run


@pytest.mark.slow
def test_a_variant_that_the_engine_refuses_loses_alone(told: Told) -> None:
    ends = {one.candidate.variant: one for one in told[1].fold().folded if not one.candidate.settings}
    assert ends["refused"].outcome is Outcome.REFUSED
    assert "Frobnicate" in ends["refused"].reason
    assert ends["half"].outcome is Outcome.FEASIBLE


@pytest.mark.slow
def test_what_the_backend_says_is_recorded(told: Told) -> None:
    discovery = told[1].discovery()
    assert discovery is not None
    assert [one.name for one in discovery.settings] == [SPEED["name"], LEVEL["name"]]
    assert discovery.notes == ("a note",)


@pytest.mark.slow
def test_every_record_of_a_measurement_has_the_devices_state(told: Told) -> None:
    _, reader, verdict = told
    discovery = reader.discovery()
    assert discovery is not None
    states = [discovery.state, *(one.state for one in discovery.pilot)]
    states += [one.state for one in reader.fold().folded if one.outcome is Outcome.FEASIBLE]
    states += verdict.states
    assert len(verdict.states) >= 2, "one for each timing process"
    assert {one and one.uuid for one in states} == {"GPU-0"}


@pytest.mark.slow
def test_builds_of_explore_start_from_the_pilots_cache_and_those_of_the_final_from_nothing(told: Told) -> None:
    here, reader, _ = told
    discovery = reader.discovery()
    assert discovery is not None
    assert discovery.timing_cache_blob is not None
    cache = get_blob(here.store, discovery.timing_cache_blob, 1000).decode()
    assert cache.startswith("cache of ")
    builds = here.builds()
    started = [one["cache"] for one in builds]
    explored = len(reader.fold().folded) + 1  # and the worker's own default
    assert started == [None] * 4 + [cache] * explored + [None] * (len(builds) - 4 - explored)
    assert {one["mode"] for one in builds if one["cache"]} == {0o400}
    assert Ledger(here.store).timing_cache(discovery.identity) == discovery.timing_cache_blob


@pytest.mark.slow
def test_every_child_of_the_library_loads_the_plugins_that_the_job_names(told: Told) -> None:
    here = told[0]
    loaded = scripted_backend.noted(here.backend, "plugins")
    assert len(loaded) > len(here.builds())
    assert {tuple(one["texts"]) for one in loaded} == {("code",)}
    assert {tuple(one["modes"]) for one in loaded} == {(0o500,)}


@pytest.mark.slow
def test_the_finals_layers_are_those_of_one_build_of_each_side(told: Told) -> None:
    layers = told[1].layers()
    assert {side: one.layers[0].kind for side, one in layers.items()} == {"candidate": "fast", "baseline": "slow"}


@pytest.mark.slow
def test_the_results_of_a_worker_add_up_to_its_time(told: Told) -> None:
    results = sorted(told[1].fold().folded, key=lambda one: one.finished_at + one.trial)
    for result in results:
        assert {"prepared", "between", "waited", "controls", "total", "start"} <= result.seconds.keys()
        phases = sum(result.seconds.get(phase, 0.0) for phase in ("start", "build", "load", "check", "measure"))
        assert phases <= result.seconds["total"] + 1e-6
    assert [one.seconds["prepared"] > 0 for one in results] == [True] + [False] * (len(results) - 1)
    assert all(one.seconds["between"] > 0 for one in results)
    parts = ("prepared", "between", "waited", "controls", "total")
    assert sum(one.seconds[part] for one in results for part in parts) < told[0].wall, "nothing is counted twice"


@pytest.mark.slow
def test_engines_that_do_not_fit_together_after_all_are_timed_in_smaller_batches(scene: Callable[..., Scene]) -> None:
    here = scene(room=4, gpu=True)
    _, verdict = here.complete(inputs(here.folder, settings={"speed": ("fast",)}))
    assert verdict.reason != "TimingFailedInFinal"
    assert {build.name.rpartition("-")[0] for build in verdict.builds} == {"candidate", "baseline"}
    assert len({len(case) for build in verdict.builds for case in build.sessions}) == 1
    assert len(verdict.states) >= -(-len(verdict.builds) // 4), "a state for each timing process"


@pytest.mark.slow
def test_a_final_whose_engines_cannot_be_inspected_has_its_verdict_all_the_same(scene: Callable[..., Scene]) -> None:
    here = scene(profile="crash")
    reader, verdict = here.complete(inputs(here.folder, settings={"speed": ("fast",)}))
    assert verdict.significant
    assert verdict.layers_blob is None
    assert reader.layers() == {}


def test_a_library_that_changed_since_the_job_was_written_is_not_loaded(scene: Callable[..., Scene]) -> None:
    here = scene()
    plugin = here.folder / "plugin.so"
    plugin.write_text("code")
    wanted = inputs(here.folder, plugins=(plugin,), settings={"speed": ("fast",)})
    plugin.write_text("other code")
    with pytest.raises(InputError, match=r"model\.plugins\[0\]: .*plugin\.so has digest") as changed:
        here.discover(wanted)
    assert changed.value.reason == "PluginChanged"
    plugin.unlink()
    with pytest.raises(InputError, match=r"model\.plugins\[0\]: .*plugin\.so cannot be read: No such file"):
        here.discover(wanted)
    assert scripted_backend.noted(here.backend, "plugins") == []


def test_a_library_in_a_store_is_fetched_by_its_exact_key(tmp_path: Path, store_address: Address) -> None:
    store = store_address.open()
    store.put("lib/a.so", b"code")
    for key, digest, reason in (
        ("lib/a.so", digest_of(b"code"), ""),
        ("lib/a.so", digest_of(b"other"), "has digest"),
        ("lib/b.so", digest_of(b"code"), "does not exist|cannot be read"),
    ):
        plugin = PluginInput(uri=f"{store_address.url}/{key}", digest=digest)
        wanted = inputs(tmp_path).model_copy(update={"plugins": (plugin,)})
        space = workspace(store, run_of(store, wanted, f"{key} {digest}"), tmp_path / f"{key} {digest}")
        space.remote = RemoteModels(store.url, store_address.options)
        if reason:
            with pytest.raises(InputError, match=rf"model\.plugins\[0\]: .*{key} .*({reason})"):
                space.fetch_plugins()
        else:
            space.fetch_plugins()
            assert [path.read_bytes() for path in space.plugins] == [b"code"]


def test_a_busy_device_ends_discover_and_names_who_uses_it(scene: Callable[..., Scene]) -> None:
    here = scene()
    scripted_backend.neighbours(here.backend, 4242)
    with pytest.raises(DiscoveryFailed, match=r"in use by process 4242.*allowShared") as busy:
        here.discover(inputs(here.folder, settings={"speed": ("fast",)}))
    assert busy.value.reason == "DeviceBusy"


@pytest.mark.slow
def test_a_run_on_a_busy_device_fails_as_one_to_be_repeated(scene: Callable[..., Scene]) -> None:
    here = scene()
    scripted_backend.neighbours(here.backend, 4242)
    wanted = inputs(here.folder, settings={"speed": ("fast",)}, trial_seconds=600.0)
    with pytest.raises(RunFailed, match="4242") as busy:
        here.complete(wanted)
    assert busy.value.reason == "DeviceBusy"


def test_a_busy_device_is_accepted_where_the_job_accepts_neighbours(scene: Callable[..., Scene]) -> None:
    here = scene()
    scripted_backend.neighbours(here.backend, 4242)
    wanted = inputs(here.folder, settings={"speed": ("fast",)})
    shared = wanted.model_copy(update={"measure": wanted.measure.model_copy(update={"allow_shared": True})})
    found = here.discover(shared)
    assert found.state is not None
    assert [one.pid for one in found.state.processes] == [4242]


def test_a_worker_whose_device_is_busy_ends_with_that_reason(scene: Callable[..., Scene]) -> None:
    here = scene()
    space = here.space(inputs(here.folder, settings={"speed": ("fast",)}))
    discovery = discover(space)
    scripted_backend.neighbours(here.backend, 4242)
    with pytest.raises(BaselineFailed, match="in use by process 4242") as busy:
        Baseline(space, discovery).before_trial()
    assert busy.value.reason == "DeviceBusy"


@pytest.mark.parametrize(
    ("happens", "reason", "told"),
    [
        (lambda folder: scripted_backend.neighbours(folder, 4242), "DeviceBusy", "in use by process 4242"),
        (scripted_backend.lose_device, "NoDevice", "the driver finds no device"),
    ],
)
def test_a_device_that_fails_later_costs_one_trial_and_then_the_worker_ends(
    scene: Callable[..., Scene], happens: Callable[[Path], None], reason: str, told: str
) -> None:
    here = scene()
    space = here.space(inputs(here.folder, settings={"speed": ("fast",)}))
    discovery = discover(space)
    run = space.run.run
    claims = Claims(here.store, run, Heart(here.store, run, worker="1-0", worker_id="w", stage="explore"))
    runner, baseline = TrialRunner(space, discovery, None), Baseline(space, discovery)
    candidate = Candidate(settings={"speed": "fast"})

    def result(number: int) -> ResultRecord:
        planned = PlannedTrial(trial=trial_id(1, number), candidate=candidate, shard=0, reason="", repeat=number)
        claim = claims.claim(planned.trial, candidate)
        assert isinstance(claim, Claim)
        return runner.run(planned, claim, baseline)

    good = result(0)
    assert good.outcome is Outcome.FEASIBLE
    assert [state.uuid for state in (good.state, *(one.state for one in good.controls)) if state] == ["GPU-0", "GPU-0"]
    happens(here.backend)
    space.busy_seconds = 0.0
    spoilt = result(1)
    assert (spoilt.outcome, spoilt.tries) == (Outcome.INFRASTRUCTURE, 3)
    assert told in spoilt.reason
    with pytest.raises(BaselineFailed, match=rf"cannot be timed: .*{told}") as ended:
        result(2)
    assert ended.value.reason == reason


def test_runs_of_one_identity_start_from_one_cache_and_a_rerun_from_its_own(scene: Callable[..., Scene]) -> None:
    here = scene(cacheBytes=100)
    wanted = inputs(here.folder, settings={"speed": ("fast",)})
    first = here.discover(wanted)
    later = here.discover(wanted.model_copy(update={"min_improvement": 0.02}))
    rerun = here.discover(wanted, token="again")
    assert later.identity == first.identity
    assert later.timing_cache_blob == first.timing_cache_blob is not None
    assert rerun.timing_cache_blob not in (None, first.timing_cache_blob)
    other = here.discover(wanted.model_copy(update={"measure": wanted.measure.model_copy(update={"streams": 2})}))
    assert other.identity != first.identity
    assert other.timing_cache_blob not in (None, first.timing_cache_blob)


def test_a_cache_whose_bytes_are_gone_costs_a_run_nothing(scene: Callable[..., Scene]) -> None:
    here = scene(cacheBytes=100)
    wanted = inputs(here.folder, settings={"speed": ("fast",)})
    first = here.discover(wanted)
    assert first.timing_cache_blob is not None
    here.store.delete(layout.blob(first.timing_cache_blob))
    later = here.discover(wanted.model_copy(update={"min_improvement": 0.02}))
    assert later.timing_cache_blob not in (None, first.timing_cache_blob)


def test_a_cache_is_kept_up_to_a_bound_and_never_by_a_link(tmp_path: Path) -> None:
    store = ObjectStore.open("memory://caches")
    space = workspace(store, run_of(store, inputs(tmp_path)), tmp_path / "space")
    for size, kept in ((TIMING_CACHE_BYTES, True), (TIMING_CACHE_BYTES + 1, False)):
        path = tmp_path / f"cache-{size}"
        path.touch()
        os.truncate(path, size)
        assert (space.keep_timing_cache(path) is not None) == kept
    link = tmp_path / "link"
    link.symlink_to("/etc/passwd")
    assert space.keep_timing_cache(link) is None
    assert space.keep_timing_cache(tmp_path / "none") is None
