"""The driver stand-in, as far as kernels need it."""

from __future__ import annotations

import ctypes
import itertools
import sys
import traceback
from collections.abc import Callable
from functools import cache

Work = Callable[[bool], float]
"""Kernels: does what they do, returns seconds of device time. The argument: whether a graph replays them."""

ILLEGAL_ADDRESS = 700
_LAUNCH_FAILED = 719

_Trampoline = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_int)
_numbers = itertools.count(1)
_pending: dict[int, Work] = {}


class Fault(Exception):
    """What a kernel does to its context; the code is the driver's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error {code}")
        self.code = code


def _performed(token: int, replayed: int) -> float:
    try:
        return _pending[token](bool(replayed))
    except Fault as fault:
        return -fault.code
    except Exception:  # no exception may leave through C
        traceback.print_exc(file=sys.stderr)
        return -_LAUNCH_FAILED


_perform = _Trampoline(_performed)


@cache
def driver() -> ctypes.CDLL | None:
    """None without a GPU."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        if library.cuInit(ctypes.c_uint(0)):
            return None
        library.stand_in_owns.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        library.stand_in_enqueue.argtypes = [ctypes.c_void_p, _Trampoline, ctypes.c_void_p]
        library.stand_in_capturing.argtypes = [ctypes.c_void_p]
    except (OSError, AttributeError):  # no driver, or a real one
        return None
    return library


def enqueue(stream: int, work: Work) -> int:
    """Put work on a stream; the driver's error code. Captured work is kept, since its graph may be launched at any time."""
    library = driver()
    assert library is not None
    captured = capturing(stream)
    token = next(_numbers)
    _pending[token] = work
    try:
        return int(library.stand_in_enqueue(stream, _perform, token))
    finally:
        if not captured:
            del _pending[token]


def capturing(stream: int) -> bool:
    library = driver()
    return library is not None and bool(library.stand_in_capturing(stream))


def memory(address: int, size: int) -> ctypes.Array[ctypes.c_char]:
    """Device memory as bytes that can be read and written. Raises Fault where none was allocated."""
    library = driver()
    if library is None or not library.stand_in_owns(address, size):
        raise Fault(ILLEGAL_ADDRESS)
    return (ctypes.c_char * size).from_address(address)
