"""What the targets of a TuningJob ask for now: references resolved, inputs frozen. No I/O."""

from __future__ import annotations

from tuner_job.api.base import GROUP, InputError
from tuner_job.api.conditions import Reason
from tuner_job.api.documents import parse_resource
from tuner_job.api.effective import inputs_digest, run_id, run_inputs
from tuner_job.api.inputs import Owner
from tuner_job.api.runtime import TunerRuntime
from tuner_job.api.tuningjob import Target, TuningJob
from tuning_operator.catalog import Catalog
from tuning_operator.config import OperatorConfig
from tuning_operator.jobs.template import placement
from tuning_operator.kube.api import ARTIFACT_STORES, TUNER_CHANNELS, TUNER_RUNTIMES, TUNING_JOBS, Object, Resource
from tuning_operator.records.stores import Stores
from tuning_operator.snapshot import Problem, RuntimeView, StoreView, Wanted

_METADATA = (
    *("name", "namespace", "uid", "generation", "resourceVersion", "labels", "annotations"),
    *("creationTimestamp", "deletionTimestamp"),
)
"""What is read of it; the rest may hold what a newer server adds."""


def parse_job(body: Object, *, status: bool = True) -> TuningJob:
    """A TuningJob as the API server returned it. Raises InputError naming the first wrong field."""
    plain = {
        "apiVersion": body.get("apiVersion", TUNING_JOBS.api_version),
        "kind": TUNING_JOBS.kind,
        "metadata": {part: body["metadata"][part] for part in _METADATA if part in body["metadata"]},
        "spec": body.get("spec", {}),
    }
    if status and body.get("status"):
        plain["status"] = body["status"]
    job = parse_resource(plain, "cluster")
    assert isinstance(job, TuningJob)
    return job


def owner_of(job: TuningJob, config: OperatorConfig) -> Owner:
    return Owner(cluster=config.cluster, namespace=job.metadata.namespace or "", name=job.name)


def store_of(job: TuningJob, catalog: Catalog) -> StoreView | Problem:
    """The job's ArtifactStore as its namespace sees it."""
    name = job.spec.store_ref.name
    store = catalog.store(name)
    if store is None:
        return _missing(catalog, ARTIFACT_STORES, name, f"spec.storeRef: there is no ArtifactStore {name}")
    return Stores.view(store, job.metadata.namespace or "")


def store_at(url: str, namespace: str, catalog: Catalog) -> StoreView | None:
    """The store that has this URL for jobs of the namespace, whatever ArtifactStore it is."""
    views = (Stores.view(store, namespace) for store in catalog.stores())
    return next((view for view in views if isinstance(view, StoreView) and view.url == url), None)


def wanted_of(job: TuningJob, target: Target, store: StoreView, catalog: Catalog, config: OperatorConfig) -> Wanted | Problem:
    """What the target asks for, or why that cannot be known or had."""
    runtime = _runtime(target, catalog)
    if isinstance(runtime, Problem):
        return runtime
    if not runtime.spec.image:
        return Problem(
            Reason.IMAGE_MISSING,
            f"TunerRuntime {runtime.name}: it names no image, which pods need; create one that has spec.image",
        )
    try:
        inputs = run_inputs(job, target.name, runtime)
        placement(job, target, None, config)
    except InputError as error:
        return Problem(Reason.INVALID_SPEC if error.reason == InputError.reason else error.reason, str(error))
    digest = inputs_digest(inputs)
    token = job.spec.rerun.token if job.spec.rerun else ""
    return Wanted(
        inputs=inputs,
        digest=digest,
        run=run_id(owner_of(job, config), target.name, digest, token),
        rerun_token=token,
        runtime=RuntimeView(name=runtime.name, version=runtime.spec.version, image=runtime.spec.image),
        store=store,
    )


def _runtime(target: Target, catalog: Catalog) -> TunerRuntime | Problem:
    where = f"spec.targets[{target.name}]"
    if target.runtime_ref is not None:
        name, where = target.runtime_ref.name, f"{where}.runtimeRef"
    else:
        assert target.channel_ref is not None  # a rule of Target
        where = f"{where}.channelRef"
        channel = catalog.channel(target.channel_ref.name)
        if channel is None:
            missing = target.channel_ref.name
            return _missing(catalog, TUNER_CHANNELS, missing, f"{where}: there is no TunerChannel {missing}")
        name, where = channel.spec.runtime_ref.name, f"{where}: TunerChannel {channel.name}"
    runtime = catalog.runtime(name)
    return runtime or _missing(catalog, TUNER_RUNTIMES, name, f"{where}: there is no TunerRuntime {name}")


def _missing(catalog: Catalog, resource: Resource, name: str, message: str) -> Problem:
    if unreadable := catalog.problem(resource, name):
        return Problem(Reason.INVALID_SPEC, f"{resource.kind} {name}: {unreadable}")
    return Problem(Reason.REFERENCE_NOT_FOUND, f"{message}; create it, or name another (kubectl get {resource.plural}.{GROUP})")
