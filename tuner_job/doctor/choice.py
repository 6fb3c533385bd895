"""Which few candidates the doctor tries."""

from __future__ import annotations

from collections.abc import Sequence

from tuner_job.api.measurement import BuilderSetting
from tuner_job.routes.knobs import Knob, KnobList


def chosen_knobs(knobs: KnobList, count: int) -> list[tuple[Knob, str]]:
    """So many bounded knobs from all over the list, each with a value that is not its default."""
    usable = []
    for knob in knobs.bounded:
        other = next((value for value in knob.values or () if value != knob.default), None)
        if other is not None:
            usable.append((knob, other))
    wanted = min(count, len(usable))
    return [usable[k * len(usable) // wanted] for k in range(wanted)]


def chosen_setting(settings: Sequence[BuilderSetting]) -> tuple[str, str] | None:
    """A builder setting with a value that is not its default: the optimization level, where there is one."""
    for setting in sorted(settings, key=lambda one: one.name != "optimizationLevel"):
        if setting.values:
            value = next((value for value in setting.values if value != setting.default), None)
        else:
            low = setting.default.isdigit() and int(setting.default) > setting.low
            value = str(int(setting.default) - 1) if low else str(setting.low)
            value = None if value == setting.default else value
        if value is not None:
            return setting.name, value
    return None
