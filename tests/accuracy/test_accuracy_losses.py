"""Losses against a slow, straightforward implementation, and what can never pass."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tuner_job.accuracy import losses as losses_module
from tuner_job.accuracy.losses import Comparison, compare, tensor_loss
from tuner_job.accuracy.references import References, Sample, save
from tuner_job.api.base import InputError
from tuner_job.api.measurement import Losses

DTYPES = ["float16", "float32", "float64", "bfloat16", "int8", "int32", "int64", "uint8", "bool"]


def slow_losses(actual, reference, atol, rtol):
    """trtexec's definitions, element by element."""
    pairs = [(float(a), float(r)) for a, r in zip(actual.ravel(), reference.ravel(), strict=True)]
    if not pairs:
        return [0.0] * 5
    differences = [abs(a - r) for a, r in pairs]
    l0 = sum(d > atol + rtol * abs(r) for d, (_, r) in zip(differences, pairs, strict=True)) / len(pairs)
    l1 = math.fsum(differences) / len(pairs)
    l2 = math.fsum(d * d for d in differences) / len(pairs)
    a_norm = math.sqrt(math.fsum(a * a for a, _ in pairs))
    r_norm = math.sqrt(math.fsum(r * r for _, r in pairs))
    if r_norm < 1e-12:
        cosine = 0.0 if a_norm < 1e-12 or max(abs(a) for a, _ in pairs) <= atol else 1.0
    elif a_norm < 1e-12:
        cosine = 1.0
    else:
        cosine = 1.0 - math.fsum(a * r for a, r in pairs) / a_norm / r_norm
    return [l0, l1, l2, max(differences), cosine]


@st.composite
def tensor_pairs(draw):
    name = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    numbers = st.integers(0, 1) if name == "bool" else st.integers(0, 100) if name == "uint8" else st.integers(-100, 100)
    scale = draw(st.sampled_from([1.0, 0.01])) if "float" in name else 1
    make = hnp.arrays(np.int64, shape, elements=numbers)
    return tuple((draw(make) * scale).astype(np.dtype(name)) for _ in range(2))


@given(tensor_pairs(), st.sampled_from([0.0, 1e-5, 0.5]), st.sampled_from([0.0, 1e-5, 0.1]))
def test_losses_equal_the_slow_definitions(pair, atol, rtol):
    loss = tensor_loss(*pair, atol=atol, rtol=rtol)
    found = [loss.l0, loss.l1, loss.l2, loss.l_inf, loss.cosine]
    assert found == pytest.approx(slow_losses(*pair, atol, rtol), rel=1e-9, abs=1e-12)


@given(tensor_pairs())
def test_identical_tensors_have_no_loss(pair):
    loss = tensor_loss(pair[0], pair[0], atol=0.0, rtol=0.0)
    assert (loss.l0, loss.l1, loss.l2, loss.l_inf) == (0.0, 0.0, 0.0, 0.0)
    assert loss.cosine == pytest.approx(0.0, abs=1e-12)


def test_chunks_do_not_change_the_losses(monkeypatch):
    rng = np.random.default_rng(1)
    actual, reference = rng.standard_normal((2, 7, 31, 3)).astype(np.float32)
    whole = tensor_loss(actual, reference, atol=0.1, rtol=0.1)
    monkeypatch.setattr(losses_module, "_CHUNK", 10)
    parts = tensor_loss(actual, reference, atol=0.1, rtol=0.1)
    assert vars(parts) == pytest.approx(vars(whole), rel=1e-12)


def test_definitions_on_a_worked_example():
    loss = tensor_loss(np.array([1.0, 2.5, -4.0]), np.array([1.0, 2.0, -2.0]), atol=0.0, rtol=0.5)
    assert (loss.l0, loss.l1, loss.l2, loss.l_inf) == pytest.approx((1 / 3, 2.5 / 3, 4.25 / 3, 2.0))


@pytest.mark.parametrize(
    ("engine", "reference", "cosine"),
    [
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([1e-6, -1e-6], [0.0, 0.0], 0.0),  # noise within atol
        ([1e-3, 0.0], [0.0, 0.0], 1.0),
        ([1e9, 1e9], [0.0, 0.0], 1.0),
        ([0.0, 0.0], [1.0, 2.0], 1.0),
        ([-3.0], [3.0], 2.0),
    ],
)
def test_cosine_of_zero_vectors_follows_an_absolute_rule(engine, reference, cosine):
    assert tensor_loss(np.array(engine), np.array(reference), atol=1e-5, rtol=0.0).cosine == pytest.approx(cosine)


