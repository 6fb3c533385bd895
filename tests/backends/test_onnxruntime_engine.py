"""Loaded engines on real models: what they compute, how they are timed, where they may be taken."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnxruntime_graphs import conv_net, save, value

from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.measurement import Candidate
from tuner_job.backends.onnxruntime import OnnxRuntimeBackend, timers
from tuner_job.backends.onnxruntime.identity import allowed_cores, cpu_model, usable_cores
from tuner_job.backends.onnxruntime.knobs import knobs
from tuner_job.backends.protocol import BuildOrder
from tuner_job.measure.sampling import Aside

ONE_THREAD = "-session:intra_op_threads=1 -session:intra_op_spinning=off"


def package_file(package: str, path: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / path


def floats(*shape):
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


MODELS = {
    "magika": ("magika", "models/standard_v3_3/model.onnx", {"bytes": np.arange(2048, dtype=np.int32)[None] % 256}),
    "detector": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", {"x": floats(1, 3, 96, 160)}),
    "classifier": ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": floats(2, 3, 48, 192)}),
    "vad": ("silero_vad", "data/silero_vad_openvino_16k.onnx", {"input": floats(1, 576), "state": floats(2, 1, 128)}),
    "vad with branches": (
        "silero_vad",
        "data/silero_vad.onnx",
        {"input": floats(1, 576), "state": floats(2, 1, 128), "sr": np.array(16000)},
    ),
    "vad fp16 weights": ("silero_vad", "data/silero_vad_half.onnx", {"input": floats(1, 576), "state": floats(2, 1, 128)}),
}


def case_of(inputs) -> list[ShapeCase]:
    return [ShapeCase(name="c", tensors={name: value.shape for name, value in inputs.items()})]


@pytest.fixture(scope="module")
def backend():
    return OnnxRuntimeBackend("CPU")


@pytest.fixture(scope="module", params=list(MODELS))
def real(request):
    package, path, inputs = MODELS[request.param]
    return package_file(package, path), inputs


def test_the_empty_route_is_a_plain_session(backend, real, tmp_path):
    model, inputs = real
    first = backend.build(BuildOrder(model, case_of(inputs), Candidate(), tmp_path / "a"))
    assert backend.build(BuildOrder(model, case_of(inputs), Candidate(), tmp_path / "b")) == first
    engine = backend.load(tmp_path / "a")
    assert engine.file.graph is None, "saved optimised, so nothing is left to do when loading"
    assert engine.file.load == type(engine.file.load)()
    plain = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    for name, expected in zip([o.name for o in plain.get_outputs()], plain.run(None, inputs), strict=True):
        assert np.array_equal(engine.run(inputs)[name], expected)
    engine.close()


def test_the_reference_is_close_to_the_engine_and_repeats(backend, real, tmp_path):
    model, inputs = real
    backend.build(BuildOrder(model, case_of(inputs), Candidate(route=ONE_THREAD), tmp_path / "e"))
    built, again, reference = backend.load(tmp_path / "e").run(inputs), backend.reference(model), backend.reference(model)
    for name, expected in reference.run(inputs).items():
        assert np.array_equal(again.run(inputs)[name], expected)
        np.testing.assert_allclose(built[name], expected, atol=1e-4, rtol=1e-4)


ALL_ROUTES = [f"{knob.option}={value}" for knob in knobs("CPU", usable_cores()) for value in knob.values]


@pytest.fixture(scope="module")
def small(backend, tmp_path_factory):
    """A small convolutional network, an input and the default engine's output."""
    folder = tmp_path_factory.mktemp("small")
    model = conv_net(folder / "m.onnx")
    x = {"x": floats(1, 16, 12, 12)}
    backend.build(BuildOrder(model, case_of(x), Candidate(), folder / "e"))
    engine = backend.load(folder / "e")
    yield model, x, engine.run(x)["y"]
    engine.close()


