"""What a target's pointer is to serve: a run's verdict and what its job says of publishing, brought together.

The CLI and the operator do the same here. Each step may be the last one that happens, and all of them may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tuner_job.api.measurement import Digest
from tuner_job.api.messages import PointerRecord, RunRecord, VerdictRecord
from tuner_job.api.tuningjob import PublishTarget, TuningJob
from tuner_job.store import pointers
from tuner_job.store.keys import Signer, TrustRoot
from tuner_job.store.objects import ObjectStore
from tuner_job.store.pointers import PointerName
from tuner_job.store.publish import Promotion, Published, promote, publish

KEEP = 10
"""Entries of a pointer's history, where the job does not say."""

State = Literal["Served", "AwaitingApproval", "Pinned", "RolledBack"]


@dataclass(frozen=True)
class Wish:
    """What a job says of one target's pointer. Equal wishes lead to equal pointers."""

    promotion: Promotion = "Automatic"
    approved: Digest | None = None
    """Manifest that may be promoted, if promotion is manual."""
    pinned: Digest | None = None
    keep: int = KEEP

    @staticmethod
    def of(job: TuningJob, target: str) -> Wish:
        publish = job.spec.publish
        own = (each for each in (publish.targets if publish else ()) if each.name == target)
        decided = next(own, PublishTarget(name=target))
        return Wish(
            promotion=(publish and publish.promotion) or "Automatic",
            approved=_hex(decided.approved_digest),
            pinned=_hex(decided.pinned_digest),
            keep=(publish and publish.keep) or KEEP,
        )


@dataclass(frozen=True)
class Release:
    """How it ended."""

    published: Published
    """The run's own manifest."""
    pointer: PointerRecord | None
    """As it is now; None when nothing was ever served."""
    state: State
    """Of the run's manifest. `Pinned`: another one is served, since the pointer is pinned to it. `RolledBack`: a person moved the
    pointer to another one."""


def release(
    store: ObjectStore,
    run: RunRecord,
    verdict: VerdictRecord,
    signer: Signer,
    wish: Wish,
    trust: TrustRoot,
    *,
    current_inputs_digest: Callable[[], str],
    only_the_job_pins: bool = False,
) -> Release:
    """Publish the verdict and move, pin or trim the pointer as the job wishes. Repeating it changes nothing.

    `only_the_job_pins`: a pin that the job does not name is undone, and what the run found is served again.

    A pin comes first, so that nothing else is served in between; the first engine of all is served before it can be pinned away.
    Raises NotCurrent, InconsistentVerdict, pointers.PointerRefused, VerificationFailed.
    """
    name = PointerName(run.owner, run.target, run.inputs.runtime.version)
    pointer = pointers.read(store, name)
    if pointer is not None and wish.pinned is not None:
        pointers.pin(store, name, wish.pinned)
    elif pointer is not None and pointer.pinned is not None and only_the_job_pins:
        pointers.unpin(store, name)
    published = publish(store, run, verdict, signer, current_inputs_digest=current_inputs_digest, promotion=wish.promotion)
    pointer = published.pointer
    if pointer is not None and not published.served and _was_overtaken(pointer, only_the_job_pins):
        # The job was edited back to what this run had tuned for: serve its engine again.
        pointer = pointers.move(store, name, published.digest, why=pointers.PUBLISHED, expected_generation=pointer.generation)
    if wish.promotion == "Manual":
        pointer = pointers.read(store, name)
        if wish.approved is not None:
            pointer = promote(store, wish.approved, trust, owner=run.owner, target=run.target)
    if pointer is not None and wish.pinned is not None:
        pointer = pointers.pin(store, name, wish.pinned)
    if pointer is not None:
        pointer = pointers.trim(store, name, wish.keep)
    return Release(published, pointer, _state(pointer, published.digest, wish.promotion))


def _was_overtaken(pointer: PointerRecord, only_the_job_pins: bool) -> bool:
    """Another run's engine is served, and no person decided so: not now, or by a pin that is withdrawn."""
    undecided = (pointers.PUBLISHED, pointers.PINNED) if only_the_job_pins else (pointers.PUBLISHED,)
    return pointer.pinned is None and pointer.current.why in undecided


def _state(pointer: PointerRecord | None, manifest: Digest, promotion: Promotion) -> State:
    if pointer is not None and pointer.current.manifest == manifest:
        return "Served"
    if pointer is not None and pointer.pinned is not None:
        return "Pinned"
    return "AwaitingApproval" if promotion == "Manual" else "RolledBack"


def _hex(digest: str | None) -> Digest | None:
    return digest.removeprefix("sha256:") if digest else None
