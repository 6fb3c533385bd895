"""What must hold of a verdict before anyone signs for it: it follows from the run's own records, and from nothing else.

Whoever may write to the store can write a verdict. The signer repeats the decision and compares every claim with it; what the
sessions themselves say stays the workers' word.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator
from itertools import count

from tuner_job.accuracy.gate import judge
from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.measurement import BASELINE
from tuner_job.api.messages import DiscoveryRecord, Interval, PlanRecord, RunRecord, VerdictRecord
from tuner_job.measure.constraints import P99
from tuner_job.measure.decision import METHOD, Decision, Samples, recompute
from tuner_job.measure.final import ALPHA, MOST_REPEATS, SESSIONS
from tuner_job.store import layout
from tuner_job.store.blobs import get_blob
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import read_record

MOST_BUILDS = 3 * MOST_REPEATS
MOST_SESSIONS = 4 * max(SESSIONS)
"""Per build and shape case: two passes, and every throttled session taken again."""
SAMPLES_BYTES = 64 << 20
SAMPLES_TEXT_BYTES = 256 << 20
"""Of the samples blob, as it is stored and inflated. It is read for LatencyP99 alone."""

_UNREADABLE = (KeyError, TypeError, ValueError, ArithmeticError, RecursionError, OSError, EOFError, zlib.error)
"""What reading and computing with another's data can raise."""


class InconsistentVerdict(InputError):
    """A verdict contradicts the run that it claims to belong to, or the store."""

    reason = "InconsistentVerdict"


def vet(store: ObjectStore, run: RunRecord, verdict: VerdictRecord) -> DiscoveryRecord:
    """The run's discovery, if the verdict is what the run's records lead to. Raises InconsistentVerdict naming the first field.

    `run` is taken as given: it is for the caller to know that it is the job's.
    """
    key = layout.discovery(run.run)
    discovery = read_record(store, key, DiscoveryRecord)
    if discovery is None:
        raise InconsistentVerdict(f"{key}: is gone, so the verdict of run {run.run} cannot be published")
    for field, holds in (*_identity(run, discovery, verdict), *_form(discovery, verdict)):
        _require(run, field, holds)
    _require(run, "candidate", verdict.candidate == (_final_plan(store, run).pick or BASELINE))
    decision = _decision(store, run, discovery, verdict)
    for field, holds in (*_claims(verdict, decision), *_engine(run, discovery, verdict, decision)):
        _require(run, field, holds)
    return discovery


def _require(run: RunRecord, field: str, holds: bool) -> None:
    if not holds:
        raise InconsistentVerdict(
            f"{layout.verdict(run.run)}: {field}: contradicts the run, its discovery or its builds; not published"
        )


def _identity(run: RunRecord, discovery: DiscoveryRecord, verdict: VerdictRecord) -> Iterator[tuple[str, bool]]:
    yield "run", verdict.run == run.run == discovery.run
    yield "inputsDigest", verdict.inputs_digest == run.inputs_digest
    yield "identity", verdict.identity == discovery.identity
    yield "device", verdict.device == discovery.device


def _form(discovery: DiscoveryRecord, verdict: VerdictRecord) -> Iterator[tuple[str, bool]]:
    """Small enough to compute with, and every build told once."""
    names = [build.name for build in verdict.builds]
    yield "builds", 0 < len(names) <= MOST_BUILDS and len(set(names)) == len(names)
    yield "builds", all(len(build.sessions) == len(discovery.cases) for build in verdict.builds)
    yield "builds", all(len(case) <= MOST_SESSIONS for build in verdict.builds for case in build.sessions)


def _claims(verdict: VerdictRecord, decision: Decision) -> Iterator[tuple[str, bool]]:
    yield "significant", verdict.significant == decision.significant
    yield "reason", (verdict.reason == "Proven") == decision.significant
    yield "published", verdict.published == (verdict.candidate if decision.significant else BASELINE)
    yield "pValue", _agree(verdict.p_value, decision.p_value)
    yield "routeGain", _same(verdict.route_gain, decision.route_gain)
    yield "engineGain", _same(verdict.engine_gain, decision.engine_gain)
    yield "enginePercentile", _agree(verdict.engine_percentile, decision.engine_percentile)
    yield "latencySeconds", _agree(verdict.latency_seconds, decision.latency_seconds)
    yield "baselineSeconds", _agree(verdict.baseline_seconds, decision.baseline_seconds)


