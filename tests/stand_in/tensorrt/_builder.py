"""From a network to a plan, by the book and by the script."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from device_truth import Truth

from . import _device
from ._base import Dims, IHostMemory, ILogger, Speaker
from ._enums import (
    BuilderFlag,
    EngineCapability,
    ErrorCodeTRT,
    HardwareCompatibilityLevel,
    MemoryPoolType,
    ProfilingVerbosity,
    Severity,
    TilingOptimizationLevel,
)
from ._network import INetworkDefinition, IPluginRegistry
from ._plan import Plan
from ._script import HAS_ROUTES, SCRIPT, VERSION, bounded, knob_text

_STEPS = 6
_MiB = 1 << 20
_FAR_AWAY = 3600
_BUILD_ACTIONS = {"refuse", "raise", "segfault", "hang", "hangDeaf", "memoryBomb", "killed", "outOfDeviceMemory", "empty"}
_VARIANTS = ((0.7, 0.0), (0.2, 0.004), (0.1, 0.008))
"""Of one layer's tactics, which the builder's own timing picks: how often, and what it costs (log ratio)."""
_RESIDUAL = 0.001
"""Standard deviation (log) of what differs from build to build and shows nowhere."""


_L2_BYTES = 60 << 20
"""An H200's, to which TensorRT 11.2.1.2 clips there."""


class IProgressMonitor:
    """To be derived from."""

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        raise NotImplementedError

    def step_complete(self, phase_name: str, step: int) -> bool:
        raise NotImplementedError

    def phase_finish(self, phase_name: str) -> None:
        raise NotImplementedError


