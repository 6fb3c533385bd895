"""What the TensorRT backend asks of TensorRT's Python module is really there: in TensorRT-RTX 1.7, whose interface is that of
TensorRT 11, and in the stand-in that the other tests use. There is nothing that the backend asks of TensorRT alone.

The backend's own source is read: every attribute of an object of the module is followed from the object that it came from. What a
name stands for is written down once, below; a new name without a type fails, so that nothing slips through.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from stand_in.stage import Stage

from tuner_job.backends import tensorrt as backend

pytestmark = pytest.mark.timeout(900)  # the first test on a machine fetches the library

SOURCES = sorted(Path(backend.__file__).parent.glob("*.py"))
MODULE = "<module>"

STANDS_FOR = {
    "builder": "Builder",
    "cache": "ITimingCache",
    "config": "IBuilderConfig",
    "context": "IExecutionContext",
    "engine": "ICudaEngine",
    "error": "ParserError",
    "inspector": "EngineInspector",
    "logger": "ILogger",
    "module": MODULE,
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "plan": "IHostMemory",
    "profile": "IOptimizationProfile",
    "registry": "IPluginRegistry",
    "runtime": "Runtime",
    "tensor": "ITensor",
}
"""Variables, parameters and fields without a type of their own, in the whole package."""

YIELDS = {"errors": "ParserError", "inputs()": "ITensor"}
"""What variables and own functions give when they are gone through."""

NO_OBJECTS = {
    "data": "a buffer, as `write` takes it",
    "errors": "see YIELDS",
    "levels": "TilingOptimizationLevel: its names are looked up one by one (the settings that are offered tell)",
    "proto": "of the package onnx",
    "severity": "a member of ILogger.Severity, of which only the name is used",
    "shape": "Dims, which is gone through",
}
"""Names annotated as Any that are nothing whose members could be missing, and why."""

DESCRIBE = """
import dis, enum, importlib, inspect, json, re, sys
module = importlib.import_module(sys.argv[1])
def returned(member):
    text = (member.fget.__doc__ if isinstance(member, property) and member.fget else member.__doc__) or ""
    found = re.search(r"-> (?:[\\w.]+[.:])?(\\w+)", text)
    return found[1] if found else ""
def members(kind):
    told = {name: returned(getattr(kind, name, None)) for base in kind.__mro__ for name in vars(base)}
    told |= dict.fromkeys(re.findall(r"def (\\w+)\\(self", kind.__doc__ or ""), "")  # of IOutputAllocator: only named there
    told |= dict.fromkeys(getattr(kind, "__members__", ()), kind.__name__)
    if inspect.isfunction(kind.__init__):
        told |= {step.argval: "" for step in dis.get_instructions(kind.__init__) if step.opname == "STORE_ATTR"}
    return told | (dict.fromkeys(("name", "value"), "") if issubclass(kind, enum.Enum) else {})
