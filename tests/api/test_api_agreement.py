"""Pydantic, the emitted schema and the CEL rules accept and refuse the same resources."""

from __future__ import annotations

import copy
import string
from typing import Any

import pytest
from api_resources import GONE, changed, full, minimal
from api_server import refusals, rule_holds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner_job.api.artifactstore import ArtifactStore
from tuner_job.api.base import InputError
from tuner_job.api.crd import KINDS, kind_of, structural
from tuner_job.api.documents import parse_resource
from tuner_job.api.resource import Resource
from tuner_job.api.runtime import TunerChannel, TunerRuntime
from tuner_job.api.tuningjob import TuningJob

MODELS: dict[str, type[Resource]] = {kind_of(model): model for model in KINDS}
DIGEST = "sha256:" + "a" * 64
GPU = {"type": "GPU"}

J = full("TuningJob")

VALID: list[tuple[str, dict[str, Any]]] = [
    ("minimal job", minimal()),
    *((f"full {kind}", full(kind)) for kind in MODELS),
    ("any GPU", changed(minimal(), "spec/targets/0/device", GPU)),
    ("64 workers", changed(minimal(), "spec/targets/0/parallelism", 64)),
    ("generated without a member", changed(minimal(), "spec/accuracy", {"source": "Generated"})),
    ("generated with a member", changed(minimal(), "spec/accuracy", {"source": "Generated", "generated": {"samples": 4}})),
    ("equal screening", changed(full("TuningJob"), "spec/accuracy/screeningThreshold", "0.0100")),
    ("screening over the default", changed(minimal(), "spec/accuracy", {"source": "Generated", "screeningThreshold": "0.001"})),
    ("scientific threshold", changed(minimal(), "spec/accuracy", {"source": "Generated", "metric": "l2", "threshold": "2.5e-7"})),
    ("scalar input", changed(minimal(), "spec/model/shapes", [{"name": "a", "tensors": {"x": {"opt": []}}}])),
    ("eight dimensions", changed(J, "spec/model/shapes/0/tensors/x", {"opt": [1] * 8, "max": [2] * 8})),
    ("no improvement needed", changed(minimal(), "spec/objective", {"minImprovement": "0"})),
    ("empty knobs", changed(minimal(), "spec/search", {"strategy": "Full", "knobs": {}})),
    ("no targets under publish", changed(minimal(), "spec/publish", {"targets": []})),
    ("integer quantity", changed(full("TuningJob"), "spec/workerTemplate/scratchSize", 1024)),
    ("status", changed(minimal(), "status", {"observedGeneration": 1, "phase": "Exploring", "progress": "3/64"})),
    ("loopback without TLS", changed(full("ArtifactStore"), "spec/endpoint", "http://127.0.0.1:7070")),
    ("http on purpose", changed(changed(full("ArtifactStore"), "spec/endpoint", "http://s3:80"), "spec/insecureHttp", True)),
    ("local store", {"apiVersion": "trtfleet.dev/v1alpha1", "kind": "ArtifactStore", "metadata": {"name": "local"},
                     "spec": {"url": "file:///var/tmp/my engines"}}),
]  # fmt: skip

