"""Commands about what is published: verify, history, rollback, pin, unpin, promote, gc."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click
from pydantic.alias_generators import to_camel
from rich.table import Table

from tuner_job.api.base import InputError
from tuner_job.api.inputs import Owner
from tuner_job.api.messages import PointerRecord
from tuner_job.cli.jobfile import LOCAL, JobFile, Place, open_place
from tuner_job.cli.options import FOLDER, F, Output, output_option
from tuner_job.report.words import candidate_text, interval_text, latency_text
from tuner_job.store import gc, pointers
from tuner_job.store.keys import TrustRoot
from tuner_job.store.pointers import PointerName
from tuner_job.store.publish import promote
from tuner_job.store.verify import fetch_engine, verify

SHORT = 16
"""Digits of a digest that people are shown; commands take as few, if they are unambiguous."""

trust_option = click.option(
    "--trust", type=click.Path(path_type=Path), help="Trusted public keys: a file or folder of PEM. Default: your own."
)


class Named:
    """A pointer and the store that holds it, from a job file or from a name."""

    def __init__(self, place: Place, name: PointerName) -> None:
        self.place = place
        self.name = name

    def pointer(self) -> PointerRecord:
        """Raises PointerRefused when nothing was published under the name."""
        found = pointers.read(self.place.store, self.name)
        if found is None:
            raise pointers.PointerRefused(
                f"nothing is published for {self.name} in {self.place.store.url}; "
                "run the job first, or check the name and the store's URL, which on a cluster ends with the namespace's prefix",
                reason="PointerMissing",
            )
        return found

    def manifest(self, digits: str) -> str:
        """The full digest of a manifest in the pointer's history."""
        known = [entry.manifest for entry in pointers.entries(self.pointer())]
        found = sorted({digest for digest in known if digest.startswith(digits.removeprefix("sha256:"))})
        if len(found) != 1:
            what = "no manifest" if not found else f"{len(found)} manifests"
            raise InputError(f"{what} in the history of {self.name} begins with {digits}; see `trtfleet history`")
        return found[0]


