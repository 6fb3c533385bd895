"""What a TuningJob tunes: the model, its variants, shapes and plugins."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tuner_job.api.resource import ContentDigest, Keyed, Name, PositiveDecimal, Spec, Uri, rule

Dimensions = Annotated[tuple[Annotated[int, Field(ge=1, le=2_147_483_647)], ...], Field(max_length=8)]
_EACH_DIMENSION = "[0, 1, 2, 3, 4, 5, 6, 7].all(i, i >= size(self.opt) || {})"


class Variant(Spec):
    """Another form of the model (FP16, quantised …) that competes under the same accuracy gate."""

    name: Name
    """At most 63 characters; `default` is `model.uri` itself."""
    uri: Uri
    """The ONNX file; at most 512 characters. External data lies beside it."""
    digest: ContentDigest | None = None
    """SHA-256 over the file and its external data; checked after fetching."""


class TensorShape(Spec):
    """Dimensions of one input."""

    opt: Dimensions
    """Dimensions that are checked and timed; at most 8, each from 1 to 2,147,483,647."""
    min: Dimensions | None = None
    """Smallest dimensions that the engine must accept, at most 8; absent means `opt`."""
    max: Dimensions | None = None
    """Largest dimensions that the engine must accept, at most 8; absent means `opt`."""

    @rule(
        "(!has(self.min) || size(self.min) == size(self.opt)) && (!has(self.max) || size(self.max) == size(self.opt))",
        "min, opt and max have the same number of dimensions",
    )
    def _same_rank(self) -> bool:
        return all(bound is None or len(bound) == len(self.opt) for bound in (self.min, self.max))

    @rule(
        f"!has(self.min) || size(self.min) != size(self.opt) || {_EACH_DIMENSION.format('self.min[i] <= self.opt[i]')}",
        "min is over opt in some dimension",
        field_path=".min",
    )
    def _min_below_opt(self) -> bool:
        return self.min is None or len(self.min) != len(self.opt) or all(a <= b for a, b in zip(self.min, self.opt, strict=True))

    @rule(
        f"!has(self.max) || size(self.max) != size(self.opt) || {_EACH_DIMENSION.format('self.opt[i] <= self.max[i]')}",
        "max is under opt in some dimension",
        field_path=".max",
    )
    def _opt_below_max(self) -> bool:
        return self.max is None or len(self.max) != len(self.opt) or all(a <= b for a, b in zip(self.opt, self.max, strict=True))


class Shape(Spec):
    """One set of input shapes under which every engine is checked and timed."""

    name: Name
    """At most 63 characters."""
    tensors: Annotated[dict[str, TensorShape], Field(min_length=1, max_length=32)]
    """Shape of each dynamic input, by input name; 1 to 32, names of 1 to 128 characters."""
    weight: PositiveDecimal | None = None
    """Weight in the objective, a decimal above 0; absent means `"1"`."""

    @rule("self.tensors.all(k, size(k) >= 1 && size(k) <= 128)", "input names have 1 to 128 characters", field_path=".tensors")
    def _short_names(self) -> bool:
        return all(1 <= len(name) <= 128 for name in self.tensors)


class Plugin(Spec):
    """A library of operators that the engine loads. It is executable code, so its digest is required."""

    uri: Uri
    """The shared library; at most 512 characters."""
    digest: ContentDigest
    """SHA-256 of the library; checked before it is loaded."""


class ModelSource(Spec):
    """What is tuned."""

    uri: Uri
    """The ONNX file; at most 512 characters. External data lies beside it."""
    digest: ContentDigest | None = None
    """SHA-256 over the file and its external data; checked after fetching. Without it a changed file starts no run by itself."""
    variants: Annotated[tuple[Variant, ...], Keyed(most=16)] = ()
    """Other forms of the model that compete with it; at most 16."""
    shapes: Annotated[tuple[Shape, ...], Keyed(most=16)] = ()
    """Shapes to tune for; at most 16. Needed if the model has dynamic axes."""
    plugins: Annotated[tuple[Plugin, ...], Keyed(most=16, key="uri")] = ()
    """Libraries of operators; at most 16."""

    @rule(
        "!has(self.variants) || self.variants.all(v, v.name != 'default')",
        "the name `default` is model.uri's own",
        field_path=".variants",
    )
    def _default_is_taken(self) -> bool:
        return all(variant.name != "default" for variant in self.variants)
