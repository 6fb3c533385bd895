"""Options of strategies: text in the job, typed in the strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner_job.api.base import InputError
from tuner_job.routes.knobs import show


def check_names(strategy: str, options: Mapping[str, str], known: Sequence[str]) -> None:
    """Raise InputError for an option that the strategy does not have."""
    for name in options:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InputError(f"search.options: {strategy} has no option {show(name)}; {has}")


def integer(options: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not low <= int(text[:12]) <= high:
        raise InputError(f"search.options.{name}: {show(text)}; write an integer from {low} to {high}")
    return int(text)


def number(options: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    text = options.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise InputError(f"search.options.{name}: {show(text)}; write a number from {low} to {high}")
    return value


def choice(options: Mapping[str, str], name: str, values: Sequence[str]) -> str:
    """One of the values; the first is the default."""
    text = options.get(name, values[0])
    if text not in values:
        raise InputError(f"search.options.{name}: {show(text)}; write one of {', '.join(values)}")
    return text