def named_arguments(command: F) -> F:
    """`WHAT` with the options that complete it, as the parameter `named`."""

    def build(context: click.Context, _parameter: click.Parameter, what: str) -> Named:
        options = context.meta
        store, folder = options.get("store_url"), options.get("folder") or FOLDER
        if what.endswith((".yaml", ".yml")) or Path(what).is_file():
            jobfile = JobFile.load(Path(what), options.get("job_name"))
            name = jobfile.pointer(jobfile.target(options.get("target_name")))
            if wanted := options.get("runtime_version"):
                name = PointerName(name.owner, name.target, wanted)
            return Named(jobfile.place(store, folder), name)
        parts = what.split("/")
        if len(parts) != 5 or not all(parts):
            raise InputError(f"{what}: give a job file, or <cluster>/<namespace>/<job>/<target>/<runtime version> with --store")
        place = open_place(store) if store else open_place((folder.resolve() / "store").as_uri())
        return Named(place, PointerName(Owner(cluster=parts[0], namespace=parts[1], name=parts[2]), parts[3], parts[4]))

    def eager(*names: str, key: str, **rest: object) -> Callable[[F], F]:
        def keep(context: click.Context, _parameter: click.Parameter, value: object) -> None:
            context.meta[key] = value

        return click.option(*names, key, is_eager=True, expose_value=False, callback=keep, **rest)  # type: ignore[arg-type]

    options = (
        click.argument("named", metavar="JOB.yaml|NAME", callback=build),
        eager("--job", key="job_name", metavar="NAME", help="Which TuningJob of the file."),
        eager("--target", key="target_name", metavar="NAME", help="Which target of the job."),
        eager("--runtime-version", key="runtime_version", metavar="VERSION", help="Another runtime version than the job's."),
        eager("--store", key="store_url", metavar="URL", help="Use this store instead of the job's storeRef."),
        eager(
            "--folder", key="folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True,
            help=f"Where the store named `{LOCAL}` is.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command("verify", short_help="Check pointer, manifest, signature, engine.")
@named_arguments
@click.option("--manifest", "digits", metavar="DIGEST", help="Verify this manifest of the history instead of the served one.")
@click.option("-o", "--output-file", type=click.Path(path_type=Path, dir_okay=False), help="Leave the verified engine here.")
@trust_option
@output_option
def verify_command(named: Named, digits: str | None, output_file: Path | None, trust: Path | None, output: Output) -> None:
    """Check pointer, manifest, signature and engine bytes; nothing is loaded before all of it holds."""
    roots = TrustRoot.load(trust)
    what = named.manifest(digits) if digits else named.name
    store = named.place.store
    verified = fetch_engine(store, what, roots, output_file) if output_file else verify(store, what, roots)
    manifest = verified.manifest
    output.print(f"verified: manifest {verified.digest} signed by {', '.join(verified.signers)}")
    output.print(
        f"  engine {verified.engine.digest}, {verified.engine.size} bytes" + (f" → {output_file}" if output_file else "")
    )
    output.print(f"  {manifest.owner} target {manifest.target}, {manifest.runtime.family} {manifest.runtime.version}")
    output.print(f"  {manifest.device.product}: {latency_text(manifest.latency_seconds)}, {manifest.reason}")
    output.print(f"  {candidate_text(manifest.candidate)}")
    if manifest.gain is not None:
        output.print(f"  these bytes against the median default build: {interval_text(manifest.gain)}")
    output.print_json(
        {
            "manifest": verified.digest,
            "signers": list(verified.signers),
            "engine": {"digest": verified.engine.digest, "size": verified.engine.size},
            "content": manifest.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
    )


@click.command("history")
@named_arguments
@output_option
def history_command(named: Named, output: Output) -> None:
    """What the pointer served, newest first."""
    pointer = named.pointer()
    table = Table("", "manifest", "run", "at", "why", title=str(named.name), title_justify="left")
    for entry in pointers.entries(pointer):
        mark = "pinned" if entry.manifest == pointer.pinned else ""
        served = "→" if entry is pointer.current else ""
        table.add_row(f"{served} {mark}".strip(), entry.manifest[:SHORT], entry.run, entry.at, entry.why)
    if not output.as_json:
        output.console.print(table)
    output.print_json(pointer.model_dump(mode="json", by_alias=True, exclude_none=True))


@click.command("rollback", short_help="Serve an earlier engine again.")
@named_arguments
@click.option("--to", "digits", metavar="DIGEST", help="A manifest of the history; default: the one served before.")
@output_option
def rollback_command(named: Named, digits: str | None, output: Output) -> None:
    """Serve an earlier engine again. The run that was left will not come back by itself."""
    _moved(pointers.rollback(named.place.store, named.name, named.manifest(digits) if digits else None), output)


@click.command("pin")
@named_arguments
@click.option("--to", "digits", metavar="DIGEST", help="A manifest of the history; default: the one that is served.")
@output_option
def pin_command(named: Named, digits: str | None, output: Output) -> None:
    """Keep serving one engine, whatever is found."""
    _moved(pointers.pin(named.place.store, named.name, named.manifest(digits) if digits else None), output)


@click.command("unpin")
@named_arguments
@output_option
def unpin_command(named: Named, output: Output) -> None:
    """Let the next winner be served again."""
    _moved(pointers.unpin(named.place.store, named.name), output)


@click.command("promote", short_help="Serve an approved manifest.")
@named_arguments
@click.argument("digest")
@trust_option
@output_option
def promote_command(named: Named, digest: str, trust: Path | None, output: Output) -> None:
    """Serve an approved manifest (under `promotion: Manual`). DIGEST is the whole one that `run` printed with --json."""
    approved = digest.removeprefix("sha256:")
    if len(approved) != 64:
        raise InputError(f"{digest}: approve a manifest by its whole SHA-256 (64 hex digits)")
    owner, target = named.name.owner, named.name.target
    _moved(promote(named.place.store, approved, TrustRoot.load(trust), owner=owner, target=target), output)


@click.command("gc", short_help="Delete what no pointer reaches.")
@click.argument("store_url", metavar="STORE")
@click.option("--keep", type=click.IntRange(0, 50), default=10, show_default=True, help="Former engines kept per pointer.")
@click.option("--grace-hours", type=click.FloatRange(min=0), default=gc.DEFAULT_GRACE_SECONDS / 3600, show_default=True)
@click.option("--run-days", type=click.FloatRange(min=0), help="Retire runs idle for so long that no pointer names.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@output_option
def gc_command(store_url: str, keep: int, grace_hours: float, run_days: float | None, dry_run: bool, output: Output) -> None:
    """Delete what no pointer reaches and nobody wrote for the grace period."""
    report = gc.collect(
        open_place(store_url).store,
        keep=keep,
        now=datetime.now(UTC),
        grace_seconds=grace_hours * 3600,
        dry_run=dry_run,
        run_retention_seconds=None if run_days is None else run_days * 86400,
    )
    output.print(_collected(report))
    output.print_json({to_camel(name): dict(each) if isinstance(each, dict) else each for name, each in vars(report).items()})


def _collected(report: gc.Report) -> str:
    def counts(of: Counter[str]) -> str:
        return ", ".join(f"{kind} {count}" for kind, count in sorted(of.items()) if count) or "nothing"

    lines = [
        f"{'would delete' if report.dry_run else 'deleted'} (objects): {counts(report.deleted)}, {report.freed_bytes} bytes",
        f"{'would keep' if report.dry_run else 'kept'} (objects): {counts(report.kept)}",
    ]
    if report.retired:
        lines.append(f"runs that may not publish any more: {', '.join(report.retired)}")
    if report.trimmed:
        lines.append(f"history cut: {', '.join(report.trimmed)}")
    if report.swept:
        lines.append(f"half-written files removed: {report.swept}")
    return "\n".join(lines)


def _moved(pointer: PointerRecord, output: Output) -> None:
    pinned = " (pinned)" if pointer.pinned else ""
    output.print(f"serving {pointer.current.manifest[:SHORT]}{pinned}, generation {pointer.generation}: {pointer.current.why}")
    output.print_json(pointer.model_dump(mode="json", by_alias=True, exclude_none=True))
