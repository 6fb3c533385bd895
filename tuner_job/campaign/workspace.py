"""What one worker has at hand for one run: the store, its scratch folder, model files, references and a supervisor."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tuner_job.accuracy.archive import unpack
from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.child import RUNTIME_FAULT, ChildRequest, Limits, MeasureSettings, Phase, ShapeCase
from tuner_job.api.inputs import VariantInput
from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.api.messages import DiscoveryRecord, RunRecord
from tuner_job.api.tensors import TensorSpec
from tuner_job.campaign.plugins import fetch_plugin
from tuner_job.model.digest import digest, digest_files
from tuner_job.model.fetch import fetch
from tuner_job.store import layout
from tuner_job.store.blobs import get_blob_file, put_blob
from tuner_job.store.models import RemoteModels
from tuner_job.store.objects import ObjectStore
from tuner_job.trial.supervisor import MAX_INFRASTRUCTURE_TRIES, Supervisor, TrialEnd

TIMING_CACHE_BYTES = 64 << 20
"""A larger timing cache is not kept."""

BUSY_SECONDS = 5.0
"""Between two tries on a device that others use, or that does not answer."""

SCRATCH_FLOOR = 256 << 20
"""Bytes that must be free beside four copies of the model before anything is built."""


_UNUSABLE = {"busy": "DeviceBusy", "noDevice": "NoDevice"}
"""A child's status → reason of a worker that ends because of it: it is to be started again, here or elsewhere."""


def _at_fault(end: TrialEnd) -> str:
    """A reason word for input with which no candidate could work."""
    if end.report is not None and end.report.detail.get("fault") == RUNTIME_FAULT:
        return "RuntimeMismatch"
    return "InvalidReferences" if end.phase is Phase.CHECK else "InvalidModel"


class Stopped(Exception):
    """This worker was told to stop; its open try may be taken over at once."""


class ScratchFull(TrtfleetError):
    reason = "ScratchFull"


def unusable(end: TrialEnd) -> str | None:
    """The reason of an error that is about a child which ended because others use the device, or because it does not answer; None
    for any other end."""
    return _UNUSABLE.get(end.report.status) if end.report is not None else None


log = logging.getLogger("trtfleet.worker")


