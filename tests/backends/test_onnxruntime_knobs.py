"""The knob list says what ONNX Runtime does, and a route sets what it names and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from tuner_job.backends.onnxruntime.knobs import knob_list, knobs, settings_of
from tuner_job.backends.onnxruntime.settings import GraphSettings, LoadSettings, SessionSettings, default_threads, session_options
from tuner_job.backends.protocol import Unsupported
from tuner_job.routes.knobs import parse_knob_list

CPU = knobs("CPU", 2)
GPU = knobs("GPU", 2)


@pytest.mark.parametrize("all_knobs", [CPU, GPU], ids=["CPU", "GPU"])
def test_the_list_has_tensorrts_form(all_knobs):
    listed = parse_knob_list(knob_list(all_knobs))
    assert len(listed) == len(all_knobs) == len(listed.bounded)
    for ours, theirs in zip(all_knobs, listed.knobs, strict=True):
        assert theirs.values == tuple(ours.values)
        assert theirs.default in theirs.values
    assert set(json.loads(knob_list(all_knobs))) == {"tuner_version", "tuner_options"}


@pytest.mark.parametrize(("cores", "counts"), [(1, ["1"]), (2, ["1", "2"]), (6, ["1", "2", "4", "6"]), (8, ["1", "2", "4", "8"])])
def test_thread_counts_go_up_to_the_allowed_cores(cores, counts):
    threads = next(knob for knob in knobs("CPU", cores) if knob.option == "-session:intra_op_threads")
    assert list(threads.values) == ["default", *counts]


def test_the_empty_route_sets_nothing():
    assert settings_of("", CPU) == SessionSettings()
    plain, ours = ort.SessionOptions(), session_options(LoadSettings(), GraphSettings(), (0, 1))
    for name in ("graph_optimization_level", "execution_mode", "execution_order", "intra_op_num_threads", "inter_op_num_threads",
                 "enable_mem_pattern", "enable_mem_reuse", "enable_cpu_mem_arena", "use_deterministic_compute"):  # fmt: skip
        assert getattr(ours, name) == getattr(plain, name), name


@pytest.mark.parametrize(("cores", "machine", "threads"), [(2, 64, 2), (1, 2, 1), (2, 2, None), (3, 2, None)])
def test_a_session_has_no_more_threads_than_the_process_has_cores(cores, machine, threads):
    """ONNX Runtime counts the machine's; only where that is too many does the empty route set a number, and the list says so."""
    fallback = default_threads(cores, machine)
    assert fallback == threads
    options = session_options(LoadSettings(), GraphSettings(), tuple(range(cores)), fallback)
    assert options.intra_op_num_threads == (threads or 0)
    assert options.inter_op_num_threads == 0
    both = session_options(LoadSettings(parallel=True), GraphSettings(), tuple(range(cores)), fallback)
    assert (both.intra_op_num_threads, both.inter_op_num_threads) == (threads or 0, threads or 0)
    asked = session_options(LoadSettings(intra_threads=5), GraphSettings(), tuple(range(cores)), fallback)
    assert asked.intra_op_num_threads == 5
    same = knob_list(knobs("CPU", cores)) == knob_list(knobs("CPU", cores, fallback))
    assert same == (threads is None), "results under another default are another identity's"


def test_each_listed_default_is_what_onnx_runtime_reports():
    """Its own trace of a session without options, against the defaults in the list."""
    trace = _log_of_a_session("")
    default = {knob.option: knob.default for knob in CPU}
    said = dict(re.findall(r"(\w+): ?(-?\w+)", trace.split("Session Options {")[1].split("inter_op_param")[0]))
    assert said["execution_mode"] == "0"
    assert default["-session:execution_mode"] == "sequential"
    assert (said["enable_mem_pattern"], said["enable_mem_reuse"], said["enable_cpu_mem_arena"]) == ("1", "1", "1")
    assert {default[f"-session:{n}"] for n in ("memory_pattern", "memory_reuse", "cpu_arena", "intra_op_spinning")} == {"on"}
    assert (said["allow_spinning"], said["spin_backoff_max"], said["dynamic_block_base_"]) == ("1", "1", "0")
    assert (default["-session:intra_op_spin_backoff"], default["-session:dynamic_block_base"]) == ("1", "0")
    assert ort.SessionOptions().graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL


