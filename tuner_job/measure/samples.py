"""Samples as they are stored, and the session that holds them."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.measurement import Session, Timing

Floats = npt.NDArray[np.float64]

INFLATED_BYTES = 64 << 20
"""Of one session's samples. What inflates to more was not measured."""


class InvalidTiming(TrtfleetError):
    """A timer returned something that cannot be a latency."""

    reason = "InvalidTiming"


def pack(samples: Floats) -> str:
    """Base64 of zlib of little-endian float32 seconds.

    float32 keeps 7 digits, far below timer resolution. Equal samples give equal text.
    """
    return base64.b64encode(zlib.compress(np.asarray(samples, dtype="<f4").tobytes(), 9)).decode("ascii")


def unpack(text: str) -> Floats:
    """The samples in seconds, shape (count,); raises InputError if `text` was not made by `pack`."""
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(text, validate=True), INFLATED_BYTES)
        samples = np.frombuffer(data, dtype="<f4").astype(np.float64)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise InputError(f"samples: not base64 of zlib of float32 seconds: {error}", reason="PoisonedRecord") from None
    if not inflater.eof:
        raise InputError(f"samples: cut off, or more than {INFLATED_BYTES} bytes", reason="PoisonedRecord")
    return samples


def latencies(samples: npt.ArrayLike) -> Floats:
    """`samples` as float64 seconds; raises InvalidTiming unless they are a row of at least one positive number."""
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.all(np.isfinite(values) & (values > 0)):
        raise InvalidTiming(f"timer: expected a row of positive seconds, got shape {values.shape} with {values.ravel()[:3]}")
    return values


def session(at: float, samples: Floats, throttled: bool = False) -> Session:
    """A session from latencies in seconds, shape (count,).

    Median and mean are those of the samples as stored, so that a reader who unpacks them finds the same numbers.
    Raises InvalidTiming for no samples, or one that is not a positive number.
    """
    stored = latencies(np.asarray(samples, dtype="<f4"))
    return Session(
        at=at,
        median=float(np.median(stored)),
        mean=float(np.mean(stored)),
        count=stored.size,
        samples=pack(stored),
        throttled=throttled,
    )


def without_samples(timings: Sequence[Timing]) -> tuple[Timing, ...]:
    """The same timings with each session's median, mean and count, but no samples: enough for any metric but LatencyP99."""
    return tuple(
        one.model_copy(update={"sessions": tuple(s.model_copy(update={"samples": ""}) for s in one.sessions)}) for one in timings
    )
