"""`trtfleet doctor`: what works on this machine, tried out."""

from __future__ import annotations

from pathlib import Path

import click

from tuner_job.cli.exits import Exit
from tuner_job.cli.options import Output, folder_option, output_option
from tuner_job.doctor.command import DEVICE_OF, check_result, conduct, wish_of
from tuner_job.store.keys import TrustRoot


@click.command("doctor", short_help="Try out what works on this machine.")
@click.option("--runtime", "family", type=click.Choice(sorted(DEVICE_OF)), default="TensorRT", show_default=True)
@click.option("--device", type=click.Choice(["CPU", "GPU"]), help="[default: GPU for TensorRT, CPU for ONNXRuntime]")
@click.option(
    "--model", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="An ONNX file instead of the built-in model.",
)  # fmt: skip
@click.option("--shape", "shapes", multiple=True, metavar="NAME=DIMS", help="Of an input of --model: images=1x3x224x224.")
@click.option(
    "-o", "--output", "output_file", type=click.Path(path_type=Path, dir_okay=False), default=Path("doctor.json"),
    show_default=True, help="Where the signed result goes.",
)  # fmt: skip
@click.option("--builds", type=click.IntRange(2, 16), default=4, show_default=True, help="Default builds to compare.")
@click.option("--sessions", type=click.IntRange(2, 100), default=12, show_default=True, help="Sessions of each.")
@click.option("--routes", type=click.IntRange(1, 64), default=4, show_default=True, help="How many knobs to try.")
@click.option("--allow-shared", is_flag=True, help="Go on though other processes use the GPU.")
@click.option(
    "--check", "checked", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Verify a result instead, and say what it holds.",
)  # fmt: skip
@click.option("--trust", type=click.Path(path_type=Path), help="Public keys that count with --check; default: yours.")
@folder_option
@output_option
def doctor_command(
    family: str,
    device: str | None,
    model: Path | None,
    shapes: tuple[str, ...],
    output_file: Path,
    builds: int,
    sessions: int,
    routes: int,
    allow_shared: bool,
    checked: Path | None,
    trust: Path | None,
    folder: Path,
    output: Output,
) -> int:
    """Try out, with a small model, what a run would do: library, device, knob list, builds, accuracy, timing, routes.

    Works offline. Writes a signed result, also where little works. Exit code 0 when everything is confirmed, 5 when not.
    """
    if checked is not None:
        record = check_result(checked, TrustRoot.load(trust), output.print)
        output.print_json(record.model_dump(mode="json", by_alias=True, exclude_none=True))
        return Exit.OK
    wish = wish_of(
        family,
        device,
        folder,
        shapes,
        model=model,
        builds=builds,
        sessions=sessions,
        routes=routes,
        allow_shared=allow_shared,
    )
    say = (lambda line: click.echo(line, err=True)) if output.as_json else output.print
    record, data = conduct(wish, output_file, say)
    if output.as_json:
        click.echo(data.decode(), nl=False)
    return Exit.OK if record.confirmed else Exit.NOT_CONFIRMED
