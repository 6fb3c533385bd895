"""What the test wants of the stand-in: `script.json` beside the package, as it lies on PYTHONPATH (links not followed).

    version        what the module calls itself; below 11.1 it has no tuner [11.2.1.2]
    knobs          "real" | "absent" (as before 11.1) | "empty" | "malformed" ["real"]
    seed           of build luck and of the noise of sessions [0]
    seconds        device time of the default engine [0.001]
    buildSeconds   how long a build takes, in seconds of the wall clock [0]
    truth          see `device_truth.Truth` [nothing has an effect]
    luck, noise    factors on what differs from build to build, and from time to time [1.0]
    parserErrors   what the parser finds wrong with any model: [{"node", "name", "operator", "code", "text"}]
    when           what happens on a condition, `{condition: action}`

A condition is a token of the route (`-slice_fusion=off`), a builder setting away from its default (`optimizationLevel=5`),
`model=NAME` for a graph of that name, `build:N` for the N-th build of this folder (from 1), or `always`. An action is one of
ACTIONS, or several in a list.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

_REAL_LIST = Path(__file__).resolve().parents[2] / "data" / "all_build_routes-11.2.1.2.json"

ACTIONS = {
    # of the build
    "refuse": "returns None, with the reason in the log",
    "raise": "raises RuntimeError",
    "segfault": "dies",
    "hang": "goes on for ever, but asks its progress monitor",
    "hangDeaf": "goes on for ever and holds the interpreter",
    "memoryBomb": "takes memory until somebody ends it",
    "killed": "is killed by SIGKILL, as by the kernel's memory killer in a container",
    "outOfDeviceMemory": "returns None, with the device's want of memory in the log",
    "empty": "returns an engine of no bytes",
    # of the engine
    "anotherEachTime": "its layers differ from build to build",
    "stripped": "it has no weights: zeros come out",
    "refittable": "its weights can be changed",
    "loadFails": "deserialises to None",
    "contextFails": "makes no execution context",
    "executeFails": "execute_async_v3 returns False",
    "executeFaults": "an illegal memory access in a kernel",
    "captureFails": "its kernels cannot be captured in a graph",
    "replayWrong": "wrong values come out when a graph replays it, right ones when the host launches it",
    "nan": "NaN comes out",
    "inf": "Inf comes out",
    "wrong": "wrong values come out, a third faster",
    "slow": "ten times slower",
    "hostSlow": "the host needs two milliseconds more for it, the device none",
}


class Script:
    """The test's wishes, and the folder where builds and loads are counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "script.json"
        self._facts: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if unknown := {action for actions in self._when().values() for action in actions} - set(ACTIONS):
            raise ValueError(f"{path}: unknown actions {', '.join(sorted(unknown))}")

    def get(self, name: str, otherwise: Any) -> Any:
        return self._facts.get(name, otherwise)

    def _when(self) -> dict[str, list[str]]:
        found = self._facts.get("when", {})
        return {condition: [actions] if isinstance(actions, str) else actions for condition, actions in found.items()}

    def actions(self, conditions: Iterable[str]) -> list[str]:
        """What happens, in the order of the script."""
        holding = {"always", *conditions}
        return [action for condition, actions in self._when().items() if condition in holding for action in actions]

    def count(self, what: str) -> int:
        """The next number of `what` in this folder over all processes, from 1."""
        counters = self.folder / "counters"
        counters.mkdir(exist_ok=True)
        number = len(list(counters.glob(f"{what}-*"))) + 1
        while True:
            try:
                os.close(os.open(counters / f"{what}-{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                number += 1
            else:
                return number


SCRIPT = Script(Path(__file__).parent.parent)
VERSION = str(SCRIPT.get("version", "11.2.1.2"))
NUMBERS = tuple(int(part) for part in VERSION.split("."))
HAS_ROUTES = NUMBERS >= (11, 1) and SCRIPT.get("knobs", "real") != "absent"


def knob_text() -> str:
    """What `all_build_routes` says."""
    match SCRIPT.get("knobs", "real"):
        case "empty":
            return ""
        case "malformed":
            return '{"tuner_version": "2.20.51", "tuner_options": [{"option": "-conv_use_l'
    return _REAL_LIST.read_text()


@cache
def bounded() -> dict[str, tuple[tuple[str, ...] | None, str]]:
    """Knob → (values, or None where any number is allowed; default), of the real list."""
    listed = json.loads(_REAL_LIST.read_text())
    found: dict[str, tuple[tuple[str, ...] | None, str]] = {}
    for option in listed["tuner_options"]:
        domain = option["allowed_values"].partition("=")[2]
        closed = domain.startswith("[") and "..." not in domain
        found[option["option"]] = (tuple(domain.strip("[]").split("|")) if closed else None, option["default_value"])
    return found
