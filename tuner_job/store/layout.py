"""Every key in a store. Pure.

runs/<run>/run.json                        what is tuned
           discovery.json                  what the first worker found
           rounds/<n>/plan.json seal.json  what is tried, what was folded
           trials/<trial>/try-<k>.json     claims; result.json ends them
           workers/<worker>.json           beats
           ends/<worker id>.json           how a worker process ended
           stop/<attempt>.json             tells the workers of an attempt to stop
           verdict.json                    what the final found
           retired.json                    the run is about to be collected: nothing of it may be published any more
ledger/<identity>/<candidate>.json         results that other runs may reuse
                  timing-cache.json        the timing cache that its builds start from
ledger/kin/<kin>/<identity>-<run>.json     what a run found, for runs that are near but not the same
blobs|manifests/sha256/<d>                 by content
attestations/sha256/<d>/<key id>           about manifest d, by one signing key
pointers/<cluster>/<namespace>/<job>/<target>/<runtime version>.json
.probe/                                    left empty by the honesty probe

Only beats are overwritten and only pointers are swapped; everything else is created once.
"""

from __future__ import annotations

import hashlib
import string

from tuner_job.api.inputs import Owner
from tuner_job.api.measurement import Candidate

RUNS = "runs"
LEDGER = "ledger"
BLOBS = "blobs/sha256"
MANIFESTS = "manifests/sha256"
ATTESTATIONS = "attestations/sha256"
POINTERS = "pointers"
PROBE = ".probe"
TIMING_CACHE = "timing-cache.json"
"""Beside an identity's candidates, whose names are hexadecimal."""
KIN = "kin"
"""Among identities, which are hexadecimal."""

_PLAIN = frozenset(string.ascii_letters + string.digits + "._-")
_PART_LENGTH = 160


def run_prefix(run: str) -> str:
    return f"{RUNS}/{run}"


def run(run: str) -> str:
    return f"{RUNS}/{run}/run.json"


def discovery(run: str) -> str:
    return f"{RUNS}/{run}/discovery.json"


def plan(run: str, round_number: int) -> str:
    return f"{RUNS}/{run}/rounds/{round_number}/plan.json"


def seal(run: str, round_number: int) -> str:
    return f"{RUNS}/{run}/rounds/{round_number}/seal.json"


def claim(run: str, trial: str, number: int) -> str:
    """Of try `number`, from 1."""
    return f"{RUNS}/{run}/trials/{trial}/try-{number}.json"


def result(run: str, trial: str) -> str:
    return f"{RUNS}/{run}/trials/{trial}/result.json"


def beat(run: str, worker: str) -> str:
    return f"{RUNS}/{run}/workers/{worker}.json"


def beats(run: str) -> str:
    return f"{RUNS}/{run}/workers"


def end(run: str, worker_id: str) -> str:
    return f"{RUNS}/{run}/ends/{part(worker_id)}.json"


def stop(run: str, attempt: int) -> str:
    return f"{RUNS}/{run}/stop/{attempt}.json"


def stops(run: str) -> str:
    return f"{RUNS}/{run}/stop"


def verdict(run: str) -> str:
    return f"{RUNS}/{run}/verdict.json"


def retired(run: str) -> str:
    return f"{RUNS}/{run}/retired.json"


def ledger(identity: str, candidate: Candidate) -> str:
    return f"{LEDGER}/{identity}/{candidate.id}.json"


def timing_cache(identity: str) -> str:
    return f"{LEDGER}/{identity}/{TIMING_CACHE}"


def kin(name: str) -> str:
    """Folder of the findings of all that share one name of kin (api.findings.Subject.kin)."""
    return f"{LEDGER}/{KIN}/{name}"


def findings(kin_name: str, identity: str, run: str) -> str:
    return f"{kin(kin_name)}/{identity}-{run}.json"


def blob(digest: str) -> str:
    return f"{BLOBS}/{digest}"


def manifest(digest: str) -> str:
    return f"{MANIFESTS}/{digest}"


def attestation(manifest_digest: str) -> str:
    """Folder of what was attested about the manifest with that digest."""
    return f"{ATTESTATIONS}/{manifest_digest}"


def attestation_by(manifest_digest: str, key_id: str) -> str:
    """What one signing key attested; a key of its own, so that another signer, or the next key, can add its own."""
    return f"{attestation(manifest_digest)}/{key_id}"


def pointer(owner: Owner, target: str, runtime_version: str) -> str:
    return f"{pointers_prefix(owner)}/{part(target)}/{part(runtime_version)}.json"


def pointers_prefix(owner: Owner) -> str:
    return f"{POINTERS}/{part(owner.cluster)}/{part(owner.namespace)}/{part(owner.name)}"


def part(text: str) -> str:
    """Any text as one part of a key; different texts give different parts.

    Letters, digits, `-`, `_` and inner dots stay; other bytes of the UTF-8 form become `~XX`, nothing becomes `~`, and a long
    text is cut and ends in `~~` and its digest.
    """
    out = "".join(
        character if character in _PLAIN and not (position == 0 and character == ".") else _escaped(character)
        for position, character in enumerate(text)
    )
    if len(out) > _PART_LENGTH:
        return f"{out[:100]}~~{hashlib.sha256(text.encode()).hexdigest()[:40]}"
    return out or "~"


def _escaped(character: str) -> str:
    return "".join(f"~{byte:02X}" for byte in character.encode())
