"""Element types, and array files read without ever unpickling anything.

A reader looks at the header first: type and shape are checked against the model before the data is read, so a wrong or hostile
file costs no memory.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import ml_dtypes  # noqa: F401  (registers the names `bfloat16`, `float8_…` with numpy)
import numpy as np
import numpy.typing as npt

from tuner_job.api.base import InputError

Array = npt.NDArray[np.generic]

FLOATS = ("float16", "float32", "float64", "bfloat16")
SMALL_FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = {name: np.dtype(name) for name in (*FLOATS, *SMALL_FLOATS, *INTEGERS, "bool")}
"""Every element type that can be compared, little-endian."""

_UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error)

MAX_TENSOR_BYTES = 4 << 30
"""A bound on one tensor, against files whose header promises more than any memory holds."""


def dtype_of(name: str, where: str) -> np.dtype[np.generic]:
    """The numpy type called `name`. Raises InputError, naming `where`, for a type that cannot be compared."""
    try:
        return DTYPES[name]
    except KeyError:
        known = ", ".join(DTYPES)
        raise InputError(f"{where}: element type {name} is not supported; tensors may be {known}") from None


def raw_bytes(array: Array) -> memoryview:
    """The elements of a C-contiguous array as bytes, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def little_endian(array: Array) -> Array:
    """The same values, C-contiguous and little-endian."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)


@dataclass(frozen=True)
class ArrayFile:
    """An array whose header was read and whose data was not."""

    where: str
    """File and key, for messages."""
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int
    open: Callable[[], AbstractContextManager[IO[bytes]]]

    def stored_as(self, wanted: np.dtype[np.generic]) -> bool:
        """Whether the elements are of type `wanted`. numpy saves types that it does not know itself as void of the same size."""
        if self.dtype.kind == "V" and self.dtype.names is None and wanted.name in ("bfloat16", *SMALL_FLOATS):
            return self.dtype.itemsize == wanted.itemsize
        return self.dtype.newbyteorder("<") == wanted

    def read(self, wanted: np.dtype[np.generic]) -> Array:
        """The data as type `wanted` (for which `stored_as` holds). Raises InputError if the data is too short or too long."""
        size = math.prod(self.shape) * self.dtype.itemsize
        if size > MAX_TENSOR_BYTES:
            raise InputError(f"{self.where}: {size} bytes; a tensor may have at most {MAX_TENSOR_BYTES}")
        try:
            with self.open() as stream:
                stream.read(self.offset)
                data = read_exactly(stream, size, self.where)
        except _UNREADABLE as error:
            raise InputError(f"{self.where}: cannot be read: {error}") from None
        flat = data.view(self.dtype if self.dtype.kind != "V" else wanted).astype(wanted, copy=False)
        return flat.reshape(self.shape, order="F" if self.fortran_order else "C")


def read_exactly(stream: IO[bytes], size: int, where: str) -> npt.NDArray[np.uint8]:
    """`size` bytes up to the end of the stream. Raises InputError if there are fewer or more."""
    data = np.empty(size, np.uint8)
    filled = 0
    while filled < size and (block := stream.read(min(size - filled, 1 << 24))):
        data[filled : filled + len(block)] = np.frombuffer(block, np.uint8)
        filled += len(block)
    if filled < size:
        raise InputError(f"{where}: {filled} bytes of data where {size} are needed: the file is truncated")
    if stream.read(1):
        raise InputError(f"{where}: more than the {size} bytes of data that its shape needs")
    return data


_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""By format version. Version 3 exists only for structured types, which are no tensors."""


def open_npy(opener: Callable[[], AbstractContextManager[IO[bytes]]], where: str) -> ArrayFile:
    """Read the header of a `.npy` stream. Raises InputError for object and string arrays and for anything that is no array."""
    try:
        with opener() as stream:
            version = np.lib.format.read_magic(stream)
            shape, fortran_order, dtype = _HEADERS[version](stream)
            offset = stream.tell()
    except (ValueError, KeyError, *_UNREADABLE) as error:
        raise InputError(f"{where}: not a readable .npy array: {error}") from None
    if dtype.hasobject:
        raise InputError(f"{where}: holds Python objects, not numbers (a None or a ragged list?); such data is never unpickled")
    if dtype.kind in "SU":
        raise InputError(f"{where}: holds strings, which are not supported")
    if any(size < 0 for size in shape):
        raise InputError(f"{where}: its header gives the shape {list(shape)}")
    return ArrayFile(where, dtype, tuple(shape), fortran_order, offset, opener)


def open_npz(path: Path) -> dict[str, ArrayFile]:
    """Key → array of an `.npz` file, headers only. Raises InputError."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info.filename for info in archive.infolist()]
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a readable .npz file: {error}") from None
    arrays: dict[str, ArrayFile] = {}
    for member in members:
        key = member.removesuffix(".npy")
        if key in arrays:
            raise InputError(f"{path}: the key {key!r} is there twice")
        arrays[key] = open_npy(lambda member=member: _Member(path, member), f"{path} [{key}]")  # type: ignore[misc]
    return arrays


class _Member:
    """Opens one member of a zip file; both are closed at the end."""

    def __init__(self, path: Path, member: str) -> None:
        self._path, self._name = path, member

    def __enter__(self) -> IO[bytes]:
        self._archive = zipfile.ZipFile(self._path)
        try:
            self._stream = self._archive.open(self._name)
        except (RuntimeError, NotImplementedError) as error:  # encrypted, or an unknown compression
            self._archive.close()
            raise ValueError(str(error)) from None
        return self._stream

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._archive.close()
