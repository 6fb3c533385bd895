"""What a job means once every default is written out, and what makes it another run."""

from __future__ import annotations

from typing import Any

import pytest
from api_resources import GONE, changed, full, minimal

from tuner_job.api.base import InputError
from tuner_job.api.documents import parse_resource
from tuner_job.api.effective import cluster_fields, inputs_digest, run_id, run_inputs
from tuner_job.api.inputs import Owner, RunInputs
from tuner_job.api.runtime import TunerRuntime, TunerRuntimeSpec
from tuner_job.api.tuningjob import TuningJob

ORT = TunerRuntime.model_validate(
    {"metadata": {"name": "onnxruntime"}, "spec": TunerRuntimeSpec(family="ONNXRuntime", version="1.32.0")}
)
TENSORRT = parse_resource(full("TunerRuntime"), "")


def inputs(obj: dict[str, Any], target: str = "cpu", runtime: object = ORT) -> RunInputs:
    job = parse_resource(obj, "")
    assert isinstance(job, TuningJob)
    assert isinstance(runtime, TunerRuntime)
    return run_inputs(job, target, runtime)


def digest(obj: dict[str, Any], target: str = "cpu", runtime: object = ORT) -> str:
    return inputs_digest(inputs(obj, target, runtime))


def test_a_minimal_job_gets_defaults_that_suit_a_small_model_on_a_cpu() -> None:
    found = inputs(minimal())
    assert (found.device_type, found.min_improvement, found.cases, found.hardware) == ("CPU", 0.01, (), {})
    assert (found.measure.metric, found.measure.cuda_graph, found.measure.streams) == ("LatencyP50", False, 1)
    accuracy = found.accuracy
    assert (accuracy.source, accuracy.metric, accuracy.threshold, accuracy.screening_threshold) == (
        "Generated",
        "cosine",
        0.001,
        0.004,
    )
    search = found.search
    assert (search.strategy, search.max_trials, search.device_seconds, search.trial_seconds) == ("Adaptive", 64, 0.0, 900.0)
    assert [variant.name for variant in found.variants] == ["default"]
    assert RunInputs.from_json(found.to_json()) == found


def test_writing_a_default_out_changes_nothing() -> None:
    written = minimal()
    for path, value in {
        "spec/objective": {"metric": "LatencyP50", "minImprovement": "0.010"},
        "spec/accuracy": {"source": "Generated", "generated": {"samples": 8}, "metric": "cosine", "threshold": "1e-3"},
        "spec/search": {"strategy": "Adaptive", "warmStart": "Ledger", "knobs": {}},
        "spec/budget": {"maxTrials": 64, "trialTimeoutSeconds": 900},
        "spec/measurement": {"streams": 1, "sessions": 5, "sessionMilliseconds": 100, "sessionSamples": 20},
    }.items():
        written = changed(written, path, value)
        assert digest(written) == digest(minimal()), path


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/targets/0/parallelism", 64),
        ("spec/targets/0/name", "renamed"),
        ("spec/priority", 5),
        ("spec/suspend", True),
        ("spec/publish", {"promotion": "Manual", "keep": 3}),
        ("spec/retune", {"triggers": ["Driver"]}),
        ("spec/rerun", {"token": "again"}),
        ("spec/workerTemplate", {"labels": {"a": "b"}, "resources": {"limits": {"memory": "1Gi"}}}),
        ("spec/storeRef/name", "other"),
        ("metadata/labels", {"a": "b"}),
        ("status", {"phase": "Done"}),
    ],
)
def test_what_changes_nothing_that_would_be_found_is_not_in_the_digest(path: str, value: object) -> None:
    obj = changed(minimal(), path, value)
    assert digest(obj, obj["spec"]["targets"][0]["name"]) == digest(minimal())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/model/uri", "other.onnx"),
        ("spec/model/digest", "sha256:" + "0" * 64),
        ("spec/model/variants", [{"name": "fp16", "uri": "b.onnx"}]),
        ("spec/model/shapes", [{"name": "a", "tensors": {"x": {"opt": [1]}}}]),
        ("spec/model/plugins", [{"uri": "p.so", "digest": "sha256:" + "0" * 64}]),
        ("spec/objective", {"metric": "LatencyMean"}),
        ("spec/objective", {"minImprovement": "0.02"}),
        ("spec/objective", {"constraints": [{"metric": "EngineSize", "limit": "1e6"}]}),
        ("spec/measurement", {"streams": 2}),
        ("spec/accuracy", {"source": "Generated", "metric": "cosine", "threshold": "0.002"}),
        ("spec/accuracy", {"source": "References", "references": {"uri": "refs"}}),
        ("spec/search", {"strategy": "OneAtATime"}),
        ("spec/search", {"strategy": "Adaptive", "knobs": {"exclude": ["-a"]}}),
        ("spec/search", {"strategy": "Adaptive", "builder": {"settings": {"a": ["1"]}}}),
        ("spec/targets/0/search", {"strategy": "Mixed", "options": {"cap": "9"}}),
        ("spec/budget", {"maxTrials": 65}),
        ("spec/targets/0/device", {"type": "GPU"}),
        ("spec/targets/0/nodeSelector", {"instance": "c7i"}),
    ],
)
def test_what_changes_what_would_be_found_is_in_the_digest(path: str, value: object) -> None:
    assert digest(changed(minimal(), path, value)) != digest(minimal())