INVALID: list[tuple[str, dict[str, Any]]] = [
    # unions
    ("no runtime", changed(minimal(), "spec/targets/0/runtimeRef", GONE)),
    ("runtime and channel", changed(minimal(), "spec/targets/0/channelRef", {"name": "stable"})),
    ("gpu on a CPU", changed(minimal(), "spec/targets/0/device/gpu", {"count": 1})),
    ("claims on a CPU", changed(J, "spec/targets/2/device/type", "CPU")),
    ("claims without claims", changed(minimal(), "spec/targets/0/device", {"type": "ResourceClaims"})),
    ("claims with no claim", changed(minimal(), "spec/targets/0/device", {"type": "ResourceClaims", "resourceClaims": []})),
    ("unknown device", changed(minimal(), "spec/targets/0/device/type", "TPU")),
    ("references without references", changed(J, "spec/accuracy/references", GONE)),
    ("references and generated", changed(J, "spec/accuracy/generated", {})),
    ("generated with references", changed(J, "spec/accuracy/source", "Generated")),
    ("expression without expression", changed(minimal(), "spec/search", {"strategy": "Expression"})),
    ("expression under Full", changed(minimal(), "spec/search", {"strategy": "Full", "expression": "-a=on"})),
    ("expression with knobs", changed(minimal(), "spec/search", {"strategy": "Expression", "expression": "-a=on", "knobs": {}})),
    ("custom without custom", changed(minimal(), "spec/search", {"strategy": "Custom"})),
    ("custom under Adaptive", changed(minimal(), "spec/search", {"strategy": "Adaptive", "custom": {"entryPoint": "a"}})),
    ("custom in a target", changed(minimal(), "spec/targets/0/search", {"strategy": "Custom"})),
    ("secret without secret", changed(full("ArtifactStore"), "spec/credentials", {"type": "Secret"})),
    ("identity with secret", changed(full("ArtifactStore"), "spec/credentials/type", "WorkloadIdentity")),
    # relations
    ("metric without threshold", changed(minimal(), "spec/accuracy", {"source": "Generated", "metric": "l0"})),
    ("threshold without metric", changed(minimal(), "spec/accuracy", {"source": "Generated", "threshold": "0.1"})),
    ("tight screening", changed(J, "spec/accuracy/screeningThreshold", "0.009")),
    ("screening under the default", changed(minimal(), "spec/accuracy", {"source": "Generated", "screeningThreshold": "0.0009"})),
    ("tolerances for cosine", changed(J, "spec/accuracy/metric", "cosine")),
    ("fewest over most workers", changed(J, "spec/targets/0/minParallelism", 9)),
    ("fewest over one worker", changed(minimal(), "spec/targets/0/minParallelism", 2)),
    ("warm-up over its limit", changed(minimal(), "spec/measurement", {"warmupMilliseconds": 5001})),
    ("limit under warm-up", changed(minimal(), "spec/measurement", {"warmupLimitMilliseconds": 100})),
    ("approval of nothing", changed(J, "spec/publish/targets/0/name", "l4")),
    ("variant named default", changed(J, "spec/model/variants/0/name", "default")),
    ("ranks differ", changed(J, "spec/model/shapes/0/tensors/input_ids/min", [1])),
    ("min over opt", changed(J, "spec/model/shapes/0/tensors/input_ids/min", [1, 65])),
    ("opt over max", changed(J, "spec/model/shapes/0/tensors/input_ids/max", [32, 63])),
    ("GPUs by resources", changed(J, "spec/workerTemplate/resources/limits", {"nvidia.com/gpu": 1})),
    ("a label of ours", changed(J, "spec/workerTemplate/labels", {"trtfleet.dev/run": "x"})),
    ("an annotation of ours", changed(J, "spec/workerTemplate/annotations", {"trtfleet.dev/run": "x"})),
    ("http in the clear", changed(full("ArtifactStore"), "spec/endpoint", "http://s3.example.com")),
    ("http to a look-alike", changed(full("ArtifactStore"), "spec/endpoint", "http://localhost.example.com")),
    # bounds and forms
    ("no targets", changed(minimal(), "spec/targets", [])),
    ("13 targets", changed(minimal(), "spec/targets", [{**minimal()["spec"]["targets"][0], "name": f"t{i}"} for i in range(13)])),
    ("two targets of a name", changed(minimal(), "spec/targets/1", minimal()["spec"]["targets"][0])),
    ("a constraint twice", changed(J, "spec/objective/constraints/2", {"metric": "Throughput", "limit": "1"})),
    ("a trigger twice", changed(J, "spec/retune/triggers", ["Driver", "Driver"])),
    ("an output twice", changed(J, "spec/accuracy/outputs", ["a", "a"])),
    ("upper-case target", changed(minimal(), "spec/targets/0/name", "CPU")),
    ("threshold 0", changed(J, "spec/accuracy/threshold", "0.00")),
    ("threshold 0e5", changed(J, "spec/accuracy/threshold", "0e5")),
    ("negative threshold", changed(J, "spec/accuracy/threshold", "-0.1")),
    ("threshold as number", changed(J, "spec/accuracy/threshold", 0.01)),
    ("NaN threshold", changed(J, "spec/accuracy/threshold", "nan")),
    ("improvement of 100 %", changed(minimal(), "spec/objective", {"minImprovement": "1.0"})),
    ("no trials", changed(minimal(), "spec/budget", {"maxTrials": 0})),
    ("too many trials", changed(minimal(), "spec/budget", {"maxTrials": 10_001})),
    ("trials as text", changed(minimal(), "spec/budget", {"maxTrials": "64"})),
    ("half a trial", changed(minimal(), "spec/budget", {"maxTrials": 1.5})),
    ("suspend as text", changed(minimal(), "spec/suspend", "true")),
    ("null", changed(minimal(), "spec/budget", None)),
    ("knob value as boolean", changed(minimal(), "spec/search", {"strategy": "Full", "knobs": {"values": {"-a": [True]}}})),
    ("knob without values", changed(minimal(), "spec/search", {"strategy": "Full", "knobs": {"values": {"-a": []}}})),
    ("knob name too long", changed(minimal(), "spec/search", {"strategy": "Full", "knobs": {"values": {"a" * 129: ["on"]}}})),
    ("knob with a newline", changed(minimal(), "spec/search", {"strategy": "Full", "knobs": {"include": ["-a\n"]}})),
    ("nine dimensions", changed(minimal(), "spec/model/shapes", [{"name": "a", "tensors": {"x": {"opt": [1] * 9}}}])),
    ("dimension 0", changed(minimal(), "spec/model/shapes", [{"name": "a", "tensors": {"x": {"opt": [0]}}}])),
    ("weight 0", changed(minimal(), "spec/model/shapes", [{"name": "a", "tensors": {"x": {"opt": [1]}}, "weight": "0"}])),
    ("short digest", changed(minimal(), "spec/model/digest", "sha256:abc")),
    ("bare digest", changed(minimal(), "spec/model/digest", "a" * 64)),
    ("plugin without digest", changed(minimal(), "spec/model/plugins", [{"uri": "x.so"}])),
    ("quantity in words", changed(J, "spec/workerTemplate/scratchSize", "much")),
    ("negative quantity", changed(J, "spec/workerTemplate/scratchSize", -1)),
    ("host path", changed(J, "spec/workerTemplate/volumes", [{"hostPath": {"path": "/"}}])),
    ("environment", changed(J, "spec/workerTemplate/env", [{"name": "A", "value": "b"}])),
    ("privileged", changed(J, "spec/workerTemplate/securityContext", {"privileged": True})),
    ("misspelt field", changed(minimal(), "spec/targets/0/paralelism", 2)),
    ("no store", changed(minimal(), "spec/storeRef", GONE)),
    ("no spec", changed(minimal(), "spec", GONE)),
    ("long name", changed(minimal(), "metadata/name", "a" * 64)),
    ("dotted job name", changed(minimal(), "metadata/name", "a.b")),
    ("image by tag", changed(full("TunerRuntime"), "spec/image", "example.com/worker:latest")),
    ("unknown family", changed(full("TunerRuntime"), "spec/family", "OpenVINO")),
    ("channel to nowhere", changed(full("TunerChannel"), "spec/runtimeRef", GONE)),
    ("store without scheme", changed(full("ArtifactStore"), "spec/url", "/var/engines")),
    ("credentials in the URL", changed(full("ArtifactStore"), "spec/url", "s3://user:key@bucket/x")),
    ("unknown phase", changed(minimal(), "status", {"phase": "Tuning"})),
    ("two conditions of a type", changed(minimal(), "status", {"conditions": [
        {"type": "Ready", "status": "True", "reason": "Proven", "message": "", "lastTransitionTime": "2026-11-30T00:00:00Z",
         "observedGeneration": 1}] * 2})),
]  # fmt: skip