def _engine(run: RunRecord, discovery: DiscoveryRecord, verdict: VerdictRecord, decision: Decision) -> Iterator[tuple[str, bool]]:
    """The bytes are the build that the decision names, and it passes the final gate against the run's references."""
    accuracy = run.inputs.accuracy
    build = next(build for build in verdict.builds if build.name == decision.published)
    yield "engine", verdict.engine == build.engine
    yield "losses", verdict.losses == build.losses
    yield "losses.referencesDigest", build.losses.references_digest == discovery.references_digest
    yield "losses", (build.losses.atol, build.losses.rtol) == (accuracy.atol, accuracy.rtol)
    yield "losses.outputs", set(accuracy.outputs) <= {loss.output for loss in build.losses.outputs}
    yield "losses", judge(build.losses, accuracy.metric, accuracy.threshold)[0]


def _decision(store: ObjectStore, run: RunRecord, discovery: DiscoveryRecord, verdict: VerdictRecord) -> Decision:
    """The decision again, under the run's own settings and over all builds."""
    inputs, method = run.inputs, verdict.method
    try:
        samples = _samples(store, verdict) if P99 in (inputs.measure.metric, *inputs.constraints) else None
        decision = recompute(verdict, samples)
        names = {side: json.loads(method[side]) for side in ("candidates", "baselines")}
    except (TrtfleetError, *_UNREADABLE) as error:
        raise InconsistentVerdict(
            f"{layout.verdict(run.run)}: the decision cannot be repeated ({type(error).__name__}: {error}); not published"
        ) from None
    wanted = {
        "method": METHOD,
        "metric": inputs.measure.metric,
        "minImprovement": repr(inputs.min_improvement),
        "alpha": repr(ALPHA),
        "seed": str(run.seed),
        "weights": json.dumps([float(case.weight) for case in discovery.cases]),
        "constraints": json.dumps(dict(inputs.constraints), sort_keys=True),
        "streams": str(inputs.measure.streams),
    }
    for field, value in wanted.items():
        _require(run, f"method.{field}", decision.method[field] == value)
    for side, prefix in (("candidates", "candidate-"), ("baselines", "baseline-")):
        own = {build.name for build in verdict.builds if build.name.startswith(prefix)}
        _require(run, f"method.{side}", set(names[side]) == own)
    _require(run, "builds", len(names["candidates"]) + len(names["baselines"]) == len(verdict.builds))
    return decision


def _final_plan(store: ObjectStore, run: RunRecord) -> PlanRecord:
    for number in count(1):
        plan = read_record(store, layout.plan(run.run, number), PlanRecord)
        if plan is None:
            break
        if plan.stage == "final":
            return plan
    raise InconsistentVerdict(f"run {run.run}: has a verdict but no plan for its final; not published")


def _samples(store: ObjectStore, verdict: VerdictRecord) -> Samples:
    if verdict.samples_blob is None:
        raise InputError("samplesBlob: missing")
    packed = get_blob(store, verdict.samples_blob, SAMPLES_BYTES)
    with gzip.open(io.BytesIO(packed)) as file:
        text = file.read(SAMPLES_TEXT_BYTES + 1)
    if len(text) > SAMPLES_TEXT_BYTES:
        raise InputError(f"samplesBlob: more than {SAMPLES_TEXT_BYTES} bytes")
    samples: Samples = json.loads(text)
    return samples


def _agree(one: float | None, other: float | None) -> bool:
    """Equal but for the last digits, in which processors differ."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


def _same(one: Interval | None, other: Interval | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(
        _agree(a, b)
        for a, b in (
            (one.estimate, other.estimate),
            (one.low, other.low),
            (one.high, other.high),
            (one.confidence, other.confidence),
        )
    )
