"""The examination as a program: options, what it prints, its exit code. `trtfleet doctor` is the same with its own options."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.child import ShapeCase
from tuner_job.doctor.examine import Wish, examine
from tuner_job.doctor.record import DoctorRecord, read_result, require_trusted, write_result
from tuner_job.doctor.text import check_line, closing_lines
from tuner_job.store.attest import VerificationFailed
from tuner_job.store.folder import written_aside
from tuner_job.store.keys import TrustRoot, signer

OK, VERIFICATION_FAILED, NOT_CONFIRMED, BAD_INPUT, STOPPED, FAILED = 0, 3, 5, 64, 67, 70
"""As cli.exits has them."""

DEVICE_OF = {"TensorRT": "GPU", "ONNXRuntime": "CPU"}
"""Where a runtime is examined unless told otherwise."""


def wish_of(family: str, device: str | None, folder: Path, shapes: Sequence[str], **rest: object) -> Wish:
    """Options as they are given, checked. Raises InputError."""
    chosen = device or DEVICE_OF[family]
    if family == "TensorRT" and chosen == "CPU":
        raise InputError("--device CPU: TensorRT builds for GPUs only; leave it out, or give --runtime ONNXRuntime")
    if shapes and not rest.get("model"):
        raise InputError("--shape: is of an input of --model; give both, or neither for the built-in model")
    return Wish(family=family, device_type=chosen, folder=folder, cases=_cases(shapes), **rest)  # type: ignore[arg-type]


def conduct(wish: Wish, output: Path, say: Callable[[str], None]) -> tuple[DoctorRecord, bytes]:
    """Examine, say each thing as it is known, and write the signed result to `output`. Raises InputError, KeyProblem, OSError."""
    key = signer()  # what cannot be written or signed is better known before than after
    if not os.access(output.absolute().parent, os.W_OK) or output.is_dir():
        raise InputError(f"--output {output}: cannot be written there; name a file in a folder that you may write to")
    record = examine(wish, lambda check: say(check_line(check)))
    data = write_result(record, key)
    with written_aside(output) as file:
        file.write(data)
    for line in closing_lines(record):
        say(line)
    say(f"result: {output}, signed by {key.key_id[:16]}")
    return record, data


def check_result(path: Path, trust: TrustRoot, say: Callable[[str], None]) -> DoctorRecord:
    """Say what a result file holds. Raises VerificationFailed unless it is as a trusted key signed it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a file that `trtfleet doctor` wrote") from None
    record, key = read_result(data, str(path))
    require_trusted(key, trust, str(path))
    for check in record.checks:
        say(check_line(check))
    for line in closing_lines(record):
        say(line)
    say(f"verified: signed by {key.key_id[:16]}, {record.started_at}")
    return record


def _cases(shapes: Sequence[str]) -> tuple[ShapeCase, ...]:
    """`x=4x3x224x224`, one for each input: one case."""
    tensors = {}
    for text in shapes:
        name, equals, dims = text.rpartition("=")
        if not equals or not name or not all(part.isdigit() for part in dims.split("x")):
            raise InputError(f"--shape {text}: write it like --shape images=1x3x224x224")
        tensors[name] = tuple(int(part) for part in dims.split("x"))
    return (ShapeCase(name="given", tensors=tensors),) if tensors else ()


def parser() -> argparse.ArgumentParser:
    """The module's options."""
    found = argparse.ArgumentParser(prog="python -m tuner_job.doctor", description=main.__doc__)
    found.add_argument("--runtime", choices=sorted(DEVICE_OF), default="TensorRT")
    found.add_argument("--device", choices=("CPU", "GPU"))
    found.add_argument("--model", type=Path, help="an ONNX file instead of the built-in model")
    found.add_argument("--shape", action="append", default=[], metavar="NAME=DIMS", help="of an input of --model: x=1x3x224x224")
    found.add_argument("--output", type=Path, default=Path("doctor.json"))
    found.add_argument("--json", action="store_true", help="the signed result on standard output, one line")
    found.add_argument("--folder", type=Path, help="for scratch files; default: a temporary one")
    found.add_argument("--builds", type=_whole(2, 16), default=4, help="default builds to compare")
    found.add_argument("--sessions", type=_whole(2, 100), default=12, help="sessions of each")
    found.add_argument("--routes", type=_whole(1, 64), default=4, help="how many knobs to try")
    found.add_argument("--allow-shared", action="store_true", help="go on though other processes use the GPU")
    found.add_argument("--check", type=Path, metavar="FILE", help="verify a result instead")
    found.add_argument("--trust", type=Path, help="public keys that count with --check")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 all confirmed; 5 not all, see the result; 3 does not verify; 64 bad input; 67 stopped; 70 failed."""
    options = parser().parse_args(arguments)
    say = _to_stderr if options.json else _to_stdout
    try:
        if options.check:
            check_result(options.check, TrustRoot.load(options.trust), say)
            return OK
        with tempfile.TemporaryDirectory() as scratch:
            wish = wish_of(
                options.runtime,
                options.device,
                options.folder or Path(scratch),
                options.shape,
                model=options.model,
                builds=options.builds,
                sessions=options.sessions,
                routes=options.routes,
                allow_shared=options.allow_shared,
            )
            record, data = conduct(wish, options.output, say)
    except KeyboardInterrupt:
        return STOPPED
    except VerificationFailed as error:
        return _failed(error, VERIFICATION_FAILED)
    except InputError as error:
        return _failed(error, BAD_INPUT)
    except TrtfleetError as error:
        return _failed(error, FAILED)
    if options.json:
        sys.stdout.write(data.decode())
    return OK if record.confirmed else NOT_CONFIRMED


def _whole(low: int, high: int) -> Callable[[str], int]:
    """The same limits as the command's."""

    def convert(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"give a whole number from {low} to {high}")
        return int(text)

    return convert


def _failed(error: TrtfleetError, code: int) -> int:
    _to_stderr(f"doctor: {error}")
    return code


def _to_stdout(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
