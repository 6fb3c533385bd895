"""What discover refuses about the machine that it is on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from campaign_records import run_record

from tuner_job.api.base import InputError
from tuner_job.api.child import ShapeCase
from tuner_job.api.inputs import PluginInput, RuntimeIdentity, VariantInput
from tuner_job.api.measurement import Device
from tuner_job.campaign.discover import _inspected, discover, require_hardware, require_runtime

L40S = Device(type="GPU", product="NVIDIA L40S")
SLICE = Device(type="GPU", product="NVIDIA A100-SXM4-40GB", mig_profile="1g.5gb")


@pytest.mark.parametrize(
    ("asked", "device"),
    [
        ({}, L40S),
        ({"product": "NVIDIA-L40S", "count": "1"}, L40S),
        ({"product": "NVIDIA-L40S-SHARED"}, L40S),
        ({"product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "migProfile": "1g.5gb"}, SLICE),
        ({"label/zone": "a"}, L40S),
    ],
)
def test_hardware_that_was_asked_for_is_taken(asked: dict[str, str], device: Device) -> None:
    require_hardware(asked, device)


@pytest.mark.parametrize(
    ("asked", "device", "names"),
    [
        ({"product": "NVIDIA-L40"}, L40S, "NVIDIA L40S"),
        ({"product": "NVIDIA-H200"}, L40S, "NVIDIA-H200"),
        ({"migProfile": "2g.10gb"}, SLICE, "1g.5gb"),
        ({"migProfile": "1g.5gb"}, L40S, "whole GPU"),
        ({"count": "2"}, L40S, "gpu.count 2"),
    ],
)
def test_other_hardware_is_refused_by_name(asked: dict[str, str], device: Device, names: str) -> None:
    with pytest.raises(InputError, match=names):
        require_hardware(asked, device)


def test_what_the_backend_does_not_offer_is_refused_not_ignored() -> None:
    inputs = run_record().inputs.model_copy(update={"plugins": (PluginInput(uri="file:///p.so", digest="0" * 64),)})
    with pytest.raises(InputError, match="load none"):
        discover(SimpleNamespace(run=SimpleNamespace(inputs=inputs)))  # type: ignore[arg-type]


def relu(path: Path, rows: int | str) -> Path:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [rows, 4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_a_variant_that_the_shapes_do_not_fit_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    variants = (VariantInput(uri="a"), VariantInput(name="static", uri="b"))
    models = {"default": relu(tmp_path / "a.onnx", "n"), "static": relu(tmp_path / "b.onnx", 2)}
    for rows, fits in ((2, True), (3, False)):
        cases = (ShapeCase(name="c", tensors={"x": (rows, 4)}),)
        inputs = run_record().inputs.model_copy(update={"variants": variants, "cases": cases})
        space = SimpleNamespace(run=SimpleNamespace(inputs=inputs), models=models)
        if fits:
            assert _inspected(space)[1][0].tensors == {"x": (2, 4)}  # type: ignore[arg-type]
        else:
            with pytest.raises(InputError, match=r"model\.variants\[static\].*fixes at 2"):
                _inspected(space)  # type: ignore[arg-type]


def test_the_runtime_is_told_by_its_own_name_among_the_libraries() -> None:
    runtime = RuntimeIdentity(family="ONNXRuntime", version="1.31.1")
    require_runtime(runtime, {"cuda": "13.0", "onnxruntime": "1.31.1"})
    with pytest.raises(InputError, match=r"this worker has 1\.30"):
        require_runtime(runtime, {"cuda": "1.31.1", "onnxruntime": "1.30"})
