"""Values to try for knobs whose list in TensorRT names none: an `int` has no end, so somebody has to choose.

They come from the knobs' own help texts (TensorRT 11.2.1.2, tuner 2.20.51). Where a text names no values, they are ours and the
reason says so; the builder refuses or ignores what it does not have. Nothing here is searched unless a user asks for the knob
(routes.select).
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner_job.routes.knobs import Knob


@dataclass(frozen=True, slots=True)
class Curated:
    """What to try beside the default."""

    values: tuple[str, ...]
    reason: str
    """The words of the help text, and where the values come from if not from it."""
    from_help: bool = True
    """Whether the help text names every value."""


_STEPS = "0: auto. The text names no other; these are steps for which NVIDIA's open fmha_v2 kernels are generated."

CURATED: dict[str, Curated] = {
    "-peep:max": Curated(("1", "2"), "0: compiler decides, 1: no peep, 2+: maximum fusion value."),
    "-kgen:red_epilog_fusion:lvl": Curated(("1", "2"), "1: pw fusion, 2: pw/reshape fusion."),
    "-cask_fusion:num_tactics": Curated(
        ("10", "40", "80"),
        "Total number of tactics to autotune. The text names no values; half, twice and four times the default of 20.",
        from_help=False,
    ),
    "-kgen:reduction_algo": Curated(("0", "1", "2", "4"), "0: auto, 1: warp reduce, 2: block reduce, 4: tile reduce."),
    "-kgen:topk_algo": Curated(("0", "16", "32", "64"), "0: auto, 16: reduction, 32: sort, 64: multi-cta reduction."),
    "-mha_fusion:v2:bmm1_acc": Curated(("0", "1", "2"), "FMHA BMM1 accumulation type. 0: auto, 1: FP16, 2: FP32."),
    "-mha_fusion:v2:bmm2_acc": Curated(("0", "1", "2"), "FMHA BMM2 accumulation type. 0: auto, 1: FP16, 2: FP32."),
    "-mha_fusion:v2:compute_groups": Curated(("0", "1", "2"), "0: auto, 1 or 2: user specified."),
    "-mha_fusion:v2:mutex": Curated(("0", "1", "2"), "0: auto, 1: use, 2: don't use."),
    "-mha_fusion:v2:war": Curated(("0", "1", "2"), "0: auto, 1: apply, 2: don't apply."),
    "-mha_fusion:v2:noloop_step": Curated(("16", "32", "64"), _STEPS, from_help=False),
    "-mha_fusion:v2:kv_loop_step": Curated(("32", "64", "128", "256"), _STEPS, from_help=False),
    "-mha_fusion:v2:q_loop_step": Curated(("64", "128"), _STEPS, from_help=False),
    "-mha_fusion:v2:ws:grid_strategy": Curated(
        ("0", "1", "2", "3"), "0: auto, 1: max work items, 2: fewer blocks, 3: size-based selection."
    ),
}
"""By knob. A default may be among the values: the search leaves it out, and another version's default may be another."""


def curated_values(knob: Knob) -> tuple[str, ...]:
    """What to try of an unbounded knob, as far as this version's knob accepts it; a bounded one lists its own."""
    if knob.values is not None or knob.name not in CURATED:
        return ()
    return tuple(value for value in CURATED[knob.name].values if value != knob.default and knob.accepts(value))
