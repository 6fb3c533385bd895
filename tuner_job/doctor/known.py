"""Knob lists that trtfleet was tested against, by digest."""

from __future__ import annotations

from tuner_job.doctor.record import KnobFacts
from tuner_job.routes.knobs import KnobList

KNOWN_LISTS = {
    "bc0911660bb2e75fce6fa8f7caaabeb8a6b25392be27700cdc8ce9f449efc0b9": "TensorRT 11.2.1.2 on Linux",
}
"""routes.knobs.KnobList.digest → where the list came from."""


def facts_of(knobs: KnobList) -> KnobFacts:
    """The list in short."""
    return KnobFacts(
        tuner_version=knobs.tuner_version,
        count=len(knobs),
        bounded=len(knobs.bounded),
        digest=knobs.digest,
        known=KNOWN_LISTS.get(knobs.digest, ""),
        missing=knobs.missing,
    )
