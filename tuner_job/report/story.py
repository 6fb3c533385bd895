"""What the page says in words: the headline, the two claims, what is inside the number, and what it takes to repeat the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner_job.api.base import TrtfleetError
from tuner_job.api.child import ShapeCase
from tuner_job.api.messages import BeatRecord, DiscoveryRecord, Interval, PlanRecord, RunRecord, VerdictRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.reader import RunReader
from tuner_job.measure.racing import races
from tuner_job.report.words import candidate_text, interval_text, latency_text, seconds_text
from tuner_job.store import layout

_METRICS = {
    "LatencyP50": "median latency",
    "LatencyP99": "99th percentile of the latency",
    "LatencyMean": "mean latency",
    "Throughput": "throughput",
}
_ENDINGS = {
    "NoSignificantWin": "No significant win",
    "ConstraintBroken": "The pick is faster, but breaks a constraint",
    "HostSlower": "The pick is faster on the device, but slower end to end",
    "NoCandidate": "Nothing beat the default",
    "AccuracyFailedInFinal": "The pick failed its accuracy check",
    "BuildFailedInFinal": "The pick could not be built again",
    "TimingFailedInFinal": "The pick broke while it was timed",
}


@dataclass(frozen=True)
class Fact:
    """A line of a list; `code` marks what is to be copied, not read."""

    label: str
    value: str
    code: bool = False


@dataclass(frozen=True)
class Claim:
    """One statement of the final."""

    title: str
    text: str
    interval: Interval | None = None


@dataclass(frozen=True)
class Story:
    state: str
    """`proven`, `refuted` (a final without a winner) or `running`."""
    headline: str
    lead: str
    route: str
    """Whose final it is: the candidate that was picked; empty without one."""
    figures: tuple[Fact, ...]
    """A handful of numbers to be seen first."""
    claims: tuple[Claim, ...]
    power: str
    """What the final could have proven; empty before it."""
    inside: tuple[Fact, ...]
    """What the number is a number of."""
    sections: tuple[tuple[str, tuple[Fact, ...]], ...]
    """Device, versions, identity, …"""
    warnings: tuple[str, ...]
    """About the references."""
    notes: tuple[str, ...]
    """What the backend said of its library on the device."""
    inputs: str
    """All inputs of the run, JSON."""


def story_of(reader: RunReader, plans: Sequence[PlanRecord], outcomes: Mapping[Outcome, int]) -> Story:
    """`outcomes`: of all finished trials."""
    run, discovery, verdict = reader.run, reader.discovery(), reader.verdict()
    if verdict:
        state = "proven" if verdict.significant else "refuted"
        headline, lead = _ended(run, verdict)
    else:
        state = "running"
        headline, lead = _under_way(reader, plans, outcomes)
    pick = verdict.candidate if verdict else plans[-1].pick if plans else None
    return Story(
        state=state,
        headline=headline,
        lead=lead,
        route=candidate_text(pick) if pick and not pick.is_baseline else "",
        figures=tuple(_figures(run, discovery, verdict, outcomes)),
        claims=tuple(_claims(run, verdict)) if verdict else (),
        power=verdict.method.get("power", "") if verdict else "",
        inside=tuple(_inside(run, discovery)),
        sections=tuple((title, tuple(facts)) for title, facts in _sections(run, discovery, verdict) if facts),
        warnings=discovery.reference_warnings if discovery else (),
        notes=discovery.notes if discovery else (),
        inputs=json.dumps(run.inputs.model_dump(mode="json", by_alias=True), indent=2, ensure_ascii=False),
    )


def _better(run: RunRecord, share: float) -> str:
    if run.inputs.measure.metric == "Throughput":
        return f"{abs(share):.1%} {'more' if share >= 0 else 'less'} throughput"
    return f"{abs(share):.1%} {'less' if share >= 0 else 'more'} latency"


def _ended(run: RunRecord, verdict: VerdictRecord) -> tuple[str, str]:
    if not verdict.significant or verdict.route_gain is None:
        what = _ENDINGS.get(verdict.reason, verdict.reason)
        return what, f"A default engine is published. {verdict.message[:1].upper()}{verdict.message[1:]}."
    lead = (
        f"Fresh builds of the winner against fresh default builds, on data that chose nothing: "
        f"{interval_text(verdict.route_gain)}. It had to exceed {run.inputs.min_improvement:.1%}."
    )
    return f"Proven: {_better(run, verdict.route_gain.estimate)}", lead


def _under_way(reader: RunReader, plans: Sequence[PlanRecord], outcomes: Mapping[Outcome, int]) -> tuple[str, str]:
    if not plans:
        beat = _newest_beat(reader)
        lead = "No worker has written its discovery yet."
        if beat is not None:
            doing = " ".join(part for part in (beat.trial, beat.phase) if part)
            lead = f"The last word of worker {beat.worker}: {beat.state}" + (f", {doing}" if doing else "")
            lead += f" ({beat.detail})." if beat.detail else "."
        return ("Discovered, nothing planned yet" if reader.discovery() else "Discovering"), lead
    finished = sum(outcomes.values())
    if plans[-1].stage == "final":
        pick = plans[-1].pick
        what = "fresh builds of the pick against fresh default builds" if pick else "no pick; a default engine is chosen"
        return "Proving the pick", f"The final is under way: {what}. Nothing on this page is proven yet."
    planned = len({trial.trial for plan in plans for trial in plan.trials})
    return (
        f"Exploring: {finished} {'trial' if finished == 1 else 'trials'} finished",
        f"{planned} planned so far, at most {reader.run.inputs.search.max_trials}. What is seen here chose itself: "
        f"the best looks better than it is until the final has proven it.",
    )


def _newest_beat(reader: RunReader) -> BeatRecord | None:
    """For display only: a beat that cannot be read is no beat."""
    try:
        return reader.newest_beat()
    except TrtfleetError:
        return None


def _figures(
    run: RunRecord, discovery: DiscoveryRecord | None, verdict: VerdictRecord | None, outcomes: Mapping[Outcome, int]
) -> list[Fact]:
    found = []
    if verdict:
        found += [
            Fact("published engine", latency_text(verdict.latency_seconds, verdict.baseline_seconds)),
            Fact("median default build", latency_text(verdict.baseline_seconds)),
        ]
        if verdict.p_value is not None:
            found.append(Fact("p-value of the route", f"{verdict.p_value:.2g}"))
    found.append(Fact("trials finished", f"{sum(outcomes.values())} of at most {run.inputs.search.max_trials}"))
    if discovery:
        found.append(Fact("device", discovery.device.product))
    found.append(Fact("runtime", f"{run.inputs.runtime.family} {run.inputs.runtime.version}"))
    return found


def _claims(run: RunRecord, verdict: VerdictRecord) -> list[Claim]:
    claims = []
    if verdict.route_gain is not None:
        p = f" (one-sided p = {verdict.p_value:.2g})" if verdict.p_value is not None else ""
        proven = verdict.significant or verdict.reason in ("ConstraintBroken", "HostSlower")
        outcome = "That is proven" if proven else "That is not proven"
        text = (
            f"Built again, the route has {_better(run, verdict.route_gain.estimate)} than the default built again. "
            f"To win, the gain had to exceed {run.inputs.min_improvement:.1%}. {outcome}{p}. Builds are the unit of the test, "
            f"and none of this data chose the route."
        )
        claims.append(Claim("The route, over rebuilds", text, verdict.route_gain))
    else:
        claims.append(Claim("The route, over rebuilds", f"No claim: {verdict.message}."))
    if verdict.engine_gain is not None:
        whose = "a build of the winner" if verdict.significant else "a default build"
        text = (
            f"The engine that is published is {whose}: {latency_text(verdict.latency_seconds, verdict.baseline_seconds)} against "
            f"{latency_text(verdict.baseline_seconds)} of the median default build. "
            f"It was chosen on the first half of the final's sessions and is described on the second."
        )
        if verdict.engine_percentile is not None:
            others = "default builds" if verdict.significant else "other default builds"
            text += f" {verdict.engine_percentile:.0%} of the {others} are slower: a description, not a test."
        claims.append(Claim("The published bytes", text, verdict.engine_gain))
    return claims


def _inside(run: RunRecord, discovery: DiscoveryRecord | None) -> list[Fact]:
    measure = run.inputs.measure
    found = [Fact("metric", f"{measure.metric} ({_METRICS[measure.metric]})")]
    if discovery:
        first = discovery.pilot[0].timing[0]
        clock = {
            "device": "the device's: events around the compute",
            "host": "the host's: wall time around the whole call",
        }[first.clock]
        launch = {"direct": "each inference launched by the host", "cudaGraph": "as a CUDA graph"}[first.launch]
        found += [Fact("clock", clock), Fact("launch", launch), Fact("streams", str(first.streams))]
    found += [
        Fact("transfers", "host-device copies are counted" if measure.transfers else "host-device copies are left out"),
        Fact(
            "sessions",
            f"{measure.sessions} per engine and shape in explore, each at least {measure.session_seconds:g} s and "
            f"{measure.session_samples} samples; a session counts as one number",
        ),
        Fact("racing", races(measure, run.inputs.constraints, discovery)[1] if discovery else ""),
        Fact("warm-up", f"{measure.warmup_seconds:g} to {measure.warmup_limit_seconds:g} s, until windows agree"),
    ]
    cases = discovery.cases if discovery else run.inputs.cases
    return found + [Fact(f"shape {case.name}", _shape_text(case, cases)) for case in cases]


def _shape_text(case: ShapeCase, cases: Sequence[ShapeCase]) -> str:
    dims = (
        ", ".join(f"{name} {'×'.join(map(str, shape)) or 'scalar'}" for name, shape in case.tensors.items()) or "the model's own"
    )
    total = sum(each.weight for each in cases)
    return f"{dims} (weight {case.weight / total:.0%})" if len(cases) > 1 and total > 0 else dims


def _sections(run: RunRecord, discovery: DiscoveryRecord | None, verdict: VerdictRecord | None) -> list[tuple[str, list[Fact]]]:
    inputs, accuracy, search = run.inputs, run.inputs.accuracy, run.inputs.search
    device, versions = [], []
    if discovery:
        one = discovery.device
        device = [
            Fact("product", one.product),
            Fact("type", f"{one.type}, {one.count} {'GPU' if one.type == 'GPU' else 'cores'}"),
            Fact("MIG profile", one.mig_profile),
            Fact("compute capability" if one.type == "GPU" else "SIMD", one.compute_capability),
            Fact("driver" if one.type == "GPU" else "kernel", one.driver),
            Fact("device class", one.class_id, code=True),
        ]
        versions = [Fact(name, version) for name, version in discovery.versions.items()]
        versions += [Fact(f"variable {name}", value, code=True) for name, value in sorted(discovery.environment.items())]
    warm = []
    if discovery:
        warm = [Fact("relative", name) for name in discovery.beliefs.relatives]
        for start in discovery.beliefs.starts:
            flips = " ".join(f"{name.removeprefix('setting:')}={value}" for name, value in start.flips.items())
            warm.append(Fact("to try first", f"{flips} (from the best of {start.origin})"))
    versions.insert(0, Fact("runtime", f"{inputs.runtime.family} {inputs.runtime.version}"))
    versions.append(Fact("image", inputs.runtime.image_digest, code=True))
    model = []
    for variant in discovery.variants if discovery else inputs.variants:
        model.append(Fact(variant.name, variant.uri, code=True))
        model.append(Fact(f"{variant.name}, SHA-256", variant.digest or "", code=True))
    gate = [
        Fact("references", "the user's" if accuracy.source == "References" else "made by the unoptimised model"),
        Fact("judged", f"{accuracy.metric} with atol {accuracy.atol:g}, rtol {accuracy.rtol:g}"),
        Fact("threshold", f"{accuracy.threshold:g} in the final, {accuracy.screening_threshold:g} while exploring"),
        Fact("samples", str(discovery.baseline_losses.samples) if discovery else ""),
        Fact("references, digest", discovery.references_digest if discovery else "", code=True),
    ]
    repeat = [
        Fact("run", run.run, code=True),
        Fact("trigger", f"{run.trigger}, {run.created_at}" + (f", rerun token {run.rerun_token}" if run.rerun_token else "")),
        Fact("seed", str(run.seed), code=True),
        Fact("search", f"{search.strategy}, at most {search.max_trials} trials, shards: {run.shards}"),
        Fact("inputs, digest", run.inputs_digest, code=True),
        Fact("identity", discovery.identity if discovery else "", code=True),
        Fact("knob list, digest", discovery.knobs_digest if discovery else "", code=True),
        Fact("references blob", discovery.references_blob if discovery else "", code=True),
    ]
    final = []
    if verdict:
        repeat += [
            Fact("engine, SHA-256", verdict.engine.digest, code=True),
            Fact("engine, size", f"{verdict.engine.size:,} bytes"),
            Fact("published candidate", candidate_text(verdict.published), code=True),
            Fact("samples blob", verdict.samples_blob or "", code=True),
            Fact("verdict record", layout.verdict(run.run), code=True),
        ]
        final = [Fact(name, value, code=True) for name, value in verdict.method.items() if name != "power"]
        final += [Fact("took", seconds_text(verdict.seconds)), Fact("finished", verdict.finished_at)]
    groups = [
        ("Device", device),
        ("Software", versions),
        ("Model", model),
        ("Accuracy", gate),
        ("Warm start", warm),
        ("To repeat it", repeat),
        ("How the final was computed", final),
    ]
    return [(title, [fact for fact in facts if fact.value]) for title, facts in groups]
