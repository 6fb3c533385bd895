"""The examination for people, a line a check."""

from __future__ import annotations

from tuner_job.doctor.record import Check, DoctorRecord

MARKS = {"confirmed": "yes", "failed": "NO", "untried": "?", "absent": "-"}
"""How a line begins."""


def check_line(check: Check) -> str:
    return f"{MARKS[check.status]:>3}  {check.name:<24} {check.detail}"


def closing_lines(record: DoctorRecord) -> list[str]:
    """What is now known of this device class, and what is not."""
    where = record.device.product if record.device else f"this {record.device_type}"
    version = record.versions.get(record.family.lower(), "")
    what = " ".join(part for part in (record.family, version, "on", where) if part)
    done = [check.name for check in record.checks if check.status == "confirmed"]
    left = [check.name for check in record.checks if check.status in ("failed", "untried")]
    lines = [f"     note: {note}" for note in record.notes]
    lines += [f"confirmed for {what}: {', '.join(done) or 'nothing'}"]
    if left:
        lines.append(f"not confirmed: {', '.join(left)}")
    return lines