def test_integers_beyond_double_precision_still_differ():
    reference = np.array([2**60, 2**40, 5], np.int64)
    assert tensor_loss(reference + np.array([1, 0, 0]), reference, atol=0.5, rtol=0.0).l_inf == 1.0
    clamped = np.minimum(reference, 2**31 - 1)
    assert tensor_loss(clamped, reference, atol=0.0, rtol=0.0).l0 == pytest.approx(2 / 3)


def test_unsigned_differences_do_not_wrap():
    assert tensor_loss(np.array([0], np.uint8), np.array([255], np.uint8), atol=0.0, rtol=0.0).l_inf == 255.0


# --- Comparison -------------------------------------------------------------------------------------------------


def make(tmp_path: Path, outputs: list[dict[str, np.ndarray]], case: str = "a") -> References:
    samples = [Sample(case, f"s{i}", {"x": np.full(2, i, np.float32)}, output) for i, output in enumerate(outputs)]
    return save(tmp_path / "references", samples)


def run(references: References, change, **settings) -> Losses:
    return compare(
        references, lambda sample: change({k: v.copy() for k, v in sample.outputs.items()}), atol=0, rtol=0, **settings
    )


def varied(count: int, names=("y",)) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{name: rng.standard_normal((3, 4)).astype(np.float32) for name in names} for _ in range(count)]


def test_identical_outputs_have_zero_loss_and_no_problem(tmp_path):
    losses = run(make(tmp_path, varied(1)), lambda o: o)
    assert losses.problems == ()
    assert losses.samples == 1
    assert losses.outputs[0].l_inf == 0.0
    assert losses.outputs[0].worst_sample == "a/s0"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 32), st.permutations(range(5)), st.sampled_from(["l0", "l1", "l2", "lInf", "cosine"]))
def test_losses_are_the_worst_over_samples_in_any_order(tmp_path_factory, seed, order, metric):
    references = make(tmp_path_factory.mktemp("worst"), varied(5))
    noise = np.random.default_rng(seed).standard_normal((5, 3, 4)).astype(np.float32)
    samples = list(references)
    comparison = Comparison(references, atol=0.5, rtol=0.0, metric=metric)
    for index in order:
        comparison.add(samples[index], {"y": samples[index].outputs["y"] + noise[index]})
    (found,) = comparison.losses().outputs
    each = [tensor_loss(s.outputs["y"] + n, s.outputs["y"], atol=0.5, rtol=0.0) for s, n in zip(samples, noise, strict=True)]
    for field in ("l0", "l1", "l2", "l_inf", "cosine"):
        assert getattr(found, field) == max(getattr(loss, field) for loss in each)
    assert each[int(found.worst_sample[-1])].of(metric) == max(loss.of(metric) for loss in each)


