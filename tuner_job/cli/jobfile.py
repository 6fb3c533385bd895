"""A job file on this machine: its documents, what they leave to the machine, and the store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import TypeAdapter, ValidationError

from tuner_job.api.artifactstore import ArtifactStore
from tuner_job.api.base import InputError
from tuner_job.api.documents import Documents, load_documents
from tuner_job.api.effective import inputs_digest, run_id, run_inputs
from tuner_job.api.inputs import Owner, RunInputs
from tuner_job.api.runtime import TunerRuntime, TunerRuntimeSpec
from tuner_job.api.tuningjob import Target, TuningJob
from tuner_job.model.digest import digest, digest_files
from tuner_job.model.fetch import fetch
from tuner_job.store.connect import STORE_OPTIONS
from tuner_job.store.objects import ObjectStore
from tuner_job.store.pointers import PointerName

LOCAL = "local"
"""Name of the store that a job file need not hold."""

EMBEDDED_RUNTIME = "onnxruntime"
"""Name of the runtime that a job file need not hold: whatever ONNX Runtime is installed."""

MAX_FILE_BYTES = 4 << 20

_LIBRARIES = {
    "ONNXRuntime": ("onnxruntime", "onnxruntime-gpu"),
    "TensorRT": ("tensorrt-cu13-bindings", "tensorrt-cu12-bindings", "tensorrt-cu13", "tensorrt-cu12", "tensorrt"),
}
"""Family → Python distributions that hold its module, or else only require one that does; the version of the first counts."""

_OPTIONS = TypeAdapter(dict[str, str])


@dataclass(frozen=True)
class Place:
    """A store, and what it takes to open it again in another process."""

    store: ObjectStore
    options: Mapping[str, str]


@dataclass(frozen=True)
class JobFile:
    """One TuningJob of a file with everything that it refers to."""

    path: Path
    documents: Documents
    job: TuningJob

    @staticmethod
    def load(path: Path, job: str | None = None) -> JobFile:
        """Raises InputError for whatever is wrong in the file, or when it holds several jobs and none is named."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise InputError(f"job file {path}: {error.strerror}; give the path of a YAML file with a TuningJob") from None
        if len(data) > MAX_FILE_BYTES:
            raise InputError(f"{path}: longer than {MAX_FILE_BYTES} bytes; that is no job file")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise InputError(f"{path}: is not UTF-8 text; a job file is YAML") from None
        documents = load_documents(text, str(path))
        if job is not None:
            return JobFile(path, documents, documents.job(job))
        if len(documents.jobs) != 1:
            names = ", ".join(each.name for each in documents.jobs) or "none"
            raise InputError(f"{path}: holds {len(documents.jobs)} TuningJobs ({names}); name one with --job")
        return JobFile(path, documents, documents.jobs[0])

    @property
    def owner(self) -> Owner:
        return Owner(namespace=self.job.metadata.namespace or "default", name=self.job.name)

    def target(self, name: str | None) -> Target:
        """The named target, or the only one. Raises InputError."""
        targets = self.job.spec.targets
        if name is None and len(targets) == 1:
            return targets[0]
        found = next((target for target in targets if target.name == name), None)
        if found is None:
            names = ", ".join(target.name for target in targets)
            what = f"has no target {name}" if name else "has several targets; name one with --target"
            raise InputError(f"TuningJob {self.job.name}: {what} (it has {names})")
        return found

    def runtime(self, target: Target) -> TunerRuntime:
        """The target's runtime; the installed ONNX Runtime where the file leaves `onnxruntime` out."""
        reference = target.runtime_ref
        known = {runtime.name for runtime in self.documents.runtimes}
        if reference is not None and reference.name == EMBEDDED_RUNTIME and EMBEDDED_RUNTIME not in known:
            return embedded_runtime()
        try:
            return self.documents.runtime_of(self.job, target)
        except InputError as error:
            raise InputError(f"{error}; `{EMBEDDED_RUNTIME}` is the installed one and needs no document") from None

    def inputs(self, target: Target) -> RunInputs:
        """Effective values with local paths made absolute and local files digested, so that an edited model is another run."""
        inputs = run_inputs(self.job, target.name, self.runtime(target))
        base = self.path.resolve().parent
        variants = []
        for variant in inputs.variants:
            if not _is_local(variant.uri):
                variants.append(variant)
                continue
            path = fetch(variant.uri, base, base=base, digest=variant.digest)  # local: it stays where it is
            uri = variant.uri if variant.uri.startswith("package://") else path.resolve().as_uri()
            variants.append(variant.model_copy(update={"uri": uri, "digest": variant.digest or digest(path)}))
        accuracy = inputs.accuracy
        if accuracy.uri and _is_local(accuracy.uri):
            path = _local_path(accuracy.uri, base, "accuracy.references")
            accuracy = accuracy.model_copy(update={"uri": path.as_uri(), "digest": accuracy.digest or digest_files(path)})
        plugins = tuple(
            plugin.model_copy(update={"uri": _local_path(plugin.uri, base, f"model.plugins[{number}]").as_uri()})
            if _is_local(plugin.uri)
            else plugin
            for number, plugin in enumerate(inputs.plugins)
        )
        return inputs.model_copy(update={"variants": tuple(variants), "accuracy": accuracy, "plugins": plugins})

    def run_id(self, target: Target, inputs: RunInputs) -> str:
        """The run that these inputs are, under the job's rerun token."""
        token = self.job.spec.rerun.token if self.job.spec.rerun else ""
        return run_id(self.owner, target.name, inputs_digest(inputs), token)

    def pointer(self, target: Target) -> PointerName:
        """Where the target's engine is published for its runtime."""
        return PointerName(self.owner, target.name, self.runtime(target).spec.version)

    def place(self, url: str | None, folder: Path) -> Place:
        """The job's store; `url` overrides it, and `local` is a folder below `folder` where the file leaves it out."""
        name = self.job.spec.store_ref.name
        known = {store.name for store in self.documents.stores}
        if url is not None:
            return open_place(url)
        if name == LOCAL and LOCAL not in known:
            return open_place((folder.resolve() / "store").as_uri())
        try:
            declared = self.documents.store_of(self.job)
        except InputError as error:
            raise InputError(f"{error}; `{LOCAL}` is a folder below --folder and needs no document") from None
        return _declared(declared)


