"""The worker's own default engine: built once, timed again and again beside the trials, so that workers can be compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from tuner_job.api.base import TrtfleetError
from tuner_job.api.measurement import BASELINE, EngineFile
from tuner_job.api.messages import Control, DiscoveryRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.workspace import Workspace, unusable
from tuner_job.measure.controls import drifted

TRIALS_PER_CONTROL = 4
"""A control is due before the first trial and again after so many."""


RECENT_CONTROLS = 32
"""So many are kept to tell drift by, and to race against; each holds its samples."""


class BaselineFailed(TrtfleetError):
    """This worker cannot even build or run the default: the machine, not a candidate, is at fault."""

    reason = "BaselineFailed"


class Baseline:
    """Controls of one worker."""

    def __init__(self, space: Workspace, discovery: DiscoveryRecord) -> None:
        self._space = space
        self._discovery = discovery
        self._engine: tuple[Path, EngineFile] | None = None
        self._since = 0
        self._taken: list[Control] = []
        self._recent: deque[Control] = deque(maxlen=RECENT_CONTROLS)

    def before_trial(self) -> None:
        """Take a control if one is due; after one that is off the others, the next is due at once.

        A control that fails on infrastructure is left out, not made up. Raises BaselineFailed where the default cannot be built,
        where others keep using the device (what is timed beside them is worth nothing), and where it does not answer.
        """
        if self._since == 0:
            self._time()
        self._since = (self._since + 1) % TRIALS_PER_CONTROL
        if drifted(self._recent, self._discovery, self._space.run.inputs.measure.metric):
            self._since = 0

    def ask_again(self) -> None:
        """A control is due before the next trial: something may be wrong with the machine."""
        self._since = 0

    @property
    def recent(self) -> Sequence[Control]:
        """The latest controls, in time order; all of them are in results of this worker, or go into its next one."""
        return tuple(self._recent)

    def take(self) -> Sequence[Control]:
        """The controls since the last call."""
        taken, self._taken = self._taken, []
        return taken

    def _time(self) -> None:
        path, engine = self._engine or self._build()
        request = self._space.request(
            "time",
            None,
            cases=self._discovery.cases,
            engines={"baseline": path},
            references_digest=self._discovery.references_digest,
            seed=self._space.run.seed,
        )
        end = self._space.insist(request)
        if end.outcome is Outcome.FEASIBLE and end.report is not None:
            control = Control(engine=engine.digest, timing=end.report.timings["baseline"], state=end.report.state)
            self._taken.append(control)
            self._recent.append(control)
        elif reason := unusable(end):
            raise BaselineFailed(f"this worker's default engine cannot be timed: {end.reason}", reason=reason)

    def _build(self) -> tuple[Path, EngineFile]:
        output = self._space.root / "baseline"
        end = self._space.insist(
            self._space.request(
                "build",
                output,
                cases=self._discovery.cases,
                candidate=BASELINE,
                references_digest=self._discovery.references_digest,
                timing_cache=self._space.timing_cache,
            )
        )
        if end.outcome is not Outcome.FEASIBLE or end.report is None or end.report.engine is None:
            raise BaselineFailed(
                f"this worker's default build ended {end.outcome} in {end.phase}: {end.reason}", reason=unusable(end)
            )
        self._engine = (output / "engine", end.report.engine)
        return self._engine
