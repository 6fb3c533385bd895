"""A run of family TensorRT over the scripted backend, and one worker's workspace in this process; the children are real."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import scripted_backend
from rig.tiny import write_tiny_model

from tuner_job.api.child import Limits, MeasureSettings
from tuner_job.api.inputs import AccuracyInput, Owner, PluginInput, RunInputs, RuntimeIdentity, SearchInput, VariantInput
from tuner_job.api.messages import RunRecord
from tuner_job.campaign.start import start_run
from tuner_job.campaign.workspace import Workspace
from tuner_job.model.digest import digest, digest_files
from tuner_job.store.models import RemoteModels
from tuner_job.store.objects import ObjectStore
from tuner_job.trial.supervisor import Supervisor

NO_TUNER = "TensorRT 10.9 has no tuner; it came with 11.1"
SPEED = {"name": "speed", "values": ["slow", "fast"], "default": "slow"}
LEVEL = {"name": "optimizationLevel", "low": 0, "high": 5, "default": "3"}


def install(folder: Path, **facts: Any) -> Path:
    """The backend, as TensorRT without a tuner would be unless `facts` say otherwise."""
    told = {"missing": NO_TUNER, "gpu": True, "settings": [SPEED, LEVEL], "notes": ["a note"], **facts}
    return scripted_backend.install(folder / "backend", backend="tensorrt", **told)


def inputs(folder: Path, *, variants: tuple[str, ...] = (), plugins: tuple[Path, ...] = (), **search: Any) -> RunInputs:
    """Tiny models named after their variants, plugins by their present digests."""
    models = {name: write_tiny_model(folder / f"{name}.onnx") for name in ("default", *variants)}
    return RunInputs(
        runtime=RuntimeIdentity(family="TensorRT", version="1.0"),
        device_type="GPU",
        variants=tuple(VariantInput(name=name, uri=path.as_uri(), digest=digest(path)) for name, path in models.items()),
        min_improvement=0.01,
        measure=MeasureSettings(
            sessions=2, session_seconds=0.005, session_samples=3, warmup_seconds=0.0, warmup_limit_seconds=0.05
        ),
        accuracy=AccuracyInput(source="Generated", samples=1, metric="l1", threshold=1e-3, screening_threshold=4e-3),
        search=SearchInput.model_validate({"strategy": "OneAtATime", "max_trials": 8, "device_seconds": 1e5, **search}),
        plugins=tuple(PluginInput(uri=path.as_uri(), digest=digest_files(path)) for path in plugins),
    )


def run_of(store: ObjectStore, wanted: RunInputs, token: str = "", job: str = "tiny") -> RunRecord:
    return start_run(store, Owner(name=job), "gpu", wanted, shards=1, rerun_token=token)


def workspace(store: ObjectStore, run: RunRecord, root: Path) -> Workspace:
    root.mkdir(parents=True)
    return Workspace(
        store=store,
        remote=RemoteModels(store.url, {}),
        run=run,
        root=root,
        supervisor=Supervisor(root / "scratch"),
        limits=Limits(),
        stop=threading.Event(),
        on_phase=lambda _phase: None,
        busy_seconds=0.0,
    )
