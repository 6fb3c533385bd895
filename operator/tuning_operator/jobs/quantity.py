"""Kubernetes quantities, as far as they have to be compared."""

from __future__ import annotations

import re
from decimal import Decimal

_FORM = re.compile(r"^([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?$")
_FACTORS = {
    **dict(zip("num", (Decimal(10) ** -9, Decimal(10) ** -6, Decimal(10) ** -3), strict=True)),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}


def amount(quantity: object) -> Decimal:
    """`"500m"` → 0.5, `"2Gi"` → 2147483648, 4 → 4. Raises ValueError for anything that is no quantity."""
    match = _FORM.match(str(quantity)) if isinstance(quantity, str | int) else None
    if match is None:
        raise ValueError(f"not a quantity: {quantity!r}")
    number, suffix, exponent = match.groups()
    return Decimal(number) * (_FACTORS[suffix] if suffix else Decimal(10) ** int(exponent or 0))
