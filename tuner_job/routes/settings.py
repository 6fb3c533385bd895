"""Which builder settings a search varies, checked against what the backend offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner_job.api.base import InputError
from tuner_job.api.measurement import BuilderSetting
from tuner_job.routes.knobs import BadValue, nearest, show

WHERE = "search.builder.settings"


class UnknownSetting(InputError):
    """A name that the backend does not have."""

    reason = "UnknownSetting"


def select_settings(wanted: Mapping[str, Sequence[str]], offered: Sequence[BuilderSetting]) -> dict[str, tuple[str, ...]]:
    """Setting → values to try, each once, less its default: leaving the setting away tries that.

    Raises UnknownSetting with the nearest names, or BadValue with what is allowed.
    """
    known = {setting.name: setting for setting in offered}
    chosen = {}
    for name, values in wanted.items():
        if name not in known:
            raise UnknownSetting(f"{WHERE}: unknown setting {show(name)}{_hint(name, known)}")
        setting = known[name]
        for value in values:
            if not setting.accepts(value) or value != _plain(setting, value):
                raise BadValue(f"{WHERE}.{name}: {show(value)} is not allowed; allowed: {setting.allowed}")
        chosen[name] = tuple(dict.fromkeys(value for value in values if value != setting.default))
    return {name: values for name, values in chosen.items() if values}


def _plain(setting: BuilderSetting, value: str) -> str:
    """A number as everybody writes it: `03` and `3` would be two candidates."""
    return value if setting.values else str(int(value))


def _hint(name: str, known: Mapping[str, BuilderSetting]) -> str:
    if not known:
        return "; this runtime has no builder settings, so search its knobs"
    near = nearest(name, known)
    return f"; nearest: {', '.join(near)}" if near else f"; there are {', '.join(sorted(known))}"
