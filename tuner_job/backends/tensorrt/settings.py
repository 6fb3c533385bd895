"""Builder settings other than knobs: what a builder config really has, within limits that the library does not check.

Its setters clip, ignore and log (measured on TensorRT 11.2 and TensorRT for RTX 1.7): level 6 becomes 5, a negative number of
streams stays the default. So values are checked here, and read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tuner_job.api.measurement import BuilderSetting
from tuner_job.backends.protocol import Unsupported
from tuner_job.backends.tensorrt.log import one_line

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1
_TILING = ("NONE", "FAST", "MODERATE", "FULL")
_ITS_CHOICE = "TensorRT's choice"


@dataclass(frozen=True)
class _Setting:
    offered: BuilderSetting
    get: Callable[[], str]
    set: Callable[[str], None]


def offered(module: Any, config: Any) -> tuple[BuilderSetting, ...]:
    """All that this config has."""
    return tuple(_as_kept(setting) for setting in _settings(module, config))


def _as_kept(setting: _Setting) -> BuilderSetting:
    """With the limit that the library itself keeps to: it clips the L2 limit to what the device has (60 MiB on an H200)."""
    if setting.offered.name != "l2LimitForTiling":
        return setting.offered
    before = setting.get()
    setting.set(str(setting.offered.high))
    kept = int(setting.get())
    setting.set(before)
    return setting.offered.model_copy(update={"high": kept}) if kept > setting.offered.low else setting.offered


def apply(module: Any, config: Any, wanted: Mapping[str, str]) -> None:
    """Set every wanted setting. Raises Unsupported for a name or value that is not offered, or that the library does not take."""
    if not wanted:
        return
    known = {setting.offered.name: setting for setting in _settings(module, config)}
    for name, value in wanted.items():
        if name not in known:
            raise Unsupported(f"builder setting {name!r}: this library has none; there are {', '.join(sorted(known))}")
        setting = known[name]
        if not setting.offered.accepts(value):
            raise Unsupported(f"builder setting {name}: {value!r} is not allowed; allowed: {setting.offered.allowed}")
        try:
            setting.set(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise Unsupported(f"builder setting {name}: {value} is refused: {one_line(str(error))}") from None
        if (got := setting.get()) != _plain(setting.offered, value):
            raise Unsupported(f"builder setting {name}: {value} is refused; the library keeps {got}")


def _plain(setting: BuilderSetting, value: str) -> str:
    return value if setting.values else str(int(value))


def _settings(module: Any, config: Any) -> Iterator[_Setting]:
    yield from _number(
        config,
        "optimizationLevel",
        "builder_optimization_level",
        0,
        5,
        "How long the builder searches; 4 and 5 take much longer.",
    )
    if hasattr(config, "tiling_optimization_level") and hasattr(module, "TilingOptimizationLevel"):
        yield _tiling(module.TilingOptimizationLevel, config)
    yield from _number(
        config,
        "l2LimitForTiling",
        "l2_limit_for_tiling",
        0,
        _INT64,
        "Bytes of L2 cache that tiling aims at; needs tilingOptimizationLevel.",
    )
    yield from _number(
        config,
        "maxAuxStreams",
        "max_aux_streams",
        0,
        _INT32,
        "Streams beside the caller's for parallel branches; 0 keeps all in one.",
    )
    yield from _number(
        config, "maxNumTactics", "max_num_tactics", 1, _INT32 - 1, "Tactics that are timed where there is a choice."
    )
    yield from _number(
        config, "avgTimingIterations", "avg_timing_iterations", 1, _INT32, "Runs that are averaged when a tactic is timed."
    )
    yield from _pool(
        module, config, "workspaceBytes", "WORKSPACE", _INT64, "Most scratch memory of a layer; less excludes tactics."
    )
    yield from _pool(
        module,
        config,
        "tacticSharedMemoryBytes",
        "TACTIC_SHARED_MEMORY",
        1 << 30,
        "Most shared memory of a kernel; less excludes tactics.",
    )
    yield from _flag(
        module, config, "tf32", "TF32", "TensorFloat-32 for float32 matrix products; changes results within their tolerance."
    )
    yield from _flag(
        module, config, "sparseWeights", "SPARSE_WEIGHTS", "Kernels for 2:4 sparse weights where weights have that form."
    )


def _number(config: Any, name: str, attribute: str, low: int, high: int, text: str) -> Iterator[_Setting]:
    if not hasattr(config, attribute):
        return
    now = int(getattr(config, attribute))
    yield _Setting(
        BuilderSetting(name=name, low=low, high=high, default=str(now) if low <= now <= high else _ITS_CHOICE, help=text),
        lambda: str(int(getattr(config, attribute))),
        lambda value: setattr(config, attribute, int(value)),
    )


def _tiling(levels: Any, config: Any) -> _Setting:
    values = tuple(level for level in _TILING if hasattr(levels, level))
    return _Setting(
        BuilderSetting(
            name="tilingOptimizationLevel",
            values=values,
            default=str(config.tiling_optimization_level.name),
            help="How hard the builder tries to keep neighbouring layers' data in the L2 cache.",
        ),
        lambda: str(config.tiling_optimization_level.name),
        lambda value: setattr(config, "tiling_optimization_level", getattr(levels, value)),
    )


def _pool(module: Any, config: Any, name: str, pool: str, high: int, text: str) -> Iterator[_Setting]:
    kind = getattr(getattr(module, "MemoryPoolType", None), pool, None)
    if kind is None or not hasattr(config, "set_memory_pool_limit"):
        return
    yield _Setting(
        BuilderSetting(name=name, low=0, high=high, default=str(int(config.get_memory_pool_limit(kind))), help=text),
        lambda: str(int(config.get_memory_pool_limit(kind))),
        lambda value: config.set_memory_pool_limit(kind, int(value)),
    )


def _flag(module: Any, config: Any, name: str, flag: str, text: str) -> Iterator[_Setting]:
    kind = getattr(getattr(module, "BuilderFlag", None), flag, None)
    if kind is None:
        return
    yield _Setting(
        BuilderSetting(name=name, values=("on", "off"), default=_on_off(config.get_flag(kind)), help=text),
        lambda: _on_off(config.get_flag(kind)),
        lambda value: config.set_flag(kind) if value == "on" else config.clear_flag(kind),
    )


def _on_off(value: object) -> str:
    return "on" if value else "off"
