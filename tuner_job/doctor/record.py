"""The result file: what was tried and what came of it, under the signature of whoever ran it.

The file is one line of canonical JSON: `{"envelope": DSSE v1, "publicKey": PEM}`. The envelope's payload is the record's
canonical JSON. The key travels along so that everybody can see that nothing was changed since; whose key it is, and whether to
believe it, is for the reader's own trust root to say.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import FailFast, Field

from tuner_job.api.base import InputError, Model
from tuner_job.api.measurement import BuilderSetting, Candidate, Device, DeviceState, Digest, Seconds
from tuner_job.api.messages import Record
from tuner_job.api.outcome import Outcome
from tuner_job.store.attest import Envelope, Failure, VerificationFailed, seal, unseal
from tuner_job.store.keys import PublicKey, Signer, TrustRoot

PAYLOAD_TYPE = "application/vnd.trtfleet.doctor+json"
MAX_FILE_BYTES = 4 << 20


class Check(Model):
    """One thing that was tried."""

    name: str
    status: Literal["confirmed", "failed", "untried", "absent"]
    """`untried`: what it needs failed. `absent`: this library has no such thing, which is fine."""
    detail: str
    """One line: what was found, what is missing, or why it was not tried."""


class KnobFacts(Model):
    """The knob list in short."""

    tuner_version: str
    count: int
    bounded: int
    digest: Digest
    known: str = ""
    """Which list of doctor.known it equals; empty for one that trtfleet has not been tested against."""
    missing: str = ""
    """Why there are no knobs."""


class Tried(Model):
    """A candidate that was built, checked and timed."""

    candidate: Candidate
    outcome: Outcome
    reason: str = ""
    seconds: Seconds
    """Wall time of the whole trial."""
    latency_seconds: float | None = None
    same_engine: bool = False
    """Its fingerprint is a default build's."""


class Spread(Model):
    """What default builds and their sessions differ by, timed in turn: what any gain has to be seen against."""

    builds: int
    sessions: int
    """Per build."""
    throttled: int
    power_capped: int
    """Of all sessions."""
    clock: Literal["device", "host"]
    launch: Literal["direct", "cudaGraph"]
    latency_seconds: float
    """Median over the builds."""
    build_sd: float
    session_sd: float
    """Standard deviations of log seconds."""
    largest_difference: float
    """Between two default builds, relative: what a comparison of single builds could have taken for a gain."""
    design: str
    """What the final of a run would prove here."""


class DoctorRecord(Record):
    """Everything that was seen. Nothing in it is typed in by hand."""

    kind: Literal["Doctor"] = "Doctor"
    trtfleet: str
    """Version."""
    family: Literal["TensorRT", "ONNXRuntime"]
    device_type: Literal["CPU", "GPU"]
    machine: dict[str, str]
    """Operating system, processor, Python, the driver's own word."""
    versions: dict[str, str] = Field(default_factory=dict)
    device: Device | None = None
    state: DeviceState | None = None
    """Less other processes: they are the owner's business, and `checks` says whether there were any."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that can steer a build and were left set."""
    knobs: KnobFacts | None = None
    settings: Annotated[tuple[BuilderSetting, ...], FailFast()] = ()
    notes: tuple[str, ...] = ()
    model: str
    """`built in`, or the name of the user's file."""
    model_digest: Digest
    checks: Annotated[tuple[Check, ...], FailFast()] = Field(min_length=1)
    spread: Spread | None = None
    tried: Annotated[tuple[Tried, ...], FailFast()] = ()
    started_at: str
    seconds: Seconds

    @property
    def confirmed(self) -> bool:
        """Whether everything that this library can do was seen to work."""
        return all(check.status in ("confirmed", "absent") for check in self.checks)


class _File(Model):
    envelope: Envelope
    public_key: str


def write_result(record: DoctorRecord, signer: Signer) -> bytes:
    """The file's bytes."""
    envelope = Envelope.from_json(seal(record.to_json(), (signer,), PAYLOAD_TYPE))
    return _File(envelope=envelope, public_key=signer.public.pem.decode()).to_json() + b"\n"


def read_result(data: bytes, where: str) -> tuple[DoctorRecord, PublicKey]:
    """The record, unchanged since the holder of the returned key signed it. Whether to believe that key is the caller's to say.

    Raises VerificationFailed, InputError or KeyProblem, naming `where`.
    """
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{where}: {len(data)} bytes; a result has at most {MAX_FILE_BYTES}")
    try:
        json.loads(data, object_pairs_hook=_once)
        file = _File.from_json(data, where=where)
    except InputError as error:
        raise InputError(f"{error}; not a result of `trtfleet doctor`") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where}: not a result of `trtfleet doctor`: it is no JSON") from None
    key = PublicKey.from_pem(file.public_key.encode(), f"{where}, publicKey")
    opened = unseal(file.envelope.to_json(), TrustRoot([key], f"{where}, publicKey"), where, PAYLOAD_TYPE)
    return DoctorRecord.parse(opened.payload, where), key


def require_trusted(key: PublicKey, trust: TrustRoot, where: str) -> None:
    """Raises VerificationFailed when the reader's trust root does not hold the key."""
    if key.key_id not in trust.keys:
        raise VerificationFailed(
            Failure.UNTRUSTED_KEY,
            f"{where}: unchanged since it was signed by {key.key_id[:16]}, but that key is not in {trust.where}; if you know "
            f"whose it is, write the file's publicKey into a .pem file and name that with --trust",
        )


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field occurs twice")
    return found
