"""What must hold when a drill is over, read from the store's records and the cluster."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rig.kube.cluster import NAME, onnxruntime_version

from bench.faults.world import Run
from tuner_job.api.base import TrtfleetError
from tuner_job.api.inputs import Owner
from tuner_job.api.messages import DISCOVER, FINAL, ResultRecord
from tuner_job.api.outcome import Outcome
from tuner_job.store.keys import TrustRoot
from tuner_job.store.pointers import PointerName
from tuner_job.store.verify import fetch_engine


class Wrong(AssertionError):
    """Something was lost, done too often, or left behind. `str()` lists all of it."""


def check_run(run: Run, target: str = "cpu", *, most_crashes: int = 0) -> None:
    """That the job is Ready, nothing was lost, and at most one trial was repeated for each killed worker.

    `most_crashes`: how often the operators that run now may have been restarted since the drill began. Notes the numbers; raises
    Wrong.
    """
    run.until_ready()
    known = run.run(target)
    wrong = [*_records(run, known), *_status(run, known, target), *_leftovers(run), *_operator(run, most_crashes)]
    wrong += _verified(run, target)
    if wrong:
        raise Wrong("; ".join(wrong))


def _records(run: Run, known: str) -> list[str]:
    wrong = []
    reader = run.reader(known)
    trials = [DISCOVER, *run.planned(known), FINAL]
    results = {trial: run.result_bytes(known, trial) for trial in trials}
    missing = [trial for trial in trials if results[trial] is None]
    if missing:
        wrong.append(f"no result of {missing}")
    lost = [trial for trial, was in run.finished.items() if trial in results and results[trial] != was]
    if lost:
        wrong.append(f"results that had been there are gone or others: {lost}")
    read = {trial: ResultRecord.parse(data, trial) for trial in run.planned(known) if (data := results[trial]) is not None}
    convicted = [trial for trial in trials if run.convicted(known, trial)]
    if convicted:
        wrong.append(f"convicted: {convicted}")
    bad = {trial: result.outcome.value for trial, result in read.items() if result.outcome is not Outcome.FEASIBLE}
    if bad:
        wrong.append(f"not feasible: {bad}")
    tries = run.tries(known)
    repeated = {trial: number - 1 for trial, number in tries.items() if number > 1}
    if sum(repeated.values()) > run.kills:
        wrong.append(f"repeated {repeated}, but {run.kills} workers were killed")
    if any(number == 0 for number in tries.values()):
        wrong.append(f"never tried: {[trial for trial, number in tries.items() if number == 0]}")
    beats = [beat for name in reader.workers() if (beat := reader.beat(name)) is not None]
    if any(beat.done != sum(beat.outcomes.values()) for beat in beats):
        wrong.append("a beat's outcomes do not add up to what it says was done")
    counted = sum(beat.done for beat in beats)
    cut_off = run.cut_off(known)
    if not len(trials) - cut_off <= counted <= len(trials):
        wrong.append(f"beats count {counted} ends of {len(trials)} trials, {cut_off} workers ended without a last beat")
    run.note(
        f"{len(trials)} trials (with discover and final), {sum(tries.values())} tries, "
        f"{run.kills} workers killed, beats count {counted}"
    )
    return wrong


def _status(run: Run, known: str, target: str) -> list[str]:
    wrong = []
    status = run.get()["status"]
    (own,) = [each for each in status["targets"] if each["name"] == target]
    counts, planned = own.get("trials", {}), len(run.planned(known))
    found = counts.get("feasible", 0)
    if counts.get("planned", 0) != planned or found != planned:
        wrong.append(f"status counts {counts}, but {planned} explore trials were planned and all is feasible")
    if own.get("progress") != f"{planned}/{planned}":
        wrong.append(f"progress is {own.get('progress')}, not {planned}/{planned}")
    if counts.get("running", 0):
        wrong.append(f"status still counts {counts['running']} running trials")
    if len(run.pointers()) != len(status["targets"]):
        wrong.append(f"pointers: {run.pointers()}")
    false = [
        each["type"]
        for each in status["conditions"]
        if each["type"] in ("Ready", "Tuned", "Published") and each["status"] != "True"
    ]
    if false:
        wrong.append(f"conditions that do not hold: {false}")
    return wrong


def _leftovers(run: Run) -> list[str]:
    def gone() -> bool | None:
        return True if not run.listed("jobs") and not run.listed("pods") else None

    try:
        run.until("its Jobs and pods are gone", gone, seconds=90)
    except AssertionError:
        return [f"left: {[each['metadata']['name'] for each in (*run.listed('jobs'), *run.listed('pods'))]}"]
    return []


def _operator(run: Run, most_crashes: int) -> list[str]:
    wrong = []
    now = run.world.restarts()
    restarts = {pod: number - run.restarts_before.get(pod, 0) for pod, number in now.items()}
    if sum(restarts.values()) > most_crashes:
        wrong.append(f"operators were restarted: {restarts}, {most_crashes} expected")
    try:
        run.until("the operators are ready", lambda: run.world.operators_ready() or None, seconds=60)
    except AssertionError as error:
        wrong.append(str(error))
    defects = [line for line in run.world.operator_logs().splitlines() if '"traceback"' in line]
    if defects:
        wrong.append(f"{len(defects)} tracebacks in the operator's log, last: {defects[-1][-600:]}")
    return wrong


def _verified(run: Run, target: str) -> list[str]:
    """What `trtfleet verify` does, engine bytes included."""
    cluster = run.world.cluster
    published = next(each for each in run.get()["status"]["targets"] if each["name"] == target)["published"]
    name = PointerName(Owner(cluster=NAME, namespace=run.namespace, name=run.name), target, onnxruntime_version())
    with tempfile.TemporaryDirectory(prefix="trtfleet-verify-") as folder:
        try:
            verified = fetch_engine(run.store, name, TrustRoot.load(cluster.public_key), Path(folder) / "engine")
        except TrtfleetError as error:
            return [f"trtfleet verify: {error}"]
    if published["manifest"] != f"sha256:{verified.digest}":
        return ["the status names another manifest than the pointer"]
    return []
