"""Shape cases against the model: what does not fit ends here, before anything is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches

from tuner_job.api.base import InputError
from tuner_job.api.child import ShapeCase
from tuner_job.api.tensors import TensorSpec
from tuner_job.model.inspect import ModelInfo

DEFAULT_CASE = "default"

_Shapes = dict[str, tuple[int, ...]]


def resolve_cases(info: ModelInfo, cases: tuple[ShapeCase, ...]) -> tuple[ShapeCase, ...]:
    """The cases with a shape for every input of the model, and a range for every dynamic one.

    Inputs whose shape the model fixes may be left out. A missing minimum or maximum is the case's own shape. Without cases a
    static model has one, `default`. Raises InputError, naming case, input and axis, for what does not fit.
    """
    if not cases:
        if dynamic := info.dynamic_inputs:
            raise InputError(f"model.shapes: empty, but the model's shapes are open: {_specs(dynamic)}; give each a shape")
        cases = (ShapeCase(name=DEFAULT_CASE),)
    names = [case.name for case in cases]
    for name in names:
        if not name or names.count(name) > 1:
            raise InputError(f"model.shapes[{name}]: {'given twice' if name else 'has no name'}; names tell the cases apart")
    return tuple(_resolve(info, case) for case in cases)


def _resolve(info: ModelInfo, case: ShapeCase) -> ShapeCase:
    where = f"model.shapes[{case.name}]"
    if not math.isfinite(case.weight) or case.weight <= 0:
        raise InputError(f"{where}.weight: {case.weight} is not a positive number")
    for given in (case.tensors, case.minimum, case.maximum):
        _check_names(info, given, where)
    opt = {spec.name: _shape(spec, case.tensors.get(spec.name, spec.static_shape), where, "opt") for spec in info.inputs}
    low, high = _range(info, case.minimum, opt, where, "min"), _range(info, case.maximum, opt, where, "max")
    for spec in info.inputs:
        _check_order(spec, opt[spec.name], low.get(spec.name), high.get(spec.name), where)
    for shapes, which in ((opt, "opt"), (low, "min"), (high, "max")):
        _check_shared_axes(info, shapes, where, which)
    return ShapeCase(name=case.name, tensors=opt, minimum=low, maximum=high, weight=case.weight)


def _check_names(info: ModelInfo, given: Mapping[str, object], where: str) -> None:
    known = [spec.name for spec in info.inputs]
    for name in given:
        if name in info.weights_as_inputs:
            raise InputError(f"{where}: {name!r} is a weight of the model, not an input; the inputs are {_specs(info.inputs)}")
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise InputError(f"{where}: the model has no input {name!r}{hint}; its inputs are {_specs(info.inputs)}")


def _range(info: ModelInfo, given: Mapping[str, tuple[int, ...]], opt: _Shapes, where: str, which: str) -> _Shapes:
    """The bound of every dynamic input, and of what else was given (to be checked; fixed shapes are then left out)."""
    for spec in info.inputs:
        if spec.name in given:
            _shape(spec, given[spec.name], where, which)
    return {spec.name: tuple(given.get(spec.name, opt[spec.name])) for spec in info.dynamic_inputs}


def _shape(spec: TensorSpec, shape: tuple[int, ...] | None, where: str, which: str) -> tuple[int, ...]:
    """A shape that fits the model's declaration. Raises InputError."""
    field = f"{where}.tensors[{spec.name}].{which}"
    if shape is None:
        raise InputError(f"{field}: missing; the model leaves the shape of this input open: {spec}")
    if spec.dims is not None and len(shape) != len(spec.dims):
        raise InputError(f"{field}: {list(shape)} has {len(shape)} axes; the model has {len(spec.dims)}: {spec}")
    for axis, size in enumerate(shape):
        if size < 1:
            raise InputError(f"{field}: {list(shape)} has the size {size} at axis {axis}; sizes are at least 1")
        fixed = spec.dims[axis] if spec.dims is not None else None
        if isinstance(fixed, int) and fixed != size:
            raise InputError(f"{field}: {list(shape)} has {size} at axis {axis}, which the model fixes at {fixed}: {spec}")
    return tuple(shape)


def _check_order(
    spec: TensorSpec, opt: tuple[int, ...], low: tuple[int, ...] | None, high: tuple[int, ...] | None, where: str
) -> None:
    if low is None or high is None:
        return
    if not len(low) == len(opt) == len(high):
        raise InputError(f"{where}.tensors[{spec.name}]: min {list(low)}, opt {list(opt)} and max {list(high)} differ in rank")
    for axis, (a, b, c) in enumerate(zip(low, opt, high, strict=True)):
        if not a <= b <= c:
            raise InputError(f"{where}.tensors[{spec.name}]: axis {axis} has min {a}, opt {b}, max {c}; they must not fall")


def _check_shared_axes(info: ModelInfo, shapes: _Shapes, where: str, which: str) -> None:
    """Axes of one name are one axis: all inputs must agree on its size."""
    seen: dict[str, tuple[int, str]] = {}
    for spec in info.inputs:
        for name, size in zip(spec.dims or (), shapes.get(spec.name, ()), strict=False):
            if not isinstance(name, str):
                continue
            first, by = seen.setdefault(name, (size, spec.name))
            if first != size:
                raise InputError(
                    f"{where}: the axis {name!r} is {first} in {by} ({which}) but {size} in {spec.name}; to the model it is one"
                )


def _specs(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{spec.name} {spec}" for spec in specs) or "none"
