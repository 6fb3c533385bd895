"""A target of a TuningJob, frozen: every default written out, every string a number. What `run.json` holds.

Where the job says nothing:

- Objective: median latency, and a winner must be proven more than 1 % faster, since less is within what sessions vary by.
- Accuracy: generated references (the unoptimised model on seeded inputs), cosine loss below 0.001. Cosine does not depend on the
  scale of outputs, which l0, l1, l2 and lInf do, so it is the only loss with one threshold that suits models in general:
  0.001 is a relative error of about 4.5 % (1 - cos ≈ e²/2). Reordered FP32 sums and FP16 arithmetic stay orders of magnitude
  below it, a wrong kernel does not. It is blind to a factor common to a whole output: name another metric where that counts.
- Screening while exploring is 4 × the threshold: one unlucky build near it must not hide a candidate that the final gate judges.
- Search: Adaptive over all bounded knobs, 64 trials on ONNX Runtime and 256 on TensorRT, whose knob list is ten times longer.
"""

from __future__ import annotations

import math
from urllib.parse import urlsplit

from tuner_job.api.base import InputError, digest_of
from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.inputs import AccuracyInput, Owner, PluginInput, RunInputs, RuntimeIdentity, SearchInput, VariantInput
from tuner_job.api.measurement import MOST_SAMPLES
from tuner_job.api.runtime import TunerRuntime
from tuner_job.api.tuningjob import Target, TargetDevice, TuningJob
from tuner_job.api.tuningjob_model import ModelSource, Shape
from tuner_job.api.tuningjob_objective import Accuracy, Measurement, Objective
from tuner_job.api.tuningjob_search import Budget, Builder, Knobs, Search

SCREENING_FACTOR = 4.0
ADAPTIVE_TRIALS = {"ONNXRuntime": 64, "TensorRT": 256}
MOST_TRIALS = 10_000
P99_SAMPLES = 5_000
"""Samples of an engine over all sessions where LatencyP99 is metric or constraint, unless the job says how many. Too few are
refused by `measure`."""


def run_inputs(job: TuningJob, target_name: str, runtime: TunerRuntime) -> RunInputs:
    """What a run of the target would be: canonical, so that equal wishes give equal inputs however they were written.

    `runtime` is what the target's runtimeRef names, or its channelRef points to. Raises InputError naming the field.
    """
    spec = job.spec
    target = next((each for each in spec.targets if each.name == target_name), None)
    if target is None:
        known = ", ".join(each.name for each in spec.targets)
        raise InputError(f"TuningJob {job.name}: it has no target {target_name}; it has {known}")
    if target.runtime_ref is not None and target.runtime_ref.name != runtime.name:
        where = f"TuningJob {job.name}: spec.targets[{target.name}].runtimeRef"
        raise InputError(f"{where} names {target.runtime_ref.name}, not {runtime.name}")
    family = runtime.spec.family
    if target.device.type == "CPU" and family == "TensorRT":
        where = f"TuningJob {job.name}: spec.targets[{target.name}].device"
        raise InputError(f"{where}: TensorRT needs a GPU; name type GPU, or a runtime of family ONNXRuntime")
    _check_uris(job)
    objective = spec.objective or Objective()
    return RunInputs(
        runtime=RuntimeIdentity(family=family, version=runtime.spec.version, image_digest=_image_digest(runtime)),
        device_type="CPU" if target.device.type == "CPU" else "GPU",
        variants=_variants(spec.model),
        cases=tuple(_case(shape) for shape in sorted(spec.model.shapes, key=lambda shape: shape.name)),
        min_improvement=float(objective.min_improvement or "0.01"),
        constraints={each.metric: float(each.limit) for each in objective.constraints},
        measure=_measure(objective, spec.measurement or Measurement(), len(spec.model.shapes), target.device),
        accuracy=_accuracy(job.name, spec.accuracy or Accuracy(source="Generated")),
        search=_search(target.search or spec.search or Search(strategy="Adaptive"), spec.budget or Budget(), family),
        plugins=tuple(
            PluginInput(uri=each.uri, digest=_hex(each.digest)) for each in sorted(spec.model.plugins, key=lambda one: one.digest)
        ),
        hardware=_hardware(target),
    )


def _check_uris(job: TuningJob) -> None:
    """Records hold URIs for all to read, so no secret may stand in one."""
    spec = job.spec
    files = spec.accuracy.references if spec.accuracy else None
    uris = {"model.uri": spec.model.uri} | {f"model.variants[{each.name}].uri": each.uri for each in spec.model.variants}
    uris |= {"accuracy.references.uri": files.uri} if files else {}
    for field, uri in uris.items():
        if "://" in uri and "@" in urlsplit(uri).netloc:
            raise InputError(
                f"TuningJob {job.name}: spec.{field} holds a user name or password before `@`; leave it out, the store's "
                f"credentials are used"
            )


def inputs_digest(inputs: RunInputs) -> str:
    """64 hex digits over all that changes what a run would find.

    Left out: where a model or references lie once their digest is known, and when a round is sealed. Never in RunInputs at all:
    parallelism, priority, suspend, publishing, retuning, the workers' pods. Values equal to the default of their field are left
    out too, so that a field added later, whose default means what was done before, makes nobody tune again.
    """
    plain = inputs.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for source in (*plain["variants"], plain["accuracy"], *plain.get("plugins", ())):
        if "digest" in source:
            source.pop("uri", None)
    plain["search"].pop("roundDeadlineSeconds", None)
    return digest_of(plain)


def run_id(owner: Owner, target: str, inputs: str, rerun_token: str = "") -> str:
    """20 hex digits that name the run of `inputs` (their digest); another token is another run of the same inputs."""
    return digest_of([owner.cluster, owner.namespace, owner.name, target, inputs, rerun_token])[:20]


