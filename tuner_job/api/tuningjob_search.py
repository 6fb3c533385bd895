"""What a TuningJob tries, and how much of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tuner_job.api.resource import Distinct, Spec, Word, rule

Values = Annotated[dict[str, Annotated[tuple[Word, ...], Field(min_length=1, max_length=64)]], Field(max_length=256)]


class CustomStrategy(Spec):
    """A strategy that the worker image brings along."""

    entry_point: Word
    """Name of an entry point of group `trtfleet.strategies`; at most 128 characters."""


class Knobs(Spec):
    """Which knobs are searched. Unknown names and values are refused before any build."""

    include: Annotated[tuple[Word, ...], Distinct(most=256)] = ()
    """Names or globs (`-mha_fusion:*`); at most 256 of at most 128 characters; absent means all bounded knobs."""
    exclude: Annotated[tuple[Word, ...], Distinct(most=256)] = ()
    """Names or globs that are left at their defaults; at most 256 of at most 128 characters. It beats include."""
    values: Values = Field(default_factory=dict)
    """Values to try, by knob, instead of all that it allows; at most 256 knobs of 1 to 64 values. Quote `"on"`, `"off"` and
    numbers."""

    @rule(
        "!has(self.values) || self.values.all(k, size(k) >= 1 && size(k) <= 128)",
        "knob names have 1 to 128 characters",
        field_path=".values",
    )
    def _short_names(self) -> bool:
        return all(1 <= len(name) <= 128 for name in self.values)


class Builder(Spec):
    """Builder settings other than knobs that are searched as well."""

    settings: Values = Field(default_factory=dict)
    """Values to try, by setting (`optimizationLevel: ["3", "5"]`); at most 256 settings of 1 to 64 values."""

    @rule(
        "!has(self.settings) || self.settings.all(k, size(k) >= 1 && size(k) <= 128)",
        "setting names have 1 to 128 characters",
        field_path=".settings",
    )
    def _short_names(self) -> bool:
        return all(1 <= len(name) <= 128 for name in self.settings)


class Search(Spec):
    """How candidates are chosen: a strategy and, for some, its member."""

    strategy: Literal["Adaptive", "OneAtATime", "Mixed", "Full", "Expression", "Custom"]
    """Adaptive learns from results; OneAtATime flips single knobs; Mixed then combines the good ones; Full tries every
    combination; Expression follows `expression`; Custom is an entry point in the worker image."""
    expression: Annotated[str | None, Field(min_length=1, max_length=16_384)] = None
    """For strategy Expression, and only for it: routes in trtexec's tuning grammar; 1 to 16,384 characters."""
    custom: CustomStrategy | None = None
    """For strategy Custom, and only for it."""
    knobs: Knobs | None = None
    """Which knobs are searched; absent means all bounded ones. Not with Expression, which names its own."""
    builder: Builder | None = None
    """Builder settings that are searched as well."""
    options: Annotated[dict[str, Annotated[str, Field(max_length=256)]], Field(max_length=32)] = Field(default_factory=dict)
    """Options of the strategy, each as text (`cap: "256"`); at most 32, names of 1 to 128, values of at most 256 characters."""
    start_with: Annotated[tuple[Annotated[str, Field(min_length=3, max_length=8192)], ...], Distinct(most=64)] = ()
    """Routes to try before any other, such as the best of a trtexec tuning cache (`trtfleet import`); at most 64 of at most
    8,192 characters."""
    warm_start: Literal["Ledger", "None"] | None = None
    """Ledger: earlier results of the same identity are reused, and those of relatives (the model or another version of it,
    another GPU, another runtime) say where to look first. None: neither. Absent means Ledger."""

    @rule(
        "(self.strategy == 'Expression') == has(self.expression)",
        "strategy Expression goes with `expression`, and only it",
        field_path=".expression",
    )
    def _expression_for_expression(self) -> bool:
        return (self.strategy == "Expression") == (self.expression is not None)

    @rule(
        "(self.strategy == 'Custom') == has(self.custom)", "strategy Custom goes with `custom`, and only it", field_path=".custom"
    )
    def _custom_for_custom(self) -> bool:
        return (self.strategy == "Custom") == (self.custom is not None)

    @rule(
        "self.strategy != 'Expression' || !has(self.knobs)",
        "an expression names its own knobs; leave `knobs` out",
        field_path=".knobs",
    )
    def _expression_without_knobs(self) -> bool:
        return self.strategy != "Expression" or self.knobs is None

    @rule(
        "!has(self.options) || self.options.all(k, size(k) >= 1 && size(k) <= 128)",
        "option names have 1 to 128 characters",
        field_path=".options",
    )
    def _short_names(self) -> bool:
        return all(1 <= len(name) <= 128 for name in self.options)


class Budget(Spec):
    """What one run of one target may use."""

    gpu_seconds: Annotated[int | None, Field(ge=60, le=100_000_000)] = None
    """Device seconds over all workers (GPUs, or the CPU worker as a whole), 60 to 100,000,000; absent means no such limit.
    The final's share is reserved from it."""
    max_trials: Annotated[int | None, Field(ge=1, le=10_000)] = None
    """Trials, failures and rebuilds included, 1 to 10,000; absent means 64 on ONNXRuntime and 256 on TensorRT for Adaptive,
    10,000 for strategies that end by themselves."""
    trial_timeout_seconds: Annotated[int | None, Field(ge=10, le=86_400)] = None
    """A trial that takes longer is hung; 10 to 86,400 seconds; absent means 900."""
    active_deadline_seconds: Annotated[int | None, Field(ge=60, le=31_536_000)] = None
    """Exploring ends so long after the start and the final begins; 60 to 31,536,000 seconds; absent means never."""
