"""A folder that children find TensorRT and a GPU in: the stand-ins, with one test's own script beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stand_in.build import libraries

PACKAGE = Path(__file__).parent / "tensorrt"
TRUTH = Path(__file__).parent / "device_truth.py"
KNOBS = Path(__file__).parents[1] / "data" / "all_build_routes-11.2.1.2.json"


@dataclass(frozen=True)
class Stage:
    """`python/` holds the package and `script.json`, `lib/` the driver and `device.txt`."""

    folder: Path

    @staticmethod
    def make(folder: Path, script: Mapping[str, Any] | None = None, device: Sequence[str] = ()) -> Stage:
        """`script`: see `tensorrt/_script.py`; `device`: lines of `device.txt`, see `cuda/device.h`. Raises NoCompiler."""
        stage = Stage(folder)
        stage.python.mkdir(parents=True)
        stage.lib.mkdir()
        for part in (PACKAGE, TRUTH):
            (stage.python / part.name).symlink_to(part)
        for library in libraries().iterdir():
            (stage.lib / library.name).symlink_to(library)
        stage.write(script or {}, device)
        return stage

    @property
    def python(self) -> Path:
        return self.folder / "python"

    @property
    def lib(self) -> Path:
        return self.folder / "lib"

    @property
    def plugin(self) -> Path:
        """A library that brings every operator which ONNX does not know."""
        return self.lib / "libplugin.so"

    def write(self, script: Mapping[str, Any], device: Sequence[str] = ()) -> None:
        """For children that start from now on."""
        (self.python / "script.json").write_text(json.dumps(script))
        (self.lib / "device.txt").write_text("".join(f"{line}\n" for line in device))
        version = script.get("version", "11.2.1.2")
        for old in self.python.glob("tensorrt-*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        installed = self.python / f"tensorrt-{version}.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorrt\nVersion: {version}\n")

    @property
    def environment(self) -> dict[str, str]:
        """What leads a child here: nothing else of the product knows."""
        return {"PYTHONPATH": os.fspath(self.python), "LD_LIBRARY_PATH": os.fspath(self.lib)}

    def count(self, what: str) -> int:
        """How many of `build`, `cacheHit` or `process` there were."""
        return len(list((self.python / "counters").glob(f"{what}-*")))
