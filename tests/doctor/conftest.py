from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_list() -> str:
    """What TensorRT 11.2.1.2 lists."""
    return (Path(__file__).parents[1] / "data" / "all_build_routes-11.2.1.2.json").read_text()