@dataclass
class Workspace:
    """Paths and processes of one worker. `root` is a folder of its own."""

    store: ObjectStore
    remote: RemoteModels
    run: RunRecord
    root: Path
    supervisor: Supervisor
    limits: Limits
    stop: threading.Event
    on_phase: Callable[[Phase], None]
    models: dict[str, Path] = field(default_factory=dict)
    references: Path | None = None
    plugins: tuple[Path, ...] = ()
    timing_cache: Path | None = None
    """What this worker's explore builds start from."""
    busy_seconds: float = BUSY_SECONDS

    def fetch_models(self, variants: tuple[VariantInput, ...]) -> tuple[VariantInput, ...]:
        """Bring every variant's files here and check their digests; returns the variants with digests. Raises InputError."""
        known = []
        for variant in variants:
            path = fetch(variant.uri, self.root / "models" / layout.part(variant.name), self.remote, digest=variant.digest)
            self.models[variant.name] = path
            known.append(variant.model_copy(update={"digest": variant.digest or digest(path)}))
        self._check_room()
        return tuple(known)

    def fetch_plugins(self) -> None:
        """Bring the run's plugin libraries here, each as a copy that nobody changes between its check and its use.

        Raises InputError: PluginChanged for another digest.
        """
        self.plugins = tuple(
            fetch_plugin(plugin, self.root / "plugins" / str(number), self.remote, f"model.plugins[{number}]")
            for number, plugin in enumerate(self.run.inputs.plugins)
        )

    def keep_timing_cache(self, path: Path) -> str | None:
        """Store what a default build left there; the blob's digest, or None where there is none that can be kept."""
        if path.is_symlink() or not path.is_file():
            return None
        if (size := path.stat().st_size) > TIMING_CACHE_BYTES:
            log.warning("timing cache of %d MiB is left out: at most %d MiB are kept", size >> 20, TIMING_CACHE_BYTES >> 20)
            return None
        return put_blob(self.store, path.read_bytes())

    def fetch_timing_cache(self, digest: str | None) -> None:
        """Bring the timing cache here that explore builds start from, read-only; None: there is none."""
        if digest is None:
            return
        path = self.root / "timing-cache"
        get_blob_file(self.store, digest, path, TIMING_CACHE_BYTES)
        path.chmod(0o400)
        self.timing_cache = path

    def user_references(self) -> Path:
        """The file or folder of references that the user named, here, unchanged since the run was planned. Raises InputError."""
        uri, expected = self.run.inputs.accuracy.uri, self.run.inputs.accuracy.digest
        scheme = uri.partition("://")[0] if "://" in uri else ""
        if scheme in ("", "file"):
            path = Path(unquote(urlsplit(uri).path)) if scheme else Path(uri)
            if not path.exists():
                raise InputError(f"accuracy.references: {path} does not exist")
        else:
            path = self.root / "user-references" / uri.rstrip("/").rpartition("/")[2]
            path.parent.mkdir(parents=True, exist_ok=True)
            if not self.remote.download(uri, path):
                self.remote.download_folder(uri, path)
        if expected is not None and (actual := digest_files(path)) != expected:
            raise InputError(
                f"accuracy.references: {uri} has digest {actual}, not {expected}; it changed, or references.digest is wrong",
                reason="ReferencesChanged",
            )
        return path

    def unpack_references(self, discovery: DiscoveryRecord) -> None:
        """Bring the run's references here."""
        archive = self.root / "references.archive"
        get_blob_file(self.store, discovery.references_blob, archive)
        self.references = self.root / "references"
        unpack(archive, self.references)
        archive.unlink()

    def request(
        self,
        operation: str,
        output: Path | None,
        *,
        cases: tuple[ShapeCase, ...] = (),
        candidate: Candidate = BASELINE,
        references_digest: str | None = None,
        engines: Mapping[str, Path] | None = None,
        measure: MeasureSettings | None = None,
        tensors: tuple[TensorSpec, ...] = (),
        seed: int = 0,
        timing_cache: Path | None = None,
        race: Sequence[float] = (),
    ) -> ChildRequest:
        """A child's request with everything that the run fixes filled in."""
        inputs = self.run.inputs
        return ChildRequest.model_validate(
            {
                "operation": operation,
                "backend": inputs.runtime.backend,
                "device": inputs.device_type,
                "model": str(self.models[candidate.variant]) if candidate.variant in self.models else "",
                "cases": cases,
                "candidate": candidate,
                "references": str(self.references) if self.references else "",
                "references_digest": references_digest,
                "metric": inputs.accuracy.metric,
                "atol": inputs.accuracy.atol,
                "rtol": inputs.accuracy.rtol,
                "outputs": inputs.accuracy.outputs,
                "measure": measure or inputs.measure,
                "engines": {name: str(path) for name, path in (engines or {}).items()},
                "inputs": tensors,
                "samples": inputs.accuracy.samples,
                "timing_cache": str(timing_cache) if timing_cache else "",
                "race": tuple(race),
                "plugins": tuple(str(path) for path in self.plugins),
                "seed": seed,
                "output": str(output) if output else "",
            }
        )

    def start(self, request: ChildRequest, limits: Limits | None = None) -> TrialEnd:
        """One child. Raises Stopped when the worker was told to stop meanwhile, InputError when no candidate could work."""
        if request.output:
            Path(request.output).parent.mkdir(parents=True, exist_ok=True)
        end = self.supervisor.run(request, limits or self.limits, on_phase=self.on_phase, stop=self.stop)
        if end.stopped:
            raise Stopped
        of_variant = request.candidate.variant != BASELINE.variant and end.phase in (Phase.BUILD, Phase.LOAD)
        if end.bad_input and not of_variant:  # what the engine cannot do with one variant is refused, and ends no run
            raise InputError(end.reason, reason=_at_fault(end))
        return end

    def insist(self, request: ChildRequest, limits: Limits | None = None) -> TrialEnd:
        """As `start`, again after infrastructure failures, up to the cap."""
        for _ in range(MAX_INFRASTRUCTURE_TRIES - 1):
            end = self.start(request, limits)
            if not end.retriable:
                return end
            self.let_go(end)
        return self.start(request, limits)

    def let_go(self, end: TrialEnd) -> None:
        """Before another try: give those that held the device, or the device itself, a moment, or until told to stop."""
        if unusable(end):
            self.stop.wait(self.busy_seconds)

    def limits_times(self, factor: float) -> Limits:
        """The limits of a child that does the work of so many trials."""
        seconds = {phase: limit * max(1.0, factor) for phase, limit in self.limits.phase_seconds.items()}
        return self.limits.model_copy(update={"phase_seconds": seconds})

    def close(self) -> None:
        self.supervisor.close()

    def _check_room(self) -> None:
        size = sum(path.stat().st_size for path in self.models.values())
        free = shutil.disk_usage(self.root).free
        needed = 4 * size + SCRATCH_FLOOR
        if free < needed:
            raise ScratchFull(
                f"scratch folder {self.root} has {free >> 20} MiB free; {needed >> 20} MiB are needed "
                f"(four times the model and {SCRATCH_FLOOR >> 20} MiB): "
                f"free some, or choose another folder with --folder (a worker: --scratch)"
            )
