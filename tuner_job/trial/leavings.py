"""What a child left in its folder. All of it is the child's: it may be anything, of any size."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from tuner_job.api.base import InputError
from tuner_job.api.child import ENGINE_FILE, MAX_REPORT_BYTES, ChildReport, ChildRequest


def read_report(path: Path) -> tuple[ChildReport | None, str]:
    """The report, or why there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, "left no report"
    except OSError as error:
        return None, f"its report cannot be opened: {error.strerror}"
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return None, "its report is not a regular file"
        if status.st_size > MAX_REPORT_BYTES:
            return None, f"its report has {status.st_size} bytes (limit {MAX_REPORT_BYTES})"
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(MAX_REPORT_BYTES)
    finally:
        os.close(handle)
    try:
        return ChildReport.from_json(data, where="its report cannot be used"), ""
    except InputError as error:
        return None, str(error)[:500]


def lacks(report: ChildReport, request: ChildRequest, output: Path) -> str:
    """What a report that says ok does not hold though the operation promises it; "" if nothing."""
    if report.status != "ok":
        return ""
    operation = request.operation
    if operation == "describe":
        missing = report.device is None or report.knobs is None or not report.versions
    elif operation == "time":
        missing = set(report.timings) != set(request.engines) or any(
            len(t) != len(request.cases) for t in report.timings.values()
        )
    elif operation == "inspect":
        missing = set(report.layers) != set(request.engines)
    elif operation == "reference":
        missing = not output.is_dir() or not any(output.iterdir())
    else:
        engine = output / ENGINE_FILE
        checked = report.losses is not None or operation == "compile"
        built = report.engine is not None and checked and engine.is_file() and not engine.is_symlink()
        missing = not built or (report.engine is not None and engine.stat().st_size != report.engine.size)
        valid = report.losses is not None and not report.losses.problems
        missing = missing or (operation == "trial" and valid and len(report.timing) != len(request.cases))
    return f"its report says ok without all that `{operation}` promises" if missing else ""


def is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def move(source: Path, target: Path) -> None:
    """Rename, or copy beside the target and rename, so that the target appears whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except OSError:
        aside = Path(tempfile.mkdtemp(prefix=".output-", dir=target.parent))
        try:
            shutil.copytree(source, aside, symlinks=True, dirs_exist_ok=True)
            aside.chmod(0o755)
            aside.rename(target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