def test_worst_sample_is_reported_per_output_and_every_sample_counts(tmp_path):
    references = make(tmp_path, varied(100, ("y", "z")))
    calls = iter(range(100))

    def engine(outputs):
        if next(calls) == 99:
            outputs["y"][0, 0] += 5
        return outputs

    losses = run(references, engine, metric="lInf")
    y, z = losses.outputs
    assert losses.samples == 100
    assert (y.worst_sample, y.l_inf, z.l_inf) == ("a/s99", pytest.approx(5.0), 0.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("last", [False, True])
def test_one_bad_element_in_one_sample_is_a_problem_that_names_it(tmp_path, bad, last):
    references = make(tmp_path, varied(10, ("y", "z")))
    calls = iter(range(10))

    def engine(outputs):
        if next(calls) == (9 if last else 0):
            outputs["z"][1, 2] = bad
        return outputs

    losses = run(references, engine)
    assert len(losses.problems) == 1
    assert f"output z, sample a/s{9 if last else 0}" in losses.problems[0]
    assert "[1, 2]" in losses.problems[0]


def test_all_nan_is_a_problem_for_every_sample_up_to_the_bound(tmp_path):
    losses = run(make(tmp_path, varied(30)), lambda o: {"y": np.full_like(o["y"], np.nan)})
    assert len(losses.problems) == 20
    assert losses.outputs == ()
    assert Losses.from_json(losses.to_json()) == losses


def test_matching_infinities_are_equal_and_misplaced_ones_are_not(tmp_path):
    references = make(tmp_path, [{"y": np.array([1.0, -np.inf, np.inf], np.float32)}])
    assert run(references, lambda o: o).outputs[0].cosine == 0.0
    assert run(references, lambda o: o).problems == ()
    assert run(references, lambda o: {"y": np.array([1.0, np.inf, np.inf], np.float32)}).problems
    assert run(references, lambda o: {"y": np.array([1.0, 0.0, np.inf], np.float32)}).problems


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda o: {"y": o["y"].astype(np.float64)}, "float64 where the reference has float32"),
        (lambda o: {"y": o["y"].reshape(4, 3)}, "shape [4, 3] where the reference has [3, 4]"),
        (lambda o: {}, "output y: missing"),
        (lambda o: {**o, "extra": o["y"]}, "output extra: has no reference"),
        (lambda o: {"y": np.full((3, 4), "text")}, "element type str"),
    ],
)
def test_wrong_type_shape_or_coverage_is_a_problem(tmp_path, change, says):
    assert says in run(make(tmp_path, varied(2)), change).problems[0]


def test_chosen_outputs_alone_are_checked(tmp_path):
    references = make(tmp_path, varied(2, ("y", "z")))
    losses = run(references, lambda o: {"y": o["y"], "z": o["z"] * np.nan, "debug": o["y"]}, outputs=("y",))
    assert losses.problems == ()
    assert [loss.output for loss in losses.outputs] == ["y"]
    with pytest.raises(InputError, match="no output 'w'"):
        run(references, lambda o: o, outputs=("w",))


def test_samples_that_were_never_compared_are_a_problem(tmp_path):
    references = make(tmp_path, varied(3))
    comparison = Comparison(references, atol=0, rtol=0)
    for sample in list(references)[:2]:
        comparison.add(sample, sample.outputs)
    assert comparison.losses().problems == ("only 2 of 3 samples were compared; a/s2 was not",)


def test_cases_and_samples_whose_joined_names_are_equal_are_told_apart(tmp_path):
    y = {"y": np.ones(2, np.float32)}
    references = save(tmp_path / "r", [Sample("a/b", "c", {}, y), Sample("a", "b/c", {}, y)])
    comparison = Comparison(references, atol=0, rtol=0)
    comparison.add(next(iter(references)), y)
    assert comparison.losses().problems


def test_empty_outputs_are_values_and_another_number_of_boxes_is_a_shape_problem(tmp_path):
    boxes = [{"y": np.zeros((count, 6), np.float32)} for count in (0, 1, 100)]
    references = make(tmp_path, boxes)
    assert run(references, lambda o: o).problems == ()
    problem = run(references, lambda o: {"y": o["y"][:0]}).problems[0]
    assert "shape [0, 6] where the reference has [1, 6]" in problem


def test_overflow_of_a_loss_is_a_problem_not_an_infinity(tmp_path):
    references = make(tmp_path, [{"y": np.array([1e300, 1.0])}])
    losses = run(references, lambda o: {"y": -o["y"]})
    assert "not a finite number" in losses.problems[0]


def test_small_floats_are_compared(tmp_path):
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        references = save(tmp_path / np.dtype(dtype).name, [Sample("a", "s", {}, {"y": np.array([1, 2], dtype)})])
        assert run(references, lambda o: {"y": o["y"] * o["y"]}).outputs[0].l_inf == 2.0
        assert run(references, lambda o, dtype=dtype: {"y": np.array([np.nan, 2], dtype)}).problems


@pytest.mark.parametrize("tolerances", [(-1e-5, 0.0), (0.0, math.nan), (math.inf, 0.0)])
def test_tolerances_must_be_finite_and_not_negative(tmp_path, tolerances):
    with pytest.raises(InputError, match=r"accuracy\.[ar]tol"):
        Comparison(make(tmp_path, varied(1)), atol=tolerances[0], rtol=tolerances[1])
