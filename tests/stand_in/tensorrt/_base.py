"""What every object of the library shares: the logger, the error recorder, shapes, memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from . import _enums
from ._enums import DataType, ErrorCodeTRT, Severity


class ILogger:
    Severity = _enums.Severity
    INTERNAL_ERROR = Severity.INTERNAL_ERROR
    ERROR = Severity.ERROR
    WARNING = Severity.WARNING
    INFO = Severity.INFO
    VERBOSE = Severity.VERBOSE

    def log(self, severity: _enums.Severity, msg: str) -> None:
        raise NotImplementedError


class Logger(ILogger):
    def __init__(self, min_severity: _enums.Severity = Severity.WARNING) -> None:
        self.min_severity = min_severity

    def log(self, severity: _enums.Severity, msg: str) -> None:
        if severity <= self.min_severity:
            print(f"[TRT] [{severity.name[0]}] {msg}", file=sys.stderr)


class IErrorRecorder:
    """To be derived from, as the real one."""

    def num_errors(self) -> int:
        raise NotImplementedError

    def get_error_code(self, arg0: int) -> ErrorCodeTRT:
        raise NotImplementedError

    def get_error_desc(self, arg0: int) -> str:
        raise NotImplementedError

    def has_overflowed(self) -> bool:
        raise NotImplementedError

    def clear(self) -> None:
        raise NotImplementedError

    def report_error(self, arg0: ErrorCodeTRT, arg1: str) -> bool:
        raise NotImplementedError


class Speaker:
    """Something with a logger, and with an error recorder where one is set."""

    def __init__(self, logger: ILogger) -> None:
        self.logger = logger
        self.error_recorder: IErrorRecorder | None = None

    def fail(self, where: str, text: str, code: ErrorCodeTRT = ErrorCodeTRT.INTERNAL_ERROR, kind: str = "Internal Error") -> None:
        """An error as the library words it."""
        self.logger.log(Severity.ERROR, f"{where}: Error Code {int(code)}: {kind} ({text})")
        if self.error_recorder is not None:
            self.error_recorder.report_error(code, text)

    def misuse(self, where: str, text: str) -> None:
        self.fail(where, text, ErrorCodeTRT.INVALID_ARGUMENT, "API Usage Error")

    def say(self, severity: Severity, text: str) -> None:
        self.logger.log(severity, text)


class Dims:
    """A sequence of numbers that equals tuples and lists, and cannot be compared with its own kind."""

    MAX_DIMS = 8

    def __init__(self, shape: Sequence[int] = ()) -> None:
        self._sizes = tuple(int(size) for size in shape)

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: Any) -> Any:
        return self._sizes[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._sizes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | list):
            raise TypeError("__eq__(): incompatible function arguments")
        return self._sizes == tuple(other)

    def __repr__(self) -> str:
        return repr(self._sizes)


class IHostMemory(bytes):
    """A buffer without a length, as the real one."""

    @property
    def nbytes(self) -> int:
        return bytes.__len__(self)

    @property
    def dtype(self) -> DataType:
        return DataType.INT8

    def __len__(self) -> int:
        raise TypeError("object of type 'tensorrt.IHostMemory' has no len()")

    def __bool__(self) -> bool:
        return True
