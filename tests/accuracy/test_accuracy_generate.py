"""Generated inputs."""

from __future__ import annotations

import numpy as np
import pytest

from tuner_job.accuracy.generate import generate_inputs, generation_notes
from tuner_job.api.base import InputError
from tuner_job.api.child import ShapeCase
from tuner_job.api.tensors import TensorSpec

CASE = ShapeCase(name="a", tensors={"image": (2, 3, 8, 8), "ids": (2, 100), "attention_mask": (2, 16), "token_type_ids": (2, 16)})
SPECS = [
    TensorSpec(name="image", dtype="float16", dims=("n", 3, "h", "w")),
    TensorSpec(name="ids", dtype="int64", dims=("n", None)),
    TensorSpec(name="attention_mask", dtype="int64", dims=("n", None)),
    TensorSpec(name="token_type_ids", dtype="int32", dims=("n", None)),
    TensorSpec(name="flag", dtype="bool", dims=(64,)),
    TensorSpec(name="pixels", dtype="uint8", dims=(1000,)),
    TensorSpec(name="scale", dtype="bfloat16", dims=()),
    TensorSpec(name="empty:../é", dtype="float32", dims=(4,)),
]


def test_types_and_shapes_follow_the_model_and_the_case():
    inputs = generate_inputs(SPECS, CASE, 0, 1)
    for spec in SPECS:
        assert inputs[spec.name].dtype.name == spec.dtype
        assert inputs[spec.name].shape == CASE.tensors.get(spec.name, spec.static_shape)
        assert np.isfinite(inputs[spec.name].astype(np.float64)).all()


def test_values_are_sensible():
    for index in range(6):
        inputs = generate_inputs(SPECS, CASE, index, 1)
        assert inputs["ids"].min() >= 0
        assert inputs["ids"].max() < 16
        assert set(np.unique(inputs["token_type_ids"])) <= {0, 1}
        mask = inputs["attention_mask"]
        assert mask[:, 0].all()
        assert (np.diff(mask, axis=1) <= 0).all()
        assert len(np.unique(inputs["flag"])) == 2
        assert inputs["pixels"].max() > 200
        assert 0.1 < inputs["image"].astype(np.float64).std() < 6


def test_the_seed_decides_and_samples_cases_and_names_differ():
    def image(**change):
        settings = {"case": CASE, "sample_index": 0, "seed": 1, **change}
        return generate_inputs(SPECS, **settings)["image"]

    assert np.array_equal(image(), image())
    others = [image(seed=2), image(sample_index=3), image(case=CASE.model_copy(update={"name": "b"}))]
    assert not any(np.array_equal(image(), other) for other in others)
    alone = generate_inputs([SPECS[0]], CASE, 0, 1)["image"]
    assert np.array_equal(image(), alone)


def test_open_shapes_and_unknown_types_are_refused():
    with pytest.raises(InputError, match="no shape for input ids"):
        generate_inputs([SPECS[1]], ShapeCase(name="empty"), 0, 0)
    with pytest.raises(InputError, match="string"):
        generate_inputs([TensorSpec(name="text", dtype="string", dims=(1,))], CASE, 0, 0)


def test_notes_name_the_integer_inputs():
    assert any("ids" in note for note in generation_notes(SPECS))
    assert len(generation_notes(SPECS[:1])) == 1
