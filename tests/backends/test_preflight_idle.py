"""Whether a GPU is ours alone, by what NVML shows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tuner_job.api.measurement import DeviceState, GpuProcess
from tuner_job.backends.preflight import IDLE_MEMORY, IDLE_PERCENT, PATIENCE_SECONDS, await_idle, busy
from tuner_job.backends.protocol import DeviceBusy

IDLE = DeviceState(uuid="GPU-1", memory_used_bytes=4 << 20, utilization_percent=0)
LISTED = DeviceState(uuid="GPU-1", processes=(GpuProcess(pid=42, memory_bytes=700 << 20), GpuProcess(pid=43)))
FULL = IDLE.model_copy(update={"memory_used_bytes": 3 << 30})
WORKING = IDLE.model_copy(update={"utilization_percent": 98})


class Device:
    """States in turn, the last one for ever; time passes only in pauses."""

    def __init__(self, states: Sequence[DeviceState | None]) -> None:
        self.states = list(states)
        self.looks = 0
        self.now = 0.0

    def look(self) -> DeviceState | None:
        self.looks += 1
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def await_idle(self) -> DeviceState | None:
        return await_idle(self.look, self.pause, lambda: self.now)


@pytest.mark.parametrize(
    "state",
    [
        IDLE,
        DeviceState(),
        IDLE.model_copy(update={"memory_used_bytes": IDLE_MEMORY, "utilization_percent": IDLE_PERCENT}),
    ],
)
def test_an_idle_device_and_one_that_says_nothing_are_taken_at_the_first_look(state):
    device = Device([state])
    assert device.await_idle() is state
    assert device.looks == 1
    assert device.now == 0


def test_a_process_that_is_listed_is_named():
    with pytest.raises(DeviceBusy, match=r"GPU-1 is in use by process 42 \(700 MiB\), 43; .*allowShared"):
        Device([LISTED]).await_idle()


def test_of_many_processes_some_are_named():
    crowd = DeviceState(processes=tuple(GpuProcess(pid=pid) for pid in range(1, 10)))
    assert busy(crowd) == "is in use by process 1, 2, 3, 4 and 5 more"


@pytest.mark.parametrize(("state", "sign"), [(FULL, "has 3072 MiB in use"), (WORKING, "is 98 % busy")])
def test_processes_that_a_container_cannot_see_show_in_memory_and_utilisation(state, sign):
    with pytest.raises(DeviceBusy, match=sign):
        Device([state]).await_idle()


@pytest.mark.parametrize("left", [LISTED, FULL, WORKING])
def test_what_a_child_of_ours_left_behind_is_waited_out(left):
    device = Device([left, left, IDLE])
    assert device.await_idle() == IDLE
    assert 0 < device.now < PATIENCE_SECONDS


def test_patience_ends():
    device = Device([WORKING])
    with pytest.raises(DeviceBusy):
        device.await_idle()
    assert PATIENCE_SECONDS <= device.now < PATIENCE_SECONDS + 1


def test_without_a_gpu_there_is_nothing_to_wait_for():
    assert Device([None]).await_idle() is None
