"""The inspector's JSON as layers, and what a fingerprint sees of it."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner_job.api.layers import Layer
from tuner_job.backends.tensorrt.layers import fingerprint, read_layers, with_times

TEN = {
    "Layers": [
        {
            "Name": "Reformatting CopyNode for Input Tensor 0 to /conv1/Conv + /relu/Relu",
            "LayerType": "Reformat",
            "Inputs": [
                {"Name": "x", "Location": "Device", "Dimensions": [1, 3, 8, 8], "Format/Datatype": "Row major linear FP32"}
            ],
            "Outputs": [{"Name": "r", "Location": "Device", "Dimensions": [1, 3, 8, 8], "Format/Datatype": "Channel major FP16"}],
            "ParameterType": "Reformat",
            "Origin": "REFORMAT",
            "TacticValue": "0x00000000000003ea",
            "StreamId": 0,
            "Metadata": "",
        },
        {
            "Name": "/conv1/Conv + /relu/Relu",
            "LayerType": "CaskConvolution",
            "Inputs": [{"Name": "r", "Location": "Device", "Dimensions": [1, 3, 8, 8], "Format/Datatype": "Channel major FP16"}],
            "Outputs": [
                {"Name": "y", "Location": "Device", "Dimensions": [1, 16, 8, 8], "Format/Datatype": "Channel major FP16"}
            ],
            "ParameterType": "Convolution",
            "Kernel": [3, 3],
            "Weights": {"Type": "Half", "Count": 432},
            "TacticName": "sm90_xmma_fprop_implicit_gemm_tilesize64x64x64",
            "TacticValue": "0x11bde0e1d9f2f35d",
            "StreamId": 0,
            "Metadata": "[ONNX Layer: /conv1/Conv]\x1e[ONNX Layer: /relu/Relu]",
        },
    ],
    "Bindings": ["x", "y"],
}
ELEVEN = {
    "Layers": [
        {
            "Name": f"__myl_MulAdd_myl0_{number}",
            "LayerType": "kgen",
            "Inputs": [{"Name": "x", "Dimensions": [1, 64], "Datatype": "Half", "Format": "(Linear) Row major linear format"}],
            "Constants": [{"Name": "w", "Dimensions": [64], "Datatype": "Half"}],
            "Outputs": [{"Name": f"t{number}", "Dimensions": [1, size], "Datatype": "Half", "Format": "Row major"}],
            "TacticName": f"__myl_MulAdd_0x{size:x}",
            "StreamId": number % 2,
            "Metadata": "[ONNX Layer: norm[0]/Mul]\x1f[ONNX Layer: norm[0]/Add]\x1f[ONNX Layer: norm[0]/Mul]",
        }
        for number, size in enumerate([64, 128, 256])
    ],
    "I/O Tensors": [{"Name": "x"}],
}
NAMES = {"Layers": ["/conv1/Conv + /relu/Relu", "__myl_MulAdd_myl0_1"], "Bindings": ["x"]}


def dumped(top: object) -> str:
    return json.dumps(top).replace("\\u001e", "\x1e").replace("\\u001f", "\x1f")  # as the library writes it


def test_layers_of_tensorrt_10():
    reformat, convolution = read_layers(dumped(TEN))
    assert convolution == Layer(
        name="/conv1/Conv + /relu/Relu",
        kind="CaskConvolution",
        tactic="sm90_xmma_fprop_implicit_gemm_tilesize64x64x64",
        formats=("Channel major FP16",),
        nodes=("/conv1/Conv", "/relu/Relu"),
    )
    assert (reformat.kind, reformat.tactic, reformat.nodes) == ("Reformat", "0x00000000000003ea", ())


def test_layers_of_tensorrt_11():
    first = read_layers(dumped(ELEVEN))[0]
    assert (first.kind, first.tactic, first.formats) == ("kgen", "__myl_MulAdd_0x40", ("Half Row major",))
    assert first.nodes == ("norm[0]/Mul", "norm[0]/Add")


def test_bare_names_are_layers_too_but_no_fingerprint():
    assert [layer.name for layer in read_layers(dumped(NAMES))] == NAMES["Layers"]
    assert fingerprint(dumped(NAMES)) == ""


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"Layers": {}}', '{"Layers": []}', "[" * 10_000])
def test_an_engine_that_tells_nothing_has_no_layers_and_no_fingerprint(text):
    assert read_layers(text) == ()
    assert fingerprint(text) == ""


def test_layers_of_other_profiles_are_left_out():
    top = {"Layers": [{"Name": "a"}, {"Name": "b"}, {"Name": "a [profile 1]"}, {"Name": "c [profile 1]"}]}
    assert [layer.name for layer in read_layers(dumped(top))] == ["a", "b"]
    assert [layer.name for layer in read_layers(dumped(top), 1)] == ["a [profile 1]", "c [profile 1]"]


@given(st.permutations(range(3)), st.text(max_size=5), st.integers(0, 9), st.booleans())
def test_names_and_order_and_stream_numbers_do_not_count(order, name, number, swapped):
    top = copy.deepcopy(ELEVEN)
    top["Layers"] = [top["Layers"][index] for index in order]
    for layer in top["Layers"]:
        layer["Name"] = f"{name}_myl{number}_{number}"
        layer["Metadata"] = name
        layer["Outputs"][0]["Name"] = name
        layer["StreamId"] = 1 - layer["StreamId"] if swapped else layer["StreamId"]
    top["I/O Tensors"] = []
    assert fingerprint(dumped(top)) == fingerprint(dumped(ELEVEN))


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.update(TacticName="another"),
        lambda layer: layer.update(LayerType="gemm"),
        lambda layer: layer["Outputs"][0].update(Dimensions=[1, 65]),
        lambda layer: layer["Outputs"][0].update(Datatype="Float"),
        lambda layer: layer["Inputs"][0].update(Format="Channel major"),
        lambda layer: layer["Constants"][0].update(Dimensions=[65]),
        lambda layer: layer.update(Weights={"Type": "Half", "Count": 9}),
        lambda layer: layer.update(StreamId=2),
    ],
    ids=["tactic", "type", "shape", "element type", "format", "constant", "weights", "another stream"],
)
def test_what_an_engine_does_counts(change):
    top = copy.deepcopy(ELEVEN)
    change(top["Layers"][0])
    assert fingerprint(dumped(top)) != fingerprint(dumped(ELEVEN))


def test_a_layer_more_counts_even_if_it_is_one_that_is_there_already():
    top = copy.deepcopy(TEN)
    top["Layers"].append(top["Layers"][0])
    assert fingerprint(dumped(top)) != fingerprint(dumped(TEN))


def test_times_go_to_the_layers_by_name_and_what_only_the_profiler_knows_comes_last():
    layers = (Layer(name="a", kind="gemm"), Layer(name="b"))
    assert with_times(layers, {"b": 2.0, "shape copy": 1.0}) == (
        Layer(name="a", kind="gemm"),
        Layer(name="b", seconds=2.0),
        Layer(name="shape copy", seconds=1.0),
    )


@given(st.lists(st.sampled_from("abc")), st.dictionaries(st.sampled_from("abcd"), st.floats(0, 10)))
def test_no_time_is_lost_or_counted_twice(names, seconds):
    timed = with_times(tuple(Layer(name=name) for name in names), seconds)
    assert sorted(layer.seconds for layer in timed if layer.seconds is not None) == sorted(seconds.values())
