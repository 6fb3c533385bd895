"""The examination: what a run would do, once, with a small model, through the same supervisor and children."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from tuner_job import __version__
from tuner_job.accuracy.gate import judge
from tuner_job.api.base import TrtfleetError
from tuner_job.api.child import ENGINE_FILE, TIMING_CACHE_FILE, ChildReport, ChildRequest, Limits, MeasureSettings, ShapeCase
from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.api.outcome import Outcome
from tuner_job.doctor.choice import chosen_knobs, chosen_setting
from tuner_job.doctor.known import facts_of
from tuner_job.doctor.machine import machine, missing_gpu
from tuner_job.doctor.model import CASE, write_model
from tuner_job.doctor.record import Check, DoctorRecord, Spread, Tried
from tuner_job.doctor.spread import spread_of, told
from tuner_job.doctor.text import device_text, knobs_text
from tuner_job.measure.summary import objective
from tuner_job.model.digest import digest
from tuner_job.model.inspect import inspect
from tuner_job.model.shapes import resolve_cases
from tuner_job.routes.knobs import KnobList, parse_knob_list
from tuner_job.store.records import timestamp
from tuner_job.trial.environment import steering
from tuner_job.trial.supervisor import Supervisor, TrialEnd

CHECKS = (
    "library", "device", "idle device", "knob list", "own checks", "references", "default build", "accuracy",
    "default against default", "routes", "builder setting", "timing cache", "layers",
)  # fmt: skip
"""In the order in which they are made; each needs those before it up to `accuracy`."""

METRIC: Literal["cosine"] = "cosine"
THRESHOLD = 1e-3
"""Of the cosine loss: kernels may reorder sums and use TF32, but may not compute something else."""
_STRANGER = Candidate(route="-trtfleet_no_such_knob=on")


@dataclass(frozen=True)
class Wish:
    """What to examine."""

    family: Literal["TensorRT", "ONNXRuntime"]
    device_type: Literal["CPU", "GPU"]
    folder: Path
    """Scratch files go into a folder of their own below it, which is removed at the end."""
    model: Path | None = None
    """None: the doctor's own."""
    cases: tuple[ShapeCase, ...] = ()
    """Of the user's model."""
    builds: int = 4
    """Default builds that are set against each other; at least two."""
    sessions: int = 12
    routes: int = 4
    allow_shared: bool = False
    """Measure also while other processes use the GPU."""


class _Blocked(Exception):
    """What comes after needs what failed."""


def examine(wish: Wish, on_check: Callable[[Check], None]) -> DoctorRecord:
    """Try everything, calling `on_check` for each thing as it is known.

    What does not work is in the record. Raises InputError for a model or folder that cannot be used.
    """
    wish.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=wish.folder) as name:
        root = Path(name)
        with Supervisor(root / "scratch", warm=True) as supervisor:
            return _Examination(wish, root, supervisor, on_check).record()


