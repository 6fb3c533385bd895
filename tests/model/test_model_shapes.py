"""Shape cases against models."""

from __future__ import annotations

import math

import pytest
from model_files import detector, magika, model, save, silero, value

from tuner_job.api.base import InputError
from tuner_job.api.child import ShapeCase
from tuner_job.model.inspect import inspect
from tuner_job.model.shapes import resolve_cases


@pytest.fixture
def two(tmp_path):
    """Inputs `ids` and `mask` that share the axes batch and sequence, and a static `table`."""
    inputs = [value("ids", ["batch", "sequence"]), value("mask", ["batch", "sequence"]), value("table", [2, 5])]
    return inspect(save(model(inputs=inputs), tmp_path / "m.onnx"))


def case(name="c", weight=1.0, minimum=None, maximum=None, **tensors) -> ShapeCase:
    return ShapeCase(name=name, tensors=tensors, minimum=minimum or {}, maximum=maximum or {}, weight=weight)


def test_a_static_model_has_one_case_of_its_own(tmp_path):
    info = inspect(save(model(inputs=[value("x", [1, 3]), value("s", [])]), tmp_path / "m.onnx"))
    assert resolve_cases(info, ()) == (ShapeCase(name="default", tensors={"x": (1, 3), "s": ()}),)
    named = resolve_cases(info, (ShapeCase(name="mine", weight=2.0),))
    assert named == (ShapeCase(name="mine", tensors={"x": (1, 3), "s": ()}, weight=2.0),)


def test_cases_are_completed_and_ranges_kept(two):
    given = case(
        ids=(2, 8), mask=(2, 8), minimum={"ids": (1, 1), "mask": (1, 1)}, maximum={"ids": (4, 16), "mask": (4, 16)}, weight=0.5
    )
    (resolved,) = resolve_cases(two, (given,))
    assert resolved.tensors == {"ids": (2, 8), "mask": (2, 8), "table": (2, 5)}
    assert resolved.minimum == {"ids": (1, 1), "mask": (1, 1)}
    assert resolved.maximum == {"ids": (4, 16), "mask": (4, 16)}
    assert resolved.weight == 0.5


def test_a_missing_range_is_the_shape_itself(two):
    (resolved,) = resolve_cases(two, (case(ids=(2, 8), mask=(2, 8)),))
    assert resolved.minimum == resolved.maximum == {"ids": (2, 8), "mask": (2, 8)}


def test_resolving_twice_changes_nothing(two):
    once = resolve_cases(two, (case("a", ids=(2, 8), mask=(2, 8)), case("b", ids=(1, 3), mask=(1, 3))))
    assert resolve_cases(two, once) == once


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (case(ids=(2, 8)), r"tensors\[mask\].opt: missing.*float32 \[batch, sequence\]"),
        (case(ids=(2, 8), maks=(2, 8)), r"no input 'maks' \(did you mean 'mask'\?\).*ids float32 \[batch, sequence\], mask"),
        (case(ids=(2, 8), mask=(2, 8), minimum={"isd": (1, 1)}), "no input 'isd'"),
        (case(ids=(2, 8, 1), mask=(2, 8)), r"tensors\[ids\].opt: \[2, 8, 1\] has 3 axes; the model has 2"),
        (case(ids=(2, 8), mask=(2, 8), maximum={"mask": (9,)}), r"tensors\[mask\].max: \[9\] has 1 axes"),
        (case(ids=(0, 8), mask=(0, 8)), r"size 0 at axis 0"),
        (case(ids=(2, -1), mask=(2, 8)), r"size -1 at axis 1"),
        (
            case(ids=(2, 8), mask=(2, 8), table=(2, 6)),
            r"tensors\[table\].opt: \[2, 6\] has 6 at axis 1, which the model fixes at 5",
        ),
        (case(ids=(2, 8), mask=(2, 8), maximum={"table": (4, 5)}), r"tensors\[table\].max: \[4, 5\] has 4 at axis 0.*fixes at 2"),
        (case(ids=(2, 8), mask=(2, 8), maximum={"ids": (2, 7)}), r"tensors\[ids\]: axis 1 has min 8, opt 8, max 7"),
        (case(ids=(2, 8), mask=(2, 8), minimum={"ids": (3, 8)}), r"axis 0 has min 3, opt 2"),
        (case(ids=(2, 8), mask=(2, 9)), r"axis 'sequence' is 8 in ids \(opt\) but 9 in mask"),
        (case(ids=(2, 8), mask=(2, 8), maximum={"ids": (4, 8)}), r"axis 'batch' is 4 in ids \(max\) but 2 in mask"),
        (case(ids=(2, 8), mask=(2, 8), minimum={"ids": (1, 8)}), r"axis 'batch' is 1 in ids \(min\) but 2 in mask"),
        (case(ids=(2, 8), mask=(2, 8), weight=0.0), "weight: 0.0"),
        (case("", ids=(2, 8), mask=(2, 8)), "has no name"),
    ],
)
def test_what_does_not_fit_is_one_line_that_says_where(two, given, says):
    with pytest.raises(InputError, match=says) as error:
        resolve_cases(two, (given,))
    assert "\n" not in str(error.value)


