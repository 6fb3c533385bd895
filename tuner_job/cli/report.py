"""`trtfleet report`: explain a run in one file."""

from __future__ import annotations

import re
from pathlib import Path

import click

from tuner_job.api.base import InputError
from tuner_job.api.effective import inputs_digest, run_id
from tuner_job.campaign.reader import RunReader
from tuner_job.cli.jobfile import JobFile, Place, open_place
from tuner_job.cli.options import Output, folder_option, output_option, store_option, target_option
from tuner_job.report.data import as_json, page_of
from tuner_job.report.html import write_page

_RUN = re.compile(r"[0-9a-f]{20}")


@click.command("report", short_help="Write one HTML file that explains a run.")
@click.argument("what", metavar="JOB.yaml|RUN")
@click.option("-o", "--output-file", type=click.Path(path_type=Path, dir_okay=False), help="Where the page goes. [default: "
              "reports/RUN.html below --folder]")  # fmt: skip
@click.option("--job", "job_name", metavar="NAME", help="Which TuningJob of the file.")
@target_option
@click.option("--rerun", metavar="TOKEN", help="The run of this token (overrides spec.rerun.token).")
@store_option
@folder_option
@output_option
def report_command(
    what: str,
    output_file: Path | None,
    job_name: str | None,
    target_name: str | None,
    rerun: str | None,
    store_url: str | None,
    folder: Path,
    output: Output,
) -> None:
    """Write one HTML file that explains a run: of a job file as it is now, or by its id.

    The page needs nothing else and opens offline. It works at any stage; before the verdict it says what is known so far.
    """
    if _RUN.fullmatch(what):
        place = open_place(store_url) if store_url else open_place((folder.resolve() / "store").as_uri())
        run = what
    elif not Path(what).exists() and not what.endswith((".yaml", ".yml")):
        raise InputError(f"{what}: neither a job file nor the id of a run (20 hex digits)")
    else:
        jobfile = JobFile.load(Path(what), job_name)
        target = jobfile.target(target_name)
        place = jobfile.place(store_url, folder)
        token = rerun or (jobfile.job.spec.rerun.token if jobfile.job.spec.rerun else "")
        run = run_id(jobfile.owner, target.name, inputs_digest(jobfile.inputs(target)), token)
    page = page_of(_reader(place, run, what))
    path = write_page(page, output_file or folder / "reports" / f"{run}.html")
    output.print(f"{page.story.headline} · {page.finished} of {len(page.trials)} planned trials finished")
    output.print(str(path))
    output.print_json({"run": run, "report": str(path), "page": as_json(page)})


def _reader(place: Place, run: str, what: str) -> RunReader:
    """The run's records; a job file without a run gets told what to do."""
    reader = RunReader(place.store, run)
    try:
        _ = reader.run
    except InputError as error:
        if what == run or error.reason != "NoSuchRun":
            raise
        raise InputError(
            f"{what}: its present inputs have no run (it would be {run}) in {place.store.url}; start it with `trtfleet run`, "
            f"or give the id of an earlier one",
            reason=error.reason,
        ) from None
    return reader