class _Examination:
    def __init__(self, wish: Wish, root: Path, supervisor: Supervisor, on_check: Callable[[Check], None]) -> None:
        self._wish = wish
        self._root = root
        self._supervisor = supervisor
        self._on_check = on_check
        self._checks: list[Check] = []
        self._machine = machine()
        self._model, self._cases = self._prepared()
        self._info = inspect(self._model)
        self._described: ChildReport | None = None
        self._knobs: KnobList | None = None
        self._references_digest: str | None = None
        self._builds: list[Path] = []
        self._fingerprints: set[str] = set()
        self._spread: Spread | None = None
        self._tried: list[Tried] = []
        self._from_cache: list[Outcome] = []

    def record(self) -> DoctorRecord:
        started_at, began = timestamp(), time.monotonic()
        try:
            self._describe()
            self._knob_list()
            self._refuses_strangers()
            self._references()
            self._default_builds()
        except _Blocked as failed:
            self._rest(f"needs {failed}")
        else:
            self._measure_spread()
            self._try_routes()
            self._try_setting()
            self._timing_cache()
            self._layers()
        seen = self._described
        return DoctorRecord(
            trtfleet=__version__,
            family=self._wish.family,
            device_type=self._wish.device_type,
            machine=self._machine,
            versions=seen.versions if seen else {},
            device=seen.device if seen else None,
            state=seen.state.model_copy(update={"processes": ()}) if seen and seen.state else None,
            environment=steering(os.environ, {}),
            knobs=facts_of(self._knobs) if self._knobs else None,
            settings=seen.settings if seen else (),
            notes=seen.notes if seen else (),
            model=self._wish.model.name if self._wish.model else "built in",
            model_digest=digest(self._model),
            checks=tuple(self._checks),
            spread=self._spread,
            tried=tuple(self._tried),
            started_at=started_at,
            seconds=time.monotonic() - began,
        )

    # -- the checks, in order

    def _describe(self) -> None:
        end = self._child("describe", allow_shared=False)  # it alone looks for more than processes
        busy = ""
        if end.report is not None and end.report.status == "busy":
            busy = end.reason
            end = self._child("describe", allow_shared=True)
        report = end.report
        if report is None or report.status != "ok" or report.device is None:
            self._nothing_told(end)
        assert report is not None
        assert report.device is not None
        self._described = report
        versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
        self._say("library", "confirmed", versions)
        self._say("device", "confirmed", device_text(report.device))
        if busy and not self._wish.allow_shared:
            self._say("idle device", "failed", busy)
            raise _Blocked("idle device")
        others = len(report.state.processes) if report.state else 0
        if report.state is None:
            self._say("idle device", "absent", "nothing tells what else uses this device")
        elif others or busy:
            self._say("idle device", "confirmed", f"shared, as allowed: {_others(others)}")
        else:
            self._say("idle device", "confirmed", "no other process uses it")

    def _nothing_told(self, end: TrialEnd) -> NoReturn:
        """Whether library or device is to blame, as far as it can be told."""
        no_gpu = missing_gpu(self._machine) if self._wish.device_type == "GPU" else ""
        if no_gpu and end.report is not None and not end.bad_input:
            self._say("library", "untried", "it is here, but without a device it tells nothing")
            self._say("device", "failed", f"{no_gpu} ({end.reason})")
            raise _Blocked("device")
        self._say("library", "failed", _reason(end))
        if no_gpu:
            self._say("device", "failed", no_gpu)
        raise _Blocked("library")

    def _knob_list(self) -> None:
        assert self._described is not None
        try:
            self._knobs = parse_knob_list(self._described.knobs or "")
        except TrtfleetError as error:
            self._say("knob list", "failed", str(error))
            raise _Blocked("knob list") from None
        facts = facts_of(self._knobs)
        if facts.missing:
            self._say("knob list", "absent", facts.missing)
            return
        self._say("knob list", "confirmed", knobs_text(facts, self._wish.family))

    def _refuses_strangers(self) -> None:
        """The real setter takes any text, so that trtfleet must refuse what is not in the list."""
        assert self._knobs is not None
        candidates = [_STRANGER]
        if self._knobs.bounded:
            candidates.append(Candidate(route=f"{self._knobs.bounded[0].name}=trtfleet_no_such_value"))
        for candidate in candidates:
            end = self._child("compile", candidate=candidate, output="stranger")
            if end.outcome is not Outcome.UNSUPPORTED:
                self._say("own checks", "failed", f"{candidate.route} was not refused: {end.outcome} {end.reason}")
                return
        self._say("own checks", "confirmed", "an unknown knob and an unknown value are refused before any build")

    def _references(self) -> None:
        end = self._child("reference", output="references")
        if end.report is None or end.outcome is not Outcome.FEASIBLE:
            self._say("references", "failed", _reason(end))
            raise _Blocked("references")
        self._references_digest = end.report.detail.get("referencesDigest")
        count = end.report.detail.get("losses.samples", "?")
        self._say("references", "confirmed", f"{count} samples by the unoptimised model on the CPU")

    def _default_builds(self) -> None:
        losses = []
        for number in range(self._wish.builds):
            end = self._child("build", output=f"build-{number}")
            report = end.report
            if report is None or report.engine is None or report.losses is None or end.outcome is not Outcome.FEASIBLE:
                self._say("default build", "failed", f"build {number + 1} of {self._wish.builds}: {_reason(end)}")
                raise _Blocked("default build")
            self._builds.append(self._root / f"build-{number}" / ENGINE_FILE)
            self._fingerprints |= {report.engine.fingerprint} - {""}
            losses.append(report.losses)
            size, seconds = report.engine.size, end.seconds.get("build", 0.0)
        prints = len(self._fingerprints)
        alike = f", by fingerprint {prints} different engine{'s' * (prints > 1)}" if prints else ""
        self._say("default build", "confirmed", f"{len(losses)} builds{alike}; {size:,} bytes, {seconds:.2g} s to build")
        verdicts = [judge(one, METRIC, THRESHOLD) for one in losses]
        worst = max(output.cosine for one in losses for output in one.outputs)
        failed = next((why for passed, why in verdicts if not passed), "")
        if failed:
            self._say("accuracy", "failed", failed)
            raise _Blocked("accuracy")
        self._say("accuracy", "confirmed", f"cosine loss at most {worst:.2g} over all builds (allowed: below {THRESHOLD:g})")

    def _measure_spread(self) -> None:
        name = "default against default"
        end = self._child("time", engines={str(k): str(path) for k, path in enumerate(self._builds)})
        if end.report is None or end.outcome is not Outcome.FEASIBLE:
            self._say(name, "failed", _reason(end))
            return
        try:
            self._spread = spread_of(list(end.report.timings.values()), self._cases, self._measure_settings())
        except TrtfleetError as error:
            self._say(name, "failed", str(error))
            return
        self._say(name, "confirmed", told(self._spread))

    def _try_routes(self) -> None:
        assert self._knobs is not None
        knobs = chosen_knobs(self._knobs, self._wish.routes)
        if not knobs:
            self._say("routes", "absent", self._knobs.missing or "no knob has two listed values")
            return
        tried = [self._try(Candidate(route=f"{knob.name}={value}")) for knob, value in knobs]
        self._sum_up("routes", tried)

    def _try_setting(self) -> None:
        assert self._described is not None
        picked = chosen_setting(self._described.settings)
        if picked is None:
            self._say("builder setting", "absent", f"{self._wish.family} has none")
            return
        name, value = picked
        self._sum_up("builder setting", [self._try(Candidate(settings={name: value}))])

    def _timing_cache(self) -> None:
        cache = self._cache()
        if cache is None:
            self._say("timing cache", "absent", "this library keeps none")
            return
        size = cache.stat().st_size
        good = sum(outcome in (Outcome.FEASIBLE, Outcome.INFEASIBLE) for outcome in self._from_cache)
        status: Literal["confirmed", "failed"] = "confirmed" if good else "failed"
        self._say(
            "timing cache", status, f"{size:,} bytes; {good} of {len(self._from_cache)} builds that began with it were timed"
        )

    def _layers(self) -> None:
        end = self._child("inspect", engines={"default": str(self._builds[0])})
        profile = end.report.layers.get("default") if end.report and end.outcome is Outcome.FEASIBLE else None
        if profile is None:
            self._say("layers", "failed", _reason(end))
            return
        if not profile.layers:
            self._say("layers", "absent", "the library does not tell what an engine is made of")
            return
        timed = sum(layer.seconds is not None for layer in profile.layers)
        self._say("layers", "confirmed", f"{len(profile.layers)} layers, {timed} timed by {profile.clock or 'nothing'}")

    # -- how

    def _try(self, candidate: Candidate) -> Tried:
        cache = self._cache()
        end = self._child("trial", candidate=candidate, output="trial", timing_cache=str(cache) if cache else "")
        shutil.rmtree(self._root / "trial", ignore_errors=True)
        report, outcome, reason = end.report, end.outcome, end.reason
        latency = None
        if outcome is Outcome.FEASIBLE and report is not None and report.losses is not None:
            passed, why = judge(report.losses, METRIC, THRESHOLD)
            outcome, reason = (Outcome.FEASIBLE, "") if passed else (Outcome.INFEASIBLE, why)
            try:
                latency = math.exp(objective(report.timing, self._cases, "LatencyP50"))
            except TrtfleetError as error:
                reason = str(error)
        if cache is not None:
            self._from_cache.append(outcome)
        tried = Tried(
            candidate=candidate,
            outcome=outcome,
            reason=reason,
            seconds=end.seconds.get("total", 0.0),
            latency_seconds=latency,
            same_engine=bool(report and report.engine and report.engine.fingerprint in self._fingerprints),
        )
        self._tried.append(tried)
        return tried

    def _sum_up(self, name: str, tried: Sequence[Tried]) -> None:
        """Refused and wrong candidates are results; that nothing at all can be tuned is a failure."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in Counter(str(one.outcome) for one in tried).items())
        timed = [one for one in tried if one.latency_seconds is not None]
        why = "" if timed else f"; {tried[0].reason}"
        what = ", ".join(one.candidate.route or _settings(one.candidate) for one in tried)
        self._say(name, "confirmed" if timed else "failed", f"{counts} ({what}){why}")

    def _child(
        self,
        operation: str,
        *,
        candidate: Candidate = BASELINE,
        output: str = "",
        engines: dict[str, str] | None = None,
        timing_cache: str = "",
        allow_shared: bool | None = None,
    ) -> TrialEnd:
        request = ChildRequest.model_validate(
            {
                "operation": operation,
                "backend": self._wish.family.lower(),
                "device": self._wish.device_type,
                "model": str(self._model),
                "cases": self._cases,
                "candidate": candidate,
                "references": str(self._root / "references") if self._references_digest else "",
                "references_digest": self._references_digest,
                "metric": METRIC,
                "inputs": self._info.inputs,
                "samples": 2,
                "measure": self._measure_settings(allow_shared=self._wish.allow_shared if allow_shared is None else allow_shared),
                "engines": engines or {},
                "timing_cache": timing_cache,
                "output": str(self._root / output) if output else "",
            }
        )
        return self._supervisor.run(request, Limits())

    def _measure_settings(self, *, allow_shared: bool = False) -> MeasureSettings:
        return MeasureSettings(sessions=self._wish.sessions, allow_shared=allow_shared)

    def _prepared(self) -> tuple[Path, tuple[ShapeCase, ...]]:
        if self._wish.model is not None:
            return self._wish.model, resolve_cases(inspect(self._wish.model), self._wish.cases)
        path = self._root / "doctor.onnx"
        write_model(path)
        return path, (CASE,)

    def _cache(self) -> Path | None:
        """The timing cache that the first default build left."""
        path = self._root / "build-0" / TIMING_CACHE_FILE
        return path if path.is_file() else None

    def _say(self, name: str, status: Literal["confirmed", "failed", "untried", "absent"], detail: str) -> None:
        check = Check(name=name, status=status, detail=" ".join(detail.split()))
        self._checks.append(check)
        self._on_check(check)

    def _rest(self, why: str) -> None:
        known = {check.name for check in self._checks}
        for name in CHECKS:
            if name not in known:
                self._say(name, "untried", why)


def _others(count: int) -> str:
    who = f"{count} other processes" if count else "processes that cannot be seen from here"
    return "1 other process uses it" if count == 1 else f"{who} use it"


def _settings(candidate: Candidate) -> str:
    return " ".join(f"{name}={value}" for name, value in candidate.settings.items()) or "default"


def _reason(end: TrialEnd) -> str:
    return f"{end.outcome} in {end.phase}: {end.reason or 'no reason given'}"
