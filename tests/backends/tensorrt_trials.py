"""Trials of the TensorRT backend against the stand-in, by the real supervisor in real children."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from stand_in.stage import Stage

from tuner_job.accuracy.references import Sample, save
from tuner_job.api.child import ChildRequest, Limits, MeasureSettings, Phase, ShapeCase
from tuner_job.api.measurement import Candidate
from tuner_job.trial import processes
from tuner_job.trial.supervisor import Supervisor, TrialEnd

LIVE = "-slice_fusion=off"
"""A token that changes the engine wherever `SCRIPT` holds."""
DEAD = "-reshape_ppg=off"
"""One that does not."""
SCRIPT: dict[str, Any] = {"truth": {"effects": {LIVE: -0.2}}, "luck": 0, "noise": 0.1}
QUICK = MeasureSettings(sessions=2, session_seconds=0.001, session_samples=5, warmup_seconds=0.0, warmup_limit_seconds=0.2)
STATIC = ShapeCase(name="only", tensors={"x": (2, 16)}, minimum={"x": (2, 16)}, maximum={"x": (2, 16)})


def weights() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((16, 32)).astype(np.float32), rng.standard_normal((32, 8)).astype(np.float32)


def write_model(path: Path, *, batch: int | str = 2, extra: Sequence[tuple[str, int]] = (), foreign: bool = False) -> Path:
    """y = relu(x W) V, float32 [batch, 16] → [batch, 8].

    `extra` (name, type) are y cast to other types; `foreign` sends y through an operator that only a plugin has.
    """
    w, v = weights()
    last = "z" if foreign else "y"
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "v"], [last], name="second"),
    ]
    if foreign:
        nodes.append(helper.make_node("Polish", ["z"], ["y"], name="polish", domain="acme"))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 8])]
    for name, kind in extra:
        nodes.append(helper.make_node("Cast", ["y"], [name], name=f"cast_{name}", to=kind))
        outputs.append(helper.make_tensor_value_info(name, kind, [batch, 8]))
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 16])],
        outputs,
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(v, "v")],
    )
    imports = [helper.make_opsetid("", 19), *([helper.make_opsetid("acme", 1)] if foreign else [])]
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=imports), path)
    return path


def write_picking_model(path: Path) -> Path:
    """where = the indices of all of x that is not 0: float32 [2, 16] → int64 [2, found]."""
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["where"], name="pick")],
        "picking",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 16])],
        [helper.make_tensor_value_info("where", TensorProto.INT64, [2, "found"])],
    )
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 19)]), path)
    return path


def expected(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    w, v = weights()
    return np.maximum(x @ w, 0) @ v


def write_references(
    folder: Path, cases: Sequence[ShapeCase] = (STATIC,), casts: Mapping[str, Callable[[Any], Any]] | None = None
) -> Path:
    """Two samples per case."""

    def samples() -> Iterator[Sample]:
        for case in cases:
            for number in range(2):
                x = np.random.default_rng(number).standard_normal(case.tensors["x"]).astype(np.float32)
                y = expected(x)
                yield Sample(case.name, str(number), {"x": x}, {"y": y} | {name: cast(y) for name, cast in (casts or {}).items()})

    save(folder, samples())
    return folder


@dataclass
class Trials:
    """One stage and a supervisor whose children find it."""

    folder: Path
    stage: Stage
    supervisor: Supervisor
    limits: Limits
    defaults: dict[str, Any] = field(default_factory=dict)

    def script(self, script: Mapping[str, Any] | None = None, device: Sequence[str] = ()) -> None:
        """For the children from now on; on top of `SCRIPT`."""
        self.stage.write({**SCRIPT, **(script or {})}, device)

    def request(
        self, operation: str = "trial", *, route: str = "", settings: Mapping[str, str] | None = None, **fields: Any
    ) -> ChildRequest:
        candidate = Candidate(route=route, settings=dict(settings or {}))
        return ChildRequest.model_validate(
            {
                "operation": operation,
                "backend": "tensorrt",
                "device": "GPU",
                "cases": (STATIC,),
                "candidate": candidate,
                "measure": QUICK,
                "output": "",
                **self.defaults,
                **fields,
            }
        )

    def run(self, operation: str = "trial", *, limits: Limits | None = None, **fields: Any) -> TrialEnd:
        return self.supervisor.run(self.request(operation, **fields), limits or self.limits)

    def hurried(self, phase: Phase, seconds: float) -> Limits:
        """The same limits but for one phase's deadline."""
        return self.limits.model_copy(update={"phase_seconds": {**self.limits.phase_seconds, phase: seconds}})


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[Trials]:
    """Checks, when the test is over, that nothing of its children is left."""
    stage = Stage.make(tmp_path / "stage", SCRIPT)
    with Supervisor(tmp_path / "scratch", extra_environment=stage.environment, grace_seconds=2.0) as supervisor:
        model = write_model(tmp_path / "model.onnx")
        references = write_references(tmp_path / "references")
        limits = Limits(phase_seconds=dict.fromkeys(Phase, 60.0))
        yield Trials(tmp_path, stage, supervisor, limits, {"model": str(model), "references": str(references)})
    assert processes.family(thorough=True) == []
    assert list((tmp_path / "scratch").iterdir()) == []


def seconds(end: TrialEnd) -> float:
    """Median latency of the first case's first session."""
    assert end.report is not None, end.reason
    return end.report.timing[0].sessions[0].median
