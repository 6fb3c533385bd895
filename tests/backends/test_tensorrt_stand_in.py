"""All that the stand-in for TensorRT offers, the real thing offers too: held against TensorRT-RTX, whose API is TensorRT 11's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from rig.rtx import rtx_path
from stand_in.stage import Stage

__all__ = ["rtx_path"]

OFFERED = """
import enum, inspect, json, tensorrt
def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]
classes, enums, functions = {}, {}, []
for name in tensorrt.__all__:
    value = getattr(tensorrt, name)
    if not inspect.isclass(value):
        functions.append(name)
    elif issubclass(value, enum.Enum):
        enums[name] = {one.name: one.value for one in value}
    else:
        own = {n: v for base in reversed(value.__mro__) for n, v in vars(base).items() if base.__module__.startswith("tensorrt")}
        classes[name] = {n: parameters(v) if inspect.isfunction(v) else None for n, v in own.items() if not n.startswith("_")}
print(json.dumps({"classes": classes, "enums": enums, "functions": functions}))
"""
REAL = """
import json, tensorrt_rtx_bindings as real
enums = {n: {m: int(v) for m, v in e.__members__.items()} for n, e in vars(real).items() if hasattr(e, "__members__")}
members = {n: {m: getattr(c, m).__doc__ or "" for m in dir(c)} for n, c in vars(real).items() if isinstance(c, type)}
docs = {n: c.__doc__ or "" for n, c in vars(real).items() if isinstance(c, type)}
print(json.dumps({"enums": enums, "members": members, "docs": docs, "names": dir(real)}))
"""
SPEAKERS = {"fail", "misuse", "say"}
"""How the stand-in says what is wrong."""
BUFFERS = {"IHostMemory"}
"""They derive from bytes: before Python 3.12 a class written in Python has no other way to be a buffer."""


def described(code: str, environment: dict[str, str]) -> Any:
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return described(OFFERED, Stage.make(tmp_path_factory.mktemp("stand-in") / "stage").environment)


@pytest.fixture(scope="module")
def real(rtx_path: str) -> Any:
    return described(REAL, {"PYTHONPATH": rtx_path})


def overloads(doc: str) -> list[list[str]]:
    """Parameter names of each signature that pybind11 writes into a docstring."""
    return [re.findall(r"(\w+): ", found.replace("self: ", "", 1)) for found in re.findall(r"\w+\((self: .*)\) -> ", doc)]


def test_enumerations_have_the_real_names_and_numbers(offered, real):
    assert len(offered["enums"]) > 10
    for name, members in offered["enums"].items():
        assert real["enums"][name].items() >= members.items(), name


def test_classes_have_only_real_members(offered, real):
    for name, members in offered["classes"].items():
        if name not in BUFFERS:
            to_implement = set(re.findall(r"def (\w+)\(self", real["docs"][name]))  # of IOutputAllocator: only named there
            assert set(members) - SPEAKERS <= set(real["members"][name]) | to_implement, name


def test_methods_take_the_real_parameters(offered, real):
    checked = 0
    for name, members in offered["classes"].items():
        for member, parameters in members.items():
            actual = overloads(real["members"][name].get(member, ""))
            if parameters is None or member in SPEAKERS or not actual:
                continue
            same = [names for names in actual if parameters == names[: len(parameters)]]
            assert same, f"{name}.{member}: {parameters}, really {actual}"
            checked += 1
    assert checked > 50


def test_functions_are_real(offered, real):
    assert set(offered["functions"]) <= set(real["names"])
