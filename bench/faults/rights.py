"""What the operator was seen to ask for, beside what it was granted; and what it writes when there is nothing to do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from chart_rights import CLUSTER, JOBS, OWN
from rig.kube.control_plane import Object
from rig.waiting import wait_for

from bench.faults.world import OPERATOR, SECOND_OPERATOR, World, pause

Grant = tuple[str, str, str]
"""API group, resource with its subresource, verb."""


FINISH_SECONDS = 600.0


@dataclass(frozen=True)
class Rights:
    asked: dict[str, int]
    """`verb what` → how often."""
    not_granted: list[str]
    refused: list[str]
    """Requests that the API server answered with 401 or 403, once it was ready."""
    never_asked: list[str]
    refused_early: list[str] = field(default_factory=list)
    """The same while it was starting: it has not read the roles yet, and refuses what they grant."""


def together(first: Rights, second: Rights) -> Rights:
    """Of two series."""
    asked = Counter(first.asked) + Counter(second.asked)
    return Rights(
        dict(sorted(asked.items())),
        sorted({*first.not_granted, *second.not_granted}),
        sorted({*first.refused, *second.refused}),
        sorted({*first.never_asked} & {*second.never_asked}),
        sorted({*first.refused_early, *second.refused_early}),
    )


def rights(world: World) -> Rights:
    """Of all requests in the audit log so far."""
    asked: Counter[str] = Counter()
    not_granted: set[str] = set()
    refused: dict[bool, set[str]] = {True: set(), False: set()}
    granted = {_text(grant) for grant in JOBS | CLUSTER | OWN}
    for request in world.cluster.plane.requests():
        if request.user not in (OPERATOR, SECOND_OPERATOR) or not request.resource:
            continue
        text = f"{request.verb} {request.what}"
        asked[text] += 1
        if text not in granted:
            not_granted.add(text)
        if request.code in (401, 403):
            early = any(start <= request.at <= ready for start, ready in world.cluster.plane.starts)
            when = "" if early else f" at {request.at}"
            refused[early].add(f"{text} {request.namespace}/{request.name}: {request.code} {request.why}{when}".strip())
    unused = sorted(granted - set(asked))
    return Rights(dict(sorted(asked.items())), sorted(not_granted), sorted(refused[False]), unused, sorted(refused[True]))


def _text(grant: Grant) -> str:
    group, resource, verb = grant
    return f"{verb} {group}/{resource}" if group else f"{verb} {resource}"


@dataclass(frozen=True)
class Quiet:
    seconds: float
    jobs: int
    """TuningJobs that are finished."""
    reads: dict[str, int]
    lease_writes: int
    other_writes: list[str]


def quiet(world: World, seconds: float) -> Quiet:
    """What the operator asks for while every TuningJob is finished; failed drills' are given their time to be."""
    plane = world.cluster.plane

    def finished() -> list[Object] | None:
        found: list[Object] = plane.get("tuningjobs", "--all-namespaces")["items"]
        moving = [each for job in found for each in job["status"]["conditions"] if each["type"] == "Reconciling"]
        return None if any(each["status"] == "True" for each in moving) else found

    jobs = wait_for("every TuningJob is finished", finished, FINISH_SECONDS, every=2.0)
    offset = plane.audit_log.stat().st_size
    pause(seconds)
    seen = [each for each in plane.requests(offset) if each.user == OPERATOR]
    reads = Counter(f"{each.verb} {each.what}" for each in seen if not each.writes)
    writes = [each for each in seen if each.writes]
    lease = [each for each in writes if each.resource == "leases"]
    others = [f"{each.verb} {each.what} {each.namespace}/{each.name}" for each in writes if each.resource != "leases"]
    return Quiet(seconds, len(jobs), dict(sorted(reads.items())), len(lease), others)
