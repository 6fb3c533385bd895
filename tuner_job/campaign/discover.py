"""The first worker's work: freeze what the run rests on, and end wrong input with one clear line before anything is searched."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence

import numpy as np

from tuner_job.accuracy.archive import pack
from tuner_job.accuracy.gate import check_thresholds, judge
from tuner_job.accuracy.generate import generation_notes
from tuner_job.accuracy.references import load
from tuner_job.accuracy.user_references import import_user_references
from tuner_job.accuracy.weakness import warnings
from tuner_job.api.base import InputError, TrtfleetError, digest_of
from tuner_job.api.child import TIMING_CACHE_FILE, ChildReport, Phase, ShapeCase
from tuner_job.api.inputs import RunInputs, RuntimeIdentity
from tuner_job.api.measurement import BASELINE, Device, Losses
from tuner_job.api.messages import DiscoveryRecord, PilotBuild
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.kin import first_beliefs, subject_of
from tuner_job.campaign.rounds import space_of, start_with, strategy_of
from tuner_job.campaign.workspace import TIMING_CACHE_BYTES, Workspace, unusable
from tuner_job.measure.constraints import P99
from tuner_job.measure.fingerprints import fingerprints_hold
from tuner_job.measure.summary import latency
from tuner_job.measure.variance import components, session_logs
from tuner_job.model.inspect import ModelInfo, check_variant, inspect
from tuner_job.model.shapes import resolve_cases
from tuner_job.search.rounds import Budget
from tuner_job.store.blobs import get_blob, put_blob, put_blob_file
from tuner_job.store.ledger import Ledger, identity, ignores_ledger
from tuner_job.store.objects import StoreUnavailable
from tuner_job.trial.environment import steering
from tuner_job.trial.supervisor import TrialEnd

PILOT_BUILDS = 4
"""Default builds whose spread tells build variance from session variance."""

REFERENCE_SEED = 0
"""The same in every run: the references are part of a result's identity, and another seed would leave the ledger useless."""

log = logging.getLogger("trtfleet.worker")


class BaselineFails(InputError):
    """The unchanged model does not pass; nothing that is built from it could be trusted."""

    reason = "BaselineFails"


class DeviceUnusable(InputError):
    """The backend can do nothing on the device that is here, or there is none."""

    reason = "DeviceUnusable"


class DiscoveryFailed(TrtfleetError):
    """The machine failed, not the input."""

    reason = "DiscoveryFailed"


def discover(space: Workspace) -> DiscoveryRecord:
    """Everything that later workers rely on. Raises InputError (the user's), TrtfleetError (the machine's) or Stopped."""
    inputs = space.run.inputs
    check_thresholds(inputs.accuracy.metric, inputs.accuracy.threshold, inputs.accuracy.screening_threshold)
    require_offered(inputs)
    variants = space.fetch_models(inputs.variants)
    space.fetch_plugins()
    info, cases, operators = _inspected(space)
    device, described = describe(space)
    require_runtime(inputs.runtime, described.versions)
    require_hardware(inputs.hardware, device)
    knobs = described.knobs or ""
    search_space = space_of(inputs, knobs, described.settings)
    start_with(inputs, search_space)
    strategy_of(inputs).estimate(search_space, Budget(inputs.search.max_trials, 0, inputs.search.max_trials))
    references_digest, weak = _references(space, info, cases)
    pilot, losses = _pilot(space, cases, references_digest)
    _require_samples(inputs, pilot)
    logs = [session_logs(build.timing, cases, inputs.measure.metric) for build in pilot]
    noise = components(logs)
    hold = fingerprints_hold(zip((build.engine.fingerprint for build in pilot), logs, strict=True))
    if not hold:
        log.info("equal fingerprints of engines are not confirmed by the default builds: no timings are pooled by them")
    environment = steering(os.environ, {})
    knobs_digest = digest_of(knobs.encode())
    ledger_identity = identity(
        inputs,
        variants=variants,
        cases=cases,
        device=device,
        versions=described.versions,
        knobs_digest=knobs_digest,
        references_digest=references_digest,
        environment=environment,
    )
    subject = subject_of(space.run, variants, device, info.structure, cases)
    return DiscoveryRecord(
        run=space.run.run,
        device=device,
        versions=described.versions,
        knobs=knobs,
        knobs_digest=knobs_digest,
        settings=described.settings,
        notes=described.notes,
        state=described.state,
        timing_cache_blob=_timing_cache(space, ledger_identity),
        fingerprints_hold=hold,
        identity=ledger_identity,
        variants=variants,
        cases=cases,
        references_digest=references_digest,
        references_blob=_store_references(space),
        reference_warnings=weak,
        baseline_losses=losses,
        pilot=pilot,
        build_sd=noise.build_sd,
        session_sd=noise.session_sd,
        trial_seconds=float(np.median([build.seconds for build in pilot])),
        environment=environment,
        structure=info.structure,
        beliefs=first_beliefs(space.store, space.run, search_space, subject, ledger_identity, operators),
    )


