"""A real build of TensorRT-RTX is ended by SIGTERM in the middle, and the process lives on."""

from __future__ import annotations

import pytest
from rig.rtx import EXAMPLES, example, told

pytestmark = pytest.mark.timeout(900)  # the first test on a machine fetches the library

BUILD = """
import json, os, signal, sys
from pathlib import Path
from tuner_job.backends.protocol import Cancelled
from tuner_job.backends.tensorrt.cancel import monitor, stoppable
from tuner_job.backends.tensorrt.library import find
from tuner_job.backends.tensorrt.log import Log
from tuner_job.backends.tensorrt.network import parse

library = find("tensorrt_rtx")
log = Log(library.module)

class Late:
    # Asks for the end itself, once the build is well under way.
    def __init__(self, stop, steps):
        self.stop, self.steps = stop, steps
    def asked(self):
        self.steps -= 1
        if self.steps == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.stop.asked()

def build(steps):
    builder = library.builder(log)
    parsed = parse(library, builder, Path(sys.argv[1]), log)
    config = builder.create_builder_config()
    log.clear()
    told = {"plan": None, "cancelled": False}
    try:
        with stoppable() as stop:
            late = Late(stop, steps)
            config.progress_monitor = monitor(library.module, late)
            plan = builder.build_serialized_network(parsed.network, config)
            told["plan"] = None if plan is None else plan.nbytes
            told["log"] = log.text()
            told["steps left"] = late.steps
    except Cancelled:
        told["cancelled"] = True
    return told

print(json.dumps([build(20), build(-1)]))
"""


@pytest.fixture(scope="module")
def builds(rtx_path):
    """In one process: a build that is cancelled at its 20th step, then one that is not."""
    model, _ = example(next(path for path in EXAMPLES if path.stem == "silero-vad"))
    return told(BUILD, rtx_path, model)


def test_the_library_ends_its_build_at_the_next_step_and_says_so(builds):
    cancelled, _ = builds
    assert cancelled["plan"] is None
    assert cancelled["cancelled"]
    assert "BuildCanceled" in cancelled["log"]
    assert cancelled["steps left"] == 0, "it asked again after it had been told to stop"


def test_the_same_process_builds_afterwards(builds):
    _, whole = builds
    assert whole["plan"] > 1_000_000
    assert not whole["cancelled"]
    assert whole["steps left"] < -20, "the builder asks at every step"