class IOptimizationProfile:
    def __init__(self) -> None:
        self._shapes: dict[str, tuple[tuple[int, ...], ...]] = {}

    def set_shape(self, input: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> None:
        self._shapes[input] = (tuple(min), tuple(opt), tuple(max))

    def get_shape(self, input: str) -> list[Dims]:
        return [Dims(shape) for shape in self._shapes.get(input, ())]

    def _valid(self) -> bool:
        return all(
            len(least) == len(usual) == len(most) and all(0 <= a <= b <= c for a, b, c in zip(least, usual, most, strict=True))
            for least, usual, most in self._shapes.values()
        )


class ITimingCache:
    """Which tactic won, by what was built. Good for one version on one product."""

    def __init__(self, entries: dict[str, int] | None = None, made_by: str = VERSION) -> None:
        self._entries = entries if entries is not None else {}
        self._made_by = made_by

    def serialize(self) -> IHostMemory:
        return IHostMemory(json.dumps({"standInTimingCache": self._made_by, "entries": self._entries}).encode())

    def combine(self, input_cache: ITimingCache, ignore_mismatch: bool) -> bool:
        if self._made_by != input_cache._made_by and not ignore_mismatch:
            return False
        self._entries = {**input_cache._entries, **self._entries}
        return True

    def reset(self) -> bool:
        self._entries.clear()
        return True


class IBuilderConfig(Speaker):
    """Without a tuner, as before 11.1."""

    def __init__(self, logger: ILogger) -> None:
        super().__init__(logger)
        self.reset()

    def reset(self) -> None:
        self._level, self._aux, self._tactics, self._l2 = 3, -1, -1, 0
        self._iterations = 1
        self._tiling = TilingOptimizationLevel.NONE
        self._pools = {MemoryPoolType.WORKSPACE: _total_memory(), MemoryPoolType.TACTIC_SHARED_MEMORY: 1 << 30}
        self._profiles: list[IOptimizationProfile] = []
        self._cache: ITimingCache | None = None
        self._verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        self._monitor: IProgressMonitor | None = None
        self._flags = 1 << BuilderFlag.TF32.value
        self.engine_capability = EngineCapability.STANDARD
        self.hardware_compatibility_level = HardwareCompatibilityLevel.NONE
        self.profile_stream = 0

    @property
    def builder_optimization_level(self) -> int:
        return self._level

    @builder_optimization_level.setter
    def builder_optimization_level(self, level: int) -> None:
        self._level = min(_number(level), 5)

    @property
    def max_aux_streams(self) -> int:
        return self._aux

    @max_aux_streams.setter
    def max_aux_streams(self, count: int) -> None:
        if _number(count) < 0:
            self.say(
                Severity.WARNING,
                f"nbStreams {count} should not be negative, IBuilderConfig::setMaxAuxStreams({count}) has no effect.",
            )
            return
        self._aux = count

    @property
    def max_num_tactics(self) -> int:
        return self._tactics

    @max_num_tactics.setter
    def max_num_tactics(self, count: int) -> None:
        if _number(count) < -1:
            self.misuse("IBuilderConfig::setMaxNbTactics", f"Parameter check failed, Invalid number of tactics: {count}.")
            return
        self._tactics = count

    @property
    def l2_limit_for_tiling(self) -> int:
        return self._l2

    @l2_limit_for_tiling.setter
    def l2_limit_for_tiling(self, size: int) -> None:
        if _number(size) < 0:
            self.say(
                Severity.WARNING,
                f"sizeInBytes {size} should not be negative value, IBuilderConfig::setL2LimitForTiling({size}) has no effect.",
            )
            return
        self._l2 = min(size, _L2_BYTES)

    @property
    def avg_timing_iterations(self) -> int:
        return self._iterations

    @avg_timing_iterations.setter
    def avg_timing_iterations(self, count: int) -> None:
        self._iterations = _number(count)

    @property
    def tiling_optimization_level(self) -> TilingOptimizationLevel:
        return self._tiling

    @tiling_optimization_level.setter
    def tiling_optimization_level(self, level: TilingOptimizationLevel) -> None:
        self._tiling = _of(TilingOptimizationLevel, level)

    @property
    def profiling_verbosity(self) -> ProfilingVerbosity:
        return self._verbosity

    @profiling_verbosity.setter
    def profiling_verbosity(self, verbosity: ProfilingVerbosity) -> None:
        self._verbosity = _of(ProfilingVerbosity, verbosity)

    @property
    def progress_monitor(self) -> IProgressMonitor | None:
        return self._monitor

    @progress_monitor.setter
    def progress_monitor(self, monitor: IProgressMonitor | None) -> None:
        self._monitor = monitor if monitor is None else _of(IProgressMonitor, monitor)

    @property
    def flags(self) -> int:
        return self._flags

    @flags.setter
    def flags(self, flags: int) -> None:
        self._flags = _number(flags)

    def set_flag(self, flag: BuilderFlag) -> None:
        self._flags |= 1 << int(_of(BuilderFlag, flag))

    def clear_flag(self, flag: BuilderFlag) -> None:
        self._flags &= ~(1 << int(_of(BuilderFlag, flag)))

    def get_flag(self, flag: BuilderFlag) -> bool:
        return bool(self._flags >> int(_of(BuilderFlag, flag)) & 1)

    def get_memory_pool_limit(self, pool: MemoryPoolType) -> int:
        return self._pools.get(pool, 0)

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        if _number(pool_size) < 0:
            raise TypeError("set_memory_pool_limit(): incompatible function arguments")
        if pool is MemoryPoolType.TACTIC_SHARED_MEMORY and pool_size > 1 << 30:
            text = "Parameter check failed, condition: poolSize <= kTACTIC_MAX_SHMEM_DEFAULT_SIZE. Must be < 1GiB"
            self.misuse("IBuilderConfig::setMemoryPoolLimit", text)
            return
        self._pools[pool] = pool_size

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._profiles)

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        if not profile._valid():
            self.misuse("IBuilderConfig::addOptimizationProfile", "Parameter check failed, condition: profile->isValid(). ")
            return -1
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: Any) -> ITimingCache:
        data = bytes(serialized_timing_cache)
        if not data:
            return ITimingCache()
        try:
            read = json.loads(data)
            return ITimingCache(read["entries"], read["standInTimingCache"])
        except (ValueError, KeyError, TypeError):
            self.say(Severity.WARNING, "The timing cache could not be read; a new one is made.")
            return ITimingCache()

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        if cache._made_by != VERSION and not ignore_mismatch:
            self.fail("IBuilderConfig::setTimingCache", f"The timing cache is of version {cache._made_by}, this is {VERSION}.")
            return False
        self._cache = cache
        return True

    def get_timing_cache(self) -> ITimingCache | None:
        return self._cache

    def _tokens(self) -> list[str]:
        """What is away from the default, in the words of `script.json`."""
        default = IBuilderConfig(ILogger())
        found = {
            "optimizationLevel": (self._level, default._level),
            "tilingOptimizationLevel": (self._tiling.name, default._tiling.name),
            "l2LimitForTiling": (self._l2, default._l2),
            "maxAuxStreams": (self._aux, default._aux),
            "maxNumTactics": (self._tactics, default._tactics),
            "avgTimingIterations": (self._iterations, default._iterations),
            "workspaceBytes": (self._pools[MemoryPoolType.WORKSPACE], default._pools[MemoryPoolType.WORKSPACE]),
            "tacticSharedMemoryBytes": (
                self._pools[MemoryPoolType.TACTIC_SHARED_MEMORY],
                default._pools[MemoryPoolType.TACTIC_SHARED_MEMORY],
            ),
            "tf32": ("on" if self.get_flag(BuilderFlag.TF32) else "off", "on"),
            "sparseWeights": ("on" if self.get_flag(BuilderFlag.SPARSE_WEIGHTS) else "off", "off"),
        }
        return [f"{name}={value}" for name, (value, usual) in found.items() if value != usual]


