"""The ledger: which results are shared, and what makes two results the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tuner_job.api.base import InputError
from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.inputs import AccuracyInput, PluginInput, RunInputs, RuntimeIdentity, SearchInput, VariantInput
from tuner_job.api.measurement import Candidate, Device
from tuner_job.api.messages import ResultRecord
from tuner_job.api.outcome import Outcome
from tuner_job.store import layout
from tuner_job.store.ledger import Ledger, identity
from tuner_job.store.objects import ObjectStore, StoreCorrupt

IDENTITY = "a" * 64
_names = itertools.count()


def result(**changes: Any) -> ResultRecord:
    known = {
        "run": "0" * 20,
        "trial": "001-00001",
        "candidate": Candidate(route="-a=1"),
        "outcome": Outcome.REFUSED,
        "tries": 1,
        "worker": "1-0",
        "worker_id": "w",
        "finished_at": "2026-11-30T00:00:00Z",
    }
    return ResultRecord(**{**known, **changes})


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(ObjectStore.open(f"memory://ledger-{next(_names)}"))


def test_the_first_result_of_a_candidate_is_kept(object_store: ObjectStore) -> None:
    ledger = Ledger(object_store)
    candidate = Candidate(route="-a=1")
    assert ledger.lookup(IDENTITY, candidate) is None
    assert ledger.add(IDENTITY, result(reason="first"))
    assert not ledger.add(IDENTITY, result(reason="second"))
    found = ledger.lookup(IDENTITY, candidate)
    assert found is not None
    assert found.reason == "first"


def test_results_of_another_identity_or_candidate_are_not_found(ledger: Ledger) -> None:
    ledger.add(IDENTITY, result())
    assert ledger.lookup("b" * 64, Candidate(route="-a=1")) is None
    assert ledger.lookup(IDENTITY, Candidate(route="-a=1", settings={"level": "5"})) is None
    assert ledger.lookup(IDENTITY, Candidate(route="-a=1", variant="fp16")) is None


@pytest.mark.parametrize("outcome", Outcome)
def test_only_what_would_happen_again_is_shared(ledger: Ledger, outcome: Outcome) -> None:
    shared = ledger.add(IDENTITY, result(outcome=outcome))
    assert shared == (outcome not in (Outcome.HUNG, Outcome.INFRASTRUCTURE, Outcome.OUT_OF_MEMORY))
    assert (ledger.lookup(IDENTITY, Candidate(route="-a=1")) is not None) == shared


@pytest.mark.parametrize("why", ["convicted", "cached"])
def test_convictions_and_the_ledgers_own_results_are_not_shared(ledger: Ledger, why: str) -> None:
    assert not ledger.add(IDENTITY, result(outcome=Outcome.CRASHED, **{why: True}))
    assert ledger.lookup(IDENTITY, Candidate(route="-a=1")) is None


def test_a_record_under_a_wrong_key_is_refused() -> None:
    store = ObjectStore.open(f"memory://ledger-{next(_names)}")
    Ledger(store).add(IDENTITY, result())
    found = store.get(layout.ledger(IDENTITY, Candidate(route="-a=1")), 1 << 20)
    assert found is not None
    for key in (layout.ledger("b" * 64, Candidate(route="-a=1")), layout.ledger(IDENTITY, Candidate(route="-b=1"))):
        store.put(key, found.data)
    with pytest.raises(StoreCorrupt, match="another candidate or identity"):
        Ledger(store).lookup("b" * 64, Candidate(route="-a=1"))
    with pytest.raises(StoreCorrupt, match="another candidate or identity"):
        Ledger(store).lookup(IDENTITY, Candidate(route="-b=1"))


def test_a_poisoned_record_is_named() -> None:
    store = ObjectStore.open(f"memory://ledger-{next(_names)}")
    key = layout.ledger(IDENTITY, Candidate())
    store.put(key, b"{}")
    with pytest.raises(InputError, match=key):
        Ledger(store).lookup(IDENTITY, Candidate())


INPUTS = RunInputs(
    runtime=RuntimeIdentity(family="ONNXRuntime", version="1.23.0"),
    variants=(VariantInput(uri="file:///m.onnx"),),
    min_improvement=0.01,
    measure=MeasureSettings(),
    accuracy=AccuracyInput(source="Generated", threshold=0.1, screening_threshold=0.2),
    search=SearchInput(),
)
FACTS: dict[str, Any] = {
    "variants": (VariantInput(uri="file:///m.onnx", digest="1" * 64),),
    "cases": (ShapeCase(name="one", tensors={"x": (1, 3)}),),
    "device": Device(type="CPU", product="cpu"),
    "versions": {"onnxruntime": "1.23.0"},
    "knobs_digest": "2" * 64,
    "references_digest": "3" * 64,
    "environment": {},
}


def inputs(**changes: Any) -> RunInputs:
    return INPUTS.model_copy(update=changes)


@pytest.mark.parametrize(
    "changed",
    [
        lambda: identity(inputs(runtime=RuntimeIdentity(family="ONNXRuntime", version="1.24.0")), **FACTS),
        lambda: identity(inputs(runtime=RuntimeIdentity(family="ONNXRuntime", version="1.23.0", image_digest="x")), **FACTS),
        lambda: identity(inputs(measure=MeasureSettings(streams=2)), **FACTS),
        lambda: identity(inputs(plugins=(PluginInput(uri="file:///p.so", digest="4" * 64),)), **FACTS),
        lambda: identity(inputs(accuracy=INPUTS.accuracy.model_copy(update={"atol": 1e-3})), **FACTS),
        lambda: identity(inputs(accuracy=INPUTS.accuracy.model_copy(update={"outputs": ("y",)})), **FACTS),
        lambda: identity(INPUTS, **{**FACTS, "variants": (VariantInput(uri="file:///m.onnx", digest="9" * 64),)}),
        lambda: identity(INPUTS, **{**FACTS, "cases": (ShapeCase(name="one", tensors={"x": (8, 3)}),)}),
        lambda: identity(INPUTS, **{**FACTS, "device": Device(type="CPU", product="cpu", driver="6.1")}),
        lambda: identity(INPUTS, **{**FACTS, "versions": {"onnxruntime": "1.23.1"}}),
        lambda: identity(INPUTS, **{**FACTS, "knobs_digest": "9" * 64}),
        lambda: identity(INPUTS, **{**FACTS, "references_digest": "9" * 64}),
        lambda: identity(INPUTS, **{**FACTS, "environment": {"OMP_NUM_THREADS": "1"}}),
    ],
)
def test_whatever_changes_a_result_changes_the_identity(changed: Callable[[], str]) -> None:
    assert changed() != identity(INPUTS, **FACTS)


@pytest.mark.parametrize(
    "same",
    [
        lambda: identity(inputs(min_improvement=0.5, search=SearchInput(max_trials=7)), **FACTS),
        lambda: identity(inputs(accuracy=INPUTS.accuracy.model_copy(update={"threshold": 0.01})), **FACTS),
        lambda: identity(INPUTS, **{**FACTS, "variants": (VariantInput(uri="s3://elsewhere/m.onnx", digest="1" * 64),)}),
    ],
)
def test_thresholds_budgets_and_places_do_not(same: Callable[[], str]) -> None:
    assert same() == identity(INPUTS, **FACTS)


def test_a_model_that_was_not_digested_has_no_identity() -> None:
    with pytest.raises(InputError, match="variant default has no digest"):
        identity(INPUTS, **{**FACTS, "variants": INPUTS.variants})


def test_an_identity_has_one_timing_cache_for_good(object_store: ObjectStore) -> None:
    ledger = Ledger(object_store)
    assert ledger.timing_cache(IDENTITY) is None
    assert ledger.name_timing_cache(IDENTITY, "1" * 64)
    assert not ledger.name_timing_cache(IDENTITY, "2" * 64)
    assert ledger.timing_cache(IDENTITY) == "1" * 64
    assert ledger.timing_cache("b" * 64) is None


def test_a_timing_cache_of_another_identity_is_not_used(ledger: Ledger) -> None:
    store = ObjectStore.open(f"memory://ledger-{next(_names)}")
    Ledger(store).name_timing_cache(IDENTITY, "1" * 64)
    found = store.get(layout.timing_cache(IDENTITY), 1000)
    assert found is not None
    store.create(layout.timing_cache("b" * 64), found.data)
    with pytest.raises(StoreCorrupt, match="another identity"):
        Ledger(store).timing_cache("b" * 64)
