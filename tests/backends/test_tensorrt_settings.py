"""Builder settings on a config that clips, ignores and takes as TensorRT's does."""

from enum import Enum
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner_job.backends.protocol import Unsupported
from tuner_job.backends.tensorrt.settings import apply, offered

Tiling = Enum("Tiling", ["NONE", "FAST", "MODERATE", "FULL"])
Pool = Enum("Pool", ["WORKSPACE", "TACTIC_SHARED_MEMORY"])
Flag = Enum("Flag", ["TF32", "SPARSE_WEIGHTS"])
MODULE = SimpleNamespace(TilingOptimizationLevel=Tiling, MemoryPoolType=Pool, BuilderFlag=Flag)


class Config:
    """What was measured of the real one (TensorRT for RTX 1.7.1): its setters raise for wrong types only."""

    def __init__(self):
        self._level, self._aux, self._tactics = 3, -1, -1
        self.l2_limit_for_tiling = 0
        self.avg_timing_iterations = 1
        self.tiling_optimization_level = Tiling.NONE
        self.pools = {Pool.WORKSPACE: 64 << 30, Pool.TACTIC_SHARED_MEMORY: 1 << 30}
        self.flags = {Flag.TF32}

    @property
    def builder_optimization_level(self):
        return self._level

    @builder_optimization_level.setter
    def builder_optimization_level(self, level):
        self._level = min(level, 5) if level >= 0 else self._level

    @property
    def max_aux_streams(self):
        return self._aux

    @max_aux_streams.setter
    def max_aux_streams(self, count):
        self._aux = count if count >= 0 else self._aux

    @property
    def max_num_tactics(self):
        return self._tactics

    @max_num_tactics.setter
    def max_num_tactics(self, count):
        self._tactics = count if count > 0 else self._tactics

    def get_memory_pool_limit(self, pool):
        return self.pools[pool]

    def set_memory_pool_limit(self, pool, size):
        if pool is Pool.WORKSPACE or size <= 1 << 30:
            self.pools[pool] = size

    def get_flag(self, flag):
        return flag in self.flags

    def set_flag(self, flag):
        self.flags.add(flag)

    def clear_flag(self, flag):
        self.flags.discard(flag)


READ = {
    "optimizationLevel": lambda config: str(config.builder_optimization_level),
    "tilingOptimizationLevel": lambda config: config.tiling_optimization_level.name,
    "l2LimitForTiling": lambda config: str(config.l2_limit_for_tiling),
    "maxAuxStreams": lambda config: str(config.max_aux_streams),
    "maxNumTactics": lambda config: str(config.max_num_tactics),
    "avgTimingIterations": lambda config: str(config.avg_timing_iterations),
    "workspaceBytes": lambda config: str(config.pools[Pool.WORKSPACE]),
    "tacticSharedMemoryBytes": lambda config: str(config.pools[Pool.TACTIC_SHARED_MEMORY]),
    "tf32": lambda config: "on" if Flag.TF32 in config.flags else "off",
    "sparseWeights": lambda config: "on" if Flag.SPARSE_WEIGHTS in config.flags else "off",
}
OFFERED = {setting.name: setting for setting in offered(MODULE, Config())}


def test_all_settings_are_offered_with_what_leaving_them_away_means():
    assert set(OFFERED) == set(READ)
    assert {name: setting.default for name, setting in OFFERED.items()} == {
        "optimizationLevel": "3",
        "tilingOptimizationLevel": "NONE",
        "l2LimitForTiling": "0",
        "maxAuxStreams": "TensorRT's choice",
        "maxNumTactics": "TensorRT's choice",
        "avgTimingIterations": "1",
        "workspaceBytes": str(64 << 30),
        "tacticSharedMemoryBytes": str(1 << 30),
        "tf32": "on",
        "sparseWeights": "off",
    }
    assert all(setting.help for setting in OFFERED.values())


def test_an_l2_limit_is_offered_up_to_what_the_device_has():
    class OfDevice(Config):
        @property
        def l2_limit_for_tiling(self):
            return self._l2

        @l2_limit_for_tiling.setter
        def l2_limit_for_tiling(self, size):
            self._l2 = min(size, 60 << 20)

    config = OfDevice()
    limits = {setting.name: setting for setting in offered(MODULE, config)}
    assert limits["l2LimitForTiling"].allowed == "a whole number from 0 to 62914560"
    assert config.l2_limit_for_tiling == 0, "asking leaves no trace"
    with pytest.raises(Unsupported, match="l2LimitForTiling: 62914561 is refused; the library keeps 62914560"):
        apply(MODULE, config, {"l2LimitForTiling": "62914561"})


def test_only_what_the_library_has_is_offered():
    config = SimpleNamespace(builder_optimization_level=3)
    assert [setting.name for setting in offered(SimpleNamespace(), config)] == ["optimizationLevel"]
    with pytest.raises(Unsupported, match=r"'maxAuxStreams'.*there are optimizationLevel"):
        apply(SimpleNamespace(), config, {"maxAuxStreams": "1"})


def test_nothing_is_touched_when_nothing_is_wanted():
    apply(None, None, {})


@given(
    st.sampled_from(sorted(READ)),
    st.one_of(st.integers(-(2**65), 2**65).map(str), st.sampled_from(["on", "off", "FAST", "FULL", "", "x"])),
)
def test_a_setting_is_what_was_asked_for_or_unsupported(name, value):
    config = Config()
    if OFFERED[name].accepts(value):
        apply(MODULE, config, {name: value})
        assert READ[name](config) == value
    else:
        with pytest.raises(Unsupported) as caught:
            apply(MODULE, config, {name: value})
        assert name in str(caught.value)
        assert OFFERED[name].allowed in str(caught.value)
        assert READ[name](config) == READ[name](Config())
    untouched = set(READ) - {name}
    assert {other: READ[other](config) for other in untouched} == {other: READ[other](Config()) for other in untouched}


def test_a_value_that_the_library_clips_is_unsupported():
    class Older(Config):
        """A library with fewer levels than are offered."""

        @property
        def builder_optimization_level(self):
            return self._level

        @builder_optimization_level.setter
        def builder_optimization_level(self, level):
            self._level = min(level, 4)

    with pytest.raises(Unsupported, match="optimizationLevel: 5 is refused; the library keeps 4"):
        apply(MODULE, Older(), {"optimizationLevel": "5"})


def test_a_value_that_the_library_raises_for_is_unsupported():
    class Narrow(Config):
        def set_memory_pool_limit(self, pool, size):
            raise TypeError("incompatible function arguments")

    with pytest.raises(Unsupported, match="workspaceBytes: 1 is refused: incompatible"):
        apply(MODULE, Narrow(), {"workspaceBytes": "1"})
