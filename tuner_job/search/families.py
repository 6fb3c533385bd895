"""Which knobs a model may be moved by, guessed from the operators in it.

A guess and no more: it reads words in the names of knobs, as TensorRT 11.2 names them, and knows nothing of what the compiler
makes of a graph (a convolution may run as a matrix product, a plugin may hold an attention). So it only shifts what is believed
of a knob before anything was tried, mildly and never to nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tuner_job.search.flips import Flip

RAISED, LOWERED = 1.5, 0.4
"""Factors of the chance that a flip matters: the model has what its knob is about, or has not."""

_REDUCTIONS = (
    "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare "
    "ArgMax ArgMin Softmax LogSoftmax LayerNormalization GroupNormalization InstanceNormalization RMSNormalization"
)
_PRODUCTS = "MatMul Gemm Einsum Attention MultiHeadAttention GroupQueryAttention LSTM GRU"
_QUANTISED = "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul MatMulInteger ConvInteger"
_ATTENTION = "Attention MultiHeadAttention GroupQueryAttention MatMul+Softmax Einsum+Softmax"

_ABOUT: dict[str, str] = {
    **dict.fromkeys(("mha", "fmha", "mha_fusion", "gqa_fusion"), _ATTENTION),
    **dict.fromkeys(("conv", "cask6"), "Conv QLinearConv ConvInteger"),
    "conv1x1": f"Conv {_PRODUCTS}",
    "deconv": "ConvTranspose",
    **dict.fromkeys(("fc", "fc_lowering", "gemm", "hgemm", "igemm", "s2hgemm", "gemv", "dual_gemm", "splitk"), _PRODUCTS),
    **dict.fromkeys(("int8", "fp8", "quantize", "dynq", "i8f16", "i8xf16"), _QUANTISED),
    **dict.fromkeys(("red", "reduce", "reduction"), _REDUCTIONS),
    "gelu": "Gelu Erf Tanh FastGelu",
    "silu": "Sigmoid Swish",
    "sigmoid": "Sigmoid Swish HardSigmoid",
    "layer_norm": "LayerNormalization ReduceMean",
    "group_norm": "GroupNormalization InstanceNormalization",
    "inst_norm": "InstanceNormalization",
    "topk": "TopK",
    "scatter_nd": "ScatterND",
    "iota": "Range",
    "random": "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial",
    "grid_sample": "GridSample",
    "global_average_pooling": "GlobalAveragePool",
    "pool": "MaxPool AveragePool GlobalAveragePool GlobalMaxPool",
    "concat": "Concat",
    "slice": "Slice Split",
    "split": "Split",
    **dict.fromkeys(("transpose", "xpos"), "Transpose"),
    "reshape": "Reshape Flatten Squeeze Unsqueeze",
    "pow": "Pow",
    "fp_div": "Div Reciprocal",
    "sub": "Sub",
}
"""Words of a knob's name → operator types that it is about: any of them, `+` joins those that must all be there."""


def factors(flips: Iterable[Flip], operators: Collection[str]) -> dict[Flip, float]:
    """Flip → RAISED or LOWERED, for flips whose knob names what it is about; none where no operators are known.

    `operators`: types in the model, without their domains. A knob that is about several things needs all of them.
    """
    if not operators:
        return {}
    has = {word: any(set(one.split("+")) <= set(operators) for one in about.split()) for word, about in _ABOUT.items()}
    found = {}
    for flip in flips:
        name = f"_{flip.dimension.lstrip('-').replace(':', '_')}_"
        if flip.dimension.startswith("-") and (words := [word for word in has if f"_{word}_" in name]):
            found[flip] = RAISED if all(has[word] for word in words) else LOWERED
    return found
