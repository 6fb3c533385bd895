"""Exit codes of a worker. The Job's podFailurePolicy has a rule for each, so they are API."""

from __future__ import annotations

from enum import IntEnum


class WorkerExit(IntEnum):
    """What a worker's end means to whoever started it."""

    NOTHING_LEFT = 0
    BAD_INPUT = 64  # no worker could do better: fail the Job
    WRONG_DEVICE = 65  # this node is of another device class: fail the index
    STORE_UNUSABLE = 66  # retry later
    STOPPED = 67  # told to stop by its marker: not a failure, and no use in starting again under this attempt
    INTERNAL = 70  # counts towards the backoff limit
    INTERRUPTED = 143  # got SIGTERM (what a shell says of such a death): not a failure, start again