def cluster_fields(job: TuningJob, target: Target) -> tuple[str, ...]:
    """Fields of the job that are set and mean something on a cluster only, where schedulers and other jobs are."""
    spec = job.spec
    of_target = f"targets[{target.name}]"
    asked = {
        "priority": spec.priority,
        "retune": spec.retune,
        "workerTemplate": spec.worker_template,
        f"{of_target}.nodeSelector": target.node_selector,
        f"{of_target}.parallelism": target.parallelism,
        f"{of_target}.minParallelism": target.min_parallelism,
        f"{of_target}.device.resourceClaims": target.device.resource_claims,
    }
    return tuple(name for name, value in asked.items() if value)


def _variants(model: ModelSource) -> tuple[VariantInput, ...]:
    default = VariantInput(uri=model.uri, digest=_hex(model.digest) if model.digest else None)
    others = sorted(model.variants, key=lambda variant: variant.name)
    return (
        default,
        *(VariantInput(name=each.name, uri=each.uri, digest=_hex(each.digest) if each.digest else None) for each in others),
    )


def _case(shape: Shape) -> ShapeCase:
    tensors = sorted(shape.tensors.items())
    return ShapeCase(
        name=shape.name,
        tensors={name: dims.opt for name, dims in tensors},
        minimum={name: dims.opt if dims.min is None else dims.min for name, dims in tensors},
        maximum={name: dims.opt if dims.max is None else dims.max for name, dims in tensors},
        weight=float(shape.weight or "1"),
    )


def _measure(objective: Objective, wish: Measurement, cases: int, device: TargetDevice) -> MeasureSettings:
    metric = objective.metric or "LatencyP50"
    sessions = wish.sessions or 5
    percentile = "LatencyP99" in (metric, *(each.metric for each in objective.constraints))
    samples = wish.session_samples or (math.ceil(P99_SAMPLES / sessions) if percentile else 20)
    if sessions * samples * max(1, cases) > MOST_SAMPLES:
        raise InputError(
            f"spec.measurement: {sessions} sessions of {samples} samples under {max(1, cases)} shapes are more than the "
            f"{MOST_SAMPLES} samples that are kept of an engine; lower sessions or sessionSamples"
        )
    shortest = 200 if wish.warmup_milliseconds is None else wish.warmup_milliseconds
    return MeasureSettings(
        metric=metric,
        streams=wish.streams or 1,
        cuda_graph=device.type != "CPU" and wish.cuda_graph is not False,
        transfers=wish.transfers,
        sessions=sessions,
        session_seconds=(wish.session_milliseconds or 100) / 1000,
        session_samples=samples,
        warmup_seconds=shortest / 1000,
        warmup_limit_seconds=(wish.warmup_limit_milliseconds or 5000) / 1000,
        allow_shared=device.gpu is not None and device.gpu.allow_shared,
    )


def _accuracy(job: str, wish: Accuracy) -> AccuracyInput:
    threshold = float(wish.threshold or "0.001")
    # Rounded to 12 digits, so that run.json says 0.004 and not 0.0040000000000000001.
    screening = float(wish.screening_threshold) if wish.screening_threshold else float(f"{SCREENING_FACTOR * threshold:.12g}")
    if not 0 < threshold <= screening < math.inf:
        raise InputError(
            f"TuningJob {job}: spec.accuracy: thresholds must be above 0 and finite, and screening not the tighter one"
        )
    files = wish.references
    return AccuracyInput(
        source=wish.source,
        uri=files.uri if files else "",
        digest=_hex(files.digest) if files and files.digest else None,
        samples=(wish.generated and wish.generated.samples) or 8,
        metric=wish.metric or "cosine",
        atol=float(wish.atol or "1e-5"),
        rtol=float(wish.rtol or "1e-5"),
        threshold=threshold,
        screening_threshold=screening,
        outputs=tuple(sorted(wish.outputs)),
    )


def _search(wish: Search, budget: Budget, family: str) -> SearchInput:
    knobs, builder = wish.knobs or Knobs(), wish.builder or Builder()
    trials = ADAPTIVE_TRIALS[family] if wish.strategy == "Adaptive" else MOST_TRIALS
    return SearchInput(
        strategy=wish.custom.entry_point if wish.custom else wish.strategy,
        expression=wish.expression or "",
        options=wish.options,
        include=tuple(sorted(knobs.include)),
        exclude=tuple(sorted(knobs.exclude)),
        values=knobs.values,
        settings=builder.settings,
        start_with=wish.start_with,
        warm_start=wish.warm_start or "Ledger",
        max_trials=budget.max_trials or trials,
        device_seconds=float(budget.gpu_seconds or 0),
        deadline_seconds=float(budget.active_deadline_seconds or 0),
        trial_seconds=float(budget.trial_timeout_seconds or 900),
    )


def _hardware(target: Target) -> dict[str, str]:
    """The device class that discover freezes is narrower; this is what a person asked for."""
    device = target.device
    asked = {f"label/{key}": value for key, value in target.node_selector.items()}
    asked |= {f"claim/{claim.name}": claim.resource_claim_template_name for claim in device.resource_claims}
    if device.gpu is not None:
        wishes = {"product": device.gpu.product, "migProfile": device.gpu.mig_profile}
        asked |= {key: value for key, value in wishes.items() if value is not None}
    if device.type == "GPU":
        asked["count"] = str((device.gpu and device.gpu.count) or 1)
    return asked


def _image_digest(runtime: TunerRuntime) -> str:
    return runtime.spec.image.rpartition("@")[2] if runtime.spec.image else ""


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
