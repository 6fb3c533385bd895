"""Strategies by name, and the types that they speak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from tuner_job.api.base import InputError
from tuner_job.routes.knobs import show
from tuner_job.search.adaptive import Adaptive
from tuner_job.search.product import Expression, Full
from tuner_job.search.rounds import Budget, Done, Observation, Proposal, Strategy
from tuner_job.search.singles import Mixed, OneAtATime
from tuner_job.search.space import Flip, Flips, Space

__all__ = [
    "Budget",
    "Done",
    "Flip",
    "Flips",
    "Observation",
    "Proposal",
    "Space",
    "Strategy",
    "UnknownStrategy",
    "estimate",
    "strategy",
]

GROUP = "trtfleet.strategies"
"""Entry points of plug-ins: each a callable `(options: Mapping[str, str]) -> Strategy`."""

_BUILT_IN: dict[str, Callable[[Mapping[str, str]], Strategy]] = {
    "Adaptive": Adaptive,
    "OneAtATime": OneAtATime,
    "Mixed": Mixed,
    "Full": Full,
    "Expression": Expression,
}


class UnknownStrategy(InputError):
    """No strategy of that name can be loaded here."""

    reason = "UnknownStrategy"


def strategy(name: str, options: Mapping[str, str] | None = None) -> Strategy:
    """A built-in, or a plug-in of group `trtfleet.strategies`. Raises UnknownStrategy, or InputError for wrong options."""
    if name in _BUILT_IN:
        return _BUILT_IN[name](options or {})
    plugins = entry_points(group=GROUP)
    if name not in plugins.names:
        raise UnknownStrategy(
            f"search.strategy: no strategy {show(name)}; there are {', '.join([*_BUILT_IN, *sorted(plugins.names)])}; "
            f"a plug-in must be installed where trtfleet runs (entry point group {GROUP})"
        )
    try:
        made = plugins[name].load()(options or {})
    except InputError:
        raise
    except Exception as error:  # a plug-in may fail in any way
        raise UnknownStrategy(f"search.strategy: {show(name)} does not load: {type(error).__name__}: {error}") from error
    if not isinstance(made, Strategy):
        raise UnknownStrategy(f"search.strategy: {show(name)} makes no Strategy: next_round and estimate are needed")
    return made


def estimate(chosen: Strategy, space: Space, budget: Budget) -> int:
    """Trials that the strategy will want at most, before anything ran. Raises InputError for a search that cannot work."""
    return max(0, min(chosen.estimate(space, budget), budget.trials))
