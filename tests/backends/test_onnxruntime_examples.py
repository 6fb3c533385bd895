"""Every example names a model that is there, shapes that fit it and knobs that the backend has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner_job.api.child import ShapeCase
from tuner_job.api.documents import load_documents
from tuner_job.api.measurement import Candidate
from tuner_job.backends.onnxruntime import OnnxRuntimeBackend
from tuner_job.backends.protocol import BuildOrder
from tuner_job.model.fetch import fetch
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.routes.select import require_search, select

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def test_there_are_examples():
    assert {"magika.yaml", "silero-vad.yaml", "ocr-detector.yaml", "ocr-classifier.yaml"} <= {path.name for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_can_be_tuned_here(path, tmp_path):
    (job,) = load_documents(path.read_text(), path.name).jobs
    assert job.name == path.stem
    backend = OnnxRuntimeBackend("CPU")
    knobs = job.spec.search.knobs
    chosen = select(parse_knob_list(backend.knob_list()), knobs.include, knobs.exclude, knobs.values)
    require_search(chosen, {}, ["default"])
    assert len(chosen) >= 3
    model = fetch(job.spec.model.uri, tmp_path, base=path.parent)
    shapes = job.spec.model.shapes
    cases = [ShapeCase(name=shape.name, tensors={key: value.opt for key, value in shape.tensors.items()}) for shape in shapes]
    assert backend.build(BuildOrder(model, cases or [ShapeCase(name="static")], Candidate(), tmp_path / "engine"))
