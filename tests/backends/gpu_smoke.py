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

ROOT = Path(__file__).resolve().parents[2]


def with_nvidia_libraries() -> None:
    """Start again with the `nvidia` packages' folders on LD_LIBRARY_PATH, which is read only when a process starts."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    folders = sorted({str(path.parent) for root in roots for path in Path(root).glob("*/lib/*.so*")})
    if folders and "TRTFLEET_SMOKE" not in os.environ:
        old = os.environ.get("LD_LIBRARY_PATH", "")
        path = ":".join([*folders, *([old] if old else [])])
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"LD_LIBRARY_PATH": path, "TRTFLEET_SMOKE": "1"})


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120.0, help="stop trying further routes after so long")
    arguments = parser.parse_args()
    with_nvidia_libraries()
    sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

    import numpy as np
    from onnxruntime_graphs import conv_net, encoder

    from tuner_job.api.child import MeasureSettings, ShapeCase
    from tuner_job.api.measurement import Candidate
    from tuner_job.backends.onnxruntime import OnnxRuntimeBackend
    from tuner_job.backends.onnxruntime.knobs import knobs
    from tuner_job.backends.protocol import BuildRefused

    began = time.monotonic()
    backend = OnnxRuntimeBackend("GPU")
    report: dict[str, object] = {"device": backend.identify().model_dump(), "versions": backend.versions(), "models": {}}
    problems: list[str] = []
    rng = np.random.default_rng(0)
    models = {
        "conv": (conv_net, {"x": rng.standard_normal((1, 16, 12, 12)).astype(np.float32)}),
        "encoder": (encoder, {"x": rng.standard_normal((4, 64, 256)).astype(np.float32)}),
    }

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, (make, inputs) in models.items():
            model = make(folder / f"{name}.onnx")
            cases = [ShapeCase(name="c", tensors={key: value.shape for key, value in inputs.items()})]
            expected = backend.reference(model).run(inputs)
            found: dict[str, object] = {}
            report["models"][name] = found  # type: ignore[index]

            def trial(route: str, settings: MeasureSettings | None = None) -> dict[str, object]:
                start = time.monotonic()
                fingerprint = backend.build(model, cases, Candidate(route=route), folder / "e")  # noqa: B023
                engine = backend.load(folder / "e")
                try:
                    outputs = engine.run(inputs)  # noqa: B023
                    error = max(
                        float(np.abs(outputs[key] - expected[key]).max() / np.abs(expected[key]).max()) for key in expected
                    )  # noqa: B023
                    result: dict[str, object] = {
                        "fingerprint": fingerprint[:12],
                        "saved": engine.file.graph is None,  # type: ignore[attr-defined]
                        "error": error,
                        "seconds": round(time.monotonic() - start, 3),
                    }
                    if settings is not None:
                        timer = engine.timer(inputs, settings)  # noqa: B023
                        timer.sample(20)
                        samples = timer.sample(200)
                        result |= {
                            "clock": timer.clock,
                            "launch": timer.launch,
                            "median_us": float(np.median(samples) * 1e6),
                            "p99_us": float(np.quantile(samples, 0.99) * 1e6),
                            "sd_log": float(np.log(samples).std()),
                            "throttled": timer.throttled(),
                        }
                        again = engine.run(inputs)  # noqa: B023
                        if any(not np.allclose(again[key], outputs[key], atol=1e-2) for key in outputs):
                            problems.append(f"{name} {route!r}: other outputs after timing")  # noqa: B023
                    if error > 0.02:
                        problems.append(f"{name} {route!r}: differs from the CPU by {error} of the largest value")  # noqa: B023
                    return result
                finally:
                    engine.close()

            modes = {
                "graph": MeasureSettings(),
                "direct": MeasureSettings(cuda_graph=False),
                "transfers": MeasureSettings(transfers=True),
                "graph, 3 streams": MeasureSettings(streams=3),
                "direct, 3 streams": MeasureSettings(streams=3, cuda_graph=False),
            }
            for mode, settings in modes.items():
                try:
                    found[mode] = trial("", settings)
                except Exception as error:
                    problems.append(f"{name} {mode}: {type(error).__name__}: {str(error)[:300]}")
            fingerprints = {trial("")["fingerprint"] for _ in range(2)}
            if len(fingerprints) != 1:
                problems.append(f"{name}: the default's fingerprint does not repeat")
            for knob in knobs("GPU", 1):
                for value in knob.values:
                    route = f"{knob.option}={value}"
                    if value == knob.default or (knob.place == "disable" and name == "conv"):
                        continue
                    if time.monotonic() - began > arguments.seconds:
                        found.setdefault("not tried", []).append(route)  # type: ignore[attr-defined]
                        continue
                    try:
                        found[route] = trial(route, MeasureSettings() if knob.place == "provider" else None)
                    except BuildRefused as error:
                        found[route] = {"refused": str(error)}
                    except Exception as error:
                        problems.append(f"{name} {route}: {type(error).__name__}: {str(error)[:300]}")
    report |= {"problems": problems, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(report, indent=1))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
