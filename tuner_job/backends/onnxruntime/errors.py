"""ONNX Runtime's messages as one line for people."""

from __future__ import annotations

import re

import onnxruntime as ort

_MAX = 400
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_SOURCE = re.compile(r"/\S+\.(?:cc|h|hpp):\d+ .*?\)(?: const)? (?=\S)")  # file:line and the C++ signature after it
_OPSET = re.compile(
    r"Opset (\d+) is under development.*?Current official support for domain (\S*) is till opset (\d+)", re.DOTALL
)
_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_UNKNOWN = re.compile(r"(?:Fatal error: |No Op registered for )([\w.:]+)")
_NO_KERNEL = re.compile(r"(?:Could not find an implementation for|Failed to find kernel for) (\S+)")


def one_line(error: BaseException) -> str:
    """The library's message without its source locations, at most 400 characters."""
    text = _SOURCE.sub("", _PREFIX.sub("", " ".join(str(error).split())))
    return text if len(text) <= _MAX else text[: _MAX - 1] + "…"


def explain_bad_model(name: str, error: BaseException, component: str) -> str:
    """Why `component` cannot take the model `name`: what is wrong, its limit, what to do."""
    text = " ".join(str(error).split())
    who = f"{component} (ONNX Runtime {ort.__version__})"
    if match := _OPSET.search(text):
        domain = match[2] or "ai.onnx"
        return f"{name}: {who} refuses opset {match[1]} of {domain}; its maximum is {match[3]}. Export with an older opset."
    if match := _IR.search(text):
        return f"{name}: {who} refuses ONNX IR version {match[1]}; its maximum is {match[2]}. Export with an older IR version."
    if "is not a registered function/op" in text or "No Op registered for" in text:
        operator = match[1] if (match := _UNKNOWN.search(text)) else "?"
        return f"{name}: {who} does not know operator {operator}; a plugin that brings it is needed."
    if match := _NO_KERNEL.search(text):
        return f"{name}: {who} has no kernel for operator {match[1]} with these types; use another variant or a plugin."
    if "Protobuf parsing failed" in text or "INVALID_PROTOBUF" in text:
        return f"{name}: not an ONNX model, or a truncated one ({who} cannot parse it)."
    if "external data" in text.lower() or "external initializer" in text.lower():
        return f"{name}: its external data cannot be read; keep the data files beside the model. {one_line(error)}"
    return f"{name}: {who} cannot load it: {one_line(error)}"
