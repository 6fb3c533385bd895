"""What a run leaves for its relatives, and what it makes of theirs."""

from __future__ import annotations

import json
import secrets
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import scripted_backend
from campaign_records import DIGEST, discovery_record, result_record, run_record
from rig.faulty import FaultyStore
from scripted_run import LEVEL, SPEED, inputs, install, run_of, workspace
from test_campaign_rounds import play

from tuner_job.api.beliefs import Beliefs, FlipBelief, Start
from tuner_job.api.findings import MOST_FOUND, MOST_OF_ONE, Finding, FindingsRecord
from tuner_job.api.inputs import Owner, RuntimeIdentity
from tuner_job.api.measurement import BASELINE, Candidate, Device
from tuner_job.api.messages import DiscoveryRecord, PlannedTrial, ResultRecord, RunRecord, VerdictRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign import kin, rounds
from tuner_job.campaign.beliefs import beliefs_of, origins_of, prior_of
from tuner_job.campaign.discover import discover
from tuner_job.campaign.kin import (
    MOST_FAILURES,
    MOST_FLIPS_READ,
    NEAREST,
    SAYS_NOTHING_HERE,
    WIDEST,
    _relatives,
    _thinned,
    describe,
    findings_of,
    first_beliefs,
    leave_findings,
    subject_of,
    trust,
)
from tuner_job.campaign.local import LocalExecutor
from tuner_job.campaign.reader import RunReader
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.routes.select import select
from tuner_job.search.prior import Prior
from tuner_job.search.relatives import Relative, WarmStart
from tuner_job.search.rounds import Observation
from tuner_job.search.space import Flip, Space
from tuner_job.store import layout, ledger
from tuner_job.store.objects import ObjectStore

STRUCTURE = "2" * 64
QUICK = ("--beat-seconds", "0.2", "--poll-seconds", "0.05")
EFFECTS = {"-k2=off": 0.9, "-k5=off": 0.93, "-k1=off": 1.1}
BEST = frozenset({Flip("-k2", "off"), Flip("-k5", "off")})


def fresh_store() -> ObjectStore:
    return ObjectStore.open(f"memory://{secrets.token_hex(8)}")


def explored(run: RunRecord) -> rounds.Fold:
    """A run whose sums are exact, at its end."""

    def answer(run: RunRecord, planned: PlannedTrial) -> ResultRecord:
        broken = Outcome.REFUSED if "-k7=off" in planned.candidate.route else Outcome.FEASIBLE
        return result_record(run, planned, EFFECTS, outcome=broken)

    fold, _ = play(run, answer)
    return rounds.Fold(run, known(run), fold.plans, fold.seals, fold.results)


def known(run: RunRecord, **changes: Any) -> DiscoveryRecord:
    return discovery_record(run).model_copy(update={"structure": STRUCTURE, **changes})


def beliefs(store: ObjectStore, run: RunRecord, discovery: DiscoveryRecord) -> Beliefs:
    subject = subject_of(run, discovery.variants, discovery.device, STRUCTURE, discovery.cases)
    space = rounds.space_of(run.inputs, discovery.knobs, discovery.settings)
    return first_beliefs(store, run, space, subject, discovery.identity, ())


OTHER_DEVICE = {"identity": "9" * 64, "device": Device(type="CPU", product="Other CPU")}


def test_the_best_of_a_run_on_another_device_is_a_start_with_its_origin() -> None:
    store, run = fresh_store(), run_record("Adaptive", max_trials=40)
    leave_findings(store, explored(run))
    later = run_record("Adaptive", max_trials=30)
    found = beliefs(store, later, known(later, **OTHER_DEVICE))
    assert set(found.starts[0].flips.items()) >= BEST
    assert found.relatives == (f"this model on Test CPU, run {run.run}",)
    space = rounds.space_of(later.inputs, known(later).knobs)
    prior = prior_of(found, space)
    assert prior.starts[0] >= BEST
    assert prior.live[Flip("-k2", "off")] > 0.3
    assert prior.effect[Flip("-k2", "off")] < -0.02
    assert prior.failing[Flip("-k7", "off")] > 0.15


def test_a_trial_that_a_relative_suggested_says_so() -> None:
    run = run_record("Expression", expression="-k2=[on|off] -k5=[on|off]")
    started = Beliefs(relatives=("a cousin",), starts=(Start(flips={"-k2": "off", "-k5": "off"}, origin="a cousin"),))
    plan = rounds.first_plan(run, known(run, beliefs=started))
    reasons = {trial.candidate.route: trial.reason for trial in plan.trials}
    assert reasons["-k2=off -k5=off"].endswith("; from the best of a cousin")
    assert "cousin" not in reasons["-k2=off -k5=on"]


