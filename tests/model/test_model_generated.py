"""Generated inputs on real models: they run, and where their outputs cannot tell engines apart, that is said."""

from __future__ import annotations

import onnxruntime
import pytest
from model_files import classifier, detector, magika, silero

from tuner_job.accuracy.generate import generate_inputs
from tuner_job.accuracy.losses import compare
from tuner_job.accuracy.references import Sample, save
from tuner_job.accuracy.weakness import warnings
from tuner_job.api.child import ShapeCase
from tuner_job.model.inspect import inspect
from tuner_job.model.shapes import resolve_cases


@pytest.mark.parametrize(
    ("path", "shapes", "weak"),
    [
        (magika, {"bytes": (2, 2048)}, False),
        (classifier, {"x": (1, 3, 48, 192)}, False),
        (silero, {"input": (1, 576), "state": (2, 1, 128)}, False),
        (detector, {"x": (1, 3, 64, 96)}, True),  # sees no text in noise and answers zero throughout
    ],
)
def test_real_models_run_on_generated_inputs(tmp_path, path, shapes, weak):
    info = inspect(path())
    (case,) = resolve_cases(info, (ShapeCase(name="c", tensors=shapes),))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path(), options, providers=["CPUExecutionProvider"])
    names = [spec.name for spec in info.outputs]

    def run(inputs):
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    samples = []
    for index in range(3):
        inputs = generate_inputs(info.inputs, case, index, seed=1)
        samples.append(Sample("c", str(index), inputs, run(inputs)))
    references = save(tmp_path / "references", samples)
    losses = compare(references, lambda sample: run(sample.inputs), atol=1e-5, rtol=1e-5)
    assert losses.problems == ()
    assert all(loss.l_inf < 1e-5 for loss in losses.outputs)
    found = warnings(references, metric="lInf", threshold=1e-4)
    assert any("always answers the mean" in line for line in found) == weak, found
