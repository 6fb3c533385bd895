"""Nobody signs a verdict that does not follow from its run's records. Anyone who writes results could write each lie here."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from store_publish_helpers import Finished, final, finished, fresh_store, write

from tuner_job.api.measurement import BASELINE, Candidate, EngineFile, Losses, OutputLoss
from tuner_job.api.messages import Interval, VerdictRecord
from tuner_job.measure.decision import Decision, decide
from tuner_job.measure.samples import pack
from tuner_job.store import layout
from tuner_job.store.blobs import put_blob
from tuner_job.store.objects import ObjectStore
from tuner_job.store.vet import InconsistentVerdict, vet

Change = Callable[[VerdictRecord], dict[str, object]]


@pytest.fixture
def store() -> ObjectStore:
    return fresh_store()


def method(verdict: VerdictRecord, **changes: object) -> dict[str, object]:
    return {"method": {**verdict.method, **{name: str(value) for name, value in changes.items()}}}


def builds(verdict: VerdictRecord, position: int, **changes: object) -> dict[str, object]:
    changed = list(verdict.builds)
    changed[position] = changed[position].model_copy(update=changes)
    return {"builds": tuple(changed)}


def chosen(verdict: VerdictRecord) -> int:
    return next(k for k, build in enumerate(verdict.builds) if build.engine == verdict.engine)


def elsewhere(verdict: VerdictRecord) -> dict[str, object]:
    losses = verdict.losses.model_copy(update={"references_digest": "0" * 64})
    return {"losses": losses, **builds(verdict, chosen(verdict), losses=losses)}


def worse(losses: Losses, **changes: object) -> Losses:
    outputs = (OutputLoss(output="y", worst_sample="only/0", l0=0.5, l1=0.5, l2=0.5, l_inf=0.5, cosine=0.5),)
    return losses.model_copy(update={"outputs": outputs, **changes})


LIES: dict[str, tuple[Change, str]] = {
    "no builds": (lambda v: {"builds": ()}, "builds"),
    "one build twice": (lambda v: {"builds": (*v.builds, v.builds[0])}, "builds"),
    "more builds than a final has": (
        lambda v: {"builds": tuple(v.builds[0].model_copy(update={"name": f"baseline-{k}"}) for k in range(200))},
        "builds",
    ),
    "more sessions than a final has": (lambda v: builds(v, 0, sessions=(v.builds[0].sessions[0] * 100,)), "builds"),
    "another candidate than the plan's": (lambda v: {"candidate": Candidate(route="-knob=3")}, "candidate"),
    "bytes of another candidate": (lambda v: {"published": Candidate(route="-knob=3")}, "published"),
    "the default's name on the candidate's bytes": (lambda v: {"published": BASELINE}, "published"),
    "a winner that is none": (lambda v: {"significant": False, "reason": "NoSignificantWin"}, "significant"),
    "a reason that is not the finding": (lambda v: {"reason": "NoSignificantWin"}, "reason"),
    "a smaller p": (lambda v: {"p_value": 1e-9}, "pValue"),
    "no p": (lambda v: {"p_value": None}, "pValue"),
    "a larger gain of the route": (lambda v: {"route_gain": Interval(estimate=0.5, low=0.4, high=0.6)}, "routeGain"),
    "a larger gain of the bytes": (lambda v: {"engine_gain": Interval(estimate=0.5, low=0.4, high=0.6)}, "engineGain"),
    "a better percentile": (lambda v: {"engine_percentile": 0.123}, "enginePercentile"),
    "a lower latency": (lambda v: {"latency_seconds": v.latency_seconds / 2}, "latencySeconds"),
    "a slower baseline": (lambda v: {"baseline_seconds": v.baseline_seconds * 2}, "baselineSeconds"),
    "bytes of another build": (lambda v: {"engine": v.builds[-1].engine}, "engine"),
    "bytes of another size": (lambda v: {"engine": EngineFile(digest=v.engine.digest, size=1)}, "engine"),
    "losses of another build": (lambda v: {"losses": worse(v.losses)}, "losses"),
    "bytes that fail the final gate": (
        lambda v: {"losses": worse(v.losses), **builds(v, chosen(v), losses=worse(v.losses))},
        "losses",
    ),
    "bytes checked against other references": (elsewhere, "losses.referencesDigest"),
    "an easier level": (lambda v: method(v, alpha=0.4), "method.alpha"),
    "an easier margin": (lambda v: method(v, minImprovement=0.0), "method.minImprovement"),
    "another metric": (lambda v: method(v, metric="LatencyMean"), "method.metric"),
    "another seed": (lambda v: method(v, seed=2), "method.seed"),
    "other weights": (lambda v: method(v, weights="[2.0]"), "method.weights"),
    "constraints left out": (lambda v: method(v, constraints='{"EngineSize": 1e12}'), "method.constraints"),
    "a slow build left out": (lambda v: method(v, candidates=json.dumps([f"candidate-{k}" for k in range(1, 5)])), "candidates"),
    "junk for a method": (lambda v: {"method": {"method": v.method["method"], "metric": "LatencyP50"}}, "cannot be repeated"),
    "sides that are no lists": (lambda v: method(v, candidates="17"), "cannot be repeated"),
    "deep nonsense": (lambda v: method(v, baselines="[" * 100_000), "cannot be repeated"),
    "an unknown method": (lambda v: method(v, method="mean-1"), "cannot be repeated"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_verdict_that_lies_is_not_vouched_for(store: ObjectStore, lie: str) -> None:
    change, field = LIES[lie]
    done = write(store, finished())
    with pytest.raises(InconsistentVerdict, match=field) as caught:
        vet(store, done.run, done.verdict.model_copy(update=change(done.verdict)))
    assert layout.verdict(done.run.run) in str(caught.value)


def test_an_honest_verdict_is_vouched_for(store: ObjectStore) -> None:
    done = write(store, finished())
    assert vet(store, done.run, done.verdict) == done.discovery


def test_the_last_digits_may_differ_as_they_do_between_processors(store: ObjectStore) -> None:
    done = write(store, finished())
    vet(store, done.run, done.verdict.model_copy(update={"latency_seconds": done.verdict.latency_seconds * (1 + 1e-12)}))


def test_a_run_without_a_final_plan_has_no_verdict_to_vouch_for(store: ObjectStore) -> None:
    done = write(store, finished())
    store.delete(layout.plan(done.run.run, 2))
    with pytest.raises(InconsistentVerdict, match="no plan for its final"):
        vet(store, done.run, done.verdict)


@cache
def final_p99() -> tuple[Decision, bytes]:
    """The decision of `final` under LatencyP99, and its samples blob."""
    rng = np.random.default_rng(1)
    plain, decision = final()
    samples = {name: [(one.median * rng.uniform(0.9, 1.1, 1000)).astype("<f4") for one in own] for name, own in plain.items()}
    again = decide(
        {
            name: (tuple(one.model_copy(update={"samples": pack(row)}) for one, row in zip(own, samples[name], strict=True)),)
            for name, own in plain.items()
        },
        json.loads(decision.method["candidates"]),
        json.loads(decision.method["baselines"]),
        weights=[1.0],
        metric="LatencyP99",
        min_improvement=0.01,
        seed=1,
    )
    text = {name: [[[float(f"{x:.9g}") for x in row] for row in rows]] for name, rows in samples.items()}
    return again, gzip.compress(json.dumps(text).encode())


def p99(store: ObjectStore, spoil: Callable[[bytes], bytes] = lambda packed: packed) -> Finished:
    """A finished run under LatencyP99, with its samples in the store."""
    done = write(store, finished())
    measure = done.run.inputs.measure.model_copy(update={"metric": "LatencyP99"})
    run = done.run.model_copy(update={"inputs": done.run.inputs.model_copy(update={"measure": measure})})
    decision, blob = final_p99()
    claims = ("p_value", "route_gain", "engine_gain", "engine_percentile", "latency_seconds", "baseline_seconds", "method")
    verdict = done.verdict.model_copy(
        update={
            **{name: getattr(decision, name) for name in claims},
            "engine": next(build.engine for build in done.verdict.builds if build.name == decision.published),
            "samples_blob": put_blob(store, spoil(blob)),
        }
    )
    return Finished(run, done.discovery, verdict, done.engine)


def test_a_percentile_is_computed_again_from_every_sample(store: ObjectStore) -> None:
    done = p99(store)
    vet(store, done.run, done.verdict)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda packed: packed[: len(packed) // 2],
        lambda packed: b"no gzip",
        lambda packed: gzip.compress(b"[]"),
        lambda packed: gzip.compress(b"{}"),
        lambda packed: gzip.compress(b'{"candidate-1": [[["x"]]]}'),
        lambda packed: gzip.compress(b"[" * 100_000),
    ],
    ids=["cut", "noGzip", "list", "empty", "text", "deep"],
)
def test_samples_that_are_none_are_refused_in_one_line(store: ObjectStore, spoil: Callable[[bytes], bytes]) -> None:
    done = p99(store, spoil)
    with pytest.raises(InconsistentVerdict, match="cannot be repeated"):
        vet(store, done.run, done.verdict)


def test_samples_that_inflate_without_end_are_not_read_to_the_end(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner_job.store.vet.SAMPLES_TEXT_BYTES", 1 << 16)
    done = p99(store, lambda _: gzip.compress(b" " * (1 << 24)))
    with pytest.raises(InconsistentVerdict, match="more than 65536 bytes"):
        vet(store, done.run, done.verdict)
