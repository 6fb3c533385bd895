"""A job's models, shape cases and references on this machine, with a supervisor for its children: where recordings start."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tuner_job.api.child import ChildReport, Limits, MeasureSettings, Phase, ShapeCase
from tuner_job.api.effective import inputs_digest
from tuner_job.api.inputs import RunInputs
from tuner_job.api.measurement import BASELINE, Candidate, Device
from tuner_job.api.messages import RunRecord
from tuner_job.campaign.discover import REFERENCE_SEED, describe, good
from tuner_job.campaign.workspace import Workspace
from tuner_job.cli.jobfile import JobFile
from tuner_job.model.inspect import inspect
from tuner_job.model.shapes import resolve_cases
from tuner_job.store.models import RemoteModels
from tuner_job.store.objects import ObjectStore
from tuner_job.store.records import timestamp
from tuner_job.trial.supervisor import Supervisor, TrialEnd

STORE = "memory://lab"


@dataclass(frozen=True)
class Lab:
    """Everything that a build or a timing of this job needs."""

    space: Workspace
    device: Device
    versions: Mapping[str, str]
    knobs: str
    cases: tuple[ShapeCase, ...]
    references_digest: str

    @property
    def inputs(self) -> RunInputs:
        return self.space.run.inputs

    def build(self, candidate: Candidate, output: Path, limits: Limits, supervisor: Supervisor | None = None) -> TrialEnd:
        """One fresh build with its accuracy check, as in a final. With a supervisor of its own it may share the device."""
        request = self.space.request(
            "build",
            output,
            cases=self.cases,
            candidate=candidate,
            references_digest=self.references_digest,
            measure=MeasureSettings(allow_shared=supervisor is not None or self.inputs.measure.allow_shared),
        )
        return (supervisor or self.space.supervisor).run(request, limits)

    def time(self, engines: Mapping[str, Path], measure: MeasureSettings, limits: Limits, seed: int = 0) -> TrialEnd:
        """One process that times engines in turn."""
        request = self.space.request(
            "time",
            None,
            cases=self.cases,
            references_digest=self.references_digest,
            engines=engines,
            measure=measure.model_copy(update={"allow_shared": self.inputs.measure.allow_shared}),
            seed=seed,
        )
        return self.space.supervisor.run(request, limits)


def phase_limits(seconds: float) -> Limits:
    return Limits(phase_seconds=dict.fromkeys(Phase, seconds))


@contextmanager
def open_lab(job: Path, device: Literal["CPU", "GPU"], root: Path | None = None) -> Iterator[Lab]:
    """Raises InputError and TrtfleetError as discover does."""
    file = JobFile.load(job)
    inputs = file.inputs(file.target(None)).model_copy(update={"device_type": device})
    run = RunRecord(
        run="0" * 20,
        owner=file.owner,
        target="lab",
        inputs=inputs,
        inputs_digest=inputs_digest(inputs),
        seed=0,
        created_at=timestamp(),
    )
    with tempfile.TemporaryDirectory(prefix="bench-lab-", dir=root) as folder:
        here = Path(folder)
        space = Workspace(
            store=ObjectStore.open(STORE),
            remote=RemoteModels(STORE, {}),
            run=run,
            root=here / "work",
            supervisor=Supervisor(here / "trials", warm=True),
            limits=phase_limits(120.0),
            stop=threading.Event(),
            on_phase=lambda _: None,
        )
        space.root.mkdir()
        try:
            space.fetch_models(inputs.variants)
            info = inspect(space.models[BASELINE.variant])
            cases = resolve_cases(info, inputs.cases)
            found, described = describe(space)
            space.references = space.root / "references"
            made = _references(space, cases, info.inputs)
            yield Lab(space, found, described.versions, described.knobs or "", cases, made.detail["referencesDigest"])
        finally:
            space.close()


def _references(space: Workspace, cases: tuple[ShapeCase, ...], tensors: tuple[object, ...]) -> ChildReport:
    request = space.request("reference", space.references, cases=cases, seed=REFERENCE_SEED).model_copy(
        update={"inputs": tensors}
    )
    return good(space.insist(request), "making references with the unoptimised model")
