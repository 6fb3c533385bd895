from __future__ import annotations

import pytest

from tuner_job.api.base import InputError
from tuner_job.api.measurement import BuilderSetting
from tuner_job.routes.settings import select_settings

OFFERED = (
    BuilderSetting(name="optimizationLevel", low=0, high=5, default="3"),
    BuilderSetting(name="maxAuxStreams", low=-1, high=8, default="-1"),
    BuilderSetting(name="tf32", values=("on", "off"), default="on"),
)


def test_values_are_kept_in_order_once_each_and_less_the_default() -> None:
    wanted = {"optimizationLevel": ("5", "3", "4", "5"), "tf32": ("off",), "maxAuxStreams": ("0",)}
    assert select_settings(wanted, OFFERED) == {"optimizationLevel": ("5", "4"), "tf32": ("off",), "maxAuxStreams": ("0",)}
    assert select_settings({"tf32": ("on",)}, OFFERED) == {}
    assert select_settings({}, ()) == {}


@pytest.mark.parametrize(
    ("wanted", "reason", "names"),
    [
        ({"TF32": ("on",)}, "UnknownSetting", r"^search\.builder\.settings: unknown setting 'TF32'; nearest: tf32$"),
        ({"level": ("on",)}, "UnknownSetting", r"'level'; (nearest|there are)"),
        ({"tf32": ("yes",)}, "BadValue", r"^search\.builder\.settings\.tf32: 'yes' is not allowed; allowed: on, off$"),
        ({"optimizationLevel": ("6",)}, "BadValue", "a whole number from 0 to 5"),
        ({"optimizationLevel": ("05",)}, "BadValue", "'05' is not allowed"),
        ({"maxAuxStreams": ("-0",)}, "BadValue", "'-0' is not allowed"),
        ({"optimizationLevel": ("high\n",)}, "BadValue", r"'high\\n'"),
        ({"optimizationLevel": ("³",)}, "BadValue", "not allowed"),
    ],
)
def test_unknown_names_and_values_are_refused_with_what_there_is(
    wanted: dict[str, tuple[str, ...]], reason: str, names: str
) -> None:
    with pytest.raises(InputError, match=names) as refused:
        select_settings(wanted, OFFERED)
    assert refused.value.reason == reason


def test_a_runtime_without_settings_says_what_to_search() -> None:
    with pytest.raises(InputError, match="has no builder settings, so search its knobs"):
        select_settings({"tf32": ("on",)}, ())
