"""A child of the real `main` with a backend that does what its candidate's settings say, at the phase they name.

`settings` = {"build": "segfault"} runs `segfault` while it builds; phases are build, load, run (check) and sample (measure).
The model it stands for is y = 2x.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np

from tuner_job.api.base import InputError
from tuner_job.api.child import REPORT_FILE
from tuner_job.api.measurement import Device
from tuner_job.backends.child import leave, main
from tuner_job.backends.protocol import BadModel, BuildRefused, Cancelled, Unsupported
from tuner_job.measure.sampling import Aside

MiB = 1 << 20
FAR_AWAY = 600
held: list[object] = []


def scratch() -> Path:
    return Path(os.environ["TRTFLEET_SCRATCH"])


def note(name: str, text: str) -> None:
    """Leave something for the test: `NOTES` is passed as an extra variable."""
    path = Path(os.environ["NOTES"]) / name
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def raise_(error: Exception) -> None:
    raise error


def hang() -> None:
    time.sleep(FAR_AWAY)


def hang_deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang()


def hang_holding_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(FAR_AWAY)


def spin() -> None:
    while True:
        pass


def memory_bomb() -> None:
    for _ in range(30):
        held.append(np.ones(50 * MiB, np.uint8))
        time.sleep(0.01)
    hang()


def memory_bomb_in_children() -> None:
    for _ in range(8):
        if os.fork() == 0:
            held.append(np.ones(100 * MiB, np.uint8))
            hang()
    hang()


def share_memory_with_children() -> None:
    held.append(np.ones(60 * MiB, np.uint8))
    ready, done = os.pipe()
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            int(held[0].sum())  # type: ignore[attr-defined]
            os.write(done, b"x")
            hang()
        children.append(child)
    for _ in children:
        os.read(ready, 1)
    time.sleep(0.3)  # long enough for the watchdog to look
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def fork_bomb() -> None:
    for _ in range(200):
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            hang()
    hang()


def thread_bomb() -> None:
    import threading

    for _ in range(200):
        threading.Thread(target=hang, daemon=True).start()
    hang()


def daemon(environment: dict[str, str] | None = None) -> None:
    """A straggler by the book: two forks, a new session, no environment, deaf, far from our folder."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            note("daemon", str(os.getpid()))
            os.chdir("/")
            os.execve("/bin/sleep", ["sleep", str(FAR_AWAY)], environment or {})
        os._exit(0)
    while not (Path(os.environ["NOTES"]) / "daemon").exists():
        time.sleep(0.005)


def stray_then_hang() -> None:
    daemon(dict(os.environ))
    hang()


def shout() -> None:
    line = b"e" * (1 << 20)
    for _ in range(1 << 10):
        os.write(2, line)


def garbage() -> None:
    os.write(1, bytes(range(256)) * 100)
    os.write(3, b"\xff\x00{{{\n" + b"[" * 10000 + b'\n{"phase": "nonsense"}\n{"phase": 7}\n[]\nnull\n')


def write_report(data: bytes) -> None:
    (scratch() / REPORT_FILE).write_bytes(data)
    os._exit(0)


def huge_report() -> None:
    with open(scratch() / REPORT_FILE, "wb") as file:
        file.truncate(1 << 40)
    os._exit(0)


def fill_scratch() -> None:
    for number in range(64):
        (scratch() / f"junk-{number}").write_bytes(os.urandom(MiB))
        time.sleep(0.005)
    hang()