def test_another_gpu_or_runtime_is_another_digest() -> None:
    job = full("TuningJob")
    before = digest(job, "h200-slice", TENSORRT)
    assert digest(changed(job, "spec/targets/1/device/gpu/migProfile", "2g.35gb"), "h200-slice", TENSORRT) != before
    newer = parse_resource(changed(full("TunerRuntime"), "spec/version", "11.3"), "")
    assert digest(job, "h200-slice", newer) != before


def test_a_known_digest_makes_the_place_irrelevant_and_order_never_matters() -> None:
    job = full("TuningJob")
    before = digest(job, "l40s", TENSORRT)
    assert digest(changed(job, "spec/model/uri", "s3://elsewhere/x.onnx"), "l40s", TENSORRT) == before
    assert digest(changed(job, "spec/accuracy/references/uri", "s3://elsewhere"), "l40s", TENSORRT) == before
    assert digest(changed(job, "spec/model/variants/1/uri", "s3://elsewhere"), "l40s", TENSORRT) != before
    model = job["spec"]["model"]
    turned = changed(changed(job, "spec/model/variants", model["variants"][::-1]), "spec/model/shapes", model["shapes"][::-1])
    turned = changed(turned, "spec/search/knobs/include", job["spec"]["search"]["knobs"]["include"][::-1])
    assert inputs(turned, "l40s", TENSORRT) == inputs(job, "l40s", TENSORRT)


def test_the_full_job_is_mapped_to_numbers_and_plain_digests() -> None:
    found = inputs(full("TuningJob"), "l40s", TENSORRT)
    short = found.cases[1]
    assert (short.name, short.weight, short.tensors["input_ids"]) == ("short", 3.0, (8, 64))
    assert (short.minimum["input_ids"], short.maximum["input_ids"]) == ((1, 16), (32, 128))
    assert found.cases[0].minimum == found.cases[0].tensors == found.cases[0].maximum
    assert found.constraints == {"Throughput": 200.0, "EngineSize": 5e8}
    assert (found.accuracy.metric, found.accuracy.atol, found.accuracy.rtol, found.accuracy.screening_threshold) == (
        "l0",
        1e-3,
        1e-2,
        0.05,
    )
    assert (found.variants[0].digest, [one.digest for one in found.plugins]) == ("1" * 64, ["3" * 64])
    assert found.runtime.image_digest == "sha256:" + "7" * 64
    assert found.hardware == {"product": "NVIDIA-L40S", "count": "1", "label/topology.kubernetes.io/zone": "a"}
    assert (found.measure.session_seconds, found.measure.warmup_limit_seconds, found.measure.cuda_graph) == (0.5, 10.0, True)
    search = found.search
    assert (search.device_seconds, search.deadline_seconds, search.trial_seconds, search.max_trials) == (
        72000.0,
        86400.0,
        1200.0,
        500,
    )
    assert (search.values, search.settings) == ({"-reshape_ppg": ("on", "off")}, {"optimizationLevel": ("3", "5")})


def test_a_targets_own_search_replaces_the_jobs() -> None:
    expression = inputs(full("TuningJob"), "h200-slice", TENSORRT).search
    assert (expression.strategy, expression.include, expression.expression[:4]) == ("Expression", (), "-con")
    custom = inputs(full("TuningJob"), "claimed", TENSORRT)
    assert (custom.search.strategy, custom.search.options) == ("ours", {"depth": "3"})
    assert (custom.device_type, custom.hardware) == ("GPU", {"claim/gpu": "one-gpu"})


@pytest.mark.parametrize(("strategy", "trials"), [("Adaptive", 256), ("Full", 10_000), ("OneAtATime", 10_000)])
def test_trials_default_by_runtime_and_by_whether_the_strategy_ends_by_itself(strategy: str, trials: int) -> None:
    job = changed(changed(minimal(), "spec/search", {"strategy": strategy}), "spec/targets/0/device/type", "GPU")
    job = changed(job, "spec/targets/0/runtimeRef/name", "tensorrt-11.2.1")
    assert inputs(job, runtime=TENSORRT).search.max_trials == trials