def test_the_strategy_gets_the_recorded_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    class Spy:
        def next_round(self, space, history, budget, seed, pending=()):
            given.append(space.prior)
            return rounds.Done("seen enough")

    monkeypatch.setattr(rounds, "strategy_of", lambda inputs: Spy())
    run = run_record()
    mine = Beliefs(
        flips=(FlipBelief(dimension="-k2", value="off", live=0.5, effect=-0.1), FlipBelief(dimension="-z", value="1", live=0.5))
    )
    rounds.first_plan(run, known(run, beliefs=mine))
    assert given == [Prior(live={Flip("-k2", "off"): 0.5}, effect={Flip("-k2", "off"): -0.1})]


def test_beliefs_survive_the_record() -> None:
    run = run_record()
    space = rounds.space_of(run.inputs, known(run).knobs)
    k1, k2 = space.flips[:2]
    prior = Prior({k1: 0.3}, {k1: -0.05}, {k2: 0.6}, (frozenset({k1, k2}),))
    written = beliefs_of(WarmStart(prior, ("a cousin",)), ["a cousin"])
    record = DiscoveryRecord.parse(known(run, beliefs=written).to_json(), "discovery")
    assert prior_of(record.beliefs, space) == prior
    assert origins_of(record.beliefs, space) == {space.candidate({k1, k2}).id: "a cousin"}


def test_a_discovery_without_what_came_later_is_as_it_was_and_stays_readable() -> None:
    run = run_record()
    found = discovery_record(run)
    data = found.to_json()
    for name in (b"beliefs", b"structure", b"buildSeconds", b"timingSeconds"):
        assert name not in data, "an older reader refuses what it does not know"
    assert DiscoveryRecord.parse(data, "discovery") == found
    assert found.beliefs == Beliefs()


def test_a_start_that_the_space_cannot_express_is_none() -> None:
    run = run_record(include=("-k1",))
    space = rounds.space_of(run.inputs, known(run).knobs)
    mine = Beliefs(starts=(Start(flips={"-k2": "off"}, origin="a cousin"), Start(flips={"-k1": "7"}, origin="a cousin")))
    assert prior_of(mine, space).starts == ()
    assert origins_of(mine, space) == {}


@pytest.mark.parametrize("how", ["warm start None", "a rerun"])
def test_who_wants_no_warm_start_reads_and_leaves_nothing(how: str) -> None:
    store, run = fresh_store(), run_record("Adaptive", max_trials=40)
    leave_findings(store, explored(run))
    alone = run_record("Adaptive", warm_start="None") if how == "warm start None" else run.model_copy(update={"rerun_token": "x"})
    assert beliefs(store, alone, known(alone, **OTHER_DEVICE)) == Beliefs()
    before = {info.key for info in store.list("")}
    fold = explored(alone)
    leave_findings(store, rounds.Fold(alone, known(alone, **OTHER_DEVICE), fold.plans, fold.seals, fold.results))
    assert {info.key for info in store.list("")} == before


def test_ones_own_results_are_no_relatives_but_cache_hits() -> None:
    store, run = fresh_store(), run_record("Adaptive", max_trials=40)
    leave_findings(store, explored(run))
    assert beliefs(store, run, known(run)) == Beliefs()


def test_findings_hold_the_default_and_every_folded_trial() -> None:
    run = run_record("OneAtATime")
    fold = explored(run)
    record = findings_of(fold, STRUCTURE)
    assert record.found[0].candidate == BASELINE
    assert len(record.found) == 1 + len(fold.folded)
    assert record.identity == DIGEST
    assert record.defaults["-k0"] == "on"


def told(*found: Finding) -> Relative:
    """What is read of a relative with these findings."""
    store, run = fresh_store(), run_record()
    mine = subject_of(run, run.inputs.variants, Device(type="CPU", product="A"), STRUCTURE, ())
    record = FindingsRecord(identity="9" * 64, run="9" * 20, subject=mine, defaults={}, found=found)
    store.put(layout.findings(mine.kin[0], record.identity, record.run), record.to_json())
    (relative,) = _relatives(store, mine, DIGEST)
    return relative


def test_outcomes_of_chance_and_of_a_jobs_own_thresholds_say_nothing_to_relatives() -> None:
    assert ledger.BY_CHANCE | {Outcome.INFEASIBLE} == SAYS_NOTHING_HERE
    candidates = [(Candidate(route=f"-k{k}=off"), outcome) for k, outcome in enumerate(Outcome)]
    seen = told(*(Finding(candidate=candidate, outcome=outcome) for candidate, outcome in candidates)).observations
    assert {o.outcome for o in seen} == set(Outcome) - SAYS_NOTHING_HERE


