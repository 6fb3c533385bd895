"""Relatives of a run: what it leaves for them when it has explored, and what it makes of theirs before it begins.

Runs of one store prefix trust each other, so any of them may be a relative. Their results never count here: they only say where
to look first. How near a relative is, and so how far it is trusted, is the product of a few factors below. They are judgements,
not measurements; the prior keeps what they lead to away from certainty.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from tuner_job.api.base import TrtfleetError, digest_of
from tuner_job.api.beliefs import Beliefs
from tuner_job.api.child import ShapeCase
from tuner_job.api.findings import MOST_FOUND, Finding, FindingsRecord, Subject
from tuner_job.api.inputs import VariantInput
from tuner_job.api.measurement import Candidate, Device
from tuner_job.api.messages import RunRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.beliefs import beliefs_of
from tuner_job.campaign.rounds import Fold, observations, space_of
from tuner_job.search.relatives import Relative, defaults_of, warm_start
from tuner_job.search.rounds import Observation
from tuner_job.search.space import Space
from tuner_job.store.findings import keep, nearby
from tuner_job.store.ledger import BY_CHANCE, ignores_ledger
from tuner_job.store.objects import ObjectStore

MOST_RELATIVES = 3

NEAREST = 0.9
"""Only references, protocol, plugins or environment differ."""
OTHER_WEIGHTS = 0.9
"""Kernels care for shapes and types of weights; their values move accuracy alone."""
OTHER_GRAPH = 0.5
"""The same job's: most layers are there in both, as a rule."""
OTHER_SHAPES = 0.7
"""The best kernel of a layer depends on its sizes."""
OTHER_SETUP = 0.9
"""The same product under another driver or MIG profile, or other core counts."""
OTHER_PRODUCT = 0.7
"""Of one compute capability: the same kernels at another balance of memory and arithmetic."""
OTHER_ARCHITECTURE = 0.5
"""Other kernels; which parts of the graph leave something to gain is still alike."""
OTHER_VERSION = 0.6
"""Kernels and defaults change, and what a knob does may."""
LEAST_TRUST = 0.1
"""Below it, reading a relative is not worth its starts."""

SAYS_NOTHING_HERE = BY_CHANCE | {Outcome.INFEASIBLE}
"""Outcomes that the ledger puts down to chance or to the machine, and losses over a threshold, which is a job's own."""
WIDEST = 96
"""Flips of a finding that is read: what fits many of them costs by their square, and the findings are somebody else's."""
MOST_FLIPS_READ = 60_000
"""Of one relative, over all its findings."""
MOST_FAILURES = 200
"""Of one relative, the smallest: the more flips there are in a failure, the less it says of any."""

log = logging.getLogger("trtfleet.worker")


def subject_of(
    run: RunRecord, variants: Sequence[VariantInput], device: Device, structure: str, cases: Sequence[ShapeCase]
) -> Subject:
    """What the run tunes; its variants have digests."""
    return Subject(
        owner=run.owner,
        runtime=run.inputs.runtime,
        device=device,
        models={variant.name: variant.digest for variant in variants if variant.digest is not None},
        structure=structure,
        cases_digest=digest_of([case.model_dump(mode="json") for case in cases]),
    )


def trust(mine: Subject, theirs: Subject) -> float:
    """How far what was found on theirs holds for mine, 0 to NEAREST. 0: not at all."""
    if mine.runtime.family != theirs.runtime.family or mine.device.type != theirs.device.type:
        return 0.0
    factor = NEAREST
    if mine.structure != theirs.structure:
        factor *= OTHER_GRAPH
    elif mine.models != theirs.models:
        factor *= OTHER_WEIGHTS
    if mine.cases_digest != theirs.cases_digest:
        factor *= OTHER_SHAPES
    if mine.device.compute_capability != theirs.device.compute_capability:
        factor *= OTHER_ARCHITECTURE
    elif mine.device.product != theirs.device.product:
        factor *= OTHER_PRODUCT
    elif mine.device != theirs.device:
        factor *= OTHER_SETUP
    if mine.runtime.version != theirs.runtime.version:
        factor *= OTHER_VERSION
    return round(factor, 6) if factor >= LEAST_TRUST else 0.0