class _Tunable(IBuilderConfig):
    """With the tuner's two properties. The setter takes whatever it is given and returns it, as the real one does."""

    def reset(self) -> None:
        super().reset()
        self._route = ""

    @property
    def build_route(self) -> str:
        return self._route

    @build_route.setter
    def build_route(self, route: str) -> None:
        self._route = _of(str, route)

    @property
    def all_build_routes(self) -> str:
        return knob_text()

    def _tokens(self) -> list[str]:
        return [*self._route.split(), *super()._tokens()]


class Builder(Speaker):
    def __init__(self, logger: ILogger) -> None:
        if not isinstance(logger, ILogger):
            raise TypeError("__init__(): incompatible constructor arguments.")
        super().__init__(logger)
        if _device.driver() is None:
            self.say(
                Severity.ERROR, "createInferBuilder: Error Code 6: API Usage Error (CUDA initialization failure with error: 35)"
            )
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self.max_threads = 1

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        return INetworkDefinition(self.logger, self)

    def create_builder_config(self) -> IBuilderConfig:
        return _Tunable(self.logger) if HAS_ROUTES else IBuilderConfig(self.logger)

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def get_plugin_registry(self) -> IPluginRegistry:
        return IPluginRegistry(self.logger)

    def reset(self) -> None:
        pass

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> IHostMemory | None:
        """None and lines in the log where it fails, never an exception."""
        where = "IBuilder::buildSerializedNetwork"
        if network._model is None:
            return self._no(where, "Network must have at least one output")
        number = SCRIPT.count("build")
        tokens = config._tokens()
        if wrong := [token for token in tokens if token.startswith("-") and not _known(token)]:
            return self._no(where, f"Invalid build route option: {wrong[0]}")
        if problem := self._unprofiled(network, config):
            return self._no(where, problem)
        tokens = [f"model={network._model.graph.name}", *(token for token in tokens if not _is_default(token))]
        actions = SCRIPT.actions([*tokens, f"build:{number}"])
        steps = _Steps(config.progress_monitor)
        if not steps.begin() or not self._act(actions, steps):
            self.say(Severity.ERROR, f"{where}: Error Code 10: Internal Error (the build was cancelled)")
            return None
        for action in actions:
            if action == "refuse":
                self.say(Severity.WARNING, "Autotuning found no implementation for a node under this build route.")
                return self._no(where, "Could not find any implementation for node {ForeignNode[scripted]}.")
            if action == "outOfDeviceMemory":
                return self._no(where, "Requested amount of GPU memory (68719476736 bytes) could not be allocated: out of memory")
        plan = self._plan(network, config, tokens, [a for a in actions if a not in _BUILD_ACTIONS], number)
        steps.end()
        self.say(Severity.INFO, f"Engine generation completed in {SCRIPT.get('buildSeconds', 0)} seconds.")
        return IHostMemory(b"" if "empty" in actions else plan.serialize())

    def _no(self, where: str, text: str) -> IHostMemory | None:
        self.fail(where, text, ErrorCodeTRT.INVALID_STATE)
        return None

    def _unprofiled(self, network: INetworkDefinition, config: IBuilderConfig) -> str:
        for tensor in network._inputs:
            if -1 not in tensor.shape:
                continue
            if not config._profiles:
                return "Network has dynamic or shape inputs, but no optimization profile has been defined."
            for number, profile in enumerate(config._profiles):
                if tensor.name not in profile._shapes:
                    return f"Network has dynamic input {tensor.name}, but optimization profile {number} has no shapes for it."
                for shape in profile._shapes[tensor.name]:
                    if len(shape) != len(tensor.shape) or any(a not in (-1, b) for a, b in zip(tensor.shape, shape, strict=True)):
                        return f"Optimization profile {number} has shape {shape} for input {tensor.name} of shape {tensor.shape}."
        return ""

    def _act(self, actions: list[str], steps: _Steps) -> bool:
        """Whether the build goes on."""
        held = []
        for action in actions:
            match action:
                case "raise":
                    raise RuntimeError("std::exception")
                case "segfault":
                    ctypes.string_at(0)
                case "hang":
                    while steps.step():
                        time.sleep(0.005)
                    return False
                case "hangDeaf":
                    ctypes.PyDLL(None).sleep(_FAR_AWAY)
                case "memoryBomb":
                    while True:
                        held.append(np.ones(50 * _MiB, np.uint8))
                        time.sleep(0.01)
                case "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
        until = time.monotonic() + float(SCRIPT.get("buildSeconds", 0))
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))
            if not steps.step():
                return False
        return all(steps.step() for _ in range(_STEPS - 1))

    def _plan(
        self, network: INetworkDefinition, config: IBuilderConfig, tokens: list[str], actions: list[str], number: int
    ) -> Plan:
        assert network._model is not None
        truth = Truth.from_plain(SCRIPT.get("truth", {}))
        rng = np.random.default_rng([int(SCRIPT.get("seed", 0)), number])
        active = sorted(truth.active(tokens))
        chosen = self._tactic(config, hashlib.sha256(repr([network._model.graph.name, active]).encode()).hexdigest(), rng)
        luck = float(SCRIPT.get("luck", 1.0))
        ratio = truth.log_ratio(tokens) + luck * (_VARIANTS[chosen][1] + float(rng.normal(0, _RESIDUAL)))
        ratio += sum({"wrong": float(np.log(2 / 3)), "slow": float(np.log(10))}.get(action, 0.0) for action in actions)
        return Plan.of(
            network,
            profiles=[profile._shapes for profile in config._profiles],
            seconds=float(SCRIPT.get("seconds", 1e-3)) * float(np.exp(ratio)),
            effects={token: truth.effects[token] for token in active},
            tactic=number if "anotherEachTime" in actions else chosen,
            actions=actions,
            verbosity=config.profiling_verbosity,
            flags=config.flags,
        )

    def _tactic(self, config: IBuilderConfig, key: str, rng: np.random.Generator) -> int:
        """Which of the tactics wins the builder's own race: the cache knows, or luck; more iterations need less of it."""
        shares = np.array([share for share, _ in _VARIANTS])
        shares[1:] /= max(1, config.avg_timing_iterations)
        shares[0] = 1 - shares[1:].sum()
        drawn = int(rng.choice(len(shares), p=shares)) if float(SCRIPT.get("luck", 1.0)) else 0
        cache = config.get_timing_cache()
        if cache is None or config.get_flag(BuilderFlag.DISABLE_TIMING_CACHE) or config.builder_optimization_level == 0:
            return drawn
        if key in cache._entries:
            SCRIPT.count("cacheHit")
        return cache._entries.setdefault(key, drawn)