def wide(number: int, flips: int, outcome: Outcome) -> Finding:
    route = " ".join(f"-k{(number + k) % 300}=1" for k in range(flips))
    return Finding(candidate=Candidate(route=route), outcome=outcome, log_ratio=0.0 if outcome is Outcome.FEASIBLE else None)


@pytest.mark.parametrize("flips", [WIDEST, MOST_OF_ONE])
@pytest.mark.parametrize("outcome", [Outcome.FEASIBLE, Outcome.REFUSED])
def test_of_a_poisoned_relative_no_more_is_read_than_can_be_fitted(flips: int, outcome: Outcome) -> None:
    small = [wide(k, 3, outcome) for k in range(100)]
    seen = told(*(wide(k, flips, outcome) for k in range(1800)), *small).observations
    widths = [len(o.candidate.route.split()) for o in seen]
    assert max(widths) <= WIDEST
    assert sum(widths) <= MOST_FLIPS_READ
    failed = [o for o in seen if o.outcome is not Outcome.FEASIBLE]
    assert len(failed) <= MOST_FAILURES
    if flips > WIDEST or failed:
        assert {f.candidate.id for f in small} <= {o.candidate.id for o in seen}, "the small ones say most"


def test_honest_findings_are_read_whole() -> None:
    found = [wide(k, 30, Outcome.FEASIBLE) for k in range(1000)] + [wide(k, 10, Outcome.REFUSED) for k in range(MOST_FAILURES)]
    assert [o.candidate for o in told(*found).observations] == [f.candidate for f in found]


