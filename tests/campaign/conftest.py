"""A tiny real model, and a run over it that takes seconds."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from rig.tiny import write_tiny_model

from tuner_job.api.child import MeasureSettings
from tuner_job.api.inputs import AccuracyInput, RunInputs, RuntimeIdentity, SearchInput, VariantInput
from tuner_job.model.digest import digest


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """y = relu(x W) V, float32 [1, 32] → [1, 8]."""
    return write_tiny_model(tmp_path / "tiny.onnx")


@pytest.fixture
def tiny_inputs(tiny_model: Path) -> RunInputs:
    """Four candidates over two knobs, short sessions."""
    return RunInputs(
        runtime=RuntimeIdentity(family="ONNXRuntime", version=importlib.metadata.version("onnxruntime")),
        variants=(VariantInput(uri=tiny_model.as_uri(), digest=digest(tiny_model)),),
        min_improvement=0.01,
        measure=MeasureSettings(
            sessions=2, session_seconds=0.005, session_samples=5, warmup_seconds=0.01, warmup_limit_seconds=0.1
        ),
        accuracy=AccuracyInput(source="Generated", samples=2, metric="l1", threshold=1e-3, screening_threshold=4e-3),
        search=SearchInput(
            strategy="Expression",
            expression="-session:memory_pattern=[on|off] -session:cpu_arena=[on|off]",
            max_trials=8,
            device_seconds=3600.0,  # with a budget the final keeps to its share: five builds against ten
        ),
    )