def accepted(obj: dict[str, Any]) -> str:
    """Pydantic's answer: empty, or why not."""
    try:
        parse_resource(obj, "")
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("name", "obj"), VALID, ids=[name for name, _ in VALID])
def test_both_accept(name: str, obj: dict[str, Any]) -> None:
    assert accepted(obj) == ""
    assert refusals(MODELS[obj["kind"]], obj) == []


@pytest.mark.parametrize(("name", "obj"), INVALID, ids=[name for name, _ in INVALID])
def test_both_refuse(name: str, obj: dict[str, Any]) -> None:
    assert accepted(obj) != ""
    assert refusals(MODELS[obj["kind"]], obj) != []


def _declared(schema: dict[str, Any]) -> set[str]:
    found = {each["message"] for each in schema.get("x-kubernetes-validations", [])}
    below = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return found.union(*(_declared(inner) for inner in below if isinstance(inner, dict)))


def test_every_rule_refuses_something_in_the_table() -> None:
    declared = set().union(*(_declared(structural(model)) for model in KINDS))
    broken = {line.split(": ", 1)[1] for _, obj in INVALID for line in refusals(MODELS[obj["kind"]], obj) if ": " in line}
    never = declared - broken
    # Lengths of map keys, told apart below by one case for all; and the transition rule, which needs an old object.
    assert {message for message in never if "characters" not in message} == {"a TunerRuntime never changes; create another one"}


