"""`trtfleet import` and `trtfleet export`: trtexec's tuning cache, both ways."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import yaml

from tuner_job.accuracy.gate import judge
from tuner_job.accuracy.losses import loss_of
from tuner_job.api.base import InputError
from tuner_job.api.inputs import AccuracyInput, RunInputs
from tuner_job.api.measurement import Losses, Timing
from tuner_job.api.messages import ResultRecord
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.reader import RunReader
from tuner_job.cli.jobfile import JobFile, local_name
from tuner_job.cli.options import Output, folder_option, job_argument, output_option, store_option, target_option
from tuner_job.cli.plan import knobs_option, read_knob_file
from tuner_job.measure.summary import NoUsableSession, latency
from tuner_job.routes.knobs import KnobList, parse_knob_list
from tuner_job.routes.route import parse_route
from tuner_job.routes.tuning_cache import CacheHeader, CacheRow, default_build_route, read_tuning_cache, write_tuning_cache
from tuner_job.store.folder import written_aside

_ALGORITHMS = {"l0": "L0", "l1": "L1", "l2": "L2", "lInf": "LInf", "cosine": "Cosine"}

MAX_CACHE_BYTES = 256 << 20


@click.command("import", short_help="Take routes from trtexec's tuning cache.")
@click.argument("cache", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@knobs_option
@click.option("--top", type=click.IntRange(1, 64), default=8, show_default=True, help="How many of its best routes to take.")
@output_option
def import_command(cache: Path, knob_file: Path | None, top: int, output: Output) -> None:
    """Turn trtexec's tuning CACHE into `spec.search.startWith`: its best routes, to be tried first.

    A cache says nothing of model, GPU, driver or TensorRT version, so its numbers are never taken as results: the routes are
    built and measured again.
    """
    if knob_file is None:
        raise InputError("import: give the knob list of the TensorRT that wrote the cache with --knobs")
    if cache.stat().st_size > MAX_CACHE_BYTES:
        raise InputError(f"{cache}: longer than {MAX_CACHE_BYTES} bytes; that is no tuning cache")
    knobs = parse_knob_list(read_knob_file(knob_file))
    found = read_tuning_cache(cache.read_text(errors="replace"), knobs, str(cache))
    feasible = [row for row in found.rows if row.outcome is Outcome.FEASIBLE and str(row.route)]
    best = sorted(feasible, key=lambda row: row.gpu_time or 0.0)
    routes = list(dict.fromkeys(str(row.route) for row in best))[:top]
    if not routes:
        raise InputError(f"{cache}: none of its {len(found.rows)} rows has a feasible route")
    output.print(f"# best {len(routes)} of {len(found.rows)} routes in {cache.name}" + (" (last row torn)" if found.torn else ""))
    output.print(yaml.safe_dump({"spec": {"search": {"startWith": routes}}}, width=1 << 20).rstrip())
    output.print_json({"startWith": routes, "rows": len(found.rows), "torn": found.torn})


@click.command("export", short_help="Write results as trtexec's tuning cache.")
@job_argument
@target_option
@store_option
@folder_option
@click.option(
    "-o", "--output-file", type=click.Path(path_type=Path, dir_okay=False), default=Path("best_config.json"), show_default=True
)
@output_option
def export_command(
    jobfile: JobFile, target_name: str | None, store_url: str | None, folder: Path, output_file: Path, output: Output
) -> None:
    """Write the run's results as trtexec's tuning cache: the default first, then every trial in order."""
    target = jobfile.target(target_name)
    inputs = jobfile.inputs(target)
    run = jobfile.run_id(target, inputs)
    reader = RunReader(jobfile.place(store_url, folder).store, run)
    discovery = reader.discovery()
    if discovery is None:
        raise InputError(f"TuningJob {jobfile.job.name}: run {run} has discovered nothing yet; start it with `trtfleet run`")
    knobs = parse_knob_list(discovery.knobs)
    trials = dict.fromkeys(t.trial for plan in reader.plans() for t in plan.trials)  # one carried over is planned twice
    results = [r for trial in trials if (r := reader.result(trial)) and not _is_foreign(r)]
    default = _milliseconds(discovery.pilot[0].timing)
    rows = [CacheRow(0, 1, parse_route("", knobs), losses=_losses(discovery.baseline_losses, inputs.accuracy), gpu_time=default)]
    rows += [_row(number, result, knobs, inputs.accuracy) for number, result in enumerate(results, 1)]
    text = write_tuning_cache(_header(inputs, knobs.tuner_version, default_build_route(knobs)), rows)
    with written_aside(output_file) as file:
        file.write(text.encode())
    output.print(f"{len(rows)} rows written to {output_file}")
    output.print_json({"rows": len(rows), "file": str(output_file)})


def _row(number: int, result: ResultRecord, knobs: KnobList, accuracy: AccuracyInput) -> CacheRow:
    time = _milliseconds(result.timing)
    crash = result.outcome not in (Outcome.FEASIBLE, Outcome.INFEASIBLE)
    untimed = "" if crash or time is not None else "no session was usable"  # a time of null means a crash to trtexec
    return CacheRow(
        iteration=number,
        phase=1,
        route=parse_route(result.candidate.route, knobs),
        crash=crash,
        error_message=result.reason or _final_complaint(result, accuracy) or untimed,
        losses=_losses(result.losses, accuracy),
        gpu_time=time,
    )


def _losses(losses: Losses | None, accuracy: AccuracyInput) -> dict[str, float] | None:
    return {loss.output: loss_of(loss, accuracy.metric) for loss in losses.outputs} if losses else None


def _milliseconds(timing: Sequence[Timing]) -> float | None:
    """Of the first shape case, as trtexec times one; None without a session that was not throttled."""
    try:
        return latency(timing[0], "LatencyMean") * 1e3 if timing else None
    except NoUsableSession:
        return None


def _final_complaint(result: ResultRecord, accuracy: AccuracyInput) -> str:
    """trtexec knows one threshold, the final one: what only passes screening is out by it."""
    passed, why = judge(result.losses, accuracy.metric, accuracy.threshold) if result.losses else (True, "")
    return "" if passed else why


def _is_foreign(result: ResultRecord) -> bool:
    """Whether the trial differs by more than its route: trtexec's file has no place for it."""
    return bool(result.candidate.settings) or result.candidate.variant != "default"


def _header(inputs: RunInputs, tuner_version: str, default_route: str) -> CacheHeader:
    accuracy = inputs.accuracy
    return CacheHeader(
        tuner_version=tuner_version,
        accuracy_algorithm=_ALGORITHMS[accuracy.metric],
        atol=accuracy.atol,
        rtol=accuracy.rtol,
        threshold=accuracy.threshold,
        searching_algorithm="fast",
        command_line="trtfleet export",
        default_build_route=default_route,
        tuning_expr=inputs.search.expression,
        onnx=local_name(inputs.variants[0].uri),
    )
