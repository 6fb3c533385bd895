"""What the tests of `trial` share."""

from __future__ import annotations

import sys
from pathlib import Path

from tuner_job.api.child import Limits, MeasureSettings, Phase

CHILDREN = Path(__file__).parent.parent / "children"
COMMAND = (sys.executable, str(CHILDREN / "scripted.py"))
QUICK = MeasureSettings(sessions=2, session_seconds=0.001, session_samples=3, warmup_seconds=0.0, warmup_limit_seconds=0.5)


def hurried(limits: Limits, phase: Phase, seconds: float = 0.3) -> Limits:
    """The same limits but for one phase's deadline."""
    return limits.model_copy(update={"phase_seconds": {**limits.phase_seconds, phase: seconds}})
