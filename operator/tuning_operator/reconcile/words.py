"""What other people wrote (workers, schedulers, webhooks), made fit for a condition. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

LINE_BYTES = 192
"""Of a condition's message, in UTF-8: with it a full status stays under 64 KiB whatever letters it is written in."""

_WORD = re.compile(r"[A-Za-z]{1,32}", re.ASCII)


def line(text: str, most: int = LINE_BYTES) -> str:
    """One line of printable characters, cut to `most` bytes with an ellipsis."""
    plain = " ".join("".join(each if each.isprintable() else " " for each in text[: 8 * most]).split())
    encoded = plain.encode()
    if len(encoded) <= most:
        return plain
    return encoded[: most - 3].decode(errors="ignore").rstrip() + "…"


def end(text: str, most: int) -> str:
    """The end of it, for those who say the cause last."""
    encoded = line(text, 8 * most).encode()
    return encoded.decode() if len(encoded) <= most else "…" + encoded[3 - most :].decode(errors="ignore").lstrip()


def word(reason: str, otherwise: str) -> str:
    """A reason as a condition may carry it. A worker's own is its word for it, and may be anything."""
    return reason if _WORD.fullmatch(reason) else otherwise


def stamp(time: datetime) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parsed(time: str | None) -> datetime | None:
    """The time that a record or a status names; None when it names none. Without a zone it is UTC."""
    if time is None:
        return None
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def seconds_since(time: datetime | None, now: datetime) -> float:
    """0 when it is not known, or still to come."""
    return max(0.0, (now - time).total_seconds()) if time else 0.0


def percent(gain: str | None) -> str:
    """`12.3%` for the decimal `"0.123"`; empty for none."""
    return f"{100 * float(gain):.1f}%" if gain else ""


def count(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
