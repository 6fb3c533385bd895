"""Exercises the ONNX Runtime backend on a real GPU and prints one JSON object. Not collected by pytest.

    python tests/backends/gpu_smoke.py [--seconds 60]

Needs numpy, onnx, pydantic and an onnxruntime-gpu whose CUDA and cuDNN libraries can be loaded (the Python packages
`nvidia-*`, as PyTorch brings them, are found by themselves). Exit code 0 when every check held, 1 otherwise.

Checks: identity; the default and one route per value of every CUDA knob build, load and agree with the unoptimised CPU model
(or are refused, which is listed); engines are saved optimised or fall back to the source, which is listed; timing with and
without CUDA graph, with transfers and with streams; an engine still runs after it was timed; the fingerprint repeats.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def with_nvidia_libraries() -> None:
    """Start again with the `nvidia` packages' folders on LD_LIBRARY_PATH, which is read only when a process starts."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    folders = sorted({str(path.parent) for root in roots for path in Path(root).glob("*/lib/*.so*")})
    if folders and "TRTFLEET_SMOKE" not in os.environ:
        old = os.environ.get("LD_LIBRARY_PATH", "")
        path = ":".join([*folders, *([old] if old else [])])
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"LD_LIBRARY_PATH": path, "TRTFLEET_SMOKE": "1"})


with_nvidia_libraries()
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).parent)]

import numpy as np  # noqa: E402
from onnxruntime_graphs import conv_net, encoder  # noqa: E402

from tuner_job.api.child import MeasureSettings, ShapeCase  # noqa: E402
from tuner_job.api.measurement import Candidate  # noqa: E402
from tuner_job.backends.onnxruntime import OnnxRuntimeBackend  # noqa: E402
from tuner_job.backends.onnxruntime.knobs import knobs  # noqa: E402
from tuner_job.backends.protocol import BuildOrder, BuildRefused  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120.0, help="stop trying further routes after so long")
    arguments = parser.parse_args()
    began = time.monotonic()
    backend = OnnxRuntimeBackend("GPU")
    report: dict[str, Any] = {"device": backend.identify().model_dump(), "versions": backend.versions(), "models": {}}
    problems: list[str] = []
    rng = np.random.default_rng(0)
    models = {
        "conv": (conv_net, {"x": rng.standard_normal((1, 16, 12, 12)).astype(np.float32)}),
        "encoder": (encoder, {"x": rng.standard_normal((4, 64, 256)).astype(np.float32)}),
    }

    modes = {
        "graph": MeasureSettings(),
        "direct": MeasureSettings(cuda_graph=False),
        "transfers": MeasureSettings(transfers=True),
        "graph, 3 streams": MeasureSettings(streams=3),
        "direct, 3 streams": MeasureSettings(streams=3, cuda_graph=False),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name, (make, inputs) in models.items():
            model = Path(scratch) / f"{name}.onnx"
            make(model)
            expected = backend.reference(model).run(inputs)
            smoke = Smoke(backend, model, inputs, expected, problems)
            found = report["models"][name] = {}
            for mode, settings in modes.items():
                found[mode] = smoke.attempt("", settings)
            if len({smoke.attempt("").get("fingerprint") for _ in range(2)}) != 1:
                problems.append(f"{name}: the default's fingerprint does not repeat")
            for knob in knobs("GPU", 1):
                for value in knob.values:
                    route = f"{knob.option}={value}"
                    if value == knob.default or (knob.place == "disable" and name == "conv"):
                        continue
                    if time.monotonic() - began > arguments.seconds:
                        found.setdefault("not tried", []).append(route)
                        continue
                    found[route] = smoke.attempt(route, MeasureSettings() if knob.place == "provider" else None)
    report |= {"problems": problems, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(report, indent=1))
    return 1 if problems else 0


class Smoke:
    """Attempts with one model; what is wrong goes to `problems`."""

    def __init__(self, backend, model: Path, inputs, expected, problems: list[str]) -> None:
        self.backend, self.model, self.inputs, self.expected, self.problems = backend, model, inputs, expected, problems
        self.cases = [ShapeCase(name="c", tensors={key: value.shape for key, value in inputs.items()})]

    def attempt(self, route: str, settings: MeasureSettings | None = None) -> dict[str, object]:
        try:
            return self._attempt(route, settings)
        except BuildRefused as error:
            return {"refused": str(error)}
        except Exception as error:
            self._wrong(route, f"{type(error).__name__}: {str(error)[:300]}")
            return {"failed": True}

    def _wrong(self, route: str, what: str) -> None:
        self.problems.append(f"{self.model.stem} {route!r}: {what}")

    def _attempt(self, route: str, settings: MeasureSettings | None) -> dict[str, object]:
        start = time.monotonic()
        file = self.model.with_suffix(".engine")
        fingerprint = self.backend.build(BuildOrder(self.model, self.cases, Candidate(route=route), file))
        engine = self.backend.load(file)
        outputs = engine.run(self.inputs)
        error = max(float(np.abs(outputs[key] - right).max() / np.abs(right).max()) for key, right in self.expected.items())
        if error > 0.02:
            self._wrong(route, f"differs from the CPU by {error} of the largest value")
        result: dict[str, object] = {
            "fingerprint": fingerprint[:12],
            "saved": engine.file.graph is None,
            "error": error,
            "seconds": round(time.monotonic() - start, 3),
        }
        if settings is not None:
            timer = engine.timer(self.inputs, settings)
            timer.sample(20)
            samples = timer.sample(200)
            result |= {
                "clock": timer.clock,
                "launch": timer.launch,
                "median_us": float(np.median(samples) * 1e6),
                "p99_us": float(np.quantile(samples, 0.99) * 1e6),
                "sd_log": float(np.log(samples).std()),
                "throttled": timer.aside().throttled,
            }
            again = engine.run(self.inputs)
            if any(not np.allclose(again[key], outputs[key], atol=1e-2) for key in outputs):
                self._wrong(route, "other outputs after timing")
        engine.close()
        return result


if __name__ == "__main__":
    sys.exit(main())
