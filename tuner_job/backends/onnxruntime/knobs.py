"""The knob list of ONNX Runtime, and what each knob sets.

Sources: `onnxruntime_session_options_config_keys.h`, `graph_transformer_utils.cc` and `cuda_execution_provider_info.cc` of
ONNX Runtime, each entry checked against the installed 1.32 (CPU) and 1.31 (CUDA) libraries. Left out on purpose:

- options that only change memory, logging or file formats, such as arena shrinkage;
- `session.use_env_allocators`: inert unless the host program registers an allocator;
- `session.set_denormal_as_zero`: the first session of a process decides for its main thread, so engines that share a process
  cannot differ in it;
- the `memory_efficient` execution order: only in training builds;
- `enable_cuda_graph`: a launch mode, so the measurement says it;
- optimizers that ONNX Runtime needs for correct graphs (casts, copies between devices, Q/DQ node units).
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tuner_job.api.base import InputError
from tuner_job.backends.onnxruntime.settings import GraphSettings, LoadSettings, SessionSettings
from tuner_job.backends.protocol import Unsupported
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.routes.route import parse_route

KNOB_LIST_VERSION = "1.0.0"
"""Raise it whenever a knob, a value or a default changes."""

Place = Literal["level", "disable", "graph", "load", "provider", "field"]


@dataclass(frozen=True)
class Knob:
    """One knob. `place` and `key` say what it sets; a value that `values` maps to None sets nothing."""

    option: str
    values: Mapping[str, str | None]
    default: str
    place: Place
    key: str
    help: str


ON_OFF = {"on": "1", "off": "0"}
OFF_ON = {"off": "0", "on": "1"}

# Level 1 (rules first, then whole-graph passes): run for every provider.
_PORTABLE_OPTIMIZERS = {
    "EliminateIdentity": "removal of Identity nodes",
    "EliminateSlice": "removal of Slice nodes that keep everything",
    "UnsqueezeElimination": "folding of Unsqueeze into its initializer",
    "EliminateDropout": "removal of Dropout nodes",
    "ExpandElimination": "removal of Expand nodes that keep the shape",
    "CastElimination": "removal of Cast nodes that keep the type",
    "PreShapeNodeElimination": "removal of nodes before Shape",
    "NoopElimination": "removal of x+0, x*1 and the like",
    "DivMulFusion": "1/x * y into y/x",
    "FuseReluClip": "Relu into Clip",
    "GemmSumFusion": "Gemm + Sum into one Gemm",
    "GemmTransposeFusion": "Transpose into Gemm",
    "NotWhereFusion": "Not into Where",
    "ConvAddFusion": "Add into the bias of Conv",
    "ConvMulFusion": "Mul into the weights of Conv",
    "ConvBNFusion": "BatchNormalization into Conv",
    "Pad_Fusion": "Pad into Conv or pooling",
    "MatMul_BatchNormalization_Fusion": "BatchNormalization into MatMul",
    "LabelEncoderFusion": "chains of LabelEncoder",
    "ConstantSharing": "sharing of equal constants",
    "CommonSubexpressionElimination": "sharing of equal subexpressions",
    "ConstantFolding": "computing constant subgraphs once",
    "MatMulAddFusion": "MatMul + Add into Gemm",
    "ReshapeFusion": "Shape/Gather/Concat chains before Reshape",
    "SliceConcatToSpaceToDepthFusion": "Slice/Concat into SpaceToDepth",
    "GeluFusionL1": "Gelu from Erf, first pass",
    "LayerNormFusionL1": "LayerNormalization from its parts, first pass",
    "DoubleQDQPairsRemover": "removal of doubled Q/DQ pairs",
    "QDQPropagationTransformer": "moving Q/DQ pairs past data movement",
    "WeightBiasQuantization": "quantizing constant weights and biases",
    "TransposeOptimizer": "pushing Transpose nodes together",
    # Level 2, for both CPU and CUDA.
    "ClipQuantRewrite": "Clip into QuantizeLinear",
    "ReluQuantRewrite": "Relu into QuantizeLinear",
    "GeluFusionL2": "Gelu from Erf, second pass",
    "LayerNormFusionL2": "LayerNormalization from its parts, second pass",
    "SimplifiedLayerNormFusion": "RMS normalization from its parts",
    "AttentionFusion": "Attention from MatMul and Softmax",
    "EmbedLayerNormFusion": "embedding + LayerNormalization",
    "GatherSliceToSplitFusion": "Gather/Slice groups into Split",
    "GatherToSliceFusion": "Gather by a range into Slice",
    "MatmulTransposeFusion": "Transpose into MatMul",
    "BiasGeluFusion": "bias Add into Gelu",
    "SkipLayerNormFusion": "residual Add into LayerNormalization",
    "BiasSkipLayerNormFusion": "bias Add into SkipLayerNormalization",
    "FastGeluFusion": "tanh Gelu from its parts",
    "QuickGeluFusion": "x * sigmoid(a*x) into QuickGelu",
    "BiasSoftmaxFusion": "mask Add into Softmax",
    "MatMulScaleFusion": "scaling into MatMul",
    "QDQFinalCleanupTransformer": "removal of Q/DQ pairs left over",
}
# Level 2 and 3 passes that are registered for the CPU provider alone.
_CPU_OPTIMIZERS = {
    "TransposeOptimizer_CPUExecutionProvider": "pushing Transpose nodes past CPU kernels",
    "QDQS8ToU8Transformer": "int8 Q/DQ to uint8 for kernels without VNNI",
    "QDQSelectorActionTransformer": "Q/DQ groups into quantized operators",
    "GemmActivationFusion": "activation into Gemm",
    "MatMulIntegerToFloatFusion": "MatMulInteger + scaling into one operator",
    "DynamicQuantizeMatMulFusion": "dynamic quantization + MatMul into one operator",
    "ConvActivationFusion": "activation into Conv",
    "MatMulNBitsFusion": "bias Add into MatMulNBits",
    "NchwcTransformer": "blocked NCHWc layout for convolutions",
    "NhwcTransformer": "NHWC layout for quantized and FP16 convolutions",
    "ConvAddActivationFusion": "residual Add and activation into Conv",
    "FuseFp16InitializerToFp32NodeTransformer": "FP16 constants stored as FP32 where only FP32 kernels exist",
}
_CUDA_OPTIMIZERS = {
    "GroupQueryAttentionFusion": "rotary embedding and projections into GroupQueryAttention",
    "GroupQueryAttentionPreNormFusion": "normalization into GroupQueryAttention",
    "BiasDropoutFusion": "bias Add into Dropout",
}


def _graph(option: str, key: str, help_: str, default: str = "off") -> Knob:
    return Knob(f"-graph:{option}", ON_OFF if default == "on" else OFF_ON, default, "graph", key, help_)


def _steps(top: int) -> dict[str, str | None]:
    """Thread counts: powers of two below `top`, and `top`."""
    counts = sorted({1 << i for i in range(top.bit_length()) if 1 << i < top} | {top})
    return {"default": None} | {str(n): str(n) for n in counts}


def _graph_knobs(device: Literal["CPU", "GPU"]) -> Iterable[Knob]:
    yield Knob(
        "-graph:level",
        {name: name for name in ("disabled", "basic", "extended", "layout", "all")},
        "all",
        "level",
        "",
        "How many graph optimizations run.",
    )
    yield Knob(
        "-graph:loops",
        {n: n for n in ("0", "1", "2")},
        "1",
        "graph",
        "session.graph_optimizations_loop_level",
        "Run graph optimizations again: 0 never, 1 after layout changes, 2 after any change of levels 2 to 4.",
    )
    yield _graph("gelu_approximation", "optimization.enable_gelu_approximation", "Gelu by tanh; changes results slightly.")
    yield _graph(
        "cast_chain_elimination", "optimization.enable_cast_chain_elimination", "Drop inner Casts of a chain; may change results."
    )
    yield Knob(
        "-graph:function_inlining:disable",
        OFF_ON,
        "off",
        "load",  # as well as when building: a session that loads the saved model would inline what was kept
        "session.disable_aot_function_inlining",
        "Do not inline model-local functions before nodes are assigned to kernels.",
    )
    yield _graph("qdq:disable", "session.disable_quant_qdq", "Run Q/DQ nodes as written instead of quantized operators.")
    yield _graph(
        "qdq:cleanup", "session.enable_quant_qdq_cleanup", "Remove Q/DQ pairs that no operator used; changes results slightly."
    )
    yield _graph("qdq:keep_constants", "session.disable_qdq_constant_folding", "Do not fold DequantizeLinear of constants.")
    yield _graph(
        "qdq:matmulnbits", "session.enable_dq_matmulnbits_fusion", "Fuse DequantizeLinear of 4-bit weights into MatMulNBits."
    )
    yield Knob(
        "-graph:qdq:accuracy_level",
        {n: n for n in ("0", "1", "2", "3", "4")},
        "4",
        "graph",
        "session.qdq_matmulnbits_accuracy_level",
        "Arithmetic of fused MatMulNBits: 0 unset, 1 FP32, 2 FP16, 3 BF16, 4 INT8.",
    )
    if device == "CPU":
        arm = platform.machine() in ("aarch64", "arm64")
        yield _graph("qdq:int8", "session.qdqisint8allowed", "Keep int8 activations instead of uint8.", "on" if arm else "off")
        if not arm:
            yield _graph(
                "qdq:x64_precision", "session.x64quantprecision", "No saturation in U8S8 products on AVX2; slower, more exact."
            )
    own = _CPU_OPTIMIZERS if device == "CPU" else _CUDA_OPTIMIZERS
    for name, what in (_PORTABLE_OPTIMIZERS | own).items():
        yield Knob(f"-graph:disable:{name}", {"off": None, "on": name}, "off", "disable", name, f"Leave out: {what}.")


def _cpu_session_knobs(cores: int, default_threads: int | None) -> Iterable[Knob]:
    default = "the number of physical cores, with affinity set" if default_threads is None else str(default_threads)
    yield Knob(
        "-session:intra_op_threads",
        _steps(cores),
        "default",
        "field",
        "intra_threads",
        f"Threads inside one operator; default is {default}.",
    )
    yield Knob(
        "-session:intra_op_pinned",
        {"off": None, "on": "1"},
        "off",
        "field",
        "pin_threads",
        "One allowed core per intra-op thread.",
    )
    yield Knob(
        "-session:intra_op_spinning",
        ON_OFF,
        "on",
        "load",
        "session.intra_op.allow_spinning",
        "Idle threads spin before they sleep.",
    )
    yield Knob(
        "-session:intra_op_spin_us",
        {"default": None, "50": "50", "200": "200", "1000": "1000", "5000": "5000"},
        "default",
        "load",
        "session.intra_op.spin_duration_us",
        "How long an idle thread spins, in microseconds; default counts iterations instead.",
    )
    yield Knob(
        "-session:intra_op_spin_backoff",
        {n: n for n in ("1", "4", "16", "64")},
        "1",
        "load",
        "session.intra_op.spin_backoff_max",
        "Largest number of pause instructions between two looks for work.",
    )
    yield Knob(
        "-session:force_spinning_stop",
        OFF_ON,
        "off",
        "load",
        "session.force_spinning_stop",
        "Threads stop spinning when a run ends.",
    )
    yield Knob(
        "-session:dynamic_block_base",
        {n: n for n in ("0", "1", "2", "4", "8", "16")},
        "0",
        "load",
        "session.dynamic_block_base",
        "Shrinking blocks of work for uneven threads; 0 uses equal blocks.",
    )
    yield Knob(
        "-session:execution_mode",
        {"sequential": "0", "parallel": "1"},
        "sequential",
        "field",
        "parallel",
        "Run independent operators at the same time.",
    )
    yield Knob(
        "-session:inter_op_threads",
        _steps(cores),
        "default",
        "field",
        "inter_threads",
        "Threads across operators; only with parallel execution.",
    )
    yield Knob(
        "-session:inter_op_spinning",
        ON_OFF,
        "on",
        "load",
        "session.inter_op.allow_spinning",
        "As intra_op_spinning, for parallel execution.",
    )
    yield Knob(
        "-session:prepacking:disable",
        OFF_ON,
        "off",
        "load",
        "session.disable_prepacking",
        "Do not rearrange weights for the kernels.",
    )
    yield Knob("-mlas:lut_gemm", OFF_ON, "off", "load", "mlas.use_lut_gemm", "Table look-up products for 2-bit weights.")
    yield Knob(
        "-mlas:qnbit_fp32",
        OFF_ON,
        "off",
        "load",
        "mlas.qnbit.force_fp32",
        "FP32 arithmetic in MatMulNBits of 2-, 4- and 8-bit weights.",
    )


def _session_knobs() -> Iterable[Knob]:
    yield Knob("-session:memory_pattern", ON_OFF, "on", "field", "memory_pattern", "Plan one block of memory per input shape.")
    yield Knob("-session:memory_reuse", ON_OFF, "on", "field", "memory_reuse", "Reuse buffers inside a run.")
    yield Knob("-session:cpu_arena", ON_OFF, "on", "field", "cpu_arena", "Keep host memory in an arena between runs.")
    yield Knob(
        "-session:execution_order",
        {n: n for n in ("default", "priority_based")},
        "default",
        "field",
        "order",
        "Order of operators in sequential execution.",
    )


def _cuda_knobs() -> Iterable[Knob]:
    def cuda(option: str, key: str, values: Mapping[str, str | None], default: str, help_: str) -> Knob:
        return Knob(f"-cuda:{option}", values, default, "provider", key, help_)

    yield cuda(
        "conv_algo_search",
        "cudnn_conv_algo_search",
        {"exhaustive": "EXHAUSTIVE", "heuristic": "HEURISTIC", "default": "DEFAULT"},
        "exhaustive",
        "How cuDNN picks convolution kernels.",
    )
    yield cuda(
        "conv_max_workspace", "cudnn_conv_use_max_workspace", ON_OFF, "on", "Let convolutions use any workspace in that search."
    )
    yield cuda(
        "conv1d_pad_to_nc1d",
        "cudnn_conv1d_pad_to_nc1d",
        OFF_ON,
        "off",
        "1-D convolutions as [N, C, 1, D] instead of [N, C, D, 1].",
    )
    yield cuda("fuse_conv_bias", "fuse_conv_bias", OFF_ON, "off", "Bias inside the cuDNN convolution; compiles at run time.")
    yield cuda("prefer_nhwc", "prefer_nhwc", OFF_ON, "off", "Channels-last layout where kernels exist.")
    yield cuda("use_tf32", "use_tf32", ON_OFF, "on", "TF32 tensor cores for FP32 products.")
    yield cuda(
        "sdpa_kernel",
        "sdpa_kernel",
        {"default": None, "flash": "1", "efficient": "2", "trt": "4", "cudnn": "8", "math": "16"},
        "default",
        "Attention kernel.",
    )
    yield cuda("tunable_op", "tunable_op_enable", OFF_ON, "off", "Kernels that choose an implementation by results of tuning.")
    yield cuda(
        "tunable_op:tuning",
        "tunable_op_tuning_enable",
        OFF_ON,
        "off",
        "Tune those kernels when they first run; only with tunable_op.",
    )
    yield cuda(
        "skip_layer_norm_strict",
        "enable_skip_layer_norm_strict_mode",
        OFF_ON,
        "off",
        "FP32 accumulation in SkipLayerNormalization.",
    )
    yield cuda("unified_stream", "use_ep_level_unified_stream", OFF_ON, "off", "One stream for the whole session.")
    yield cuda("copy_in_default_stream", "do_copy_in_default_stream", ON_OFF, "on", "Copies on the compute stream.")
    yield cuda(
        "arena_extend",
        "arena_extend_strategy",
        {"next_power_of_two": "kNextPowerOfTwo", "same_as_requested": "kSameAsRequested"},
        "next_power_of_two",
        "How the device arena grows.",
    )


def knobs(device: Literal["CPU", "GPU"], cores: int, default_threads: int | None = None) -> tuple[Knob, ...]:
    """Every knob of a device whose process may use `cores` CPU cores, in the list's order.

    `default_threads` is what a session gets without a route, None for ONNX Runtime's own number. It stands in the list's text, so
    that results under another default are never taken for the same.
    """
    own = _cpu_session_knobs(cores, default_threads) if device == "CPU" else _cuda_knobs()
    return (*own, *_session_knobs(), *_graph_knobs(device))


def knob_list(all_knobs: Iterable[Knob]) -> str:
    """JSON text in TensorRT's `all_build_routes` form."""
    options = [
        {
            "option": knob.option,
            "allowed_values": f"{knob.option}=[{'|'.join(knob.values)}]",
            "default_value": knob.default,
            "help": knob.help,
        }
        for knob in all_knobs
    ]
    return json.dumps({"tuner_version": KNOB_LIST_VERSION, "tuner_options": options}, indent=2)