@pytest.mark.parametrize("route", ALL_ROUTES)
def test_every_value_of_every_knob_builds_loads_runs_and_stays_close(backend, small, tmp_path, route):
    model, inputs, expected = small
    backend.build(BuildOrder(model, case_of(inputs), Candidate(route=route), tmp_path / "e"))
    engine = backend.load(tmp_path / "e")
    assert engine.file.graph is None
    np.testing.assert_allclose(engine.run(inputs)["y"], expected, atol=1e-4, rtol=1e-4)
    engine.close()


def test_knobs_that_must_change_a_real_graph_do(backend, tmp_path):
    package, path, inputs = MODELS["classifier"]
    model, cases = package_file(package, path), case_of(inputs)
    build = lambda route: backend.build(BuildOrder(model, cases, Candidate(route=route), tmp_path / "e"))  # noqa: E731
    names = ("ConstantFolding", "MatMulAddFusion", "ReshapeFusion", "NchwcTransformer", "ConvActivationFusion")
    routes = ["", "-graph:level=basic", "-graph:level=disabled", *(f"-graph:disable:{name}=on" for name in names)]
    assert len({build(route) for route in routes}) == len(routes)


def test_dynamic_shapes_run_at_any_size(backend, tmp_path):
    package, path, _ = MODELS["detector"]
    cases = [ShapeCase(name=str(size), tensors={"x": (1, 3, size, size)}) for size in (64, 128)]
    backend.build(BuildOrder(package_file(package, path), cases, Candidate(), tmp_path / "e"))
    engine = backend.load(tmp_path / "e")
    for size in (64, 128, 96):
        assert engine.run({"x": floats(1, 3, size, size)})["sigmoid_0.tmp_0"].shape == (1, 1, size, size)


@pytest.mark.parametrize("streams", [1, 3])
def test_a_timer_gives_as_many_positive_latencies_as_asked(backend, tmp_path, streams):
    package, path, inputs = MODELS["vad"]
    backend.build(BuildOrder(package_file(package, path), case_of(inputs), Candidate(route=ONE_THREAD), tmp_path / "e"))
    engine = backend.load(tmp_path / "e")
    timer = engine.timer(inputs, MeasureSettings(streams=streams))
    for count in (1, 7):
        samples = timer.sample(count)
        assert samples.shape == (count,)
        assert samples.dtype == np.float64
        assert (samples > 0).all()
    assert (timer.clock, timer.launch, timer.aside()) == ("host", "direct", Aside())
    assert engine.run(inputs).keys() == {"output", "stateN"}


def test_a_timer_survives_models_whose_outputs_change_shape_with_values(backend, tmp_path):
    """NonZero: the buffers that are kept fit the inputs that the timer holds."""
    graph = h.make_graph(
        [h.make_node("NonZero", ["x"], ["y"])],
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, [4])],
        [h.make_tensor_value_info("y", T.INT64, [1, "n"])],
    )
    (tmp_path / "m.onnx").write_bytes(
        h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )
    backend.build(BuildOrder(tmp_path / "m.onnx", [ShapeCase(name="c")], Candidate(), tmp_path / "e"))
    engine = backend.load(tmp_path / "e")
    inputs = {"x": np.array([0, 1, 0, 2], np.float32)}
    assert (engine.timer(inputs, MeasureSettings()).sample(3) > 0).all()
    assert engine.run(inputs)["y"].tolist() == [[1, 3]]


