"""A finished TensorRT job for the pages' commands, as the tests of the command have it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