def _inspected(space: Workspace) -> tuple[ModelInfo, tuple[ShapeCase, ...], frozenset[str]]:
    """The base variant's interface, the cases, and the operator types of all variants.

    Every other variant must share the interface and fit the cases.
    """
    inputs = space.run.inputs
    names = [variant.name for variant in inputs.variants]
    base = names[0] if BASELINE.variant not in names else BASELINE.variant
    info = inspect(space.models[base])
    cases = resolve_cases(info, inputs.cases)
    operators = info.operator_types
    for name in names:
        if name != base:
            other = inspect(space.models[name])
            check_variant(info, other, name)
            operators |= other.operator_types
            try:
                resolve_cases(other, cases)
            except InputError as error:
                raise InputError(f"model.variants[{name}]: {error}") from None
    return info, cases, operators


def describe(space: Workspace) -> tuple[Device, ChildReport]:
    """The device that this worker has, with knob list and versions. Raises DeviceUnusable where the backend cannot use it."""
    end = space.insist(space.request("describe", None))
    if end.outcome in (Outcome.CRASHED, Outcome.UNSUPPORTED) and end.report is not None:
        raise DeviceUnusable(f"device {space.run.inputs.device_type}: {end.reason}")
    report = good(end, "describing the device")
    for note in report.notes:
        log.info("note: %s", note)
    if report.device is None:
        raise DiscoveryFailed("the backend did not say which device it has")
    return report.device, report


def require_runtime(runtime: RuntimeIdentity, versions: dict[str, str]) -> None:
    """The library that is here must be the one that the run names."""
    actual = versions.get(runtime.backend, "none")
    if actual != runtime.version:
        raise InputError(
            f"runtime: the run is for {runtime.family} {runtime.version}, but this worker has {actual}; "
            f"use the image (or install the version) that the TunerRuntime names",
            reason="RuntimeMismatch",
        )


def require_offered(inputs: RunInputs) -> None:
    """What the job brings must be something that the family can use, before any of it is fetched."""
    family = inputs.runtime.family
    if inputs.plugins and family == "ONNXRuntime":
        raise InputError(f"model.plugins: {family} workers load none; leave them out", reason="PluginsUnsupported")


def require_hardware(asked: Mapping[str, str], device: Device) -> None:
    """The device that is here must be the one that the target names. Node labels are the scheduler's matter."""
    product, profile, count = asked.get("product", ""), asked.get("migProfile", ""), int(asked.get("count", "1"))
    here = _letters(device.product)
    # Node labels append how a GPU is shared: NVIDIA-L40S-SHARED, NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.
    if product and _letters(product) != here and not _letters(product).startswith((f"{here}shared", f"{here}mig")):
        wrong = f"gpu.product {product}, but this worker has {device.product}"
    elif profile and profile != device.mig_profile:
        wrong = f"gpu.migProfile {profile}, but this worker has {device.mig_profile or 'a whole GPU'}"
    elif count > 1 and count != device.count:
        wrong = f"gpu.count {count}, but its backend uses {device.count}"
    else:
        return
    raise InputError(f"target.device: the job asks for {wrong}; change the target, or run it where that hardware is",
                     reason="HardwareMismatch")  # fmt: skip


def _letters(product: str) -> str:
    """Labels write `NVIDIA-L40S` for the driver's `NVIDIA L40S`."""
    return "".join(c for c in product.casefold() if c.isalnum())


def _require_samples(inputs: RunInputs, pilot: Sequence[PilotBuild]) -> None:
    """LatencyP99 needs so many samples: say so before a round is spent. Raises TooFewSamples, NoUsableSession."""
    if P99 in (inputs.measure.metric, *inputs.constraints):
        for timing in (timing for build in pilot for timing in build.timing):
            latency(timing, "LatencyP99")


