"""Exercises the ONNX Runtime backend on a real GPU and prints one JSON object. Not collected by pytest.

    python tests/backends/gpu_smoke.py [--seconds 60]

Needs numpy, onnx, pydantic and an onnxruntime-gpu whose CUDA and cuDNN libraries can be loaded (the Python packages
`nvidia-*`, as PyTorch brings them, are found by themselves). Exit code 0 when every check held, 1 otherwise.

Checks: identity; what NVML says before this process has a context (and that it finds the device idle), and what a second
process sees of it while this one works; the driver's calls by themselves (copies, a captured graph, giving memory back); the
default and one route per value of every CUDA knob build, load and agree with the unoptimised CPU model (or are refused, which is
listed); engines are saved optimised or fall back to the source, which is listed; timing with and without CUDA graph, with
transfers and with streams, and the host's median beside the device's clock; an engine still runs after it was timed; the
fingerprint repeats; the nodes of an engine are timed (in a process whose launches wait).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
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
from tuner_job.backends import cuda, nvml  # noqa: E402
from tuner_job.backends.onnxruntime import OnnxRuntimeBackend  # noqa: E402
from tuner_job.backends.onnxruntime.knobs import knobs  # noqa: E402
from tuner_job.backends.onnxruntime.profile import BLOCKING  # noqa: E402
from tuner_job.backends.preflight import IDLE_MEMORY, await_idle, busy  # noqa: E402
from tuner_job.backends.protocol import BuildOrder, BuildRefused, DeviceBusy  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120.0, help="stop trying further routes after so long")
    parser.add_argument("--look", action="store_true", help="only say how the device looks before a context is made")
    parser.add_argument(
        "--profile", metavar="ENGINE", type=Path, help="only time the nodes of this engine, with inputs beside it"
    )
    arguments = parser.parse_args()
    if arguments.look:
        seen = nvml.state()
        print(json.dumps({"busy": busy(seen), "state": seen.model_dump(mode="json")}))
        return 0
    if arguments.profile is not None:
        return print_profile(arguments.profile)
    began = time.monotonic()
    backend = OnnxRuntimeBackend("GPU")
    problems: list[str] = []
    report: dict[str, Any] = {"first look": nvml.state().model_dump(mode="json")}
    try:
        report["idle after seconds"] = round(time.monotonic() - began, 3) if await_idle(nvml.state) else None
    except DeviceBusy as error:
        problems.append(f"before this process had a context: {error}")
    report |= {"device": backend.identify().model_dump(), "versions": backend.versions(), "models": {}}
    report["driver"] = check_driver(problems)
    report["seen by another process"] = check_busy(problems)
    rng = np.random.default_rng(0)
    models = {
        "conv": (conv_net, {"x": rng.standard_normal((1, 16, 12, 12)).astype(np.float32)}),
        "encoder": (encoder, {"x": rng.standard_normal((4, 64, 256)).astype(np.float32)}),
    }

    modes = {
        "graph": MeasureSettings(),
        "direct": MeasureSettings(cuda_graph=False),
        "transfers": MeasureSettings(transfers=True),
        "direct, transfers": MeasureSettings(transfers=True, cuda_graph=False),
        "graph, 2 streams": MeasureSettings(streams=2),
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
            found["nodes"] = smoke.profile()
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


def again(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """This script in a process of its own."""
    return subprocess.run(
        [sys.executable, __file__, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def print_profile(file: Path) -> int:
    engine = OnnxRuntimeBackend("GPU").load(file)
    told = engine.profile(dict(np.load(file.with_suffix(".npz"))))
    nodes = [layer.model_dump(include={"name", "kind", "tactic", "formats", "seconds"}) for layer in told.layers]
    print(json.dumps({"clock": told.clock, "runs": told.runs, "nodes": nodes}))
    engine.close()
    return 0


def check_driver(problems: list[str]) -> dict[str, object]:
    """Copies by themselves, then as a graph; errors; memory that comes back."""
    driver, size = cuda.driver(), 1 << 20
    stream, there, back = cuda.Stream(driver), cuda.PinnedBuffer(driver, size), cuda.PinnedBuffer(driver, size)
    buffer = cuda.DeviceBuffer(driver, size)

    def round_trip() -> None:
        stream.send(buffer, there.address, size)
        stream.fetch(back.address, buffer, size)

    there.array()[:] = np.arange(size) % 251
    round_trip()
    stream.wait()
    if not np.array_equal(there.array(), back.array()):
        problems.append("driver: a copy to the device and back differs")
    graph = stream.capture(round_trip)
    there.array()[:] = np.arange(size) % 241
    stream.mark_start()
    graph.launch(stream)
    stream.mark_end()
    seconds = stream.elapsed()
    if not np.array_equal(there.array(), back.array()):
        problems.append("driver: a graph of copies does not copy what is there when it is launched")

    def broken() -> None:
        round_trip()
        stream.wait()  # not permitted while a stream is captured

    errors = []
    for attempt in (lambda: stream.capture(broken), lambda: cuda.DeviceBuffer(driver, 1 << 50)):
        try:
            attempt()
            problems.append("driver: what must fail does not")
        except (cuda.CudaError, MemoryError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    try:
        stream.capture(round_trip).close()
    except cuda.CudaError as error:
        problems.append(f"driver: a stream is unusable after a capture that failed: {error}")
    used = nvml.state().memory_used_bytes
    large = cuda.DeviceBuffer(driver, 1 << 30)
    held = nvml.state().memory_used_bytes
    large.close()
    for one in (graph, stream, buffer, there, back):
        one.close()
    return {
        "copy seconds": seconds,
        "errors": errors,
        "used": used,
        "with 1 GiB more": held,
        "after": nvml.state().memory_used_bytes,
    }


def check_busy(problems: list[str]) -> dict[str, object]:
    """Another process must not take the device for idle while this one holds memory on it."""
    held = cuda.DeviceBuffer(cuda.driver(), 2 * IDLE_MEMORY)
    done = again("--look")
    held.close()
    if done.returncode:
        problems.append(f"a second process cannot look: {done.stderr[-300:]}")
        return {}
    seen = json.loads(done.stdout)
    if not seen["busy"]:
        problems.append("a second process takes the device for idle though this one holds memory on it")
    return seen


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

    def profile(self) -> dict[str, object]:
        """Of the engine that was built last, in a process whose launches wait; without that nothing may be timed."""
        file = self.model.with_suffix(".engine")
        np.savez(file.with_suffix(".npz"), **self.inputs)
        told = {}
        for waits in ("1", "0"):
            done = again("--profile", str(file), **{BLOCKING: waits})
            if done.returncode:
                self._wrong("", f"profile: {done.stderr[-300:]}")
                return {"failed": True}
            told[waits] = json.loads(done.stdout)
        nodes = told["1"]["nodes"]
        if not nodes or any(node["seconds"] is None for node in nodes):
            self._wrong("", "profile: nodes without a time though launches wait")
        if not told["0"]["clock"] and any(node["seconds"] is not None for node in told["0"]["nodes"]):
            self._wrong("", "profile: times without a clock")
        top = sorted(nodes, key=lambda node: -(node["seconds"] or 0))[:5]
        return {"clock": told["1"]["clock"], "clock without waiting": told["0"]["clock"], "count": len(nodes), "top": top}

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
            }
            aside = timer.aside()
            result |= {"throttled": aside.throttled, "power_capped": aside.power_capped}
            if timer.clock == "device":
                result["host_median_us"] = aside.host_median and aside.host_median * 1e6
                if not aside.host_median or aside.host_median < np.median(samples) / 1.5:
                    self._wrong(route, f"the host's median is {aside.host_median} where the device's is {np.median(samples)}")
            elif aside.host_median is not None:
                self._wrong(route, "a host median beside the host's clock")
            again = engine.run(self.inputs)
            if any(not np.allclose(again[key], outputs[key], atol=1e-2) for key in outputs):
                self._wrong(route, "other outputs after timing")
        engine.close()
        return result


if __name__ == "__main__":
    sys.exit(main())