def fill_file_system() -> None:
    """Until nothing fits any more, and then fall as libraries do."""
    with open(scratch() / "junk", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            os.abort()


def one_large_file() -> None:
    with open(scratch() / "junk", "wb") as file:
        file.write(bytes(64 * MiB))


def nasty_folders() -> None:
    base = scratch() / "closed"
    base.mkdir()
    (base / "file").touch()
    base.chmod(0)
    os.symlink("/", scratch() / "root")
    os.chdir(scratch())
    for _ in range(40):  # far longer than PATH_MAX
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    os.chdir(scratch())


def note_surroundings() -> None:
    note(
        "surroundings",
        json.dumps(
            {
                "environment": dict(os.environ),
                "cwd": os.getcwd(),
                "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
                "session": os.getsid(0),
                "pid": os.getpid(),
                "cpus": len(os.sched_getaffinity(0)),
                "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
                "path": sys.path,
            }
        ),
    )


ACTIONS = {
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "bus": lambda: os.kill(os.getpid(), signal.SIGBUS),
    "exit0": lambda: os._exit(0),
    "exit3": lambda: os._exit(3),
    "hang": hang,
    "hangDeaf": hang_deaf,
    "hangHoldingTheInterpreter": hang_holding_the_interpreter,
    "spin": spin,
    "memoryBomb": memory_bomb,
    "memoryBombInChildren": memory_bomb_in_children,
    "shareMemory": share_memory_with_children,
    "forkBomb": fork_bomb,
    "threadBomb": thread_bomb,
    "daemon": daemon,
    "strayThenHang": stray_then_hang,
    "shout": shout,
    "garbage": garbage,
    "truncatedReport": lambda: write_report(b'{"status":"ok","losses":{"sam'),
    "emptyOkReport": lambda: write_report(b'{"status":"ok"}'),
    "hugeReport": huge_report,
    "killGroup": lambda: os.killpg(0, signal.SIGKILL),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "cancelled": lambda: raise_(Cancelled("told by SIGTERM")),
    "killParent": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "fillScratch": fill_scratch,
    "fillFileSystem": fill_file_system,
    "oneLargeFile": one_large_file,
    "nastyFolders": nasty_folders,
    "removeFolder": lambda: shutil.rmtree(scratch()),
    "noSpace": lambda: Path("/dev/full").write_bytes(b"x"),
    "noteSurroundings": note_surroundings,
    "refuse": lambda: raise_(BuildRefused("no tactic\nfor this layer")),
    "unsupported": lambda: raise_(Unsupported("no knob of that name")),
    "badModel": lambda: raise_(BadModel("model.onnx: truncated")),
    "badInput": lambda: raise_(InputError("shapes do not fit")),
    "memoryError": lambda: raise_(MemoryError("Unable to allocate 1 TiB")),
    "cudaMemory": lambda: raise_(RuntimeError("CUDA failure 2: out of memory")),
    "raise": lambda: raise_(RuntimeError("context is None")),
}


def act(settings: dict[str, str], where: str) -> None:
    action = settings.get(where)
    if action in ACTIONS:
        ACTIONS[action]()  # type: ignore[no-untyped-call]


class ScriptedTimer:
    clock = "host"
    launch = "direct"

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings

    def sample(self, count: int) -> np.ndarray:
        act(self._settings, "sample")
        return np.full(count, 0.05 / count)

    def aside(self) -> Aside:
        return Aside()


class ScriptedEngine:
    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings

    def run(self, inputs):
        act(self._settings, "run")
        y = np.asarray(inputs["x"]) * 2
        match self._settings.get("run"):
            case "nan":
                y[0] = np.nan
            case "inf":
                y[0] = np.inf
            case "shape":
                y = y[:-1]
            case "dtype":
                y = y.astype(np.float64)
            case "missing":
                return {}
        return {"y": y}

    def timer(self, inputs, settings):
        return ScriptedTimer(self._settings)

    def close(self) -> None:
        pass


class ScriptedBackend:
    name = "scripted"

    def __init__(self, device: str) -> None:
        if os.environ.get("SCRIPTED_START"):
            ACTIONS[os.environ["SCRIPTED_START"]]()

    def state(self) -> None:
        return None

    @staticmethod
    def preload(device: str) -> None:
        note(f"preloaded-{os.getpid()}", device)

    def load_plugins(self, paths) -> None:
        assert not paths

    def settings(self):
        return ()

    def notes(self):
        return ()

    def identify(self) -> Device:
        return Device(type="CPU", product="Scripted")

    def versions(self) -> dict[str, str]:
        return {"scripted": "1.0"}

    def knob_list(self) -> str:
        return "{}"

    def build(self, order) -> str:
        candidate, engine = order.candidate, order.engine
        act(candidate.settings, "build")
        engine.write_text("" if candidate.settings.get("build") == "emptyEngine" else json.dumps(candidate.settings))
        return "f" * 8

    def load(self, engine: Path) -> ScriptedEngine:
        settings = json.loads(engine.read_text())
        act(settings, "load")
        return ScriptedEngine(settings)

    def reference(self, model: Path) -> ScriptedEngine:
        return ScriptedEngine({})


if __name__ == "__main__":
    leave(main(backends={"scripted": ScriptedBackend}))