@pytest.mark.parametrize("error", [MemoryError(), ValueError("numbers"), ZeroDivisionError()])
def test_a_relative_that_cannot_be_fitted_is_left_out(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, run = fresh_store(), run_record("Adaptive", max_trials=40)
    leave_findings(store, explored(run))

    def fitted(space: Space, relatives: Any, operators: Any) -> WarmStart:
        if relatives:
            raise error
        return WarmStart(Prior())

    monkeypatch.setattr(kin, "warm_start", fitted)
    assert beliefs(store, run, known(run, **OTHER_DEVICE)) == Beliefs()
    assert "relatives are left out" in caplog.text


def test_beliefs_that_cannot_be_written_down_end_no_run(caplog: pytest.LogCaptureFixture) -> None:
    name = f"-force_conv_{'x' * 256}"
    option = {"option": name, "allowed_values": f"{name}=[on|off]", "default_value": "off", "help": ""}
    knobs = parse_knob_list(json.dumps({"tuner_version": "t", "tuner_options": [option]}))
    store, run = fresh_store(), run_record()
    subject = subject_of(run, run.inputs.variants, Device(type="CPU", product="A"), STRUCTURE, ())
    assert first_beliefs(store, run, Space(knobs, select(knobs)), subject, DIGEST, ("Conv",)) == Beliefs()
    assert "beliefs are left out" in caplog.text


def test_a_store_that_is_away_keeps_neither_from_planning(caplog: pytest.LogCaptureFixture) -> None:
    store, run = FaultyStore(fresh_store()), run_record("OneAtATime")
    store.down = True
    leave_findings(store, explored(run))
    assert "nothing is left for relatives" in caplog.text
    assert beliefs(store, run, known(run)) == Beliefs()
    assert "down on purpose" in caplog.text


def test_too_many_results_are_thinned_evenly_and_the_fastest_stay() -> None:
    seen = [Observation(f"{k:05d}", BASELINE, Outcome.FEASIBLE, 0.001 * ((k * 7919) % 10_000), 0.1) for k in range(10_000)]
    kept = _thinned(seen)
    assert MOST_FOUND / 2 < len(kept) <= MOST_FOUND
    assert kept == sorted(kept, key=lambda o: o.trial)
    assert {o.log_ratio for o in seen if o.log_ratio is not None and o.log_ratio < 0.5} <= {o.log_ratio for o in kept}
    gaps = [int(b.trial) - int(a.trial) for a, b in pairwise(kept)]
    assert max(gaps) <= 10
    assert _thinned(seen[:7]) == seen[:7]


def test_the_farther_the_relative_the_less_it_is_trusted() -> None:
    run = run_record()
    mine = subject_of(run, run.inputs.variants, Device(type="GPU", product="A", compute_capability="9.0"), STRUCTURE, ())

    def changed(**changes: Any) -> float:
        return trust(mine, mine.model_copy(update=changes))

    driver = mine.device.model_copy(update={"driver": "2"})
    product = mine.device.model_copy(update={"product": "B"})
    architecture = product.model_copy(update={"compute_capability": "8.9"})
    version = RuntimeIdentity(family="ONNXRuntime", version="2")
    assert NEAREST == changed() > changed(device=driver) > changed(device=product) > changed(device=architecture) > 0
    assert NEAREST > changed(models={"default": "7" * 64}) > changed(structure="7" * 64) > 0
    assert changed(device=product) > changed(device=product, runtime=version) > 0
    assert changed(cases_digest="7" * 64) < NEAREST
    assert changed(owner=Owner(name="other")) == NEAREST, "whose job it was does not matter"
    assert changed(runtime=RuntimeIdentity(family="TensorRT", version="1")) == 0
    assert changed(device=Device(type="CPU", product="A")) == 0
    everything = changed(structure="7" * 64, cases_digest="7" * 64, device=architecture, runtime=version)
    assert everything == 0, "too far to be worth its starts"


def test_a_relation_is_told_in_words() -> None:
    run = run_record()
    record = findings_of(explored(run), STRUCTURE)
    mine = record.subject
    assert describe(mine, record) == f"this model, run {run.run}"
    other = mine.model_copy(
        update={
            "models": {"default": "7" * 64},
            "device": Device(type="CPU", product="Else"),
            "runtime": RuntimeIdentity(family="ONNXRuntime", version="9"),
            "cases_digest": "8" * 64,
        }
    )
    assert (
        describe(other, record)
        == f"this model with other weights under other shapes on Test CPU with ONNXRuntime 1, run {run.run}"
    )


# --- whole runs -------------------------------------------------------------------------------------------------


def complete(
    store: ObjectStore, folder: Path, backend: Path, job: str = "tiny", **search: Any
) -> tuple[RunReader, VerdictRecord]:
    run = run_of(store, inputs(folder, **search), job=job)
    executor = LocalExecutor(store, {}, run.run, workers=1, folder=folder / "out", worker_options=QUICK)
    return RunReader(store, run.run), executor.complete()


SEARCH: dict[str, Any] = {
    "strategy": "Adaptive",
    "settings": {"speed": ("fast",), "optimizationLevel": ("0", "1", "2", "4", "5")},
    "max_trials": 16,
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_on_another_device_tries_the_best_of_the_first_one_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore.open((tmp_path / "store").as_uri())
    facts = {"settings": [SPEED, LEVEL]}
    backend = install(tmp_path, **facts)
    monkeypatch.setenv("PYTHONPATH", str(backend))
    first, _ = complete(store, tmp_path, backend, **SEARCH)
    assert first.discovery().beliefs.starts == ()  # type: ignore[union-attr]

    scripted_backend.install(backend, backend="tensorrt", product="Another", missing="none", gpu=True, **facts)
    second, verdict = complete(store, tmp_path, backend, "other-job", **SEARCH, start_with=())
    found = second.discovery()
    assert found is not None
    assert found.device.product == "Another"
    assert len(found.beliefs.relatives) == 1
    assert first.run.run in found.beliefs.relatives[0]
    leading = second.plans()[0].trials[0]
    assert leading.candidate.settings["speed"] == "fast"
    assert f"from the best of this model on Scripted, run {first.run.run}" in leading.reason
    assert verdict.candidate.settings["speed"] == "fast"
    again = rounds.first_plan(second.run, found)
    assert again.to_json() == second.plans()[0].to_json(), "two planners agree by the record alone"


@pytest.mark.timeout(600)
def test_discover_learns_from_another_version_of_the_jobs_model_and_survives_poison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore.open((tmp_path / "store").as_uri())
    backend = install(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(backend))
    wanted = inputs(tmp_path, settings={"speed": ("fast",)})
    run = run_of(store, wanted)
    found = discover(workspace(store, run, tmp_path / "space-1"))
    assert found.structure is not None
    own = subject_of(run, found.variants, found.device, found.structure, found.cases)
    other = findings_of(explored(run_record("OneAtATime")), "5" * 64)
    seen = Candidate(settings={"speed": "fast"})
    finding = other.found[0].model_copy(update={"candidate": seen, "log_ratio": -0.1, "sd": 0.001, "fingerprint": ""})
    near = other.model_copy(
        update={
            "subject": own.model_copy(update={"structure": "5" * 64, "models": {"default": "6" * 64}}),
            "found": (other.found[0], finding, finding, finding, finding),
        }
    )
    store.put(layout.findings(near.subject.kin[1], near.identity, near.run), near.to_json())
    store.put(layout.findings(own.kin[0], "e" * 64, "0" * 20), json.dumps({"schemaVersion": 1}).encode())

    warm = discover(workspace(store, run, tmp_path / "space-2")).beliefs
    assert [one.origin for one in warm.starts] == [f"another version of this job's model, run {near.run}"]
    assert warm.relatives == (f"another version of this job's model, run {near.run}",)
    assert warm.flips[0].dimension == "setting:speed"
