"""`trtfleet plan` and `trtfleet knobs`: look before anything is built."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import click
from rich.table import Column, Table

from tuner_job.api.base import InputError
from tuner_job.api.child import ChildRequest, Limits
from tuner_job.api.inputs import RunInputs
from tuner_job.api.measurement import BuilderSetting
from tuner_job.api.messages import DiscoveryRecord
from tuner_job.api.tuningjob import Target
from tuner_job.campaign.final import final_design
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.rounds import FINAL_BUILDS, space_of, strategy_of
from tuner_job.campaign.start import seed_of
from tuner_job.cli.jobfile import JobFile, installed
from tuner_job.cli.options import Output, folder_option, job_argument, output_option, store_option, target_option
from tuner_job.measure.summary import latency
from tuner_job.report.words import candidate_text, seconds_text
from tuner_job.routes.curated import curated_values
from tuner_job.routes.knobs import Knob, parse_knob_list
from tuner_job.search.space import Space
from tuner_job.search.strategy import Budget, Done, Proposal, estimate
from tuner_job.store.folder import written_aside
from tuner_job.trial.supervisor import Supervisor

SHOWN = 12

knobs_option = click.option(
    "--knobs", "knob_file", type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Knob list as JSON (TensorRT's all_build_routes). "
    "Default: what this job's run discovered, else what the installed library tells.",
)  # fmt: skip


@click.command("plan", short_help="Say what a run would try; builds nothing.")
@job_argument
@target_option
@store_option
@folder_option
@knobs_option
@click.option("--workers", type=click.IntRange(1, 1024), help="Shards; default: the target's parallelism.")
@click.option("--trial-seconds", type=click.FloatRange(min=0.001), help="Time of one trial, if no run measured it.")
@output_option
def plan_command(
    jobfile: JobFile,
    target_name: str | None,
    store_url: str | None,
    folder: Path,
    knob_file: Path | None,
    workers: int | None,
    trial_seconds: float | None,
    output: Output,
) -> None:
    """Say what a run would try: knobs, first candidates, shards, device time. Builds nothing and needs no device."""
    target = jobfile.target(target_name)
    inputs = jobfile.inputs(target)
    discovery = None if knob_file and trial_seconds else _discovery(jobfile, target, inputs, store_url, folder)
    text, offered = _told(knob_file, discovery, inputs, folder)
    space = space_of(inputs, text, offered)
    chosen = strategy_of(inputs)
    shards = workers or target.parallelism or 1
    budget = Budget(trials=inputs.search.max_trials, spent=0, round_limit=inputs.search.max_trials, workers=shards)
    count = estimate(chosen, space, budget)
    first = chosen.next_round(space, (), budget, seed_of(jobfile.run_id(target, inputs)))
    proposals: tuple[Proposal, ...] = () if isinstance(first, Done) else first
    per_trial = trial_seconds or (discovery.trial_seconds if discovery else None)
    final = None if per_trial is None else _final_seconds(inputs, discovery, per_trial, count)
    device = None if per_trial is None or final is None else count * per_trial + final
    wall = None if per_trial is None or final is None else -(-count // shards) * per_trial + final
    answer = {
        "tuner": space.knobs.tuner_version,
        "knobs": len(space.choices),
        "values": sum(len(choice.flips) for choice in space.choices),
        "missing": space.knobs.missing,
        "settings": {name: list(values) for name, values in space.settings.items()},
        "settingsChecked": offered is not None,
        "variants": list(space.variants),
        "strategy": inputs.search.strategy,
        "candidates": count,
        "shards": [len(range(shard, count, shards)) for shard in range(shards)],
        "trialSeconds": per_trial,
        "finalSeconds": final,
        "deviceSeconds": device,
        "wallSeconds": wall,
        "first": [
            p.candidate.model_dump(mode="json", by_alias=True, include={"variant", "route", "settings"}) | {"reason": p.reason}
            for p in proposals[:SHOWN]
        ],
    }
    output.print_json(answer)
    output.print(
        f"{inputs.search.strategy} over {_dimensions(space)}: at most {_count(count, 'trial')} in {_count(shards, 'shard')}"
    )
    if space.knobs.missing:
        output.print(f"no knobs: {space.knobs.missing}")
    if space.settings and offered is None:
        output.print("builder settings: as the job names them; a run first checks them against the library")
    if per_trial is None or final is None or device is None or wall is None:
        output.print("device time: unknown until a run measured a trial; estimate with --trial-seconds")
    else:
        output.print(
            f"device time: about {seconds_text(device)}, {seconds_text(final)} of it for the final, "
            f"at {per_trial:.3g} s a trial; wall time about {seconds_text(wall)}"
        )
    _print_first(proposals, output)


@click.command("knobs", short_help="List a job's knobs.")
@job_argument
@target_option
@store_option
@folder_option
@knobs_option
@click.option("--match", default="*", show_default=True, help="Glob of names to show.")
@click.option(
    "-o", "--output-file", "save", type=click.Path(path_type=Path, dir_okay=False),
    help="Write the list here as the library tells it, whole: --knobs takes it where there is no such library.",
)  # fmt: skip
@output_option
def knobs_command(
    jobfile: JobFile,
    target_name: str | None,
    store_url: str | None,
    folder: Path,
    knob_file: Path | None,
    match: str,
    save: Path | None,
    output: Output,
) -> None:
    """List the knobs of the job's runtime, and its builder settings: values, default, and what the job searches."""
    target = jobfile.target(target_name)
    inputs = jobfile.inputs(target)
    discovery = None if knob_file else _discovery(jobfile, target, inputs, store_url, folder)
    text, offered = _told(knob_file, discovery, inputs, folder)
    knobs = parse_knob_list(text)
    try:
        space, problem = space_of(inputs, text, offered), ""
    except InputError as error:  # whoever mistyped a name comes here to look it up
        space, problem = Space(knobs), str(error)
    searched = {choice.knob.name for choice in space.choices}
    shown = [knob for knob in knobs.knobs if fnmatchcase(knob.name, match)]
    settings = [setting for setting in offered or () if fnmatchcase(setting.name, match)]
    if not shown and not settings and match != "*":
        raise InputError(
            f"--match {match}: matches none of {len(knobs)} knobs and {_count(len(offered or ()), 'builder setting')}"
        )
    if save is not None:
        with written_aside(save) as file:
            file.write(text.encode())
    if shown and not output.as_json:
        table = Table(
            Column("knob", no_wrap=True), "values", "default", "searched", "what it does", title=f"tuner {knobs.tuner_version}"
        )
        for knob in shown:
            table.add_row(knob.name, _values(knob), knob.default, "yes" if knob.name in searched else "", knob.help)
        output.console.print(table)
    if settings and not output.as_json:
        table = Table(Column("builder setting", no_wrap=True), "values", "default", "searched", "what it does")
        for setting in settings:
            table.add_row(
                setting.name, setting.allowed, setting.default, " ".join(space.settings.get(setting.name, ())), setting.help
            )
        output.console.print(table)
    if knobs.missing:
        output.print(f"no knobs: {knobs.missing}")
    if problem:
        output.print(f"the job's own search would be refused: {problem}")
    if save is not None:
        output.print(f"the list as the library tells it: {save}")
    output.print_json(
        {
            "tuner": knobs.tuner_version,
            "missing": knobs.missing,
            "knobs": [
                {
                    "name": knob.name,
                    "values": list(knob.values) if knob.values else None,
                    "default": knob.default,
                    "searched": knob.name in searched,
                    "help": knob.help,
                }
                for knob in shown
            ],
            "settings": [
                {
                    "name": one.name,
                    "allowed": one.allowed,
                    "default": one.default,
                    "searched": list(space.settings.get(one.name, ())),
                    "help": one.help,
                }
                for one in settings
            ],
            "problem": problem,
        }
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _dimensions(space: Space) -> str:
    """What is varied, for people."""
    parts = []
    if space.choices:
        values = _count(sum(len(choice.flips) for choice in space.choices), "value")
        parts.append(
            f"{_count(len(space.choices), 'knob')} with {values} besides the default (tuner {space.knobs.tuner_version})"
        )
    if space.settings:
        values = _count(sum(len(each) for each in space.settings.values()), "value")
        parts.append(f"{_count(len(space.settings), 'builder setting')} with {values}")
    if len(space.variants) > 1:
        parts.append(_count(len(space.variants), "model variant"))
    return " and ".join(parts)


def _values(knob: Knob) -> str:
    if knob.values:
        return " ".join(knob.values)
    curated = curated_values(knob)
    return f"(any number; if included by name: {' '.join(curated)})" if curated else "(any number)"


def read_knob_file(path: Path) -> str:
    """The text of a knob list that the user gives. Raises InputError naming the file if it is none."""
    text = path.read_text(errors="replace")
    try:
        parse_knob_list(text)
    except InputError as error:
        raise InputError(
            f"{path}: {error}; give what TensorRT says in all_build_routes: `trtfleet knobs JOB.yaml -o knobs.json` writes it",
            reason=error.reason,
        ) from None
    return text


def _discovery(
    jobfile: JobFile, target: Target, inputs: RunInputs, store_url: str | None, folder: Path
) -> DiscoveryRecord | None:
    """What this very run discovered, if it began already."""
    return RunReader(jobfile.place(store_url, folder).store, jobfile.run_id(target, inputs)).discovery()


def _final_seconds(inputs: RunInputs, discovery: DiscoveryRecord | None, per_trial: float, count: int) -> float:
    """Of the least final, or of the one that the pilot calls for."""
    if discovery is None:
        return FINAL_BUILDS * per_trial
    slowest = max(latency(timing, "LatencyP50") for timing in discovery.pilot[0].timing)
    chosen = final_design(inputs, discovery, count * per_trial)
    return chosen.seconds(per_trial, len(discovery.cases), slowest)


def _told(
    knob_file: Path | None, discovery: DiscoveryRecord | None, inputs: RunInputs, folder: Path
) -> tuple[str, tuple[BuilderSetting, ...] | None]:
    """The knob list that the user gives, that the run discovered, or that the installed library tells, and the builder settings
    beside it; None where nobody has asked the library for them. Nothing is built."""
    if knob_file is not None:
        return read_knob_file(knob_file), discovery.settings if discovery else None
    if discovery is not None:
        return discovery.knobs, discovery.settings
    version = installed(inputs.runtime.family)
    if version != inputs.runtime.version:
        raise InputError(
            f"no run of this job has discovered a knob list yet, and {inputs.runtime.family} {inputs.runtime.version} is not "
            f"installed here ({version or 'none'} is); give a list with --knobs: `trtfleet knobs JOB.yaml -o knobs.json` writes "
            f"one where it is installed"
        )
    with Supervisor(folder / "scratch") as supervisor:
        request = ChildRequest(operation="describe", backend=inputs.runtime.backend, device=inputs.device_type, output="")
        end = supervisor.run(request, Limits())
    if end.report is None or not end.report.knobs:
        raise InputError(f"the installed {inputs.runtime.family} did not tell its knobs: {end.reason}; give a list with --knobs")
    return end.report.knobs, end.report.settings


def _print_first(proposals: tuple[Proposal, ...], output: Output) -> None:
    if not proposals or output.as_json:
        return
    title = "First candidate" if len(proposals) == 1 else f"First {min(SHOWN, len(proposals))} candidates"
    table = Table("candidate", "why", title=title, title_justify="left")
    for proposal in proposals[:SHOWN]:
        table.add_row(candidate_text(proposal.candidate), proposal.reason)
    output.console.print(table)