def test_engines_carry_over_to_another_process(backend, tmp_path):
    package, path, inputs = MODELS["classifier"]
    backend.build(BuildOrder(package_file(package, path), case_of(inputs), Candidate(route=ONE_THREAD), tmp_path / "e"))
    np.savez(tmp_path / "inputs.npz", **inputs)
    code = """
import sys, numpy as np
from pathlib import Path
from tuner_job.backends.onnxruntime import OnnxRuntimeBackend, timers
engine = OnnxRuntimeBackend("CPU").load(Path(sys.argv[1]) / "e")
np.savez(Path(sys.argv[1]) / "outputs.npz", **engine.run(dict(np.load(Path(sys.argv[1]) / "inputs.npz"))))
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    outputs = np.load(tmp_path / "outputs.npz")
    for name, expected in backend.load(tmp_path / "e").run(inputs).items():
        assert np.array_equal(outputs[name], expected)


def test_a_closed_engine_leaves_nothing_in_scratch(backend, tmp_path, monkeypatch):
    package, path, inputs = MODELS["vad"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    backend.build(BuildOrder(package_file(package, path), case_of(inputs), Candidate(), tmp_path / "e"))
    engine = backend.load(tmp_path / "e")
    assert len(list(scratch.iterdir())) == 1
    engine.close()
    assert list(scratch.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"e", "scratch"}


def test_what_fails_while_it_runs_is_told_in_one_line(backend, tmp_path):
    nodes = [h.make_node("Reshape", ["x", "shape"], ["y"])]
    save(tmp_path / "m.onnx", nodes, [value("x", [2, 3]), value("shape", [2], T.INT64)], [value("y", None)])
    backend.build(BuildOrder(tmp_path / "m.onnx", [ShapeCase(name="c")], Candidate(), tmp_path / "e"))
    with closing(backend.load(tmp_path / "e")) as engine, pytest.raises(RuntimeError) as caught:
        engine.run({"x": floats(2, 3), "shape": np.array([4, 5])})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 400
    assert "Reshape" in str(caught.value)


def test_a_timer_lets_the_threads_of_another_engine_fall_asleep(backend, tmp_path, monkeypatch):
    model, engine = conv_net(tmp_path / "m.onnx"), tmp_path / "engine"
    inputs = {"x": floats(1, 16, 12, 12)}
    backend.build(BuildOrder(model, [ShapeCase(name="c", tensors={"x": (1, 16, 12, 12)})], Candidate(), engine))
    with closing(backend.load(engine)) as first, closing(backend.load(engine)) as second:
        one, other = (each.timer(inputs, MeasureSettings()) for each in (first, second))
        waits = []
        monkeypatch.setattr(timers, "_wait_until_quiet", lambda: waits.append(None))
        one.sample(2)
        one.sample(2)
        assert len(waits) == 1
        other.sample(2)
        one.sample(2)
        assert len(waits) == 3


def test_identity_names_the_cpu_and_what_the_process_may_use(backend):
    device = backend.identify()
    assert device.type == "CPU"
    assert device.product
    assert device.count == usable_cores() >= 1
    assert device == backend.identify()
    assert backend.versions()[backend.name] == ort.__version__
    assert json.loads(backend.knob_list())["tuner_options"]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 4),
        ({"cpu.max": "max 100000\n"}, 4),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "5000 100000\n"}, 1),
        ({"cpu.max": "900000 100000\n"}, 4),
        ({"cpu.max": "garbage"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "0\n"}, 4),
    ],
)
def test_a_containers_quota_counts_like_cores(tmp_path, monkeypatch, files, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {7, 3, 5, 1})
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores
    assert allowed_cores(tmp_path) == (1, 3, 5, 7)[:cores]


@pytest.mark.parametrize(
    ("text", "product", "features"),
    [
        ("processor\t: 0\nmodel name\t: Xeon\nflags\t\t: fpu avx2 fma sse4_2\n\nprocessor\t: 1\nmodel name\t: Other\n", "Xeon",
         ("sse4_2", "avx2", "fma")),
        ("processor\t: 0\nFeatures\t: fp asimd sve i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "0x41 0xd4f",
         ("asimd", "i8mm", "sve")),
    ],
)  # fmt: skip
def test_cpu_model_reads_x86_and_arm(text, product, features):
    assert cpu_model(text) == (product, features)


def test_a_gpu_that_is_not_there_is_said_in_one_line():
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this installation has the CUDA provider")
    from tuner_job.api.base import TrtfleetError

    package, path, inputs = MODELS["vad"]
    gpu = OnnxRuntimeBackend("GPU")
    with pytest.raises(TrtfleetError, match="no CUDA provider"):
        gpu.build(BuildOrder(package_file(package, path), case_of(inputs), Candidate(), Path(tempfile.gettempdir()) / "never"))
