"""Ending a build because SIGTERM came, without killing the process.

A build sits in C++ for minutes, in the main thread, so a handler written in Python would run when it is over. But Python's own
handler, in C, writes the signal's number at once to the file descriptor of `signal.set_wakeup_fd`, and the builder asks its
progress monitor after every step. A builder that does not ask is killed by the supervisor, as anything that is deaf.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from collections.abc import Iterator
from typing import Any

from tuner_job.backends.protocol import Cancelled


class Stop:
    """Whether SIGTERM came."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._came = False

    def asked(self) -> bool:
        """From any thread."""
        with contextlib.suppress(BlockingIOError):
            while not self._came and (numbers := os.read(self._pipe, 64)):
                self._came = signal.SIGTERM in numbers
        return self._came


@contextlib.contextmanager
def stoppable() -> Iterator[Stop]:
    """While it lasts SIGTERM ends nothing by itself; raises Cancelled at the end if it came, whatever else happened.

    The stack that faulthandler writes on SIGTERM still comes, for it chains to the handler that was there when it registered; so
    it registers anew on either side. Main thread only.
    """
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    stop = Stop(read)
    try:
        dumps = bool(faulthandler.unregister(signal.SIGTERM))  # type: ignore[func-returns-value]  # it does: whether it was there
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if dumps:
            faulthandler.register(signal.SIGTERM, chain=True)
        try:
            yield stop
        finally:
            if dumps:
                faulthandler.unregister(signal.SIGTERM)
            signal.set_wakeup_fd(wakeup)
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
            if dumps:
                faulthandler.register(signal.SIGTERM, chain=True)
            if stop.asked():
                raise Cancelled("told by SIGTERM to stop while it built")
    finally:
        os.close(read)
        os.close(write)


def monitor(module: Any, stop: Stop) -> Any:
    """A progress monitor that ends the build once SIGTERM came."""

    class Monitor(module.IProgressMonitor):  # type: ignore[misc]  # the module has no types
        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            pass

        def step_complete(self, phase_name: str, step: int) -> bool:  # noqa: ARG002
            return not stop.asked()

        def phase_finish(self, phase_name: str) -> None:
            pass

    return Monitor()
