"""The examination for people, a line a check."""

from __future__ import annotations

from tuner_job.api.measurement import Device
from tuner_job.doctor.record import Check, DoctorRecord, KnobFacts

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


def device_text(device: Device) -> str:
    if device.type == "CPU":
        parts = (device.product, f"{device.count} cores", device.compute_capability, f"kernel {device.driver}")
    else:
        capability = f"compute capability {device.compute_capability}"
        parts = (device.product, device.mig_profile, capability, f"driver {device.driver}")
    return ", ".join(part for part in parts if part)


def knobs_text(facts: KnobFacts, family: str) -> str:
    known = f"the list of {facts.known}" if facts.known else "a list that trtfleet was not tested against"
    if family != "TensorRT":
        known = "made for this device"  # trtfleet lists ONNX Runtime's options itself
    bounded = f"{facts.bounded} of them bounded"
    return f"{facts.count} knobs, {bounded}, tuner {facts.tuner_version}, {facts.digest[:12]}: {known}"