def settings_of(route: str, all_knobs: Sequence[Knob]) -> SessionSettings:
    """What a route sets. Raises Unsupported for a route that the list does not have."""
    by_option = {knob.option: knob for knob in all_knobs}
    try:
        chosen = [(by_option[name], value) for name, value in parse_route(route, parse_knob_list(knob_list(all_knobs)))]
    except InputError as error:
        raise Unsupported(str(error)) from None

    def at(place: Place) -> dict[str, str]:
        pairs = ((knob.key, knob.values[value]) for knob, value in chosen if knob.place == place)
        return {key: value for key, value in pairs if value is not None}

    fields: dict[str, object] = {key: _FIELDS[key](value) for key, value in at("field").items()}
    graph = GraphSettings.model_validate({"level": at("level").get(""), "disabled": tuple(at("disable")), "config": at("graph")})
    load = LoadSettings.model_validate({**fields, "config": at("load"), "provider": at("provider")})
    return SessionSettings(graph=graph, load=load)


def _flag(value: str) -> bool:
    return value == "1"


_FIELDS: dict[str, Callable[[str], object]] = {
    "parallel": _flag,
    "order": str,
    "intra_threads": int,
    "inter_threads": int,
    "pin_threads": _flag,
    "memory_pattern": _flag,
    "memory_reuse": _flag,
    "cpu_arena": _flag,
}