def _references(space: Workspace, info: ModelInfo, cases: tuple[ShapeCase, ...]) -> tuple[str, tuple[str, ...]]:
    """Fill the references folder, by the user's files or by the unoptimised model; returns its digest and what is weak in it."""
    accuracy = space.run.inputs.accuracy
    folder = space.root / "references"
    if accuracy.source == "References":
        import_user_references(space.user_references(), folder, cases, info.inputs, info.outputs, accuracy.outputs)
    else:
        request = space.request("reference", folder, cases=cases, tensors=info.inputs, seed=REFERENCE_SEED)
        good(space.insist(request), "making references with the unoptimised model")
    space.references = folder
    references = load(folder)
    weak = warnings(references, metric=accuracy.metric, threshold=accuracy.threshold, atol=accuracy.atol, rtol=accuracy.rtol)
    if accuracy.source == "Generated":
        weak += generation_notes(info.inputs)
    for line in weak:
        log.warning("references: %s", line)
    return references.digest, tuple(weak)


def _store_references(space: Workspace) -> str:
    archive = space.root / "references.archive"
    assert space.references is not None
    pack(space.references, archive)
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    put_blob_file(space.store, archive, digest)
    archive.unlink()
    return digest


def _pilot(space: Workspace, cases: tuple[ShapeCase, ...], references_digest: str) -> tuple[tuple[PilotBuild, ...], Losses]:
    """Default builds, each one checked against the final threshold: nothing may rest on a baseline that fails."""
    builds = []
    losses: Losses | None = None
    for number in range(PILOT_BUILDS):
        request = space.request(
            "trial",
            space.root / f"pilot-{number}",
            cases=cases,
            references_digest=references_digest,
            seed=space.run.seed + number,
        )
        end = space.insist(request)
        report = good(end, "the default build")
        if report.engine is None or report.losses is None:
            raise DiscoveryFailed("the default build reported no engine or no losses")
        _gate_baseline(space, report.losses)
        losses = losses or report.losses
        builds.append(
            PilotBuild(
                engine=report.engine,
                timing=report.timing,
                seconds=end.seconds["total"],
                build_seconds=end.seconds.get(Phase.BUILD),
                timing_seconds=end.seconds.get(Phase.MEASURE),
                state=report.state,
            )
        )
    assert losses is not None
    return tuple(builds), losses


def _timing_cache(space: Workspace, ledger_identity: str) -> str | None:
    """The blob that explore builds start from: the identity's, if a run has left one, else what the first default build left.

    A run that ignores the ledger keeps to its own.
    """
    own = space.keep_timing_cache(space.root / "pilot-0" / TIMING_CACHE_FILE)
    if ignores_ledger(space.run):
        return own
    ledger = Ledger(space.store)
    try:
        if own is not None:
            ledger.name_timing_cache(ledger_identity, own)
        known = ledger.timing_cache(ledger_identity)
        if known is None or known == own:
            return own
        put_blob(space.store, get_blob(space.store, known, TIMING_CACHE_BYTES))  # renews its age
    except StoreUnavailable:
        raise
    except TrtfleetError as error:  # the ledger is not worth a failure
        log.warning("the ledger's timing cache is left out: %s", error)
        return own
    return known


def _gate_baseline(space: Workspace, losses: Losses) -> None:
    accuracy = space.run.inputs.accuracy
    passed, why = judge(losses, accuracy.metric, accuracy.threshold)
    if not passed:
        raise BaselineFails(
            f"the default build fails its own accuracy check: {why}; no candidate could be trusted: "
            f"check the references, or raise accuracy.threshold if such a loss is fine for this model"
        )


def good(end: TrialEnd, what: str) -> ChildReport:
    """The report of a child that had to succeed."""
    if end.outcome is Outcome.FEASIBLE and end.report is not None:
        return end.report
    if end.outcome is Outcome.INFRASTRUCTURE:
        raise DiscoveryFailed(
            f"{what} ended in {end.phase} by a failure of the machine, each time: {end.reason}", reason=unusable(end)
        )
    raise BaselineFails(f"{what} ended {end.outcome} in {end.phase}: {end.reason}")
