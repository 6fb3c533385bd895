"""Which module is taken for TensorRT, what it offers, and what a worker without it is told."""

import importlib
import json
import sys
from types import SimpleNamespace

import pytest

from tuner_job.api.base import InputError
from tuner_job.backends.tensorrt.library import MODULES, Library, NoBuilder, find
from tuner_job.backends.tensorrt.log import Log
from tuner_job.routes.knobs import parse_knob_list

FULL = """
__version__ = "{version}"
class ILogger: pass
class Builder: pass
class OnnxParser: pass
class Runtime: pass
"""
KNOBS = '{"tuner_version": "2", "tuner_options": [{"option": "-a", "allowed_values": "-a=[on|off]", "default_value": "on"}]}'


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Writes modules where Python finds them; no module of the family outlives the test."""
    monkeypatch.syspath_prepend(tmp_path)
    for names in MODULES.values():
        for name in names:
            monkeypatch.delitem(sys.modules, name, raising=False)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()  # a folder that changed twice within one tick of its time looks unchanged

    yield write
    for names in MODULES.values():
        for name in names:
            sys.modules.pop(name, None)


def library(name: str = "tensorrt", version: str = "11.2.1.2", **module) -> Library:
    return Library(name, SimpleNamespace(**module), version)


class Logger:
    """A base class as the library's."""

    def log(self, severity, message):
        raise NotImplementedError


def log() -> Log:
    return Log(SimpleNamespace(ILogger=Logger))


def test_the_module_by_its_usual_name_comes_first(install):
    install("tensorrt", FULL.format(version="11.2.1.2"))
    install("tensorrt_bindings", FULL.format(version="10.9.0.34"))
    found = find("tensorrt")
    assert (found.module.__name__, found.version, found.title) == ("tensorrt", "11.2.1.2", "TensorRT 11.2.1.2")
    assert (found.is_rtx, found.major) == (False, 11)


def test_the_bindings_serve_where_the_meta_package_is_missing(install):
    install("tensorrt_rtx_bindings", FULL.format(version="1.7.1.116"))
    found = find("tensorrt_rtx")
    assert (found.module.__name__, found.is_rtx, found.title) == ("tensorrt_rtx_bindings", True, "TensorRT for RTX 1.7.1.116")


def test_the_bindings_serve_where_the_meta_package_is_broken(install):
    install("tensorrt", "raise ImportError('no tensorrt_libs')")
    install("tensorrt_bindings", FULL.format(version="11.2.1.2"))
    assert find("tensorrt").module.__name__ == "tensorrt_bindings"


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        ({}, ["no Python module tensorrt or tensorrt_bindings", "install tensorrt"]),
        (
            {"tensorrt": "raise ImportError('libnvinfer.so.11: cannot open shared object file')"},
            ["libnvinfer.so.11: cannot open", "LD_LIBRARY_PATH"],
        ),
        ({"tensorrt": "import no_such_part"}, ["no_such_part"]),
        ({"tensorrt": FULL.format(version="8.6.1")}, ["TensorRT 8.6.1 is too old", "10.0"]),
        (
            {"tensorrt": "__version__ = '11.2'\nclass ILogger: pass\nclass Runtime: pass"},
            ["no Builder, OnnxParser", "full library"],
        ),
    ],
    ids=["absent", "library missing", "part missing", "old", "lean"],
)
def test_what_is_missing_is_said_with_the_remedy(install, modules, says):
    for name, text in modules.items():
        install(name, text)
    with pytest.raises(InputError) as caught:
        find("tensorrt")
    assert [words for words in says if words not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_a_knob_list_is_handed_on_as_it_is():
    config = SimpleNamespace(build_route="", all_build_routes=KNOBS)
    assert library().knob_text(config) == KNOBS


class Raises:
    build_route = ""

    @property
    def all_build_routes(self):
        raise RuntimeError("not compiled in")


@pytest.mark.parametrize(
    ("found", "config", "says"),
    [
        (library(version="10.9.0.34"), SimpleNamespace(), "TensorRT 10.9.0.34 has no tuner"),
        (library(), SimpleNamespace(build_route=""), "has no tuner, which came with TensorRT 11.1"),
        (library("tensorrt_rtx", "1.7"), SimpleNamespace(build_route="", all_build_routes=KNOBS), "TensorRT for RTX 1.7 has no"),
        (library(), SimpleNamespace(build_route="", all_build_routes=""), "lists no knobs"),
        (library(), SimpleNamespace(build_route="", all_build_routes=None), "lists no knobs"),
        (library(), SimpleNamespace(build_route="", all_build_routes="{"), "not JSON"),
        (library(), SimpleNamespace(build_route="", all_build_routes='{"tuner_options": []}'), "no knobs in it"),
        (library(), Raises(), "not compiled in"),
    ],
)
def test_without_a_usable_list_the_reason_takes_its_place(found, config, says):
    text = found.knob_text(config)
    assert says in parse_knob_list(text).missing
    assert json.loads(text)["tuner_options"] == []


def test_windows_has_no_tuner(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    config = SimpleNamespace(build_route="", all_build_routes=KNOBS)
    assert "Windows" in parse_knob_list(library().knob_text(config)).missing


def test_no_builder_is_explained_by_the_librarys_own_log():
    kept = log()

    def builder(logger):
        logger.log(SimpleNamespace(name="ERROR"), "createInferBuilder: CUDA initialization failure with error: 35")
        raise TypeError("pybind11::init(): factory function returned nullptr")

    with pytest.raises(NoBuilder, match="CUDA initialization failure with error: 35") as caught:
        library(Builder=builder).builder(kept)
    assert "nullptr" not in str(caught.value)


def test_no_builder_without_a_word_says_what_python_says():
    def builder(logger):
        raise TypeError("factory function returned nullptr")

    with pytest.raises(NoBuilder, match="factory function returned nullptr"):
        library(Builder=builder).builder(log())