classes = {name: members(getattr(module, name)) for name in dir(module) if inspect.isclass(getattr(module, name))}
print(json.dumps({"classes": classes, "functions": dict.fromkeys(set(dir(module)) - set(classes), "")}))
"""

Api = dict[str, dict[str, str]]
"""Class → member → the class that it is, or returns; "" where that is no class of the module."""


def described(name: str, environment: dict[str, str]) -> Api:
    """In a process of its own: this one loads no engine library."""
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBE, name], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    classes: Api = {
        name: {member: result if result in told["classes"] else "" for member, result in members.items()}
        for name, members in told["classes"].items()
    }
    module = {name: name for name in classes} | told["functions"]
    return {**classes, MODULE: module}


@pytest.fixture(scope="module")
def rtx(rtx_path: str) -> Api:
    return described("tensorrt_rtx_bindings", {"PYTHONPATH": rtx_path})


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Api:
    return described("tensorrt", Stage.make(tmp_path_factory.mktemp("conformance") / "stage").environment)


@dataclass
class Used:
    """What a source asks of the module."""

    needed: set[tuple[str, str]] = field(default_factory=set)
    """(class, member) that must be there."""
    tried: set[tuple[str, str]] = field(default_factory=set)
    """The same for what is asked for by hasattr or getattr with a default."""
    untyped: set[str] = field(default_factory=set)
    """Names annotated as Any that STANDS_FOR does not explain."""


class Reader(ast.NodeVisitor):
    """Follows the objects of one source file. `api` tells what a member returns."""

    def __init__(self, api: Api, used: Used) -> None:
        self._api = api
        self._used = used
        self._own: list[dict[str, str]] = [{}]
        """Per function: names with another meaning there, "" for none of the module's."""

    def _kind(self, node: ast.expr) -> str:
        """The class of an expression; "" where it is none of the module's."""
        match node:
            case ast.Name(id=name):
                return next((own[name] for own in reversed(self._own) if name in own), STANDS_FOR.get(name, ""))
            case ast.Attribute(value=value, attr=member):
                if kind := self._kind(value):
                    return self._api.get(kind, {}).get(member, "")
                return STANDS_FOR.get(member.lstrip("_"), "")
            case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(member)), *_]):
                return self._api.get(self._kind(value), {}).get(member, "")
            case ast.Call(func=function):
                return self._kind(function)
        return ""

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (kind := self._kind(node.value)) and not node.attr.startswith("__"):
            self._used.needed.add((kind, node.attr))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(
                func=ast.Name(id="hasattr" | "getattr" | "setattr" as how), args=[value, ast.Constant(value=str(member)), *rest]
            ):
                if kind := self._kind(value):
                    may_lack = how == "hasattr" or (how == "getattr" and rest)
                    (self._used.tried if may_lack else self._used.needed).add((kind, member))
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """A class of the module's that Python code implements: what it defines must be what the library calls."""
        for base in node.bases:
            if (kind := self._kind(base)) and kind != MODULE:
                methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
                self._used.needed.update((kind, name) for name in methods)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        own: dict[str, str] = {}
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            if argument.annotation is None:
                continue
            if ast.unparse(argument.annotation) == "Any":
                self._explained(argument.arg)
            else:
                own[argument.arg] = ""
        for each in ast.walk(node):
            if isinstance(each, ast.ExceptHandler) and each.name:
                own[each.name] = ""
            elif isinstance(each, ast.For | ast.comprehension) and isinstance(each.target, ast.Name):
                own[each.target.id] = YIELDS.get(
                    ast.unparse(each.iter).partition("(")[0] + "()" * isinstance(each.iter, ast.Call), ""
                )
        self._own.append(own)
        for statement in ast.walk(node):
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0].id
                if name not in STANDS_FOR and (kind := self._kind(statement.value)):
                    own[name] = kind
        self.generic_visit(node)
        self._own.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if ast.unparse(node.annotation) == "Any":
            self._explained(node.target.attr if isinstance(node.target, ast.Attribute) else ast.unparse(node.target))
        self.generic_visit(node)

    def _explained(self, name: str) -> None:
        if name.lstrip("_") not in STANDS_FOR.keys() | NO_OBJECTS.keys():
            self._used.untyped.add(name)


def read(api: Api, sources: Iterator[str] | list[str]) -> Used:
    used = Used()
    for source in sources:
        Reader(api, used).visit(ast.parse(source))
    return used


@pytest.fixture(scope="module")
def used(rtx: Api) -> Used:
    return read(rtx, [path.read_text() for path in SOURCES])


def lacking(api: Api, asked: set[tuple[str, str]]) -> list[str]:
    return sorted(f"{kind}.{member}" for kind, member in asked if member not in api.get(kind, {}))


def test_every_object_of_the_module_is_followed(used):
    assert used.untyped == set()


def test_the_whole_interface_is_in_use(used):
    """Otherwise the reading of sources, and with it every test below, would have stopped to work."""
    kinds = {kind for kind, _ in used.needed}
    assert kinds >= {MODULE, "Builder", "IBuilderConfig", "INetworkDefinition", "OnnxParser", "ParserError", "Runtime"}
    assert kinds >= {"ICudaEngine", "EngineInspector", "IProgressMonitor", "ILogger", "IPluginRegistry", "IOptimizationProfile"}
    assert ("IBuilderConfig", "build_route") in used.needed
    assert ("ICudaEngine", "get_engine_stat") in used.needed | used.tried


def test_real_tensorrt_rtx_has_all_that_is_asked_of_it(rtx, used):
    assert lacking(rtx, used.needed) == []


def test_real_tensorrt_rtx_has_what_is_asked_for_with_care(rtx, used):
    """A name that is misspelt there would never be found, and nobody would notice."""
    assert lacking(rtx, used.tried) == []


def test_the_stand_in_has_all_that_is_asked_of_it(stand_in, used):
    assert lacking(stand_in, used.needed) == []


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        ("builder.build_everything(network, config)", "Builder.build_everything"),
        ("builder.create_builder_config().build_rout = ''", "IBuilderConfig.build_rout"),
        ("library.module.Runtme(log.logger)", f"{MODULE}.Runtme"),
        ("runtime.deserialize_cuda_engine(plan).layer_count", "ICudaEngine.layer_count"),
        ("setattr(config, 'max_streams', 1)", "IBuilderConfig.max_streams"),
        ("module.ProfilingVerbosity.ALL", "ProfilingVerbosity.ALL"),
        ("class Mine(module.IProgressMonitor):\n  def step_done(self): ...", "IProgressMonitor.step_done"),
        ("def f():\n  stat = module.EngineStat\n  stat.NO_SUCH", "EngineStat.NO_SUCH"),
    ],
)
def test_a_member_that_does_not_exist_is_found(line, finding, rtx):
    assert finding in lacking(rtx, read(rtx, [line]).needed)


def test_an_object_that_is_not_followed_is_found(rtx):
    assert read(rtx, ["def f(gadget: Any): gadget.go()"]).untyped == {"gadget"}
