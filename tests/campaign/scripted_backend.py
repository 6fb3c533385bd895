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

import numpy as np

from tuner_job.api.measurement import Device
from tuner_job.measure.sampling import Aside

HERE = Path(__file__).parent
FACTS = "facts.json"
GO = "go"
KNOBS = {
    "tuner_version": "1",
    "tuner_options": [
        {
            "option": "-do",
            "allowed_values": "-do=[nothing|hold|killTwice|kill|breakTogether]",
            "default_value": "nothing",
            "help": "What the build does first.",
        },
        {"option": "-k", "allowed_values": "-k=[a|b]", "default_value": "a", "help": "Nothing."},
    ],
}


def install(folder: Path, *, product: str = "Scripted", version: str = "1.0") -> Path:
    """Make `folder` what PYTHONPATH should name; again, to change the device or the library under a run."""
    metadata = folder / "trtfleet-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: trtfleet\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[trtfleet.backends]\nonnxruntime = {__name__}:ScriptedBackend\n")
    shutil.copy(__file__, folder)
    (folder / FACTS).write_text(json.dumps({"product": product, "version": version}))
    return folder


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
    clock = "host"
    launch = "direct"

    def __init__(self, seconds: float) -> None:
        self._rng = np.random.default_rng()
        self._seconds = seconds

    def sample(self, count: int) -> np.ndarray:
        time.sleep(0.001 * count)
        return self._seconds * np.exp(self._rng.normal(0, 0.01, count))

    def aside(self) -> Aside:
        return Aside()


class ScriptedEngine:
    """y = 2 x[:, :8]. One that breaks together is fast, and aborts when it is timed beside others."""

    loaded = 0

    def __init__(self, text: str = "") -> None:
        self._breaks = "breakTogether" in text
        ScriptedEngine.loaded += 1

    def run(self, inputs):
        return {"y": np.asarray(inputs["x"])[:, :8] * 2}

    def timer(self, inputs, settings):
        if self._breaks and ScriptedEngine.loaded > 1:
            os.abort()
        return ScriptedTimer(0.0005 if self._breaks else 0.001)

    def close(self) -> None:
        pass


class ScriptedBackend:
    name = "onnxruntime"

    def __init__(self, device: str) -> None:
        (HERE / f"environment-{os.getpid()}").write_text(json.dumps(dict(os.environ)))
        self._facts = json.loads((HERE / FACTS).read_text())

    def state(self) -> None:
        return None

    def load_plugins(self, paths) -> None:
        assert not paths

    def settings(self):
        return ()

    def notes(self):
        return ()

    def identify(self) -> Device:
        return Device(type="CPU", product=self._facts["product"])

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": self._facts["version"]}

    def knob_list(self) -> str:
        return json.dumps(KNOBS)

    def build(self, order) -> str:
        candidate, engine = order.candidate, order.engine
        act(candidate.route)
        engine.write_text(f"engine of {candidate.route}")
        return ""

    def load(self, engine: Path) -> ScriptedEngine:
        return ScriptedEngine(engine.read_text())

    def reference(self, model: Path) -> ScriptedEngine:
        return ScriptedEngine()
