"""`trtfleet run`: tune, prove, publish and report on this machine."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from tuner_job.api.base import InputError
from tuner_job.api.effective import cluster_fields, inputs_digest
from tuner_job.api.messages import RunRecord, VerdictRecord
from tuner_job.api.tuningjob import Target
from tuner_job.campaign.local import LocalExecutor
from tuner_job.campaign.progress import progress
from tuner_job.campaign.reader import RunReader
from tuner_job.campaign.start import start_run
from tuner_job.cli.jobfile import JobFile, Place
from tuner_job.cli.live import LiveRun
from tuner_job.cli.options import Output, folder_option, job_argument, output_option, store_option, target_option
from tuner_job.cli.show import print_results, verdict_text
from tuner_job.report.html import write_report
from tuner_job.store import pointers
from tuner_job.store.keys import TrustRoot, signer
from tuner_job.store.release import Release, Wish, release
from tuner_job.store.verify import verify


@click.command("run", short_help="Tune a job, prove the winner, publish it, report.")
@job_argument
@target_option
@store_option
@folder_option
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help=(
    "Worker processes. On a CPU neighbours disturb each other's timings: leave it at 1 unless cores are to spare."
))  # fmt: skip
@click.option("--rerun", metavar="TOKEN", help="Measure anew under this token (overrides spec.rerun.token).")
@click.option("--no-publish", is_flag=True, help="Stop after the verdict.")
@output_option
def run_command(
    jobfile: JobFile,
    target_name: str | None,
    store_url: str | None,
    folder: Path,
    workers: int,
    rerun: str | None,
    no_publish: bool,
    output: Output,
) -> None:
    """Tune JOB.yaml on this machine, prove the winner, publish it signed, and write a report.

    Killed or stopped at any point, the same command goes on where it was. Several targets run one after the other.
    """
    if jobfile.job.spec.suspend:
        raise InputError(f"TuningJob {jobfile.job.name}: spec.suspend is true; set it to false to run", reason="Suspended")
    targets = [jobfile.target(target_name)] if target_name else list(jobfile.job.spec.targets)
    place = jobfile.place(store_url, folder)
    if place.store.url.startswith("memory:"):
        raise InputError(f"store {place.store.url}: memory belongs to one process, but workers are processes; use a folder")
    if not no_publish:
        signer()  # a key that cannot be made or read is better met now than after the final
    answers = []
    for target in targets:
        session = _Session(jobfile, target, place, folder, workers, output.console)
        answers.append(session.complete(rerun, publishing=not no_publish))
    output.print_json({"runs": answers})


class _Session:
    """One target's run."""

    def __init__(self, jobfile: JobFile, target: Target, place: Place, folder: Path, workers: int, console: Console) -> None:
        self._jobfile = jobfile
        self._target = target
        self._place = place
        self._folder = folder
        self._workers = workers
        self._console = console

    def complete(self, rerun: str | None, *, publishing: bool) -> dict[str, object]:
        spec = self._jobfile.job.spec
        if unused := cluster_fields(self._jobfile.job, self._target):
            self._console.print(f"only a cluster uses, so not this run: {', '.join(unused)}", style="dim", soft_wrap=True)
        inputs = self._jobfile.inputs(self._target)
        if publishing and (pinned := Wish.of(self._jobfile.job, self._target.name).pinned):
            pointers.pin(self._place.store, self._jobfile.pointer(self._target), pinned)
        token = rerun or (spec.rerun.token if spec.rerun else "")
        reason = spec.rerun.reason if spec.rerun and not rerun else None
        run = start_run(
            self._place.store,
            self._jobfile.owner,
            self._target.name,
            inputs,
            shards=self._workers,
            rerun_token=token,
            trigger=f"Rerun: {reason or token}" if token else "Created",
        )
        reader = RunReader(self._place.store, run.run)
        self._console.print(f"[bold]run {run.run}[/] target {self._target.name} · store {self._place.store.url}", soft_wrap=True)
        with LiveRun(self._console, reader, run, self._workers) as live:
            verdict = LocalExecutor(
                self._place.store,
                self._place.options,
                run.run,
                workers=self._workers,
                folder=self._folder,
                on_tick=live.tick,
                deadline_seconds=run.inputs.search.deadline_seconds,
            ).complete()
        results = list(reader.fold().folded)
        print_results(self._console, progress(reader), results)
        self._console.print(verdict_text(verdict), soft_wrap=True)
        answer: dict[str, object] = {
            "run": run.run,
            "target": self._target.name,
            "verdict": verdict.model_dump(mode="json", by_alias=True, exclude={"builds"}, exclude_none=True),
        }
        if publishing:  # before the report: no chart may keep an engine from being served
            answer |= self._publish(run, verdict)
        report = write_report(reader, self._folder / "reports" / f"{run.run}.html")
        answer["report"] = str(report)
        self._console.print(f"report: {report}", soft_wrap=True, highlight=False)
        return answer

    def _wanted_now(self) -> str:
        """Digest of what the job file asks for at this moment: it may have been edited while the run went on."""
        now = JobFile.load(self._jobfile.path, self._jobfile.job.name)
        return inputs_digest(now.inputs(now.target(self._target.name)))

    def _publish(self, run: RunRecord, verdict: VerdictRecord) -> dict[str, object]:
        store, trust = self._place.store, TrustRoot.load()
        wish = Wish.of(self._jobfile.job, self._target.name)
        ended = release(store, run, verdict, signer(), wish, trust, current_inputs_digest=self._wanted_now)
        manifest = ended.published.digest
        verified = verify(store, manifest, trust, scratch=self._folder)
        state = _state(ended)
        self._console.print(
            f"published and verified: manifest {manifest[:16]} ({state}), engine {verified.engine.digest[:16]}, "
            f"{verified.engine.size} bytes, signed by {', '.join(key[:16] for key in verified.signers)}",
            soft_wrap=True,
            highlight=False,
        )
        return {"manifest": manifest, "state": state, "engine": verified.engine.digest}


def _state(ended: Release) -> str:
    pointer = ended.pointer
    if ended.state == "Served":
        return "served"
    if pointer is None or ended.state == "AwaitingApproval":
        return "waits for `trtfleet promote`"
    if pointer.pinned is not None:
        return f"held: the pointer is pinned to {pointer.pinned[:16]}"
    return f"not served: the pointer was moved by {pointer.current.why} to {pointer.current.manifest[:16]}"
