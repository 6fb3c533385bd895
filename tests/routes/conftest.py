from pathlib import Path

import pytest

from tuner_job.routes.knobs import KnobList, parse_knob_list

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture(scope="session")
def real_knobs() -> KnobList:
    """The list that TensorRT 11.2.1.2 prints."""
    return parse_knob_list((DATA / "all_build_routes-11.2.1.2.json").read_text())
