"""From a run's verdict to what the pointer serves: checked, signed with the operator's key, moved as the job says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from tuner_job.api.base import InputError, TrtfleetError, first_problem
from tuner_job.api.inputs import Owner
from tuner_job.api.messages import Interval, PointerRecord, RunRecord, VerdictRecord
from tuner_job.api.tuningjob_status import GainInterval, PublishedEngine
from tuner_job.store import layout, pointers
from tuner_job.store.keys import KeyProblem, Signer, TrustRoot
from tuner_job.store.objects import ObjectStore, StoreReadOnly, StoreUnavailable
from tuner_job.store.records import read_record
from tuner_job.store.release import Wish, release
from tuning_operator.records.mirror import gain_text, genuine_run
from tuning_operator.records.stores import problem_of
from tuning_operator.snapshot import Problem, Publication, Wanted

TRUSTED_KEYS = "trusted-keys.pem"
"""Beside the signing key, if it is there: public keys of earlier signing keys, whose manifests may still be approved."""


class Publisher:
    """Publishes verdicts, for threads. The signing key is read anew each time, so that a rotated one counts at once."""

    def __init__(self, signing_key: Path) -> None:
        self._signing_key = signing_key

    def publish(
        self, store: ObjectStore, owner: Owner, target: str, wanted: Wanted, wish: Wish, current_digest: Callable[[], str]
    ) -> Publication | Problem:
        """Repeating it changes nothing. `current_digest`: the inputs digest that the job has now, asked before each swap.

        Raises StoreUnavailable, and what `current_digest` raises; all else is a Problem.
        """
        try:
            signer = Signer.load(self._signing_key, group_may_read=True)
            run, verdict = self._records(store, owner, target, wanted)
            ended = release(
                store,
                run,
                verdict,
                signer,
                wish,
                self._trust(signer),
                current_inputs_digest=current_digest,
                only_the_job_pins=True,
            )
            served = None if ended.pointer is None else _served(store, ended.pointer, wanted)
            return Publication(ended.state, f"sha256:{ended.published.digest}", served)
        except StoreUnavailable:
            raise
        except (KeyProblem, StoreReadOnly) as error:  # administrators mend it, and nobody edits the job for it
            return replace(problem_of(error), transient=True)
        except TrtfleetError as error:
            return problem_of(error)

    def _records(self, store: ObjectStore, owner: Owner, target: str, wanted: Wanted) -> tuple[RunRecord, VerdictRecord]:
        """What is signed rests on it: the run must be this job's."""
        run = genuine_run(store, wanted.run)
        if run is None or (run.owner, run.target) != (owner, target):
            whose = "is gone" if run is None else f"is of {run.owner} target {run.target}"
            raise InputError(f"{layout.run(wanted.run)}: {whose}; nothing is published", reason="PoisonedRecord")
        key = layout.verdict(wanted.run)
        verdict = read_record(store, key, VerdictRecord)
        if verdict is None:
            raise InputError(
                f"{key}: is gone; nothing is published. Start a new run with spec.rerun.token", reason="PoisonedRecord"
            )
        return run, verdict

    def _trust(self, signer: Signer) -> TrustRoot:
        """Raises KeyProblem."""
        earlier = self._signing_key.with_name(TRUSTED_KEYS)
        return TrustRoot([signer.public, *(TrustRoot.load(earlier) if earlier.exists() else ())], "the operator's keys")


def _served(store: ObjectStore, pointer: PointerRecord, wanted: Wanted) -> PublishedEngine:
    """Pointers are per runtime version, so whatever is served was built by the wanted run's runtime."""
    digest = pointer.current.manifest
    manifest = pointers.load_manifest(store, digest)
    gain = manifest.gain if manifest.significant else None
    try:
        return PublishedEngine(
            uri=f"{store.url}/{layout.blob(manifest.engine.digest)}",
            digest=f"sha256:{manifest.engine.digest}",
            manifest=f"sha256:{digest}",
            runtime=wanted.runtime.name,
            speedup=gain_text(gain.estimate) if gain else None,
            interval=_interval(gain) if gain else None,
        )
    except ValidationError as error:
        raise InputError(f"{layout.manifest(digest)}: {first_problem(error)}", reason="PoisonedRecord") from None


def _interval(gain: Interval) -> GainInterval:
    return GainInterval(low=gain_text(gain.low), high=gain_text(gain.high), confidence=f"{gain.confidence:.4f}".rstrip("0"))