def open_place(url: str) -> Place:
    """A store by its URL; a bare path is a folder. Options of a remote store come from STORE_OPTIONS, as a worker's do."""
    if "://" not in url:
        return Place(ObjectStore.open(Path(url).resolve().as_uri()), {})
    options = {} if url.startswith("file:") else _options_here()
    return Place(ObjectStore.open(url, options), options)


def _options_here() -> dict[str, str]:
    """Raises InputError if the variable does not hold a JSON object of strings."""
    try:
        return _OPTIONS.validate_json(os.environ.get(STORE_OPTIONS) or "{}")
    except ValidationError:
        example = '{"allowHttp": "true"}'
        raise InputError(f"${STORE_OPTIONS}: expected a JSON object of strings, like {example}") from None


def embedded_runtime() -> TunerRuntime:
    """The ONNX Runtime that is installed here. Raises InputError when none is."""
    found = installed("ONNXRuntime")
    if found is None:
        raise InputError("no ONNX Runtime is installed here; `pip install trtfleet[onnxruntime]`, or name another runtime")
    return TunerRuntime.model_validate(
        {
            "apiVersion": "trtfleet.dev/v1alpha1",
            "kind": "TunerRuntime",
            "metadata": {"name": EMBEDDED_RUNTIME},
            "spec": TunerRuntimeSpec(family="ONNXRuntime", version=found),
        }
    )


def installed(family: str) -> str | None:
    """Version of the engine library in this Python, without importing it. Raises InputError for two builds of one module."""
    found: dict[str, str] = {}
    for name in _LIBRARIES[family]:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    if family == "ONNXRuntime" and len(set(found.values())) > 1:
        several = " and ".join(f"{name} {one}" for name, one in found.items())
        raise InputError(f"{several} are both installed and share their files: uninstall them, and install the one that you want")
    return next(iter(found.values()), None)


def _declared(store: ArtifactStore) -> Place:
    options = dict(store.spec.options)
    if store.spec.ca_bundle:
        options["caPem"] = store.spec.ca_bundle
    return Place(ObjectStore.open(store.spec.url, options), options)


def local_name(uri: str) -> str:
    """The path of a `file://` URI or of a package's file, as other programs want it; any other URI as it is."""
    parts = urlsplit(uri)
    if parts.scheme == "package":
        with suppress(InputError):  # not installed here
            return str(fetch(uri, Path()))
    return unquote(parts.path) if parts.scheme == "file" else uri


def _is_local(uri: str) -> bool:
    return "://" not in uri or urlsplit(uri).scheme in ("file", "package")


def _local_path(uri: str, base: Path, field: str) -> Path:
    path = base / local_name(uri)
    if not path.exists():
        raise InputError(f"{field}: {path} does not exist")
    return path.resolve()