class _Steps:
    """The hierarchy of phases that a monitor sees, as the real library reports it."""

    def __init__(self, monitor: IProgressMonitor | None) -> None:
        self._monitor = monitor
        self._done = 0

    def begin(self) -> bool:
        if self._monitor is None:
            return True
        self._monitor.phase_start("Building engine", None, _STEPS)
        self._monitor.phase_start("Timing tactics", "Building engine", 1 << 30)
        return self.step()

    def step(self) -> bool:
        if self._monitor is None:
            return True
        self._done += 1
        return bool(self._monitor.step_complete("Timing tactics", self._done - 1))

    def end(self) -> None:
        if self._monitor is not None:
            self._monitor.phase_finish("Timing tactics")
            self._monitor.phase_finish("Building engine")


def _known(token: str) -> bool:
    name, _, value = token.partition("=")
    knobs = bounded()
    return name in knobs and (knobs[name][0] is None or value in (knobs[name][0] or ()))


def _is_default(token: str) -> bool:
    name, _, value = token.partition("=")
    return name.startswith("-") and bounded()[name][1] == value


def _total_memory() -> int:
    library = _device.driver()
    size = ctypes.c_size_t()
    if library is not None:
        library.cuDeviceTotalMem_v2(ctypes.byref(size), 0)
    return size.value


def _number(value: Any) -> int:
    if isinstance(value, bool | str | float) or not hasattr(value, "__index__"):
        raise TypeError("(): incompatible function arguments.")
    return int(value)


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError("(): incompatible function arguments.")
    return value
