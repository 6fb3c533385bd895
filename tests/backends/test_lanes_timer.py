"""Streams of inferences at once, and the timer of GPU backends over the driver stand-in."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from stand_in_process import Process, gpu

from tuner_job.backends.lanes import Lanes, Took

__all__ = ["gpu"]


class Counted:
    """A lane whose n-th inference takes n seconds on the clock and 10 n on the host's."""

    def __init__(self, made: list[Counted], fails_at: int = 0) -> None:
        self.number = len(made)
        self.count = 0
        self.fails_at = fails_at
        self.threads = {threading.get_ident()}
        self.closed = False
        made.append(self)

    def once(self) -> Took:
        self.threads.add(threading.get_ident())
        self.count += 1
        if self.count == self.fails_at:
            raise ValueError(f"lane {self.number}")
        return Took(self.count, 10 * self.count)

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed = True


def test_one_lane_works_in_the_callers_thread():
    made: list[Counted] = []
    lanes = Lanes(lambda: Counted(made), 1)
    assert lanes.sample(3).tolist() == [[1, 2, 3], [10, 20, 30]]
    assert lanes.sample(1).tolist() == [[4], [40]]
    lanes.close()
    assert made[0].closed
    assert made[0].threads == {threading.get_ident()}


def test_each_of_several_lanes_keeps_a_thread_of_its_own_from_making_to_closing():
    made: list[Counted] = []
    lanes = Lanes(lambda: Counted(made), 3)
    for count in (1, 7):
        assert lanes.sample(count).shape == (2, count)
    lanes.close()
    assert all(lane.closed for lane in made)
    assert [len(lane.threads) for lane in made] == [1, 1, 1]
    assert len(set.union(*(lane.threads for lane in made))) == 3
    assert threading.get_ident() not in set.union(*(lane.threads for lane in made))


def test_lanes_share_the_count_and_go_on_until_all_have_theirs():
    made: list[Counted] = []
    lanes = Lanes(lambda: Counted(made), 2)
    counted, host = lanes.sample(10)
    assert counted.tolist() == [1, 2, 3, 4, 5] * 2
    assert np.array_equal(host, 10 * counted)
    assert all(lane.count >= 5 for lane in made)
    lanes.close()


@pytest.mark.parametrize("streams", [1, 3])
def test_a_lane_that_fails_ends_the_sample_and_the_lanes_can_still_be_closed(streams):
    made: list[Counted] = []
    lanes = Lanes(lambda: Counted(made, fails_at=3 if len(made) == streams - 1 else 0), streams)
    with pytest.raises(ValueError, match=f"lane {streams - 1}"):
        lanes.sample(9)
    lanes.close()
    assert all(lane.closed for lane in made)


def test_lanes_that_were_made_are_closed_when_the_next_cannot_be():
    made: list[Counted] = []

    def make() -> Counted:
        if len(made) == 2:
            raise ValueError("no room for a third")
        return Counted(made)

    with pytest.raises(ValueError, match="third"):
        Lanes(make, 3)
    assert [lane.closed for lane in made] == [True, True]


TIMER = """
from tuner_job.api.child import MeasureSettings
from tuner_job.backends.lanes import GpuTimer, Took
class NoGraph(Exception): pass
closed = []
class Lane:
    def __init__(self, graph):
        if graph and not CAPTURABLE: raise NoGraph
        self.count = 0
    def once(self):
        self.count += 1
        return Took(self.count, 10 * self.count)
    def close(self): closed.append(self)
def timer(**settings): return GpuTimer(Lane, MeasureSettings(**settings), (NoGraph,))
"""


@pytest.mark.parametrize(
    ("capturable", "asked", "launch"), [(True, True, "cudaGraph"), (True, False, "direct"), (False, True, "direct")]
)
def test_launches_are_told_as_they_are(gpu: Process, capturable, asked, launch):
    told = gpu.tell(f"CAPTURABLE = {capturable}{TIMER}one = timer(cuda_graph={asked})\ntell(launch=one.launch, clock=one.clock)")
    assert told == {"launch": launch, "clock": "device"}


def test_the_hosts_median_is_of_the_samples_since_the_last_question(gpu: Process):
    told = gpu.tell(f"""CAPTURABLE = True{TIMER}
one, copying = timer(), timer(transfers=True)
before = one.aside().host_median
one.sample(3), one.sample(2)
first = one.aside().host_median
one.sample(1)
copying.sample(3)
tell(before=before, first=first, second=one.aside().host_median, copying=copying.aside().host_median, clock=copying.clock)
""")
    assert told == {"before": None, "first": 30.0, "second": 60.0, "copying": None, "clock": "host"}


def test_reasons_between_two_questions_are_told_at_the_second(gpu: Process):
    """The device is hot at the first of its looks after a sample, at its power cap at the next, and quiet at last."""
    told = gpu.tell(
        f"""CAPTURABLE = True{TIMER}
one = timer()
told = []
for _ in range(4):
    one.sample(1)
    told.append(list(one.aside()[:2]))
tell(told=told)
""",
        ["throttle = 0 0x40", "throttle = 1 0x0", "throttle = 2 0x4", "throttle = 4 0x0", "throttle = 6 0x1"],
    )
    assert told["told"] == [[True, False], [False, True], [False, False], [False, False]]


def test_a_closed_timer_has_closed_its_lanes(gpu: Process):
    told = gpu.tell(f"CAPTURABLE = True{TIMER}one = timer(streams=3)\none.sample(3)\none.close()\ntell(closed=len(closed))")
    assert told == {"closed": 3}
