"""`python -m tuner_job.doctor.table FOLDER PAGE`: the table of confirmed device classes, from result files and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.doctor.record import DoctorRecord, read_result
from tuner_job.store.folder import written_aside

BEGIN = "<!-- confirmed: written by scripts/confirmed from docs/confirmed; do not edit -->"
END = "<!-- /confirmed -->"

FAMILIES = ("TensorRT", "ONNXRuntime")
_HEAD = (
    "device class",
    "runtime",
    "driver or kernel",
    "knobs",
    "confirmed",
    "not confirmed",
    "noise: builds, sessions",
    "result",
)
NOT_RUN = "not yet run"


def confirmed_table(folder: Path) -> str:
    """A row for each result in `folder`, in order of family, device and version; a family without one has a row that says so.

    Raises InputError or VerificationFailed for a file that is no result, or was changed since it was signed.
    """
    read = [(path, read_result(path.read_bytes(), path.name)[0]) for path in sorted(folder.glob("*.json"))]
    lines = [_line(_HEAD), _line("---" for _ in _HEAD)]
    for family in FAMILIES:
        rows = sorted((_row(path, record) for path, record in read if record.family == family))
        lines += [_line(row) for row in rows] or [_line(("any", family, "", "", NOT_RUN, "", "", ""))]
    return "\n".join(lines)


def write_table(folder: Path, page: Path) -> bool:
    """Put the table between the page's marks; whether that changed the page. Raises InputError for a page without marks."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{page}: has no place for the table; it lies between `{BEGIN}` and `{END}`")
    new = f"{before}{BEGIN}\n{confirmed_table(folder)}\n{END}{after}"
    if new == text:
        return False
    with written_aside(page) as file:
        file.write(new.encode())
    return True


def _row(path: Path, record: DoctorRecord) -> tuple[str, ...]:
    device, knobs, spread = record.device, record.knobs, record.spread
    names = {
        status: [check.name for check in record.checks if check.status == status] for status in ("confirmed", "failed", "untried")
    }
    where = ""
    if device is not None:
        capability = f"compute capability {device.compute_capability}" if device.type == "GPU" else f"{device.count} cores"
        where = ", ".join(part for part in (device.product, device.mig_profile, capability) if part)
    listed = ""
    if knobs is not None:
        listed = knobs.missing or f"{knobs.count}, tuner {knobs.tuner_version}"
    return (
        where or f"{record.device_type}, not seen",
        f"{record.family} {record.versions.get(record.family.lower(), '')}".strip(),
        device.driver if device else "",
        listed,
        ", ".join(names["confirmed"]) or "nothing",
        ", ".join(names["failed"] + names["untried"]),
        f"{spread.build_sd:.2%}, {spread.session_sd:.2%}" if spread else "",
        f"[{record.started_at[:10]}](confirmed/{path.name})",
    )


def _line(cells: Iterable[str]) -> str:
    texts = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
    return f"| {' | '.join(texts)} |"


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0, or 64 when a file or the page is not as it should be."""
    folder, page = map(Path, arguments)
    try:
        changed = write_table(folder, page)
    except TrtfleetError as error:
        sys.stderr.write(f"confirmed: {error}\n")
        return 64
    sys.stdout.write(f"{page}: {'written' if changed else 'unchanged'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
