"""`trtfleet run`: tune, prove, publish and report on this machine."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from tuner_job.api.base import InputError
from tuner_job.api.effective import cluster_fields, inputs_digest
from tuner_job.api.messages import PointerRecord, RunRecord, VerdictRecord
from tuner_job.api.tuningjob import PublishTarget, Target
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
from tuner_job.store.publish import promote, publish
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
        if publishing and self._decision.pinned_digest:
            name = self._jobfile.pointer(self._target)
            pointers.pin(self._place.store, name, self._decision.pinned_digest.removeprefix("sha256:"))
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

    @property
    def _decision(self) -> PublishTarget:
        """What a person decided about the target's pointer in `publish.targets`."""
        wish = self._jobfile.job.spec.publish
        own = (each for each in (wish.targets if wish else ()) if each.name == self._target.name)
        return next(own, PublishTarget(name=self._target.name))

    def _wanted_now(self) -> str:
        """Digest of what the job file asks for at this moment: it may have been edited while the run went on."""
        now = JobFile.load(self._jobfile.path, self._jobfile.job.name)
        return inputs_digest(now.inputs(now.target(self._target.name)))

    def _publish(self, run: RunRecord, verdict: VerdictRecord) -> dict[str, object]:
        store = self._place.store
        wish = self._jobfile.job.spec.publish
        promotion = (wish and wish.promotion) or "Automatic"
        published = publish(store, run, verdict, signer(), current_inputs_digest=self._wanted_now, promotion=promotion)
        pointer = published.pointer
        if pointer is not None and not published.served and _was_overtaken(pointer):
            # The job was edited back to what this run had tuned for: serve its engine again.
            name = self._jobfile.pointer(self._target)
            pointer = pointers.move(store, name, published.digest, why=pointers.PUBLISHED, expected_generation=pointer.generation)
        if promotion == "Manual" and self._decision.approved_digest:
            approved = self._decision.approved_digest.removeprefix("sha256:")
            pointer = promote(store, approved, TrustRoot.load(), owner=run.owner, target=run.target)
        if pointer is not None and wish is not None and wish.keep is not None:
            pointer = pointers.trim(store, self._jobfile.pointer(self._target), wish.keep)
        verified = verify(store, published.digest, TrustRoot.load(), scratch=self._folder)
        state = _state(pointer, published.digest)
        self._console.print(
            f"published and verified: manifest {published.digest[:16]} ({state}), engine {verified.engine.digest[:16]}, "
            f"{verified.engine.size} bytes, signed by {', '.join(key[:16] for key in verified.signers)}",
            soft_wrap=True,
            highlight=False,
        )
        return {"manifest": published.digest, "state": state, "engine": verified.engine.digest}


def _was_overtaken(pointer: PointerRecord) -> bool:
    """Another run's engine is served, and no person decided so."""
    return pointer.pinned is None and pointer.current.why == pointers.PUBLISHED


def _state(pointer: PointerRecord | None, manifest: str) -> str:
    if pointer is None:
        return "waits for `trtfleet promote`"
    if pointer.current.manifest == manifest:
        return "served"
    if pointer.pinned is not None:
        return f"held: the pointer is pinned to {pointer.pinned[:16]}"
    return f"not served: the pointer was moved by {pointer.current.why} to {pointer.current.manifest[:16]}"