def test_every_optimizer_name_is_one_that_this_library_runs():
    """Passes log their names; a pass that a name leaves out is gone from the log. Rules run inside one pass and are silent:
    their names must at least stand in the library (short names are inlined there, so those are known by effect below)."""
    names = [knob.key for knob in CPU if knob.place == "disable"]
    passes = _passes(_log_of_a_session(""))
    remaining = _passes(_log_of_a_session(";".join(names)))
    assert remaining <= passes
    library = b"".join(path.read_bytes() for path in Path(ort.__file__).parent.glob("capi/onnxruntime_pybind11_state*.so"))
    for name in set(names) - passes:
        assert name in RULES_BY_EFFECT or len(name) <= 15 or name.encode() in library, name
    assert not set(names) & remaining
    assert remaining <= NOT_KNOBS


NOT_KNOBS = {
    *("CastFloat16Transformer", "EnsureUniqueDQForNodeUnit", "FreeDimensionOverrideTransformer", "MemcpyTransformer"),
    *("RemoveDuplicateCastTransformer", "WhereDummyDq", "Level1_RuleBasedTransformer", "Level2_RuleBasedTransformer"),
    *("MatMulActivationFusion", "SwiGluFusion", "BiasDropoutFusion"),
    *("GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion"),
}
"""Needed for correct graphs, made of rules that are knobs themselves, or registered for other providers only."""

RULES_BY_EFFECT = {"EliminateIdentity", "EliminateSlice", "ConvAddFusion", "ConvBNFusion", "CastElimination", "FuseReluClip"}
"""Shown to change a graph in test_onnxruntime_models.py or test_onnxruntime_build.py."""


def test_config_keys_stand_in_the_library():
    library = b"".join(path.read_bytes() for path in Path(ort.__file__).parent.glob("capi/onnxruntime_pybind11_state*.so"))
    keys = {knob.key for knob in CPU if knob.place in ("graph", "load")}
    assert len(keys) > 15
    assert [key for key in sorted(keys) if key.encode() not in library] == []


def test_a_route_sets_what_it_names():
    route = (
        "-session:intra_op_threads=1 -session:cpu_arena=off -graph:level=extended "
        "-graph:disable:ConstantFolding=on -graph:qdq:int8=on"
    )
    settings = settings_of(route, CPU)
    assert settings == SessionSettings(
        graph=GraphSettings(level="extended", disabled=("ConstantFolding",), config={"session.qdqisint8allowed": "1"}),
        load=LoadSettings(intra_threads=1, cpu_arena=False),
    )
    options = session_options(settings.load, settings.graph, (0,))
    assert options.intra_op_num_threads == 1
    assert options.enable_cpu_mem_arena is False
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert options.get_session_config_entry("optimization.disable_specified_optimizers") == "ConstantFolding"
    assert options.get_session_config_entry("session.qdqisint8allowed") == "1"


def test_cuda_knobs_become_provider_options():
    settings = settings_of("-cuda:conv_algo_search=heuristic -cuda:use_tf32=off -cuda:sdpa_kernel=default", GPU)
    assert settings.load.provider == {"cudnn_conv_algo_search": "HEURISTIC", "use_tf32": "0"}


def test_pinning_names_each_allowed_core_but_the_callers():
    options = session_options(LoadSettings(pin_threads=True), None, (3, 5, 8))
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op_thread_affinities") == "6;9"  # numbered from 1
    alone = session_options(LoadSettings(pin_threads=True), None, (3,))
    assert alone.intra_op_num_threads == 1


@pytest.mark.parametrize(
    ("route", "message"),
    [
        ("-session:threads=1", "-session:threads"),
        ("-graph:level=fast", "disabled, basic, extended, layout, all"),
        ("-graph:level=all -graph:level=basic", "twice"),
        ("graph:level=all", "dash"),
    ],
)
def test_a_route_outside_the_list_is_unsupported(route, message):
    with pytest.raises(Unsupported, match=message):
        settings_of(route, CPU)


def _passes(log: str) -> set[str]:
    return set(re.findall(r"GraphTransformer (\w+) modified", log))


def _log_of_a_session(disabled: str) -> str:
    """ONNX Runtime's whole log of making a session. It writes to file descriptor 2, so a process of its own."""
    code = """
import sys, onnxruntime as ort
from onnx import TensorProto as T, helper as h
value = lambda name: h.make_tensor_value_info(name, T.FLOAT, [2, 2])
graph = h.make_graph([h.make_node("MatMul", ["x", "x"], ["y"])], "g", [value("x")], [value("y")])
model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
options = ort.SessionOptions()
options.log_severity_level = 0
if sys.argv[1]:
    options.add_session_config_entry("optimization.disable_specified_optimizers", sys.argv[1])
ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
"""
    return subprocess.run([sys.executable, "-c", code, disabled], capture_output=True, text=True, check=True).stderr
