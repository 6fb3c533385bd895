"""SIGTERM while a build runs."""

import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from tuner_job.backends.protocol import Cancelled
from tuner_job.backends.tensorrt.cancel import monitor, stoppable


class ProgressMonitor:
    """A base class as the library's."""


def test_without_a_signal_nothing_happens_and_all_is_as_before():
    handler, wakeup = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    with stoppable() as stop:
        assert not stop.asked()
    assert signal.getsignal(signal.SIGTERM) == handler
    assert signal.set_wakeup_fd(wakeup) == wakeup


def test_the_monitor_ends_the_build_in_any_thread_and_it_ends_as_cancelled():
    answers = []

    def build(steps):
        answers.extend(steps.step_complete("timing", number) for number in range(2))

    def interrupted():
        with stoppable() as stop:
            steps = monitor(SimpleNamespace(IProgressMonitor=ProgressMonitor), stop)
            steps.phase_start("timing", None, 4)
            build(steps)
            signal.raise_signal(signal.SIGTERM)
            thread = threading.Thread(target=build, args=(steps,))
            thread.start()
            thread.join()
            steps.phase_finish("timing")

    with pytest.raises(Cancelled, match="SIGTERM"):
        interrupted()
    assert answers == [True, True, False, False]


def test_what_the_library_says_of_a_cancelled_build_is_not_its_reason():
    def interrupted():
        with stoppable():
            signal.raise_signal(signal.SIGTERM)
            raise RuntimeError("Build canceled by user")

    with pytest.raises(Cancelled):
        interrupted()


def test_other_signals_and_other_errors_pass():
    def failed():
        with stoppable() as stop:
            before = signal.signal(signal.SIGUSR1, lambda *_: None)
            signal.raise_signal(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, before)
            assert not stop.asked()
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        failed()


CHILD = """
import faulthandler, signal
from tuner_job.backends.protocol import Cancelled
from tuner_job.backends.tensorrt.cancel import stoppable

faulthandler.register(signal.SIGTERM, chain=True)

def inside():
    signal.raise_signal(signal.SIGTERM)

def outside():
    signal.raise_signal(signal.SIGTERM)

try:
    with stoppable() as stop:
        inside()
        assert stop.asked()
except Cancelled:
    print("cancelled", flush=True)
outside()
print("still there", flush=True)
"""


def test_the_stack_is_still_dumped_during_the_build_and_after_it_the_signal_ends_the_process():
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "cancelled\n"
    assert done.stderr.count("most recent call first") == 2
    assert "in inside" in done.stderr
    assert "in outside" in done.stderr
    assert done.returncode == -signal.SIGTERM
