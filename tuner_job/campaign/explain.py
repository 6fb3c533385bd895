"""After the decision: what the final's engines are made of, so that people see why one is faster."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tuner_job.api.base import TrtfleetError
from tuner_job.api.measurement import Session
from tuner_job.api.messages import DiscoveryRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.reader import LAYERS_BYTES, LAYERS_TEXT_BYTES
from tuner_job.campaign.workspace import Stopped, Workspace
from tuner_job.measure.summary import Metric, case_weights, session_seconds

CANDIDATE, BASELINE = "candidate", "baseline"
"""Names of the sides in the layers blob."""

log = logging.getLogger("trtfleet.worker")


def shown(
    sessions: Mapping[str, Sequence[Sequence[Session]]],
    candidates: Sequence[str],
    baselines: Sequence[str],
    discovery: DiscoveryRecord,
    metric: Metric,
) -> dict[str, str]:
    """Side → name of the build that stands for it: the fastest candidate, and of the defaults the one nearest to their median."""
    weights = case_weights(discovery.cases)

    def value(name: str) -> float:
        logs = [np.median(np.log([session_seconds(one, metric) for one in case if not one.throttled])) for case in sessions[name]]
        return float(np.dot(weights, logs))

    middle = float(np.median([value(name) for name in baselines]))
    found = {BASELINE: min(baselines, key=lambda name: (abs(value(name) - middle), name))}
    if candidates:
        found[CANDIDATE] = min(candidates, key=lambda name: (value(name), name))
    return found


def layers(space: Workspace, discovery: DiscoveryRecord, engines: Mapping[str, Path]) -> bytes | None:
    """Layers of the engine of each side, as the blob holds them: gzip JSON, the same bytes for the same layers.

    None where the library does not tell, or the child fails: it explains a verdict that stands without it, so nothing is raised,
    not even Stopped.
    """
    try:
        return _packed(space, discovery, engines)
    except Stopped:
        why = "told to stop"
    except TrtfleetError as error:
        why = str(error)
    log.warning("the layers of the final's engines are not recorded: %s", why)
    return None


def _packed(space: Workspace, discovery: DiscoveryRecord, engines: Mapping[str, Path]) -> bytes:
    end = space.start(
        space.request("inspect", None, cases=discovery.cases, engines=engines, references_digest=discovery.references_digest)
    )
    if end.outcome is not Outcome.FEASIBLE or end.report is None:
        raise TrtfleetError(f"inspecting them ended {end.outcome} in {end.phase}: {end.reason}")
    if not any(profile.layers for profile in end.report.layers.values()):
        raise TrtfleetError("the library names none")
    plain = {side: profile.model_dump(mode="json", by_alias=True) for side, profile in end.report.layers.items()}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    packed = gzip.compress(text, mtime=0)
    if len(text) > LAYERS_TEXT_BYTES or len(packed) > LAYERS_BYTES:
        raise TrtfleetError(f"they take {len(packed)} bytes, more than readers accept")
    return packed
