"""`trtfleet trtexec`: a winner as a command line of NVIDIA's own tool."""

from __future__ import annotations

from pathlib import Path

import click

from tuner_job.api.base import InputError
from tuner_job.api.inputs import RunInputs
from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import DiscoveryRecord
from tuner_job.campaign.reader import RunReader
from tuner_job.cli.jobfile import JobFile, local_name
from tuner_job.cli.options import Output, folder_option, job_argument, output_option, store_option, target_option
from tuner_job.routes.trtexec import DEFAULT_AVERAGE, TrtexecLine, trtexec_line

FAMILY = "TensorRT"


@click.command("trtexec", short_help="Print a winner as a trtexec line.")
@job_argument
@target_option
@click.option("--trial", metavar="TRIAL", help="Another candidate than the published one: that of this trial.")
@store_option
@folder_option
@click.option(
    "-o", "--output-file", default="engine.plan", show_default=True, help="What the line gives to --saveEngine.",
)  # fmt: skip
@output_option
def trtexec_command(
    jobfile: JobFile,
    target_name: str | None,
    trial: str | None,
    store_url: str | None,
    folder: Path,
    output_file: str,
    output: Output,
) -> None:
    """Print the trtexec line that builds and times what JOB.yaml's run published. Nothing is built.

    What trtexec cannot say is in comments above it. Its engine is another build of the same route, not the published bytes.
    """
    target = jobfile.target(target_name)
    inputs = jobfile.inputs(target)
    family = inputs.runtime.family
    if family != FAMILY:
        raise InputError(
            f"trtexec: target {target.name} runs {family}; trtexec builds {FAMILY} engines only", reason="NotTensorRT"
        )
    reader = RunReader(jobfile.place(store_url, folder).store, jobfile.run_id(target, inputs))
    discovery = reader.discovery()
    if discovery is None:
        raise InputError(f"TuningJob {jobfile.job.name}: its run has discovered nothing yet; start it with `trtfleet run`")
    candidate, which = _candidate(reader, trial)
    variant = next((one for one in inputs.variants if one.name == candidate.variant), inputs.variants[0])
    line = trtexec_line(
        candidate,
        onnx=local_name(variant.uri),
        engine=output_file,
        cases=discovery.cases,
        measure=inputs.measure,
        plugins=[local_name(plugin.uri) for plugin in inputs.plugins],
        default_average=_average(discovery),
        major=int(inputs.runtime.version.partition(".")[0]),
    )
    device = discovery.device
    slice_of = f" {device.mig_profile}" if device.mig_profile else ""
    about = (
        f"{which}; {FAMILY} {inputs.runtime.version} on {device.product}{slice_of}, driver {device.driver}. "
        f"Builds differ: this makes another engine of the same route.",
        *_unsaid(inputs, local_name(variant.uri)),
    )
    line = TrtexecLine(line.argv, (*about, *line.notes))
    output.print(line.shell)
    output.print_json(
        {
            "argv": list(line.argv),
            "notes": list(line.notes),
            "candidate": candidate.model_dump(mode="json", by_alias=True),
            "run": reader.run.run,
        }
    )


def _average(discovery: DiscoveryRecord) -> str:
    """How many timings of a tactic the library averages by itself, as discover read it."""
    known = [one.default for one in discovery.settings if one.name == "avgTimingIterations" and one.default.isdigit()]
    return known[0] if known else DEFAULT_AVERAGE


def _candidate(reader: RunReader, trial: str | None) -> tuple[Candidate, str]:
    """What to print, and what it is."""
    if trial is not None:
        planned = {one.trial: one.candidate for plan in reader.plans() for one in plan.trials}
        if trial not in planned:
            raise InputError(f"--trial {trial}: run {reader.run.run} has no such trial; `trtfleet report` lists them")
        result = reader.result(trial)
        return planned[trial], f"trial {trial} ({result.outcome if result else 'not finished'}), explored, not proven"
    verdict = reader.verdict()
    if verdict is None:
        raise InputError(f"run {reader.run.run} has no verdict yet; wait for it, or name a trial with --trial")
    proven = "proven winner" if verdict.significant else f"the default, since nothing was proven ({verdict.reason})"
    return verdict.published, f"{proven} of run {reader.run.run}"


def _unsaid(inputs: RunInputs, onnx: str) -> tuple[str, ...]:
    """What the run did that no flag does."""
    accuracy = inputs.accuracy
    notes = [
        f"Accuracy was judged by {accuracy.metric} below {accuracy.threshold:g}; trtexec checks nothing unless it is given "
        f"--loadInputs, --loadRefOutputs and --accuracyThreshold."
    ]
    if "://" in onnx:
        notes.append(f"trtexec reads local files only: fetch {onnx} first, with its external data beside it.")
    notes += [f"The plugin {plugin.uri} had the SHA-256 {plugin.digest}." for plugin in inputs.plugins]
    return tuple(notes)
