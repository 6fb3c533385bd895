"""A backend whose builds do what their route says, for workers that are processes of their own.

`install` puts it in a folder which, on PYTHONPATH, stands in for the distribution `trtfleet` and its entry points: children find
it as they find any backend. The folder is also where builds and test meet.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from tuner_job.api.base import TrtfleetError
from tuner_job.api.layers import Layer, LayerProfile
from tuner_job.api.measurement import BuilderSetting, Device, DeviceState, GpuProcess
from tuner_job.backends.protocol import BadModel
from tuner_job.measure.sampling import Aside
from tuner_job.routes.knobs import no_knobs

HERE = Path(__file__).parent
FACTS = "facts.json"
NEIGHBOURS = "neighbours.json"
LOST = "lost"
GO = "go"
KNOBS = {
    "tuner_version": "1",
    "tuner_options": [
        {
            "option": "-do",
            "allowed_values": "-do=[nothing|hold|killTwice|kill|breakTogether|slowToCall]",
            "default_value": "nothing",
            "help": "What the build does first.",
        },
        {"option": "-k", "allowed_values": "-k=[a|b]", "default_value": "a", "help": "Nothing."},
    ],
}


def install(folder: Path, *, product: str = "Scripted", version: str = "1.0", backend: str = "onnxruntime", **facts: Any) -> Path:
    """Make `folder` what PYTHONPATH should name; again, to change the device or the library under a run.

    `facts`: settings and notes (what it offers and says), missing (why it has no knobs), gpu (whether its device has a state,
    with the processes of `neighbours`), cacheBytes (of the timing cache that each build leaves), fingerprints (whether engines
    have one), profile (`crash` or the kind of each layer), room (engines that a child can load).
    """
    metadata = folder / "trtfleet-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: trtfleet\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[trtfleet.backends]\n{backend} = {__name__}:ScriptedBackend\n")
    shutil.copy(__file__, folder)
    (folder / FACTS).write_text(json.dumps({"product": product, "version": version, "backend": backend, **facts}))
    return folder


def neighbours(folder: Path, *pids: int) -> None:
    """Other processes that use the device from now on."""
    (folder / NEIGHBOURS).write_text(json.dumps(pids))


def lose_device(folder: Path) -> None:
    """It answers no child from now on."""
    (folder / LOST).touch()


def noted(folder: Path, what: str) -> list[dict[str, Any]]:
    """What children noted: `build` or `plugins`, in time order."""
    path = folder / f"{what}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def note(what: str, **facts: object) -> None:
    with (HERE / f"{what}.jsonl").open("a") as file:
        file.write(json.dumps(facts) + "\n")


def act(route: str) -> None:
    action = dict(token.split("=") for token in route.split()).get("-do", "nothing")
    killed = len(list(HERE.glob("killed-*")))
    if action == "hold":
        (HERE / f"holding-{os.getpid()}").touch()
        while not (HERE / GO).exists():
            time.sleep(0.01)
    elif action == "kill" or (action == "killTwice" and killed < 2):
        if action == "killTwice":
            (HERE / f"killed-{killed}").touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)


class ScriptedTimer:
    """`host`: seconds by the host's clock, beside those of a device's."""

    launch = "direct"

    def __init__(self, seconds: float, host: float | None = None) -> None:
        self.clock = "host" if host is None else "device"
        self._rng = np.random.default_rng()
        self._seconds, self._host = seconds, host

    def sample(self, count: int) -> np.ndarray:
        time.sleep(0.001 * count)
        return self._seconds * np.exp(self._rng.normal(0, 0.01, count))

    def aside(self) -> Aside:
        return Aside(host_median=self._host and self._host * np.exp(self._rng.normal(0, 0.01)))


class ScriptedEngine:
    """y = 2 x[:, :8]. One that breaks together is fast, and aborts when it is timed beside others; one that is slow to call is
    fast on its device."""

    loaded = 0

    def __init__(self, text: str = "", profile: str = "", *, gpu: bool = False) -> None:
        self._breaks = "breakTogether" in text
        self._slow_to_call = "slowToCall" in text
        self._fast = self._breaks or self._slow_to_call or "fast" in text
        self._gpu = gpu
        self._profile = profile
        ScriptedEngine.loaded += 1

    def run(self, inputs):
        return {"y": np.asarray(inputs["x"])[:, :8] * 2}

    def timer(self, inputs, settings):
        if self._breaks and ScriptedEngine.loaded > 1:
            os.abort()
        host = 0.004 if self._slow_to_call else 0.002
        return ScriptedTimer(0.0005 if self._fast else 0.001, host if self._gpu else None)

    def profile(self, inputs) -> LayerProfile:
        if self._profile == "crash":
            os.abort()
        kind = "fast" if self._fast else self._profile
        return LayerProfile(layers=(Layer(name="all", kind=kind, seconds=0.0005),), runs=3, clock="scripted")

    def close(self) -> None:
        pass


class ScriptedBackend:
    def __init__(self, device: str) -> None:
        (HERE / f"environment-{os.getpid()}").write_text(json.dumps(dict(os.environ)))
        self._device = device
        self._facts = json.loads((HERE / FACTS).read_text())
        self.name = self._facts["backend"]
        self._loaded = 0

    def state(self) -> DeviceState | None:
        if (HERE / LOST).exists():
            raise TrtfleetError("the driver finds no device")
        if not self._facts.get("gpu"):
            return None
        path = HERE / NEIGHBOURS
        pids = json.loads(path.read_text()) if path.exists() else ()
        return DeviceState(uuid="GPU-0", processes=tuple(GpuProcess(pid=pid) for pid in pids))

    def load_plugins(self, paths) -> None:
        if paths:
            note("plugins", texts=[path.read_text() for path in paths], modes=[path.stat().st_mode & 0o777 for path in paths])

    def settings(self):
        return tuple(BuilderSetting.model_validate(one) for one in self._facts.get("settings", ()))

    def notes(self):
        return tuple(self._facts.get("notes", ()))

    def identify(self) -> Device:
        return Device(type=self._device, product=self._facts["product"])

    def versions(self) -> dict[str, str]:
        return {self.name: self._facts["version"]}

    def knob_list(self) -> str:
        return no_knobs(self._facts["missing"]) if "missing" in self._facts else json.dumps(KNOBS)

    def build(self, order) -> str:
        candidate, engine = order.candidate, order.engine
        cache = order.timing_cache
        note(
            "build",
            candidate=candidate.model_dump(),
            cache=cache and cache.read_text(),
            mode=cache and cache.stat().st_mode & 0o777,
        )
        act(candidate.route)
        if "refused" in order.model.name:
            raise BadModel("operator Frobnicate is not supported")
        if size := self._facts.get("cacheBytes"):
            order.timing_cache_out.write_text(f"cache of {os.getpid()}".ljust(size))
        speed = "fast " if "fast" in candidate.settings.values() else ""
        engine.write_text(f"{speed}engine of {candidate.route}")
        return f"{speed}{candidate.route}" + "." if self._facts.get("fingerprints") else ""

    def load(self, engine: Path) -> ScriptedEngine:
        self._loaded += 1
        if self._loaded > self._facts.get("room", self._loaded):
            raise MemoryError(f"{self._loaded} engines do not fit")
        return ScriptedEngine(engine.read_text(), self._facts.get("profile", ""), gpu=bool(self._facts.get("gpu")))

    def reference(self, model: Path) -> ScriptedEngine:
        return ScriptedEngine()