def test_infinite_weights_and_equal_names_are_refused(two):
    good = case(ids=(2, 8), mask=(2, 8))
    with pytest.raises(InputError, match="given twice"):
        resolve_cases(two, (good, good))
    with pytest.raises(InputError, match="weight"):
        resolve_cases(two, (ShapeCase.model_construct(**{**vars(good), "weight": math.inf}),))


def test_dynamic_axes_without_a_case_are_listed(two):
    with pytest.raises(InputError, match=r"ids float32 \[batch, sequence\], mask float32 \[batch, sequence\]") as error:
        resolve_cases(two, ())
    assert "table" not in str(error.value)


def test_weights_are_not_inputs_to_give_shapes_for(tmp_path):
    import numpy as np
    import onnx

    proto = model(
        inputs=[value("w", [2]), value("x", ["n", 3])],
        initializers=[onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")],
        ir_version=3,
    )
    info = inspect(save(proto, tmp_path / "m.onnx"))
    assert resolve_cases(info, (case(x=(1, 3)),))[0].tensors == {"x": (1, 3)}
    with pytest.raises(InputError, match="'w' is a weight"):
        resolve_cases(info, (case(x=(1, 3), w=(2,)),))


def test_axes_without_a_name_are_not_shared(tmp_path):
    info = inspect(save(model(inputs=[value("a", ["?", "-1"]), value("b", ["?", "-1"])]), tmp_path / "m.onnx"))
    assert resolve_cases(info, (case(a=(1, 2), b=(3, 4)),))


def test_one_name_twice_in_one_input_is_one_axis(tmp_path):
    info = inspect(save(model(inputs=[value("x", ["n", "n"])]), tmp_path / "m.onnx"))
    with pytest.raises(InputError, match="axis 'n' is 2 in x"):
        resolve_cases(info, (case(x=(2, 3)),))


@pytest.mark.parametrize("name", ["onnx::Conv_1", "input:0", "a,b", "x y", "../x", "é", "n" * 300])
def test_shapes_are_keyed_by_any_name(tmp_path, name):
    info = inspect(save(model(inputs=[value(name, ["batch size", 3])]), tmp_path / "m.onnx"))
    assert resolve_cases(info, (case(**{name: (7, 3)}),))[0].tensors == {name: (7, 3)}


def test_an_input_of_unknown_rank_takes_any_shape_but_one_rank(tmp_path):
    info = inspect(save(model(inputs=[value("x", None)]), tmp_path / "m.onnx"))
    assert resolve_cases(info, (case(x=(1, 2, 3)),))
    with pytest.raises(InputError, match="differ in rank"):
        resolve_cases(info, (case(x=(1, 2, 3), maximum={"x": (4, 4)}),))


def test_real_models():
    assert resolve_cases(inspect(magika()), (case(bytes=(8, 2048)),))
    assert resolve_cases(inspect(detector()), (case(x=(1, 3, 320, 320), maximum={"x": (1, 3, 640, 640)}),))
    (resolved,) = resolve_cases(inspect(silero()), (case(input=(1, 512), state=(2, 1, 128)),))
    assert resolved.tensors["sr"] == ()
    with pytest.raises(InputError, match="fixes at 2048"):
        resolve_cases(inspect(magika()), (case(bytes=(8, 1024)),))
