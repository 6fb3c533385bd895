"""The command `trtfleet`: groups the commands, and turns errors into one line and an exit code."""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import ClassVar, NoReturn

import click

from tuner_job import __version__
from tuner_job.api.base import TrtfleetError
from tuner_job.api.documents import InvalidDocuments
from tuner_job.cli.exits import Exit, exit_code


class _Commands(click.Group):
    """Commands are imported when they are named: a command pays for what it uses."""

    names: ClassVar[dict[str, str]] = {
        "run": "tuner_job.cli.run:run_command",
        "plan": "tuner_job.cli.plan:plan_command",
        "knobs": "tuner_job.cli.plan:knobs_command",
        "report": "tuner_job.cli.report:report_command",
        "verify": "tuner_job.cli.published:verify_command",
        "history": "tuner_job.cli.published:history_command",
        "rollback": "tuner_job.cli.published:rollback_command",
        "pin": "tuner_job.cli.published:pin_command",
        "unpin": "tuner_job.cli.published:unpin_command",
        "promote": "tuner_job.cli.published:promote_command",
        "gc": "tuner_job.cli.published:gc_command",
        "import": "tuner_job.cli.cache:import_command",
        "export": "tuner_job.cli.cache:export_command",
        "doctor": "tuner_job.cli.doctor:doctor_command",
        "trtexec": "tuner_job.cli.trtexec:trtexec_command",
    }

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(self.names)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in self.names:
            return None
        module, _, attribute = self.names[name].partition(":")
        command = getattr(__import__(module, fromlist=[attribute]), attribute)
        assert isinstance(command, click.Command)
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trtfleet")
def cli() -> None:
    """Tune inference engines, prove the winner, publish it signed."""


def main() -> None:
    """Never a traceback for what a user, a store or a disk did. SIGTERM and a closed terminal stop a run as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup it stays ignored
            signal.signal(number, signal.default_int_handler)
    try:
        code = cli.main(prog_name="trtfleet", standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(Exit.USAGE)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "trtfleet"
        _fail("Usage", [f"{error.format_message().rstrip('.')}; see `{command} --help`"], Exit.USAGE)
    except click.ClickException as error:
        _fail("Usage", [error.format_message()], Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        _fail("Stopped", ["stopped; nothing is lost: the same command goes on"], Exit.STOPPED)
    except InvalidDocuments as error:
        _fail(error.reason, error.problems, exit_code(error))
    except TrtfleetError as error:
        _fail(error.reason, [str(error)], exit_code(error))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(Exit.FAILED)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _fail("FileUnusable", [f"{what}; is there room, and may it be written?"], Exit.STORE_UNUSABLE)
    except Exception:  # a mistake of ours, to be reported with all of it
        traceback.print_exc()
        sys.exit(Exit.FAILED)
    sys.exit(code or Exit.OK)


def _fail(reason: str, problems: Sequence[str], code: Exit) -> NoReturn:
    """A line a problem on standard error; under --json all of them in one document on standard output as well."""
    if "--json" in sys.argv:
        click.echo(json.dumps({"error": {"reason": reason, "message": "\n".join(problems)}}, ensure_ascii=False))
    for problem in problems:
        click.echo(f"trtfleet: {problem}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
