"""The TensorRT family by Python module: which one is there, its version, what it offers.

TensorRT and TensorRT for RTX share their Python interface; what one of them lacks is asked of its objects, never of its version,
but for the reason that people read.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from dataclasses import dataclass
from typing import Any

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.backends.tensorrt.log import Log, one_line
from tuner_job.routes.knobs import no_knobs, parse_knob_list

MODULES = {
    "tensorrt": ("tensorrt", "tensorrt_bindings"),
    "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
}
"""Backend → modules to try. The second is the same module where pip's meta package, which only renames it, is not installed."""

_OLDEST = 10
"""Major version; TensorRT 8 names tensors and builds networks in another way."""
_CUDA = ("cu12", "cu13", "cu14")


class NoBuilder(TrtfleetError):
    """The library is there but makes no builder: no GPU, or a part of it is missing."""

    reason = "NoBuilder"


@dataclass(frozen=True)
class Library:
    """One module of the family."""

    name: str
    """Of the backend: `tensorrt` or `tensorrt_rtx`."""
    module: Any
    """A C extension without types."""
    version: str

    @property
    def is_rtx(self) -> bool:
        return self.name == "tensorrt_rtx"

    @property
    def title(self) -> str:
        """For people: `TensorRT 11.2.1.2`."""
        return f"TensorRT for RTX {self.version}" if self.is_rtx else f"TensorRT {self.version}"

    @property
    def major(self) -> int:
        return _numbers(self.version)[0]

    def versions(self) -> dict[str, str]:
        """The module's own and the CUDA that pip's package was built for, where a package says so."""
        for cuda in _CUDA:
            try:
                importlib.metadata.version(f"{self.name.replace('_', '-')}-{cuda}-bindings")
            except importlib.metadata.PackageNotFoundError:
                continue
            return {self.name: self.version, "cuda": cuda.removeprefix("cu")}
        return {self.name: self.version}

    def builder(self, log: Log) -> Any:
        """A new builder. Raises NoBuilder with the library's log: the exception itself says only that a factory returned null."""
        log.clear()
        try:
            builder = self.module.Builder(log.logger)
        except (TypeError, RuntimeError) as error:
            raise NoBuilder(f"{self.title} cannot make a builder: {log.text() or one_line(str(error))}") from None
        if builder is None:
            raise NoBuilder(f"{self.title} cannot make a builder: {log.text() or 'it does not say why'}")
        return builder

    def knob_text(self, config: Any) -> str:
        """What a builder config lists in `all_build_routes`; without a usable list the text says why (routes.knobs.no_knobs)."""
        missing = self._missing(config)
        return no_knobs(missing) if missing else str(config.all_build_routes)

    def _missing(self, config: Any) -> str:
        if self.is_rtx:
            return f"{self.title} has no tuner"
        if sys.platform == "win32":
            return f"{self.title} has no tuner on Windows"
        try:
            if not (hasattr(config, "build_route") and hasattr(config, "all_build_routes")):
                return f"{self.title} has no tuner, which came with TensorRT 11.1"
            text = config.all_build_routes
            if not isinstance(text, str) or not text.strip():
                return (
                    f"{self.title} has no tuner in this build: it lists no knobs (all_build_routes is empty), as on Windows and "
                    f"in safety builds"
                )
            parse_knob_list(text)
        except (InputError, RuntimeError, UnicodeDecodeError) as error:
            return f"{self.title} lists knobs that cannot be read: {one_line(str(error))}"
        return ""


def find(name: str) -> Library:
    """The library of a backend. Raises InputError that says what to install."""
    trouble = []
    for candidate in MODULES[name]:
        try:
            module = importlib.import_module(candidate)
        except ModuleNotFoundError as error:
            if error.name != candidate:
                trouble.append(f"{candidate}: {one_line(str(error))}")
            continue
        except (ImportError, OSError, RuntimeError) as error:
            trouble.append(f"{candidate}: {one_line(str(error))}")
            continue
        return _checked(Library(name, module, str(getattr(module, "__version__", ""))))
    if trouble:
        raise InputError(
            f"backend {name}: its Python module cannot be imported ({'; '.join(trouble)}); install it for this Python with the "
            f"library package beside it, or put the library's folder on LD_LIBRARY_PATH"
        )
    package = "tensorrt-rtx" if name == "tensorrt_rtx" else "tensorrt"
    raise InputError(
        f"backend {name}: no Python module {' or '.join(MODULES[name])} in this worker; install {package} (pip, or an image "
        f"that has it)"
    )


def _checked(library: Library) -> Library:
    lacking = [part for part in ("Builder", "OnnxParser", "Runtime", "ILogger") if not hasattr(library.module, part)]
    if lacking:
        raise InputError(
            f"backend {library.name}: module {library.module.__name__} has no {', '.join(lacking)}, so it cannot build; "
            f"install the full library, not its lean or dispatch runtime"
        )
    if not library.is_rtx and library.major < _OLDEST:
        raise InputError(f"backend {library.name}: {library.title} is too old; install TensorRT {_OLDEST}.0 or newer")
    return library


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:4]) or (0,)