@pytest.mark.parametrize(
    "path",
    [
        "spec/search/knobs/values",
        "spec/search/builder/settings",
        "spec/search/options",
        "spec/targets/0/nodeSelector",
        "spec/model/shapes/0/tensors",
        "spec/workerTemplate/labels",
        "spec/workerTemplate/annotations",
    ],
)
def test_overlong_names_in_maps_are_refused_by_rules(path: str) -> None:
    value: object = "x"
    if path.endswith(("values", "settings")):
        value = ["on"]
    elif path.endswith("tensors"):
        value = {"opt": [1]}
    at_bound = 317 if "workerTemplate" in path or "nodeSelector" in path else 128
    for length, valid in ((at_bound, True), (at_bound + 1, False)):
        obj = changed(full("TuningJob"), path, {"k" * length: value})
        assert (accepted(obj) == "") is valid
        assert (refusals(TuningJob, obj) == []) is valid


def test_a_runtime_never_changes() -> None:
    old = full("TunerRuntime")
    assert refusals(TunerRuntime, changed(old, "metadata/labels", {"a": "b"}), old) == []
    assert refusals(TunerRuntime, changed(old, "spec/version", "11.3"), old) != []
    assert refusals(TunerRuntime, changed(old, "spec/image", GONE), old) != []
    moved = changed(full("TunerChannel"), "spec/runtimeRef/name", "tensorrt-11.3")
    assert refusals(TunerChannel, moved, full("TunerChannel")) == []


def test_the_cel_library_can_say_no() -> None:
    assert not rule_holds("self.a > 1", {"a": 1})


def _paths(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    here = [path] if path else []
    if isinstance(value, dict):
        return here + [p for key, inner in value.items() for p in _paths(inner, (*path, key))]
    if isinstance(value, list):
        return here + [p for index, inner in enumerate(value) for p in _paths(inner, (*path, index))]
    return here


SPECS = {kind: full(kind)["spec"] for kind in MODELS}


def _values(value: object) -> list[object]:
    below = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value, *(found for inner in below for found in _values(inner))]


REPLACEMENTS = st.one_of(
    st.sampled_from([each for spec in SPECS.values() for each in _values(spec)]),
    st.sampled_from(["", "default", "0.001", "1e-3", "0", None, True, False, [], {}, 1.5, [None], {"name": "a"}]),
    st.integers(-3, 2**40),
    st.text(alphabet=string.ascii_letters + string.digits + " -._/:@\n", max_size=80),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_any_changed_value_gets_the_same_answer_from_both(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["TuningJob", "TuningJob", "TuningJob", "ArtifactStore", "TunerRuntime"]))
    obj = copy.deepcopy(full(kind))
    for _ in range(data.draw(st.integers(1, 2))):
        here: Any = obj["spec"]
        *parents, last = data.draw(st.sampled_from(_paths(obj["spec"])))
        for part in parents:
            here = here[part]
        if data.draw(st.booleans()):
            here[last] = copy.deepcopy(data.draw(REPLACEMENTS))
        else:
            del here[last]
        if not _paths(obj["spec"]):
            return
    ours, servers = accepted(obj), refusals(MODELS[kind], obj)
    assert (ours == "") == (servers == []), f"pydantic: {ours or 'accepts'}; server: {servers or 'accepts'}"


def test_models_of_every_kind_are_in_the_table() -> None:
    kinds = {kind_of(model) for model in (TuningJob, TunerRuntime, TunerChannel, ArtifactStore)}
    assert {obj["kind"] for _, obj in VALID} == set(MODELS) == kinds