def describe(mine: Subject, theirs: FindingsRecord) -> str:
    """For people: `this model with other weights on NVIDIA L4, run 0123456789abcdef0123`."""
    other = theirs.subject
    if mine.structure != other.structure:
        words = "another version of this job's model"
    elif mine.models != other.models:
        words = "this model with other weights"
    else:
        words = "this model"
    if mine.cases_digest != other.cases_digest:
        words += " under other shapes"
    if mine.device.product != other.device.product:
        words += f" on {other.device.product[:100]}"
    elif mine.device != other.device:
        words += " under another driver or share of the device"
    if mine.runtime.version != other.runtime.version:
        words += f" with {other.runtime.family} {other.runtime.version[:50]}"
    return f"{words}, run {theirs.run}"


def leave_findings(store: ObjectStore, fold: Fold) -> None:
    """Keep what the run has found for its relatives; a rerun leaves nothing, as in the ledger. It is not worth a failure."""
    if ignores_ledger(fold.run) or fold.discovery.structure is None or not fold.folded:
        return
    try:
        keep(store, findings_of(fold, fold.discovery.structure))
    except (TrtfleetError, ValueError) as error:  # ValueError: more than a record of them holds
        log.warning("nothing is left for relatives: %s", error)


def findings_of(fold: Fold, structure: str) -> FindingsRecord:
    """At most MOST_FOUND: if there are more, evenly spaced ones, and all of the fastest."""
    discovery = fold.discovery
    subject = subject_of(fold.run, discovery.variants, discovery.device, structure, discovery.cases)
    space = space_of(fold.run.inputs, discovery.knobs, discovery.settings)
    return FindingsRecord(
        identity=discovery.identity,
        run=fold.run.run,
        subject=subject,
        defaults=defaults_of(space),
        found=tuple(
            Finding(candidate=o.candidate, outcome=o.outcome, log_ratio=o.log_ratio, sd=o.sd, fingerprint=o.fingerprint[:128])
            for o in _thinned(observations(fold))
        ),
    )


def _thinned(seen: Sequence[Observation], most: int = MOST_FOUND) -> list[Observation]:
    if len(seen) <= most:
        return list(seen)
    step = 2 * len(seen) / most
    spaced = {int(k * step) for k in range(most // 2)}
    fastest = sorted((i for i, o in enumerate(seen) if o.timed), key=lambda i: (seen[i].log_ratio or 0.0, i))
    return [seen[i] for i in sorted(spaced | set(fastest[: most // 2]))]


def first_beliefs(
    store: ObjectStore, run: RunRecord, space: Space, subject: Subject, identity: str, operators: Collection[str]
) -> Beliefs:
    """What to believe before the first trial. Raises nothing for relatives that cannot be read, nor for beliefs of no use."""
    relatives = () if ignores_ledger(run) else _relatives(store, subject, identity)
    for kin in (relatives, ()):
        try:
            found = beliefs_of(warm_start(space, kin, operators), [one.name for one in kin])
        except (ArithmeticError, ValueError, MemoryError) as error:  # numbers or names that no run of ours would have left
            log.warning("%s left out: %r", "relatives are" if kin else "beliefs are", error)
            continue
        for one in kin:
            log.info("warm start: from %s, trusted %.0f %%", one.name, 100 * one.trust)
        return found
    return Beliefs()


def _relatives(store: ObjectStore, subject: Subject, identity: str) -> tuple[Relative, ...]:
    """The nearest few; of equals the newest."""
    found, notes = nearby(store, subject.kin, but_not=identity)
    for note in notes:
        log.warning("findings of a relative are left out: %s", note)
    near = sorted(((trust(subject, one.subject), one) for one in found), key=lambda item: -item[0])
    return tuple(
        Relative(describe(subject, one), held, one.defaults, _told(one)) for held, one in near[:MOST_RELATIVES] if held > 0
    )


def _told(record: FindingsRecord) -> list[Observation]:
    """What is read of its findings."""
    seen = [
        Observation(f"{k:05d}", f.candidate, f.outcome, f.log_ratio, f.sd, f.fingerprint)
        for k, f in enumerate(record.found)
        if f.outcome not in SAYS_NOTHING_HERE and _width(f.candidate) <= WIDEST
    ]
    failed = sorted((o for o in seen if o.outcome is not Outcome.FEASIBLE), key=lambda o: (_width(o.candidate), o.trial))
    large = {o.trial for o in failed[MOST_FAILURES:]}
    seen = [o for o in seen if o.trial not in large]
    while sum(_width(o.candidate) for o in seen) > MOST_FLIPS_READ:
        seen = _thinned(seen, len(seen) // 2)
    return seen


def _width(candidate: Candidate) -> int:
    """Flips in it, the variant's apart."""
    return len(candidate.route.split()) + len(candidate.settings)
