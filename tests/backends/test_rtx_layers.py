"""What real TensorRT-RTX says of an engine's layers, as the backend reads it.

The inspector's JSON needs an engine, and an engine needs a GPU. But a builder that is asked for DETAILED verbosity prints the
same information, key by key, into its log: that is turned into JSON here.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from rig.rtx import BACKEND, EXAMPLES, compile_request, example, told
from rig.tiny import write_tiny_model
from stand_in.stage import Stage

from tuner_job.api.child import Limits, ShapeCase
from tuner_job.backends.tensorrt.layers import fingerprint, read_layers
from tuner_job.trial.supervisor import Supervisor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test on a machine fetches the library

BUILDS = 6

BUILD = """
import hashlib, json, sys
import tensorrt_rtx_bindings as trt

class Logger(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
        self.lines = []
    def log(self, severity, message):
        self.lines += message.splitlines()

def build(model, tf32):
    logger.lines.clear()
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(model)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if not tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    plan = builder.build_serialized_network(network, config)
    layers = [line for line in logger.lines if "LayerType: " in line]
    return {"digest": hashlib.sha256(bytes(plan)).hexdigest(), "layers": layers}

logger = Logger()
model, times = sys.argv[1], int(sys.argv[2])
print(json.dumps({"default": [build(model, True) for _ in range(times)], "without TF32": [build(model, False)]}))
"""

LAYER = re.compile(
    r"Name: (?P<Name>.*?), LayerType: (?P<LayerType>.*?), "
    r"Inputs: \[(?P<Inputs>| \{.*?\})\], Constants: \[(?P<Constants>| \{.*?\})\], "
    r"Outputs: \[(?P<Outputs>| \{.*?\})\],(?P<rest>.*?) TacticName: (?P<TacticName>.*?), StreamId: (?P<StreamId>\d+), "
    r"Metadata: (?P<Metadata>.*)"
)
TENSOR = re.compile(
    r"\{ Name: (.*?), Dimensions: (\[.*?\]), Strides: (\[.*?\]), StrideOrder: (\[.*?\]), Datatype: (.*?), Format: (.*?) \}"
)


def tensors(text: str) -> list[dict[str, Any]]:
    return [
        {"Name": name, "Dimensions": dims, "Strides": strides, "StrideOrder": order, "Datatype": kind, "Format": form}
        for name, dims, strides, order, kind, form in TENSOR.findall(text)
    ]


def information(lines: list[str]) -> str:
    """As the inspector would write it. Every printed line must be understood."""
    layers = []
    for line in lines:
        found = LAYER.search(line)
        assert found is not None, line
        told: dict[str, Any] = found.groupdict()
        for side in ("Inputs", "Constants", "Outputs"):
            told[side] = tensors(told[side])
        layers.append({**told, "StreamId": int(told["StreamId"])})
    return json.dumps({"Layers": layers})


@pytest.fixture(scope="module")
def builds(rtx_path):
    """Of one model, in one process: `default` many times over, and once `without TF32`."""
    model, _ = example(next(path for path in EXAMPLES if path.stem == "silero-vad"))
    return told(BUILD, rtx_path, model, str(BUILDS))


def test_a_real_engines_layers_are_read(builds):
    layers = read_layers(information(builds["default"][0]["layers"]))
    assert len(layers) > 5
    assert all(layer.name and layer.kind and layer.formats for layer in layers)
    assert {"kgen", "correlation"} <= {layer.kind for layer in layers}
    assert any(layer.tactic for layer in layers)
    assert layers[0].formats == ("Float (Linear) Row major linear format",)


def test_each_layer_names_the_nodes_that_it_does(builds):
    nodes = [node for layer in read_layers(information(builds["default"][0]["layers"])) for node in layer.nodes]
    assert len(nodes) > 20
    assert any(node.endswith("/stft/Conv") for node in nodes)
    assert not any("ONNX Layer" in node or "]" in node for node in nodes)


def test_builds_of_other_bytes_have_one_fingerprint(builds):
    """Builds are not bit-reproducible; the fingerprint says that nevertheless they are one engine."""
    assert len({fingerprint(information(each["layers"])) for each in builds["default"]} - {""}) == 1


def test_an_engine_with_other_kernels_has_another_fingerprint(builds):
    layers = [line.replace("TacticName: __myl_Mean_", "TacticName: __myl_Median_") for line in builds["default"][0]["layers"]]
    assert layers != builds["default"][0]["layers"]
    assert fingerprint(information(layers)) != fingerprint(information(builds["default"][0]["layers"]))


def test_layers_do_not_tell_the_kernels_of_tensorrt_for_rtx(builds):
    """It compiles them when an engine is loaded: until then a convolution's tactic is a stub. Arithmetic that is another, as here
    without TF32, does not show. That is why the backend gives its engines no fingerprint."""
    (other,) = builds["without TF32"]
    assert other["digest"] not in {each["digest"] for each in builds["default"]}
    assert fingerprint(information(other["layers"])) == fingerprint(information(builds["default"][0]["layers"]))
    assert any("TacticName: __myelin_CASK_STUB" in line for line in other["layers"])


def test_the_backend_gives_an_engine_of_tensorrt_for_rtx_no_fingerprint(tmp_path):
    """By the stand-in under both names, since the real one loads no engine here: only the name makes the difference."""
    stage = Stage.make(tmp_path / "stage")
    (stage.python / "tensorrt_rtx.py").write_text("from tensorrt import *\nfrom tensorrt import __version__\n")
    model = write_tiny_model(tmp_path / "tiny.onnx")
    told = {}
    with Supervisor(tmp_path / "scratch", extra_environment=stage.environment) as children:
        for backend in ("tensorrt", BACKEND):
            request = compile_request(model, (ShapeCase(name="static", tensors={"x": (1, 32)}),), tmp_path / backend)
            end = children.run(request.model_copy(update={"backend": backend, "device": "GPU"}), Limits())
            assert end.report is not None, end.reason
            assert end.report.engine is not None, end.reason
            told[backend] = end.report.engine.fingerprint
    assert told["tensorrt"]
    assert told[BACKEND] == ""