@pytest.mark.parametrize(("sessions", "samples"), [(None, 1000), (1, 5000), (3, 1667)])
def test_p99_gets_enough_samples_by_default(sessions: int | None, samples: int) -> None:
    measurement = {} if sessions is None else {"sessions": sessions}
    job = changed(changed(minimal(), "spec/objective", {"metric": "LatencyP99"}), "spec/measurement", measurement)
    assert inputs(job).measure.session_samples == samples


def test_wrong_targets_and_runtimes_are_named() -> None:
    with pytest.raises(InputError, match="it has no target gpu; it has cpu"):
        inputs(minimal(), "gpu")
    with pytest.raises(InputError, match=r"runtimeRef names onnxruntime, not tensorrt-11\.2\.1"):
        inputs(minimal(), runtime=TENSORRT)
    on_cpu = changed(minimal(), "spec/targets/0/runtimeRef/name", "tensorrt-11.2.1")
    with pytest.raises(InputError, match="TensorRT needs a GPU"):
        inputs(on_cpu, runtime=TENSORRT)
    followed = changed(changed(minimal(), "spec/targets/0/runtimeRef", GONE), "spec/targets/0/channelRef", {"name": "stable"})
    assert inputs(followed).runtime.family == "ONNXRuntime"


def test_a_run_id_depends_on_owner_target_inputs_and_token_each() -> None:
    owner, inputs_ = Owner(name="a"), "0" * 64
    ids = {
        run_id(owner, "cpu", inputs_),
        run_id(owner, "gpu", inputs_),
        run_id(owner, "cpu", "1" * 64),
        run_id(owner, "cpu", inputs_, "again"),
        run_id(Owner(name="b"), "cpu", inputs_),
        run_id(Owner(name="a", namespace="n"), "cpu", inputs_),
        run_id(Owner(name="a", cluster="c"), "cpu", inputs_),
    }
    assert len(ids) == 7
    assert all(len(each) == 20 and set(each) <= set("0123456789abcdef") for each in ids)
    assert run_id(Owner(name="a"), "cpu", inputs_) in ids


def test_digests_do_not_move_between_versions_by_accident() -> None:
    # Recorded: another value means that every job of every user is tuned again after an upgrade.
    assert digest(minimal()) == "b6c3ff04fb4a2cee68bc430ccd01eedbde1d2212f82a49531e86782a30cb9dbb"


@pytest.mark.parametrize("path", ["spec/model/uri", "spec/model/variants", "spec/accuracy"])
def test_a_secret_in_a_uri_never_reaches_a_record(path: str) -> None:
    uri = "s3://key:hunter2@bucket/m.onnx"
    value: object = {"spec/model/uri": uri, "spec/model/variants": [{"name": "fp16", "uri": uri}]}.get(
        path, {"source": "References", "references": {"uri": uri}}
    )
    with pytest.raises(InputError, match="user name or password") as caught:
        inputs(changed(minimal(), path, value))
    assert "hunter2" not in str(caught.value)


def test_a_p99_constraint_asks_for_as_many_samples_as_the_metric_does() -> None:
    job = changed(minimal(), "spec/objective", {"constraints": [{"metric": "LatencyP99", "limit": "0.01"}]})
    assert inputs(job).measure.session_samples == 1000


def test_more_samples_than_the_records_hold_are_refused() -> None:
    job = changed(minimal(), "spec/measurement", {"sessions": 100, "sessionSamples": 1001})
    with pytest.raises(InputError, match="100 sessions of 1001 samples"):
        inputs(job)


def test_what_only_a_cluster_uses_is_told() -> None:
    job = parse_resource(changed(minimal(), "spec/priority", 5), "")
    assert isinstance(job, TuningJob)
    assert cluster_fields(job, job.spec.targets[0]) == ("priority",)
    job = parse_resource(full("TuningJob"), "")
    assert isinstance(job, TuningJob)
    named = {name for target in job.spec.targets for name in cluster_fields(job, target)}
    assert {"retune", "workerTemplate"} <= named


def test_a_gpu_that_may_be_shared_is_part_of_what_is_measured() -> None:
    alone, shared = (
        inputs(changed(full("TuningJob"), "spec/targets/0/device/gpu/allowShared", allowed), "l40s", TENSORRT)
        for allowed in (False, True)
    )
    assert (alone.measure.allow_shared, shared.measure.allow_shared) == (False, True)
    assert inputs_digest(alone) != inputs_digest(shared)
